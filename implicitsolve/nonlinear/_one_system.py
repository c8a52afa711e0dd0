"""One system in vectors and plain numbers: the iteration of `IterationLoop`, and the steps of `KrylovLoop`.

On a few hundred unknowns a call of NumPy takes as long as F does, whatever the array. So rules are written in Python's
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np

from implicitsolve._arrays.namespace import eps, numpy_namespace, safe_range, smallest_normal
from implicitsolve._record import LimitReached, NewtonStep
from implicitsolve._typing import HostArray
from implicitsolve.globalize._line_search import (
    Backtracking,
    Correction,
    SearchResult,
    SearchStart,
)
from implicitsolve.globalize._rules import (
    armijo_ratio,
    forcing_term,
    has_diverged,
    has_halved,
    has_search_failed,
    is_still,
    tighten,
)
from implicitsolve.kernels._lapack import IAMAX
from implicitsolve.kernels._norms import Norms, norm2
from implicitsolve.linearize._difference_product import difference_product_of_one
from implicitsolve.monitor import ends_solve, silent
from implicitsolve.nonlinear._accuracy import FALLEN, LIMITED, MODEL, NEAR, Lengths, Progress
from implicitsolve.nonlinear._broyden import DOT
from implicitsolve.nonlinear._budget import Budget
from implicitsolve.nonlinear._certificate import certify
from implicitsolve.nonlinear._convergence import (
    AT_INFINITY,
    CONVERGED,
    DIVERGED,
    ITERATION_LIMIT,
    LINE_SEARCH_FAILED,
    NONFINITE,
    RUNNING,
    SINGULAR,
    STAGNATED,
    UNMOVED,
    OneConvergence,
)
from implicitsolve.nonlinear._direction import LARGEST_ETA, LEAST_KRYLOV, OneRecyclingGMRES
from implicitsolve.nonlinear._loop import WHOLE, IterationLoop
from implicitsolve.nonlinear._state import Solution, SolveContext
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
    CERTIFIES: ClassVar[bool] = IterationLoop.CERTIFIES

    method: Any

    def __init__(self, context: SolveContext, solution: Solution, *, is_retry: bool) -> None:
        evaluator, stop, x = context.evaluator, context.stop, solution.x[0]
        self.evaluator, self.tally, self.solution, self.is_retry = evaluator, evaluator.tally, solution, is_retry
        self.stop, self.monitor, self.memory = stop, context.monitor, context.memory
        self.unit, self.safe = eps(numpy_namespace, x.dtype), safe_range(numpy_namespace, x.dtype)
        self.judges_x, self.judges_F = stop.judges_x, stop.judges_F or not stop.judges_x
        self.patience = self.PATIENCE
        self.x, self.F = x, self._evaluated(x) if context.first is None else context.first[0]
        self.norm = self.start_norm = self.least = self._norm(self.F)
        self.measure = self._measured(self.F, self.norm)
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
        self.reference: HostArray | None = None  # the larger of x0 and the first step
        self.progress, self.xtol = Progress(), stop.error_limit(self.unit)
        self.progress.size, self.smallest = self._norm(x), smallest_normal(numpy_namespace, x.dtype)
        self.budget = Budget(solution, self.tally, share=context.share, is_retry=is_retry, is_limited=self.LIMITED)
        self.status = RUNNING if math.isfinite(self.norm) else NONFINITE
        if self.status == RUNNING and self.last <= self.iteration:
            self.status = ITERATION_LIMIT
        self._mark_converged(None)

    @staticmethod
    def suits(context: SolveContext) -> bool:
        """Whether the solve is of one system without bounds, and no caller schedules or ends it."""
        is_watched = context.scheduler is not None or context.leave is not None or context.truth is not None
        return context.evaluator.rows.size == 1 and context.evaluator.box is None and not is_watched

    def run(self) -> Solution:
        """Iterate until the system has ended."""
        if not self.is_retry:
            self._record()
        try:
            self.tally.enforced(self._iterate)
        except LimitReached:
            self.status = int(self.tally.ended or RUNNING)
        solution = self.solution
        if self.status in UNMOVED and not self.judges_F:
            self._settle(LIMITED)
        if self.RUNS_AWAY and self.status not in (CONVERGED, RUNNING) and self.progress.runs_away():
            self.status = AT_INFINITY
        has_failed = self.status != CONVERGED and math.isfinite(self.best_measure)
        if has_failed and not (self.status == ITERATION_LIMIT and self.stop.keeps_last):
            self.x, self.F, self.measure = self.best_x, self.best_F, np.asarray([self.best_measure])
        solution.x, solution.F = self.x[None], self.F[None]
        solution.status[0], solution.norm[0] = self.status, self.measure[0]
        solution.error[0] = self.progress.error if math.isfinite(self.progress.error) and not has_failed else np.nan
        if self.CERTIFIES and self.judges_x:
            certify(self.evaluator, solution, np.zeros(1, dtype=int), self.xtol)
            self.status = int(solution.status[0])
        return solution

    def _iterate(self) -> None:
        while self.status == RUNNING:
            if self.tally.is_spent():
                raise LimitReached
            self.iteration += 1
            details = self._step()
            self._note_progress()
            self._record(**details)

    def _step(self) -> dict[str, Any]:
        """Take a step, and return what the trace notes of it."""
        raise NotImplementedError

    def _evaluated(self, x: HostArray) -> HostArray:
        return self.evaluator.residual_of_one(x)

    def _accept(self, x: HostArray, F: HostArray, norm: float) -> None:
        """Take over the point of a step."""
        self.previous_x, self.previous_F, self.previous_norm = self.x, self.F, self.norm
        self.x, self.F, self.norm = x, F, norm
        self.measure = self._measured(F, norm)
        self.solution.iterations[0] += 1

    def _note_progress(self) -> None:
        """End a system without progress, and keep the best of its points; see `IterationLoop`."""
        measure = float(self.measure[0])
        is_best, is_less = measure < self.NEW_BEST * self.best, self.norm < self.NEW_BEST * self.least
        self.best, self.least = measure if is_best else self.best, self.norm if is_less else self.least
        self.since = 0 if is_best or is_less else self.since + 1
        self.budget.charge_one(measure, self.norm, self.best_measure, self.start_norm)
        is_over = self.since >= self.patience or self.budget.rest_of_one(self.budget.share) <= 0
        if is_over and self.status == RUNNING:
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

    def _measured(self, F: HostArray, norm: float) -> HostArray:
        """Norm of F in the norm of the stopping rule, where `norm` is ||F||_2."""
        if self.stop.norm == "max" and math.isfinite(norm):  # BLAS compares no NaN
            return np.asarray([self._largest(F)])
        return self.stop.measured(Norms(F[None]), self.evaluator.event_shape)

    @staticmethod
    def _largest(v: HostArray) -> float:
        """Largest magnitude of a finite vector."""
        return float(abs(v[IAMAX[v.dtype.char](v)]))

    def _norm(self, v: HostArray) -> float:
        """``norm2`` of one vector; BLAS raises no floating-point warnings."""
        size, (low, high) = math.sqrt(DOT[v.dtype.char](v, v)), self.safe
        return size if low < size < high else float(norm2(v[None])[0])


class OneInvertedSystem(OneSystem):
    """One system whose steps come from factors, or from a model of J."""

    CERTIFIES = False

    @property
    def _is_newton(self) -> bool:
        """Whether the inverse is that of J at the point before, and not a model that has learned from steps."""
        return False

    def _correction(self) -> HostArray:
        """The correction that the inverse at hand predicts at x."""
        raise NotImplementedError

    def _prediction(self, moved: HostArray, step: float, before: float, size: float) -> Lengths:
        self._note_first(moved)
        theta = self.norm / self.previous_norm if self.previous_norm > 0 else math.inf
        if not theta * step <= NEAR * max(before, size):
            return (math.inf if self.judges_x else theta * step), step, before, size
        correction, theta = self._correction(), self._contraction(theta)
        length, *others = self._lengths(correction, moved, step, before, size)
        if not math.isfinite(length):
            return math.inf, *others
        least = 1.0 if theta > FALLEN else 0.0 if self._is_newton else MODEL
        return max(length, least * theta * others[0]), *others

    def _contraction(self, theta: float) -> float:
        """The part of ||F|| that the last step has left, in the units of the equations where these are known."""
        return theta

    def _lengths(self, correction: HostArray, moved: HostArray, step: float, before: float, size: float) -> Lengths:
        """Their lengths, in the units of the unknowns."""
        raise NotImplementedError


class OneKrylovSystem(OneSystem):
    """The steps of `NewtonKrylov` with recycling GMRES, products by `jvp` or differences, and `Backtracking`."""

    def __init__(
        self, method: Any, linear: OneRecyclingGMRES, context: SolveContext, solution: Solution, *, is_retry: bool
    ) -> None:
        super().__init__(context, solution, is_retry=is_retry)
        self.method, self.linear = method, linear
        self.eta, self.attempts = float(method.forcing.first(1)[0]), 0
        self.J: Any = None

    @staticmethod
    def applies(method: Any, context: SolveContext, x0: Any) -> bool:
        """Whether it has the steps that these settings and this problem ask for."""
        problem, is_plain = context.evaluator.problem, type(x0) is np.ndarray and x0.dtype.char in "fd"
        is_default = method.krylov is None and method.krylov_dtype is None and method.preconditioner is None
        has_products = problem.linearize is None and problem.jac is None and problem.blocks is None
        searches = type(method.line_search) is Backtracking
        return is_plain and is_default and has_products and searches and OneSystem.suits(context)

    def run(self) -> Solution:
        """Iterate until the system has ended, and leave the Krylov spaces to later solves."""
        solution = super().run()
        if self.memory.keeps and self.status == CONVERGED:
            self.memory.space = self.linear.space
        return solution

    def _step(self) -> dict[str, Any]:
        step, rest, linear_status, iterations = self._direction()
        previous = self.norm
        linear_residual = rest / previous if previous > 0 else rest
        traced = {
            "step_length": NO_STEP,
            "forcing": np.asarray([self.eta]),
            "linear_residual": np.asarray([linear_residual]),
            "krylov_iterations": np.asarray([iterations]),
            "linear_status": np.asarray([linear_status]),
        }
        self.solution.krylov_iterations[0] += iterations
        found = None
        if 0 < self._norm(step) < math.inf:  # no function is called elsewhere
            found = self._searched(step, linear_residual)
        if self.iteration >= self.last:
            self.status = ITERATION_LIMIT
        is_accepted = found is not None and bool(found.accepted[0])
        if found is not None and is_accepted:
            traced["step_length"] = found.length
            self._move(found, step)
        else:
            self._note_failure(found, linear_residual, linear_status, iterations)
        self._choose_eta(previous, linear_residual, is_accepted)
        return traced

    def _move(self, found: SearchResult, step: HostArray) -> None:
        """Take over the point of an accepted step."""
        self.attempts, self.J = 0, None
        x, norm, previous = found.x[0], float(found.norms[0]), self.norm
        if found.length[0] != 1:
            step = x - self.x
        self._accept(x, found.F[0], norm)
        if not has_halved(norm, previous) and is_still(self._largest(step), self._largest(x), self.unit):
            self.status = STAGNATED
        if has_diverged(norm, self.start_norm):
            self.status = DIVERGED
        self._mark_converged(step)

    def _direction(self) -> tuple[HostArray, float, int, int]:
        """Solve for Newton's step, never more accurately than the stopping rule needs."""
        evaluator, measure, target = self.evaluator, float(self.measure[0]), float(self.target[0])
        if not evaluator.has_exact_products:
            evaluator.length.follow(int(evaluator.rows[0]), self._norm(self.x))
        if self.J is None:
            self.J = self._products()
        self.eta = forcing_term(self.eta, measure, target, LARGEST_ETA)
        limit = max(LEAST_KRYLOV, self.budget.rest_of_one())
        solved = self.linear.direction(self.J, self.F, self.norm, self.eta, limit)
        self.since -= int(self.linear.grew)  # a larger space may solve what this one could not
        return solved

    def _products(self) -> Callable[[HostArray], HostArray]:
        """``v -> J(x) v``."""
        evaluator, x, F = self.evaluator, self.x, self.F
        if evaluator.has_exact_products:
            matvec = evaluator.jacobian(x[None], F[None]).matvec
            return lambda v: matvec(v[None])[0]
        evaluator.tally.add("linearizations")
        residual = partial(evaluator.residual_of_one, keep=False)
        return difference_product_of_one(residual, evaluator.length, int(evaluator.rows[0]), x, F)

    def _searched(self, step: HostArray, linear_residual: float) -> SearchResult:
        """Try the whole step, and search along it if that is not acceptable."""
        with np.errstate(all="ignore"):
            x = self.x + step
        F = self.evaluator.residual_of_one(x)
        norm = self._norm(F)
        if norm <= armijo_ratio(1.0, min(linear_residual, 1.0)) * self.norm:  # NaN is not
            is_finite = np.ones(1, dtype=bool)
            return SearchResult(x[None], F[None], np.asarray([norm]), WHOLE, is_finite, is_finite, None)
        return self._search(step, x, F, norm, linear_residual, self.linear.correction)

    def _note_failure(
        self, found: SearchResult | None, linear_residual: float, linear_status: int, iterations: int
    ) -> None:
        """End a system whose line search, or whose linear solve, has failed for good."""
        self.attempts += 1
        if found is None and self.linear.grew:  # GMRES may make no progress before its last vector
            self.budget.refund(self.evaluator.rows * 0, iterations)
        elif found is None:
            failures = {int(Status.BREAKDOWN): SINGULAR, NONFINITE: NONFINITE}
            self.status = failures.get(linear_status, int(Status.LINEAR_SOLVE_FAILED))
        elif has_search_failed(self.attempts, linear_residual):
            self.status = LINE_SEARCH_FAILED if found.finite[0] else NONFINITE
        self._mark_converged(np.zeros_like(self.x))

    def _choose_eta(self, previous: float, linear_residual: float, is_accepted: bool) -> None:
        """Eta of the forcing rule; ten times smaller where an accurate direction did not help."""
        eta = self.eta
        chosen = self.method.forcing.next(np.asarray([eta]), np.asarray([self.norm]), np.asarray([previous]))
        self.eta = float(chosen[0])
        if not is_accepted or (not has_halved(self.norm, previous) and linear_residual <= eta):
            self.eta = tighten(self.eta, eta, self.unit)
