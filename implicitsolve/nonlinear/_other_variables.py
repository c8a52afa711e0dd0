"""A system in other variables y than its unknowns x, solved by the same methods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._jacobian import Scales
from implicitsolve.monitor import mapped
from implicitsolve.nonlinear._plan import Condition, label
from implicitsolve.nonlinear._state import NonlinearMethod, Solution, SolveContext, SolveMemory
from implicitsolve.problem import Problem
from implicitsolve.status import Status

SPREAD = 1e3  # of the sizes of the unknowns at x0 or at the best point, from which on they tell their units


class Variables(Protocol):
    """What y stands for."""

    precision: ClassVar[float]

    def problem(self, structure: Any) -> Problem:
        """The problem in y."""

    def of(self, x: HostArray) -> HostArray:
        """The y of an x."""

    def back(self, y: HostArray) -> HostArray:
        """The x of a y."""

    def error(self, y: HostArray, error: HostArray) -> HostArray:
        """The error of each x by that of y, relative to y."""


@dataclass(frozen=True, kw_only=True)
class OtherVariables(NonlinearMethod):
    """A method for the system in other variables."""

    method: NonlinearMethod
    takes_all: bool = True  # whether also what failed is taken for an improvement, if F has become smaller
    words: ClassVar[str]
    keeps_bounds: ClassVar[bool] = True

    @property
    def label(self) -> str:
        """The name in `Retry.method`."""
        return f"{label(self.method)} in {self.words}"

    def variables(self, evaluator: Evaluator, start: Solution) -> Variables:
        """The variables, by what is known of x."""
        raise NotImplementedError

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        whole, structure = context.evaluator, context.evaluator.problem.structure
        variables = self.variables(whole, start)
        like = variables.of(whole.unflatten(start.start))
        inner = Evaluator(variables.problem(structure), like, self.method.rdiff, few=whole.few)
        inner.tally = whole.tally
        first, x = inner.flatten(like), inner.flatten(variables.of(whole.unflatten(start.x)))
        stop = context.stop
        if stop.judges_x:
            stop = replace(stop, xtol=stop.error_limit(float(np.finfo(like.dtype).eps)) / variables.precision)
        own, known = SolveMemory(declared=structure), SolveMemory(detection=context.memory.detection)
        watch = mapped(context.monitor, lambda y, F: (variables.back(y), F))
        settings = replace(context, evaluator=inner, stop=stop, monitor=watch, memory=own, previous=known)
        fresh = np.zeros_like(start.charged)  # the budget of another system
        found = self.method.solve(replace(settings, share=1.0), replace(start, start=first, x=x, charged=fresh), rows)
        error = variables.error(found.x, found.error)
        x = whole.flatten(variables.back(inner.unflatten(found.x)))
        others: HostArray = np.ones(len(x), dtype=bool)
        others[slice(None) if rows is None else rows] = False
        x[others], error[others] = start.x[others], start.error[others]
        if not self.takes_all:
            found.norm[~others & (found.status != Status.CONVERGED)] = np.inf
        return replace(found, start=start.start, x=x, error=error, charged=start.charged)


def is_plain(context: SolveContext, x0: Array) -> bool:
    """Whether the problem is one for other variables: NumPy arrays, no `blocks` and no schedule."""
    return type(x0) is np.ndarray and context.scheduler is None and context.evaluator.problem.blocks is None


@dataclass(frozen=True, kw_only=True)
class Rescaled(OtherVariables):
    """A method for multiples of the sizes that the unknowns have in x0 or where the methods before have ended.

    Products with J along a direction in which the large ones change by their own size change the small ones by more
    than the range in which F is linear. An unknown that is zero keeps its unit.
    """

    words: ClassVar[str] = "units of x"

    def variables(self, evaluator: Evaluator, start: Solution) -> Multiples:
        sizes, like = evaluator.unflatten(_sizes(start)), evaluator.unflatten(start.start)
        return Multiples(Scales.with_sizes(evaluator.problem, sizes, np.ones_like(like), like))


def _sizes(solution: Solution) -> HostArray:
    """Sizes of the unknowns; 1 for zeros."""
    sizes: HostArray = np.maximum(np.abs(solution.start), np.abs(solution.x))
    return np.where((sizes > 0) & np.isfinite(sizes), sizes, 1.0)


def _have_other_units(context: SolveContext, solution: Solution) -> HostArray:
    sizes = _sizes(solution)
    is_wide: HostArray = sizes.max(axis=1) > SPREAD * sizes.min(axis=1)
    return is_wide


UNITS = Condition("unknowns differ by three orders of magnitude", _have_other_units)


@dataclass(frozen=True, eq=False)
class Multiples:
    """Multiples of scales."""

    scales: Scales
    precision: ClassVar[float] = 1.0

    def problem(self, structure: Any) -> Problem:
        """The problem in y."""
        return replace(self.scales.problem, structure=structure)

    def of(self, x: HostArray) -> HostArray:
        """The y of an x."""
        return x / self.scales.x

    def back(self, y: HostArray) -> HostArray:
        """The x of a y."""
        return y * self.scales.x

    def error(self, y: HostArray, error: HostArray) -> HostArray:
        """The error of y."""
        return error.copy()
