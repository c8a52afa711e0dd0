"""The state that every Newton method keeps of a batch, and how a solve ends: `NewtonLoop`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import array_namespace, eps, from_host, gather, norm2, norm_max, scatter
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.monitor import Monitor, silent
from implicitsolve.newton._line_search import Searched
from implicitsolve.result import NewtonStep
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop

PATIENCE = 20  # accepted steps without a new best residual after which a system has stagnated
NEW_BEST = 0.99  # fraction of the best norm so far that counts as a new best
HALVED = 0.5  # reduction of ||F|| that no step brings that does not move x
DIVERGED = 1e12  # growth of ||F|| over its start that is called divergence


@dataclass
class Solution:
    """Where every system of a batch ended, or begins, on arrays (B, N) and host arrays (B,)."""

    x: Array
    F: Array
    status: HostArray
    norm: HostArray
    first_norm: HostArray
    iterations: HostArray
    krylov_iterations: HostArray
    steps: list[NewtonStep]

    @classmethod
    def at(cls, x0: Array) -> Solution:
        """Every system at its start."""
        xp, B = array_namespace(x0), x0.shape[0]
        return cls(
            x=xp.asarray(x0, copy=True),
            F=xp.zeros_like(x0),
            status=np.zeros(B, dtype=int),
            norm=np.zeros(B),
            first_norm=np.zeros(B),
            iterations=np.zeros(B, dtype=int),
            krylov_iterations=np.zeros(B, dtype=int),
            steps=[],
        )

    def restarted(self, rows: Indices, x0: Array) -> Solution:
        """Some systems back at their start, the others where they ended."""
        xp = array_namespace(x0)
        x, F = xp.asarray(self.x, copy=True), xp.asarray(self.F, copy=True)
        scatter(x, rows, gather(x0, rows))
        host = {
            name: getattr(self, name).copy()
            for name in ("status", "norm", "first_norm", "iterations", "krylov_iterations")
        }
        return Solution(x=x, F=F, steps=list(self.steps), **host)

    def improved(self, rows: Indices, other: Solution) -> Solution:
        """Take over what a second attempt at some systems made better."""
        with np.errstate(invalid="ignore"):
            is_better = (other.norm[rows] < self.norm[rows]) | (other.status[rows] == Status.CONVERGED)
        better = rows[is_better]
        scatter(self.x, better, gather(other.x, better))
        scatter(self.F, better, gather(other.F, better))
        self.norm[better], self.status[better] = other.norm[better], other.status[better]
        self.iterations, self.krylov_iterations = other.iterations, other.krylov_iterations
        self.steps = other.steps
        return self


class NewtonLoop:
    """State of one solve. Arrays hold the running systems only; `rows` are their places in the batch.

    A method is a subclass: `_step` finds the next iterates, and `_keep` forgets what the method knew of ended systems.
    """

    PER_SYSTEM: tuple[str, ...] = (
        "rows",
        "norms",
        "start_norms",
        "measure",
        "target",
        "best",
        "since",
        "limit",
        "code",
    )

    def __init__(
        self,
        evaluator: Evaluator,
        solution: Solution,
        stop: NonlinearStop,
        monitor: Monitor,
        rows: Indices | None = None,
    ) -> None:
        self.stop, self.monitor = stop, monitor
        self.whole, self.solution = evaluator, solution
        self.is_retry = rows is not None
        self.rows = np.arange(solution.status.size) if rows is None else rows
        self.evaluator = evaluator if rows is None else evaluator.take(rows, solution.x)
        self.x = gather(solution.x, self.rows)
        self.F = self._first_residual()
        self.norms = norm2(self.F)
        self.measure = stop.measure(self.F, evaluator.event_shape)
        self.target = stop.target(self.measure, self.F)
        self.start_norms = self.norms.copy()
        self.best, self.since = self.measure.copy(), np.zeros(self.rows.size, dtype=int)
        self.limit = stop.max_iterations - solution.iterations[self.rows]  # a second attempt has what the first left
        self.code = np.where(np.isfinite(self.norms), int(Status.RUNNING), int(Status.NONFINITE))
        self.code[(self.limit <= 0) & (self.code == Status.RUNNING)] = Status.ITERATION_LIMIT
        self.code[stop.holds(self.measure, self.target, self.x, None) | (self.norms == 0)] = Status.CONVERGED
        solution.first_norm[self.rows] = self.measure

    def _first_residual(self) -> Array:
        """F at the start."""
        return self.evaluator.residual(self.x)

    def _step(self, iteration: int, is_last: HostArray) -> None:
        """Direction, line search and verdict, for all running systems."""
        raise NotImplementedError

    def _keep(self, keep: Indices) -> None:
        """Forget what the method knew of the other systems."""
        raise NotImplementedError

    def run(self) -> Solution:
        """Step until every system has ended."""
        before = iteration = self.solution.steps[-1].iteration if self.is_retry else 0
        if not self.is_retry:
            self._report(0)
        self._retire()
        while self.rows.size:
            iteration += 1
            self._step(iteration, iteration - before >= self.limit)
            self._retire()
        return self.solution

    def _move(self, found: Searched, direction: Array) -> tuple[Array, HostArray]:
        """Take over what a search along `direction` found; return how far that was, and where x has stopped moving."""
        with np.errstate(all="ignore"):
            moved, is_whole = direction, found.length == 1.0
            if not is_whole.all():
                xp = self.evaluator.xp
                moved = xp.where(from_host(is_whole, direction)[:, None], direction, found.x - self.x)
            is_still = ~(found.norms < HALVED * self.norms)
            if is_still.any():  # two passes over memory, which a step that halves ||F|| is spared
                is_still &= norm_max(moved) <= eps(self.evaluator.xp, self.x.dtype) * norm_max(found.x)
        self.x, self.F, self.norms = found.x, found.F, found.norms
        self.measure = self.stop.measure(self.F, self.whole.event_shape)
        self.solution.iterations[self.rows] += found.accepted
        return moved, is_still

    def _judge(self, found: Searched, moved: Array, is_still: HostArray, is_last: HostArray, failed: HostArray) -> None:
        """Set the status of systems that have ended; a later line overrules an earlier one, and convergence all.

        `failed` holds the method's own verdict where it has one, and RUNNING elsewhere.
        """
        is_best = self.measure < NEW_BEST * self.best
        self.since = np.where(is_best, 0, self.since + 1)
        self.best = np.minimum(self.best, self.measure)
        code = self.code
        code[is_last] = Status.ITERATION_LIMIT
        code[(self.since >= PATIENCE) | (found.accepted & is_still)] = Status.STAGNATED
        with np.errstate(over="ignore"):
            code[self.norms > DIVERGED * self.start_norms] = Status.DIVERGED
        np.copyto(code, failed, where=failed != Status.RUNNING)
        code[self.stop.holds(self.measure, self.target, self.x, moved) | (self.norms == 0)] = Status.CONVERGED

    def _retire(self) -> None:
        """Store the systems that have ended and go on with the others."""
        ended = np.flatnonzero(self.code != Status.RUNNING)
        if not ended.size:
            return
        rows, solution = self.rows[ended], self.solution
        scatter(solution.x, rows, gather(self.x, ended))
        scatter(solution.F, rows, gather(self.F, ended))
        solution.status[rows], solution.norm[rows] = self.code[ended], self.measure[ended]
        keep = np.flatnonzero(self.code == Status.RUNNING)
        if keep.size:
            self.evaluator = self.evaluator.take(keep, self.x)
            self._keep(keep)
            self.x, self.F = gather(self.x, keep), gather(self.F, keep)
        for name in self.PER_SYSTEM:
            setattr(self, name, getattr(self, name)[keep])

    def _everything(self) -> tuple[Array, Array]:
        """Copies of x and F of the whole batch."""
        xp = array_namespace(self.x)
        x, F = xp.asarray(self.solution.x, copy=True), xp.asarray(self.solution.F, copy=True)
        scatter(x, self.rows, self.x)
        scatter(F, self.rows, self.F)
        return x, F

    def _report(self, iteration: int, **details: Any) -> None:
        """Add a step to the trace and show it to the monitor."""
        step = NewtonStep(
            iteration=iteration,
            systems=self.rows.copy(),
            residual_norm=self.measure.copy(),
            running=int((self.code == Status.RUNNING).sum()),
            counts=self.evaluator.tally.counts(),
            **details,
        )
        self.solution.steps.append(step)
        if self.monitor is not silent:
            x, F = self._everything()
            self.monitor(step, self.whole.unflatten(x), self.whole.unflatten(F))
