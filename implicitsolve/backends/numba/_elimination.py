# pyright: basic
# Numba infers the types of kernels.
# ruff: noqa: N806
# D01 is the entry of block D in row 0, column 1.
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

from implicitsolve.backends.numba._jit import fma, inline, inner, kernel, magnitude, reciprocal
from implicitsolve.backends.numba._lanes import exchange_entries
from implicitsolve.backends.numba._views import fill, larger, number, smaller, view


@inner
def _factor_pair(A, F, pivots, reach):
    """Factor A (T, 3, 2, 2) into F, which may be A, with row interchanges in blocks; return (singular, growth)."""
    T = A.shape[0]
    one = number(A, 1)
    largest = scale = one.real * 0
    D00, D01, D10, D11 = A[0, 1, 0, 0], A[0, 1, 0, 1], A[0, 1, 1, 0], A[0, 1, 1, 1]
    scale = _largest_of(D00, D01, D10, D11)
    zero = one * 0
    for t in range(T):
        has_next = t + 1 < T
        C00 = C01 = C10 = C11 = zero
        if has_next:
            C00, C01, C10, C11 = A[t, 2, 0, 0], A[t, 2, 0, 1], A[t, 2, 1, 0], A[t, 2, 1, 1]
            scale = larger(scale, _largest_of(C00, C01, C10, C11))
        exchange = magnitude(D10) > magnitude(D00)
        if exchange:
            D00, D01, D10, D11 = D10, D11, D00, D01
            C00, C01, C10, C11 = C10, C11, C00, C01
        first = magnitude(D00)
        d0 = reciprocal(D00)
        ratio = D10 * d0
        D11 = fma(-ratio, D01, D11)
        C10, C11 = fma(-ratio, C00, C10), fma(-ratio, C01, C11)
        second = magnitude(D11)
        if not (0 < first < np.inf and 0 < second < np.inf):
            return t, np.inf
        d1 = reciprocal(D11)
        pivots[t, 0], pivots[t, 1] = int(exchange), 1
        F[t, 1, 0, 0], F[t, 1, 0, 1], F[t, 1, 1, 0], F[t, 1, 1, 1] = d0, D01, ratio, d1
        u = larger(larger(first, second), larger(magnitude(D01), _largest_of(C00, C01, C10, C11)))
        if not has_next:
            reach[t] = t
            largest = larger(largest, u)
            break
        reach[t] = t + 1
        F[t, 2, 0, 0], F[t, 2, 0, 1], F[t, 2, 1, 0], F[t, 2, 1, 1] = C00, C01, C10, C11
        s = t + 1
        L00, L01, L10, L11 = A[s, 0, 0, 0], A[s, 0, 0, 1], A[s, 0, 1, 0], A[s, 0, 1, 1]
        B00, B01, B10, B11 = A[s, 1, 0, 0], A[s, 1, 0, 1], A[s, 1, 1, 0], A[s, 1, 1, 1]
        scale = larger(scale, larger(_largest_of(L00, L01, L10, L11), _largest_of(B00, B01, B10, B11)))
        L00, L10 = L00 * d0, L10 * d0
        L01, L11 = fma(-L00, D01, L01) * d1, fma(-L10, D01, L11) * d1
        F[s, 0, 0, 0], F[s, 0, 0, 1], F[s, 0, 1, 0], F[s, 0, 1, 1] = L00, L01, L10, L11
        largest = larger(largest, u * larger(one.real, _largest_of(L00, L01, L10, L11)))
        D00, D01 = fma(-L01, C10, fma(-L00, C00, B00)), fma(-L01, C11, fma(-L00, C01, B01))
        D10, D11 = fma(-L11, C10, fma(-L10, C00, B10)), fma(-L11, C11, fma(-L10, C01, B11))
    return -1, largest / scale


@inner
def _solve_pair(F, pivots, x):
    """Overwrite x (2 T) with the solution for factors F (T, 3, 2, 2), of `factor_pairs` or over the band.

    The latter are of a matrix without blocks above the diagonal: rows may have been exchanged with the next block's.
    """
    T = F.shape[0]
    p = q = number(F, 0)
    for t in range(T):
        a, b = x[2 * t], x[2 * t + 1]
        if t > 0:  # q is later than p
            a = fma(-F[t, 0, 0, 1], q, fma(-F[t, 0, 0, 0], p, a))
            b = fma(-F[t, 0, 1, 1], q, fma(-F[t, 0, 1, 0], p, b))
        first, second = pivots[t, 0], pivots[t, 1]
        if first == 1:
            a, b = b, a
        elif first > 1:
            a, x[2 * t + first] = x[2 * t + first], a
        if second > 1:
            b, x[2 * t + second] = x[2 * t + second], b
        p, q = a, fma(-F[t, 1, 1, 0], a, b)
        x[2 * t], x[2 * t + 1] = p, q
    for t in range(T - 1, -1, -1):
        a, b = x[2 * t], x[2 * t + 1]
        if t < T - 1:  # p is later than q
            a = fma(-F[t, 2, 0, 0], p, fma(-F[t, 2, 0, 1], q, a))
            b = fma(-F[t, 2, 1, 0], p, fma(-F[t, 2, 1, 1], q, b))
        q = b * F[t, 1, 1, 1]
        p = fma(-F[t, 1, 0, 1], q, a) * F[t, 1, 0, 0]
        x[2 * t], x[2 * t + 1] = p, q


@inner
def _largest_of(a, b, c, d):
    return larger(larger(magnitude(a), magnitude(b)), larger(magnitude(c), magnitude(d)))


@kernel
def factor(blocks, F_all, pivots_all, reach_all, lower, size, singular, growth):
    """Factor every system of `blocks` (B, T, m, k, k) into F_all (B, T, m or m + lower, k, k), which may be `blocks`.

    `size` is the tuple of `static_size`; `singular` and `growth` are as in `implicitsolve.kernels.Factors`, and begin
    with -1 and 1. The loop over the systems is in one function with what it does for each: it compiles in 0.7 to 0.9
    of the time.
    """
    blocks, F_all, pivots_all, reach_all = view(blocks), view(F_all), view(pivots_all), view(reach_all)
    singular, growth = view(singular), view(growth)
    T, m = blocks.shape[1:3]
    k = len(size) if len(size) > 0 else blocks.shape[3]
    over_band = F_all.shape[2] > m
    one = number(blocks, 1)
    for b in range(blocks.shape[0]):
        A, F, pivots, reach = blocks[b], F_all[b], pivots_all[b], reach_all[b]
        scale = largest = best = one.real * 0
        for t in range(smaller(lower, T)):
            scale = larger(scale, _copy_row(A, F, reach, t, lower, k))
        for t in range(T):
            if t + lower < T:
                scale = larger(scale, _copy_row(A, F, reach, t + lower, lower, k))
            below = smaller(lower, T - 1 - t)
            multiplier = one.real
            for r in range(k):
                p, best = _find_pivot(F, t, r, lower, below if over_band else 0, k)
                if not (0 < best < np.inf):
                    singular[b] = t
                    break
                pivots[t, r] = p
                if p != r:
                    _exchange(F, reach, t, r, p, lower, k)
                largest = larger(largest, best)
                d = one / F[t, lower, r, r]
                F[t, lower, r, r] = d
                eliminate(F, t, r, d, lower, below, k)
                if not over_band:
                    multiplier = larger(multiplier, _largest_below(F, t, r, lower, below, k))
            if singular[b] >= 0:
                break
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
def _find_pivot(F, t, r, lower, below, k):
    """The row with the largest number of a column of the panel, counted from that of the block, and its magnitude."""
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


@kernel
def factor_pairs(blocks, F, pivots, reach, singular, growth):
    """Factor block tridiagonal matrices with k = 2, not over the band: a separate kernel compiles faster.

    It takes 0.3 to 0.4 of the time of `factor`; a solve by `BlockNewton` 0.8 (T = 20 000) to 0.9 (200 times T = 100).
    """
    blocks, F, pivots, reach = view(blocks), view(F), view(pivots), view(reach)
    singular, growth = view(singular), view(growth)
    for b in range(blocks.shape[0]):
        singular[b], growth[b] = _factor_pair(blocks[b], F[b], pivots[b], reach[b])


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
    """Largest magnitude in one block, by four chains of comparisons, since each waits for the last."""
    a = b = c = d = magnitude(F[t, j, 0, 0])
    for r in range(k):
        q = 0
        while q + 4 <= k:
            a = larger(a, magnitude(F[t, j, r, q]))
            b = larger(b, magnitude(F[t, j, r, q + 1]))
            c = larger(c, magnitude(F[t, j, r, q + 2]))
            d = larger(d, magnitude(F[t, j, r, q + 3]))
            q += 4
        while q < k:
            a = larger(a, magnitude(F[t, j, r, q]))
            q += 1
    return larger(larger(a, b), larger(c, d))


@inner
def _exchange(F, reach, t, r, p, lower, k):
    """Exchange row r of block row t with row p, counted from there."""
    s = p // k
    i = p - s * k
    if s > 0:
        reach[t] = reach[t + s] = larger(reach[t], reach[t + s])
    for j in range(lower, lower + reach[t] - t + 1):
        for c in range(k):
            F[t, j, r, c], F[t + s, j - s, i, c] = F[t + s, j - s, i, c], F[t, j, r, c]


@kernel
def solve(F, pivots, reach, lower, size, singular, x):
    """Overwrite x (B, T k) with the solutions; NaN for singular systems."""
    F, pivots, reach, singular, x = view(F), view(pivots), view(reach), view(singular), view(x)
    for b in range(x.shape[0]):
        if singular[b] >= 0:
            fill(x[b], np.nan)
        else:
            substitute(F[b], pivots[b], reach[b], lower, size, x[b])


@kernel
def solve_pairs(F, pivots, singular, x):
    """Overwrite x with the solutions, for k = 2 and three blocks in a row of the factors."""
    F, pivots, singular, x = view(F), view(pivots), view(singular), view(x)
    for b in range(x.shape[0]):
        if singular[b] >= 0:
            fill(x[b], np.nan)
        else:
            _solve_pair(F[b], pivots[b], x[b])


@kernel
def solve_adjoint(F, pivots, reach, lower, size, singular, x):
    """Overwrite x (B, T k) with the solutions for the adjoint matrices; NaN for singular systems."""
    F, pivots, reach, singular, x = view(F), view(pivots), view(reach), view(singular), view(x)
    for b in range(x.shape[0]):
        if singular[b] >= 0:
            fill(x[b], np.nan)
        else:
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
