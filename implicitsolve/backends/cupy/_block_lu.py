# pyright: basic
"""`block_lu` with one thread, or some lanes of a warp, for each system, and which factorization does which sizes."""

from __future__ import annotations

from typing import Any, ClassVar

import cupy

from implicitsolve import kernels
from implicitsolve.backends.cupy import _cyclic_reduction
from implicitsolve.backends.cupy._factors import WARP, Factors, lanes, tile
from implicitsolve.backends.cupy._module import MOST_BLOCKS, launch, limits

MOST_SHARED = 96 * 1024  # bytes of the block rows that the lanes share
LANE_NUMBERS = 128  # of 32 bits in the registers of a lane


def fits_lanes(k: int, lower: int, upper: int, itemsize: int) -> bool:
    """Whether registers and shared memory hold the block rows that are worked on."""
    m, shared = lower + upper + 1, _shared(k, lower, upper, itemsize)
    return k <= WARP and m * k * itemsize // 4 <= LANE_NUMBERS and shared <= min(MOST_SHARED, limits()[1])


class LaneFactors(Factors):
    """Block LU; see ``block_lanes.cu``."""

    axes: ClassVar[dict[str, int]] = {"F": 0, "order": 0, "found": 0}
    F: Any
    order: Any
    constants: dict[str, int]

    @classmethod
    def factor(cls, blocks: Any, lower: int, upper: int) -> LaneFactors:
        """Factor blocks (B, T, m, k, k) in C order."""
        B, T, _, k, _ = blocks.shape
        F, order = cupy.empty_like(blocks), cupy.empty((B, T, k), cupy.uint8)
        found, constants = cupy.empty((B, 2)), {"K": k, "GROUP": lanes(k), "LOWER": lower, "UPPER": upper}
        launch(
            "block_lanes.cu",
            "block_lanes_factor",
            blocks.dtype.char,
            (-(-B * lanes(k) // WARP),),
            (WARP,),
            (blocks, F, order, found, B, T),
            shared=_shared(k, lower, upper, blocks.dtype.itemsize),
            **constants,
            COLUMNS=1,
        )
        return cls(F=F, order=order, found=found, constants=constants)

    def _solve(self, b: Any, x: Any, adjoint: bool) -> None:
        B, T, k, K = b.shape
        columns = tile(K)
        launch(
            "block_lanes.cu",
            "block_lanes_solve",
            b.dtype.char,
            (-(-B * lanes(k) // WARP), min(-(-K // columns), MOST_BLOCKS)),
            (WARP,),
            (self.F, self.order, self.found, b, x, B, T, K, int(adjoint)),
            **self.constants,
            COLUMNS=columns,
        )


def _shared(k: int, lower: int, upper: int, itemsize: int) -> int:
    return WARP // lanes(k) * (lower + 1) * (lower + upper + 1) * k * k * itemsize


THREAD_UNKNOWNS = 4
THREAD_NUMBERS = 160  # of 32 bits in the registers of a thread
PART = 32  # right-hand sides of a system that its warp brings into shared memory at once


def fits_thread(k: int, lower: int, upper: int, itemsize: int) -> bool:
    """Whether a thread can hold the block rows that it works on."""
    return k <= THREAD_UNKNOWNS and (lower * (upper + 1) + lower + upper + 1) * k * k * itemsize // 4 <= THREAD_NUMBERS


class ThreadFactors(Factors):
    """Block LU of small blocks; see ``block_threads.cu``."""

    axes: ClassVar[dict[str, int]] = {"F": -1, "pivots": -1, "found": 0}
    F: Any
    pivots: Any
    bands: dict[str, int]

    @classmethod
    def factor(cls, blocks: Any, lower: int, upper: int) -> ThreadFactors:
        """Factor blocks (B, T, m, k, k) in C order."""
        B, T, m, k = blocks.shape[:4]
        dtype = blocks.dtype
        F, pivots = cupy.empty((T, m, k, k, B), dtype), cupy.empty((T, B), cupy.uint8)
        found, bands = cupy.empty((B, 2)), {"K": k, "LOWER": lower, "UPPER": upper}
        numbers = m * k * k
        launch(
            "block_threads.cu",
            "block_threads_factor",
            dtype.char,
            (-(-B // WARP),),
            (WARP,),
            (blocks, F, pivots, found, B, T),
            shared=WARP * (max(32 // numbers, 1) * numbers | 1) * dtype.itemsize,
            **bands,
        )
        return cls(F=F, pivots=pivots, found=found, bands=bands)

    def _solve(self, b: Any, x: Any, adjoint: bool) -> None:
        B, T, k, K = b.shape
        launch(
            "block_threads.cu",
            "block_threads_solve",
            b.dtype.char,
            (-(-B // WARP), min(K, MOST_BLOCKS)),
            (WARP,),
            (self.F, self.pivots, self.found, b, x, B, T, K, int(adjoint)),
            shared=WARP * (PART // k * k | 1) * b.dtype.itemsize,
            **self.bands,
        )


class BandFactors(Factors):
    """LU of scalar tridiagonal matrices over the band; see ``band.cu``."""

    axes: ClassVar[dict[str, int]] = {"F": -1, "exchanged": -1, "found": 0}
    F: Any
    exchanged: Any

    @classmethod
    def factor(cls, blocks: Any) -> BandFactors:
        """Factor blocks (B, T, 3, 1, 1) in C order."""
        B, T = blocks.shape[:2]
        F, exchanged = cupy.empty((T, 4, B), blocks.dtype), cupy.empty((T, B), cupy.uint8)
        found = cupy.empty((B, 2))
        launch(
            "band.cu",
            "band_factor",
            blocks.dtype.char,
            (-(-B // WARP),),
            (WARP,),
            (blocks, F, exchanged, found, B, T),
            shared=WARP * 31 * blocks.dtype.itemsize,
        )
        return cls(F=F, exchanged=exchanged, found=found)

    def _solve(self, b: Any, x: Any, adjoint: bool) -> None:
        B, T, _, K = b.shape
        launch(
            "band.cu",
            "band_solve",
            b.dtype.char,
            (-(-B // WARP), min(K, MOST_BLOCKS)),
            (WARP,),
            (self.F, self.exchanged, self.found, b, x, B, T, K, int(adjoint)),
            shared=WARP * 33 * b.dtype.itemsize,
        )


LONGEST = {True: 1024, False: 64}  # chains of tiny blocks, and of others, that one thread or warp processes


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
        return BandFactors.factor(blocks)
    itemsize = blocks.dtype.itemsize
    if lower == upper == 1 and (k > _cyclic_reduction.MOST_UNKNOWNS[itemsize] or LONGEST[k <= THREAD_UNKNOWNS] < T):
        return _cyclic_reduction.cyclic_reduction(blocks)
    return along(blocks, lower, upper)


def along(blocks: Any, lower: int, upper: int) -> Any:
    """One block row after the other."""
    is_tiny = fits_thread(blocks.shape[3], lower, upper, blocks.dtype.itemsize)
    return (ThreadFactors if is_tiny else LaneFactors).factor(blocks, lower, upper)


def supports_along(like: Any, *, block_size: int, lower: int, upper: int, **others: Any) -> bool:
    """Whether `along` does blocks of these sizes."""
    if not _cyclic_reduction.is_real(like):
        return False
    sizes = (block_size, lower, upper, like.dtype.itemsize)
    return fits_thread(*sizes) or fits_lanes(*sizes)


def _supports(like: Any, *, lower: int, upper: int, **case: Any) -> bool:
    is_cyclic = lower == upper == 1 and _cyclic_reduction.supports(like, **case)
    return is_cyclic or supports_along(like, lower=lower, upper=upper, **case)


kernels.block_lu.implement("cupy", block_lu, _supports)
