"""`scalar_tridiagonal`: many tridiagonal matrices near the identity, by A = L D U: array-API reference."""

from __future__ import annotations

import numpy as np

from implicitsolve._arrays.namespace import array_namespace
from implicitsolve._typing import Array, ArrayT

LEAST_PIVOT = 0.1  # of a matrix I - A with A near a contraction; smaller ones would blow up what they were to damp
LARGEST_MULTIPLIER = 1.0  # multiplier: larger ones would grow along the chain without bound


class ScalarTridiagonal:
    """k independent tridiagonal matrices for each system, (..., T, k); ``lower[t]`` multiplies x[t-1]."""

    @staticmethod
    def factor(lower: Array, main: Array, upper: Array) -> tuple[Array, Array, Array]:
        """Return the multipliers below, 1 / D, and the multipliers above.

        There is no pivoting: pivots are kept away from zero and multipliers at most 1, and what is not finite counts as
        a pivot of 1 and a multiplier of 0.
        """
        xp = array_namespace(main)
        below, scale = xp.zeros_like(main), xp.zeros_like(main)
        with np.errstate(all="ignore"):
            for t in range(main.shape[-2]):
                pivot = main[..., t, :]
                if t:
                    below[..., t, :] = _moderate(lower[..., t, :] * scale[..., t - 1, :])
                    pivot = pivot - below[..., t, :] * upper[..., t - 1, :]
                is_usable = xp.isfinite(pivot) & (xp.abs(pivot) >= LEAST_PIVOT)
                scale[..., t, :] = 1.0 / xp.where(is_usable, pivot, _kept_away(pivot))
            above = _moderate(upper * scale)
        return below, scale, above

    @staticmethod
    def solve(b: ArrayT, below: ArrayT, scale: ArrayT, above: ArrayT) -> ArrayT:
        """Return A^-1 b: ``y[t] = b[t] - below[t] y[t-1]``, and back ``x[t] = y[t] scale[t] - above[t] x[t+1]``."""
        xp = array_namespace(b)
        x, T = xp.asarray(b, copy=True), b.shape[-2]
        with np.errstate(all="ignore"):
            for t in range(1, T):
                x[..., t, :] -= below[..., t, :] * x[..., t - 1, :]
            x *= scale
            for t in range(T - 2, -1, -1):
                x[..., t, :] -= above[..., t, :] * x[..., t + 1, :]
        return x


def _kept_away(pivot: Array) -> Array:
    xp = array_namespace(pivot)
    least = xp.full_like(pivot, LEAST_PIVOT)
    return xp.where(xp.isfinite(pivot), xp.where(pivot < 0, -least, least), xp.ones_like(pivot))


def _moderate(x: Array) -> Array:
    """Multipliers no larger than they may be, 0 where they are not finite."""
    xp = array_namespace(x)
    return xp.clip(xp.where(xp.isfinite(x), x, xp.zeros_like(x)), -LARGEST_MULTIPLIER, LARGEST_MULTIPLIER)
