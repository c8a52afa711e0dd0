# pyright: basic
# ruff: noqa: N806
# Numba infers the types of kernels. D01 is the entry of block D in row 0, column 1.
"""Block LU of block tridiagonal matrices with k = 2, in registers; the factors are laid out as in `_elimination`."""

from __future__ import annotations

import numpy as np

from implicitsolve.backends.numba._jit import fma, inner, kernel, magnitude, reciprocal
from implicitsolve.backends.numba._views import larger, number, view


@kernel
def factor_pairs(blocks, F, pivots, reach, singular, growth):
    """As `_elimination.factor` inside the blocks (B, T, 3, 2, 2), in 0.3 to 0.4 of its time."""
    blocks, F, pivots, reach = view(blocks), view(F), view(pivots), view(reach)
    singular, growth = view(singular), view(growth)
    for b in range(blocks.shape[0]):
        singular[b], growth[b] = _factor_pair(blocks[b], F[b], pivots[b], reach[b])


@inner
def _factor_pair(A, F, pivots, reach):
    """Factor A (T, 3, 2, 2) into F, which may be A; return (singular, growth)."""
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
    """Overwrite x (2 T) with the solution for factors F (T, 3, 2, 2), whose rows may have left their blocks."""
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
def solve_pairs(F, pivots, x):
    """Overwrite x (B, 2 T) with the solutions, for three blocks in a row of the factors."""
    F, pivots, x = view(F), view(pivots), view(x)
    for b in range(x.shape[0]):
        _solve_pair(F[b], pivots[b], x[b])
