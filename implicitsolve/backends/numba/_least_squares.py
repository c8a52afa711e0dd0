"""Compiled `newest_first`: each system separately, row by row."""

# pyright: basic

from __future__ import annotations

import numpy as np

from implicitsolve import kernels
from implicitsolve.backends.numba._jit import summing_kernel, supports


def newest_first(gram, right, held, least):
    """Minimizers (b, m) of ``||f - sum_i c_i y_i||_2``; see the reference."""
    z = np.empty_like(right)
    m = held.shape[1]
    _solve(gram, right, held, least, np.empty(m, bool), np.empty((2, m)), np.empty((2, m, m), gram.dtype), z)
    return z


@summing_kernel
def _solve(gram, right, held, least, taken, lengths, factors, z):
    """By L D L^H of what takes part; W is L D."""
    systems, m = held.shape
    (scale, D), (L, W) = lengths, factors
    zero = gram.dtype.type(0)
    for b in range(systems):
        for i in range(m):
            square = gram[b, i, i].real
            taken[i] = held[b, i] and square > 0 and np.isfinite(square)
            scale[i] = np.sqrt(square) if taken[i] else 1.0
            pivot = 1.0
            for j in range(i):
                W[i, j] = zero
                if taken[i] and taken[j]:
                    total = gram[b, i, j] / (scale[i] * scale[j])
                    for p in range(j):
                        total -= W[i, p] * np.conj(L[j, p])
                    W[i, j] = total
                L[i, j] = W[i, j] / D[j]
                pivot -= (W[i, j] * np.conj(L[i, j])).real
            taken[i] = taken[i] and pivot > least
            D[i] = pivot if taken[i] else 1.0
            total = right[b, i] / scale[i] if taken[i] else zero
            for j in range(i if taken[i] else 0):
                total -= L[i, j] * z[b, j]
            z[b, i] = total
        for i in range(m):
            z[b, i] /= D[i]
        for i in range(m - 1, 0, -1):
            for j in range(i):
                z[b, j] -= np.conj(L[i, j]) * z[b, i]
        for i in range(m):
            z[b, i] /= scale[i]


kernels.newest_first.implement("numba", newest_first, supports)
