# pyright: basic
# Numba infers the types of kernels.
# ruff: noqa: N806
# D01 is the entry of block D in row 0, column 1.
"""Block tridiagonal matrices with blocks of two, in lanes: `_lanes_elimination` with all numbers in registers."""

from __future__ import annotations

from implicitsolve.backends.numba._jit import inner
from implicitsolve.backends.numba._lanes import select
from implicitsolve.backends.numba._lanes_arithmetic import multiply_add as fma


@inner
def factor_pairs(A, pivots):
    """Overwrite A (T, 3, 2, 2) with its factors."""
    T = A.shape[0]
    D00, D01, D10, D11 = A[0, 1, 0, 0], A[0, 1, 0, 1], A[0, 1, 1, 0], A[0, 1, 1, 1]
    for t in range(T):
        exchange = abs(D10) > abs(D00)
        pivots[t, 0] = select(exchange, D00 * 0 + 1, D00 * 0)
        D00, D10 = select(exchange, D10, D00), select(exchange, D00, D10)
        D01, D11 = select(exchange, D11, D01), select(exchange, D01, D11)
        d0 = 1 / D00
        ratio = D10 * d0
        d1 = 1 / fma(-ratio, D01, D11)
        A[t, 1, 0, 0], A[t, 1, 0, 1], A[t, 1, 1, 0], A[t, 1, 1, 1] = d0, D01, ratio, d1
        if t + 1 < T:
            C00, C01, C10, C11 = A[t, 2, 0, 0], A[t, 2, 0, 1], A[t, 2, 1, 0], A[t, 2, 1, 1]
            C00, C10 = select(exchange, C10, C00), select(exchange, C00, C10)
            C01, C11 = select(exchange, C11, C01), select(exchange, C01, C11)
            C10, C11 = fma(-ratio, C00, C10), fma(-ratio, C01, C11)
            A[t, 2, 0, 0], A[t, 2, 0, 1], A[t, 2, 1, 0], A[t, 2, 1, 1] = C00, C01, C10, C11
            s = t + 1
            L00, L10 = A[s, 0, 0, 0] * d0, A[s, 0, 1, 0] * d0
            L01, L11 = fma(-L00, D01, A[s, 0, 0, 1]) * d1, fma(-L10, D01, A[s, 0, 1, 1]) * d1
            A[s, 0, 0, 0], A[s, 0, 0, 1], A[s, 0, 1, 0], A[s, 0, 1, 1] = L00, L01, L10, L11
            D00, D01 = fma(-L00, C00, A[s, 1, 0, 0]), fma(-L00, C01, A[s, 1, 0, 1])
            D10, D11 = fma(-L10, C00, A[s, 1, 1, 0]), fma(-L10, C01, A[s, 1, 1, 1])
            D00, D01 = fma(-L01, C10, D00), fma(-L01, C11, D01)
            D10, D11 = fma(-L11, C10, D10), fma(-L11, C11, D11)


@inner
def solve_pairs(A, pivots, x):
    """Overwrite x (2 T) with the solution for factors A of `factor_pairs`."""
    T = A.shape[0]
    p = q = x[0] * 0
    for t in range(T):
        a, b = x[2 * t], x[2 * t + 1]
        if t > 0:  # q is later than p
            a = fma(-A[t, 0, 0, 1], q, fma(-A[t, 0, 0, 0], p, a))
            b = fma(-A[t, 0, 1, 1], q, fma(-A[t, 0, 1, 0], p, b))
        exchange = pivots[t, 0] > 0
        p, b = select(exchange, b, a), select(exchange, a, b)
        q = fma(-A[t, 1, 1, 0], p, b)
        x[2 * t], x[2 * t + 1] = p, q
    for t in range(T - 1, -1, -1):
        a, b = x[2 * t], x[2 * t + 1]
        if t < T - 1:  # p is later than q
            a = fma(-A[t, 2, 0, 0], p, fma(-A[t, 2, 0, 1], q, a))
            b = fma(-A[t, 2, 1, 0], p, fma(-A[t, 2, 1, 1], q, b))
        q = b * A[t, 1, 1, 1]
        p = fma(-A[t, 1, 0, 1], q, a) * A[t, 1, 0, 0]
        x[2 * t], x[2 * t + 1] = p, q
