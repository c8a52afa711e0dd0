"""Derivatives of F with respect to its parameters, by central differences, where a problem gives F(x, theta) alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from implicitsolve._arrays.namespace import numpy_namespace
from implicitsolve._parameters import Parametrized
from implicitsolve._record import Counts
from implicitsolve._typing import Array, HostArray
from implicitsolve.derivatives._accuracy import COUNT, RATIO, TRUST
from implicitsolve.linearize._checks import checked_array
from implicitsolve.problem import Problem
from implicitsolve.result import LinearResult
from implicitsolve.status import Status


def with_parameter_differences(problem: Problem, x: Array, *, needs_adjoint: bool) -> Problem:
    """The problem with all that parameter derivatives need: products by differences, and a J with entries."""
    if not isinstance(problem.residual, Parametrized) or not isinstance(x, np.ndarray):
        return problem
    differences = ParameterDifferences(problem.residual, x)
    jvp, vjp = problem.parameter_jvp or differences.along, problem.parameter_vjp or differences.pull
    ways = problem.vjp, problem.linearize, problem.jac, problem.structure, problem.halves
    seeks = needs_adjoint and all(way is None for way in ways)
    structure = "detect" if seeks else problem.structure
    return replace(problem, parameter_jvp=jvp, parameter_vjp=vjp, structure=structure)


def with_accuracy(product: Any, linear: LinearResult, counts: Counts) -> tuple[LinearResult, Counts]:
    """The result, INACCURATE where its parameter differences are inaccurate, with their calls added to its own."""
    differences = getattr(product, "__self__", None)
    if not isinstance(differences, ParameterDifferences):
        return linear, counts
    wrong = (np.asarray(linear.status) == Status.CONVERGED) & (differences.error > differences.loose)
    status = np.where(wrong, int(Status.INACCURATE), linear.status) if wrong.ndim else Status.INACCURATE
    linear = replace(linear, status=status) if wrong.any() else linear
    return linear, counts + Counts(residuals=differences.evaluations)


class ParameterDifferences:
    """Differences of F(x, theta): two evaluations for each direction, and two more for each parameter.

    They are accurate to about eps^(2/3). Parameters move by multiples of their spacing in the precision of x, to which
    F may round; what a direction loses by that is measured over a longer length. Lengths are those over which F agrees
    best with an eighth of them; entries within a factor of eight share one. `error` is the largest distance, relative.
    """

    def __init__(self, residual: Parametrized, like: HostArray) -> None:
        self.residual, self.precision = residual, float(np.finfo(like.dtype).eps)
        self.loose, self.error, self.evaluations = self.precision**0.25, 0.0, 0

    def along(self, x: HostArray, tangents: Mapping[str, Array]) -> HostArray:
        """(dF/dtheta) dtheta."""
        parts = [self._measure(x, name, np.asarray(d, dtype=float)) for name, d in tangents.items()]
        total = np.asarray(sum((D for D, _, _ in parts), np.zeros_like(x)))
        size, distance = np.linalg.norm(total), sum(distance for _, _, distance in parts)
        self.error = max(self.error, float(distance / size) if size > 0 else 0.0)
        return total

    def pull(self, x: HostArray, w: HostArray, wrt: Collection[str] | None = None) -> dict[str, HostArray]:
        """(dF/dtheta)^H w of all parameters, or of those that are named."""
        gradients: dict[str, HostArray] = {}
        for name in self.residual.values if wrt is None else wrt:
            theta = np.abs(self._value(name))
            size = 2.0 ** np.floor(np.log2(np.where(theta > 0, theta, theta.max(initial=0.0) or 1.0)))
            signed = size * np.random.default_rng(0).choice((-1.0, 1.0), theta.shape)
            kinds, gradients[name] = np.floor(np.log2(size) / np.log2(RATIO)), np.zeros(theta.shape)
            for kind in np.unique(kinds):
                whole, h, _ = self._measure(x, name, np.where(kinds == kind, signed, 0.0))
                for i in (places := np.argwhere(kinds == kind).tolist()):
                    d, here = np.zeros(theta.shape), tuple(i)
                    d[here] = signed[here]
                    D = whole if len(places) == 1 else self._central(x, name, d, h)[0]
                    gradients[name][here] = np.vdot(D, w).real / signed[here]
        return gradients

    def _measure(self, x: HostArray, name: str, d: HostArray) -> tuple[HostArray, float, float]:
        """The derivative along d, the length over which it is most accurate, and its absolute error there."""
        theta, longest = np.abs(self._value(name)), float(np.abs(d).max(initial=0.0))
        best, length, error, distance, mine = np.zeros_like(x), np.inf, np.inf, np.inf, 0.0
        if not 0 < longest < np.inf:
            return best + 0.0 * longest, 1.0, 0.0
        whole, good = theta.max(initial=0.0) or 1.0, self.precision**0.5
        sizes = theta[d != 0].max() or whole, whole
        first, other = 2.0 ** np.floor(np.log2(self.precision ** (1 / 3) * np.array(sizes) / longest))
        at = cache(lambda h: self._central(x, name, d, h))
        for h in dict.fromkeys([*(first * RATIO ** -np.arange(COUNT - 1.0)), other]):
            fine, mine = (best, mine) if h < first and mine == np.inf else self._pair(at, h, shorter=h < first)
            with np.errstate(all="ignore"):
                size, apart = np.linalg.norm(fine), np.linalg.norm(fine - best)
                differs = apart > size * max(self.loose, TRUST * mine)  # longer ones agree over many periods, too
            if (mine < error or differs) and (h <= first or (mine <= good and apart <= TRUST * distance)):
                best, length, error, distance = fine, h, mine, float(mine * size)
            if error <= good:
                break
        if not at(first)[0].any() and not at(other)[0].any():
            error = distance = 0.0
        self.error = max(self.error, error)
        return best, min(length, first) / RATIO, distance

    def _pair(self, at: Any, h: float, *, shorter: bool) -> tuple[HostArray, float]:
        """The derivative over an eighth of the length h, and its error; infinite where rounding hides changes of F."""
        coarse, (fine, lost) = at(h)[0], at(h / RATIO)
        if not fine.any() or lost > self.loose or (coarse[fine == 0] != 0).any():
            return fine, np.inf
        with np.errstate(all="ignore"):
            size = np.linalg.norm(fine)
            error = float(np.linalg.norm(fine - coarse) / size + lost)
            following, gone = at(h / RATIO**2) if shorter else (fine, 1.0)
            if gone <= self.loose:  # a few multiples of a rounding error agree by chance
                after = float(np.linalg.norm(following - fine) / size / RATIO)
                error = max(after, error / RATIO if after * RATIO <= error else error)
        return fine, error

    def _value(self, name: str) -> HostArray:
        value = np.asarray(self.residual.values[name])
        if value.dtype.kind == "c":
            raise TypeError(f"derivatives by the complex parameter {name!r} need `parameter_jvp` and `parameter_vjp`")
        return value.astype(float)

    def _at_value(self, x: HostArray, name: str, theta: HostArray) -> HostArray:
        """A copy of F at x for that value of the parameter."""
        F = self.residual.at({name: theta[()]})(x.copy())
        return np.array(checked_array(F, "residual", numpy_namespace, x.dtype, x.shape))

    def _central(self, x: HostArray, name: str, d: HostArray, h: float) -> tuple[HostArray, float]:
        """The derivative along d over the length h, and the relative part of d that rounding removed."""
        theta, rest, derivative, lost = self._value(name), d, np.zeros_like(x), 1.0
        for _ in range(3):
            with np.errstate(all="ignore"):
                grid = np.spacing(np.abs(theta) + np.abs(h * rest)) * (self.precision / np.finfo(float).eps)
                moved = np.rint(h * rest / grid) * grid
                if not moved.any():
                    break
                self.evaluations += 2
                ahead, behind = [self._at_value(x, name, theta + m) for m in (moved, -moved)]
                derivative += (ahead - behind).reshape(x.shape) / (2 * h)
                rest = rest - moved / h
                lost = float(np.linalg.norm(rest) / np.linalg.norm(d))
            if (np.abs(rest) <= self.precision ** (1 / 3) * np.abs(d)).all():
                break
            h *= 2.0 ** np.floor(np.log2(np.abs(d).max() / np.abs(rest).max()))
        return derivative, lost
