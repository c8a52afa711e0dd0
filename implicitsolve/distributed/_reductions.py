"""Reductions over the split axis: of the local part first, then of all ranks by one collective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.distributed._array import DistributedArray, replicated
from implicitsolve.distributed._communicator import Communicator


def reduced(
    function: Callable[..., Any], operation: str, x: DistributedArray, axis: Any, keepdims: bool
) -> DistributedArray:
    """Reduce over one axis, several, or all; `operation` ("sum", "max", "min", "prod") puts the ranks together."""
    axes = range(x.ndim) if axis is None else (axis if isinstance(axis, tuple) else (axis,))
    places = tuple(sorted(place % x.ndim for place in axes))
    if x.axis is None or x.axis not in places:
        kept = x.axis
        if kept is not None and not keepdims:
            kept -= sum(place < kept for place in places)
        return DistributedArray(np.asarray(function(x.local, axis=places, keepdims=keepdims)), kept, x.comm, x.counts)
    return replicated(_together(function, operation, x, places, keepdims))


def _together(
    function: Callable[..., Any], operation: str, x: DistributedArray, places: tuple[int, ...], keepdims: bool
) -> HostArray:
    comm: Any = x.comm
    if operation == "prod":
        local = np.asarray(function(x.local, axis=places, keepdims=keepdims))
        return np.prod(np.stack(comm.allgather(local, [local.shape] * comm.size)), axis=0, dtype=local.dtype)
    if operation == "sum":
        return comm.allreduce(np.asarray(function(x.local, axis=places, keepdims=keepdims)), "sum")
    if 0 in x.counts:  # a rank without numbers has no largest one; one with some does not know that
        x = DistributedArray(_padded(function, x), x.axis, comm, x.counts)
    local = np.asarray(function(x.local, axis=places, keepdims=keepdims))
    if local.dtype == np.bool_:
        bits = local.astype(np.uint8)
        return (comm.allreduce(bits, "max") if operation == "max" else 1 - comm.allreduce(1 - bits, "max")).astype(bool)
    return comm.allreduce(local, "max") if operation == "max" else -comm.allreduce(-local, "max")


def _padded(function: Callable[..., Any], x: DistributedArray) -> HostArray:
    """The local part; where it is empty, what no other rank's numbers are overruled by."""
    if x.local.shape[x.axis]:  # type: ignore[index]
        return x.local
    shape = tuple(1 if place == x.axis else length for place, length in enumerate(x.local.shape))
    if function in (np.any, np.all):
        return np.full(shape, function is np.all)
    info: Any = np.finfo(x.dtype) if x.dtype.kind == "f" else np.iinfo(x.dtype)
    least, largest = (-np.inf, np.inf) if x.dtype.kind == "f" else (info.min, info.max)
    return np.full(shape, least if function is np.max else largest, dtype=x.dtype)


def sums_and_maxima(
    comm: Communicator, sums: Sequence[HostArray], maxima: Sequence[HostArray] = ()
) -> tuple[list[HostArray], list[HostArray]]:
    """Add arrays (b, any) of all ranks, and take maxima of others, by one message.

    Real or complex numbers of one precision; the maxima are real.
    """
    dtype = np.result_type(*sums, *maxima)
    real = np.finfo(dtype).dtype
    flat = [np.ascontiguousarray(part, dtype=dtype).view(real) for part in sums]
    left = np.concatenate(flat, axis=1) if flat else np.zeros((maxima[0].shape[0], 0), real)
    if not maxima:
        return _separated(comm.allreduce(left, "sum"), sums, dtype), []
    right = np.concatenate([np.asarray(part, dtype=real) for part in maxima], axis=1)
    pairs = np.zeros((left.shape[0], max(left.shape[1], right.shape[1]), 2), real)
    pairs[:, : left.shape[1], 0], pairs[:, : right.shape[1], 1] = left, right
    pairs = comm.allreduce(pairs, "sum-max")
    most = _columns(pairs[:, : right.shape[1], 1], maxima)
    return _separated(np.ascontiguousarray(pairs[:, : left.shape[1], 0]), sums, dtype), most


def _separated(numbers: HostArray, like: Sequence[HostArray], dtype: np.dtype[Any]) -> list[HostArray]:
    """The sums, one array for each."""
    return _columns(numbers.view(dtype), like)


def _columns(x: HostArray, like: Sequence[HostArray]) -> list[HostArray]:
    """The columns of x that stand for each of some arrays."""
    stops = list(accumulate(part.shape[1] for part in like))
    return [x[:, stop - part.shape[1] : stop] for part, stop in zip(like, stops)]
