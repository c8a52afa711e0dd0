"""Approximate inverse of a block-tridiagonal matrix from the diagonals of its blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from implicitsolve._namespace import array_namespace, gather
from implicitsolve._typing import Array, Indices
from implicitsolve.operators._base import LinearOperator

LEAST_PIVOT = 0.1  # of a matrix I - A with A near a contraction; smaller ones would blow up what they were to damp


@dataclass(frozen=True, eq=False)
class ScalarTridiagonal:
    """Inverse of k independent tridiagonal matrices for each system, (B, T, k) or (T, k) each, by A = L D U.

    ``y[t] = b[t] - below[t] y[t-1]``, ``z = y / D`` and ``x[t] = z[t] - above[t] x[t+1]``. Pivots are kept away from
    zero, so that the inverse is finite whatever the entries; there is no pivoting. A product takes 2 T steps over
    rows of all systems, and no matrix product.
    """

    below: Array
    scale: Array  # 1 / D
    above: Array

    @classmethod
    def of(cls, lower: Array, main: Array, upper: Array) -> ScalarTridiagonal:
        """Factorize I-like matrices; ``lower[t]`` multiplies x[t-1], ``upper[t]`` x[t+1]."""
        xp = array_namespace(main)
        below, scale, above = (xp.zeros_like(main) for _ in range(3))
        with np.errstate(all="ignore"):
            for t in range(main.shape[-2]):
                pivot = main[..., t, :]
                if t:
                    below[..., t, :] = lower[..., t, :] * scale[..., t - 1, :]
                    pivot = pivot - below[..., t, :] * upper[..., t - 1, :]
                sign = xp.where(pivot < 0, -1.0, 1.0)
                size = xp.where(xp.isfinite(pivot), xp.maximum(xp.abs(pivot), LEAST_PIVOT), 1.0)
                scale[..., t, :] = xp.astype(sign / size, main.dtype)
            above[..., :-1, :] = upper[..., :-1, :] * scale[..., :-1, :]
            below, above = (xp.where(xp.isfinite(x), x, xp.zeros_like(x)) for x in (below, above))
        return cls(below, scale, above)

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
        for t in range(1, T):
            x[..., t, :] -= below[..., t, :] * x[..., t - 1, :]
        x *= self.scale
        for t in range(T - 2, -1, -1):
            x[..., t, :] -= above[..., t, :] * x[..., t + 1, :]
        return x


def _shifted(x: Array, by: int) -> Array:
    """Row t is row t - by of x."""
    return array_namespace(x).roll(x, by, axis=-2)
