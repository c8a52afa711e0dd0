"""Approximate inverse of a block-tridiagonal matrix from the diagonals of its blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from implicitsolve._namespace import array_namespace, gather
from implicitsolve._typing import Array, Indices
from implicitsolve.kernels import scalar_tridiagonal
from implicitsolve.operators._base import LinearOperator


@dataclass(frozen=True, eq=False)
class ScalarTridiagonal:
    """Inverse of k independent tridiagonal matrices for each system, (B, T, k) or (T, k) each, by A = L D U.

    Of moderate size whatever the entries: see `kernels.scalar_tridiagonal`. A product takes 2 T steps over rows of all
    systems, and no matrix product.
    """

    below: Array
    scale: Array  # 1 / D
    above: Array

    @classmethod
    def of(cls, lower: Array, main: Array, upper: Array) -> ScalarTridiagonal:
        """Factorize I-like matrices; ``lower[t]`` multiplies x[t-1], ``upper[t]`` x[t+1]."""
        return cls(*_kernel(main).factor(lower, main, upper))

    def operator(self) -> LinearOperator:
        """The inverse as an operator on states."""
        shape, solve = tuple(self.scale.shape), _kernel(self.scale).solve
        return LinearOperator(
            lambda b: solve(b, self.below, self.scale, self.above),
            lambda b: solve(b, self._below_adjoint, self.scale, self._above_adjoint),
            in_shape=shape[-2:],
            batch_shape=shape[:-2],
            dtype=self.scale.dtype,
            take=(lambda indices: self.take(indices).operator()) if len(shape) == 3 else None,
        )

    @cached_property
    def _below_adjoint(self) -> Array:
        return _shifted(self.above, 1)

    @cached_property
    def _above_adjoint(self) -> Array:
        return _shifted(self.below, -1)

    def take(self, indices: Indices) -> ScalarTridiagonal:
        """The part that belongs to some systems."""
        parts = {name: gather(getattr(self, name), indices) for name in ("below", "scale", "above")}
        return replace(self, **parts)


def _kernel(like: Array) -> Any:
    return scalar_tridiagonal.select(like, size=like.shape[-1])


def _shifted(x: Array, by: int) -> Array:
    """Row t is row t - by of x."""
    return array_namespace(x).roll(x, by, axis=-2)
