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

from implicitsolve.backends.numba._jit import fma, inline, inner, kernel, magnitude
from implicitsolve.backends.numba._lanes import exchange_entries
from implicitsolve.backends.numba._views import larger, number, smaller, view


@kernel
def factor(blocks, F_all, pivots_all, reach_all, lower, size, singular, growth):
    """Factor every system of `blocks` (B, T, m, k, k) into F_all (B, T, m or m + lower, k, k), which may be `blocks`.

    `size` is the tuple of `static_size`; `singular` and `growth` are as in `implicitsolve.kernels.Factors`, and begin
    with -1 and 1. The loop over the systems and its body are one function, which compiles in 0.7 to 0.9
    of the time of two.
    """
    blocks, F_all, pivots_all, reach_all = view(blocks), view(F_all), view(pivots_all), view(reach_all)
    singular, growth = view(singular), view(growth)
    T, m = blocks.shape[1:3]
    k = len(size) if len(size) > 0 else blocks.shape[3]
    over_band = F_all.shape[2] > m
    for b in range(blocks.shape[0]):
        A, F, pivots, reach = blocks[b], F_all[b], pivots_all[b], reach_all[b]
        scale = largest = abs(number(blocks, 0))
        for t in range(smaller(lower, T)):
            scale = larger(scale, _copy_row(A, F, reach, t, lower, k))
        for t in range(T):
            if t + lower < T:
                scale = larger(scale, _copy_row(A, F, reach, t + lower, lower, k))
            below = smaller(lower, T - 1 - t)
            found, multiplier = _factor_panel(F, pivots, reach, t, lower, below, over_band, k)
            if not found < np.inf:
                singular[b] = t
                break
            largest = larger(largest, found)
            row, last = _largest_above(F, t, lower, k), lower + reach[t] - t
            for j in range(lower + 1, last + 1):
                finish(F, t, j, lower, k)
                row = larger(row, largest_in_block(F, t, j, k))
            largest = larger(largest, row * multiplier)
            for s in range(1, below + 1):
                reach[t + s] = larger(reach[t + s], reach[t])
                for j in range(lower + 1, last + 1):
                    update(F, t, j, s, lower, k)
        if singular[b] >= 0:
            growth[b] = np.inf
        elif scale > 0:
            growth[b] = largest / scale


@inline
def _factor_panel(F, pivots, reach, t, lower, below, over_band, k):
    """Eliminate the columns of block t; return the largest pivot (infinity if one is unusable) and multiplier."""
    one = number(F, 1)
    largest, multiplier = one.real * 0, one.real
    for r in range(k):
        p, best = _find_pivot(F, t, r, lower, below if over_band else 0, k)
        if not (0 < best < np.inf):
            return one.real * np.inf, multiplier
        pivots[t, r] = p
        if p != r:
            _exchange(F, reach, t, r, p, lower, k)
        largest = larger(largest, best)
        d = one / F[t, lower, r, r]
        F[t, lower, r, r] = d
        eliminate(F, t, r, d, lower, below, k)
        if not over_band:
            multiplier = larger(multiplier, _largest_below(F, t, r, lower, below, k))
    return largest, multiplier


@inline
def _find_pivot(F, t, r, lower, below, k):
    """The row of the largest number in a column of the panel, counted from the block's first, and its magnitude."""
    p, best = r, magnitude(F[t, lower, r, r])
    for s in range(below + 1):
        for i in range(r + 1 if s == 0 else 0, k):
            v = magnitude(F[t + s, lower - s, i, r])
            if v > best:
                p, best = s * k + i, v
    return p, best


@inline
def _largest_below(F, t, r, lower, below, k):
    """Largest magnitude in a column of the blocks below a diagonal one."""
    multiplier = abs(number(F, 0))
    for s in range(1, below + 1):
        for i in range(k):
            multiplier = larger(multiplier, magnitude(F[t + s, lower - s, i, r]))
    return multiplier


@inline
def _largest_above(F, t, lower, k):
    """Largest magnitude above the diagonal of a diagonal block."""
    row = abs(number(F, 0))
    for r in range(k):
        for c in range(r + 1, k):
            row = larger(row, magnitude(F[t, lower, r, c]))
    return row


# For numbers, and for the lanes of `newton_batch`.


@inline
def eliminate(F, t, r, d, lower, below, k):
    """Eliminate column r of block t, whose pivot is 1/d, from the diagonal block and those below it."""
    for i in range(r + 1, k):
        ratio = F[t, lower, i, r] * d
        F[t, lower, i, r] = ratio
        for c in range(r + 1, k):
            F[t, lower, i, c] = fma(-ratio, F[t, lower, r, c], F[t, lower, i, c])
    for s in range(1, below + 1):
        for i in range(k):
            ratio = F[t + s, lower - s, i, r] * d
            F[t + s, lower - s, i, r] = ratio
            for c in range(r + 1, k):
                F[t + s, lower - s, i, c] = fma(-ratio, F[t, lower, r, c], F[t + s, lower - s, i, c])


@inline
def finish(F, t, j, lower, k):
    """Apply the multipliers of the diagonal block to block j of block row t."""
    for r in range(1, k):
        for q in range(r):
            ratio = -F[t, lower, r, q]
            for c in range(k):
                F[t, j, r, c] = fma(ratio, F[t, j, q, c], F[t, j, r, c])


@inline
def update(F, t, j, s, lower, k):
    """``F[t + s, j - s] -= F[t + s, lower - s] @ F[t, j]``."""
    for i in range(k):
        for q in range(k):
            ratio = -F[t + s, lower - s, i, q]
            for c in range(k):
                F[t + s, j - s, i, c] = fma(ratio, F[t, j, q, c], F[t + s, j - s, i, c])


@inner
def _copy_row(A, F, reach, t, lower, k):
    """Bring block row t of A into F; return its largest magnitude."""
    T, m = A.shape[:2]
    largest = abs(number(A, 0))
    reach[t] = smaller(t + m - 1 - lower, T - 1)
    for j in range(larger(0, lower - t), smaller(m, T + lower - t)):
        copy_block(A, F, t, j, k)
        largest = larger(largest, largest_in_block(F, t, j, k))
    for j in range(m, F.shape[1]):
        for r in range(k):
            for c in range(k):
                F[t, j, r, c] = 0
    return largest


@inner
def copy_block(A, F, t, j, k):
    for r in range(k):
        for c in range(k):
            F[t, j, r, c] = A[t, j, r, c]


@inner
def largest_in_block(F, t, j, k):
    """Largest magnitude in one block."""
    largest = magnitude(F[t, j, 0, 0])
    for r in range(k):
        for c in range(k):
            largest = larger(largest, magnitude(F[t, j, r, c]))
    return largest


@inner
def _exchange(F, reach, t, r, p, lower, k):
    """Exchange row r of block row t with row p, both counted from the first of block row t."""
    s = p // k
    i = p - s * k
    if s > 0:
        reach[t] = reach[t + s] = larger(reach[t], reach[t + s])
    for j in range(lower, lower + reach[t] - t + 1):
        for c in range(k):
            F[t, j, r, c], F[t + s, j - s, i, c] = F[t + s, j - s, i, c], F[t, j, r, c]


@kernel
def solve(F, pivots, reach, lower, size, x):
    """Overwrite x (B, T k) with the solutions."""
    F, pivots, reach, x = view(F), view(pivots), view(reach), view(x)
    for b in range(x.shape[0]):
        substitute(F[b], pivots[b], reach[b], lower, size, x[b])


@kernel
def solve_adjoint(F, pivots, reach, lower, size, x):
    """Overwrite x (B, T k) with the solutions for the adjoint matrices."""
    F, pivots, reach, x = view(F), view(pivots), view(reach), view(x)
    for b in range(x.shape[0]):
        _solve_adjoint_one(F[b], pivots[b], reach[b], lower, size, x[b])


@inner
def substitute(F, pivots, reach, lower, size, x):
    """Overwrite x with the solution."""
    T, k = F.shape[0], len(size) if len(size) > 0 else F.shape[2]
    for t in range(T):
        o = t * k
        for r in range(k):
            exchange_entries(x, o, r, pivots[t, r], k)
        for r in range(1, k):
            v = x[o + r]
            for c in range(r):
                v = fma(-F[t, lower, r, c], x[o + c], v)
            x[o + r] = v
        for s in range(1, smaller(lower, T - 1 - t) + 1):
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
def _solve_adjoint_one(F, pivots, reach, lower, size, x):
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
        for s in range(smaller(lower, T - 1 - t), 0, -1):
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
