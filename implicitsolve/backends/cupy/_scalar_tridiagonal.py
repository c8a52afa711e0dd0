# pyright: basic
"""`scalar_tridiagonal` by one thread for each chain: one launch to factor, one to solve."""

from __future__ import annotations

from typing import Any

import cupy

from implicitsolve import kernels
from implicitsolve.backends.cupy._module import is_real, launch_each


class ScalarTridiagonal:
    @staticmethod
    def factor(lower, main, upper) -> tuple[Any, Any, Any]:
        parts = [cupy.empty(main.shape, main.dtype) for _ in range(3)]
        _launch("tridiagonal_factor", main.shape, (lower, main, upper), tuple(parts))
        return parts[0], parts[1], parts[2]

    @staticmethod
    def solve(b, below, scale, above):
        x = cupy.empty(b.shape, b.dtype)
        _launch("tridiagonal_solve", b.shape, (b, below, scale, above), (x,))
        return x


def _launch(function: str, shape: tuple[int, ...], given: tuple[Any, ...], made: tuple[Any, ...]) -> None:
    T, k = shape[-2:]
    chains = made[0].size // T if T else 0
    arrays = (cupy.ascontiguousarray(x) for x in given)
    launch_each("tridiagonal.cu", function, chains, (*arrays, *made, chains, T, k))


kernels.scalar_tridiagonal.implement("cupy", ScalarTridiagonal, is_real)
