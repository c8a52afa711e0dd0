# pyright: basic
# Numba infers the types of kernels.
"""Block LU of block-banded matrices, with row interchanges inside the diagonal blocks or over the whole band.

The factors take the place of the blocks. ``F[t, j]`` belongs to block column ``t + j - lower``, as in the matrix; over
the band U may fill `lower` blocks more, and F has as many more in each row. Step t leaves

* in ``F[t, lower]`` the multipliers of the diagonal block, the reciprocals of its pivots on the diagonal, and U above;
* in ``F[t, lower + 1:]`` the rest of block row t of U, up to block column ``reach[t]``;
* in ``F[t + i, lower - i]`` the multipliers of block row t + i, in the order after the interchanges of step t;
* in ``pivots[t, r]`` the row, counted from the first of block row t, that was exchanged with row r.
"""

from __future__ import annotations

import numpy as np

from implicitsolve.backends.numba._jit import fma, inner, kernel, magnitude
from implicitsolve.backends.numba._pairs import factor_pairs


@kernel
def factor(blocks, F, pivots, reach, lower, size, singular, growth):
    """Factor every system of `blocks` (B, T, m, k, k) into F (B, T, m or m + lower, k, k), which may be `blocks`.

    `size` is the tuple of `static_size`; `singular` and `growth` are as in `implicitsolve.kernels.Factors`.
    """
    pairs = len(size) == 2 and lower == 1 and blocks.shape[2] == 3 and F.shape[2] == 3
    for b in range(blocks.shape[0]):
        if pairs:
            singular[b], growth[b] = factor_pairs(blocks, F, pivots, reach, b)
        else:
            singular[b], growth[b] = factor_one(blocks[b], F[b], pivots[b], reach[b], lower, size, True)


@inner
def factor_one(A, F, pivots, reach, lower, size, watch):
    """Factor one system; return (singular, growth). Growth is looked for only if `watch`."""
    T, m = A.shape[:2]
    k = len(size) if len(size) > 0 else A.shape[2]
    over_band = F.shape[1] > m
    one = A.dtype.type(1)
    scale = largest = one.real * 0
    for t in range(min(lower, T)):
        scale = max(scale, _copy_row(A, F, reach, t, lower, k, watch))
    for t in range(T):
        if t + lower < T:
            scale = max(scale, _copy_row(A, F, reach, t + lower, lower, k, watch))
        below = min(lower, T - 1 - t)
        multiplier = one.real
        for r in range(k):
            p, best = r, magnitude(F[t, lower, r, r])
            for i in range(r + 1, k):
                v = magnitude(F[t, lower, i, r])
                if v > best:
                    p, best = i, v
            if over_band:
                for s in range(1, below + 1):
                    for i in range(k):
                        v = magnitude(F[t + s, lower - s, i, r])
                        if v > best:
                            p, best = s * k + i, v
            if not (0 < best < np.inf):
                return t, np.inf
            pivots[t, r] = p
            if p != r:
                _exchange(F, reach, t, r, p, lower, k)
            largest = max(largest, best)
            d = one / F[t, lower, r, r]
            F[t, lower, r, r] = d
            for i in range(r + 1, k):
                ratio = F[t, lower, i, r] * d
                F[t, lower, i, r] = ratio
                for c in range(r + 1, k):
                    F[t, lower, i, c] = fma(-ratio, F[t, lower, r, c], F[t, lower, i, c])
            for s in range(1, below + 1):
                for i in range(k):
                    ratio = F[t + s, lower - s, i, r] * d
                    F[t + s, lower - s, i, r] = ratio
                    if watch and not over_band:
                        multiplier = max(multiplier, magnitude(ratio))
                    for c in range(r + 1, k):
                        F[t + s, lower - s, i, c] = fma(-ratio, F[t, lower, r, c], F[t + s, lower - s, i, c])
        row = one.real * 0
        if watch:
            for r in range(k):
                for c in range(r + 1, k):
                    row = max(row, magnitude(F[t, lower, r, c]))
        last = lower + reach[t] - t
        for j in range(lower + 1, last + 1):
            for r in range(1, k):
                for q in range(r):
                    ratio = -F[t, lower, r, q]
                    for c in range(k):
                        F[t, j, r, c] = fma(ratio, F[t, j, q, c], F[t, j, r, c])
            if watch:
                row = max(row, _largest(F, t, j, k))
        largest = max(largest, row * multiplier)
        for s in range(1, below + 1):
            reach[t + s] = max(reach[t + s], reach[t])
            for j in range(lower + 1, last + 1):
                _update(F, t, j, s, lower, k)
    return -1, largest / scale if scale > 0 else one.real


@inner
def _copy_row(A, F, reach, t, lower, k, watch):
    """Bring block row t of A into F; return its largest magnitude."""
    T, m = A.shape[:2]
    largest = abs(A.dtype.type(0))
    reach[t] = min(t + m - 1 - lower, T - 1)
    for j in range(max(0, lower - t), min(m, T + lower - t)):
        for r in range(k):
            for c in range(k):
                F[t, j, r, c] = A[t, j, r, c]
        if watch:
            largest = max(largest, _largest(F, t, j, k))
    for j in range(m, F.shape[1]):
        for r in range(k):
            for c in range(k):
                F[t, j, r, c] = 0
    return largest


@inner
def _largest(F, t, j, k):
    """Largest magnitude in one block."""
    a = b = c = d = magnitude(F[t, j, 0, 0])
    for r in range(k):
        q = 0
        while q + 4 <= k:
            a = max(a, magnitude(F[t, j, r, q]))
            b = max(b, magnitude(F[t, j, r, q + 1]))
            c = max(c, magnitude(F[t, j, r, q + 2]))
            d = max(d, magnitude(F[t, j, r, q + 3]))
            q += 4
        while q < k:
            a = max(a, magnitude(F[t, j, r, q]))
            q += 1
    return max(max(a, b), max(c, d))


@inner
def _exchange(F, reach, t, r, p, lower, k):
    """Exchange row r of block row t with row p, counted from there."""
    s = p // k
    i = p - s * k
    if s > 0:
        reach[t] = reach[t + s] = max(reach[t], reach[t + s])
    for j in range(lower, lower + reach[t] - t + 1):
        for c in range(k):
            F[t, j, r, c], F[t + s, j - s, i, c] = F[t + s, j - s, i, c], F[t, j, r, c]


@inner
def _update(F, t, j, s, lower, k):
    """``F[t + s, j - s] -= F[t + s, lower - s] @ F[t, j]``, four terms at a time."""
    for i in range(k):
        q = 0
        while q + 4 <= k:
            l0, l1 = -F[t + s, lower - s, i, q], -F[t + s, lower - s, i, q + 1]
            l2, l3 = -F[t + s, lower - s, i, q + 2], -F[t + s, lower - s, i, q + 3]
            for c in range(k):
                v = fma(l1, F[t, j, q + 1, c], fma(l0, F[t, j, q, c], F[t + s, j - s, i, c]))
                F[t + s, j - s, i, c] = fma(l3, F[t, j, q + 3, c], fma(l2, F[t, j, q + 2, c], v))
            q += 4
        while q < k:
            l0 = -F[t + s, lower - s, i, q]
            for c in range(k):
                F[t + s, j - s, i, c] = fma(l0, F[t, j, q, c], F[t + s, j - s, i, c])
            q += 1
