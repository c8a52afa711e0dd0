# pyright: basic
# Numba infers the types of kernels.
# ruff: noqa: N806
# D01 is the entry of block D in row 0, column 1.
"""Block tridiagonal matrices with blocks of two: `_elimination` and its solves with all numbers in registers."""

from __future__ import annotations

import numpy as np

from implicitsolve.backends.numba._jit import fma, inner, magnitude


@inner
def factor_pairs(A, F, pivots, reach, i):
    """Factor system i of A (B, T, 3, 2, 2) into F, which may be A; return (singular, growth).

    Rows are exchanged inside the blocks. The index of the system is passed on, since a view of it in every call counts
    references: 10 % of the time with 8 blocks, and 25 % of `solve_pairs`.
    """
    T = A.shape[1]
    one = A.dtype.type(1)
    largest = scale = one.real * 0
    D00, D01, D10, D11 = A[i, 0, 1, 0, 0], A[i, 0, 1, 0, 1], A[i, 0, 1, 1, 0], A[i, 0, 1, 1, 1]
    scale = _largest(D00, D01, D10, D11)
    zero = one * 0
    for t in range(T):
        has_next = t + 1 < T
        C00 = C01 = C10 = C11 = zero
        if has_next:
            C00, C01, C10, C11 = A[i, t, 2, 0, 0], A[i, t, 2, 0, 1], A[i, t, 2, 1, 0], A[i, t, 2, 1, 1]
            scale = max(scale, _largest(C00, C01, C10, C11))
        exchange = magnitude(D10) > magnitude(D00)
        if exchange:
            D00, D01, D10, D11 = D10, D11, D00, D01
            C00, C01, C10, C11 = C10, C11, C00, C01
        first = magnitude(D00)
        d0 = one / D00
        ratio = D10 * d0
        D11 = fma(-ratio, D01, D11)
        C10, C11 = fma(-ratio, C00, C10), fma(-ratio, C01, C11)
        second = magnitude(D11)
        if not (0 < first < np.inf and 0 < second < np.inf):
            return t, np.inf
        d1 = one / D11
        pivots[i, t, 0], pivots[i, t, 1] = int(exchange), 1
        F[i, t, 1, 0, 0], F[i, t, 1, 0, 1], F[i, t, 1, 1, 0], F[i, t, 1, 1, 1] = d0, D01, ratio, d1
        u = max(max(first, second), max(magnitude(D01), _largest(C00, C01, C10, C11)))
        if not has_next:
            reach[i, t] = t
            largest = max(largest, u)
            break
        reach[i, t] = t + 1
        F[i, t, 2, 0, 0], F[i, t, 2, 0, 1], F[i, t, 2, 1, 0], F[i, t, 2, 1, 1] = C00, C01, C10, C11
        s = t + 1
        L00, L01, L10, L11 = A[i, s, 0, 0, 0], A[i, s, 0, 0, 1], A[i, s, 0, 1, 0], A[i, s, 0, 1, 1]
        B00, B01, B10, B11 = A[i, s, 1, 0, 0], A[i, s, 1, 0, 1], A[i, s, 1, 1, 0], A[i, s, 1, 1, 1]
        scale = max(scale, max(_largest(L00, L01, L10, L11), _largest(B00, B01, B10, B11)))
        L00, L10 = L00 * d0, L10 * d0
        L01, L11 = fma(-L00, D01, L01) * d1, fma(-L10, D01, L11) * d1
        F[i, s, 0, 0, 0], F[i, s, 0, 0, 1], F[i, s, 0, 1, 0], F[i, s, 0, 1, 1] = L00, L01, L10, L11
        largest = max(largest, u * max(one.real, _largest(L00, L01, L10, L11)))
        D00, D01 = fma(-L01, C10, fma(-L00, C00, B00)), fma(-L01, C11, fma(-L00, C01, B01))
        D10, D11 = fma(-L11, C10, fma(-L10, C00, B10)), fma(-L11, C11, fma(-L10, C01, B11))
    return -1, largest / scale


@inner
def solve_pairs(F, pivots, x, i):
    """Overwrite x (B, 2 T) at i with the solution for factors F (B, T, 3, 2, 2), of `factor_pairs` or over the band.

    The latter are of a matrix without blocks above the diagonal: rows may have been exchanged with the next block's.
    """
    T = F.shape[1]
    p = q = F.dtype.type(0)
    for t in range(T):
        a, b = x[i, 2 * t], x[i, 2 * t + 1]
        if t > 0:  # q is later than p
            a = fma(-F[i, t, 0, 0, 1], q, fma(-F[i, t, 0, 0, 0], p, a))
            b = fma(-F[i, t, 0, 1, 1], q, fma(-F[i, t, 0, 1, 0], p, b))
        first, second = pivots[i, t, 0], pivots[i, t, 1]
        if first == 1:
            a, b = b, a
        elif first > 1:
            a, x[i, 2 * t + first] = x[i, 2 * t + first], a
        if second > 1:
            b, x[i, 2 * t + second] = x[i, 2 * t + second], b
        p, q = a, fma(-F[i, t, 1, 1, 0], a, b)
        x[i, 2 * t], x[i, 2 * t + 1] = p, q
    for t in range(T - 1, -1, -1):
        a, b = x[i, 2 * t], x[i, 2 * t + 1]
        if t < T - 1:  # p is later than q
            a = fma(-F[i, t, 2, 0, 0], p, fma(-F[i, t, 2, 0, 1], q, a))
            b = fma(-F[i, t, 2, 1, 0], p, fma(-F[i, t, 2, 1, 1], q, b))
        q = b * F[i, t, 1, 1, 1]
        p = fma(-F[i, t, 1, 0, 1], q, a) * F[i, t, 1, 0, 0]
        x[i, 2 * t], x[i, 2 * t + 1] = p, q


@inner
def _largest(a, b, c, d):
    return max(max(magnitude(a), magnitude(b)), max(magnitude(c), magnitude(d)))
