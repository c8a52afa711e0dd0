"""What solvers do with vectors, by fewer messages: sums and maxima that belong together go in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from implicitsolve._namespace import is_safe, numpy_namespace, safe_range
from implicitsolve._typing import HostArray
from implicitsolve.distributed._array import DistributedArray, replicated
from implicitsolve.distributed._reductions import sums_and_maxima
from implicitsolve.kernels import vectors
from implicitsolve.kernels._vectors import Vectors

CANCELLED = 0.5  # part of a squared length that may be subtracted from it before it is summed anew


class DistributedVectors(Vectors):
    """As `Vectors`, on arrays whose last axis is split."""

    @staticmethod
    def orthonormalize(V: Any, w: Any) -> Any:
        """See `Vectors.orthonormalize`; two messages, three where nearly nothing of w is outside the span.

        The second projection and the length come together: what is subtracted of a vector is orthogonal to the rest.
        """
        comm, basis = w.comm, V.local[:, :-1, :]
        h = comm.allreduce(_project(basis, w.local), "sum")
        rest = w.local - _combine(h, basis)
        (again, square), _ = sums_and_maxima(comm, [_project(basis, rest), _squares(rest)])
        rest = rest - _combine(again, basis)
        square = np.real(square)
        left = square - np.sum(np.abs(again) ** 2, axis=1, keepdims=True, dtype=square.dtype)
        if not (left >= CANCELLED * square).all():
            left = comm.allreduce(_squares(rest), "sum")
        size = np.sqrt(left)
        low, high = safe_range(numpy_namespace, w.dtype)
        V.local[:, -1, :] = rest / np.where((size > low) & (size < high), size, np.ones_like(size))
        return replicated(np.concatenate([h + again, left.astype(h.dtype)], axis=1))

    @staticmethod
    def measure(arrays: Sequence[Any]) -> Any:
        """See `Vectors.measure`; one message."""
        squares, largest = sums_and_maxima(
            arrays[0].comm, [_squares(x.local) for x in arrays], [_largest(x.local) for x in arrays]
        )
        return replicated(np.concatenate([part for pair in zip(squares, largest) for part in pair], axis=1))

    @staticmethod
    def remember(dF: Any, dg: Any, j: int, m: int, column: Any, image: Any, F: Any) -> Any:
        """See `Vectors.remember`; one message."""
        dF[:, j, :], dg[:, j, :] = column, image
        sums, _ = sums_and_maxima(F.comm, [_project(dF.local[:, :m, :], F.local), _squares(column.local)])
        return replicated(np.concatenate(sums, axis=1))

    @staticmethod
    def advance(
        dF: Any, dg: Any, j: int, m: int, F: Any, old_F: Any, step: Any, image: Any, old_image: Any, x: Any
    ) -> Any:
        """See `Vectors.advance`; one message."""
        column = F - old_F
        dF[:, j, :], dg[:, j, :] = column, step - (image - old_image)
        measured = [part.local for part in (F, step, x)]
        sums, maxima = sums_and_maxima(
            F.comm,
            [_project(dF.local[:, :m, :], F.local), *(_squares(part) for part in (column.local, *measured))],
            [_largest(part) for part in measured],
        )
        return replicated(np.concatenate([*sums, *maxima], axis=1))

    @staticmethod
    def nearby(x: Any, v: Any, reach: Any) -> tuple[Any, Any]:
        """See `Vectors.nearby`; one message, two where the squares of v overflow or underflow."""
        (square,), (largest,) = sums_and_maxima(v.comm, [_squares(v.local)], [_largest(v.local)])
        size = _positive(largest)
        norm = np.sqrt(np.real(square))
        if not is_safe(norm[largest > 0], numpy_namespace, v.dtype).all():
            norm = size * np.sqrt(v.comm.allreduce(_squares(v.local / size), "sum"))
        h = reach[:, None] / replicated(_positive(norm / size))
        return x + h * (v / replicated(size)), replicated(size) / h

    @staticmethod
    def second_half(shadow: Any, s: Any, t: Any, alpha: Any, rho: Any) -> tuple[Any, ...]:
        """See `Vectors.second_half`; two messages, three where the squares of t overflow or underflow."""
        comm, unit = s.comm, t.local
        (gain, square), (size,) = sums_and_maxima(comm, [_dot(unit, s.local), _squares(unit)], [_largest(unit)])
        square, scale = np.real(square), np.ones_like(size)
        if not is_safe(np.sqrt(square)[size > 0], numpy_namespace, t.dtype).all():
            scale = _positive(size)
            unit = t.local / scale
            (gain, square), _ = sums_and_maxima(comm, [_dot(unit, s.local), _squares(unit)])
        omega = np.where(size > 0, gain / (square * scale), np.zeros_like(rho.local))
        r = s - replicated(omega) * t
        (rho_new, left), _ = sums_and_maxima(comm, [_dot(shadow.local, r.local), _squares(r.local)])
        beta = (rho_new / rho.local) * (alpha.local / omega)
        numbers = [np.abs(rho_new), np.abs(omega), np.abs(alpha.local), size, np.abs(left)]
        return (
            *(replicated(omega), r, replicated(rho_new), replicated(beta)),
            replicated(np.concatenate(numbers, axis=1)),
        )


def _dot(a: HostArray, b: HostArray) -> HostArray:
    return np.asarray(numpy_namespace.vecdot(a, b))[:, None]


def _project(rows: HostArray, v: HostArray) -> HostArray:
    return Vectors.project(rows, v)


def _combine(a: HostArray, rows: HostArray) -> HostArray:
    return Vectors.combine(a, rows)


def _squares(x: HostArray) -> HostArray:
    """Squared lengths of the local rows, as a column."""
    return np.real(_dot(x, x))


def _largest(x: HostArray) -> HostArray:
    """Largest magnitudes of the local rows, as a column."""
    return np.max(np.abs(x), axis=1, keepdims=True, initial=0.0)


def _positive(numbers: HostArray) -> HostArray:
    return np.where(numbers > 0, numbers, np.ones_like(numbers))


def _is_split(like: DistributedArray, **facts: Any) -> bool:
    return like.axis == like.ndim - 1


vectors.implement("distributed", DistributedVectors, _is_split)
