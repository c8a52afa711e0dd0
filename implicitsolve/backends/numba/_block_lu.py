"""The kernel `block_lu` and its factors: what runs around the compiled loops."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicitsolve import kernels
from implicitsolve._typing import HostArray, Indices
from implicitsolve.backends.numba import _elimination, _tridiagonal
from implicitsolve.backends.numba._factors import Batch, usable
from implicitsolve.backends.numba._jit import share, static_size, supports
from implicitsolve.backends.numba._large_blocks import LargeBlockFactors

GROWTH_LIMIT = 8.0  # of an elimination without interchanges that "band" accepts; that of partial pivoting is 2


def block_lu(blocks: HostArray, lower: int, upper: int, *, pivoting: str = "block", overwrite: bool = False) -> Any:
    """Factor a batch (B, T, lower + upper + 1, k, k); see `implicitsolve.kernels`.

    Compiled loops for small blocks and for pivoting over the band, BLAS for large blocks. Scalar tridiagonal matrices
    are eliminated from both ends without interchanges. With ``pivoting="band"`` those whose entries grow more than
    eightfold are then factored again, with interchanges.

    Memory of the factors: k^2 T (lower + upper + 1) numbers, in the place of `blocks` with `overwrite`; over the band
    k^2 T (2 lower + upper + 1) new ones.
    """
    blocks = usable(blocks)
    if pivoting == "block" and blocks.shape[-1] >= kernels.LARGE_BLOCK:
        return LargeBlockFactors.factor(blocks, lower, overwrite)
    over_band = pivoting == "band" and lower > 0
    if blocks.shape[2:] == (3, 1, 1) and lower == 1:
        factors = _Tridiagonal.factor(blocks, overwrite and not over_band)
        if not over_band or (factors.growth <= GROWTH_LIMIT).all():  # of singular ones it is infinite
            return factors
        bad = np.flatnonzero((factors.singular >= 0) | ~(factors.growth <= GROWTH_LIMIT))
        return _Mixed(factors, bad, BandFactors.factor(blocks[bad], 1, True, False))
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


class _Tridiagonal(Batch):
    """Factors of scalar tridiagonal matrices: see `_tridiagonal`."""

    arrays = ("F",)
    F: HostArray

    @classmethod
    def factor(cls, blocks: HostArray, overwrite: bool) -> _Tridiagonal:
        """Factor blocks (B, T, 3, 1, 1) in C order."""
        B, T = blocks.shape[:2]
        A = blocks.reshape((B, T, 3))
        F = A if overwrite else np.empty_like(A)
        singular, growth = np.full(B, -1), np.ones(B)
        if A.size:
            share(lambda part: _tridiagonal.factor(A[part], F[part], singular[part], growth[part]), B, 20.0 * A.size)
        return cls(singular, growth, F=F)

    def _solve_column(self, x: HostArray, adjoint: bool) -> None:
        loop = _tridiagonal.solve_adjoint if adjoint else _tridiagonal.solve
        share(lambda part: loop(self.F[part], self.singular[part], x[part]), len(x), 4.0 * x.size)


class _Mixed(Batch):
    """Tridiagonal factors without interchanges, and with them for the systems that need it."""

    def __init__(self, plain: _Tridiagonal, rows: Indices, pivoted: BandFactors) -> None:
        super().__init__(plain.singular.copy(), plain.growth.copy())
        self.plain, self.rows, self.pivoted = plain, rows, pivoted
        self.singular[rows], self.growth[rows] = pivoted.singular, pivoted.growth

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.plain.nbytes + self.pivoted.nbytes

    def take(self, indices: Indices) -> Any:
        """Return the factors of some systems."""
        place = np.full(self.singular.size, -1)
        place[self.rows] = np.arange(self.rows.size)
        chosen = place[np.asarray(indices)]
        return _Mixed(self.plain.take(indices), np.flatnonzero(chosen >= 0), self.pivoted.take(chosen[chosen >= 0]))

    def solve_in_place(self, x: HostArray, adjoint: bool = False) -> None:
        """Overwrite x (B, T, k, K), in C order, with A^-1 x or A^-H x."""
        if self.rows.size == self.singular.size:
            self.pivoted.solve_in_place(x, adjoint)
            return
        pivoted = self.pivoted.solve(x[self.rows], adjoint)
        self.plain.solve_in_place(x, adjoint)
        x[self.rows] = pivoted


kernels.block_lu.implement("numba", block_lu, supports)
