"""Where a split axis goes when the axes of an array are factored anew."""

from __future__ import annotations

import math

from implicitsolve.distributed._layout import Runs

MOST_MOVES = 64  # that are remembered of one axis


def moved(shape: tuple[int, ...], axis: int, runs: Runs, new: tuple[int, ...]) -> tuple[int, Runs]:
    """Return the split axis of an array that is reshaped, and its runs.

    A solver reshapes the same arrays again and again: what was found is remembered, both ways.

    Runs of the split axis must stay runs of one axis: only axes of length 1 may come before it among those that are
    factored together, and the run of every rank must be a multiple of what then follows.

    Raises
    ------
    ValueError
        If that is not so.

    Examples
    --------
    >>> from implicitsolve.distributed._layout import Runs
    >>> from implicitsolve.distributed._reshape import moved
    >>> moved((5, 6, 2), 1, Runs((4, 2)), (5, 12))
    (1, (8, 4))
    >>> moved((12,), 0, Runs((8, 4)), (1, 6, 2))
    (1, (4, 2))
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
    # The axis of the new shape in front of which as much stands as before: of several, the first that is not 1.
    product = 1
    candidates: list[int] = []
    for place, length in enumerate(new):
        if product == before:
            candidates.append(place)
        product *= length
    distinct = set(counts)  # a few, of thousands of ranks
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
    """A shape for so many numbers with its one -1 filled in.

    Raises
    ------
    ValueError
        If it does not fit.
    """
    known = math.prod(length for length in new if length != -1)
    if new.count(-1) == 1 and known and size % known == 0:
        return tuple(size // known if length == -1 else length for length in new)
    if new.count(-1) or known != size:
        raise ValueError(f"reshape: an array of {size} numbers does not fit the shape {new}")
    return new
