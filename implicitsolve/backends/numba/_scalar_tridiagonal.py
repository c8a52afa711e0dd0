"""Compiled `scalar_tridiagonal`: rows of k numbers at a time, in one pass down and one up."""

# pyright: basic

from __future__ import annotations

import math

import numpy as np

from implicitsolve import kernels
from implicitsolve.backends.numba._jit import kernel, supports_real
from implicitsolve.kernels._scalar_tridiagonal import LARGEST, LEAST_PIVOT


class ScalarTridiagonal:
    """Implements `kernels.scalar_tridiagonal`."""

    @staticmethod
    def factor(lower, main, upper):
        below, scale, above = (np.empty(main.shape, main.dtype) for _ in range(3))
        _factor(*(_systems(array) for array in (lower, main, upper, below, scale, above)))
        return below, scale, above

    @staticmethod
    def solve(b, below, scale, above):
        x = np.empty(b.shape, b.dtype)
        _solve(*(_systems(array) for array in (b, below, scale, above, x)))
        return x


def _systems(array):
    """(B, T, k) for any number of axes in front."""
    return array.reshape((math.prod(array.shape[:-2]), *array.shape[-2:]))


@kernel
def _factor(lower, main, upper, below, scale, above):
    number = main.dtype.type
    zero, one, least, largest = number(0), number(1), number(LEAST_PIVOT), number(LARGEST)
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
def _solve(b, below, scale, above, x):
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
