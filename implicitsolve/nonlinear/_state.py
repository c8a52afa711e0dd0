"""The state of a solve that all methods share: its settings, the systems that iterate or wait, and its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from implicitsolve._arrays.host import gather, scatter
from implicitsolve._arrays.namespace import array_namespace, copy_array
from implicitsolve._record import NewtonStep, Retry
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels._norms import norm2
from implicitsolve.krylov._recycling import RecycledSpace
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._sparse_assemble import SparseAssembler
from implicitsolve.monitor import Monitor, silent
from implicitsolve.nonlinear._accuracy import BatchProgress, neighbor
from implicitsolve.nonlinear._sparse_inverse import SparseInverses
from implicitsolve.operators import LinearOperator
from implicitsolve.operators._wrappers import SystemArrays
from implicitsolve.precondition._lagged import BatchedInverse
from implicitsolve.problem import Problem
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop
from implicitsolve.structure import Detection
from implicitsolve.structure._sparse import Sparse

CONVERGED = int(Status.CONVERGED)
NOT_COPIED = "start", "steps", "retries", "first_F"  # fields that copies of a solution do not copy as arrays
ROUNDING = 0.5  # F's change between neighbouring numbers, over F, from which on F is rounding error


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
    since: HostArray  # steps since the last progress
    best_x: Array  # the point with the smallest `measure` of all, and F there
    best_F: Array
    best_measure: HostArray
    limit: HostArray  # step of the loop that is the last one
    iterations: HostArray  # steps that were accepted
    status: HostArray  # codes of `Status`
    progress: BatchProgress  # of x
    norms_before: HostArray  # ||F||_2 before the last accepted step


@dataclass
class Solution:
    """Where every system of a batch ended, or begins, on arrays (B, N) and host arrays (B,)."""

    start: Array  # never written
    x: Array
    F: Array
    status: HostArray
    norm: HostArray  # of F, in the norm of the stopping rule
    first_norm: HostArray
    target: HostArray
    error: HostArray  # estimated error of x, relative to x; NaN where it is not known
    iterations: HostArray
    krylov_iterations: HostArray
    charged: HostArray  # parts of their budgets that systems have spent since the last progress
    steps: list[NewtonStep]
    retries: list[Retry] = field(default_factory=list)
    first_F: Array | None = None  # F at x0, never written

    @classmethod
    def at(cls, x0: Array) -> Solution:
        """Every system of x0 (B, N) at its start."""
        B = x0.shape[0]
        counts = np.zeros(B, dtype=int)
        return cls(
            start=x0,
            x=copy_array(x0),
            F=array_namespace(x0).zeros_like(x0),
            status=counts,
            norm=np.zeros(B),
            first_norm=np.full(B, np.nan),
            target=np.full(B, np.nan),
            error=np.full(B, np.nan),
            iterations=counts.copy(),
            krylov_iterations=counts.copy(),
            charged=np.zeros(B),
            steps=[],
        )

    def copy(self) -> Solution:
        """A copy that shares no array with this one but the start."""
        arrays = {name: copy_array(x) for name, x in vars(self).items() if name not in NOT_COPIED}
        return replace(self, **arrays, steps=list(self.steps), retries=list(self.retries))

    def restart(self, rows: Indices) -> Solution:
        """Some systems back at their start, the others where they ended."""
        other = self.copy()
        scatter(other.x, rows, gather(self.start, rows))
        return other

    def take_over(self, rows: Indices, other: Solution) -> Solution:
        """Take over what a second attempt at some systems improved."""
        with np.errstate(invalid="ignore"):
            is_better = (other.norm[rows] < self.norm[rows]) | (other.status[rows] == Status.CONVERGED)
        better = rows[is_better]
        scatter(self.x, better, gather(other.x, better))
        scatter(self.F, better, gather(other.F, better))
        for mine, theirs in ((self.norm, other.norm), (self.status, other.status), (self.error, other.error)):
            mine[better] = theirs[better]
        self.first_norm, self.target = other.first_norm, other.target
        self.iterations, self.krylov_iterations = other.iterations, other.krylov_iterations
        self.charged, self.steps, self.retries = other.charged, other.steps, other.retries
        return self


@dataclass(frozen=True)
class Standing:
    """How far an attempt has come, for what may end it early."""

    start: HostArray  # ||F|| at the start,
    norms: HostArray  # ... and now
    measure: HostArray  # the norm of the stopping rule,
    target: HostArray  # ... and where it ends
    length: HostArray  # parts of their directions by which systems have moved in the last step
    steps: Any  # lengths of their last steps

    @property
    def ahead(self) -> float:
        """The remaining over the achieved reduction of the norm of the slowest system, in logarithms."""
        with np.errstate(all="ignore"):
            gained, missing = np.log(self.start / self.norms), np.log(self.measure / self.target)
            ahead = np.where(missing > 0, missing / np.where(gained > 0, gained, 0.0), 0.0)
        return float(ahead.max())

    @property
    def is_rejected(self) -> bool:
        """Whether the last step of a system was rejected."""
        return bool((self.length == 0).any())


@dataclass
class SolveMemory:
    """What is known of J after a solve."""

    declared: Any = None  # the problem's structure
    plan: object = None  # the stages of the solve
    detection: Detection | None = None  # the sparsity that was used, or why none was; without values
    assembler: SparseAssembler | None = None  # the coloring
    inverses: SparseInverses | None = None  # the ordering of the factors, and what iterations with J have cost
    inverse: BatchedInverse | None = None  # the last factors
    space: RecycledSpace | None = None  # recycled Krylov vectors
    keeps: bool = False  # whether factors and spaces, which take most memory, are kept too


def memory_of(caller: str, problem: Problem, x0: Array, previous: Any) -> SolveMemory:
    """What a previous result left to a solve of `problem` from x0; raise if it is none of a problem like this."""
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

    def rows_to_admit(self, running: int, *, idle: float | None) -> Indices:
        """Waiting systems to admit: once `idle` times as many slots were idle as were used, never if that is None."""
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
        """At the end of a solve, mark beaten systems as stopped, whatever their status, so that none is retried."""
        if self.groups is not None:
            is_won = np.isin(self.groups, self.groups[status == CONVERGED])
            status[is_won & (status != CONVERGED)] = Status.STOPPED


class JacobianAssembler(Protocol):
    """Assembles J for Newton's method with a factorized J, whatever the structure of J.

    `saves_products` is whether Krylov methods take fewer evaluations with an assembled J than by products; and
    `sensitivity` (B,) is ||F(x + h v) - F(x)|| over the relative length of h, the largest in each system's last
    assembly; NaN: unknown.
    """

    sensitivity: HostArray
    saves_products: bool = False
    is_current: bool = True  # whether the last J is that at x: a search for its pattern has another near x

    @property
    def cost(self) -> int: ...  # products, or residuals, that one assembly takes

    def assemble(self, evaluator: Evaluator, x: Array, F: Array) -> LinearOperator:
        """J(x) for x (b, N), where F is F(x); `evaluator` is that of these systems."""
        ...

    def is_certain(self, rows: Indices) -> bool:
        """Whether no difference of systems `rows` had a guessed length."""
        return True

    def check(self, rows: Indices, newton_step: Array) -> HostArray:
        """Compare guessed lengths with J^-1 F (b, N); return which systems need another assembly."""
        return np.zeros(rows.size, dtype=bool)


@dataclass(frozen=True)
class SolveContext:
    """The problem and the settings of one solve, shared by all methods that it uses."""

    evaluator: Evaluator
    stop: NonlinearStop
    monitor: Monitor = silent
    scheduler: Scheduler | None = None  # of a solve in which all systems iterate to their own end, there is none
    share: float = 1.0  # of the budget of each system, that may be spent at the end of this attempt
    leave: Callable[[Standing], bool] | None = None  # whether all running systems end, with ITERATION_LIMIT
    shift: Callable[[Indices, LinearOperator, Array, Array], LinearOperator] | None = None  # of a transient's J
    truth: Callable[[Array, Indices], HostArray] | None = None  # norms of the caller's F, where another F is solved
    first: Array | None = None  # F at the start, where it is known
    previous: SolveMemory = field(default_factory=SolveMemory)  # what an earlier solve left; never written
    memory: SolveMemory = field(default_factory=SolveMemory)  # what this one leaves
    jacobians: JacobianAssembler | None = None  # what assembles a sparse J, where a search has found its pattern


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


def parts(scheduler: Scheduler | None, rows: Indices) -> list[Indices]:
    """The systems in groups, each of as many as may iterate at a time."""
    size = rows.size if scheduler is None else scheduler.capacity or rows.size
    return [rows[first : first + size] for first in range(0, rows.size, max(size, 1))]


def is_rounding(part: Evaluator, x: Array, F: Array, share: float = ROUNDING, among: Any = 1) -> HostArray:
    """Whether F, of equations `among` all, changes by that share of its size from x to its neighbour; an evaluation."""
    with np.errstate(all="ignore"):
        change = neighbor(part, x) - F
        return norm2(change * among) >= share * norm2(F * among)
