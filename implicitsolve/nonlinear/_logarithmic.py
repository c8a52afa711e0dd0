"""Logarithmic: the solution of a system in the logarithms of its positive unknowns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from implicitsolve._typing import Array, HostArray
from implicitsolve.linearize._difference_product import Box
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._jacobian import Scales
from implicitsolve.nonlinear._other_variables import OtherVariables, is_plain
from implicitsolve.nonlinear._state import Solution, SolveContext
from implicitsolve.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Logarithmic(OtherVariables):
    """A method for y = log(x), for unknowns whose lower bound is zero: steps multiply them, and none reaches zero.

    Where F has quotients, powers or logarithms of them, as chemical equilibria have, it is nearly linear in y, and the
    error of x is relative to each unknown, however small. Other unknowns are taken as they are.
    """

    words: ClassVar[str] = "logarithms"

    @staticmethod
    def suits(context: SolveContext, x0: Array) -> bool:
        """Whether some unknowns have the lower bound zero, all of them start above, and the problem is plain."""
        box = context.evaluator.box
        if box is None or not is_plain(context, x0):
            return False
        positive = box.lower == 0
        return bool(positive.any() and (x0[positive] > 0).all())

    def variables(self, evaluator: Evaluator, start: Solution) -> Logarithms:
        box: Any = evaluator.box
        return Logarithms(evaluator.problem, evaluator.unflatten(box.lower == 0), box)


@dataclass(frozen=True, eq=False)
class Logarithms:
    """A problem in logarithms of those unknowns that are marked."""

    whole: Problem
    positive: HostArray
    box: Box
    precision: ClassVar[float] = (
        32.0  # size of logarithms, for which their errors, of x relative to itself, are as small
    )

    def problem(self, structure: Any) -> Problem:
        """The problem; its functions are those of the whole, by the chain rule."""
        whole, times, box, shape = self.whole, self.factors, self.box, self.positive.shape
        jvp, vjp, jac = whole.jvp, whole.vjp, whole.jac
        with np.errstate(divide="ignore", invalid="ignore"):
            sides = tuple(self.of(side.reshape(shape)) for side in (box.lower, box.upper))
        return Problem(
            lambda y: whole.residual(self.back(y)),
            jvp=None if jvp is None else lambda y, v: jvp(self.back(y), times(y) * v),
            vjp=None if vjp is None else lambda y, w: times(y) * vjp(self.back(y), w),
            jac=None if jac is None else lambda y: self._jacobian(y, jac(self.back(y)), "jac"),
            linearize=whole.linearize and self._linearize,
            structure=structure,
            batch_ndim=whole.batch_ndim,
            rejects=whole.rejects,
            bounds=None if np.isinf(sides).all() else sides,
            name=whole.name,
        )

    def of(self, x: HostArray) -> HostArray:
        """Logarithms of x; the numbers themselves elsewhere."""
        with np.errstate(divide="ignore"):
            return np.where(self.positive, np.log(np.where(self.positive, x, 1.0)), x)

    def back(self, y: HostArray) -> HostArray:
        """The inverse of `of`, within the range of the dtype."""
        largest = 0.98 * math.log(float(np.finfo(y.dtype).max))
        return np.where(self.positive, np.exp(np.clip(y, -largest, largest)), y)

    def error(self, y: HostArray, error: HostArray) -> HostArray:
        """That of x relative to each unknown, by that of y relative to y."""
        with np.errstate(invalid="ignore"):
            return error * np.maximum(np.abs(y).max(axis=1), 1.0)

    def factors(self, y: HostArray) -> HostArray:
        """Derivatives of `back`."""
        return np.where(self.positive, self.back(y), 1.0)

    def _jacobian(self, y: HostArray, J: object, name: str) -> object:
        return Scales(self.whole, self.factors(y), np.ones_like(y))._jacobian(J, name)

    def _linearize(self, y: HostArray) -> tuple[HostArray, Any]:
        F, J = self.whole.linearize(self.back(y))  # type: ignore[misc]
        return F, self._jacobian(y, J, "linearize")
