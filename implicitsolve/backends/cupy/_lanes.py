# pyright: basic
"""Block LU with some lanes of a warp for each system."""

from __future__ import annotations

from typing import Any, ClassVar

import cupy

from implicitsolve.backends.cupy._factors import WARP, Factors, lanes, tile
from implicitsolve.backends.cupy._module import MOST_BLOCKS, launch, limits

MOST_SHARED = 96 * 1024  # bytes of the block rows that the lanes share
MOST_NUMBERS = 128  # of 32 bits in the registers of a lane


def fits(k: int, lower: int, upper: int, itemsize: int) -> bool:
    """Whether registers and shared memory hold the block rows that are worked on."""
    m, shared = lower + upper + 1, _shared(k, lower, upper, itemsize)
    return k <= WARP and m * k * itemsize // 4 <= MOST_NUMBERS and shared <= min(MOST_SHARED, limits()[1])


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
