"""Functions of arrays that are partitioned across ranks."""

from __future__ import annotations

from implicitsolve._arrays.namespace import array_namespace
from implicitsolve.distributed import DistributedArray, replicated, split, threads
from tests.distributed.systems import same_on_all

SIZES = [1, 2, 3]


def on_ranks(size, function, *arrays, axes=None):
    """What a function of arrays, each split along its axis (None: replicated), gives; gathered on all ranks."""
    axes = [-1] * len(arrays) if axes is None else axes

    def program(comm):
        parts = [replicated(a) if axis is None else split(comm, a, axis) for a, axis in zip(arrays, axes)]
        result = function(*parts)
        return result.gathered() if isinstance(result, DistributedArray) else result

    return same_on_all(threads(size, program))


def namespace():
    return array_namespace(replicated(0.0))
