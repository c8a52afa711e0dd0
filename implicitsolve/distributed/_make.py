"""Distributed arrays from what all ranks have, and from what each has."""

from __future__ import annotations

import operator
import zlib
from typing import Any

import numpy as np

from implicitsolve._namespace import is_array, library
from implicitsolve._typing import HostArray
from implicitsolve.distributed._array import DistributedArray
from implicitsolve.distributed._communicator import Communicator
from implicitsolve.distributed._layout import Runs, check_counts, layout
from implicitsolve.stopping import check_limit


def replicated(array: Any) -> DistributedArray:
    """Make an array that every rank holds; all must pass the same bits, which is not checked.

    Parameters
    ----------
    array : array_like
        The whole of it. Not copied.

    Returns
    -------
    DistributedArray
        With no split axis.

    Examples
    --------
    >>> from implicitsolve import distributed
    >>> distributed.replicated([1.0, 2.0])
    <DistributedArray (2,), dtype=float64, replicated>
    """
    return DistributedArray(_host("replicated", "array", array), None, None)


def split(comm: Communicator, array: Any, axis: int = -1, block_size: int = 1) -> DistributedArray:
    """Partition an array that every rank has across the ranks; each keeps a copy of its part.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    array : array_like
        The whole.
    axis : int, optional
        The axis to split. Default: the last one.
    block_size : int, optional
        Entries along that axis that stay together on one rank. Default 1.

    Returns
    -------
    DistributedArray
        Contiguous runs of blocks, as equal as possible: see `layout`.

    Raises
    ------
    ValueError
        If `axis` is not an axis of the array, or its length not a multiple of `block_size`.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve import distributed
    >>> states = np.arange(12.0).reshape(6, 2)
    >>> distributed.threads(4, lambda comm: distributed.split(comm, states, axis=0).local.shape)
    [(2, 2), (2, 2), (1, 2), (1, 2)]
    """
    check_limit("split", "block_size", block_size, least=1)
    array = _host("split", "array", array)
    axis = _checked_axis("split", array, axis)
    blocks, rest = divmod(array.shape[axis], block_size)
    if rest:
        raise ValueError(f"split: axis {axis} must be a multiple of `block_size` = {block_size}, got {array.shape}")
    counts = layout(blocks, comm.size)
    counts = counts if block_size == 1 else Runs(block_size * count for count in counts)
    start = counts.starts[comm.rank]
    run = (slice(None),) * axis + (slice(start, start + counts[comm.rank]),)
    return DistributedArray(np.array(array[run]), axis, comm, counts)


def from_local(
    comm: Communicator, local: Any, axis: int = -1, counts: tuple[int, ...] | None = None
) -> DistributedArray:
    """Make an array from the part of every rank.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    local : array_like
        This rank's run. Not copied.
    axis : int, optional
        The split axis. Default: the last one.
    counts : tuple of int, optional
        Its length on every rank. By default found by one allgather, which also checks that the parts have one dtype,
        and one shape but for that length.

    Returns
    -------
    DistributedArray
        Of the whole shape; `local` is this rank's part.

    Raises
    ------
    ValueError
        If `axis` is not an axis of the array, `counts` does not fit, or the parts differ in dtype or shape.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve import distributed
    >>> distributed.threads(3, lambda comm: distributed.from_local(comm, np.ones(comm.rank + 1)).shape)
    [(6,), (6,), (6,)]
    """
    local = _host("from_local", "local", local)
    axis = _checked_axis("from_local", local, axis)
    if counts is None:
        kind = f"{local.dtype} {local.shape[:axis]} {local.shape[axis + 1 :]}"
        own = np.asarray([local.shape[axis], zlib.crc32(kind.encode())], dtype=np.int64)
        everyone = np.stack(comm.allgather(own, [(2,)] * comm.size))
        if (everyone[:, 1] != everyone[0, 1]).any():
            raise ValueError(
                f"from_local: `local` must have one dtype on all ranks, and one shape but for its axis {axis}; "
                f"rank {comm.rank} has {local.dtype} {local.shape}"
            )
        counts = tuple(everyone[:, 0].tolist())
    check_counts("from_local", counts, comm.size, comm.rank, local.shape[axis])
    return DistributedArray(local, axis, comm, counts)


def _checked_axis(owner: str, array: HostArray, axis: int) -> int:
    axis = operator.index(axis)
    if not -array.ndim <= axis < array.ndim:
        raise ValueError(f"{owner}: `axis` must be an axis of the array, of shape {array.shape}, got {axis}")
    return axis % array.ndim


def _host(owner: str, name: str, array: Any) -> HostArray:
    """The caller's array as a NumPy array; others are not supported."""
    if is_array(array) and not isinstance(array, np.ndarray | np.generic | DistributedArray):
        raise TypeError(f"{owner}: `{name}` must be a NumPy array, got one of {library(array)}: copy it to the host")
    return np.asarray(array)
