# pyright: basic
# Numba infers the types of kernels.
"""Solves with the factors of `_elimination`, in place: sums over a row of a block stay in registers."""

from __future__ import annotations

import numpy as np

from implicitsolve.backends.numba._jit import fma, inner, kernel
from implicitsolve.backends.numba._pairs import solve_pairs


@kernel
def solve(F, pivots, reach, lower, size, singular, x):
    """Overwrite x (B, T k) with the solutions; NaN for singular systems."""
    pairs = len(size) == 2 and lower == 1 and F.shape[2] == 3
    for b in range(x.shape[0]):
        if singular[b] >= 0:
            x[b] = np.nan
        elif pairs:
            solve_pairs(F, pivots, x, b)
        else:
            solve_one(F[b], pivots[b], reach[b], lower, size, x[b])


@kernel
def solve_adjoint(F, pivots, reach, lower, size, singular, x):
    """Overwrite x (B, T k) with the solutions for the adjoint matrices; NaN for singular systems."""
    for b in range(x.shape[0]):
        if singular[b] >= 0:
            x[b] = np.nan
        else:
            solve_adjoint_one(F[b], pivots[b], reach[b], lower, size, x[b])


@inner
def solve_one(F, pivots, reach, lower, size, x):
    T, k = F.shape[0], len(size) if len(size) > 0 else F.shape[2]
    for t in range(T):
        o = t * k
        for r in range(k):
            p = o + pivots[t, r]
            x[o + r], x[p] = x[p], x[o + r]
        for r in range(1, k):
            v = x[o + r]
            for c in range(r):
                v = fma(-F[t, lower, r, c], x[o + c], v)
            x[o + r] = v
        for s in range(1, min(lower, T - 1 - t) + 1):
            for r in range(k):
                v = x[o + s * k + r]
                for c in range(k):
                    v = fma(-F[t + s, lower - s, r, c], x[o + c], v)
                x[o + s * k + r] = v
    for t in range(T - 1, -1, -1):
        o = t * k
        for s in range(reach[t] - t, 0, -1):
            for r in range(k):
                v = x[o + r]
                for c in range(k):
                    v = fma(-F[t, lower + s, r, c], x[o + s * k + c], v)
                x[o + r] = v
        for r in range(k - 1, -1, -1):
            v = x[o + r]
            for c in range(r + 1, k):
                v = fma(-F[t, lower, r, c], x[o + c], v)
            x[o + r] = v * F[t, lower, r, r]


@inner
def solve_adjoint_one(F, pivots, reach, lower, size, x):
    T, k = F.shape[0], len(size) if len(size) > 0 else F.shape[2]
    for t in range(T):
        o = t * k
        for r in range(k):
            v = x[o + r] * np.conj(F[t, lower, r, r])
            x[o + r] = v
            for c in range(r + 1, k):
                x[o + c] = fma(-np.conj(F[t, lower, r, c]), v, x[o + c])
        for s in range(1, reach[t] - t + 1):
            for r in range(k):
                v = x[o + r]
                for c in range(k):
                    x[o + s * k + c] = fma(-np.conj(F[t, lower + s, r, c]), v, x[o + s * k + c])
    for t in range(T - 1, -1, -1):
        o = t * k
        for s in range(min(lower, T - 1 - t), 0, -1):
            for r in range(k):
                v = x[o + s * k + r]
                for c in range(k):
                    x[o + c] = fma(-np.conj(F[t + s, lower - s, r, c]), v, x[o + c])
        for r in range(k - 1, 0, -1):
            v = x[o + r]
            for c in range(r):
                x[o + c] = fma(-np.conj(F[t, lower, r, c]), v, x[o + c])
        for r in range(k - 1, -1, -1):
            p = o + pivots[t, r]
            x[o + r], x[p] = x[p], x[o + r]
