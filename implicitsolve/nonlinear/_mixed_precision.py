"""MixedPrecision: a method in float32 as long as it makes progress, then Newton's in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from implicitsolve._arrays.host import gather, scatter
from implicitsolve._arrays.namespace import array_namespace, eps
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.globalize._line_search import ConstantForcing
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.monitor import mapped
from implicitsolve.nonlinear._anderson import Anderson
from implicitsolve.nonlinear._direction import LEAST_ETA
from implicitsolve.nonlinear._newton_krylov import NewtonKrylov
from implicitsolve.nonlinear._plan import label
from implicitsolve.nonlinear._state import FixedPointMethod, NonlinearMethod, Solution, SolveContext
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop

ROUNDING = 100  # units of rounding in x, in float32, to which it may solve: F is a difference of numbers like x
ANDERSON = Anderson()
FINE = NewtonKrylov(krylov_dtype="float32", forcing=ConstantForcing(eta=LEAST_ETA))
LEAST_BLOCK = 64  # unknowns in a block from which on products in float32 take half the time


@dataclass(frozen=True, kw_only=True)
class MixedPrecision(FixedPointMethod):
    """A method in float32 until rounding errors dominate, then Newton–Krylov with float32 products and float64 F.

    For fixed-point problems in float64 that offer `Problem.astype`. From where the first phase ends, one Newton step
    whose linear system is solved as accurately as the target requires is nearly always enough; the target, and all
    norms of the result, are those of float64. Measured on implicit GRUs with k = 200 and 448, against Anderson's method
    in float64: some more products, most of them in float32, and 0.5 to 0.7 of the time.
    """

    rough: NonlinearMethod = ANDERSON
    fine: NewtonKrylov = FINE

    @property
    def label(self) -> str:
        return f"{label(self.rough)} in float32, then NewtonKrylov in float64"

    @staticmethod
    def suits(context: SolveContext) -> bool:
        """Whether a problem offers what is needed, and is large enough to gain from it."""
        evaluator, structure = context.evaluator, context.evaluator.problem.block_structure
        is_large = structure is not None and structure.block_size >= LEAST_BLOCK
        is_double = evaluator.dtype == evaluator.xp.float64
        is_race = context.scheduler is not None and context.scheduler.groups is not None
        return is_double and is_large and evaluator.problem.astype is not None and not is_race

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        evaluator, stop = context.evaluator, context.stop
        precision = eps(evaluator.xp, evaluator.dtype)
        if rows is None and stop.relative(precision) > 0:
            start.first_norm = stop.measure(evaluator.residual(start.x), evaluator.event_shape)
        xp, dtype, single = evaluator.xp, evaluator.dtype, evaluator.xp.float32
        x0, first_norm, iterations = start.x, start.first_norm.copy(), start.iterations.copy()
        in_single = replace(
            context,
            evaluator=evaluator.astype(single),
            stop=_rough(stop, precision, evaluator.event_shape),
            monitor=mapped(context.monitor, lambda x, F: (xp.astype(x, dtype), xp.astype(F, dtype))),
        )
        rough = self.rough.solve(in_single, start.astype(single), rows)
        rows = np.arange(len(x0)) if rows is None else rows
        # where x0 was good enough for float32, its norm is yet to be measured
        is_still = rough.iterations == iterations
        is_overflow = ~np.isfinite(rough.first_norm)  # there may be none in float64
        solution = rough.astype(evaluator.dtype)
        solution.start = start.start
        solution.first_norm = np.where(is_still | is_overflow, first_norm, rough.first_norm)
        still = rows[is_still[rows]]
        scatter(solution.x, still, gather(x0, still))
        is_good = ((rough.status == Status.CONVERGED) | is_overflow)[rows]
        self._measure_again(evaluator, solution, rows[~is_good], stop)
        good = rows[is_good]
        if not good.size:
            return solution
        solution.norm[good] = np.inf
        return solution.copy().improved(good, self.fine.solve(context, solution, good))

    def _measure_again(self, evaluator: Evaluator, solution: Solution, rows: Indices, stop: NonlinearStop) -> None:
        """F in float64 where systems have failed."""
        if rows.size:
            F = evaluator.take(rows, solution.x).residual(gather(solution.x, rows))
            scatter(solution.F, rows, F)
            solution.norm[rows] = stop.measure(F, evaluator.event_shape)


@dataclass(frozen=True, kw_only=True)
class _RoughStop(NonlinearStop):
    """A rule that also accepts F at the level of rounding errors, in the same norm."""

    event_shape: tuple[int, ...] = ()

    def holds(self, norms: HostArray, target: HostArray, x: Array, step: Array | None) -> HostArray:
        rounding = ROUNDING * eps(array_namespace(x), x.dtype) * self.measure(x, self.event_shape)
        return super().holds(norms, np.maximum(target, rounding), x, step)


def _rough(stop: NonlinearStop, precision: float, event_shape: tuple[int, ...]) -> NonlinearStop:
    rtol, limit = stop.relative(precision), stop.max_iterations
    return _RoughStop(atol=stop.atol, rtol=rtol, max_iterations=limit, norm=stop.norm, event_shape=event_shape)
