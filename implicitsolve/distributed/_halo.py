"""Blocks beyond the ends of a rank's run: got from the neighbours, and given back to them."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.distributed._communicator import Communicator


def halos(comm: Communicator, before: int, after: int, periodic: bool) -> tuple[int, int]:
    """How many blocks this rank has before and after its own, once they are padded: none beyond the ends."""
    has_previous = periodic or comm.rank > 0
    has_next = periodic or comm.rank + 1 < comm.size
    return before * has_previous, after * has_next


def padded(
    comm: Communicator, local: HostArray, axis: int, before: int, after: int, *, periodic: bool = False
) -> HostArray:
    """A rank's run with the last blocks of the rank before it and the first ones of the rank after it around it.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    local : ndarray
        This rank's run: no rank's is shorter than `before` and `after`.
    axis : int
        The axis of the blocks.
    before, after : int
        How many there are to be on either side; beyond the ends none, unless the blocks stand in a circle.

    Notes
    -----
    One message to each neighbour.
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
    """The adjoint of `padded`: what a rank has around its own blocks is added to its neighbours'.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    extended : ndarray
        As `padded` makes it.
    axis, before, after, periodic
        As of `padded`.

    Notes
    -----
    One message to each neighbour.
    """
    if not (before or after):
        return extended
    has_before, has_after = halos(comm, before, after, periodic)
    length = extended.shape[axis]
    own = _part(extended, axis, has_before, length - has_after)
    to_previous = _part(extended, axis, 0, has_before) if has_before else None
    to_next = _part(extended, axis, length - has_after, length) if has_after else None
    # Nobody is told a number of blocks that he does not expect: what is missing at the ends is not sent.
    from_previous, from_next = comm.exchange(to_previous, to_next, periodic=periodic)
    own = np.array(own)
    if from_previous is not None and after:
        own[_slice(axis, 0, after)] += from_previous
    if from_next is not None and before:
        own[_slice(axis, own.shape[axis] - before, own.shape[axis])] += from_next
    return own


def _slice(axis: int, start: int, stop: int) -> tuple[Any, ...]:
    return (*(slice(None),) * axis, slice(start, stop))


def _part(x: HostArray, axis: int, start: int, stop: int) -> HostArray:
    return np.ascontiguousarray(x[_slice(axis, start, stop)])
