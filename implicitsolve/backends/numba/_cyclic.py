# pyright: basic
# Numba infers the types of kernels.
"""Cyclic reduction of block tridiagonal matrices: every second block row is eliminated, all of them at once.

A level eliminates the rows stride, 3 stride, 5 stride, ... and leaves the multiples of 2 stride. Row t of F keeps what
the level that eliminated t found: the block left of the diagonal, the LU of the diagonal block, the block right of it.
The rows that stay keep, in P, their multipliers for the rows eliminated on their left and right.
"""

from __future__ import annotations

import numpy as np

from implicitsolve.backends.numba import _elimination
from implicitsolve.backends.numba._jit import borrowed, fma, inner, kernel, magnitude
from implicitsolve.backends.numba._substitution import solve_adjoint_many_one, solve_many_one, subtract, subtract_row


@kernel
def factor_rows(F, pivots, stride, first, count, start, stop, size, bad, largest):
    """Factor the diagonal blocks of rows first, first + stride, ... (`count` in each system), numbers start to stop.

    `bad` and `largest`, flat as the numbers, take whether a block is singular and the largest magnitude in its row.
    """
    F, pivots = borrowed(F), borrowed(pivots)
    k = len(size) if len(size) > 0 else F.shape[3]
    reach = np.empty(1, np.int32)
    for i in range(start, stop):
        b = i // count
        t = first + (i - b * count) * stride
        a = abs(F[b, t, 1, 0, 0])
        for j in range(3):
            for r in range(k):
                for c in range(k):
                    a = max(a, magnitude(F[b, t, j, r, c]))
        largest[i] = a
        row = F[b, t : t + 1]
        bad[i] = _elimination.factor_one(row, row, pivots[b, t : t + 1], reach, 1, size, False)[0] >= 0


@kernel
def update_rows(F, P, pivots, stride, count, start, stop, size, largest):
    """Eliminate the neighbours from rows 0, 2 stride, ..., `count` in each system; P (B, count, 2, k, k)."""
    F, P, pivots = borrowed(F), borrowed(P), borrowed(pivots)
    T, k = F.shape[1], len(size) if len(size) > 0 else F.shape[3]
    for i in range(start, stop):
        b = i // count
        e = i - b * count
        t = 2 * stride * e
        a = abs(F[b, t, 1, 0, 0]) * 0
        for side in range(2):
            s = t - stride if side == 0 else t + stride
            j = 2 * side  # the block that couples to row s; its own block 2 - j couples back
            if not 0 <= s < T:
                continue
            for r in range(k):
                for c in range(k):
                    P[b, e, side, r, c] = F[b, t, j, r, c]
            _divide(P[b, e, side], F[b, s, 1], pivots[b, s], k)
            for r in range(k):
                for c in range(k):
                    a = max(a, magnitude(P[b, e, side, r, c]))
                    v, w = F[b, t, 1, r, c], F[b, t, j, r, c] * 0
                    for q in range(k):
                        v = fma(-P[b, e, side, r, q], F[b, s, 2 - j, q, c], v)
                        w = fma(-P[b, e, side, r, q], F[b, s, j, q, c], w)
                    F[b, t, 1, r, c] = v
                    F[b, t, j, r, c] = w
        largest[i] = a


@inner
def _divide(X, D, pivots, k):
    """``X = X D^-1`` for the LU of D."""
    for r in range(k):
        for c in range(k):
            v = X[r, c] * D[c, c]
            X[r, c] = v
            for q in range(c + 1, k):
                X[r, q] = fma(-v, D[c, q], X[r, q])
        for c in range(k - 1, 0, -1):
            v = X[r, c]
            for q in range(c):
                X[r, q] = fma(-v, D[c, q], X[r, q])
        for c in range(k - 1, -1, -1):
            p = pivots[c]
            X[r, c], X[r, p] = X[r, p], X[r, c]


@kernel
def reduce_rows(P, stride, start, stop, x):
    """Subtract from the rows that stay what belongs to their neighbours; x (B, T k, K)."""
    P, x = borrowed(P), borrowed(x)
    count, k = P.shape[1], P.shape[3]
    T = x.shape[1] // k
    for i in range(start, stop):
        b = i // count
        e = i - b * count
        t = 2 * stride * e
        for side in range(2):
            s = t - stride if side == 0 else t + stride
            if 0 <= s < T:
                for r in range(k):
                    subtract_row(x[b], t * k + r, P[b, e, side, r], s * k)


@kernel
def solve_rows(F, pivots, stride, first, count, start, stop, x):
    """Solve for the eliminated rows when those that stayed are known."""
    F, pivots, x = borrowed(F), borrowed(pivots), borrowed(x)
    T, k = F.shape[1], F.shape[3]
    reach = np.zeros(1, np.int32)
    for i in range(start, stop):
        b = i // count
        t = first + (i - b * count) * stride
        for side in range(2):
            s = t - first if side == 0 else t + first
            if first > 0 and s < T:
                for r in range(k):
                    subtract_row(x[b], t * k + r, F[b, t, 2 * side, r], s * k)
        solve_many_one(F[b, t : t + 1], pivots[b, t : t + 1], reach, 1, x[b, t * k : t * k + k])


@kernel
def solve_rows_adjoint(F, pivots, stride, first, count, start, stop, x):
    """Divide the eliminated rows by the adjoints of their diagonal blocks."""
    F, pivots, x = borrowed(F), borrowed(pivots), borrowed(x)
    k = F.shape[3]
    reach = np.zeros(1, np.int32)
    for i in range(start, stop):
        b = i // count
        t = first + (i - b * count) * stride
        solve_adjoint_many_one(F[b, t : t + 1], pivots[b, t : t + 1], reach, 1, x[b, t * k : t * k + k])


@kernel
def reduce_rows_adjoint(F, stride, count, start, stop, x):
    """Subtract from the rows that stay the adjoint couplings of their neighbours."""
    F, x = borrowed(F), borrowed(x)
    T, k = F.shape[1], F.shape[3]
    for i in range(start, stop):
        b = i // count
        t = 2 * stride * (i - b * count)
        for side in range(2):
            s = t - stride if side == 0 else t + stride
            if 0 <= s < T:
                for r in range(k):
                    for c in range(k):
                        subtract(x[b], t * k + c, np.conj(F[b, s, 2 - 2 * side, r, c]), s * k + r)


@kernel
def expand_rows_adjoint(P, stride, count, start, stop, x):
    """Subtract from the eliminated rows the adjoint multipliers of the rows that stayed."""
    P, x = borrowed(P), borrowed(x)
    kept, k = P.shape[1], P.shape[3]
    for i in range(start, stop):
        b = i // count
        e = i - b * count  # row (2 e + 1) stride lies between the kept rows e and e + 1
        s = (2 * e + 1) * stride
        for side in range(2):
            kept_row = e if side == 1 else e + 1
            if kept_row < kept:
                t = 2 * kept_row * stride
                for r in range(k):
                    for c in range(k):
                        subtract(x[b], s * k + c, np.conj(P[b, kept_row, side, r, c]), t * k + r)
