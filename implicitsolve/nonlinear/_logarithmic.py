"""Logarithmic: the solution of a system in the logarithms of its positive unknowns."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.linearize._difference_product import Box
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._jacobian import Scales
from implicitsolve.monitor import mapped
from implicitsolve.nonlinear._plan import label
from implicitsolve.nonlinear._state import NonlinearMethod, Solution, SolveContext, SolveMemory
from implicitsolve.problem import Problem
from implicitsolve.status import Status

SIZE = 32.0  # of logarithms, for which their errors, those of x relative to each unknown, are to be as small


@dataclass(frozen=True, kw_only=True)
class Logarithmic(NonlinearMethod):
    """A method for y = log(x), for unknowns whose lower bound is zero: steps multiply them, and none reaches zero.

    Where F has quotients, powers or logarithms of them, as chemical equilibria have, it is nearly linear in y, and the
    error of x is relative to each unknown, however small. Other unknowns are taken as they are.
    """

    method: NonlinearMethod
    takes_all: bool = True  # whether also what failed is taken for an improvement, if F has become smaller
    keeps_bounds: ClassVar[bool] = True

    @property
    def label(self) -> str:
        """The name in `Retry.method`."""
        return f"{label(self.method)} in logarithms"

    @staticmethod
    def suits(context: SolveContext, x0: Array) -> bool:
        """Whether some unknowns have the lower bound zero, all of them start above, and the problem is plain."""
        evaluator = context.evaluator
        if evaluator.box is None or type(x0) is not np.ndarray or context.scheduler is not None:
            return False
        positive = evaluator.box.lower == 0
        return bool(positive.any() and (x0[positive] > 0).all()) and evaluator.problem.blocks is None

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        whole, memory = context.evaluator, context.memory
        box: Any = whole.box
        structure = whole.problem.structure
        if structure is None and memory.detection is not None and memory.detection.structure is not None:
            structure = memory.detection.structure
        logarithms = Logarithms(whole.problem, whole.unflatten(box.lower == 0))
        like = logarithms.of(whole.unflatten(start.start))
        inner = Evaluator(logarithms.problem(structure, box, whole.shape), like, self.method.rdiff, few=whole.few)
        inner.tally = whole.tally
        first, x = inner.flatten(like), inner.flatten(logarithms.of(whole.unflatten(start.x)))
        stop = context.stop
        if stop.judges_x:
            stop = replace(stop, xtol=stop.error_limit(float(np.finfo(like.dtype).eps)) / SIZE)
        own = SolveMemory(declared=structure)
        watch = mapped(context.monitor, lambda y, F: (logarithms.powers(y), F))
        settings = replace(context, evaluator=inner, stop=stop, monitor=watch, memory=own, previous=SolveMemory())
        fresh = np.zeros_like(start.charged)  # the budget of another system
        found = self.method.solve(replace(settings, share=1.0), replace(start, start=first, x=x, charged=fresh), rows)
        with np.errstate(invalid="ignore"):
            error = found.error * np.maximum(np.abs(found.x).max(axis=1), 1.0)
        x = whole.flatten(logarithms.powers(inner.unflatten(found.x)))
        others: HostArray = np.ones(len(x), dtype=bool)
        others[slice(None) if rows is None else rows] = False
        x[others], error[others] = start.x[others], start.error[others]
        if not self.takes_all:
            found.norm[~others & (found.status != Status.CONVERGED)] = np.inf
        return replace(found, start=start.start, x=x, error=error, charged=start.charged)


@dataclass(frozen=True, eq=False)
class Logarithms:
    """A problem in logarithms of those unknowns that are marked."""

    whole: Problem
    positive: HostArray

    def problem(self, structure: Any, box: Box, shape: tuple[int, ...]) -> Problem:
        """The problem; its functions are those of the whole, by the chain rule."""
        whole, times = self.whole, self.factors
        jvp, vjp, jac = whole.jvp, whole.vjp, whole.jac
        with np.errstate(divide="ignore", invalid="ignore"):
            sides = tuple(self.of(side.reshape(shape)) for side in (box.lower, box.upper))
        return Problem(
            lambda y: whole.residual(self.powers(y)),
            jvp=None if jvp is None else lambda y, v: jvp(self.powers(y), times(y) * v),
            vjp=None if vjp is None else lambda y, w: times(y) * vjp(self.powers(y), w),
            jac=None if jac is None else lambda y: self._jacobian(y, jac(self.powers(y)), "jac"),
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

    def powers(self, y: HostArray) -> HostArray:
        """The inverse, within the range of the dtype."""
        largest = 0.98 * math.log(float(np.finfo(y.dtype).max))
        return np.where(self.positive, np.exp(np.clip(y, -largest, largest)), y)

    def factors(self, y: HostArray) -> HostArray:
        """Derivatives of the powers."""
        return np.where(self.positive, self.powers(y), 1.0)

    def _jacobian(self, y: HostArray, J: object, name: str) -> object:
        return Scales(self.whole, self.factors(y), np.ones_like(y))._jacobian(J, name)

    def _linearize(self, y: HostArray) -> tuple[HostArray, Any]:
        F, J = self.whole.linearize(self.powers(y))  # type: ignore[misc]
        return F, self._jacobian(y, J, "linearize")
