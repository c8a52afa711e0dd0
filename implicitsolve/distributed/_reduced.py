"""The system of what is exchanged between neighbouring ranks: small, and solved by every rank for itself.

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
from implicitsolve.distributed._subdomain import MIXED, mixtures
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
        """The same in reverse for one rank: its first rows (B, upper, K) and last rows (B, lower, K); None: no such."""
        before, after = self._beside(rank)
        first = None if before is None else at_interfaces[before, :, self.lower :]
        last = None if after is None else at_interfaces[after, :, : self.lower]
        return first, last

    def given(self, at_interfaces: HostArray, rank: int) -> HostArray:
        """What one rank takes as given, (B, lower + upper, K), of all that is exchanged; zero beyond the ends."""
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
    """

    interfaces: Interfaces
    mixtures: tuple[HostArray, HostArray] | None
    inverse: Factorization

    @classmethod
    def of(cls, interfaces: Interfaces, tips: HostArray, of_first: HostArray, of_last: HostArray) -> Reduced:
        """Set up and factor the system.

        Parameters
        ----------
        interfaces : Interfaces
            Which ranks meet where.
        tips : ndarray (ranks, B, upper + lower, lower + upper)
            First and last rows of every rank's P.
        of_first, of_last : ndarray (ranks, B)
            Kind of what every rank takes as given beside its first and its last rows: PLAIN or MIXED.
        """
        lower, upper, left, right = interfaces.lower, interfaces.upper, interfaces.left, interfaces.right
        m, mixtures = lower + upper, _mixtures(interfaces, of_first, of_last, tips.dtype)
        # P's tips at each interface, by what is exchanged one interface before, there, and one after
        P = np.zeros((3, left.size, tips.shape[1], m, m), dtype=tips.dtype)
        P[0, ..., :lower, upper:] = tips[left, :, upper:, :lower]
        P[1, ..., :lower, :upper] = tips[left, :, upper:, lower:]
        P[1, ..., lower:, upper:] = tips[right, :, :upper, :lower]
        P[2, ..., lower:, :upper] = tips[right, :, :upper, lower:]
        with np.errstate(all="ignore"):
            blocks = np.stack([_exchanged(part, lower, mixtures) for part in P])
        blocks[1] += np.eye(m)
        return cls(interfaces, mixtures, BlockLU().factor(_matrix(interfaces, blocks)))

    def verdict(self, first_blocks: HostArray) -> HostArray:
        """Where each system is singular, and its growth (B, 2); `first_blocks` are those after each interface.

        The first is infinite where no system is singular.
        """
        places, growth = np.asarray(self.inverse.singular_block), np.asarray(self.inverse.growth)
        return np.stack([np.append(first_blocks, np.inf)[places], growth], axis=1)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.inverse.nbytes + sum(G.nbytes for G in self.mixtures or ())

    def take(self, indices: Indices) -> Reduced:
        """The systems of some of the batch."""
        mixtures = None if self.mixtures is None else (self.mixtures[0][:, indices], self.mixtures[1][:, indices])
        inverse: Any = self.inverse.take(indices)
        return Reduced(self.interfaces, mixtures, inverse)

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


def _matrix(interfaces: Interfaces, blocks: HostArray) -> BlockBandedMatrix:
    """The system of the interfaces from its block diagonals (3, I, B, m, m)."""
    lower, upper, periodic = min(interfaces.lower, 1), min(interfaces.upper, 1), interfaces.periodic
    if periodic and blocks.shape[1] == 2:  # the interface before is that after
        blocks[0] = blocks[2] = blocks[0] + blocks[2]
        lower, upper, periodic = 1, 1, False
    band = np.ascontiguousarray(blocks[1 - lower : 2 + upper].transpose(2, 1, 0, 3, 4))
    return BlockBandedMatrix(band, lower=lower, upper=upper, periodic=periodic)


def _mixtures(
    interfaces: Interfaces, of_first: HostArray, of_last: HostArray, dtype: Any
) -> tuple[HostArray, HostArray] | None:
    """G' of the rank before each interface, and G of the rank after it, if there are some."""
    of_first, of_last = of_first[interfaces.right] == MIXED, of_last[interfaces.left] == MIXED
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
