"""The state of a solve that all methods share: its settings, the systems that iterate or wait, and its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from implicitsolve._arrays.host import gather
from implicitsolve._arrays.namespace import array_namespace, eps
from implicitsolve._sparse_structure import Sparse
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels._norms import norm2
from implicitsolve.krylov._recycling import RecycledSpace
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._sparse_assemble import SparseAssembler
from implicitsolve.monitor import Monitor, silent
from implicitsolve.nonlinear._accuracy import BatchProgress
from implicitsolve.nonlinear._sparse_inverse import SparseInverses
from implicitsolve.operators._wrappers import SystemArrays
from implicitsolve.precondition._lagged import UNLIMITED, BatchedInverse
from implicitsolve.problem import Problem
from implicitsolve.result import Retry, Solution
from implicitsolve.status import Status, StatusArray
from implicitsolve.stopping import ALLOWANCE, PER_PROGRESS, NonlinearStop, Tally
from implicitsolve.structure import Detection

CONVERGED = int(Status.CONVERGED)
ROUNDING = 0.5  # F's change between neighbouring numbers, over F, from which on F is rounding error
LITTLE = 0.02  # the same from which on another attempt is not worth its evaluations: it gains two digits at most
PROGRESS, CLEAR = 0.99, 0.5  # parts of the least norm: a step earns PER_PROGRESS evaluations, and all it took
RENEWAL = 0.1  # part of the least norm: after such a step an allowance begins again
ASSEMBLIES = 4  # of J that an allowance covers at least
USED_PART = 0.1  # of a step, accepted, from which on its linear solve counts as needed
WORTHWHILE = 0.75  # part of the iterations of a linear solve that was not accurate, from which on another is worth it
IDLE_PART, IDLE_SHARE = 0.9, 2  # part to which a first attempt has to reduce ||F|| in the allowance over 2,
IDLE_STEPS = 3  # ... where it may not go on after as many steps without progress
ENDS = (Status.STAGNATED, Status.LINE_SEARCH_FAILED)  # of systems whose F may have met its rounding error


@dataclass
class LoopState(SystemArrays):
    """The active systems; a method adds its own fields."""

    rows: Indices  # places in the whole batch
    x: Array  # (b, N)
    F: Array  # F(x)
    norms: HostArray  # ||F||_2
    start_norms: HostArray  # the same at the start
    measure: HostArray  # norm of F in the norm of the stopping rule
    target: HostArray  # right-hand side of the stopping rule
    best: HostArray  # smallest `measure` that counted as progress
    least: HostArray  # ... and ||F||_2, which searches reduce where another norm, that of the rule, lags behind
    lowest: HostArray  # the smallest ||F||_2 of all
    since: HostArray  # steps since the last progress
    best_x: Array  # the point with the smallest `measure` of all, and F there
    best_F: Array
    best_measure: HostArray
    limit: HostArray  # step of the loop that is the last one
    iterations: HostArray  # steps that were accepted
    status: HostArray  # codes of `Status`
    progress: BatchProgress  # of x
    norms_before: HostArray  # ||F||_2 before the last accepted step


class Allowance:
    """Evaluations that each system of a solve may take without progress; see `NonlinearStop.max_evaluations`.

    Of a single system all that are counted are charged; of one in a batch, whose charge must not depend on the others,
    what it would take alone without searches along a direction.
    """

    def __init__(self, solution: Solution, tally: Tally, *, is_retry: bool, is_limited: bool, reserve: int = 0) -> None:
        self.charged: HostArray = solution.charged
        self.tally, self.is_retry, self.reserve = tally, is_retry, reserve
        self.is_charged: bool = tally.most is None
        self.is_limited: bool = is_limited and self.is_charged
        self.is_single: bool = self.charged.size == 1
        self.earlier: HostArray | None = solution.norm.copy() if is_retry else None  # where others ended
        self.assembly: int = 0  # evaluations that an assembly of J takes,
        self.linear: int = 0  # ... and a linear solve by products alone, in a first attempt at a single system
        self.lacking: float = 0.0  # below which another linear solve would not be accurate either
        self.exempt: HostArray = np.zeros(self.charged.size, dtype=bool)  # systems whose progress ||F|| does not show
        self.charged += tally.charge() * (self.is_charged and self.is_single)

    @property
    def most(self) -> int:
        """All of the allowance, less what a last assembly takes."""
        return max(ALLOWANCE - self.assembly, ASSEMBLIES * max(self.assembly, self.linear)) - self.reserve

    @property
    def withheld(self) -> int:
        """What a first attempt without progress has to leave."""
        return self.most - self.most // IDLE_SHARE

    def note_solve(self, iterations: int, is_accurate: bool, length: float) -> None:
        """Note a linear solve of a single system by products, and the part of its step that was accepted."""
        if is_accurate or self.rest_of_one() > 0:  # else the allowance ended it
            self.lacking = 0.0 if is_accurate else WORTHWHILE * iterations
        if is_accurate and self.is_single and not self.is_retry and length >= USED_PART:
            self.linear = max(self.linear, iterations)

    def is_spent(self, state: LoopState) -> HostArray | bool:
        """Where nothing is left to systems."""
        if not self.is_limited or self.charged.max() < min(self.most, self.most // IDLE_SHARE):
            return False
        return self.left(state) <= 0

    def left(self, state: LoopState) -> HostArray:
        """What is left to systems that are limited; only a half of it in a first attempt without progress."""
        is_idle = (state.lowest > IDLE_PART * state.start_norms) | (state.since >= IDLE_STEPS)
        return self.rest(state.rows) - self.withheld * (is_idle & (not self.is_retry))

    def rest(self, rows: Indices) -> HostArray:
        """What is left to systems in all: no stage of a step takes more."""
        if self.is_single:
            return np.full(rows.size, self.rest_of_one())
        if not self.is_limited:
            return np.full(rows.size, UNLIMITED)
        return np.where(self.exempt[rows], UNLIMITED, self.most - self.charged[rows])

    def rest_of_one(self) -> int:
        """The same for a single system, less what its step has taken so far."""
        if not self.is_limited or self.exempt[0]:
            return UNLIMITED
        return self.most - int(self.charged[0]) - (self.tally.evaluations - self.tally.charged)

    def left_of_one(self, lowest: float, start: float, since: int) -> int:
        """`left` for a single system: its smallest ||F||_2, that at its start, and its steps without progress."""
        is_idle = (lowest > IDLE_PART * start or since >= IDLE_STEPS) and not self.is_retry
        return self.rest_of_one() - (self.withheld if is_idle else 0)

    def charge(self, state: LoopState, details: dict[str, HostArray]) -> None:
        """Charge a step, described by what the trace notes of it, less what it has earned."""
        if self.is_single:
            norms = state.measure, state.norms, state.best_measure, state.lowest
            self.charge_one(*(float(norm[0]) for norm in norms))
        elif self.is_charged:
            self._charge_each(state, details)
        state.lowest = np.fmin(state.lowest, state.norms)

    def _charge_each(self, state: LoopState, details: dict[str, HostArray]) -> None:
        rows, is_whole = state.rows, state.rows.size == self.charged.size
        spent = self.charged if is_whole else self.charged[rows]
        cost, fresh = 1 + details.get("krylov_iterations", 0), details.get("factorized")
        cost = cost if fresh is None or not fresh.any() else cost + self.assembly * fresh
        with np.errstate(all="ignore"):  # smaller of both norms, over their least values
            left = np.fmin(state.measure / state.best_measure, state.norms / state.lowest)
        earned = PER_PROGRESS * (left < PROGRESS)
        if np.max(cost) > PER_PROGRESS or spent.max() > 0:  # else a large reduction earns no more than a small one
            is_clear, is_new = left < CLEAR, left < RENEWAL
            if self.earlier is not None:
                is_clear &= state.measure < self.earlier[rows]
                is_new &= state.measure < RENEWAL * self.earlier[rows]
            earned = np.maximum(earned, np.maximum(cost, PER_PROGRESS) * is_clear)
            spent -= np.maximum(spent, 0) * is_new
        spent += cost - earned
        if not is_whole:
            self.charged[rows] = spent

    def charge_one(self, measure: float, norm: float, best: float, lowest: float) -> None:
        """The same for a single system, given both norms and their least values before this step."""
        cost = self.tally.charge()
        if not self.is_charged:
            return
        earlier = np.inf if self.earlier is None else self.earlier[0]
        if measure < RENEWAL * earlier and (measure < RENEWAL * best or norm < RENEWAL * lowest):
            self.charged[0] = min(self.charged[0], 0)
        has_halved = measure < CLEAR * best or norm < CLEAR * lowest
        if has_halved and measure < earlier:
            cost -= max(cost, PER_PROGRESS)
        elif measure < PROGRESS * best or norm < PROGRESS * lowest:
            cost -= PER_PROGRESS
        self.charged[0] += cost
        if not has_halved and self.rest_of_one() < self.lacking:
            self.charged[0] = max(self.charged[0], self.most)


@dataclass
class SolveMemory:
    """What is known of J after a solve."""

    declared: Any = None  # the problem's structure
    detection: Detection | None = None  # the sparsity that was used, or why none was; without values
    assembler: SparseAssembler | None = None  # the coloring
    inverses: SparseInverses | None = None  # the ordering of the factors, and what iterations with J have cost
    inverse: BatchedInverse | None = None  # the last factors
    space: RecycledSpace | None = None  # recycled Krylov vectors
    keeps: bool = False  # whether factors and spaces, which take most memory, are kept too


def memory_of(caller: str, problem: Problem, x0: Array, previous: Any) -> SolveMemory:
    """What a previous result left to a solve of `problem` from x0; raise if it is none of a problem like this."""
    if not hasattr(previous, "_memory"):
        raise TypeError(f"{caller}: `previous` must be the result of an earlier solve, got {type(previous).__name__}")
    x, memory = previous.x, previous._memory
    batch_shape = tuple(x0.shape[: problem.batch_ndim])
    if x.shape != x0.shape or np.shape(previous.status) != batch_shape:
        raise ValueError(
            f"{caller}: `previous` must have unknowns of shape {tuple(x0.shape)}, batch shape {batch_shape}, "
            f"got {tuple(x.shape)}, batch shape {np.shape(previous.status)}"
        )
    if x.dtype != x0.dtype or array_namespace(x) is not array_namespace(x0):
        raise ValueError(f"{caller}: `previous` must have unknowns of {x0.dtype} in the library of x0, got {x.dtype}")
    if memory is None:
        return SolveMemory()
    structure, earlier = problem.structure, memory.declared
    if not _may_be_same(structure, earlier):
        raise ValueError(f"{caller}: `previous` must have the problem's structure, {structure!r}, got {earlier!r}")
    return memory


def _may_be_same(first: Any, second: Any) -> bool:
    if any(structure is None or isinstance(structure, str) for structure in (first, second)):
        return True
    if isinstance(first, Sparse) and isinstance(second, Sparse):
        return first.has_entries_of(second)
    return bool(first == second)


class Scheduler:
    """Which systems of a batch iterate, and which wait or have been beaten.

    At most `capacity` iterate at a time; the others wait. A method that supports it admits them next to those that run,
    as soon as on average a given part of the places has been idle since systems were last admitted; any other when all
    running ones have ended. Systems with one number in `groups` (B,) are starts of the same system: once one has
    converged, the others are stopped, and their tolerance is relative to the norm of F at the first of these starts.
    `reference` (B,) are norms that tolerances are relative to, in place of those at the start.
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
    reserve: int = 0  # evaluations of each system's allowance that are left to later methods
    leave: Callable[[LoopState], bool] | None = None  # whether all running systems end, with ITERATION_LIMIT
    truth: Callable[[Array, Indices], HostArray] | None = None  # norms of the caller's F, where another F is solved
    first: Array | None = None  # F at the start, where it is known
    previous: SolveMemory = field(default_factory=SolveMemory)  # what an earlier solve left; never written
    memory: SolveMemory = field(default_factory=SolveMemory)  # what this one leaves


class NonlinearMethod(Protocol):
    """Frozen settings of a nonlinear solver, for arrays (B, N)."""

    kind: ClassVar[str] = "nonlinear"
    keeps_bounds: ClassVar[bool] = False  # whether no evaluation violates the bounds of a problem

    @property
    def eliminates(self) -> bool:
        """Whether every second block of a problem with `halves` may be eliminated before the solve."""
        return False

    @property
    def rdiff(self) -> float | None:
        """Relative step of difference products; None for the default."""
        return None

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        """Solve the systems `rows`, all by default, from ``start.x``; return `start` with them at their end."""
        ...


class FixedPointMethod(NonlinearMethod, Protocol):
    """Settings of a method for fixed-point problems, of which it may solve for half of the blocks."""

    @property
    def eliminates(self) -> bool:
        return True


def unsolved(context: SolveContext, solution: Solution) -> HostArray:
    """Which systems have failed, from a finite start, with iterations left."""
    failed = ~np.isin(solution.status, (Status.CONVERGED, Status.STOPPED, Status.AT_INFINITY))
    return failed & np.isfinite(solution.first_norm) & (context.stop.remaining(1, solution.iterations) > 0)


def retried(
    method: NonlinearMethod, context: SolveContext, first: Solution, rows: Indices, *, continues: bool = False
) -> Solution:
    """Solve some systems again by another method, from their start or where they ended; take over what improved.

    Systems that ended with nothing left in F but rounding errors, which no method would reduce, are left as they are.
    So are those that have spent their allowance.
    """
    tally = context.evaluator.tally
    solution = first
    rows = rows[first.charged[rows] < ALLOWANCE - context.reserve]
    if not tally.is_spent():
        rows = rows[~_is_exhausted(context, first, rows)]
    if rows.size and not tally.is_spent():
        again = first.copy() if continues else first.restarted(rows)
        iteration = first.steps[-1].iteration if first.steps else 0
        reasons = first.status[rows].view(StatusArray)
        found = method.solve(replace(context, first=None), again, rows)
        status = found.status[rows].view(StatusArray)
        retry = Retry(method=label(method), iteration=iteration, systems=rows, reasons=reasons, status=status)
        found.retries.insert(len(first.retries), retry)  # before those within it
        solution = first.improved(rows, found)
    if tally.ended is not None:
        solution.status[rows] = np.where(solution.status[rows] == CONVERGED, CONVERGED, tally.ended)
    return solution


def label(method: NonlinearMethod) -> str:
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
