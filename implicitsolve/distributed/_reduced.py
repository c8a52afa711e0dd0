"""The interface system: what neighbouring ranks exchange in a direct solve. It is small, and every rank solves it.

Each rank solves its own rows for values that it takes as given: ``r = (b - G t, t' - G' b')``, where b are the last
blocks of the rank before, t and b' its own first and last ones, and t' the first blocks of the rank after. With G = 0
these are the neighbours' values themselves. The solution is ``x = g - P r``, where g solves for r = 0 and P has one
column for each number of r. So r, of all ranks, solves ``r + R P r = R g``, where R takes the combinations from x: a
system of which only the tips (first and last blocks) of g and P are needed, block tridiagonal in the interfaces between
ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._typing import HostArray, Indices
from implicitsolve.direct import BlockLU, Factorization
from implicitsolve.distributed._communicator import Communicator
from implicitsolve.distributed._rows import MIXED, mixtures
from implicitsolve.operators import BlockBandedMatrix


@dataclass(frozen=True)
class Interfaces:
    """Which ranks meet where: interface i is between rank i and the one after it.

    Parameters
    ----------
    ranks : int
        How many there are; in a circle at least 2.
    lower, upper : int
        Unknowns at the end of a rank that the next one depends on, and at its beginning, the previous one.
    periodic : bool
        Whether the last rank meets the first one.
    """

    ranks: int
    lower: int
    upper: int
    periodic: bool

    @property
    def left(self) -> Indices:
        """The rank before each interface."""
        return np.arange(self.ranks if self.periodic else self.ranks - 1)

    @property
    def right(self) -> Indices:
        """The rank after each interface."""
        return (self.left + 1) % self.ranks

    def tips(self, of_ranks: HostArray) -> HostArray:
        """What lies at each interface: the last rows of the rank before it, and the first rows of the rank after it.

        `of_ranks` (ranks, B, upper + lower, K) are the first and the last rows of each rank.
        """
        before, after = of_ranks[self.left, :, self.upper :], of_ranks[self.right, :, : self.upper]
        return np.concatenate([before, after], axis=2)

    def from_tips(self, at_interfaces: HostArray, rank: int) -> tuple[HostArray | None, HostArray | None]:
        """The same in reverse for one rank: its first rows (B, upper, K) and last rows (B, lower, K), or None."""
        before, after = self._beside(rank)
        first = None if before is None else at_interfaces[before, :, self.lower :]
        last = None if after is None else at_interfaces[after, :, : self.lower]
        return first, last

    def given(self, at_interfaces: HostArray, rank: int) -> HostArray:
        """What one rank takes as given, (B, lower + upper, K), of everything exchanged; zero beyond the ends."""
        before, after = self._beside(rank)
        none = np.zeros(at_interfaces.shape[1:], dtype=at_interfaces.dtype)
        from_before = (none if before is None else at_interfaces[before])[:, self.upper :]
        from_after = (none if after is None else at_interfaces[after])[:, : self.upper]
        return np.concatenate([from_before, from_after], axis=1)

    def from_given(self, of_ranks: HostArray) -> HostArray:
        """The same in reverse for all ranks: (ranks, B, lower + upper, K) in the order of interfaces."""
        of_left, of_right = of_ranks[self.left, :, self.lower :], of_ranks[self.right, :, : self.lower]
        return np.concatenate([of_left, of_right], axis=2)

    def _beside(self, rank: int) -> tuple[int | None, int | None]:
        """Interfaces before and after a rank."""
        if self.periodic:
            return (rank - 1) % self.ranks, rank
        return rank - 1 if rank > 0 else None, rank if rank < self.ranks - 1 else None


@dataclass(frozen=True)
class Reduced:
    """The factored system of the interfaces, for each system of a batch.

    Parameters
    ----------
    interfaces : Interfaces
        Which ranks meet where.
    mixtures : tuple of ndarray or None
        G' of the rank before each interface (interfaces, B, upper, lower), and G of the rank after it (interfaces, B,
        lower, upper); None where all are zero.
    inverse : Factorization
        Of the batch; its unknowns are what is exchanged.
    singular : ndarray (B,) of int
        The interface at which the system is singular up to rounding, or -1. The pivot of two equal equations is a
        rounding error, since the equations are themselves computed.
    """

    interfaces: Interfaces
    mixtures: tuple[HostArray, HostArray] | None
    inverse: Factorization
    singular: HostArray

    @classmethod
    def of(cls, interfaces: Interfaces, tips: HostArray, kinds: HostArray) -> Reduced:
        """Set up and factor the system.

        Parameters
        ----------
        interfaces : Interfaces
            Which ranks meet where.
        tips : ndarray (ranks, B, upper + lower, lower + upper)
            First and last rows of every rank's P.
        kinds : ndarray (ranks, B)
            What every rank takes as given: PLAIN or MIXED.
        """
        lower, upper, left, right = interfaces.lower, interfaces.upper, interfaces.left, interfaces.right
        m, mixtures = lower + upper, _mixtures(interfaces, kinds, tips.dtype)
        # P's tips at each interface, by what is exchanged one interface before, there, and one after
        P = np.zeros((3, left.size, tips.shape[1], m, m), dtype=tips.dtype)
        P[0, ..., :lower, upper:] = tips[left, :, upper:, :lower]
        P[1, ..., :lower, :upper] = tips[left, :, upper:, lower:]
        P[1, ..., lower:, upper:] = tips[right, :, :upper, :lower]
        P[2, ..., lower:, :upper] = tips[right, :, :upper, lower:]
        with np.errstate(all="ignore"):
            blocks = np.stack([_exchanged(part, lower, mixtures) for part in P])
        blocks[1] += np.eye(m)
        A = _matrix(interfaces, blocks)
        inverse = BlockLU().factor(A)
        return cls(interfaces, mixtures, inverse, _singular_interface(A, inverse))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.inverse.nbytes + sum(G.nbytes for G in self.mixtures or ())

    def take(self, indices: Indices) -> Reduced:
        """The systems of some of the batch."""
        mixtures = None if self.mixtures is None else (self.mixtures[0][:, indices], self.mixtures[1][:, indices])
        inverse: Any = self.inverse.take(indices)
        return Reduced(self.interfaces, mixtures, inverse, self.singular[indices])

    def solve(self, tips: HostArray) -> HostArray:
        """What is exchanged, (interfaces, B, m, K), for the tips (ranks, B, m, K) of all ranks' g."""
        at_interfaces = self.interfaces.tips(tips)
        return self._solved(_exchanged(at_interfaces, self.interfaces.lower, self.mixtures), self.inverse.matmat)

    def solve_adjoint(self, given: HostArray) -> HostArray:
        """The adjoint of `solve`: tips at the interfaces, for what all ranks give, (ranks, B, m, K)."""
        s = self._solved(self.interfaces.from_given(given), self.inverse.rmatmat)
        adjoints = None if self.mixtures is None else tuple(G.conj().swapaxes(2, 3) for G in self.mixtures)
        return _exchanged(s, self.interfaces.upper, adjoints)

    def _solved(self, right: HostArray, solve: Callable[[HostArray], HostArray]) -> HostArray:
        """Solve for right-hand sides (interfaces, B, m, K)."""
        count, B, m, K = right.shape
        x = solve(right.swapaxes(0, 1).reshape(B, count * m, K))
        return x.reshape(B, count, m, K).swapaxes(0, 1)


@dataclass(frozen=True)
class Exchange:
    """The interface system on all ranks. One allgather for all that is requested.

    Attributes
    ----------
    comm, reduced : Communicator, Reduced
        The ranks, and the system.
    found : ndarray (B, 2)
        Of each system of the batch: where it is singular (infinite if it is not), and its growth. The same everywhere.
    """

    comm: Communicator
    reduced: Reduced
    found: HostArray

    @classmethod
    def of(
        cls, comm: Communicator, interfaces: Interfaces, tips: HostArray, found: HostArray, first_blocks: HostArray
    ) -> Exchange:
        """Set up and factor the system.

        Parameters
        ----------
        comm, interfaces : Communicator, Interfaces
            The ranks, and where they meet.
        tips : ndarray (B, m, m)
            First and last rows of this rank's spikes.
        found : ndarray (B, 3)
            Where this rank's rows are singular (infinite if not), their growth, and the kind of what is given.
        first_blocks : ndarray (ranks,)
            The number of every rank's first block.
        """
        tips, found = gathered(comm, tips, found)
        reduced = Reduced.of(interfaces, tips, found[..., 2])
        singular, growth = overall(found).T
        at = np.append(first_blocks[interfaces.right], np.inf)[reduced.singular]
        singular = np.where(np.isfinite(singular), singular, at)
        with np.errstate(invalid="ignore"):
            growth = growth * np.asarray(reduced.inverse.growth)
        return cls(comm, reduced, np.stack([singular, _infinite_where_singular(singular, growth)], axis=1))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.reduced.nbytes

    def given(self, tips: HostArray) -> HostArray:
        """What this rank takes as given (B, m, K), for its first and last rows (B, m, K) of g."""
        exchanged = self.reduced.solve(gathered(self.comm, tips)[0])
        return self.reduced.interfaces.given(exchanged, self.comm.rank)

    def tips(self, given: HostArray) -> tuple[HostArray | None, HostArray | None]:
        """The adjoint: first rows (B, upper, K) and last rows (B, lower, K) for what this rank gives (B, m, K)."""
        tips = self.reduced.solve_adjoint(gathered(self.comm, given)[0])
        return self.reduced.interfaces.from_tips(tips, self.comm.rank)

    def take(self, indices: Indices) -> Exchange:
        """The same for some systems."""
        return Exchange(self.comm, self.reduced.take(indices), self.found[indices])


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


def _matrix(interfaces: Interfaces, blocks: HostArray) -> BlockBandedMatrix:
    """The system of the interfaces from its block diagonals (3, I, B, m, m)."""
    lower, upper, periodic = min(interfaces.lower, 1), min(interfaces.upper, 1), interfaces.periodic
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


def _mixtures(interfaces: Interfaces, kinds: HostArray, dtype: Any) -> tuple[HostArray, HostArray] | None:
    """G' of the rank before each interface, and G of the rank after it, if there are some."""
    of_first, of_last = kinds[interfaces.right] == MIXED, kinds[interfaces.left] == MIXED
    if not (of_first.any() or of_last.any()):
        return None
    G, G_after = (matrix.astype(dtype) for matrix in mixtures(interfaces.lower, interfaces.upper))
    return of_last[..., None, None] * G_after, of_first[..., None, None] * G


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
