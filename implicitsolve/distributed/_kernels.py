"""Kernels for arrays that are partitioned across ranks: vector operations, and products with banded matrices.

Related sums and maxima are sent in one message.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from implicitsolve._arrays.namespace import is_safe, numpy_namespace, safe_range
from implicitsolve._typing import HostArray
from implicitsolve.distributed._array import DistributedArray, replicate
from implicitsolve.distributed._communicator import Communicator, has_neighbours
from implicitsolve.distributed._layout import halos, padded
from implicitsolve.kernels import vectors
from implicitsolve.kernels._vectors import Vectors
from implicitsolve.operators import _block_storage

CANCELLED = 0.5  # part of a squared length that may be subtracted from it before it is summed anew


class DistributedVectors(Vectors):
    """As `Vectors`, on arrays whose last axis is split."""

    @staticmethod
    def orthonormalize(V: Any, w: Any) -> Any:
        """See `Vectors.orthonormalize`; two messages, three where nearly nothing of w is outside the span.

        The second projection and the length come together: what is subtracted of a vector is orthogonal to the rest.
        """
        comm, basis = w.comm, V.local[:, :-1, :]
        h = comm.allreduce(Vectors.project(basis, w.local), "sum")
        rest = w.local - Vectors.combine(h, basis)
        (again, square), _ = sums_and_maxima(comm, [Vectors.project(basis, rest), _squares(rest)])
        rest = rest - Vectors.combine(again, basis)
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
        sums, _ = sums_and_maxima(F.comm, [Vectors.project(dF.local[:, :m, :], F.local), _squares(column.local)])
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
            [Vectors.project(dF.local[:, :m, :], F.local), *(_squares(part) for part in (column.local, *measured))],
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


vectors.implement("distributed", DistributedVectors, lambda like, **case: like.axis == like.ndim - 1)


def empty_vectors(like: DistributedArray, axes: tuple[int, ...]) -> DistributedArray:
    """An uninitialized array (*axes, N) whose last axis is that of `like`."""
    local = np.empty((*axes, like.local.shape[-1]), like.dtype)
    axis = None if like.axis is None else local.ndim - like.ndim + like.axis
    return DistributedArray(local, axis, like.comm, like.counts)


class OwnRows:
    """The block rows of this rank: the blocks in its own columns, and the couplings to both neighbours.

    `blocks` (B, T, lower + upper + 1, k, k) are this rank's T block rows, at least max(lower, upper) of them. `before`
    (B, lower k, lower k) couples the first rows to the last `lower` blocks of the rank before, `after` (B, upper k,
    upper k) the last rows to the first `upper` blocks of the rank after; both are zero where there is no such rank.
    """

    def __init__(self, comm: Communicator, blocks: HostArray, lower: int, periodic: bool) -> None:
        self.comm: Communicator = comm
        self.blocks: HostArray = blocks
        self.lower: int = lower
        self.periodic: bool = periodic
        self.upper: int = blocks.shape[2] - 1 - lower
        self.couples: bool = comm.size > 1 and self.lower + self.upper > 0  # the same on every rank
        previous, following = has_neighbours(comm, periodic) if self.couples else (False, False)
        self.has_previous: bool = previous and self.lower > 0
        self.has_next: bool = following and self.upper > 0
        self.before: HostArray = coupling(first(blocks, lower), 0, self.has_previous)
        self.after: HostArray = coupling(last(blocks, self.upper), blocks.shape[2] - 1, self.has_next)

    @classmethod
    def of(cls, owner: str, blocks: DistributedArray, lower: int, periodic: bool) -> OwnRows:
        """The rows of a matrix (*batch, T, lower + upper + 1, k, k); raise a ValueError unless it is split along T."""
        comm: Any = blocks.comm
        local, reach = blocks.local, max(lower, blocks.local.shape[-3] - 1 - lower)
        if blocks.axis != blocks.ndim - 4:
            raise ValueError(
                f"{owner}: the blocks must be split along T, their axis {blocks.ndim - 4}, got axis {blocks.axis}"
            )
        if comm.size > 1 and min(blocks.counts) < reach:
            raise ValueError(
                f"{owner}: every rank must have at least max(lower, upper) = {reach} block rows, got {blocks.counts}"
            )
        return cls(comm, local.reshape(math.prod(local.shape[:-4]), *local.shape[-4:]), lower, periodic)

    @property
    def is_periodic(self) -> bool:
        """Whether this rank has all rows of a periodic matrix."""
        return self.periodic and self.comm.size == 1


def first(x: HostArray, count: int) -> HostArray:
    """The first blocks of x (B, T, ...): a view."""
    return x[:, :count]


def last(x: HostArray, count: int) -> HostArray:
    """The last blocks of x (B, T, ...): a view."""
    return x[:, max(0, x.shape[1] - count) :]


def as_rows(x: HostArray) -> HostArray:
    """Blocks (B, T, k, K) as the rows (B, T k, K) of a matrix."""
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], x.shape[3])


def add(blocks: HostArray, rows: HostArray | None) -> None:
    """Add rows (B, n k, K) to n blocks (B, n, k, K) in place; None adds nothing."""
    if rows is not None:
        with np.errstate(all="ignore"):
            blocks += rows.reshape(blocks.shape)


def adjoint(x: HostArray) -> HostArray:
    """The adjoint of each matrix (B, m, n)."""
    return x.conj().swapaxes(1, 2)


def coupling(rows: HostArray, corner: int, exists: bool) -> HostArray:
    """The matrix (B, n k, n k) that couples n block rows (B, n, width, k, k) to n blocks of a neighbour.

    Row r has in column c the block ``corner + c - r`` of its band: 0 is the first one, for the neighbour before, and
    width - 1 the last one, for the neighbour after.
    """
    B, n, width, k = rows.shape[:4]
    dense = np.zeros((B, n, k, n, k), dtype=rows.dtype)
    for r, c in np.ndindex((n, n) if exists else (0, 0)):
        if 0 <= corner + c - r < width:
            dense[:, r, :, c, :] = rows[:, r, corner + c - r]
    return dense.reshape(B, n * k, n * k)


class BandProducts:
    """As `Products`: each rank multiplies its own block rows, with one message to each neighbour.

    The first product raises unless the blocks are split along T, with as many rows on every rank as the band reaches.
    """

    def __init__(self, blocks: DistributedArray, lower: int, periodic: bool) -> None:
        self.blocks, self.lower, self.periodic = blocks, lower, periodic
        self.upper: int = blocks.local.shape[-3] - 1 - lower
        self.comm: Any = blocks.comm

    @cached_property
    def own(self) -> tuple[_block_storage.Products, OwnRows]:
        """Products with the blocks in this rank's own columns, and the couplings."""
        rows = OwnRows.of("BlockBandedMatrix", self.blocks, self.lower, self.periodic)
        return _block_storage.Products(self.blocks.local, self.lower, rows.is_periodic), rows

    def times(self, x: DistributedArray) -> DistributedArray:
        """A x for columns x (*batch, T, k, K)."""
        (products, rows), v = self.own, self._local(x)
        with np.errstate(all="ignore"):  # entries that are not finite are the solver's to report
            y, v = _flat(products.times(v)), _flat(v)
            from_previous, from_next = self._exchanged(first(v, self.upper), last(v, self.lower))
            if from_previous is not None:
                add(first(y, self.lower), rows.before @ as_rows(from_previous))
            if from_next is not None:
                add(last(y, self.upper), rows.after @ as_rows(from_next))
        return x.like(y.reshape(x.local.shape))

    def adjoint_times(self, x: DistributedArray) -> DistributedArray:
        """A^H x for columns x (*batch, T, k, K)."""
        (products, rows), w = self.own, self._local(x)
        with np.errstate(all="ignore"):
            y, w = _flat(products.adjoint_times(w)), _flat(w)
            to_previous = adjoint(rows.before) @ as_rows(first(w, self.lower))
            to_next = adjoint(rows.after) @ as_rows(last(w, self.upper))
            from_previous, from_next = self._exchanged(to_previous, to_next)
            add(first(y, self.upper), from_previous)
            add(last(y, self.lower), from_next)
        return x.like(y.reshape(x.local.shape))

    def _exchanged(self, to_previous: HostArray, to_next: HostArray) -> tuple[HostArray | None, HostArray | None]:
        """What the neighbours send in return; None beyond the ends, and for no blocks."""
        if self.comm.size == 1 or not (self.lower or self.upper):
            return None, None
        both = (np.ascontiguousarray(part) if part.size else None for part in (to_previous, to_next))
        return self.comm.exchange(*both, periodic=self.periodic)

    def _local(self, x: DistributedArray) -> HostArray:
        """The local part of a vector that is split as the matrix is."""
        if x.axis != x.ndim - 3 or not self.blocks.counts.is_same(x.counts):
            raise ValueError(
                f"the block rows of a matrix and a vector must be partitioned alike, got {self.blocks!r}, {x!r}"
            )
        return x.local


def _flat(x: HostArray) -> HostArray:
    """Columns (*batch, T, k, K) as (B, T, k, K)."""
    return x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])


def transposed(blocks: DistributedArray, lower: int, periodic: bool, *, conjugate: bool) -> DistributedArray:
    """Blocks of the transpose, or the adjoint, whose bands are exchanged; one message to each neighbour."""
    comm: Any = blocks.comm
    length, upper = blocks.local.shape[-4], blocks.local.shape[-3] - 1 - lower
    around = padded(comm, blocks.local, blocks.ndim - 4, upper, lower, periodic=periodic)
    before, _ = halos(comm, upper, lower, periodic)
    out = _block_storage.transposed(around, lower, False, conjugate=conjugate)[..., before : before + length, :, :, :]
    return blocks.like(np.ascontiguousarray(out))
