"""The iteration that all methods share: take a step, update each system's status, compact the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import numpy as np

from implicitsolve._arrays.host import gather, merge_rows
from implicitsolve._arrays.namespace import eps, smallest_normal
from implicitsolve._record import LimitReached
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.globalize._line_search import SearchResult
from implicitsolve.globalize._rules import NEW_BEST, PATIENCE, has_diverged, has_halved, is_still
from implicitsolve.kernels._norms import Norms, norm2
from implicitsolve.linearize._evaluator import Evaluator, NewSystems
from implicitsolve.nonlinear._accuracy import BatchProgress, is_below_range
from implicitsolve.nonlinear._batch_record import BatchRecord
from implicitsolve.nonlinear._budget import Budget
from implicitsolve.nonlinear._certificate import certify
from implicitsolve.nonlinear._convergence import (
    AT_INFINITY,
    CONVERGED,
    DIVERGED,
    ITERATION_LIMIT,
    NONFINITE,
    RUNNING,
    STAGNATED,
    STATIONARY_ON_BOUND,
)
from implicitsolve.nonlinear._state import LoopState, Scheduler, Solution, SolveContext, SolveMemory, Standing, parts
from implicitsolve.operators import LinearOperator
from implicitsolve.status import Status

WHOLE = np.ones(1)  # the length of a single system's whole step
WHOLE.flags.writeable = False
TRANSIENT = 100  # steps without progress of a transient: ||F|| may grow on the way
BLOCKED = [int(s) for s in (Status.STAGNATED, Status.LINE_SEARCH_FAILED, Status.LINEAR_SOLVE_FAILED, Status.SINGULAR)]

State = TypeVar("State", bound=LoopState)
Result = TypeVar("Result")


class IterationLoop(BatchRecord[State]):
    """One solve by an iterative method. `state` holds the systems that iterate.

    A method is a subclass: `_extend` adds its fields to the record of systems that start, and `_step` finds their
    next iterates. All per-system data are in that record, which is compacted, or enlarged, as a whole.
    """

    ADMITS: ClassVar[float | None] = None  # ratio of idle to used slots at which waiting systems are admitted
    FOLDS: ClassVar[bool] = False  # whether a step evaluates their x0 in the call that it takes anyway
    STEPS: ClassVar[int] = 1000  # limit where the caller set none: want of progress ends a solve before
    NEW_BEST: ClassVar[float] = NEW_BEST  # fraction of the last best norm that counts as progress
    PATIENCE: ClassVar[int] = PATIENCE
    LIMITED: ClassVar[bool] = True  # whether systems end where their `Budget` is spent
    blocked: HostArray | bool = False  # where the last Newton step points across a bound that x touches
    CERTIFIES: ClassVar[bool] = True  # whether a dense J has the last word on a success, where it is cheap

    def __init__(self, method: Any, context: SolveContext, solution: Solution, rows: Indices | None = None) -> None:
        self.method, self.solution = method, solution
        self.stop, self.monitor, self.scheduler = context.stop, context.monitor, context.scheduler
        self.leave, self.truth, self.shift = context.leave, context.truth, context.shift
        self.jacobians = context.jacobians
        self.whole, self.is_retry, self.memory = context.evaluator, rows is not None, context.memory
        is_whole = rows is None and context.scheduler is None
        self.previous = context.previous if is_whole else SolveMemory()
        self.patience: int = self.PATIENCE if self.shift is None else TRANSIENT
        self.unit = eps(self.whole.xp, self.whole.dtype)
        self.xtol = self.stop.error_limit(self.unit)
        self.smallest = smallest_normal(self.whole.xp, self.whole.dtype)
        self.entering: NewSystems | None = None  # systems that join after the next step
        self.measured: Norms | None = None  # of F, a step and where it led, until that is judged
        rows = self.whole.rows if rows is None else rows
        if self.scheduler is not None:
            rows = self.scheduler.begin(rows)
        x = solution.x if rows is not None and rows.size == solution.status.size else None
        F = context.first if context.first is None or x is not None else gather(context.first, rows)
        self.state: State = self._start(rows, x, F=F)
        is_limited = self.LIMITED and self.shift is None  # a transient may take its time
        tally, is_retry = self.whole.tally, self.is_retry
        self.budget = Budget(solution, tally, share=context.share, is_retry=is_retry, is_limited=is_limited)

    # What a method adds

    def _first_residual(self, x: Array) -> tuple[Array, LinearOperator | None]:
        """F at the start of some systems, and J where that comes with it."""
        return self.evaluator.residual(x), None

    def _take_known(self, F: Array, J: LinearOperator | None) -> tuple[Array, LinearOperator | None]:
        """F and J where both have been evaluated."""
        return F, J

    def _extend(self, state: LoopState, J: LinearOperator | None) -> State:
        """The record of systems that start, with the method's own fields."""
        raise NotImplementedError

    def _step(self, is_last: HostArray) -> dict[str, HostArray]:
        """Take a step with all systems, and update their status; return what the trace notes of it.

        `is_last` marks those that the step limit allows no further one.
        """
        raise NotImplementedError

    # The iteration

    def run(self) -> Solution:
        """Iterate until every system has ended."""
        before = iteration = self.solution.steps[-1].iteration if self.is_retry else 0
        rows = self.state.rows if self.is_retry else self.whole.rows
        if not self.is_retry:
            self._record(0)
        self._compact()
        if self.scheduler is not None:
            self._admit(self.scheduler, 0)
        while self.state.rows.size:
            iteration += 1
            details = self._within_limits(self._step, iteration - before >= self.state.limit)
            if details is not None:
                self._note_progress(details)
                self._note_best()
                self._record(iteration, **details)
            self._compact()
            if self.scheduler is not None:
                self._admit(self.scheduler, iteration - before)
        if self.scheduler is not None:
            self.scheduler.finish(self.solution.status)
        solution = self._conclude()
        if (self.CERTIFIES or self.shift is not None) and self.stop.judges_x and self.truth is None:
            for some in parts(self.scheduler, rows):
                certify(self.whole, solution, some, self.xtol)
        return solution

    def _conclude(self) -> Solution:
        """The solution; what later solves may start from is kept if all systems have ended at the same step."""
        is_whole = self.state.status.size == self.solution.status.size
        if self.memory.keeps and is_whole and (self.solution.status == CONVERGED).all():
            self._keep(self.memory)
        return self.solution

    def _keep(self, memory: SolveMemory) -> None:
        """Leave to later solves what the method has found out about J."""

    def _within_limits(self, step: Callable[..., Result], *arguments: Any) -> Result | None:
        """Take a step, and return what it returns; end all systems, and return None, where it exceeds a limit."""
        tally = self.whole.tally
        try:
            if not tally.is_spent():
                return tally.enforce(step, *arguments)
        except LimitReached:
            pass  # `tally.ended` is why
        self.state.status[:] = tally.ended
        return None

    def _start(self, rows: Indices, x: Array | None = None, *, F: Any = None, J: Any = None) -> State:
        """The record of systems that start at ``solution.x``, which is `x` if they are all; `evaluator` is theirs."""
        stop, solution = self.stop, self.solution
        self.evaluator: Evaluator = self.whole if x is not None else self.whole.take(rows, solution.x)
        x = gather(solution.x, rows) if x is None else x
        F, J = self._first_residual(x) if F is None else self._take_known(F, J)
        if self.evaluator is not self.whole:  # the whole batch need not have been evaluated, but these in another order
            rotated = np.roll(np.arange(rows.size), 1)
            self.evaluator.check_take(self.evaluator.chosen(rotated), rotated, x, F)
        solution.first_F = F if solution.first_F is None and x.shape == solution.x.shape else solution.first_F
        measured = Norms(F, x)
        norms, measure = measured.two(0), self._measured_by_stop(measured, x, rows)
        first = solution.first_norm[rows]  # known if this solve continues another one
        solution.first_norm[rows] = first = np.where(np.isnan(first), measure, first)
        if self.scheduler is not None:
            first = self.scheduler.reference_norms(solution.first_norm, rows)
        target = solution.target[rows] = stop.target(first, F)
        limit = stop.remaining(self.STEPS, solution.iterations[rows])
        status = np.full(rows.size, RUNNING, dtype=np.int8)
        status[~np.isfinite(norms)] = NONFINITE
        status[(limit <= 0) & (status == RUNNING)] = ITERATION_LIMIT
        is_held = np.zeros(rows.size, dtype=bool) if stop.judges_x else stop.holds(measure, target, x, None)
        sizes = measured.two(1)
        if self.truth is None and stop.judges_x:
            is_held = is_held | is_below_range(norms, sizes, self.unit, self.smallest)
        has_failed = (norms == 0) & (solution.status[rows] > CONVERGED)
        if has_failed.any():  # F = 0 where another attempt is to begin, farther away
            has_failed &= sizes > norm2(gather(solution.start, rows))
        status[has_failed] = AT_INFINITY
        self._note_converged(status, (norms == 0) & ~has_failed, measure, x, is_held & ~has_failed)
        if self.scheduler is not None:
            self.scheduler.stop_beaten(status, rows)
        since, iterations = np.zeros((2, rows.size), dtype=np.int32)
        best = np.where(np.isfinite(measure), measure, np.inf)
        progress = measure.copy(), norms.copy(), since, x, F, best
        state = LoopState(
            rows,
            x,
            F,
            norms,
            norms.copy(),
            measure,
            target,
            *progress,
            limit,
            iterations,
            status,
            BatchProgress.at(sizes),
            norms.copy(),
        )
        return self._extend(state, J)

    def _measured_by_stop(self, measured: Norms, x: Array, rows: Indices) -> HostArray:
        """Norms of F in the norm of the stopping rule."""
        truth = self.truth
        return self.stop.norm_of(measured, self.whole.event_shape) if truth is None else truth(x, rows)

    def _admit(self, scheduler: Scheduler, age: int) -> None:
        """Start waiting systems, after `age` steps of the loop."""
        if self.entering is not None:
            self._join(self.entering, age)
        scheduler.count(self.state.rows.size)
        while (rows := scheduler.rows_to_admit(self.state.rows.size, idle=self.ADMITS)).size:
            if not self.state.rows.size:
                self.state = self._start(rows)
                self.state.limit += age
                self._compact()
                continue
            both = self.whole.take(np.append(self.state.rows, rows), self.solution.x)
            self.entering = NewSystems(both, gather(self.solution.x, rows), needs_jacobian=self._entering_need_jacobian)
            if self.FOLDS:
                self.evaluator.entering = self.entering
                return
            self._evaluate_entering(self.entering)
            self._join(self.entering, age)

    def _evaluate_entering(self, entering: NewSystems) -> None:
        """Evaluate systems that begin between two steps, together with those that run if that saves calls."""

    def _join(self, entering: NewSystems, age: int) -> None:
        """Take up systems whose x0 has been evaluated, or is now."""
        running, self.entering, self.evaluator.entering = self.state.rows.size, None, None
        new = self._start(entering.rows, F=entering.F, J=entering.J)
        new.limit += age
        self.state = self.state.concat(new, running) if running else new
        self.evaluator = self.whole.take(self.state.rows, self.solution.x)
        self._compact()

    @property
    def _entering_need_jacobian(self) -> bool:
        """Whether J is needed at x0."""
        return False

    def _accept(self, found: SearchResult, direction: Array) -> tuple[Array, HostArray]:
        """Take over what a search along `direction` found; return how far that was, and where x has stopped moving."""
        state = self.state
        with np.errstate(all="ignore"):
            moved, measured, is_whole = direction, found.measured, found.length == 1.0
            if not is_whole.all():
                moved = merge_rows(is_whole, direction, found.x - state.x)
                measured = None
            self.measured = measured = Norms(found.F, moved, found.x) if measured is None else measured
            has_stopped = ~has_halved(found.norms, state.norms)
            rows = np.flatnonzero(has_stopped)
            if rows.size:  # passes over memory, which a step that halves ||F|| is spared
                unit = eps(self.evaluator.xp, state.x.dtype)
                has_stopped[rows] = is_still(measured.largest(1, rows), measured.largest(2, rows), unit)
        state.norms_before = np.where(found.accepted, state.norms, state.norms_before)
        state.x, state.F, state.norms = found.x, found.F, found.norms
        is_number = state.x.shape[1] == 1 and self.truth is None and not callable(self.stop.norm)  # all norms are |F|
        state.measure = state.norms if is_number else self._measured_by_stop(measured, state.x, state.rows)
        state.iterations += found.accepted
        return moved, has_stopped

    def _is_good(self, norms: HostArray, is_last: HostArray) -> bool:
        """Whether a step has halved every ||F||: then few rules have anything to decide."""
        return not is_last.any() and bool(has_halved(norms, self.state.norms).all())

    def _take_good_step(self, measured: Norms, norms: HostArray) -> None:
        """Accept such a step, given F, the step, x and ||F||: what `_accept` and `_update_status` do, in few calls."""
        state = self.state
        self.measured, (state.F, step, state.x) = measured, measured.arrays
        state.norms_before = state.norms
        state.norms, state.measure = norms, self._measured_by_stop(measured, state.x, state.rows)
        state.iterations += 1
        self._mark_converged(step)

    def _update_status(
        self,
        accepted: HostArray,
        moved: Array | None,
        has_stopped: HostArray,
        is_last: HostArray,
        failed: HostArray,
        newton: Array | None = None,
    ) -> None:
        """Set the status of systems that have ended; a later line overrules an earlier one, and convergence all.

        `failed` is the method's own status of systems that have failed, and RUNNING elsewhere; `newton` is the Newton
        step before it was shortened at bounds.
        """
        state, status = self.state, self.state.status
        status[is_last] = ITERATION_LIMIT
        status[accepted & has_stopped] = STAGNATED
        with np.errstate(over="ignore"):
            status[has_diverged(state.norms, state.start_norms)] = DIVERGED
        np.copyto(status, failed, where=failed != RUNNING)
        if newton is not None and self.evaluator.box is not None:
            self.blocked = self.evaluator.box.blocks(state.x, newton)
            status[np.isin(status, BLOCKED) & self.blocked] = STATIONARY_ON_BOUND
        self._mark_converged(moved)

    def _note_progress(self, details: dict[str, HostArray]) -> None:
        """End systems that are to be left, and those without progress: after `patience` steps, or a spent budget."""
        state = self.state
        if self.leave is not None:
            norms = state.start_norms, state.norms, state.measure, state.target
            if self.leave(Standing(*norms, details["step_length"], state.progress.step)):
                state.status[state.status == RUNNING] = ITERATION_LIMIT
        is_progress = self._follow(state.best, state.measure)
        if state.norms is not state.measure:
            is_progress |= self._follow(state.least, state.norms)
        state.since = (state.since + 1) * ~is_progress
        is_over: Any = state.since.max() >= self.patience and state.since >= self.patience
        self.budget.charge(state, details)
        is_over |= self.budget.is_spent(state.rows)
        if np.any(is_over):
            ended = np.where(self.blocked, STATIONARY_ON_BOUND, STAGNATED)
            state.status = np.where(is_over & (state.status == RUNNING), ended, state.status)

    def _follow(self, best: HostArray, norms: HostArray) -> HostArray:
        """Take over norms that count as progress, in place; return where they do."""
        is_best = norms < self.NEW_BEST * best
        rows = np.flatnonzero(is_best)  # a mask without order costs ten times the passes by places
        best[rows] = norms[rows]
        return is_best
