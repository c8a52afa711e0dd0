"""How the blocks of an axis are partitioned across ranks, reshaped, and exchanged with the neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.distributed._communicator import Communicator, has_neighbours
from implicitsolve.stopping import check_limit
from implicitsolve.structure import BlockBanded

MOST_MOVES = 64  # entries of a cache of reshapes, far more than the shapes that one solve uses


class Runs(tuple[int, ...]):
    """The length of every rank's run of an axis, with their partial sums."""

    total: int  # length of the axis
    starts: tuple[int, ...]  # where each run begins
    moves: dict[tuple[tuple[int, ...], int, tuple[int, ...]], tuple[int, Runs]]  # cache of `repartitioned`, by shapes

    def __new__(cls, counts: Iterable[int]) -> Runs:
        """Return `counts` if it is one already."""
        if isinstance(counts, Runs):
            return counts
        self = super().__new__(cls, counts)
        self.total, self.starts, self.moves = sum(self), tuple(accumulate(self[:-1], initial=0)), {}
        return self

    def is_same(self, other: tuple[int, ...]) -> bool:
        """Whether another tuple is equal; identical ones are so at once."""
        return self is other or self == other


def layout(length: int, ranks: int) -> Runs:
    """Return how many of `length` blocks each rank owns; the first ranks own one more if P does not divide it.

    Parameters
    ----------
    length : int
        Number of blocks.
    ranks : int
        Number of ranks.

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


def repartitioned(shape: tuple[int, ...], axis: int, runs: Runs, new: tuple[int, ...]) -> tuple[int, Runs]:
    """Return the split axis of an array that is reshaped, and its runs; cached, in both directions.

    Runs of the split axis must stay runs of one axis: among the axes that are merged or split together, only axes of
    length 1 may precede it, and every run must be a multiple of the product of those that follow. Else it raises.
    """
    key = shape, axis, new
    if key not in runs.moves:
        place, lengths = _found(shape, axis, runs, new)
        if len(runs.moves) >= MOST_MOVES:
            runs.moves.clear()
        runs.moves[key] = place, lengths
        lengths.moves[new, place, shape] = axis, runs
    return runs.moves[key]


def _found(shape: tuple[int, ...], axis: int, counts: Runs, new: tuple[int, ...]) -> tuple[int, Runs]:
    before, behind = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    # The axis of the new shape with the same product of preceding axes: of several, the first that is not 1.
    product = 1
    candidates: list[int] = []
    for place, length in enumerate(new):
        if product == before:
            candidates.append(place)
        product *= length
    distinct = set(counts)  # few, even with thousands of ranks
    for place in sorted(candidates, key=lambda place: (new[place] == 1 and counts.total != 1, place)):
        rest = math.prod(new[place + 1 :])
        if not all(count * behind % rest == 0 for count in distinct) if rest else behind:
            continue
        lengths = {count: count * behind // rest if rest else count for count in distinct}
        runs = Runs(lengths[count] for count in counts)
        if runs.total == new[place]:
            return place, runs
    raise ValueError(
        f"a DistributedArray of shape {shape}, whose axis {axis} is split by {counts}, cannot be reshaped to {new}: "
        "every rank's run must stay a run of one axis"
    )


def completed(size: int, new: tuple[int, ...]) -> tuple[int, ...]:
    """A shape for `size` entries with its one -1 filled in; raise a ValueError if it does not fit."""
    known = math.prod(length for length in new if length != -1)
    if new.count(-1) == 1 and known and size % known == 0:
        return tuple(size // known if length == -1 else length for length in new)
    if new.count(-1) or known != size:
        raise ValueError(f"reshape: an array of {size} numbers does not fit the shape {new}")
    return new


@dataclass(frozen=True, kw_only=True)
class Part:
    """Which blocks a rank owns, and how many of its neighbours' blocks its functions get.

    Attributes
    ----------
    first, stop : int
        Its blocks are first, ..., stop - 1 of all.
    before, after : int
        Blocks of the neighbours before and after them: 0 beyond the ends.
    length : int
        Blocks of all ranks, T.

    Examples
    --------
    >>> from implicitsolve.distributed import Part
    >>> part = Part(first=4, stop=8, before=1, after=0, length=8)
    >>> part.count, part.own, part.is_first, part.is_last
    (4, slice(1, 5, None), False, True)
    """

    first: int
    stop: int
    before: int
    after: int
    length: int

    @classmethod
    def of(cls, comm: Communicator, counts: Runs, structure: BlockBanded) -> Part:
        """The part of this rank in a layout."""
        first = counts.starts[comm.rank]
        before, after = halos(comm, structure.lower, structure.upper, structure.periodic)
        return cls(first=first, stop=first + counts[comm.rank], before=before, after=after, length=counts.total)

    @property
    def count(self) -> int:
        """Number of blocks that the rank owns."""
        return self.stop - self.first

    @property
    def own(self) -> slice:
        """Their place in the argument of its functions."""
        return slice(self.before, self.before + self.count)

    @property
    def seen(self) -> int:
        """Number of blocks of the argument of its functions."""
        return self.before + self.count + self.after

    @property
    def is_first(self) -> bool:
        """Whether it owns the first block."""
        return self.first == 0

    @property
    def is_last(self) -> bool:
        """Whether it owns the last one."""
        return self.stop == self.length


def halos(comm: Communicator, before: int, after: int, periodic: bool) -> tuple[int, int]:
    """Number of blocks around this rank's own in `padded`: none beyond the ends."""
    has_previous, has_next = has_neighbours(comm, periodic)
    return before * has_previous, after * has_next


def padded(
    comm: Communicator, local: HostArray, axis: int, before: int, after: int, *, periodic: bool = False
) -> HostArray:
    """A rank's run between the last blocks of the rank before it and the first ones of the rank after it.

    `before` and `after` are the numbers of blocks on either side, along `axis`; no rank's run is shorter. Beyond the
    ends there are none, unless the blocks are periodic. One message to each neighbour.
    """
    if not (before or after):
        return local
    length = local.shape[axis]
    to_previous = _part(local, axis, 0, after) if after else None
    to_next = _part(local, axis, length - before, length) if before else None
    from_previous, from_next = comm.exchange(to_previous, to_next, periodic=periodic)
    parts = [part for part in (from_previous, local, from_next) if part is not None]
    return local if len(parts) == 1 else np.concatenate(parts, axis=axis)


def folded(
    comm: Communicator, extended: HostArray, axis: int, before: int, after: int, *, periodic: bool = False
) -> HostArray:
    """The adjoint of `padded`: the blocks around a rank's own are added to its neighbours'. One message to each."""
    if not (before or after):
        return extended
    has_before, has_after = halos(comm, before, after, periodic)
    length = extended.shape[axis]
    own = _part(extended, axis, has_before, length - has_after)
    to_previous = _part(extended, axis, 0, has_before) if has_before else None
    to_next = _part(extended, axis, length - has_after, length) if has_after else None
    # At the ends nothing is sent, which is what the neighbour expects.
    from_previous, from_next = comm.exchange(to_previous, to_next, periodic=periodic)
    own = np.array(own)
    if from_previous is not None and after:
        own[_blocks(axis, 0, after)] += from_previous
    if from_next is not None and before:
        own[_blocks(axis, own.shape[axis] - before, own.shape[axis])] += from_next
    return own


def _blocks(axis: int, start: int, stop: int) -> tuple[Any, ...]:
    return (*(slice(None),) * axis, slice(start, stop))


def _part(x: HostArray, axis: int, start: int, stop: int) -> HostArray:
    return np.ascontiguousarray(x[_blocks(axis, start, stop)])
