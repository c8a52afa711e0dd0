# pyright: basic
"""What the factors of all direct kernels share."""

from __future__ import annotations

from typing import Any, ClassVar

import cupy
import numpy as np

from implicitsolve.kernels import StoredFactors

WARP = 32


class Factors(StoredFactors):
    """Arrays of the device, and what the factoring found.

    ``found`` (B, 2) holds the first singular block, or -1, and the growth; it comes to the host once.
    """

    axes: ClassVar[dict[str, int]] = {"found": 0}
    found: Any

    def __init__(self, found: Any, **arrays: Any) -> None:
        singular, growth = found.get().T
        super().__init__(singular.astype(int), np.where(singular < 0, growth, np.inf), found=found, **arrays)

    def solve(self, b: Any, adjoint: bool = False) -> Any:
        """Return A^-1 b or A^-T b for b (B, T, k, K)."""
        b = cupy.ascontiguousarray(b)
        x = cupy.empty_like(b)
        if b.size:
            self._solve(b, x, adjoint)
        return x

    def _solve(self, b: Any, x: Any, adjoint: bool) -> None:
        raise NotImplementedError


def lanes(k: int) -> int:
    """Lanes of a warp that work on one block row."""
    return 8 if k <= 8 else 16 if k <= 16 else WARP


def tile(K: int) -> int:
    """Right-hand sides that a lane works on at a time."""
    return 1 if K == 1 else 4
