# pyright: basic
"""Factors with one thread for each system: small blocks, and scalar tridiagonal matrices with exchanges of rows."""

from __future__ import annotations

from typing import Any, ClassVar

import cupy

from implicitsolve.backends.cupy._factors import WARP, Factors
from implicitsolve.backends.cupy._module import MOST_BLOCKS, launch

MOST_UNKNOWNS = 4
MOST_NUMBERS = 160  # of 32 bits in the registers of a thread
PART = 32  # right-hand sides of a system that its warp brings into shared memory at once


def fits(k: int, lower: int, upper: int, itemsize: int) -> bool:
    """Whether a thread can hold the block rows that it works on."""
    return k <= MOST_UNKNOWNS and (lower * (upper + 1) + lower + upper + 1) * k * k * itemsize // 4 <= MOST_NUMBERS


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
