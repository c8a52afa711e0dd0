"""Approximate inverse of a block-tridiagonal matrix from the diagonals of its blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from implicitsolve._namespace import array_namespace, gather
from implicitsolve._typing import Array, Indices
from implicitsolve.operators._base import LinearOperator

LEAST_PIVOT = 0.1  # of a matrix I - A with A near a contraction; smaller ones would blow up what they were to damp
LARGEST = 1.0  # multiplier: larger ones would grow along the chain without bound


@dataclass(frozen=True, eq=False)
class ScalarTridiagonal:
    """Inverse of k independent tridiagonal matrices for each system, (B, T, k) or (T, k) each, by A = L D U.

    ``y[t] = b[t] - below[t] y[t-1]``, ``z = y / D`` and ``x[t] = z[t] - above[t] x[t+1]``. There is no pivoting:
    pivots are kept away from zero and the multipliers `below` and `above` at most 1, so that the inverse stays of
    moderate size whatever the entries. A product takes 2 T steps over rows of all systems, and no matrix product.
    """

    below: Array
    scale: Array  # 1 / D
    above: Array

    @classmethod
    def of(cls, lower: Array, main: Array, upper: Array) -> ScalarTridiagonal:
        """Factorize I-like matrices; ``lower[t]`` multiplies x[t-1], ``upper[t]`` x[t+1]."""
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
            above = upper * scale
        return cls(below, scale, _moderate(above))

    def operator(self) -> LinearOperator:
        """The inverse as an operator on states."""
        shape = tuple(self.scale.shape)
        return LinearOperator(
            lambda b: self._solve(b, self.below, self.above),
            lambda b: self._solve(b, _shifted(self.above, 1), _shifted(self.below, -1)),
            in_shape=shape[-2:],
            batch_shape=shape[:-2],
            dtype=self.scale.dtype,
            take=(lambda indices: self.take(indices).operator()) if len(shape) == 3 else None,
        )

    def take(self, indices: Indices) -> ScalarTridiagonal:
        """The part that belongs to some systems."""
        parts = {name: gather(getattr(self, name), indices) for name in ("below", "scale", "above")}
        return replace(self, **parts)

    def _solve(self, b: Array, below: Array, above: Array) -> Array:
        xp = array_namespace(b)
        x, T = xp.asarray(b, copy=True), b.shape[-2]
        with np.errstate(all="ignore"):
            for t in range(1, T):
                x[..., t, :] -= below[..., t, :] * x[..., t - 1, :]
            x *= self.scale
            for t in range(T - 2, -1, -1):
                x[..., t, :] -= above[..., t, :] * x[..., t + 1, :]
        return x


def _kept_away(pivot: Array) -> Array:
    """What stands in place of a pivot that is too small or not finite."""
    xp = array_namespace(pivot)
    least = xp.full_like(pivot, LEAST_PIVOT)
    return xp.where(xp.isfinite(pivot), xp.where(pivot < 0, -least, least), xp.ones_like(pivot))


def _moderate(x: Array) -> Array:
    """Multipliers no larger than they may be, 0 where they are not finite."""
    xp = array_namespace(x)
    return xp.clip(xp.where(xp.isfinite(x), x, xp.zeros_like(x)), -LARGEST, LARGEST)


def _shifted(x: Array, by: int) -> Array:
    """Row t is row t - by of x."""
    return array_namespace(x).roll(x, by, axis=-2)
