"""The solvers' vector operations with fewer messages: related sums and maxima are sent in one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from implicitsolve._namespace import is_safe, numpy_namespace, safe_range
from implicitsolve._typing import HostArray
from implicitsolve.distributed._array import DistributedArray, replicate
from implicitsolve.distributed._communicator import Communicator
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
        return replicate(np.concatenate([h + again, left.astype(h.dtype)], axis=1))

    @staticmethod
    def measure(arrays: Sequence[Any]) -> Any:
        """See `Vectors.measure`; one message."""
        squares, largest = sums_and_maxima(
            arrays[0].comm, [_squares(x.local) for x in arrays], [_largest(x.local) for x in arrays]
        )
        return replicate(np.concatenate([part for pair in zip(squares, largest) for part in pair], axis=1))

    @staticmethod
    def remember(dF: Any, dg: Any, j: int, m: int, column: Any, image: Any, F: Any) -> Any:
        """See `Vectors.remember`; one message."""
        dF[:, j, :], dg[:, j, :] = column, image
        sums, _ = sums_and_maxima(F.comm, [_project(dF.local[:, :m, :], F.local), _squares(column.local)])
        return replicate(np.concatenate(sums, axis=1))

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
        return replicate(np.concatenate([*sums, *maxima], axis=1))

    @staticmethod
    def nearby(x: Any, v: Any, reach: Any) -> tuple[Any, Any]:
        """See `Vectors.nearby`; one message, two where the squares of v overflow or underflow."""
        (square,), (largest,) = sums_and_maxima(v.comm, [_squares(v.local)], [_largest(v.local)])
        size = _positive(largest)
        norm = np.sqrt(np.real(square))
        if not is_safe(norm[largest > 0], numpy_namespace, v.dtype).all():
            norm = size * np.sqrt(v.comm.allreduce(_squares(v.local / size), "sum"))
        h = reach[:, None] / replicate(_positive(norm / size))
        return x + h * (v / replicate(size)), replicate(size) / h

    @staticmethod
    def dots(*pairs: tuple[Any, Any]) -> list[Any]:
        """See `Vectors.dots`; one message."""
        sums, _ = sums_and_maxima(pairs[0][0].comm, [_dot(a.local, b.local) for a, b in pairs])
        return [replicate(x) for x in sums]

    @staticmethod
    def coefficient(t: Any, s: Any) -> tuple[Any, Any]:
        """See `Vectors.coefficient`; one message, two where the squares of t overflow or underflow."""
        unit: HostArray = t.local
        scale: HostArray | float = 1.0
        (gain, square), (size,) = sums_and_maxima(t.comm, [_dot(unit, s.local), _squares(unit)], [_largest(unit)])
        if not is_safe(np.sqrt(square)[size > 0], numpy_namespace, t.dtype).all():
            scale = _positive(size)
            unit = t.local / scale
            (gain, square), _ = sums_and_maxima(t.comm, [_dot(unit, s.local), _squares(unit)])
        return replicate(np.where(size > 0, gain / (square * scale), np.zeros_like(gain))), replicate(size)


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


def sums_and_maxima(
    comm: Communicator, sums: Sequence[HostArray], maxima: Sequence[HostArray] = ()
) -> tuple[list[HostArray], list[HostArray]]:
    """Add arrays (b, any) of all ranks, and take maxima of others, by one message; all of one precision."""
    dtype = np.result_type(*sums, *maxima)
    real = np.finfo(dtype).dtype
    flat = [np.ascontiguousarray(part, dtype=dtype).view(real) for part in sums]
    left = np.concatenate(flat, axis=1) if flat else np.zeros((maxima[0].shape[0], 0), real)
    if not maxima:
        return _columns(comm.allreduce(left, "sum").view(dtype), sums), []
    right = np.concatenate([np.asarray(part, dtype=real) for part in maxima], axis=1)
    pairs = np.zeros((left.shape[0], max(left.shape[1], right.shape[1]), 2), real)
    pairs[:, : left.shape[1], 0], pairs[:, : right.shape[1], 1] = left, right
    pairs = comm.allreduce(pairs, "sum-max")
    most = _columns(pairs[:, : right.shape[1], 1], maxima)
    return _columns(np.ascontiguousarray(pairs[:, : left.shape[1], 0]).view(dtype), sums), most


def _columns(x: HostArray, like: Sequence[HostArray]) -> list[HostArray]:
    """The columns of x for each of the arrays `like`."""
    stops = list(accumulate(part.shape[1] for part in like))
    return [x[:, stop - part.shape[1] : stop] for part, stop in zip(like, stops)]


def _is_split(like: DistributedArray, **case: Any) -> bool:
    return like.axis == like.ndim - 1


vectors.implement("distributed", DistributedVectors, _is_split)


def empty_vectors(like: DistributedArray, axes: tuple[int, ...]) -> DistributedArray:
    """An uninitialized array (*axes, N) whose last axis is that of `like`."""
    local = np.empty((*axes, like.local.shape[-1]), like.dtype)
    axis = None if like.axis is None else local.ndim - like.ndim + like.axis
    return DistributedArray(local, axis, like.comm, like.counts)
