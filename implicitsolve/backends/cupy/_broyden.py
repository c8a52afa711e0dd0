"""`rank_one` in CUDA: one launch for each update."""

# pyright: basic

from __future__ import annotations

from typing import Any

import cupy

from implicitsolve import kernels
from implicitsolve.backends.cupy._module import dense
from implicitsolve.backends.cupy._vectors import TILE, WARP, added_up, launch_for, parts_of, stride_of, supports


def rank_one(z: Any, w: Any, amount: Any, following: Any) -> Any:
    """Add ``amount * w`` to z in place, and return ``following^H z``; see `implicitsolve.kernels`."""
    w, other, parts = dense(w), z if following is None else dense(following), parts_of(z)
    b, N = z.shape
    partial = cupy.empty((b, parts, 1), z.dtype)
    vectors = (z, stride_of(z), w, stride_of(w), amount, stride_of(amount), other, stride_of(other))
    launch_for("rank_one", parts * b, N, z, (*vectors, partial, N, parts), TILE * WARP)
    if following is None:
        return None
    return partial[:, 0, :] if parts == 1 else added_up(partial)


def _supports(like: Any, **sizes: Any) -> bool:
    return supports(like) and dense(like) is like


kernels.rank_one.implement("cupy", rank_one, _supports)
