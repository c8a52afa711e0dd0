# pyright: basic
"""`block_lu`, `block_substitution` and `cyclic_reduction`: which of the factorings does which sizes."""

from __future__ import annotations

from typing import Any

import cupy

from implicitsolve import kernels
from implicitsolve._typing import Indices
from implicitsolve.backends.cupy import _assembly, _cyclic, _lanes, _large_blocks, _small

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
        return cyclic_reduction(blocks)
    return _along(blocks, lower, upper)


def block_substitution(blocks: Any, lower: int, upper: int, *, overwrite: bool = False) -> Any:
    """Factor a batch of block triangular matrices, `lower` or `upper` is 0; see `implicitsolve.kernels`.

    Lower ones as upper ones whose rows stand in backward order.
    """
    if blocks.size == 0:
        return kernels.block_substitution.reference(blocks, lower, upper)
    if lower == 0:
        return _along(cupy.ascontiguousarray(blocks), 0, upper)
    return _Backward(_along(cupy.ascontiguousarray(blocks[:, ::-1, ::-1]), 0, lower, backward=True), blocks.shape[1])


def cyclic_reduction(blocks: Any, *, overwrite: bool = False) -> Any:
    """Factor a batch (B, T, 3, k, k) of block tridiagonal matrices; see `implicitsolve.kernels`.

    Memory of the factors: 5 k^2 T numbers for each system.
    """
    if blocks.size == 0:
        return kernels.cyclic_reduction.reference(blocks)
    blocks, small = cupy.ascontiguousarray(blocks), blocks.shape[3] <= _cyclic.MOST_UNKNOWNS[blocks.dtype.itemsize]
    return (_cyclic.CyclicFactors if small else _large_blocks.LargeBlockFactors).factor(blocks)


def _along(blocks: Any, lower: int, upper: int, backward: bool = False) -> Any:
    """One block row after the other."""
    is_tiny = _small.fits(blocks.shape[3], lower, upper, blocks.dtype.itemsize)
    return (_small.ThreadFactors if is_tiny else _lanes.LaneFactors).factor(blocks, lower, upper, backward)


class _Backward:
    """Factors of a matrix whose block rows stand in backward order."""

    def __init__(self, factors: Any, length: int) -> None:
        self.factors, self.length = factors, length
        self.growth = factors.growth
        self.singular = factors.singular.copy()
        bad = self.singular >= 0
        self.singular[bad] = length - 1 - self.singular[bad]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.factors.nbytes

    def solve(self, b: Any, adjoint: bool = False) -> Any:
        """Return A^-1 b or A^-T b for b (B, T, k, K)."""
        return cupy.ascontiguousarray(self.factors.solve(b[:, ::-1], adjoint)[:, ::-1])

    def take(self, indices: Indices) -> Any:
        """Return the factors of some systems."""
        return _Backward(self.factors.take(indices), self.length)


def _is_real(like: Any) -> bool:
    return isinstance(like, cupy.ndarray) and like.dtype.char in "fd"


def _supports_along(like: Any, *, block_size: int, lower: int, upper: int, **others: Any) -> bool:
    if not _is_real(like):
        return False
    sizes = (block_size, lower, upper, like.dtype.itemsize)
    return _small.fits(*sizes) or _lanes.fits(*sizes)


def _supports(like: Any, *, lower: int, upper: int, **facts: Any) -> bool:
    is_cyclic = lower == upper == 1 and _supports_cyclic(like, **facts)
    return is_cyclic or _supports_along(like, lower=lower, upper=upper, **facts)


def _supports_substitution(like: Any, *, lower: int, upper: int, **facts: Any) -> bool:
    return _supports_along(like, lower=0, upper=max(lower, upper), **facts)


def _supports_cyclic(like: Any, *, block_size: int, **others: Any) -> bool:
    return _is_real(like) and _large_blocks.fits(block_size, like.dtype.itemsize)


def register() -> None:
    """Offer the kernels to the core."""
    kernels.block_lu.implement("cupy", block_lu, _supports)
    kernels.block_substitution.implement("cupy", block_substitution, _supports_substitution)
    kernels.cyclic_reduction.implement("cupy", cyclic_reduction, _supports_cyclic)
    kernels.place_colors.implement("cupy", _assembly.place_colors, _assembly.supports)
