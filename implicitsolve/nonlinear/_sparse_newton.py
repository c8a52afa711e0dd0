"""SparseNewton: Newton's method with a sparse Jacobian whose pattern is declared or detected."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import numpy as np

from implicitsolve._arrays.host import from_host, takes_indices
from implicitsolve._arrays.namespace import is_cupy_array
from implicitsolve._sparse_structure import Grid, Sparse
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.direct import DirectMethod
from implicitsolve.direct._cudss import load_cudss
from implicitsolve.direct._sparse_lu import SparseLU, SparsePlan
from implicitsolve.globalize._line_search import Backtracking, LineSearch
from implicitsolve.globalize._searches import Dogleg
from implicitsolve.linearize._detect import BUDGET, LEAST_UNKNOWNS, MOST_WRONG, detect, random_direction, wrong_rows
from implicitsolve.linearize._evaluator import Evaluator, Tally
from implicitsolve.linearize._sparse_assemble import SparseAssembler
from implicitsolve.nonlinear._block_loop import BlockLoop, JacobianAssembler
from implicitsolve.nonlinear._block_newton import OneFactoredSystem
from implicitsolve.nonlinear._newton_krylov import IDLE_MIXING, MixingFirst, NewtonKrylov
from implicitsolve.nonlinear._sparse_inverse import OfferedJacobians, SparseInverses
from implicitsolve.nonlinear._state import LoopState, NonlinearMethod, SolveContext, SolveMemory, retried, unsolved
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.precondition._lagged import Lagged
from implicitsolve.precondition._parts import takes_sparse
from implicitsolve.precondition._sparse import ILU
from implicitsolve.result import Solution
from implicitsolve.status import Status
from implicitsolve.stopping import check_kind, check_limit
from implicitsolve.structure import Detection

LEAST_RENT, MOST_RENT = 0.33, 1.75  # of the likely cost of bisection, that products take before it
MOST_INCOMPLETE = 2  # assemblies that miss entries, until a detected pattern is sought again: one often suffices
CLEAR = 0.05  # part of |J| |d| by which J d differs from the change of F where a declared pattern misses entries
# Reasons that a search at another point would only repeat.
LASTING = ("dense", "identity", "full", "budget", "contradiction", "irregular")


@dataclass(frozen=True, kw_only=True)
class SparseNewton(NonlinearMethod):
    """Newton's method with a sparse J: assembled by coloring, factored, and reused while convergence is good.

    Parameters
    ----------
    structure : Sparse or Grid, optional
        Where J has entries. Default: what the problem declares; else it is detected at the start, by `budget`
        evaluations at most, unless the problem forbids that (``structure="none"``). Where none is found, the system is
        solved by `NewtonKrylov`, and so is one on which the factored J fails, also in a trust region (`Dogleg`). A full
        J with a column near that of a multiple of I, as of integral equations of the second kind, is left to `Anderson`
        first.
    budget : int, optional
        Evaluations for the detection. Default 400.
    bisection : bool or "late", optional
        Whether the detection looks for patterns without diagonals, such as networks: at the start, or, "late", when
        `NewtonKrylov` has taken a third of the evaluations that this is likely to cost, and at its rate of convergence
        would take clearly more. Default True.
    line_search : Backtracking, Dogleg or FullStep, optional
        How far to go along a direction from a new J.
    factor : petsc.PETScLU, optional
        A direct method for sparse matrices in place of the choice that the notes describe.

    Notes
    -----
    A matrix that the problem's `jac` or `linearize` returns (SciPy's sparse matrices and arrays, NumPy arrays, CuPy's
    sparse matrices) is factored as it is: it has its own pattern, and takes neither detection nor coloring.

    Where an assembly shows that F changes with unknowns outside its row of a declared pattern, the solve uses
    the approximate J and warns once (`RuntimeWarning`); a detected pattern that misses entries in two assemblies is
    detected again, once. A missing entry whose row has another of its color shows in no assembly: after the first one
    with a declared pattern, J d is compared with the change of F along a random d, which takes an evaluation.

    A full J whose columns have few large entries, as a local operator with a mean or an integral added has, is not
    factored. Its large entries are assembled and precondition `NewtonKrylov` (`Lagged`): by their factors, or by `ILU`
    where these would fill too much.

    Directions and renewals are those of `BlockNewton`. A single system is solved by BiCGSTAB with the assembled J,
    which takes no evaluations, until that has cost as much as factors would; and where factors would fill too much
    (`FillEstimate`), by GMRES with `ILU`.

    CuPy arrays stay on the device: J is assembled there and factorized by cuDSS, which nvmath-python loads (extras
    ``cudss12``, ``cudss13``); without it a `BackendUnavailable` is raised at once. A pattern is detected only where the
    problem asks for it (``structure="detect"``), by a search on the host; else `NewtonKrylov` solves the system.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> def bratu(u):
    ...     p = np.pad(u, 1)
    ...     neighbors = p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2]
    ...     return 4 * u - neighbors - 5 * np.exp(u) / 31**2
    >>> result = ims.root(bratu, np.zeros((30, 30)), method=ims.SparseNewton())
    >>> result.success, result.counts.residuals < 40
    (True, True)
    """

    structure: Sparse | Grid | None = None
    budget: int = BUDGET
    bisection: bool | Literal["late"] = True
    line_search: LineSearch = Backtracking()
    factor: DirectMethod | None = None
    keeps_bounds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.factor is not None and not takes_sparse(self.factor, "direct"):
            raise TypeError(
                f"SparseNewton: `factor` must be a direct method for sparse matrices, as PETScLU(), got {self.factor!r}"
            )
        if self.bisection not in (True, False, "late"):
            raise ValueError(f'SparseNewton: `bisection` must be True, False or "late", got {self.bisection!r}')
        if self.structure is not None and not isinstance(self.structure, Sparse | Grid):
            raise TypeError(f"SparseNewton: `structure` must be Sparse or Grid, got {type(self.structure).__name__}")
        check_limit("SparseNewton", "budget", self.budget, least=1)
        check_kind("SparseNewton", "line_search", self.line_search, "line search")

    @staticmethod
    def suits(context: SolveContext, x0: Array) -> bool:
        """Whether the method applies: NumPy or CuPy arrays of one solve, and more than a few unknowns."""
        evaluator = context.evaluator
        return takes_indices(x0) and context.scheduler is None and evaluator.size >= LEAST_UNKNOWNS

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        evaluator, memory = context.evaluator, context.memory
        problem, is_on_host = evaluator.problem, isinstance(start.x, np.ndarray)
        is_declared = problem.sparse_structure is not None or problem.structure == "detect"
        needs_cudss = self.structure is not None or (is_declared and is_cupy_array(start.x))
        if needs_cudss and not is_on_host and self.factor is None:
            load_cudss(start.x)  # raises before the first evaluation
        if not is_on_host and not is_cupy_array(start.x):
            return self.products().solve(context, start, rows)
        offered = OfferedJacobians.of(evaluator, start.x)
        if offered is not None and offered.is_dense:
            return self.products().solve(context, start, rows)
        if offered is not None:
            memory.detection = Detection(structure=offered.structure, how="jac", evaluations=0, unknowns=evaluator.size)
            return self._solved(offered, context, start, rows)
        if rows is None and context.scheduler is None and context.truth is None and problem.linearize is None:
            context = replace(context, first=evaluator.residual(start.x))
        found = None
        if context.first is None or not _holds(context, start.x):
            found = self._found(evaluator, start.x, context.previous.detection, context.first)
        if found is None:
            return self.products().solve(context, start, rows)
        memory.detection = found if found.values is None else replace(found, values=None)
        if found.how == "irregular" and self.bisection == "late":
            start = self.products().solve(replace(context, leave=_Rental(evaluator.tally, found.likely)), start, rows)
            rows = np.flatnonzero(start.status == Status.ITERATION_LIMIT)
            rows = rows[context.stop.remaining(1, start.iterations[rows]) > 0]
            if not rows.size:
                return start
            start.status[rows], context = Status.RUNNING, replace(context, first=None)
            first, found = found, self._detected(evaluator, start.x, "only")
            memory.detection = replace(found, values=None, evaluations=first.evaluations + found.evaluations)
        if found.large is not None:
            return self._preconditioned(found.large, context, start, rows)
        if found.structure is None:
            return self.products(found).solve(context, start, rows)
        search = None if found.how == "declared" else partial(self._search, bisection=found.how == "bisection")
        jacobians = SparseJacobians(evaluator, found, memory, context.previous.assembler, search)
        memory.detection = replace(memory.detection, colors=jacobians.colors)
        return self._solved(jacobians, context, start, rows)

    def _found(
        self, evaluator: Evaluator, x: Array, previous: Detection | None, first: Array | None = None
    ) -> Detection | None:
        """The structure that is declared, known, or detected; None where none may be sought."""
        declared = evaluator.problem.sparse_structure if self.structure is None else self.structure
        if declared is not None:
            declared.check_size(evaluator.size)
            return Detection(structure=declared.sparse, how="declared", evaluations=0, unknowns=evaluator.size)
        structure = evaluator.problem.structure
        if structure == "none" or (structure != "detect" and not isinstance(x, np.ndarray)):
            return None
        if previous is not None and previous.structure is not None:
            return replace(previous, how="previous", evaluations=0)
        if previous is not None and previous.how in LASTING and (previous.how, self.bisection) != ("irregular", True):
            return replace(previous, evaluations=0)
        return self._detected(evaluator, x, self.bisection is True, first)

    def _detected(
        self, evaluator: Evaluator, x: Array, bisection: bool | Literal["only"], first: Array | None = None
    ) -> Detection:
        return evaluator.tally.enforced(self._search, evaluator, x, bisection, first)

    def _search(
        self, evaluator: Evaluator, x: Array, bisection: bool | Literal["only"], first: Array | None = None
    ) -> Detection:
        """Detect the pattern near x, where F is `first` if that is known."""
        return detect(
            lambda x: evaluator.residual(x, keep=True),
            x,
            shape=evaluator.event_shape,
            budget=self.budget,
            bisection=bisection,
            inward=evaluator.inward,
            first=first,
        )

    def products(self, found: Detection | None = None) -> NonlinearMethod:
        """The method where J is not sparse, which may be what the detection has found."""
        if found is None or found.how != "identity":
            return NewtonKrylov()
        return MixingFirst(patience=IDLE_MIXING, damping=1 / found.diagonal)

    def _preconditioned(self, large: Sparse, context: SolveContext, start: Solution, rows: Indices | None) -> Solution:
        """Solve by products, preconditioned by the large entries of J, and without where that fails."""
        plan, factor = SparsePlan(large), self.factor or SparseLU()
        settings: Any = factor if plan.is_direct or plan.fill.prefers_direct else ILU()
        lagged = Lagged(preconditioner=settings, structure=large)
        method = NewtonKrylov(preconditioner=lagged, retry=False)  # what fails here may be the preconditioner
        solution = method.solve(replace(context, leave=lambda state: vars(state)["attempts"] > 0), start, rows)
        again = np.flatnonzero(unsolved(context, solution))
        left = again[solution.status[again] == Status.ITERATION_LIMIT]
        solution.status[left] = Status.LINE_SEARCH_FAILED
        return retried(self.products(), context, solution, again) if again.size else solution

    def inverses(self, context: SolveContext) -> SparseInverses:
        """Factors, which begin with those of an earlier solve."""
        known = context.previous.inverses
        return SparseInverses() if known is None else copy.copy(known)

    def _solved(
        self, jacobians: JacobianAssembler, context: SolveContext, start: Solution, rows: Indices | None
    ) -> Solution:
        """Solve with these Jacobians; systems on which that fails are solved by products from x0."""
        factor: Any = self.factor
        if factor is None:
            factor = context.memory.inverses = self.inverses(context)
        first = Parts(self.line_search, jacobians, factor)
        solution = first.solve(context, start, rows)
        for method in (replace(first, line_search=Dogleg()), NewtonKrylov()):
            again = np.flatnonzero(unsolved(context, solution))
            if not again.size:
                break
            solution = retried(method, context, solution, again)
        return solution


def _holds(context: SolveContext, x: Array) -> bool:
    """Whether x, where F is known, solves all systems."""
    stop, F = context.stop, context.first
    norms = stop.measure(F, context.evaluator.event_shape)
    return bool(stop.holds(norms, stop.target(norms, F), x, None).all())


class _Rental:
    """Whether a solve by products has cost, or will cost, more than another way: the ski rental rule.

    The other way is likely to take `price` evaluations.
    """

    def __init__(self, tally: Tally, price: float) -> None:
        self.tally, self.price, self.begin = tally, price, tally.residuals

    def __call__(self, state: LoopState) -> bool:
        """Whether to leave, by the slowest system and its average rate of convergence so far."""
        spent = self.tally.residuals - self.begin
        if spent < LEAST_RENT * self.price:
            return False
        with np.errstate(all="ignore"):
            gained = np.log(state.start_norms / state.norms)
            missing = np.log(state.measure / state.target)
            slowest = np.where(missing > 0, missing / np.where(gained > 0, gained, 0.0), 0.0).max()
        return bool(spent * (1.0 + slowest) > MOST_RENT * self.price)


@dataclass(frozen=True)
class Parts(NonlinearMethod):
    """The settings of `BlockLoop` with a sparse J."""

    line_search: LineSearch
    jacobians: JacobianAssembler
    factor: SparseInverses | DirectMethod
    reuse: str = "broyden"
    label: ClassVar[str] = "SparseNewton"
    keeps_bounds: ClassVar[bool] = True

    def assembler(self, evaluator: Evaluator) -> JacobianAssembler:
        return self.jacobians

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        if OneFactoredSystem.applies(self, context, start.x):
            return OneFactoredSystem(self, context, start, is_retry=rows is not None).run()
        return BlockLoop(self, context, start, rows).run()


class SparseJacobians(JacobianAssembler):
    """The assembler of `BlockLoop` for a sparsity pattern.

    A pattern that misses entries in two assemblies is detected again, once, by `search`; a declared one, for which
    there is no `search`, is kept with a warning.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        found: Detection,
        memory: SolveMemory,
        known: SparseAssembler | None,
        search: Callable[[Evaluator, HostArray], Detection] | None,
    ) -> None:
        self._found, self._memory, self._known = found, memory, known
        self._search, self._incomplete = search, 0
        self._is_checked = self._is_warned = False
        self.sensitivity: HostArray = np.full(evaluator.rows.size, np.nan)
        is_whole = found.values is not None and not found.full_rows.size
        self._first: HostArray | None = found.values if is_whole else None

    @cached_property
    def assembler(self) -> SparseAssembler:
        """Made when it is needed: J at the start may come from the detection, and serve to the end."""
        self._memory.assembler = assembler = SparseAssembler.of(self._found, self._known)
        return assembler

    @property
    def colors(self) -> HostArray:
        """Colors of the columns: those of the detection, as long as there was no assembly."""
        colors = self._found.colors
        return self.assembler.coloring.colors if colors is None or "assembler" in vars(self) else colors

    @property
    def cost(self) -> int:
        return int(self.colors.max()) + 1

    def assemble(self, evaluator: Evaluator, x: Array, F: Array) -> SparseMatrix:
        first, self._first = self._first, None
        if first is not None and first.shape[0] == x.shape[0]:
            return SparseMatrix(from_host(first, x), self._found.structure)  # type: ignore[arg-type]
        J = self.assembler.assemble(evaluator, x, F)
        if not self.assembler.surprises.size:
            if self._search is None and self._known is None and not self._is_checked:
                self._is_checked = True
                self._compare(evaluator, x, F, J)
            return J
        self._incomplete += 1
        if self._search is None:
            self._warn(self._evidence())
        elif self._incomplete == MOST_INCOMPLETE and self._widened(self._search(evaluator, x)):
            return self.assembler.assemble(evaluator, x, F)
        return J

    def _compare(self, evaluator: Evaluator, x: Array, F: Array, J: SparseMatrix) -> None:
        """Look for entries outside a declared pattern in rows that have another of that color: one evaluation."""
        coloring = self.assembler.coloring
        direction = from_host(random_direction(coloring.colors, x.shape[1], 0), x)
        d = evaluator.inward(x, self.assembler.lengths(x) * direction)
        wrong = wrong_rows(evaluator.residual, x, F, J.structure, J.flat_data, d, coloring.full_rows, CLEAR)
        rows = np.flatnonzero(wrong)
        if rows.size > MOST_WRONG * wrong.size:
            doubt = ", unless the problem's products are wrong" if evaluator.has_exact_products else ""
            evidence = f"J d differs from the change of F along a random d in {rows.size} rows, row {rows[0]} first"
            self._warn(evidence + doubt)

    def _warn(self, evidence: str) -> None:
        if not self._is_warned:
            self._is_warned = True
            advice = 'extend the pattern, or let it be detected by structure="detect"'
            warnings.warn(
                f"SparseNewton: `structure` is too narrow: {evidence}; {advice}", RuntimeWarning, stacklevel=2
            )

    def _widened(self, again: Detection) -> bool:
        """Whether another detection adds entries to the pattern."""
        known, memory = self._found, self._memory
        evaluations = again.evaluations + (memory.detection or again).evaluations
        memory.detection = replace(memory.detection or known, evaluations=evaluations)
        if again.structure is None or known.structure is None:
            return False
        structure, full_rows = known.structure.union(again.structure), np.union1d(known.full_rows, again.full_rows)
        if structure.nnz == known.structure.nnz and full_rows.size == known.full_rows.size:
            return False
        self._found = replace(again, structure=structure, full_rows=full_rows, values=None, colors=None)
        del self.assembler
        memory.detection = replace(self._found, evaluations=evaluations, colors=self.assembler.coloring.colors)
        return True

    def _evidence(self) -> str:
        """What an assembly shows outside the pattern."""
        surprises, colors = self.assembler.surprises, self.assembler.coloring.colors
        color, row = surprises[0]
        rows, members = np.unique(surprises[:, 1]), np.flatnonzero(colors == color)
        columns = ", ".join(map(str, members[:3])) + (", ..." if members.size > 3 else "")
        return (
            f"at least {rows.size} of {colors.size} rows of F change with "
            f"unknowns outside their pattern (row {row} with unknowns of color {color}: {columns})"
        )
