"""SparseNewton: Newton's method with a sparse Jacobian whose pattern is declared or detected."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from implicitsolve._arrays.host import takes_indices
from implicitsolve._arrays.namespace import is_cupy_array
from implicitsolve._typing import Array, Indices
from implicitsolve.direct import DirectMethod
from implicitsolve.direct._cudss import load_cudss
from implicitsolve.direct._sparse_lu import SparseLU, SparsePlan
from implicitsolve.globalize._line_search import Backtracking, LineSearch
from implicitsolve.globalize._searches import FullStep
from implicitsolve.linearize._detect import LEAST_UNKNOWNS
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.nonlinear._block_loop import BlockLoop
from implicitsolve.nonlinear._block_newton import OneFactoredSystem
from implicitsolve.nonlinear._newton_krylov import PRODUCTS, NewtonKrylov
from implicitsolve.nonlinear._pattern_search import PatternSearch
from implicitsolve.nonlinear._plan import ANY, CLOSE, LEFT, SPARSE, Condition, End, PlannedMethod, Stage, after, outcome
from implicitsolve.nonlinear._sparse_inverse import SparseInverses
from implicitsolve.nonlinear._state import JacobianAssembler, NonlinearMethod, Solution, SolveContext, Standing
from implicitsolve.precondition._lagged import Lagged
from implicitsolve.precondition._parts import takes_sparse
from implicitsolve.precondition._sparse import ILU
from implicitsolve.status import Status
from implicitsolve.stopping import check_kind, check_limit
from implicitsolve.structure import Outcome
from implicitsolve.structure._grid import Grid
from implicitsolve.structure._sparse import Sparse

LEAST_RENT, MOST_RENT = 0.15, 1.3  # of the likely cost of bisection, that products take before it
TENTH = 0.1  # of a direction: the least part that the first trial after a whole step leaves
RENTED = 10  # Krylov vectors of a step meanwhile: the rule is looked at between steps
PRODUCTS_OF_FACTORS = 8.0  # unknowns for each product with a full matrix that its factors take the time of


@dataclass(frozen=True, kw_only=True)
class SparseNewton(PlannedMethod):
    """Newton's method with a sparse J: assembled by coloring, factored, and reused while convergence is good.

    Parameters
    ----------
    structure : Sparse or Grid, optional
        Where J has entries. Default: what the problem declares; else it is detected at the start, by `budget`
        evaluations at most, unless the problem forbids that (``structure="none"``). Where none is found, the system is
        solved by `NewtonKrylov`; and so is one on which the factored J fails, with an assembled J where that takes at
        most 40 evaluations; by a declared pattern also in a trust region (`Dogleg`).
    budget : int, optional
        Evaluations for the detection. Default 400.
    bisection : bool or "late", optional
        Whether the detection looks for patterns without diagonals, such as networks: at the start, or, "late", when
        `NewtonKrylov` has taken a seventh of the evaluations that this is likely to cost, and would take clearly more
        at its rate of convergence. Default True.
    line_search : Backtracking, Dogleg or FullStep, optional
        How far to go along a direction from a new J.
    factor : SparseLU or petsc.PETScLU, optional
        A direct method for sparse matrices in place of the choice that the notes describe.

    Notes
    -----
    A matrix that the problem's `jac` or `linearize` returns (SciPy's sparse matrices and arrays, NumPy arrays, CuPy's
    sparse matrices) is factored as it is: it has its own pattern, and takes neither detection nor coloring. A full one
    of more than 100 unknowns is factored once products have taken as long.

    A pattern may miss entries that F has on other branches (``where``, ``max``, a valve that opens). J d is compared
    with the change of F along a random d, which takes an evaluation: after the first assembly by a declared pattern or
    one of an earlier solve, and wherever a J has not gained a digit or a step with it has failed. The rows that differ
    are searched again, and where they are many the pattern gets whole diagonals. A declared pattern is kept, with one
    warning (`RuntimeWarning`).

    Few rows with entries in a quarter of the columns, as a mean or a conserved sum has, are not colored: their local
    entries, and the mean of the others, are assembled by one more difference. Where that says too little of such a row,
    the local part preconditions `NewtonKrylov`, which needs few products for each such row.

    A full J whose columns have few large entries, as a local operator with a mean or an integral added has, is not
    factored. Its large entries are assembled and precondition `NewtonKrylov` (`Lagged`): by their factors, or by `ILU`
    where these would fill too much.

    Directions and renewals are those of `BlockNewton`. A single system is solved by BiCGSTAB with the assembled J,
    which takes no evaluations, until that has cost as much as factors would; and where factors would fill too much
    (`FillEstimate`), by GMRES with `ILU`.

    CuPy arrays stay on the device: J is assembled there and factorized by cuDSS, which nvmath-python loads (extras
    ``cudss12``, ``cudss13``); without it a `BackendUnavailable` is raised at once. A pattern is detected only where the
    problem requests it (``structure="detect"``), by a search on the host; else `NewtonKrylov` solves the system.

    Examples
    --------
    >>> def bratu(u):
    ...     p = np.pad(u, 1)
    ...     neighbors = p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2]
    ...     return 4 * u - neighbors - 5 * np.exp(u) / 31**2
    >>> result = ims.root(bratu, np.zeros((30, 30)), method=ims.SparseNewton())
    >>> result.success, result.counts.residuals < 40
    (True, True)
    """

    structure: Sparse | Grid | None = None
    budget: int | None = None
    bisection: bool | Literal["late"] = True
    line_search: LineSearch = Backtracking()
    factor: DirectMethod | None = None
    keeps_bounds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.factor is not None and not takes_sparse(self.factor, "direct"):
            raise TypeError(f"SparseNewton: `factor` must be a direct method for sparse matrices, got {self.factor!r}")
        if not isinstance(self.bisection, bool | str) or self.bisection not in (True, False, "late"):
            raise ValueError(f'SparseNewton: `bisection` must be True, False or "late", got {self.bisection!r}')
        if self.structure is not None and not isinstance(self.structure, Sparse | Grid):
            raise TypeError(f"SparseNewton: `structure` must be Sparse or Grid, got {type(self.structure).__name__}")
        if self.budget is not None:
            check_limit("SparseNewton", "budget", self.budget, least=1)
        check_kind("SparseNewton", "line_search", self.line_search, "line search")

    @staticmethod
    def suits(context: SolveContext, x0: Array) -> bool:
        """Whether the method applies: NumPy or CuPy arrays of one solve, and more than a few unknowns."""
        evaluator = context.evaluator
        return takes_indices(x0) and context.scheduler is None and evaluator.size >= LEAST_UNKNOWNS

    def stages(self, context: SolveContext, x0: Array) -> Sequence[Stage]:
        search, is_on_host = self.search, isinstance(x0, np.ndarray)
        problem, products = context.evaluator.problem, Stage(method=PRODUCTS)
        if not is_on_host and not is_cupy_array(x0):
            if self.structure is not None and self.factor is None:
                load_cudss(x0)  # raises: it has no factors for these arrays
            return [products]
        is_declared = self.structure is not None or problem.sparse_structure is not None
        first = replace(search, needs_cudss=is_declared or problem.structure == "detect")
        factored = in_short_and_whole_steps(self.newton, when=SPARSE)
        rented = replace(products, when=IS_DENSE, until=OUTWEIGHED)
        if is_declared or problem.structure == "none" or not (is_on_host or problem.structure == "detect"):
            return [Stage(method=first), rented, *factored, *NewtonKrylov().stages(context, x0)[:2]]
        late = [
            Stage(method=NewtonKrylov(retry=False, max_krylov=RENTED), when=IRREGULAR, until=OVERTAKEN),
            Stage(method=replace(search, bisection="only"), when=LEFT_IRREGULAR),
        ]
        return [
            Stage(method=first),
            rented,
            *(late if self.bisection == "late" else ()),
            Stage(method=LargeEntries(factor=self.factor), when=NEARLY_FULL, until=REJECTED),
            *factored,
            replace(products, continues=CLOSE),
        ]

    @property
    def search(self) -> PatternSearch:
        """The search for the pattern at the start."""
        return PatternSearch(structure=self.structure, budget=self.budget, bisection=self.bisection is True)

    @property
    def newton(self) -> FactoredNewton:
        """The steps with a sparse J."""
        return FactoredNewton(line_search=self.line_search, factor=self.factor)


IRREGULAR = outcome("J is sparse without diagonals", Outcome.IRREGULAR)
LEFT_IRREGULAR = Condition("the search costs less", lambda c, s: IRREGULAR.holds(c, s) & LEFT.holds(c, s))
NEARLY_FULL = outcome("J is full with few large entries", Outcome.FULL)
REJECTED = End("a rejected step", lambda context: lambda standing: standing.is_rejected, Status.LINE_SEARCH_FAILED)


def _is_short(context: SolveContext) -> Callable[[Standing], bool]:
    """Whether the last step was short; never of a batch, whose systems do not depend on each other."""
    is_alone = context.evaluator.flat_shape[0] == 1
    return lambda standing: is_alone and 0 < standing.length[0] <= TENTH


def _grow(context: SolveContext) -> Callable[[Standing], bool]:
    """Whether three steps in succession were longer than the one before, as where F becomes flat; see `_is_short`."""
    is_alone, lengths = context.evaluator.flat_shape[0] == 1, [math.inf] * 4

    def test(standing: Standing) -> bool:
        if is_alone:
            lengths[:] = [*lengths[1:], float(np.max(standing.steps))]
        return lengths[0] < lengths[1] < lengths[2] < lengths[3]

    return test


SHORT = End("a step of at most a tenth", _is_short, Status.STAGNATED)
LONGER = End("three steps in succession longer than the one before", _grow, Status.STAGNATED)


def in_short_and_whole_steps(method: Any, when: Condition = ANY) -> list[Stage]:
    """Newton's method in stages: search up to a first short step, whole steps from x0, the search again if they fail.

    Where F has kinks, as contact and changes of phase have, a search along the direction stops at the next one, and
    whole steps end where all pieces of F are the right ones, though ||F|| may grow on the way. A caller's own search is
    the only one.
    """
    by_search = Stage(method=method, when=when, continues=ANY)
    if not isinstance(method.line_search, Backtracking):
        return [by_search]
    whole = Stage(method=replace(method, line_search=FullStep()), when=when, until=LONGER)
    return [replace(by_search, until=SHORT), whole, by_search]


def _overtaken(context: SolveContext) -> Callable[[Standing], bool]:
    """Whether products have cost, or will cost, more than the search by bisection: the ski rental rule."""
    tally, price = context.evaluator.tally, context.memory.detection.likely  # type: ignore[union-attr]
    begin = tally.residuals

    def test(standing: Standing) -> bool:
        spent = tally.residuals - begin
        return spent >= LEAST_RENT * price and spent * (1.0 + standing.ahead) > MOST_RENT * price

    return test


OVERTAKEN = End("products cost more than the search by halving will", _overtaken)


def _products_outweigh(context: SolveContext) -> Callable[[Standing], bool]:
    """Whether products have taken as long as the factors of a full matrix."""
    tally = context.evaluator.tally
    begin, most = tally.jvps, context.evaluator.size / PRODUCTS_OF_FACTORS
    return lambda standing: tally.jvps - begin > most


IS_DENSE = after("J is a full matrix", lambda context: getattr(context.jacobians, "is_dense", False))
OUTWEIGHED = End("products cost more than factors", _products_outweigh)


@dataclass(frozen=True, kw_only=True)
class FactoredNewton(NonlinearMethod):
    """The settings of `BlockLoop` with the sparse J that a search has found."""

    line_search: LineSearch = Backtracking()
    factor: DirectMethod | SparseInverses | None = None
    reuse: str = "broyden"
    jacobians: JacobianAssembler | None = None
    label: ClassVar[str] = "SparseNewton"
    keeps_bounds: ClassVar[bool] = True

    def assembler(self, evaluator: Evaluator) -> JacobianAssembler:
        return self.jacobians  # type: ignore[return-value]

    def prepare(self, context: SolveContext) -> FactoredNewton:
        """The method with its assembler, and with factors that begin with those of an earlier solve."""
        factor, known = self.factor, context.previous.inverses
        if isinstance(factor, SparseLU):
            factor = SparseInverses(factor)
        elif factor is None:
            factor = context.memory.inverses = SparseInverses() if known is None else copy.copy(known)
        return replace(self, jacobians=context.jacobians, factor=factor)

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        method = self.prepare(context)
        if OneFactoredSystem.applies(method, context, start.x):
            return OneFactoredSystem(method, context, start, is_retry=rows is not None).run()
        return BlockLoop(method, context, start, rows).run()


@dataclass(frozen=True, kw_only=True)
class LargeEntries(NonlinearMethod):
    """`NewtonKrylov`, preconditioned by factors of the large entries that the search has found, complete or not."""

    factor: DirectMethod | None = None
    label: ClassVar[str] = "NewtonKrylov, preconditioned by J's large entries,"
    line_search: ClassVar[LineSearch] = Backtracking()

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        large: Sparse = context.memory.detection.large  # type: ignore[union-attr, assignment]
        plan, factor = SparsePlan(large), self.factor or SparseLU()
        settings: DirectMethod | ILU = factor if plan.is_direct or plan.fill.prefers_direct else ILU()
        method = NewtonKrylov(preconditioner=Lagged(preconditioner=settings, structure=large), retry=False)
        return method.solve(context, start, rows)
