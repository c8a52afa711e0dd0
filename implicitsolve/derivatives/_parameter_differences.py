"""Derivatives of F by its parameters, by central differences, where a problem gives none but takes its parameters."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from implicitsolve._arrays.namespace import numpy_namespace
from implicitsolve._parameters import Parametrized
from implicitsolve._record import Counts
from implicitsolve._typing import Array, HostArray
from implicitsolve.derivatives._accuracy import COUNT, RATIO
from implicitsolve.linearize._checks import checked_array
from implicitsolve.problem import Problem
from implicitsolve.result import LinearResult
from implicitsolve.status import Status


def with_parameter_differences(problem: Problem, x: Array, *, needs_adjoint: bool) -> Problem:
    """The problem with what a derivative by its parameters needs: products by differences, and a J with entries."""
    if not isinstance(problem.residual, Parametrized) or not isinstance(x, np.ndarray):
        return problem
    differences = ParameterDifferences(problem.residual, x)
    jvp, vjp = problem.parameter_jvp or differences.along, problem.parameter_vjp or differences.pulled
    ways = problem.vjp, problem.linearize, problem.jac, problem.structure, problem.halves
    seeks = needs_adjoint and all(way is None for way in ways)
    structure = "detect" if seeks else problem.structure
    return replace(problem, parameter_jvp=jvp, parameter_vjp=vjp, structure=structure)


def judged(product: Any, linear: LinearResult, counts: Counts) -> tuple[LinearResult, Counts]:
    """The result, INACCURATE where the product that made it took inaccurate differences, and the calls with theirs."""
    differences = getattr(product, "__self__", None)
    if not isinstance(differences, ParameterDifferences):
        return linear, counts
    wrong = (np.asarray(linear.status) == Status.CONVERGED) & (differences.error > differences.loose)
    status = np.where(wrong, int(Status.INACCURATE), linear.status) if wrong.ndim else Status.INACCURATE
    linear = replace(linear, status=status) if wrong.any() else linear
    return linear, counts + Counts(residuals=differences.evaluations)


class ParameterDifferences:
    """Differences of F(x, theta): two evaluations for each direction, and two more for each parameter.

    They are accurate to about eps^(2/3) of the derivative. Lengths are those, of eight, over which F along one
    direction agrees best with a difference of an eighth of the length; `error` is the largest distance to it, relative.
    """

    def __init__(self, residual: Parametrized, like: HostArray) -> None:
        self.residual, self.precision = residual, float(np.finfo(like.dtype).eps)
        self.loose, self.error, self.evaluations = self.precision**0.25, 0.0, 0

    def along(self, x: HostArray, tangents: Mapping[str, Array]) -> HostArray:
        """(dF/dtheta) dtheta."""
        parts = [self._measure(x, name, np.asarray(d, dtype=float))[0] for name, d in tangents.items()]
        return np.asarray(sum(parts, np.zeros_like(x)))

    def pulled(self, x: HostArray, w: HostArray, wrt: Collection[str] | None = None) -> dict[str, HostArray]:
        """(dF/dtheta)^H w of all parameters, or of those that are named."""
        gradients: dict[str, HostArray] = {}
        for name, value in self.residual.values.items():
            if wrt is not None and name not in wrt:
                continue
            shape = np.shape(value)
            size = np.abs(self._value(name))
            signs = np.random.default_rng(0).choice((-1.0, 1.0), shape)
            size = 2.0 ** np.floor(np.log2(np.where(size > 0, size, size.max(initial=0.0) or 1.0)))
            whole, part = self._measure(x, name, signs * size)
            entries = [whole * signs / size] if not shape else []
            entries = entries or [self._central(x, name, d.reshape(shape), part) for d in np.eye(math.prod(shape))]
            gradients[name] = np.real(np.asarray([np.vdot(D, w) for D in entries])).reshape(shape)
        return gradients

    def _measure(self, x: HostArray, name: str, d: HostArray) -> tuple[HostArray, float]:
        """The derivative along d, and the length at which it is most accurate, over the first one."""
        coarse, best, least = self._central(x, name, d, 1.0), (np.zeros_like(x), 1.0), np.inf
        for k in range(1, COUNT):
            fine = self._central(x, name, d, RATIO**-k)
            if coarse.any() and not fine.any():  # F rounds the parameter to fewer digits
                break
            with np.errstate(all="ignore"):
                distance, size = np.linalg.norm(fine - coarse), np.linalg.norm(fine)
                error = float(distance / size) if distance > 0 else float(distance)
                differs = np.linalg.norm(fine - best[0]) > self.loose * size
            if error < least or (differs and error <= self.loose):  # longer ones agree over many periods, too
                best, least = (fine, RATIO**-k), error
            if least <= self.precision**0.5:
                break
            coarse = fine
        self.error = max(self.error, least)
        return best

    def _value(self, name: str) -> HostArray:
        value = np.asarray(self.residual.values[name])
        if value.dtype.kind == "c":
            raise TypeError(f"derivatives by the complex parameter {name!r} need `parameter_jvp` and `parameter_vjp`")
        return value.astype(float)

    def _central(self, x: HostArray, name: str, d: HostArray, part: float) -> HostArray:
        theta = self._value(name)
        own = np.abs(np.where(d == 0, 0.0, theta)).max(initial=0.0)
        size, length = own or np.abs(theta).max(initial=0.0) or 1.0, np.abs(d).max(initial=0.0)
        if not length > 0:
            return np.zeros_like(x)
        relative = 2.0 ** np.floor(np.log2(part * self.precision ** (1 / 3) * size / length))  # theta + h: not rounded
        self.evaluations += 2
        with np.errstate(all="ignore"):
            F = [self.residual.at({name: (theta + h * d)[()]})(x.copy()) for h in (relative, -relative)]
            ahead, behind = (np.asarray(checked_array(f, "residual", numpy_namespace, x.dtype, x.shape)) for f in F)
            return (ahead - behind).reshape(x.shape) / (2 * relative)
