"""One system in vectors and plain numbers: the iteration of `IterationLoop`.

On a few hundred unknowns a call of NumPy takes as long as F does, whatever the array. So rules are written in Python's
numbers.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from implicitsolve._arrays.namespace import eps, numpy_namespace, safe_range, smallest_normal
from implicitsolve._record import LimitReached, NewtonStep
from implicitsolve._typing import Array, HostArray
from implicitsolve.globalize._line_search import Correction, SearchResult, SearchStart
from implicitsolve.globalize._rules import has_diverged, is_still
from implicitsolve.kernels._lapack import IAMAX
from implicitsolve.kernels._norms import Norms, norm2
from implicitsolve.monitor import ends_solve, silent
from implicitsolve.nonlinear._accuracy import LIMITED, MODEL, MOST_LEFT, NEAR_ROOT, Lengths, Progress
from implicitsolve.nonlinear._broyden import DOT
from implicitsolve.nonlinear._budget import Budget
from implicitsolve.nonlinear._certificate import certify
from implicitsolve.nonlinear._convergence import (
    AT_INFINITY,
    CONVERGED,
    DIVERGED,
    ITERATION_LIMIT,
    NONFINITE,
    RUNNING,
    SINGULAR,
    STAGNATED,
    UNMOVED,
    OneConvergence,
)
from implicitsolve.nonlinear._loop import IterationLoop
from implicitsolve.nonlinear._state import Solution, SolveContext, Standing
from implicitsolve.status import Status

NO_STEP, FACTORED, REUSED = np.zeros(1), np.ones(1, dtype=bool), np.zeros(1, dtype=bool)  # what traces note of steps
ROW = np.zeros(1, dtype=int)
for shared in (NO_STEP, FACTORED, REUSED, ROW):
    shared.flags.writeable = False


class OneSystem(OneConvergence):
    """An iterative method on one system without bounds; a subclass adds `_step`."""

    NEW_BEST: ClassVar[float] = IterationLoop.NEW_BEST
    PATIENCE: ClassVar[int] = IterationLoop.PATIENCE
    STEPS: ClassVar[int] = IterationLoop.STEPS
    LIMITED: ClassVar[bool] = IterationLoop.LIMITED

    method: Any

    def __init__(self, context: SolveContext, solution: Solution, *, is_retry: bool) -> None:
        evaluator, stop, x = context.evaluator, context.stop, solution.x[0]
        self.evaluator, self.tally, self.solution, self.is_retry = evaluator, evaluator.tally, solution, is_retry
        self.stop, self.monitor, self.memory = stop, context.monitor, context.memory
        self.unit, self.safe = eps(numpy_namespace, x.dtype), safe_range(numpy_namespace, x.dtype)
        self.judges_x, self.judges_F = stop.judges_x, stop.judges_F or not stop.judges_x
        self.patience, self.leave = self.PATIENCE, context.leave
        self.anchor = solution.start[0]
        self.x, self.F = x, self._evaluate(x) if context.first is None else context.first[0]
        self.norm = self.start_norm = self.least = self._norm(self.F)
        self.measure = self._measure(self.F, self.norm)
        solution.first_F = self.F[None] if solution.first_F is None else solution.first_F
        first = solution.first_norm  # known if this solve continues another one
        if math.isnan(first[0]):
            solution.first_norm = first = self.measure.astype(first.dtype)
        self.target = solution.target = stop.target(first, self.F[None])
        self.best = self.best_measure = float(self.measure[0])
        if not math.isfinite(self.best):
            self.best_measure = math.inf
        self.best_x, self.best_F = x, self.F
        self.iteration = solution.steps[-1].iteration if is_retry else 0
        self.last = self.iteration + int(stop.remaining(self.STEPS, solution.iterations)[0])
        self.since = 0
        self.reference: HostArray | None = None  # the larger of x0 and the first step that moves it
        self.progress, self.xtol = Progress(), stop.error_limit(self.unit)
        self.progress.size, self.smallest = self._norm(x), smallest_normal(numpy_namespace, x.dtype)
        self.budget = Budget(solution, self.tally, share=context.share, is_retry=is_retry, is_limited=self.LIMITED)
        self.status = RUNNING if math.isfinite(self.norm) else NONFINITE
        if self.status == RUNNING and self.last <= self.iteration:
            self.status = ITERATION_LIMIT
        self.progress.doubted = self.norm == 0 and int(solution.status[0]) > CONVERGED and self._has_grown()
        if self.progress.doubted:  # an attempt has failed, and F = 0 where this one is to begin, farther away
            self.status = AT_INFINITY
        self._mark_converged(None)

    @staticmethod
    def suits(context: SolveContext, x0: Array) -> bool:
        """Whether the solve is of one system of real NumPy numbers without bounds, and no caller schedules it."""
        is_watched = context.scheduler is not None or context.truth is not None or context.shift is not None
        is_plain = type(x0) is np.ndarray and x0.dtype.char in "fd"
        return is_plain and x0.shape[0] == 1 and context.evaluator.box is None and not is_watched

    def run(self) -> Solution:
        """Iterate until the system has ended."""
        if not self.is_retry:
            self._record()
        try:
            self.tally.enforce(self._iterate)
        except LimitReached:
            self.status = int(self.tally.ended or RUNNING)
        if self.status in UNMOVED and not self.judges_F:
            self._settle(LIMITED)
        if self.RUNS_AWAY and self.status not in (CONVERGED, RUNNING):
            has_vanished = self.norm == 0 and self.progress.doubted and self._has_grown()
            self.status = AT_INFINITY if has_vanished or self.progress.runs_away() else self.status
        solution = self._finish()
        if self.judges_x and self._is_to_be_certified:
            certify(self.evaluator, solution, np.zeros(1, dtype=int), self.xtol)
            self.status = int(solution.status[0])
        return solution

    @property
    def _is_to_be_certified(self) -> bool:
        """Whether a dense J has the last word on a success, where it is cheap."""
        return True

    def _finish(self) -> Solution:
        """The solution: a system that has failed at the best of its points."""
        solution = self.solution
        has_failed = self.status != CONVERGED and math.isfinite(self.best_measure)
        if has_failed and not (self.status == ITERATION_LIMIT and self.stop.keeps_last):
            self.x, self.F, self.measure = self.best_x, self.best_F, np.asarray([self.best_measure])
        solution.x, solution.F = self.x[None], self.F[None]
        solution.status[0], solution.norm[0] = self.status, self.measure[0]
        solution.error[0] = self.progress.error if math.isfinite(self.progress.error) and not has_failed else np.nan
        return solution

    def _iterate(self) -> None:
        tally = self.tally
        while self.status == RUNNING:
            if tally.ended is not None or (tally.is_enforced and tally.is_spent()):
                raise LimitReached
            self.iteration += 1
            details = self._step()
            self._note_progress(details["step_length"])
            self._record(**details)

    def _step(self) -> dict[str, Any]:
        """Take a step, and return what the trace notes of it."""
        raise NotImplementedError

    def _evaluate(self, x: HostArray) -> HostArray:
        return self.evaluator.residual_of_one(x)

    def _accept(self, x: HostArray, F: HostArray, norm: float) -> None:
        """Take over the point of a step."""
        self.previous_x, self.previous_F, self.previous_norm = self.x, self.F, self.norm
        self.x, self.F, self.norm = x, F, norm
        self.measure = self._measure(F, norm)
        self.solution.iterations[0] += 1

    def _update_status(
        self,
        moved: HostArray,
        *,
        is_slow: bool,
        failed: int = RUNNING,
        step: float | None = None,
        size: float | None = None,
    ) -> None:
        """Set the status after a step; a later line overrules an earlier one, and convergence all.

        `is_slow` is whether an accepted step has not halved ||F||, and `failed` the method's own status of a system
        that has failed; `step` and `size` as for `_mark_converged`.
        """
        if self.iteration >= self.last:
            self.status = ITERATION_LIMIT
        if is_slow and is_still(self._largest(moved), self._largest(self.x), self.unit):
            self.status = STAGNATED
        if has_diverged(self.norm, self.start_norm):
            self.status = DIVERGED
        if failed != RUNNING:
            self.status = failed
        self._mark_converged(moved, step, size)

    def _note_progress(self, length: HostArray) -> None:
        """End a system that is to be left, or makes no progress, and keep its best point; see `IterationLoop`."""
        measure = float(self.measure[0])
        if self.leave is not None and self.status == RUNNING:
            norms = np.asarray([self.start_norm]), np.asarray([self.norm])
            if self.leave(Standing(*norms, self.measure, self.target, length, self.progress.step)):
                self.status = ITERATION_LIMIT
        is_best, is_less = measure < self.NEW_BEST * self.best, self.norm < self.NEW_BEST * self.least
        self.best, self.least = measure if is_best else self.best, self.norm if is_less else self.least
        self.since = 0 if is_best or is_less else self.since + 1
        is_spent = self.budget.charge_one(measure, self.norm, self.best_measure, self.start_norm)
        if (is_spent or self.since >= self.patience) and self.status == RUNNING:
            self.status = STAGNATED
        if measure < self.best_measure:
            self.best_x, self.best_F, self.best_measure = self.x, self.F, measure

    def _record(self, **details: Any) -> None:
        """Add a step to the trace and pass it to the monitor."""
        tally, detection = self.tally, self.memory.detection
        step = NewtonStep(
            iteration=self.iteration,
            systems=ROW,
            residual_norm=self.measure.copy(),
            target=self.target.copy(),
            error=np.asarray([self.progress.error]),
            running=int(self.status == RUNNING),
            counts=tally.counts(),
            sparsity="" if self.iteration or detection is None else str(detection),
            **details,
        )
        self.solution.steps.append(step)
        if self.monitor is not silent:
            x, F = (self.evaluator.unflatten(part[None].copy()) for part in (self.x, self.F))
            if ends_solve(self.monitor(step, x, F)):
                tally.ended = Status.STOPPED_BY_MONITOR

    def _search(
        self,
        step: HostArray,
        x: HostArray,
        F: HostArray,
        norm: float,
        linear_residual: float,
        correction: Correction | None,
    ) -> SearchResult:
        """Search along a step that leads to x as a whole, where F is `F` and ||F|| is `norm`."""
        is_finite = np.asarray([math.isfinite(norm)])
        whole = SearchResult(x[None], F[None], np.asarray([norm]), np.ones(1), is_finite.copy(), is_finite, None)
        norms, rest = np.asarray([self.norm]), np.asarray([linear_residual])
        start = SearchStart(self.evaluator, self.x[None], self.F[None], norms, step[None], rest, correction, whole)
        return self.method.line_search.search(start)

    def _measure(self, F: HostArray, norm: float) -> HostArray:
        """Norm of F in the norm of the stopping rule, where `norm` is ||F||_2."""
        if self.stop.norm == "max" and math.isfinite(norm):  # BLAS compares no NaN
            return np.asarray([float(abs(F[IAMAX[F.dtype.char](F)]))])
        return self.stop.norm_of(Norms(F[None]), self.evaluator.event_shape)

    @staticmethod
    def _largest(v: HostArray) -> float:
        """Largest magnitude of a finite vector."""
        return float(abs(v[IAMAX[v.dtype.char](v)]))

    def _norm(self, v: HostArray) -> float:
        """``norm2`` of one vector; BLAS raises no floating-point warnings."""
        size, (low, high) = math.sqrt(DOT[v.dtype.char](v, v)), self.safe
        return size if low < size < high else float(norm2(v[None])[0]) if v.any() else 0.0


class OneInvertedSystem(OneSystem):
    """One system whose steps come from factors, or from a model of J."""

    @property
    def _is_to_be_certified(self) -> bool:
        return False  # factors tell the error

    def _correction(self) -> HostArray:
        """The correction that the inverse at hand predicts at x."""
        raise NotImplementedError

    def _settle(self, limit: float) -> None:
        super()._settle(limit)
        if self.status != CONVERGED:
            return
        if self.progress.steps == 0:  # a jump of F at x0 looks like rounding error
            self.previous_x = self.x
            self._note_first(self._correction())
        if not self._confirm(always=True):
            self.status = SINGULAR  # F does not determine x where it is rounding error

    def _prediction(self, moved: HostArray, step: float, before: float, size: float) -> Lengths:
        self._note_first(moved)
        theta = self.norm / self.previous_norm if self.previous_norm > 0 else math.inf
        if not theta * step <= NEAR_ROOT * max(before, size):
            return (math.inf if self.judges_x else theta * step), step, before, size
        correction, theta = self._correction(), self._contraction(theta)
        length, *others = self._lengths(correction, moved, step, before, size)
        if not math.isfinite(length):
            return math.inf, *others
        least = 1.0 if theta > MOST_LEFT else MODEL
        return max(length, least * theta * others[0]), *others

    def _contraction(self, theta: float) -> float:
        """The part of ||F|| that the last step has left, in the units of the equations where these are known."""
        return theta

    def _lengths(self, correction: HostArray, moved: HostArray, step: float, before: float, size: float) -> Lengths:
        """Lengths of both vectors, in the units of the unknowns."""
        raise NotImplementedError
