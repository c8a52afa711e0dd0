"""What distributed arrays have for the solvers beyond the array API standard: see `_namespace.extension`."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicitsolve.distributed._array import DistributedArray
from implicitsolve.distributed._band import BandProducts
from implicitsolve.distributed._band import transposed as band_transposed
from implicitsolve.distributed._partitioned_lu import PartitionedLU

__all__ = ["IS_SPLIT", "KERNELS", "BandProducts", "band_transposed", "block_lu", "empty_vectors"]

KERNELS = ("distributed",)
IS_SPLIT = True  # one axis is, and has the length that it has


def empty_vectors(like: DistributedArray, axes: tuple[int, ...]) -> DistributedArray:
    """An array (*axes, N) that waits to be filled, whose last axis is that of `like`."""
    local = np.empty((*axes, like.local.shape[-1]), like.dtype)
    axis = None if like.axis is None else local.ndim - like.ndim + like.axis
    return DistributedArray(local, axis, like.comm, like.counts)


def block_lu(settings: Any) -> Any:
    """The direct method that stands for `BlockLU` with these settings."""
    return PartitionedLU(
        refine=settings.refine,
        growth_limit=settings.growth_limit,
        pivoting=settings.pivoting,
        backend=settings.backend,
    )
