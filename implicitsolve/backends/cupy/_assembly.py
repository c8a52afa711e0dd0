# pyright: basic
"""`place_colors` in one launch."""

from __future__ import annotations

from typing import Any

import cupy

from implicitsolve import kernels
from implicitsolve.backends.cupy._module import launch

THREADS = 256
MOST_GRID = 2**20


def place_colors(blocks: Any, changes: Any, per_length: Any, first: int, lower: int) -> None:
    """Write the blocks of some colors; see `implicitsolve.kernels._assembly.place_colors`."""
    if not blocks.flags.c_contiguous:
        kernels.place_colors.reference(blocks, changes, per_length, first, lower)
        return
    B, T, m, k = blocks.shape[:4]
    launch(
        "assembly.cu",
        "place_colors",
        blocks.dtype.char,
        (min(-(-blocks.size // THREADS), MOST_GRID),),
        (THREADS,),
        (
            blocks,
            cupy.ascontiguousarray(changes),
            cupy.ascontiguousarray(per_length),
            changes.shape[0],
            B,
            T,
            m,
            k,
            first,
            lower,
        ),
    )


def supports(like: Any, **case: Any) -> bool:
    """Real arrays of CuPy."""
    return isinstance(like, cupy.ndarray) and like.dtype.char in "fd"


kernels.place_colors.implement("cupy", place_colors, supports)
