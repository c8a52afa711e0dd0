"""The state of a solve: the systems that iterate, where each of a batch ended, and what is left to the next solve."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from implicitsolve._namespace import array_namespace, copied, gather, scatter
from implicitsolve._sparse_structure import Detection, Sparse
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.krylov._recycling import RecycledSpace
from implicitsolve.linearize._sparse_assemble import SparseAssembler
from implicitsolve.nonlinear._sparse_inverse import SparseInverses
from implicitsolve.operators._wrappers import SystemArrays
from implicitsolve.precondition._lagged import BatchedInverse
from implicitsolve.problem import Problem
from implicitsolve.result import NewtonStep, Retry
from implicitsolve.status import Status

CONVERGED = int(Status.CONVERGED)


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
    spent: HostArray  # Krylov iterations until then
    best_x: Array  # the point with the smallest `measure` of all, and F there
    best_F: Array
    best_measure: HostArray
    limit: HostArray  # step of the loop that is the last one
    status: HostArray  # codes of `Status`


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
    iterations: HostArray
    krylov_iterations: HostArray
    steps: list[NewtonStep]
    retries: list[Retry] = field(default_factory=list)

    @classmethod
    def at(cls, x0: Array) -> Solution:
        """Every system of x0 (B, N) at its start."""
        B = x0.shape[0]
        counts = np.zeros(B, dtype=int)
        return cls(
            start=x0,
            x=copied(x0),
            F=array_namespace(x0).zeros_like(x0),
            status=counts,
            norm=np.zeros(B),
            first_norm=np.full(B, np.nan),
            target=np.full(B, np.nan),
            iterations=counts.copy(),
            krylov_iterations=counts.copy(),
            steps=[],
        )

    def copy(self) -> Solution:
        """A copy that shares no array with this one but the start."""
        arrays = {name: copied(part) for name, part in vars(self).items() if name not in ("start", "steps", "retries")}
        return replace(self, **arrays, steps=list(self.steps), retries=list(self.retries))

    def astype(self, dtype: Any) -> Solution:
        """The same in another precision."""
        other = self.copy()
        with np.errstate(over="ignore"):
            parts = self.start, self.x, self.F
            other.start, other.x, other.F = (array_namespace(part).astype(part, dtype) for part in parts)
        return other

    def restarted(self, rows: Indices) -> Solution:
        """Some systems back at their start, the others where they ended."""
        other = self.copy()
        scatter(other.x, rows, gather(self.start, rows))
        return other

    def improved(self, rows: Indices, other: Solution) -> Solution:
        """Take over what a second attempt at some systems improved."""
        with np.errstate(invalid="ignore"):
            is_better = (other.norm[rows] < self.norm[rows]) | (other.status[rows] == CONVERGED)
        better = rows[is_better]
        scatter(self.x, better, gather(other.x, better))
        scatter(self.F, better, gather(other.F, better))
        self.norm[better], self.status[better] = other.norm[better], other.status[better]
        self.first_norm, self.target = other.first_norm, other.target
        self.iterations, self.krylov_iterations = other.iterations, other.krylov_iterations
        self.steps, self.retries = other.steps, other.retries
        return self


@dataclass
class SolveMemory:
    """What is known of J after a solve.

    Attributes
    ----------
    declared : BlockBanded, Sparse, Grid, str or None
        The problem's structure.
    detection : Detection or None
        The sparsity that was used, or why none was; without values.
    assembler : SparseAssembler or None
        The coloring.
    inverses : SparseInverses or None
        The ordering of the factors, and what iterations with J have cost.
    inverse : BatchedInverse or None
        The last factors.
    space : RecycledSpace or None
        Recycled Krylov vectors.
    keeps : bool
        Whether factors and spaces, which take most memory, are kept too.
    """

    declared: Any = None
    detection: Detection | None = None
    assembler: SparseAssembler | None = None
    inverses: SparseInverses | None = None
    inverse: BatchedInverse | None = None
    space: RecycledSpace | None = None
    keeps: bool = False

    @property
    def described(self) -> str:
        """The sparsity that was used, in words."""
        return "" if self.detection is None else str(self.detection)


def memory_of(caller: str, problem: Problem, x0: Array, previous: Any) -> SolveMemory:
    """What a previous result left to a solve of `problem` from x0.

    Raises
    ------
    TypeError, ValueError
        If it is no result, or one of unknowns or a declared structure other than these.
    """
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
    if not (_is_open(structure) or _is_open(earlier) or _is_same(structure, earlier)):
        raise ValueError(f"{caller}: `previous` must have the problem's structure, {structure!r}, got {earlier!r}")
    return memory


def _is_open(structure: Any) -> bool:
    return structure is None or isinstance(structure, str)


def _is_same(first: Any, second: Any) -> bool:
    if isinstance(first, Sparse) and isinstance(second, Sparse):
        return first.has_entries_of(second)
    return bool(first == second)
