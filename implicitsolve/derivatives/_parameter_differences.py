"""Derivatives of F by its parameters, by central differences, where a problem gives none but takes its parameters."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from implicitsolve._parameters import Parametrized
from implicitsolve._typing import Array, HostArray
from implicitsolve.problem import Problem

RELATIVE = float(np.finfo(np.float64).eps) ** (1 / 3)  # length over the size of the parameter


def with_parameter_differences(problem: Problem, x: Array, *, needs_adjoint: bool) -> Problem:
    """The problem with what a derivative by its parameters needs: products by differences, and a J with entries."""
    if not isinstance(problem.residual, Parametrized) or not isinstance(x, np.ndarray):
        return problem
    differences = ParameterDifferences(problem.residual)
    jvp, vjp = problem.parameter_jvp or differences.along, problem.parameter_vjp or differences.pulled
    ways = problem.vjp, problem.linearize, problem.jac, problem.structure, problem.halves
    seeks = needs_adjoint and all(way is None for way in ways)
    structure = "detect" if seeks else problem.structure
    return replace(problem, parameter_jvp=jvp, parameter_vjp=vjp, structure=structure)


class ParameterDifferences:
    """Differences of F(x, theta): two evaluations for each direction, accurate to about eps^(2/3) of the derivative.

    A reverse derivative takes two for each number in theta, or in those parameters that are requested.
    """

    def __init__(self, residual: Parametrized) -> None:
        self.residual = residual

    def along(self, x: HostArray, tangents: Mapping[str, Array]) -> HostArray:
        """(dF/dtheta) dtheta."""
        parts = [self._central(x, name, np.asarray(d, dtype=float)) for name, d in tangents.items()]
        return np.asarray(sum(parts, np.zeros_like(x)))

    def pulled(self, x: HostArray, w: HostArray, wrt: Collection[str] | None = None) -> dict[str, HostArray]:
        """(dF/dtheta)^H w of all parameters, or of those that are named."""
        gradients: dict[str, HostArray] = {}
        for name, value in self.residual.values.items():
            if wrt is not None and name not in wrt:
                continue
            shape = np.shape(value)
            directions = np.eye(math.prod(shape)).reshape(-1, *shape)
            entries = [np.vdot(self._central(x, name, d), w) for d in directions]
            gradients[name] = np.real(np.asarray(entries)).reshape(shape)
        return gradients

    def _central(self, x: HostArray, name: str, d: HostArray) -> HostArray:
        theta = np.asarray(self.residual.values[name], dtype=float)
        own = np.abs(np.where(d == 0, 0.0, theta)).max(initial=0.0)
        size, length = own or np.abs(theta).max(initial=0.0) or 1.0, np.abs(d).max(initial=0.0)
        if not length > 0:
            return np.zeros_like(x)
        step = RELATIVE * size / length * d
        sides = [self.residual.at({name: (theta + side * step)[()]})(x.copy()) for side in (1.0, -1.0)]
        ahead, behind = (np.asarray(side, dtype=x.dtype).reshape(x.shape) for side in sides)
        return (ahead - behind) * (length / (2 * RELATIVE * size))
