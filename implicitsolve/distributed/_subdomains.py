"""The parts of a partitioned factorization: the rows of each rank, and the system of the interfaces between ranks.

The latter is what neighbouring ranks exchange in a direct solve. It is small, and every rank solves it.

Each rank solves its own rows for values that it takes as given: ``r = (b - G t, t' - G' b')``, where b are the last
blocks of the rank before, t and b' its own first and last ones, and t' the first blocks of the rank after. With G = 0
these are the neighbours' values themselves. The solution is ``x = g - P r``, where g solves for r = 0 and P has one
column for each number of r. So r, of all ranks, solves ``r + R P r = R g``, where R takes the combinations from x: a
system of which only the tips (first and last blocks) of g and P are needed, block tridiagonal in the interfaces between
ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from implicitsolve._typing import HostArray, Indices
from implicitsolve.direct import BlockLU, Factorization
from implicitsolve.direct._factorization import Layout
from implicitsolve.distributed._communicator import Communicator
from implicitsolve.distributed._kernels import OwnRows, as_rows, first, last
from implicitsolve.kernels import Factors
from implicitsolve.operators import BlockBandedMatrix


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
    """The factored rows of one rank, for each system of a batch."""

    factors: Factors  # of D, the rows without what lies beyond them
    layout: Layout
    spikes: HostArray  # (B, T k, columns): D^-1 times the couplings to the ranks before and after, if there are such
    columns: slice  # which these are of (lower + upper) k
    mixed: HostArray  # (B,) whether mixtures of the neighbours' values with one's own are given, not these values
    singular: HostArray  # (B,) block of this rank in which D is singular, or -1
    growth: HostArray  # (B,) of the elimination, times the largest entry of the spikes if that is above 1

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
    _add_dense(first(blocks, rows.lower), rows.lower, rows.before @ G_before)
    _add_dense(last(blocks, rows.upper), rows.upper, rows.after @ G_after)
    return blocks


def _add_dense(rows: HostArray, corner: int, dense: HostArray) -> None:
    """Add a matrix (B, n k, m k) to n block rows, in place: the block ``corner + c - r`` of row r is in column c."""
    k = rows.shape[3]
    n, m = dense.shape[1] // k, dense.shape[2] // k
    parts = dense.reshape(dense.shape[0], n, k, m, k)
    for r, c in np.ndindex(n, m):
        rows[:, r, corner + c - r] += parts[:, r, :, c, :]


def _solved(factors: Factors, layout: Layout, b: HostArray, adjoint: bool) -> HostArray:
    return layout.restored(factors.solve(layout.vectors(b), adjoint), b.shape[2])


@dataclass(frozen=True)
class Interfaces:
    """The factored interface system of each system of a batch; interface i is between rank i and the one after it.

    A rank depends on `lower` unknowns at the end of the rank before, and on `upper` at the beginning of the one after.
    `mixtures` are G' of the rank before each interface (interfaces, B, upper, lower), and G of the rank after it
    (interfaces, B, lower, upper); None where all are zero.
    """

    comm: Communicator  # of at least 2 ranks
    lower: int
    upper: int
    mixtures: tuple[HostArray, HostArray] | None
    inverse: Factorization  # of the batch; its unknowns are what is exchanged
    found: HostArray  # as of `PartitionedFactors`

    @classmethod
    def of(
        cls,
        comm: Communicator,
        reach: tuple[int, int],
        periodic: bool,
        tips: HostArray,
        found: HostArray,
        first_blocks: HostArray,
    ) -> Interfaces:
        """Set up and factor the system; one allgather.

        `reach` is (lower, upper), `tips` (B, m, m) are the first and last rows of this rank's spikes, m = sum(reach).
        `found` (B, 3) has where its rows are singular (infinite if not), their growth, and whether what is given is
        mixed; `first_blocks` the number of every rank's first block.
        """
        (lower, upper), m = reach, sum(reach)
        tips, found = gathered(comm, tips, found)
        count = comm.size if periodic else comm.size - 1
        before, after = tips[:count], np.roll(tips, -1, axis=0)[:count]
        # P's tips at each interface, by what is exchanged one interface before, there, and one after
        P = np.zeros((3, *before.shape), dtype=tips.dtype)
        P[0, ..., :lower, upper:] = before[:, :, upper:, :lower]
        P[1, ..., :lower, :upper] = before[:, :, upper:, lower:]
        P[1, ..., lower:, upper:] = after[:, :, :upper, :lower]
        P[2, ..., lower:, :upper] = after[:, :, :upper, lower:]
        mixtures = _mixtures(reach, found[:count, :, 2], np.roll(found, -1, axis=0)[:count, :, 2], tips.dtype)
        with np.errstate(all="ignore"):
            blocks = np.stack([_exchanged(part, lower, mixtures) for part in P])
        blocks[1] += np.eye(m)
        A = _matrix(reach, periodic, blocks)
        inverse = BlockLU().factor(A)
        singular, growth = overall(found).T
        at = np.append(np.roll(first_blocks, -1)[:count], np.inf)[_singular_interface(A, inverse)]
        singular = np.where(np.isfinite(singular), singular, at)
        with np.errstate(invalid="ignore"):
            growth = growth * np.asarray(inverse.growth)
        found = np.stack([singular, _infinite_where_singular(singular, growth)], axis=1)
        return cls(comm, lower, upper, mixtures, inverse, found)

    @property
    def nbytes(self) -> int:
        return self.inverse.nbytes + sum(G.nbytes for G in self.mixtures or ())

    def take(self, indices: Indices) -> Interfaces:
        """The systems of some of the batch."""
        mixtures = None if self.mixtures is None else (self.mixtures[0][:, indices], self.mixtures[1][:, indices])
        inverse: Any = self.inverse.take(indices)
        return replace(self, mixtures=mixtures, inverse=inverse, found=self.found[indices])

    def given(self, tips: HostArray) -> HostArray:
        """What this rank takes as given (B, lower + upper, K), for its first and last rows (B, upper + lower, K) of g.

        Zero beyond the ends.
        """
        exchanged = _exchanged(self._gathered(tips, self.upper), self.lower, self.mixtures)
        return np.concatenate(self._on_rank(self._solved(exchanged, self.inverse.matmat), self.upper), axis=1)

    def tips(self, given: HostArray) -> tuple[HostArray, HostArray]:
        """The adjoint: first rows (B, upper, K) and last rows (B, lower, K) for what this rank gives."""
        s = self._solved(self._gathered(given, self.lower), self.inverse.rmatmat)
        adjoints = None if self.mixtures is None else tuple(G.conj().swapaxes(2, 3) for G in self.mixtures)
        return self._on_rank(_exchanged(s, self.upper, adjoints), self.lower)

    def _gathered(self, own: HostArray, split: int) -> HostArray:
        """The rows from `split` on of the rank before each interface, and those up to it of the rank after it."""
        of_ranks = gathered(self.comm, own)[0]
        count = self.inverse.shape[0] // (self.lower + self.upper)
        before, after = of_ranks[:count], np.roll(of_ranks, -1, axis=0)[:count]
        return np.concatenate([before[:, :, split:], after[:, :, :split]], axis=2)

    def _on_rank(self, at_interfaces: HostArray, split: int) -> tuple[HostArray, HostArray]:
        """The same in reverse for this rank, from the interfaces before and after it; zeros beyond the ends."""
        places = (self.comm.rank - 1) % self.comm.size, self.comm.rank
        none = np.zeros_like(at_interfaces[0])
        before, after = (at_interfaces[i] if i < len(at_interfaces) else none for i in places)
        return before[:, split:], after[:, :split]

    def _solved(self, right: HostArray, solve: Callable[[HostArray], HostArray]) -> HostArray:
        """Solve for right-hand sides (interfaces, B, m, K)."""
        count, B, m, K = right.shape
        x = solve(right.swapaxes(0, 1).reshape(B, count * m, K))
        return x.reshape(B, count, m, K).swapaxes(0, 1)


def gathered(comm: Communicator, *parts: HostArray) -> list[HostArray]:
    """Return some arrays of all ranks, (ranks, ...) each, by one allgather; shapes are the same everywhere."""
    whole = np.concatenate([np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts])
    table = np.stack(comm.allgather(whole, [whole.shape] * comm.size))
    ends = np.cumsum([part.nbytes for part in parts])
    return [
        np.ascontiguousarray(table[:, end - part.nbytes : end]).view(part.dtype).reshape(comm.size, *part.shape)
        for part, end in zip(parts, ends)
    ]


def overall(found: HostArray) -> HostArray:
    """Where each system of the batch is singular, and its growth (B, 2), from those of the ranks (P, B, 3)."""
    singular, growth = found[..., 0].min(axis=0), found[..., 1].max(axis=0)
    return np.stack([singular, _infinite_where_singular(singular, growth)], axis=1)


def _infinite_where_singular(singular: HostArray, growth: HostArray) -> HostArray:
    return np.where(np.isfinite(singular) | np.isnan(growth), np.inf, growth)


def _matrix(reach: tuple[int, int], periodic: bool, blocks: HostArray) -> BlockBandedMatrix:
    """The system of the interfaces from its block diagonals (3, I, B, m, m)."""
    lower, upper = (min(unknowns, 1) for unknowns in reach)
    if periodic and blocks.shape[1] == 2:  # the interface before is that after
        blocks[0] = blocks[2] = blocks[0] + blocks[2]
        lower, upper, periodic = 1, 1, False
    band = np.ascontiguousarray(blocks[1 - lower : 2 + upper].transpose(2, 1, 0, 3, 4))
    return BlockBandedMatrix(band, lower=lower, upper=upper, periodic=periodic)


def _singular_interface(A: BlockBandedMatrix, inverse: Factorization) -> HostArray:
    """Where each system is singular, or -1: exactly, or in that its condition number is 1 / (n eps) and more.

    A solution for a random right-hand side bounds the condition number from below, and nearly attains it.
    """
    singular, n = np.asarray(inverse.singular_block), A.shape[0]
    b = np.random.default_rng(n).standard_normal(n).astype(A.dtype)
    with np.errstate(all="ignore"):
        x = np.abs(inverse.solve(np.broadcast_to(b, (singular.size, n))))
        norm = np.abs(A.blocks).sum(axis=(2, 4)).max(axis=(1, 2))
        lost = x.max(axis=1) * norm * n * np.finfo(A.dtype).eps >= np.abs(b).max()
    return np.where((singular < 0) & lost, x.argmax(axis=1) // A.block_size, singular)


def _mixtures(
    reach: tuple[int, int], before: HostArray, after: HostArray, dtype: Any
) -> tuple[HostArray, HostArray] | None:
    """G' of the rank before each interface, and G of the rank after it, where what these ranks get is mixed."""
    if not (before.any() or after.any()):
        return None
    G, G_after = mixtures(*reach)
    return (before[..., None, None] * G_after).astype(dtype), (after[..., None, None] * G).astype(dtype)


def _exchanged(tips: HostArray, lower: int, mixtures: tuple[HostArray, ...] | None) -> HostArray:
    """What ranks exchange of the tips there (interfaces, B, m, K), of which the first `lower` are before an interface.

    First what the rank before the interface gets, then what the rank after it gets. The adjoint is the same function of
    the adjoint mixtures.
    """
    before, after = tips[:, :, :lower], tips[:, :, lower:]
    if mixtures is None:
        return np.concatenate([after, before], axis=2)
    of_before, of_after = mixtures
    return np.concatenate([after - of_before @ before, before - of_after @ after], axis=2)
