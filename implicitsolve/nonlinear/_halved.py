"""Methods for half the blocks of a problem with `halves`, which determine the others; see `even_odd`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from implicitsolve._arrays.host import from_host
from implicitsolve._typing import Array, Indices
from implicitsolve.elimination._even_odd import EvenOdd
from implicitsolve.kernels._norms import norm_max
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.nonlinear._convergence import CONVERGED, NONFINITE
from implicitsolve.nonlinear._plan import PlannedMethod, Stage, label
from implicitsolve.nonlinear._state import NonlinearMethod, Solution, SolveContext


def expanded_stages(method: NonlinearMethod, context: SolveContext, x0: Array) -> list[Stage]:
    """The stages of a method, those for half of the blocks one by one."""
    if isinstance(method, Halved):
        whole, start = context.evaluator, context.evaluator.unflatten(x0)
        reduced = EvenOdd.of(whole.problem, start)
        half = Evaluator(reduced.problem, reduced.start(start), method.rdiff, few=whole.few)
        return expanded_stages(method.method, replace(context, evaluator=half), half.flatten(reduced.start(start)))
    if not isinstance(method, PlannedMethod):
        return [Stage(method=method)]
    found: list[Stage] = []
    for stage in method.stages(context, x0):
        found += expanded_stages(stage.method, context, x0) if isinstance(stage.method, Halved) else [stage]
    return found


@dataclass(frozen=True, kw_only=True)
class Halved(NonlinearMethod):
    """A method for half the blocks of a problem with `halves`, which determine the others; see `even_odd`."""

    method: NonlinearMethod

    @property
    def rdiff(self) -> float | None:
        return self.method.rdiff

    @property
    def label(self) -> str:
        return label(self.method)

    @staticmethod
    def suits(context: SolveContext) -> bool:
        """Whether a problem has halves, and unknowns without bounds."""
        evaluator, problem = context.evaluator, context.evaluator.problem
        return problem.halves is not None and problem.bounds is None and len(evaluator.event_shape) > 0

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        whole = context.evaluator
        x0 = whole.unflatten(start.start)
        reduced = EvenOdd.of(whole.problem, x0)
        half = Evaluator(reduced.problem, reduced.start(x0), self.rdiff, few=whole.few, tally=whole.tally)
        first, x, F = (half.flatten(reduced.start(whole.unflatten(part))) for part in (start.start, start.x, start.F))
        solution = replace(start, start=first, x=x, F=F, first_F=None)
        if half.size:
            stop, monitor = reduced.stop(context.stop), reduced.monitor(context.monitor)
            solution = self.method.solve(replace(context, evaluator=half, stop=stop, monitor=monitor), solution, rows)
        else:
            none = np.zeros(solution.norm.shape)
            status = np.full(none.size, CONVERGED)
            solution = replace(solution, status=status, first_norm=none, target=none)
        x = whole.flatten(reduced.whole_state(half.unflatten(solution.x)))
        F = whole.flatten(reduced.pad(half.unflatten(solution.F), reduced.axis))
        finite = np.isfinite(norm_max(x))
        if not finite.all():  # which the kept blocks need not notice
            shown = from_host(np.where(finite, 0.0, np.nan), x)[:, None]
            F = whole.xp.where(whole.xp.isfinite(shown), F, shown)
            solution.status = np.where(finite, solution.status, NONFINITE)
            solution.norm = np.where(finite, solution.norm, np.nan)
        return replace(solution, start=start.start, x=x, F=F, first_F=start.first_F)
