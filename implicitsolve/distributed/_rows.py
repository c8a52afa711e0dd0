"""The block rows of a banded matrix that one rank holds, and how they depend on the neighbours."""

from __future__ import annotations

import numpy as np

from implicitsolve._typing import HostArray, Indices
from implicitsolve.distributed._communicator import Communicator, has_neighbours


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
        Whether these rows depend on the rank before, or after. One rank alone closes a circle by itself.
    before : ndarray (B, lower k, lower k)
        How the first rows depend on the last `lower` blocks of the rank before; zero where there is none.
    after : ndarray (B, upper k, upper k)
        How the last rows depend on the first `upper` blocks of the rank after.
    couples : bool
        Whether ranks depend on each other at all: the same on every rank.
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
    def is_circle(self) -> bool:
        """Whether this rank alone has all rows of a circle."""
        return self.periodic and self.comm.size == 1

    def take(self, indices: Indices) -> OwnRows:
        """The rows of some systems."""
        return OwnRows(self.comm, self.blocks[indices], self.lower, self.periodic)


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
    """The matrix (B, n k, n k) by which n block rows (B, n, width, k, k) depend on n blocks of a neighbour.

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
