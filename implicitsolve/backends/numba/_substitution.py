# pyright: basic
# Numba infers the types of kernels.
"""Solves with the factors of `_elimination`, in place, for one right-hand side and for many.

One right-hand side: sums over a row of a block stay in registers. Many: the innermost loop runs over them.
"""

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


@kernel
def solve_many(F, pivots, reach, lower, singular, x):
    """Overwrite x (B, T k, K) with the solutions; NaN for singular systems."""
    for b in range(x.shape[0]):
        if singular[b] >= 0:
            x[b] = np.nan
        else:
            solve_many_one(F[b], pivots[b], reach[b], lower, x[b])


@kernel
def solve_adjoint_many(F, pivots, reach, lower, singular, x):
    """Overwrite x (B, T k, K) with the solutions for the adjoint matrices; NaN for singular systems."""
    for b in range(x.shape[0]):
        if singular[b] >= 0:
            x[b] = np.nan
        else:
            solve_adjoint_many_one(F[b], pivots[b], reach[b], lower, x[b])


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


@inner
def solve_many_one(F, pivots, reach, lower, x):
    T, k = F.shape[0], F.shape[2]
    for t in range(T):
        o = t * k
        for r in range(k):
            _exchange(x, o + r, o + pivots[t, r])
        for r in range(1, k):
            for c in range(r):
                subtract(x, o + r, F[t, lower, r, c], o + c)
        for s in range(1, min(lower, T - 1 - t) + 1):
            for r in range(k):
                subtract_row(x, o + s * k + r, F[t + s, lower - s, r], o)
    for t in range(T - 1, -1, -1):
        o = t * k
        for s in range(reach[t] - t, 0, -1):
            for r in range(k):
                subtract_row(x, o + r, F[t, lower + s, r], o + s * k)
        for r in range(k - 1, -1, -1):
            for c in range(r + 1, k):
                subtract(x, o + r, F[t, lower, r, c], o + c)
            _scale(x, o + r, F[t, lower, r, r])


@inner
def solve_adjoint_many_one(F, pivots, reach, lower, x):
    T, k = F.shape[0], F.shape[2]
    for t in range(T):
        o = t * k
        for r in range(k):
            _scale(x, o + r, np.conj(F[t, lower, r, r]))
            for c in range(r + 1, k):
                subtract(x, o + c, np.conj(F[t, lower, r, c]), o + r)
        for s in range(1, reach[t] - t + 1):
            for r in range(k):
                for c in range(k):
                    subtract(x, o + s * k + c, np.conj(F[t, lower + s, r, c]), o + r)
    for t in range(T - 1, -1, -1):
        o = t * k
        for s in range(min(lower, T - 1 - t), 0, -1):
            for r in range(k):
                for c in range(k):
                    subtract(x, o + c, np.conj(F[t + s, lower - s, r, c]), o + s * k + r)
        for r in range(k - 1, 0, -1):
            for c in range(r):
                subtract(x, o + c, np.conj(F[t, lower, r, c]), o + r)
        for r in range(k - 1, -1, -1):
            _exchange(x, o + r, o + pivots[t, r])


@inner
def subtract(x, row, factor, other):
    """``x[row] -= factor * x[other]``."""
    for j in range(x.shape[1]):
        x[row, j] = fma(-factor, x[other, j], x[row, j])


@inner
def subtract_row(x, row, factors, start):
    """``x[row] -= factors @ x[start:start + k]``, four terms at a time."""
    k = factors.shape[0]
    c = 0
    while c + 4 <= k:
        f0, f1, f2, f3 = -factors[c], -factors[c + 1], -factors[c + 2], -factors[c + 3]
        i = start + c
        for j in range(x.shape[1]):
            v = fma(f1, x[i + 1, j], fma(f0, x[i, j], x[row, j]))
            x[row, j] = fma(f3, x[i + 3, j], fma(f2, x[i + 2, j], v))
        c += 4
    while c < k:
        subtract(x, row, factors[c], start + c)
        c += 1


@inner
def _scale(x, row, factor):
    for j in range(x.shape[1]):
        x[row, j] *= factor


@inner
def _exchange(x, row, other):
    for j in range(x.shape[1]):
        x[row, j], x[other, j] = x[other, j], x[row, j]
