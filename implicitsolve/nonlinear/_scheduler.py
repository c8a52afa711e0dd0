"""Arguments of a nonlinear method other than x0: the problem, the stopping criteria, and the active systems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from implicitsolve._namespace import eps, gather, norm2
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.monitor import Monitor, silent
from implicitsolve.nonlinear._refactor_rule import ROUNDING
from implicitsolve.nonlinear._state import CONVERGED, LoopState, Solution, SolveMemory
from implicitsolve.result import Retry
from implicitsolve.status import Status, StatusArray
from implicitsolve.stopping import NonlinearStop

LITTLE = 0.02  # the same from which on another attempt is not worth its evaluations: it gains two digits at most
NEAR = 1e-3  # of ||F(x0)||: a system that has come so far is likely to have a root
ENDS = (Status.STAGNATED, Status.LINE_SEARCH_FAILED)  # of systems whose F may have met its rounding error


class Scheduler:
    """Which systems of a batch iterate, and which wait or have been beaten.

    Parameters
    ----------
    capacity : int, optional
        Most systems that iterate at a time; the others wait. A method that supports it admits them next to those that
        run, as soon as on average a given part of the places has been idle since systems were last admitted; any
        other when all running ones have ended.
    groups : ndarray (B,) of int, optional
        Systems with one number are starts of the same system: once one has converged, the others are stopped, and
        their tolerance is relative to the norm of F at the first of these starts.
    reference : ndarray (B,), optional
        Norms that tolerances are relative to, in place of those at the start.
    """

    def __init__(
        self, *, capacity: int | None = None, groups: HostArray | None = None, reference: HostArray | None = None
    ) -> None:
        self.capacity: int | None = capacity
        self.groups: HostArray | None = groups
        self.reference: HostArray | None = reference
        self.waiting: Indices = np.zeros(0, dtype=int)
        self.used: int = 0  # places, summed over the steps since systems were last admitted
        self.idle: int = 0

    def begin(self, rows: Indices) -> Indices:
        """Return those of `rows` that iterate first; the others wait."""
        self.waiting, self.used, self.idle = rows[:0], 0, 0
        if self.capacity is not None:
            rows, self.waiting = rows[: self.capacity], rows[self.capacity :]
        return rows

    def count(self, running: int) -> None:
        """Count the slots that one step has used."""
        if self.capacity is not None:
            self.used, self.idle = self.used + running, self.idle + self.capacity - running

    def admitted(self, running: int, *, idle: float | None) -> Indices:
        """Return waiting systems to admit next to the `running` ones.

        They are admitted if at least `idle` times as many slots were idle as were used; None for never.
        """
        if self.capacity is None or running == self.capacity:
            return self.waiting[:0]
        if running and (idle is None or self.idle < idle * self.used):
            return self.waiting[:0]
        free = self.capacity - running
        rows, self.waiting = self.waiting[:free], self.waiting[free:]
        if rows.size:
            self.used = self.idle = 0
        return rows

    def reference_norms(self, first: HostArray, rows: Indices) -> HostArray:
        """Norms that the tolerances of some systems are relative to, given those of all at their start."""
        if self.reference is not None:
            return self.reference[rows]
        if self.groups is None:
            return first[rows]
        finite = np.flatnonzero(np.isfinite(first))[::-1]
        reference = np.full(self.groups.max() + 1, np.nan)
        reference[self.groups[finite]] = first[finite]  # the last assignment stays: that of the first start
        return reference[self.groups[rows]]

    def stop_beaten(self, status: HostArray, rows: Indices) -> None:
        """Stop, in `status`, those of the running systems `rows` of whose group one has converged."""
        if self.groups is not None:
            won = self.groups[rows[status == CONVERGED]]
            status[(status == Status.RUNNING) & np.isin(self.groups[rows], won)] = Status.STOPPED

    def finish(self, status: HostArray) -> None:
        """At the end of a solve, mark as stopped whatever else became of such systems: none of them is retried."""
        if self.groups is not None:
            is_won = np.isin(self.groups, self.groups[status == CONVERGED])
            status[is_won & (status != CONVERGED)] = Status.STOPPED


@dataclass(frozen=True)
class SolveContext:
    """The problem and the settings of one solve, shared by all methods that it uses."""

    evaluator: Evaluator
    stop: NonlinearStop
    monitor: Monitor = silent
    scheduler: Scheduler | None = None  # of a solve in which all systems iterate to their own end, there is none
    leave: Callable[[LoopState], bool] | None = None  # whether all running systems end, with ITERATION_LIMIT
    truth: Callable[[Array, Indices], HostArray] | None = None  # norms of the caller's F, where another F is solved
    previous: SolveMemory = field(default_factory=SolveMemory)  # what an earlier solve left; never written
    memory: SolveMemory = field(default_factory=SolveMemory)  # what this one leaves


class NonlinearMethod(Protocol):
    """Frozen settings of a nonlinear solver, for arrays (B, N).

    Attributes
    ----------
    kind : "nonlinear"
    eliminates : bool
        Whether every second block of a problem with `halves` may be eliminated before the solve.
    keeps_bounds : bool
        Whether no evaluation violates the bounds of a problem.
    rdiff : float or None
        Relative step of difference products; None for the default.
    """

    kind: ClassVar[str]
    keeps_bounds: ClassVar[bool]

    @property
    def eliminates(self) -> bool: ...
    @property
    def rdiff(self) -> float | None: ...

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        """Solve the systems `rows`, all by default, from ``start.x``; return `start` with them at their end."""
        ...


def unsolved(context: SolveContext, solution: Solution) -> HostArray:
    """Which systems have failed, from a finite start, with iterations left."""
    failed = (solution.status != Status.CONVERGED) & (solution.status != Status.STOPPED)
    return failed & np.isfinite(solution.first_norm) & (context.stop.remaining(1, solution.iterations) > 0)


def retried(
    method: NonlinearMethod, context: SolveContext, first: Solution, rows: Indices, *, anyway: bool = False
) -> Solution:
    """Solve some systems again from their start by another method, and take over what improved.

    Systems that ended with nothing left in F but rounding errors, which no method would reduce, are left as they are.
    So is a single one that has spent its allowance far from a root, unless it is to be tried `anyway`.
    """
    tally = context.evaluator.tally
    solution = first
    is_hopeless = first.status.size == 1 and tally.allowance <= 0 and first.norm[0] > NEAR * first.first_norm[0]
    if not first.retries:  # a trust region converges where line searches end at a minimizer of ||F||
        tally.renew_allowance()
    elif is_hopeless and not anyway:
        return first
    if not tally.is_spent():
        rows = rows[~_is_exhausted(context, first, rows)]
    if rows.size and not tally.is_spent():
        again = first.restarted(rows)
        iteration = first.steps[-1].iteration if first.steps else 0
        reasons = first.status[rows].view(StatusArray)
        found = method.solve(context, again, rows)
        status = found.status[rows].view(StatusArray)
        retry = Retry(method=_label(method), iteration=iteration, systems=rows, reasons=reasons, status=status)
        found.retries.insert(len(first.retries), retry)  # before those within it
        solution = first.improved(rows, found)
    if tally.ended is not None:
        solution.status[rows] = np.where(solution.status[rows] == CONVERGED, CONVERGED, tally.ended)
    return solution


def _label(method: NonlinearMethod) -> str:
    """A method and its line search."""
    search = getattr(method, "line_search", None)
    name = getattr(method, "label", type(method).__name__)
    return name if search is None else f"{name} with {type(search).__name__}"


def _is_exhausted(context: SolveContext, solution: Solution, rows: Indices) -> HostArray:
    """Which systems ended where F is little but rounding error; takes an evaluation if any may have."""
    exhausted = np.zeros(rows.size, dtype=bool)
    ended = np.flatnonzero(np.isin(solution.status[rows], ENDS))
    capacity = None if context.scheduler is None else context.scheduler.capacity
    for first in range(0, ended.size, capacity or max(ended.size, 1)):
        some = ended[first : first + (capacity or ended.size)]
        x, part = gather(solution.x, rows[some]), context.evaluator.take(rows[some], solution.x)
        exhausted[some] = is_rounding(part, x, gather(solution.F, rows[some]), LITTLE)
    return exhausted


def is_rounding(part: Evaluator, x: Array, F: Array, share: float = ROUNDING) -> HostArray:
    """Whether F changes by that share of its size from x to its neighbouring floating-point number; an evaluation."""
    xp = part.xp
    sign = xp.asarray(1 - 2 * (np.arange(x.shape[1]) % 2), dtype=x.dtype, device=x.device)
    neighbour = part.residual(x * (1 + eps(xp, x.dtype) * sign), keep=False)
    with np.errstate(all="ignore"):
        return norm2(neighbour - F) >= share * norm2(F)
