# pyright: basic
# Numba infers the types of kernels.
"""Block LU of several block-banded matrices, one in each lane, with row interchanges inside the diagonal blocks.

As in `_elimination`, but in place; ``pivots[t, r]`` is the row of block t that was exchanged with row r, for each lane.
A singular matrix ends in Inf or NaN.
"""

from __future__ import annotations

from implicitsolve.backends.numba._jit import inner
from implicitsolve.backends.numba._lanes import bits, multiply_add, select


@inner
def factor(A, pivots, lower):
    """Overwrite A (T, m, k, k) with its factors."""
    T, m = A.shape[:2]
    k = A.shape[2]
    for t in range(T):
        below, right = min(lower, T - 1 - t), min(m - 1 - lower, T - 1 - t)
        for r in range(k):
            _interchange(A, pivots, t, r, lower, right, k)
            d = 1 / A[t, lower, r, r]
            A[t, lower, r, r] = d
            for i in range(r + 1, k):
                ratio = A[t, lower, i, r] * d
                A[t, lower, i, r] = ratio
                for c in range(r + 1, k):
                    A[t, lower, i, c] = multiply_add(-ratio, A[t, lower, r, c], A[t, lower, i, c])
                for j in range(lower + 1, lower + right + 1):
                    for c in range(k):
                        A[t, j, i, c] = multiply_add(-ratio, A[t, j, r, c], A[t, j, i, c])
            for s in range(1, below + 1):
                for i in range(k):
                    ratio = A[t + s, lower - s, i, r] * d
                    A[t + s, lower - s, i, r] = ratio
                    for c in range(r + 1, k):
                        A[t + s, lower - s, i, c] = multiply_add(-ratio, A[t, lower, r, c], A[t + s, lower - s, i, c])
        for s in range(1, below + 1):
            for j in range(lower + 1, lower + right + 1):
                for i in range(k):
                    for c in range(k):
                        v = A[t + s, j - s, i, c]
                        for q in range(k):
                            v = multiply_add(-A[t + s, lower - s, i, q], A[t, j, q, c], v)
                        A[t + s, j - s, i, c] = v


@inner
def _interchange(A, pivots, t, r, lower, right, k):
    """Bring the largest number of a column to row r of block t."""
    best = abs(A[t, lower, r, r])
    pivot = best * 0 + r
    for i in range(r + 1, k):
        v = abs(A[t, lower, i, r])
        larger = v > best
        best = select(larger, v, best)
        pivot = select(larger, v * 0 + i, pivot)
    pivots[t, r] = pivot
    for i in range(r + 1, k):
        mask = pivot == i
        if bits(mask) != 0:
            for j in range(lower, lower + right + 1):
                for c in range(k):
                    a, b = A[t, j, r, c], A[t, j, i, c]
                    A[t, j, r, c], A[t, j, i, c] = select(mask, b, a), select(mask, a, b)


@inner
def substitute(A, pivots, lower, x):
    """Overwrite x with the solution; A holds the factors."""
    T, m = A.shape[:2]
    k = A.shape[2]
    for t in range(T):
        o = t * k
        for r in range(k - 1):
            for i in range(r + 1, k):
                mask = pivots[t, r] == i
                a, b = x[o + r], x[o + i]
                x[o + r], x[o + i] = select(mask, b, a), select(mask, a, b)
        for r in range(1, k):
            v = x[o + r]
            for c in range(r):
                v = multiply_add(-A[t, lower, r, c], x[o + c], v)
            x[o + r] = v
        for s in range(1, min(lower, T - 1 - t) + 1):
            for r in range(k):
                v = x[o + s * k + r]
                for c in range(k):
                    v = multiply_add(-A[t + s, lower - s, r, c], x[o + c], v)
                x[o + s * k + r] = v
    for t in range(T - 1, -1, -1):
        o = t * k
        for s in range(min(m - 1 - lower, T - 1 - t), 0, -1):
            for r in range(k):
                v = x[o + r]
                for c in range(k):
                    v = multiply_add(-A[t, lower + s, r, c], x[o + s * k + c], v)
                x[o + r] = v
        for r in range(k - 1, -1, -1):
            v = x[o + r]
            for c in range(r + 1, k):
                v = multiply_add(-A[t, lower, r, c], x[o + c], v)
            x[o + r] = v * A[t, lower, r, r]
