"""The state that every Newton method keeps of a batch, and how a solve ends: `NewtonLoop`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import Norms, array_namespace, eps, from_host, gather, scatter
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.monitor import Monitor, silent
from implicitsolve.newton._line_search import Searched
from implicitsolve.result import NewtonStep
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop

HALVED = 0.5  # reduction of ||F|| that no step brings that does not move x
BLOWN_UP = 1e12  # growth of ||F|| over its start that is called divergence
# As integers: an attribute of an enumeration costs a call.
RUNNING, CONVERGED, ITERATION_LIMIT = int(Status.RUNNING), int(Status.CONVERGED), int(Status.ITERATION_LIMIT)
STAGNATED, DIVERGED, NONFINITE = int(Status.STAGNATED), int(Status.DIVERGED), int(Status.NONFINITE)


@dataclass
class Solution:
    """Where every system of a batch ended, or begins, on arrays (B, N) and host arrays (B,)."""

    x: Array
    F: Array
    status: HostArray
    norm: HostArray
    first_norm: HostArray
    target: HostArray
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
            first_norm=np.full(B, np.nan),
            target=np.full(B, np.nan),
            iterations=np.zeros(B, dtype=int),
            krylov_iterations=np.zeros(B, dtype=int),
            steps=[],
        )

    def astype(self, dtype: Any) -> Solution:
        """The same in another precision."""
        host = {
            part.name: np.copy(getattr(self, part.name))
            for part in fields(self)
            if part.name not in ("x", "F", "steps")
        }
        with np.errstate(over="ignore"):
            x, F = (array_namespace(part).astype(part, dtype) for part in (self.x, self.F))
        return Solution(x=x, F=F, steps=list(self.steps), **host)

    def restarted(self, rows: Indices, x0: Array) -> Solution:
        """Some systems back at their start, the others where they ended."""
        xp = array_namespace(x0)
        x, F = xp.asarray(self.x, copy=True), xp.asarray(self.F, copy=True)
        scatter(x, rows, gather(x0, rows))
        host = {
            name: getattr(self, name).copy()
            for name in ("status", "norm", "first_norm", "target", "iterations", "krylov_iterations")
        }
        return Solution(x=x, F=F, steps=list(self.steps), **host)

    def improved(self, rows: Indices, other: Solution) -> Solution:
        """Take over what a second attempt at some systems made better."""
        with np.errstate(invalid="ignore"):
            is_better = (other.norm[rows] < self.norm[rows]) | (other.status[rows] == CONVERGED)
        better = rows[is_better]
        scatter(self.x, better, gather(other.x, better))
        scatter(self.F, better, gather(other.F, better))
        self.norm[better], self.status[better] = other.norm[better], other.status[better]
        self.first_norm, self.target = other.first_norm, other.target
        self.iterations, self.krylov_iterations = other.iterations, other.krylov_iterations
        self.steps = other.steps
        return self


class NewtonLoop:
    """State of one solve. Arrays hold the running systems only; `rows` are their places in the batch.

    A method is a subclass: `_step` finds the next iterates, and `_keep` forgets what the method knew of ended systems.
    Where more systems than `Evaluator.capacity` are to be solved the others wait, and begin together when all have
    ended: those at the same step share calls and memories of one length. But where few hold up the batch, so that half
    of the places (see `IDLE`) have stood free since others last began, `_join` takes them in, if the method `JOINS`.
    """

    JOINS = False
    IDLE = 1.0  # places that stood free, over those that did not, from which on waiting systems join the others
    STEPS = 100  # limit where the caller set none
    PATIENCE = 20  # steps without a new best residual after which a system has stagnated
    NEW_BEST = 0.99  # fraction of the last best norm that counts as a new best
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
        method: Any,  # settings
        evaluator: Evaluator,
        solution: Solution,
        stop: NonlinearStop,
        monitor: Monitor,
        rows: Indices | None = None,
    ) -> None:
        self.method = method
        self.stop, self.monitor = stop, monitor
        self.whole, self.solution = evaluator, solution
        self.is_retry = rows is not None
        rows = np.arange(solution.status.size) if rows is None else rows
        self.places = rows.size if evaluator.capacity is None else evaluator.capacity
        self.rows, self.waiting = rows[: self.places], rows[self.places :]
        self.places_used = self.places_idle = 0  # places, summed over the steps since waiting systems last began
        is_whole = not self.is_retry and not self.waiting.size
        self.evaluator = evaluator if is_whole else evaluator.take(self.rows, solution.x)
        self.x = solution.x if is_whole else gather(solution.x, self.rows)
        self.F = self._first_residual()
        measured = Norms(self.F)
        self.norms = measured.two(0)
        self.measure = stop.measured(measured, evaluator.event_shape)
        first = solution.first_norm[self.rows]  # of a stage that goes on from another one, or tries again, it is known
        solution.first_norm[self.rows] = np.where(np.isnan(first), self.measure, first)
        self.target = solution.target[self.rows] = stop.target(self._reference(), self.F)
        self.start_norms = self.norms.copy()
        self.best, self.since = self.measure.copy(), np.zeros(self.rows.size, dtype=int)
        self.limit = stop.remaining(self.STEPS, solution.iterations[self.rows])
        self.code = np.where(np.isfinite(self.norms), RUNNING, NONFINITE)
        self.code[(self.limit <= 0) & (self.code == RUNNING)] = ITERATION_LIMIT
        self.code[stop.holds(self.measure, self.target, self.x, None) | (self.norms == 0)] = CONVERGED
        self._concede()

    def _first_residual(self) -> Array:
        """F at the start."""
        return self.evaluator.residual(self.x)

    def _step(self, iteration: int, is_last: HostArray) -> None:
        """Direction, line search and verdict, for all running systems."""
        raise NotImplementedError

    def _keep(self, keep: Indices) -> None:
        """Forget what the method knew of the other systems."""
        raise NotImplementedError

    def _join(self, other: NewtonLoop) -> None:
        """Take over what the method knows of another loop's systems, which come behind the present ones."""
        raise NotImplementedError

    def run(self) -> Solution:
        """Step until every system has ended."""
        before = iteration = self.solution.steps[-1].iteration if self.is_retry else 0
        if not self.is_retry:
            self._report(0)
        self._retire()
        loop = self._refilled(0)
        while loop.rows.size:
            iteration += 1
            loop._step(iteration, iteration - before >= loop.limit)
            loop._retire()
            loop = loop._refilled(iteration - before)
        self._settle()
        return self.solution

    # Systems that wait for a place

    def _refilled(self, age: int) -> NewtonLoop:
        """The loop that goes on, with waiting systems in the free places where it is time; `age` is in steps."""
        loop = self
        loop.places_used += loop.rows.size
        loop.places_idle += loop.places - loop.rows.size
        while loop.waiting.size and loop._has_room():
            free = loop.places - loop.rows.size
            begin: Any = type(self)
            other = begin(self.method, self.whole, self.solution, self.stop, self.monitor, loop.waiting[:free])
            other.limit = other.limit + age
            other.waiting = loop.waiting[free:]
            other._retire()
            loop = loop._with(other) if loop.rows.size else other
        return loop

    def _has_room(self) -> bool:
        """Whether waiting systems begin now."""
        is_full = self.rows.size == self.places
        return not self.rows.size or (self.JOINS and not is_full and self.places_idle >= self.IDLE * self.places_used)

    def _with(self, other: NewtonLoop) -> NewtonLoop:
        """Go on with the systems of another loop besides."""
        self.waiting, self.places_used, self.places_idle = other.waiting, 0, 0
        if other.rows.size:
            xp = array_namespace(self.x)
            self._join(other)
            self.x, self.F = xp.concat([self.x, other.x], axis=0), xp.concat([self.F, other.F], axis=0)
            for name in self.PER_SYSTEM:
                setattr(self, name, np.concatenate([getattr(self, name), getattr(other, name)]))
            self.evaluator = self.whole.take(self.rows, self.solution.x)
        return self

    # Rivals

    def _reference(self) -> HostArray:
        """Norms that the tolerance is relative to: the caller's, else those at the start, for rivals the first's."""
        groups, first = self.whole.groups, self.solution.first_norm
        if self.whole.reference is not None:
            return self.whole.reference[self.rows]
        if groups is None:
            return first[self.rows]
        finite = np.flatnonzero(np.isfinite(first))[::-1]
        reference = np.full(groups.max() + 1, np.nan)
        reference[groups[finite]] = first[finite]  # of several assignments the last one stays
        return reference[groups[self.rows]]

    def _concede(self) -> None:
        """Stop the rivals of systems that have converged."""
        groups = self.whole.groups
        if groups is not None:
            won = groups[self.rows[self.code == CONVERGED]]
            self.code[(self.code == RUNNING) & np.isin(groups[self.rows], won)] = Status.STOPPED

    def _settle(self) -> None:
        """Call stopped, too, the rivals that had failed before, so that none of them is solved again."""
        groups, status = self.whole.groups, self.solution.status
        if groups is not None:
            is_won = np.isin(groups, groups[status == CONVERGED])
            status[is_won & (status != CONVERGED)] = Status.STOPPED

    def _move(self, found: Searched, direction: Array) -> tuple[Array, HostArray]:
        """Take over what a search along `direction` found; return how far that was, and where x has stopped moving."""
        with np.errstate(all="ignore"):
            moved, measured, is_whole = direction, found.measured, found.length == 1.0
            if not is_whole.all():
                xp = self.evaluator.xp
                moved = xp.where(from_host(is_whole, direction)[:, None], direction, found.x - self.x)
                measured = None
            measured = Norms(found.F, moved, found.x) if measured is None else measured
            is_still = ~(found.norms < HALVED * self.norms)
            if is_still.any():  # two passes over memory, which a step that halves ||F|| is spared
                is_still &= measured.largest(1) <= eps(self.evaluator.xp, self.x.dtype) * measured.largest(2)
        self.x, self.F, self.norms = found.x, found.F, found.norms
        self.measure = self.stop.measured(measured, self.whole.event_shape)
        self.solution.iterations[self.rows] += found.accepted
        return moved, is_still

    def _judge(self, found: Searched, moved: Array, is_still: HostArray, is_last: HostArray, failed: HostArray) -> None:
        """Set the status of systems that have ended; a later line overrules an earlier one, and convergence all.

        `failed` holds the method's own verdict where it has one, and RUNNING elsewhere.
        """
        is_best = self.measure < self.NEW_BEST * self.best
        self.since = np.where(is_best, 0, self.since + 1)
        self.best = np.where(is_best, self.measure, self.best)
        code = self.code
        code[is_last] = ITERATION_LIMIT
        code[(self.since >= self.PATIENCE) | (found.accepted & is_still)] = STAGNATED
        with np.errstate(over="ignore"):
            code[self.norms > BLOWN_UP * self.start_norms] = DIVERGED
        np.copyto(code, failed, where=failed != RUNNING)
        code[self.stop.holds(self.measure, self.target, self.x, moved) | (self.norms == 0)] = CONVERGED
        self._concede()

    def _retire(self) -> None:
        """Store the systems that have ended and go on with the others."""
        if self.code.size == 1 and self.code[0] == RUNNING:
            return
        ended = np.flatnonzero(self.code != RUNNING)
        if not ended.size:
            return
        rows, solution = self.rows[ended], self.solution
        if rows.size == solution.status.size:  # all at once, so in their order
            solution.x, solution.F = self.x, self.F
        else:
            scatter(solution.x, rows, gather(self.x, ended))
            scatter(solution.F, rows, gather(self.F, ended))
        solution.status[rows], solution.norm[rows] = self.code[ended], self.measure[ended]
        keep = np.flatnonzero(self.code == RUNNING)
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
            running=int((self.code == RUNNING).sum()) + self.waiting.size,
            counts=self.evaluator.tally.counts(),
            **details,
        )
        self.solution.steps.append(step)
        if self.monitor is not silent:
            x, F = self._everything()
            self.monitor(step, self.whole.unflatten(x), self.whole.unflatten(F))
