# pyright: basic
# Numba infers the types of kernels.
"""Large blocks, pivoting inside the diagonal blocks: BLAS and LAPACK for each block, without Python between the calls.

``A = L U`` with the eliminated diagonal blocks D_t and what is left below them in L, and ``D_t^-1 A[t, t + c]`` in U,
whose diagonal is 1. Of a block tridiagonal matrix the blocks below the diagonal stay as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.backends.numba import _blas
from implicitsolve.backends.numba._blas import address
from implicitsolve.backends.numba._factors import Batch
from implicitsolve.backends.numba._jit import kernel, magnitude, share


class LargeBlockFactors(Batch):
    """Block LU in place, and the pivots inside the diagonal blocks."""

    arrays = ("F", "pivots")
    F: HostArray
    pivots: HostArray
    lower: int

    @classmethod
    def factor(cls, blocks: HostArray, lower: int, overwrite: bool) -> LargeBlockFactors:
        """Factor blocks (B, T, m, k, k) in C order."""
        B, T, m, k = blocks.shape[:4]
        F = blocks if overwrite else np.empty_like(blocks)
        pivots = np.empty((B, T, k), np.int32)
        singular, growth = np.full(B, -1), np.ones(B)

        def run(part: slice) -> None:
            calls = _blas.calls(F.dtype, k, k)
            _factor(blocks[part], F[part], pivots[part], lower, overwrite, calls, singular[part], growth[part])

        if blocks.size:
            share(run, B, 2.0 * B * T * k**3 * (lower + 1) * m)
        return cls(singular, growth, F=F, pivots=pivots, lower=lower)

    def _solve(self, x: HostArray, adjoint: bool) -> None:
        B, _, k, K = x.shape
        conjugate = adjoint and x.dtype.kind == "c"  # A^H x = b is A^T conj(x) = conj(b)
        if conjugate:
            np.conj(x, out=x)

        def run(part: slice) -> None:
            calls = _blas.calls(x.dtype, k, K)
            loop: Any = _solve_transpose if adjoint else _solve
            loop(self.F[part], self.pivots[part], self.lower, calls, self.singular[part], x[part])

        share(run, B, 2.0 * self.F.size * K)
        if conjugate:
            np.conj(x, out=x)


@kernel
def largest(x):
    """Largest magnitude in an array (n,), NaN left out; four at a time, since each comparison waits for the last."""
    a = b = c = d = magnitude(x[0])
    n = len(x) - len(x) % 4
    for i in range(0, n, 4):
        p, q, r, s = magnitude(x[i]), magnitude(x[i + 1]), magnitude(x[i + 2]), magnitude(x[i + 3])
        a = p if p > a else a
        b = q if q > b else b
        c = r if r > c else c
        d = s if s > d else d
    for i in range(n, len(x)):
        a = max(a, magnitude(x[i]))
    return max(max(a, b), max(c, d))


@kernel
def _factor(A, F, pivots, lower, in_place, calls, singular, growth):
    """Factor A (B, T, m, k, k) into F, which is A if `in_place`; each row is copied when it is needed first."""
    B, T, m, k = A.shape[:4]
    size = k * k
    step = size * F.itemsize  # bytes of a block
    flat = F.reshape((B, T, m, size))
    for b in range(B):
        scale, top, entered = 0.0, 0.0, 0
        for t in range(T):
            while entered < min(t + lower + 1, T):
                for j in range(max(0, lower - entered), min(m, T + lower - entered)):
                    if not in_place:
                        F[b, entered, j] = A[b, entered, j]
                    scale = max(scale, largest(flat[b, entered, j]))
                entered += 1
            row = address(F[b, t])
            entries = 0.0
            for i in range(min(lower, T - 1 - t) + 1):
                entries = max(entries, largest(flat[b, t + i, lower - i]))
            regular = _blas.factor(calls, row + lower * step, address(pivots[b, t]))
            for r in range(k):
                regular = regular and np.isfinite(F[b, t, lower, r, r])
            if not regular:
                singular[b], growth[b] = t, np.inf
                break
            multiplier = 1.0
            for c in range(1, min(m - 1 - lower, T - 1 - t) + 1):
                D, C = row + lower * step, row + (lower + c) * step
                _blas.divide(calls, D, address(pivots[b, t]), pivots[b, t], C, F[b, t, lower + c], False)
                multiplier = max(multiplier, largest(flat[b, t, lower + c]))
                for i in range(1, min(lower, T - 1 - t) + 1):
                    below = address(F[b, t + i])
                    _blas.subtract_product(calls, below + (lower - i) * step, C, below + (lower - i + c) * step, False)
            top = max(top, entries * multiplier)
        if singular[b] < 0:
            growth[b] = top / scale


@kernel
def _solve(F, pivots, lower, calls, singular, x):
    """Overwrite x (B, T, k, K) with the solutions; NaN for singular systems."""
    B, T, m, k = F.shape[:4]
    step = k * k * F.itemsize
    for b in range(B):
        if singular[b] >= 0:
            x[b] = np.nan
            continue
        for t in range(T):
            row, X = address(F[b, t]), address(x[b, t])
            for i in range(1, min(lower, t) + 1):
                _blas.subtract_product(calls, row + (lower - i) * step, address(x[b, t - i]), X, False)
            _blas.divide(calls, row + lower * step, address(pivots[b, t]), pivots[b, t], X, x[b, t], False)
        for t in range(T - 2, -1, -1):
            row, X = address(F[b, t]), address(x[b, t])
            for c in range(1, min(m - 1 - lower, T - 1 - t) + 1):
                _blas.subtract_product(calls, row + (lower + c) * step, address(x[b, t + c]), X, False)


@kernel
def _solve_transpose(F, pivots, lower, calls, singular, x):
    """The same for the transposed matrices."""
    B, T, m, k = F.shape[:4]
    step = k * k * F.itemsize
    for b in range(B):
        if singular[b] >= 0:
            x[b] = np.nan
            continue
        for t in range(T - 1):
            row, X = address(F[b, t]), address(x[b, t])
            for c in range(1, min(m - 1 - lower, T - 1 - t) + 1):
                _blas.subtract_product(calls, row + (lower + c) * step, X, address(x[b, t + c]), True)
        for t in range(T - 1, -1, -1):
            row, X = address(F[b, t]), address(x[b, t])
            _blas.divide(calls, row + lower * step, address(pivots[b, t]), pivots[b, t], X, x[b, t], True)
            for i in range(1, min(lower, t) + 1):
                _blas.subtract_product(calls, row + (lower - i) * step, X, address(x[b, t - i]), True)
