"""The block rows of a banded matrix on one rank: couplings to the neighbours, products, and their factors.

As a system of their own they are solved for values of the neighbours that are taken as given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from implicitsolve._typing import HostArray, Indices
from implicitsolve.direct import BlockLU
from implicitsolve.direct._layout import Layout
from implicitsolve.distributed._array import DistributedArray
from implicitsolve.distributed._communicator import Communicator, has_neighbours
from implicitsolve.distributed._layout import padded
from implicitsolve.kernels import Factors
from implicitsolve.operators import BlockBandedMatrix
from implicitsolve.operators._block_storage import Products


class OwnRows:
    """The block rows of this rank: the blocks in its own columns, and the couplings to both neighbours.

    Parameters
    ----------
    comm : Communicator
        Talks to the other ranks, each of which has at least max(lower, upper) block rows.
    blocks : ndarray (B, T, lower + upper + 1, k, k)
        This rank's T block rows.
    lower, periodic : int, bool
        Of the whole matrix.

    Attributes
    ----------
    has_previous, has_next : bool
        Whether these rows depend on the rank before, or after. A single rank has no couplings.
    before : ndarray (B, lower k, lower k)
        Coupling of the first rows to the last `lower` blocks of the rank before; zero if there is none.
    after : ndarray (B, upper k, upper k)
        Coupling of the last rows to the first `upper` blocks of the rank after.
    couples : bool
        Whether ranks are coupled at all: the same on every rank.
    """

    def __init__(self, comm: Communicator, blocks: HostArray, lower: int, periodic: bool) -> None:
        self.comm: Communicator = comm
        self.blocks: HostArray = blocks
        self.lower: int = lower
        self.periodic: bool = periodic
        self.upper: int = blocks.shape[2] - 1 - lower
        self.couples: bool = comm.size > 1 and self.lower + self.upper > 0
        previous, following = has_neighbours(comm, periodic) if self.couples else (False, False)
        self.has_previous: bool = previous and self.lower > 0
        self.has_next: bool = following and self.upper > 0
        self.before: HostArray = coupling(first(blocks, lower), 0, self.has_previous)
        self.after: HostArray = coupling(last(blocks, self.upper), blocks.shape[2] - 1, self.has_next)

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


def add_dense(rows: HostArray, corner: int, dense: HostArray) -> None:
    """Add a matrix (B, n k, m k) to n block rows, in place: the block ``corner + c - r`` of row r is in column c."""
    k = rows.shape[3]
    n, m = dense.shape[1] // k, dense.shape[2] // k
    parts = dense.reshape(dense.shape[0], n, k, m, k)
    for r, c in np.ndindex(n, m):
        rows[:, r, corner + c - r] += parts[:, r, :, c, :]


class BandProducts:
    """As `Products`: each rank multiplies its own block rows, with one message to each neighbour.

    Parameters
    ----------
    blocks : DistributedArray (*batch, T, lower + upper + 1, k, k)
        Split along T.
    lower, periodic : int, bool
        As of `BlockBandedMatrix`.

    Raises
    ------
    ValueError
        From the first product, if another axis is split, or a rank has fewer block rows than the band reaches.
    """

    def __init__(self, blocks: DistributedArray, lower: int, periodic: bool) -> None:
        self.blocks, self.lower, self.periodic = blocks, lower, periodic
        self.upper: int = blocks.local.shape[-3] - 1 - lower
        self.comm: Any = blocks.comm

    @cached_property
    def own(self) -> tuple[Products, OwnRows]:
        """Products with the blocks in this rank's own columns, and the couplings."""
        blocks, reach = self.blocks, max(self.lower, self.upper)
        if blocks.axis != blocks.ndim - 4 or (self.comm.size > 1 and min(blocks.counts) < reach):
            raise ValueError(
                f"BlockBandedMatrix: the blocks must be split along T (axis -4), and every rank must have at least "
                f"max(lower, upper) = {reach} block rows, got {blocks!r}"
            )
        local = blocks.local
        rows = local.reshape(math.prod(local.shape[:-4]), *local.shape[-4:])
        return (
            Products(local, self.lower, self.periodic and self.comm.size == 1),
            OwnRows(self.comm, rows, self.lower, self.periodic),
        )

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
    length, width = blocks.local.shape[-4:-2]
    upper = width - 1 - lower
    around = padded(comm, blocks.local, blocks.ndim - 4, upper, lower, periodic=periodic)
    before = upper if has_neighbours(comm, periodic)[0] else 0
    out = np.zeros_like(blocks.local)
    for j in range(width):
        offset = j - upper + before  # from a row to the place of its block among those that are seen
        first, last = max(0, -offset), min(length, around.shape[-4] - offset)
        if first < last:
            rows = around[..., first + offset : last + offset, width - 1 - j, :, :]
            out[..., first:last, j, :, :] = np.swapaxes(rows, -1, -2)
    return DistributedArray(np.conj(out) if conjugate else out, blocks.axis, comm, blocks.counts)


# Factors


def mixtures(lower: int, upper: int) -> tuple[HostArray, HostArray]:
    """G (lower, upper) and G' (upper, lower) of mixed values: random, identical for every rank and number of ranks.

    What is known of a neighbour's numbers is these minus G times the rank's own adjacent numbers. That G and G' are
    independent matters: a skew-symmetric D with the same number at both ends of its diagonal would stay singular.
    """
    rng = np.random.default_rng((lower, upper))
    G, G_after = rng.standard_normal((lower, upper)), rng.standard_normal((upper, lower))
    return G / max(upper, 1) ** 0.5, G_after / max(lower, 1) ** 0.5


@dataclass(frozen=True)
class Subdomain:
    """The factored rows of one rank, for each system of a batch.

    Attributes
    ----------
    factors, layout : Factors, Layout
        D: the rows without what lies beyond them.
    spikes : ndarray (B, T k, columns)
        D^-1 times the couplings to the rank before and to the one after, if there are such ranks.
    columns : slice
        Which columns these are of (lower + upper) k.
    mixed : ndarray (B,) of bool
        Whether mixtures of the neighbours' values with one's own are given, or the neighbours' values themselves.
    singular : ndarray (B,) of int
        Block of this rank in which D is singular, or -1.
    growth : ndarray (B,)
        Growth of the elimination, times the largest entry of the spikes if that is above 1.
    """

    factors: Factors
    layout: Layout
    spikes: HostArray
    columns: slice
    mixed: HostArray
    singular: HostArray
    growth: HostArray

    @classmethod
    def of(cls, rows: OwnRows, method: BlockLU, mixed: HostArray) -> Subdomain:
        """Factor the rows, for given values that are mixed in some of the systems."""
        D = BlockBandedMatrix(_closed(rows, mixed), lower=rows.lower, upper=rows.upper, periodic=rows.is_periodic)
        layout = Layout.banded(D)
        factors = method.factors(layout.blocks(D), layout.lower, layout.upper)
        B, T, _, k, _ = rows.blocks.shape
        lower, upper = rows.lower * k, rows.upper * k
        columns = slice(0 if rows.has_previous else lower, lower + upper if rows.has_next else lower)
        couplings = np.zeros((B, T, k, lower + upper), dtype=rows.blocks.dtype)
        first(couplings, rows.lower)[..., :lower] = rows.before.reshape(B, rows.lower, k, lower)
        last(couplings, rows.upper)[..., lower:] = rows.after.reshape(B, rows.upper, k, upper)
        with np.errstate(all="ignore"):
            solved = as_rows(_solved(factors, layout, couplings[..., columns], adjoint=False))
            growth = factors.growth * np.max(np.abs(solved), axis=(1, 2), initial=1.0)
        singular = layout.first_block(factors.singular)
        return cls(factors, layout, solved, columns, mixed, singular, np.where(np.isnan(growth), np.inf, growth))

    @classmethod
    def stable(cls, rows: OwnRows, method: BlockLU, limit: float) -> Subdomain:
        """Factor the rows, with mixtures for those systems whose growth is above `limit` and lower with them."""
        plain = cls.of(rows, method, np.zeros(rows.blocks.shape[0], dtype=bool))
        bad = ~(plain.growth <= limit)
        if not bad.any() or not (rows.lower and rows.upper) or not rows.couples:
            return plain
        mixed = cls.of(rows, method, bad)
        better = mixed.growth < plain.growth
        if not better.any():
            return plain
        return mixed if np.array_equal(better, bad) else cls.of(rows, method, better)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.factors.nbytes + self.spikes.nbytes

    def take(self, indices: Indices) -> Subdomain:
        """The rows of some systems."""
        return replace(
            self,
            factors=self.factors.take(indices),
            spikes=self.spikes[indices],
            mixed=self.mixed[indices],
            singular=self.singular[indices],
            growth=self.growth[indices],
        )

    def solve(self, b: HostArray, adjoint: bool = False) -> HostArray:
        """D^-1 b or D^-H b, for b (B, T, k, K)."""
        return _solved(self.factors, self.layout, b, adjoint)


def _closed(rows: OwnRows, mixed: HostArray) -> HostArray:
    """The band of D: the rows' own, and what the given mixtures add to it."""
    if not mixed.any():
        return rows.blocks
    blocks, k = rows.blocks.copy(), rows.blocks.shape[-1]
    G_before, G_after = (
        mixed[:, None, None] * G.astype(blocks.dtype) for G in mixtures(rows.lower * k, rows.upper * k)
    )
    add_dense(first(blocks, rows.lower), rows.lower, rows.before @ G_before)
    add_dense(last(blocks, rows.upper), rows.upper, rows.after @ G_after)
    return blocks


def _solved(factors: Factors, layout: Layout, b: HostArray, adjoint: bool) -> HostArray:
    return layout.restored(factors.solve(layout.vectors(b), adjoint), b.shape[2])
