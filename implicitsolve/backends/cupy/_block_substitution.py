# pyright: basic
"""`block_substitution`: block triangular matrices, one block row after the other."""

from __future__ import annotations

from typing import Any

import cupy

from implicitsolve import kernels
from implicitsolve._typing import Indices
from implicitsolve.backends.cupy._block_lu import along, supports_along


def block_substitution(blocks: Any, lower: int, upper: int, *, overwrite: bool = False) -> Any:
    """Factor a batch of block triangular matrices, `lower` or `upper` is 0; see `implicitsolve.kernels`.

    Lower ones as upper ones whose rows stand in backward order.
    """
    if blocks.size == 0:
        return kernels.block_substitution.reference(blocks, lower, upper)
    if lower == 0:
        return along(cupy.ascontiguousarray(blocks), 0, upper)
    return _Backward(along(cupy.ascontiguousarray(blocks[:, ::-1, ::-1]), 0, lower, backward=True), blocks.shape[1])


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


def _supports(like: Any, *, lower: int, upper: int, **facts: Any) -> bool:
    return supports_along(like, lower=0, upper=max(lower, upper), **facts)


kernels.block_substitution.implement("cupy", block_substitution, _supports)
