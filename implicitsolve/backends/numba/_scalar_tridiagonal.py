# pyright: basic
# Numba infers the types of kernels.
"""Scalar tridiagonal systems: one by two eliminations that meet in the middle, and many chains side by side.

A chain of divisions is limited by the time of one division: two independent chains take half of it. Row t of the
factors holds (multiplier, reciprocal of the pivot, coupling to the neighbour nearer the middle, times the reciprocal);
the middle row holds its two multipliers around the reciprocal. The solves need no division, and no rows change places.

The kernel `scalar_tridiagonal` goes through rows of k numbers, in one pass down and one up.
"""

from __future__ import annotations

import math

import numpy as np

from implicitsolve import kernels
from implicitsolve.backends.numba._jit import fma, inner, kernel, magnitude, reciprocal, supports_real
from implicitsolve.backends.numba._views import larger, number, smaller, view
from implicitsolve.kernels._scalar_tridiagonal import LARGEST, LEAST_PIVOT


@kernel
def factor(A, F, singular, growth):
    """Factor the rows (lower, diagonal, upper) of `A` (B, T, 3) into F, which may be A."""
    A, F, singular, growth = view(A), view(F), view(singular), view(growth)
    for b in range(A.shape[0]):
        singular[b], growth[b] = _factor_one(A[b], F[b])


@inner
def _factor_one(A, F):
    T = A.shape[0]
    m = T // 2
    n = T - 1 - m  # rows below the middle; m above
    zero = number(A, 0)
    d = e = zero  # reciprocals of the last pivots
    right = left = zero  # couplings of those rows to the next
    scale = other = largest = largest_below = abs(zero)
    for i in range(m):
        a = A[i, 0] if i > 0 else zero
        ratio = a * d
        pivot = fma(-ratio, right, A[i, 1])
        d = reciprocal(pivot)
        scale = larger(scale, larger(magnitude(A[i, 1]), magnitude(a)))
        right = A[i, 2]
        scale = larger(scale, magnitude(right))
        largest = larger(largest, magnitude(pivot))
        F[i, 0], F[i, 1], F[i, 2] = ratio, d, right * d
        if i < n:
            j = T - 1 - i
            c = A[j, 2] if i > 0 else zero
            ratio = c * e
            pivot = fma(-ratio, left, A[j, 1])
            e = reciprocal(pivot)
            other = larger(other, larger(magnitude(A[j, 1]), magnitude(c)))
            left = A[j, 0]
            other = larger(other, magnitude(left))
            largest_below = larger(largest_below, magnitude(pivot))
            F[j, 0], F[j, 1], F[j, 2] = ratio, e, left * e
    a = A[m, 0] if m > 0 else zero
    c = A[m, 2] if n > 0 else zero
    scale = larger(larger(scale, other), larger(magnitude(A[m, 1]), larger(magnitude(a), magnitude(c))))
    above, below = a * d, c * e
    pivot = fma(-below, left, fma(-above, right, A[m, 1]))
    F[m, 0], F[m, 1], F[m, 2] = above, reciprocal(pivot), below
    size = magnitude(pivot)
    largest = larger(larger(largest, largest_below), size)
    if 0 < size < np.inf and largest < np.inf and magnitude(F[m, 1]) < np.inf:
        return -1, largest / scale
    for t in range(T):
        if not magnitude(F[t, 1]) < np.inf:
            return t, np.inf
    return m, np.inf


@kernel
def solve(F, x, adjoint):
    """Overwrite x (B, T) with the solutions, for the adjoint matrices where `adjoint` is (0,) and not ()."""
    F, x = view(F), view(x)
    for b in range(x.shape[0]):
        _solve_one(F[b], x[b], adjoint)


@inner
def _entry(F, i, c, adjoint):
    return np.conj(F[i, c]) if len(adjoint) > 0 else F[i, c]


@inner
def _solve_one(F, x, adjoint):
    T, s = F.shape[0], len(adjoint)  # in the adjoint the couplings come first, each from the row before
    m = T // 2
    n = T - 1 - m
    first, last = 2 * s, 2 - 2 * s
    y = z = number(F, 0)
    for i in range(n):
        j = T - 1 - i
        y = fma(-_entry(F, larger(i - s, 0), first, adjoint), y, x[i])
        z = fma(-_entry(F, smaller(j + s, T - 1), first, adjoint), z, x[j])
        x[i] = y * _entry(F, i, 1, adjoint)
        x[j] = z * _entry(F, j, 1, adjoint)
    for i in range(n, m):
        y = fma(-_entry(F, larger(i - s, 0), first, adjoint), y, x[i])
        x[i] = y * _entry(F, i, 1, adjoint)
    z = fma(-_entry(F, smaller(m + s, T - 1), 2, adjoint), z, x[m])
    y = fma(-_entry(F, larger(m - s, 0), first, adjoint), y, z) * _entry(F, m, 1, adjoint)
    x[m] = z = y
    for i in range(1, n + 1):
        y = fma(-_entry(F, m - i + s, last, adjoint), y, x[m - i])
        z = fma(-_entry(F, m + i - s, 2 if i == s else last, adjoint), z, x[m + i])
        x[m - i] = y
        x[m + i] = z
    for i in range(n + 1, m + 1):
        y = fma(-_entry(F, m - i + s, last, adjoint), y, x[m - i])
        x[m - i] = y


# Chains side by side


class ScalarTridiagonal:
    @staticmethod
    def factor(lower, main, upper):
        below, scale, above = (np.empty(main.shape, main.dtype) for _ in range(3))
        _factor_chains(*(_systems(array) for array in (lower, main, upper, below, scale, above)))
        return below, scale, above

    @staticmethod
    def solve(b, below, scale, above):
        x = np.empty(b.shape, b.dtype)
        _solve_chains(*(_systems(array) for array in (b, below, scale, above, x)))
        return x


def _systems(array):
    """(B, T, k) for any number of axes in front."""
    return array.reshape((math.prod(array.shape[:-2]), *array.shape[-2:]))


@kernel
def _factor_chains(lower, main, upper, below, scale, above):
    of = main.dtype.type
    zero, one, least, largest = of(0), of(1), of(LEAST_PIVOT), of(LARGEST)
    for b in range(main.shape[0]):
        for t in range(main.shape[1]):
            for i in range(main.shape[2]):
                pivot = main[b, t, i]
                multiplier = zero
                if t:
                    multiplier = lower[b, t, i] * scale[b, t - 1, i]
                    multiplier = min(max(multiplier, -largest), largest) if np.isfinite(multiplier) else zero
                    pivot -= multiplier * upper[b, t - 1, i]
                if not np.isfinite(pivot):
                    pivot = one
                elif abs(pivot) < least:
                    pivot = -least if pivot < zero else least
                inverse = one / pivot
                multiplier_above = upper[b, t, i] * inverse
                below[b, t, i], scale[b, t, i] = multiplier, inverse
                finite = np.isfinite(multiplier_above)
                above[b, t, i] = min(max(multiplier_above, -largest), largest) if finite else zero


@kernel
def _solve_chains(b, below, scale, above, x):
    systems, T, k = b.shape
    for s in range(systems if T else 0):
        for i in range(k):
            x[s, 0, i] = b[s, 0, i]
        for t in range(1, T):
            for i in range(k):
                x[s, t, i] = b[s, t, i] - below[s, t, i] * x[s, t - 1, i]
        for i in range(k):
            x[s, T - 1, i] *= scale[s, T - 1, i]
        for t in range(T - 2, -1, -1):
            for i in range(k):
                x[s, t, i] = x[s, t, i] * scale[s, t, i] - above[s, t, i] * x[s, t + 1, i]


kernels.scalar_tridiagonal.implement("numba", ScalarTridiagonal, supports_real)
