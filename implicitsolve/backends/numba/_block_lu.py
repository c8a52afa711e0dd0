"""The kernel `block_lu` and its factors: what runs around the compiled loops."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicitsolve import kernels
from implicitsolve._typing import HostArray
from implicitsolve.backends.numba import _elimination, _scalar_tridiagonal
from implicitsolve.backends.numba._blas import LargeBlockFactors
from implicitsolve.backends.numba._factors import Batch, usable
from implicitsolve.backends.numba._jit import share, static_size, supports


def block_lu(blocks: HostArray, lower: int, upper: int, *, pivoting: str = "block", overwrite: bool = False) -> Any:
    """Factor a batch (B, T, lower + upper + 1, k, k); see `implicitsolve.kernels`.

    Compiled loops for small blocks and for pivoting over the band, BLAS for large blocks. Without interchanges scalar
    tridiagonal matrices are eliminated from both ends.

    Memory of the factors: k^2 T (lower + upper + 1) numbers, in the place of `blocks` with `overwrite`; over the band
    k^2 T (2 lower + upper + 1) new ones.
    """
    blocks = usable(blocks)
    if pivoting == "block" and blocks.shape[-1] >= kernels.LARGE_BLOCK:
        return LargeBlockFactors.factor(blocks, lower, overwrite)
    over_band = pivoting == "band" and lower > 0
    if blocks.shape[2:] == (3, 1, 1) and lower == 1 and not over_band:
        return TridiagonalFactors.factor(blocks, overwrite)
    return BandFactors.factor(blocks, lower, over_band, overwrite)


class BandFactors(Batch):
    """Factors of any band: see `_elimination`."""

    arrays = ("F", "pivots", "reach")
    F: HostArray
    pivots: HostArray
    reach: HostArray
    lower: int

    @classmethod
    def factor(cls, blocks: HostArray, lower: int, over_band: bool, overwrite: bool) -> BandFactors:
        """Factor blocks (B, T, m, k, k) in C order."""
        B, T, m, k = blocks.shape[:4]
        width = m + lower if over_band else m
        F = blocks if overwrite and not over_band else np.empty((B, T, width, k, k), blocks.dtype)
        pivots, reach = np.empty((B, T, k), np.int32), np.empty((B, T), np.int32)
        singular, growth, size = np.full(B, -1), np.ones(B), static_size(k)

        def run(part: slice) -> None:
            arrays, found = (blocks[part], F[part], pivots[part], reach[part]), (singular[part], growth[part])
            if (lower, m, width, k) == (1, 3, 3, 2):
                _elimination.factor_pairs(*arrays, *found)
            else:
                _elimination.factor(*arrays, lower, size, *found)

        if blocks.size:
            share(run, B, 2.0 * B * T * k**3 * (lower + 1) * width)
        return cls(singular, growth, F=F, pivots=pivots, reach=reach, lower=lower)

    def _solve_column(self, x: HostArray, adjoint: bool) -> None:
        size = static_size(self.F.shape[3])
        loop = _elimination.solve_adjoint if adjoint else _elimination.solve

        def run(part: slice) -> None:
            factors = self.F[part], self.pivots[part]
            if not adjoint and self.lower == 1 and self.F.shape[2:4] == (3, 2):
                _elimination.solve_pairs(*factors, self.singular[part], x[part])
            else:
                loop(*factors, self.reach[part], self.lower, size, self.singular[part], x[part])

        share(run, len(x), 2.0 * self.F.size)


class TridiagonalFactors(Batch):
    """Factors of scalar tridiagonal matrices: see `_scalar_tridiagonal`."""

    arrays = ("F",)
    F: HostArray

    @classmethod
    def factor(cls, blocks: HostArray, overwrite: bool) -> TridiagonalFactors:
        """Factor blocks (B, T, 3, 1, 1) in C order."""
        B, T = blocks.shape[:2]
        A = blocks.reshape((B, T, 3))
        F = A if overwrite else np.empty_like(A)
        singular, growth = np.full(B, -1), np.ones(B)
        if A.size:
            share(
                lambda part: _scalar_tridiagonal.factor(A[part], F[part], singular[part], growth[part]),
                B,
                20.0 * A.size,
            )
        return cls(singular, growth, F=F)

    def _solve_column(self, x: HostArray, adjoint: bool) -> None:
        loop = _scalar_tridiagonal.solve_adjoint if adjoint else _scalar_tridiagonal.solve
        share(lambda part: loop(self.F[part], self.singular[part], x[part]), len(x), 4.0 * x.size)


kernels.block_lu.implement("numba", block_lu, supports)
