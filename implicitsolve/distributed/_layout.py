"""How the blocks of an axis are dealt out to ranks: contiguous runs, as equal as possible."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from implicitsolve.stopping import check_limit


class Runs(tuple[int, ...]):
    """The length of every rank's run of an axis; the sums, which all ranks ask for again and again, are kept.

    Attributes
    ----------
    total : int
        Length of the axis.
    starts : tuple of int
        Where each run begins.
    moves : dict
        What `moved` has found, by shapes: see there.
    """

    total: int
    starts: tuple[int, ...]
    moves: dict[tuple[tuple[int, ...], int, tuple[int, ...]], tuple[int, Runs]]

    def __new__(cls, counts: Iterable[int]) -> Runs:
        """Take over a tuple, or make one."""
        if isinstance(counts, Runs):
            return counts
        self = super().__new__(cls, counts)
        self.total, self.starts, self.moves = sum(self), tuple(accumulate(self[:-1], initial=0)), {}
        return self

    def is_same(self, other: tuple[int, ...]) -> bool:
        """Whether another tuple says the same."""
        return self is other or self == other


def layout(length: int, ranks: int) -> Runs:
    """Return how many of `length` blocks each rank owns; the first ones own one more where they do not divide.

    Parameters
    ----------
    length : int
        Blocks in all.
    ranks : int
        Among how many they are dealt out.

    Returns
    -------
    tuple of int
        A number for each rank.

    Examples
    --------
    >>> from implicitsolve.distributed import layout
    >>> layout(10, 4)
    (3, 3, 2, 2)
    """
    check_limit("layout", "length", length)
    check_limit("layout", "ranks", ranks, least=1)
    share, rest = divmod(length, ranks)
    return Runs(share + (rank < rest) for rank in range(ranks))


def starts(counts: tuple[int, ...]) -> tuple[int, ...]:
    """Where each rank's run begins."""
    return Runs(counts).starts


def check_counts(owner: str, counts: tuple[int, ...], ranks: int, rank: int, own: int) -> None:
    """Raise unless `counts` has a number for each rank, and this one's is `own`."""
    if len(counts) != ranks:
        raise ValueError(f"{owner}: `counts` must have a number for each of {ranks} ranks, got {counts}")
    if counts[rank] != own:
        raise ValueError(f"{owner}: `counts` says {counts[rank]} for rank {rank}, which has {own}")
