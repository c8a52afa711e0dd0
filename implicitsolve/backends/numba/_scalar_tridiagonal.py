# pyright: basic
# Numba infers the types of kernels.
"""Scalar tridiagonal systems: one after the other, and many chains side by side.

Row t of the factors holds (multiplier, reciprocal of the pivot, coupling to the next row, times the reciprocal). The
solves need no division, and no rows change places.

The kernel `scalar_tridiagonal` goes through rows of k numbers, in one pass down and one up.
"""

from __future__ import annotations

import math

import numpy as np

from implicitsolve import kernels
from implicitsolve.backends.numba._jit import fma, inner, kernel, magnitude, supports_real
from implicitsolve.backends.numba._views import larger, number, smaller, view
from implicitsolve.kernels._scalar_tridiagonal import LARGEST_MULTIPLIER, LEAST_PIVOT


@kernel
def factor(A, F, singular, growth):
    """Factor the rows (lower, diagonal, upper) of `A` (B, T, 3) into F, which may be A."""
    A, F, singular, growth = view(A), view(F), view(singular), view(growth)
    for b in range(A.shape[0]):
        singular[b], growth[b] = _factor_one(A[b], F[b])


@inner
def _factor_one(A, F):
    T = A.shape[0]
    d = above = number(A, 0)  # reciprocal of the last pivot, coupling of its row to the next
    scale = largest = abs(d)
    for t in range(T):
        below = A[t, 0] if t > 0 else number(A, 0)
        ratio = below * d
        pivot = fma(-ratio, above, A[t, 1])
        size = magnitude(pivot)
        if not 0 < size < np.inf:
            return t, np.inf
        above = A[t, 2] if t < T - 1 else number(A, 0)
        scale = larger(larger(scale, magnitude(A[t, 1])), larger(magnitude(below), magnitude(above)))
        largest = larger(largest, size)
        d = number(A, 1) / pivot
        F[t, 0], F[t, 1], F[t, 2] = ratio, d, above * d
        if not magnitude(d) < np.inf:
            return t, np.inf
    return -1, largest / scale


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
    y = number(F, 0)
    for t in range(T):
        y = fma(-_entry(F, larger(t - s, 0), 2 * s, adjoint), y, x[t])
        x[t] = y * _entry(F, t, 1, adjoint)
    y = number(F, 0)
    for t in range(T - 1, -1, -1):
        y = fma(-_entry(F, smaller(t + s, T - 1), 2 - 2 * s, adjoint), y, x[t])
        x[t] = y


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
    zero, one, least, largest = of(0), of(1), of(LEAST_PIVOT), of(LARGEST_MULTIPLIER)
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
