# pyright: basic
"""`block_lu`: which of the factorizations does which sizes."""

from __future__ import annotations

from typing import Any

import cupy

from implicitsolve import kernels
from implicitsolve.backends.cupy import _cyclic, _cyclic_reduction, _lanes, _small

LONGEST = {True: 1024, False: 64}  # chains of tiny blocks, and of others, that one thread or warp goes along


def block_lu(blocks: Any, lower: int, upper: int, *, pivoting: str = "block", overwrite: bool = False) -> Any:
    """Factor a batch (B, T, lower + upper + 1, k, k); see `implicitsolve.kernels`.

    Long block tridiagonal matrices, and those of large blocks, by cyclic reduction: as many steps as T has digits.
    Over the band only scalar tridiagonal matrices; others by the reference's QR.
    """
    T, _, k = blocks.shape[1:4]
    if blocks.size == 0 or (pivoting == "band" and (lower, upper, k) != (1, 1, 1)):
        return kernels.block_lu.reference(blocks, lower, upper, pivoting=pivoting)
    blocks = cupy.ascontiguousarray(blocks)
    if pivoting == "band":
        return _small.BandFactors.factor(blocks)
    itemsize = blocks.dtype.itemsize
    if lower == upper == 1 and (k > _cyclic.MOST_UNKNOWNS[itemsize] or LONGEST[k <= _small.MOST_UNKNOWNS] < T):
        return _cyclic_reduction.cyclic_reduction(blocks)
    return along(blocks, lower, upper)


def along(blocks: Any, lower: int, upper: int) -> Any:
    """One block row after the other."""
    is_tiny = _small.fits(blocks.shape[3], lower, upper, blocks.dtype.itemsize)
    return (_small.ThreadFactors if is_tiny else _lanes.LaneFactors).factor(blocks, lower, upper)


def supports_along(like: Any, *, block_size: int, lower: int, upper: int, **others: Any) -> bool:
    """Whether `along` does blocks of these sizes."""
    if not _cyclic_reduction.is_real(like):
        return False
    sizes = (block_size, lower, upper, like.dtype.itemsize)
    return _small.fits(*sizes) or _lanes.fits(*sizes)


def _supports(like: Any, *, lower: int, upper: int, **facts: Any) -> bool:
    is_cyclic = lower == upper == 1 and _cyclic_reduction.supports(like, **facts)
    return is_cyclic or supports_along(like, lower=lower, upper=upper, **facts)


kernels.block_lu.implement("cupy", block_lu, _supports)
