"""What a loop keeps of a batch: the best points, the systems that have ended, and the trace."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np

from implicitsolve._arrays.host import gather, merge_rows, scatter
from implicitsolve._arrays.namespace import array_namespace, copy_array
from implicitsolve._record import NewtonStep
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.linearize._evaluator import Evaluator, NewSystems
from implicitsolve.monitor import Monitor, ends_solve, silent
from implicitsolve.nonlinear._convergence import CONVERGED, ITERATION_LIMIT, RUNNING, BatchConvergence
from implicitsolve.nonlinear._state import LoopState, Scheduler, Solution, SolveMemory
from implicitsolve.status import Status

State = TypeVar("State", bound=LoopState)


class BatchRecord(BatchConvergence, Generic[State]):
    """The systems that iterate, in `state`, and where the others ended, in `solution`."""

    state: State
    solution: Solution
    evaluator: Evaluator  # of the systems that iterate
    whole: Evaluator
    memory: SolveMemory
    monitor: Monitor
    scheduler: Scheduler | None
    entering: NewSystems | None  # systems that join after the next step

    def _part(self, rows: Indices) -> tuple[Evaluator, Array, Array]:
        """Evaluator, x and F of some of the running systems."""
        if rows.size == self.state.rows.size:
            return self.evaluator, self.state.x, self.state.F
        return self.evaluator.take(rows, self.state.x), gather(self.state.x, rows), gather(self.state.F, rows)

    def _note_best(self) -> HostArray:
        """Keep the points with the smallest norms of F; return where these are new."""
        state = self.state
        is_better = state.measure < state.best_measure  # False for NaN
        if is_better.all():
            state.best_x, state.best_F, state.best_measure = state.x, state.F, state.measure
        elif is_better.any():
            state.best_x = merge_rows(is_better, state.x, state.best_x)
            state.best_F = merge_rows(is_better, state.F, state.best_F)
            state.best_measure = np.fmin(state.measure, state.best_measure)
        return is_better

    def _end_at_best(self) -> None:
        """Put systems that have failed at the best of their points."""
        state = self.state
        failed = (state.status != RUNNING) & (state.status != CONVERGED) & np.isfinite(state.best_measure)
        if self.stop.keeps_last or (self.scheduler is not None and self.scheduler.reference is not None):
            failed &= state.status != ITERATION_LIMIT  # what follows continues from the last point
        if failed.all():
            state.x, state.F, state.measure = state.best_x, state.best_F, state.best_measure
        elif failed.any():
            state.x, state.F = merge_rows(failed, state.best_x, state.x), merge_rows(failed, state.best_F, state.F)
            state.measure = np.where(failed, state.best_measure, state.measure)

    def _compact(self) -> None:
        """Store the systems that have ended, and compact the others."""
        state, solution = self.state, self.solution
        is_running = state.status == RUNNING
        if is_running.all():
            return
        ended, keep = np.flatnonzero(~is_running), np.flatnonzero(is_running)
        self._end_at_best()
        rows = state.rows[ended]
        if rows.size == solution.status.size:  # all at once, so in their order
            solution.x, solution.F = state.x, state.F
        else:
            if solution.x is state.x or solution.x is state.best_x:
                solution.x = copy_array(solution.x)
            scatter(solution.x, rows, gather(state.x, ended))
            scatter(solution.F, rows, gather(state.F, ended))
        solution.status[rows], solution.norm[rows] = state.status[ended], state.measure[ended]
        is_known = (state.status[ended] == CONVERGED) & np.isfinite(state.progress.error[ended])
        errors = np.where(is_known, state.progress.error[ended], np.nan)
        solution.error[rows] = np.where(
            (state.norms[ended] == 0) & (state.status[ended] == CONVERGED), self.unit, errors
        )
        solution.target[rows] = state.target[ended]
        solution.iterations[rows] += state.iterations[ended]
        if keep.size:
            whole, self.evaluator = self.evaluator, self.evaluator.take(keep, state.x)
            whole.check_take(self.evaluator, keep, state.x, state.F)
            state.keep(keep)
        else:
            state.rows = keep

    def _whole_batch(self) -> tuple[Array, Array]:
        """Copies of x and F of the whole batch."""
        xp, state = array_namespace(self.state.x), self.state
        x, F = xp.asarray(self.solution.x, copy=True), xp.asarray(self.solution.F, copy=True)
        scatter(x, state.rows, state.x)
        scatter(F, state.rows, state.F)
        return x, F

    def _record(self, iteration: int, **details: HostArray) -> None:
        """Add a step to the trace and pass it to the monitor."""
        state = self.state
        waiting = 0 if self.scheduler is None else self.scheduler.waiting.size
        started = 0 if self.entering is None else self.entering.x.shape[0]
        step = NewtonStep(
            iteration=iteration,
            systems=state.rows.copy(),
            residual_norm=state.measure.copy(),
            target=state.target.copy(),
            error=state.progress.error.copy(),
            running=int(np.count_nonzero(state.status == RUNNING)) + started + waiting,
            started=started,
            waiting=waiting,
            counts=self.evaluator.tally.counts(),
            sparsity="" if iteration or self.memory.detection is None else str(self.memory.detection),
            **details,
        )
        self.solution.steps.append(step)
        if self.monitor is not silent:
            x, F = self._whole_batch()
            answer = self.monitor(step, self.whole.unflatten(x), self.whole.unflatten(F))
            if ends_solve(answer):
                self.whole.tally.ended = Status.STOPPED_BY_MONITOR
