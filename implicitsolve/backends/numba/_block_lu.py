# pyright: basic
# Numba infers the types of kernels.
"""The kernels `block_lu` and `narrow_lu`: what runs around the compiled loops, and the loops of narrow bands."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from implicitsolve import kernels
from implicitsolve._typing import HostArray, Indices
from implicitsolve.backends.numba import _elimination, _pairs, _scalar_tridiagonal
from implicitsolve.backends.numba._blas import Batch, LargeBlockFactors, usable
from implicitsolve.backends.numba._jit import fma, inner, kernel, magnitude, share, static_size, supports
from implicitsolve.backends.numba._views import larger, number, smaller, view


def block_lu(blocks: HostArray, lower: int, upper: int, *, pivoting: str = "block", overwrite: bool = False) -> Any:
    """Factor a batch (B, T, lower + upper + 1, k, k); see `implicitsolve.kernels`."""
    blocks = usable(blocks)
    if pivoting == "block" and blocks.shape[-1] >= kernels.LARGE_BLOCK:
        return LargeBlockFactors.factor(blocks, lower, overwrite)
    over_band = pivoting == "band" and lower > 0
    if blocks.shape[2:] == (3, 1, 1) and lower == 1 and not over_band:
        return TridiagonalFactors.factor(blocks, overwrite)
    return BandFactors.factor(blocks, lower, over_band, overwrite)


class BandFactors(Batch):
    """Factors of any band: see `_elimination`."""

    axes: ClassVar[dict[str, int]] = {"F": 0, "pivots": 0, "reach": 0}

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
                _pairs.factor_pairs(*arrays, *found)
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
                _pairs.solve_pairs(*factors, x[part])
            else:
                loop(*factors, self.reach[part], self.lower, size, x[part])

        share(run, len(x), 2.0 * self.F.size)


class TridiagonalFactors(Batch):
    """Factors of scalar tridiagonal matrices, in 0.13 to 0.25 of the time of `BandFactors`."""

    axes: ClassVar[dict[str, int]] = {"F": 0}

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
        solve, kind = _scalar_tridiagonal.solve, (0,) * adjoint
        share(lambda part: solve(self.F[part], x[part], kind), len(x), 4.0 * x.size)


# Block tridiagonal matrices whose outer blocks are triangular: scalar bands of k on either side, without interchanges.
# So it is where neighbours are coupled unknown by unknown, as by diffusion. The band holds 2 k + 1 numbers in a row,
# and 3 k the blocks; its elimination has long inner loops, and no search for pivots. Row i of the factors holds the k
# multipliers, the reciprocal of the pivot, and the k entries of U beyond it.


def narrow_lu(blocks: HostArray, growth_limit: float) -> tuple[Indices, Any]:
    """Factor the systems of (B, T, 3, k, k) that are narrow and need no interchanges; see `implicitsolve.kernels`."""
    blocks = usable(blocks)
    B, T = blocks.shape[:2]
    if T < 2:
        return np.empty(0, dtype=int), None
    is_narrow = (blocks[:, 1, 0, -1, 0] == 0) & (blocks[:, 0, 2, 0, -1] == 0)
    places = np.arange(B) if blocks.shape[3] == 1 else np.flatnonzero(is_narrow)
    if not places.size:
        return places, None
    part = blocks if places.size == B else blocks[places]
    method = TridiagonalFactors if blocks.shape[3] == 1 else NarrowFactors
    factors: Any = method.factor(part, overwrite=False)
    good = np.flatnonzero(factors.growth <= growth_limit)
    if not good.size:
        return good, None
    return places[good], factors if good.size == places.size else factors.take(good)


class NarrowFactors(Batch):
    """LU of scalar bands; `growth` is infinite where a system is not narrow, or a pivot not usable."""

    axes: ClassVar[dict[str, int]] = {"F": 0}

    @classmethod
    def factor(cls, blocks: HostArray, overwrite: bool) -> NarrowFactors:
        """Factor blocks (B, T, 3, k, k) in C order."""
        B, T, _, k, _ = blocks.shape
        F = np.empty((B, T * k, 2 * k + 1), blocks.dtype)
        growth, size = np.empty(B), static_size(k)

        def run(part: slice) -> None:
            lanes = np.zeros((3, 2 * k + 1), growth.dtype)
            _factor(blocks[part], F[part], size, lanes, growth[part])

        share(run, B, 2.0 * F.size * k)
        return cls(np.where(growth < np.inf, -1, 0), growth, F=F)

    def _solve_column(self, x: HostArray, adjoint: bool) -> None:
        loop: Any = _solve_adjoint if adjoint else _solve
        size = static_size((self.F.shape[2] - 1) // 2)
        share(lambda part: loop(self.F[part], size, x[part]), len(x), 2.0 * self.F.size)


@kernel
def _factor(A, F, size, lanes, growth):
    """Factor systems A (B, T, 3, k, k) into F (B, T k, 2 k + 1); `lanes` (3, 2 k + 1) is for largest magnitudes."""
    A, F, lanes, growth = view(A), view(F), view(lanes), view(growth)
    for b in range(A.shape[0]):
        growth[b] = _factor_one(A[b], F[b], size, lanes)


@inner
def _factor_one(A, F, size, lanes):
    T = A.shape[0]
    k = len(size) if len(size) > 0 else A.shape[2]
    N = T * k
    one = number(A, 1)
    _clear(lanes, 2 * k + 1)
    if not _copy_rows(A, F, 0, k, lanes):
        return np.inf
    for t in range(T):
        if t + 1 < T and not _copy_rows(A, F, t + 1, k, lanes):
            return np.inf
        for i in range(t * k, (t + 1) * k):
            pivot = magnitude(F[i, k])
            if not 0 < pivot < np.inf:
                return np.inf
            d = one / F[i, k]
            for c in range(k + 1):
                v = magnitude(F[i, k + c])
                if v > lanes[1, c]:
                    lanes[1, c] = v
            F[i, k] = d
            for q in range(1, smaller(k, N - 1 - i) + 1):
                ratio = F[i + q, k - q] * d
                v = magnitude(ratio)
                if v > lanes[2, q]:
                    lanes[2, q] = v
                F[i + q, k - q] = ratio
                for c in range(1, k + 1):
                    F[i + q, k - q + c] = fma(-ratio, F[i, k + c], F[i + q, k - q + c])
    for i in range(3):
        for c in range(1, 2 * k + 1):
            lanes[i, 0] = larger(lanes[i, 0], lanes[i, c])
    return lanes[1, 0] * larger(lanes[2, 0], 1.0) / lanes[0, 0]


@inner
def _clear(lanes, width):
    for i in range(3):
        for c in range(width):
            lanes[i, c] = 0


@inner
def _copy_rows(A, F, t, k, lanes):
    """Bring block row t into the band; whether nothing was left outside."""
    T = A.shape[0]
    outside = 0
    for r in range(k):
        i = t * k + r
        for c in range(k):
            F[i, k - r + c] = A[t, 1, r, c]
        if t > 0:
            for c in range(r, k):
                F[i, c - r] = A[t, 0, r, c]
            for c in range(r):
                outside += A[t, 0, r, c] != 0
        else:
            for c in range(k - r):
                F[i, c] = 0
        if t < T - 1:
            for c in range(r + 1):
                F[i, 2 * k - r + c] = A[t, 2, r, c]
            for c in range(r + 1, k):
                outside += A[t, 2, r, c] != 0
        else:
            for c in range(2 * k - r, 2 * k + 1):
                F[i, c] = 0
        for c in range(2 * k + 1):
            v = magnitude(F[i, c])
            if v > lanes[0, c]:
                lanes[0, c] = v
    return outside == 0


@kernel
def _solve(F, size, x):
    """Overwrite x (B, N) with the solutions."""
    F, x = view(F), view(x)
    for b in range(x.shape[0]):
        _solve_one(F[b], size, x[b])


@inner
def _solve_one(F, size, x):
    N = F.shape[0]
    k = len(size) if len(size) > 0 else F.shape[1] // 2
    last = x[0]
    for i in range(1, smaller(k, N)):
        for q in range(k - i, k):
            x[i] = fma(-F[i, q], x[i - k + q], x[i])
        last = x[i]
    for i in range(k, N):
        v = x[i]
        for q in range(k - 1):
            v = fma(-F[i, q], x[i - k + q], v)
        last = fma(-F[i, k - 1], last, v)  # what waits for the row above comes last, and from a register
        x[i] = last
    for i in range(N - 1, larger(N - 1 - k, -1), -1):
        v = x[i]
        for c in range(smaller(k, N - 1 - i), 0, -1):
            v = fma(-F[i, k + c], x[i + c], v)
        last = v * F[i, k]
        x[i] = last
    for i in range(N - 1 - k, -1, -1):
        v = x[i]
        for c in range(k, 1, -1):
            v = fma(-F[i, k + c], x[i + c], v)
        last = fma(-F[i, k + 1], last, v) * F[i, k]
        x[i] = last


@kernel
def _solve_adjoint(F, size, x):
    """Overwrite x (B, N) with the solutions for the adjoint matrices."""
    F, x = view(F), view(x)
    for b in range(x.shape[0]):
        _solve_adjoint_one(F[b], size, x[b])


@inner
def _solve_adjoint_one(F, size, x):
    N = F.shape[0]
    k = len(size) if len(size) > 0 else F.shape[1] // 2
    for i in range(N):
        v = x[i] * np.conj(F[i, k])
        x[i] = v
        for c in range(1, smaller(k, N - 1 - i) + 1):
            x[i + c] = fma(-np.conj(F[i, k + c]), v, x[i + c])
    for i in range(N - 1, 0, -1):
        v = x[i]
        for q in range(larger(0, k - i), k):
            x[i - k + q] = fma(-np.conj(F[i, q]), v, x[i - k + q])


kernels.block_lu.implement("numba", block_lu, supports)
kernels.narrow_lu.implement("numba", narrow_lu, supports)
