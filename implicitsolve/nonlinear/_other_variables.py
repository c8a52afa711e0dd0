"""A system in other variables y than its unknowns x, logarithms or multiples of these, solved by the same methods."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.linearize._difference_product import Box
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._jacobian import Scales
from implicitsolve.nonlinear._plan import Condition, label
from implicitsolve.nonlinear._state import NonlinearMethod, Solution, SolveContext, SolveMemory
from implicitsolve.problem import Problem
from implicitsolve.status import Status

UNIT_SPREAD = 1e3  # of the sizes of the unknowns at x0 or at the best point, from which on they show their units


@dataclass(frozen=True, kw_only=True)
class OtherVariables(NonlinearMethod):
    """A method for the system in other variables."""

    method: NonlinearMethod
    takes_all: bool = True  # whether also what failed is taken for an improvement, if F has become smaller
    words: ClassVar[str]
    precision: ClassVar[float] = 1.0  # size of y for which errors of x, relative to itself, are as small as those of y
    keeps_bounds: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"{label(self.method)} in {self.words}"

    @staticmethod
    def suits(context: SolveContext, x0: Array) -> bool:
        """Whether the problem is one for other variables: NumPy arrays, no `blocks` and no schedule."""
        return type(x0) is np.ndarray and context.scheduler is None and context.evaluator.problem.blocks is None

    def variables(self, evaluator: Evaluator, start: Solution) -> Scales:
        """The variables, by what is known of x."""
        raise NotImplementedError

    def error(self, y: HostArray, error: HostArray) -> HostArray:
        """The error of each x by that of y, relative to y."""
        return error.copy()

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        whole, structure = context.evaluator, context.evaluator.problem.structure
        variables = self.variables(whole, start)
        like = variables.start(whole.unflatten(start.start))
        inner = Evaluator(variables.problem, like, self.method.rdiff, few=whole.few, tally=whole.tally)
        first, x = inner.flatten(like), inner.flatten(variables.start(whole.unflatten(start.x)))
        stop = context.stop
        if stop.judges_x:
            stop = replace(stop, xtol=stop.error_limit(float(np.finfo(like.dtype).eps)) / self.precision)
        found = context.memory.detection  # of which only a pattern is the same in other variables
        own = SolveMemory(declared=structure)
        known = SolveMemory(detection=None if found is None or found.structure is None else found)
        watch = variables.monitor(context.monitor)
        settings = replace(context, evaluator=inner, stop=stop, monitor=watch, memory=own, previous=known)
        fresh = np.zeros_like(start.charged)  # the budget of another system
        end = self.method.solve(replace(settings, share=1.0), replace(start, start=first, x=x, charged=fresh), rows)
        error = self.error(end.x, end.error)
        x = whole.flatten(variables.back(inner.unflatten(end.x)))
        others: HostArray = np.ones(len(x), dtype=bool)
        others[slice(None) if rows is None else rows] = False
        x[others], error[others] = start.x[others], start.error[others]
        if not self.takes_all:
            end.norm[~others & (end.status != Status.CONVERGED)] = np.inf
        return replace(end, start=start.start, x=x, error=error, charged=start.charged)


@dataclass(frozen=True, kw_only=True)
class Rescaled(OtherVariables):
    """A method for multiples of the sizes that the unknowns have in x0 or where the methods before have ended.

    Products with J along a direction in which the large ones change by their own size change the small ones by more
    than the range in which F is linear. An unknown that is zero keeps its unit.
    """

    words: ClassVar[str] = "units of x"

    @staticmethod
    def suits(context: SolveContext, x0: Array) -> bool:
        """Whether the problem is one for other variables, and real."""
        return OtherVariables.suits(context, x0) and x0.dtype.char in "fd"

    def variables(self, evaluator: Evaluator, start: Solution) -> Scales:
        sizes, like = evaluator.unflatten(_sizes(start)), evaluator.unflatten(start.start)
        return Scales.with_sizes(evaluator.problem, sizes, np.ones_like(like), like)


def _sizes(solution: Solution) -> HostArray:
    """Sizes of the unknowns; 1 for zeros."""
    sizes: HostArray = np.maximum(np.abs(solution.start), np.abs(solution.x))
    return np.where((sizes > 0) & np.isfinite(sizes), sizes, 1.0)


def _have_other_units(context: SolveContext, solution: Solution) -> HostArray:
    sizes, is_given = _sizes(solution), context.jacobians is not None and context.evaluator.problem.jac is not None
    is_wide: HostArray = sizes.max(axis=1) > UNIT_SPREAD * sizes.min(axis=1)
    return is_wide & (not is_given)  # steps with factors of the caller's J are the same in all units


UNITS = Condition("unknowns differ by three orders of magnitude", _have_other_units)


@dataclass(frozen=True, kw_only=True)
class Logarithmic(OtherVariables):
    """A method for y = log(x), for unknowns whose lower bound is zero: steps multiply them, and none reaches zero.

    Where F has quotients, powers or logarithms of them, as chemical equilibria have, it is nearly linear in y, and the
    error of x is relative to each unknown, however small. Other unknowns are taken as they are.
    """

    words: ClassVar[str] = "logarithms"
    precision: ClassVar[float] = 32.0

    @staticmethod
    def suits(context: SolveContext, x0: Array) -> bool:
        """Whether some unknowns of a problem for other variables have the lower bound zero, and all start above."""
        box = context.evaluator.box
        if box is None or not OtherVariables.suits(context, x0):
            return False
        positive = box.lower == 0
        return bool(positive.any() and (x0[positive] > 0).all())

    def variables(self, evaluator: Evaluator, start: Solution) -> Scales:
        ones = np.ones_like(evaluator.unflatten(start.start))
        return Logarithms(evaluator.problem, ones, ones, evaluator.box)  # type: ignore[arg-type]

    def error(self, y: HostArray, error: HostArray) -> HostArray:
        with np.errstate(invalid="ignore"):
            return error * np.maximum(np.abs(y).max(axis=1), 1.0)


@dataclass(frozen=True, eq=False)
class Logarithms(Scales):
    """A problem in logarithms of the unknowns whose lower bound is zero."""

    box: Box

    @property
    def problem(self) -> Problem:
        with np.errstate(divide="ignore", invalid="ignore"):
            sides = tuple(self.start(side.reshape(self.x.shape)) for side in (self.box.lower, self.box.upper))
        return replace(super().problem, take=None, bounds=None if np.isinf(sides).all() else sides)

    @property
    def positive(self) -> Array:
        return self.box.lower.reshape(self.x.shape) == 0

    def start(self, x: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.where(self.positive, np.log(np.where(self.positive, x, 1.0)), x)

    def back(self, y: Array) -> Array:
        """The inverse of `start`, within the range of the dtype."""
        largest = 0.98 * math.log(float(np.finfo(y.dtype).max))
        return np.where(self.positive, np.exp(np.clip(y, -largest, largest)), y)

    def slopes(self, y: Array) -> Array:
        return np.where(self.positive, self.back(y), 1.0)
