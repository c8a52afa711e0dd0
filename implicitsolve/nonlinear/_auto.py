"""Auto: a table of stages, by what the problem declares."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from implicitsolve._arrays.namespace import host_dtype
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.direct import BlockLU
from implicitsolve.globalize import Backtracking
from implicitsolve.linearize._detect import SMALLEST_GRAPH
from implicitsolve.nonlinear._anderson import Anderson
from implicitsolve.nonlinear._approximate_jacobian import BY_SHIFTS, DEAR, approximated_stages
from implicitsolve.nonlinear._block_newton import BlockNewton
from implicitsolve.nonlinear._blocks import IndependentBlocks
from implicitsolve.nonlinear._causal import Substitution
from implicitsolve.nonlinear._certificate import MOST_UNKNOWNS
from implicitsolve.nonlinear._dense_newton import DenseNewton
from implicitsolve.nonlinear._halved import Halved
from implicitsolve.nonlinear._homotopy import Homotopy
from implicitsolve.nonlinear._newton_krylov import LEAST_FIRST, PRODUCTS, NewtonKrylov
from implicitsolve.nonlinear._other_variables import UNITS, Logarithmic, Rescaled
from implicitsolve.nonlinear._plan import (
    ANY,
    CLOSE,
    NOT_SPARSE,
    SPARSE,
    Condition,
    End,
    PlannedMethod,
    Stage,
    after,
    outcome,
)
from implicitsolve.nonlinear._sparse_newton import SparseNewton, in_short_and_whole_steps
from implicitsolve.nonlinear._state import NonlinearMethod, Solution, SolveContext, Standing
from implicitsolve.precondition._lagged import Lagged
from implicitsolve.problem import LARGEST_BLOCK, favors_direct
from implicitsolve.structure import Outcome

LAGGED = NewtonKrylov(preconditioner=Lagged(preconditioner=BlockLU(), eager=False))


class FullStepNewton(BlockNewton):
    """`BlockNewton` without line searches, which is chosen by the number of systems: one may differ in rounding."""

    label = "BlockNewton"
    rounds_freely = True


WHOLE_STEPS = FullStepNewton(factor=BlockLU(backend="lapack"), line_search=Backtracking(max_trials=0))
BLOCKS, DENSE, EQUILIBRATED = BlockNewton(), DenseNewton(), DenseNewton(equilibrated=True)
ANDERSON_STEP = 2000  # entries of J with which solves by Newton's method take as much time as a step of Anderson's
AT_ONCE, MOST_STEPS = 10, 40  # such steps up to which Newton's method comes first, and above which it is not tried
FARTHER_START = 4.0  # than from x0 to a stationary point; twice as far solves as many cubics
MOST_BY_PATTERN, MOST_DENSE = 500, 1000  # unknowns up to which a dense J follows products, by colors and columns


@dataclass(frozen=True, kw_only=True)
class Auto(PlannedMethod):
    """Choose by what the problem declares: `plan` returns the stages, and shows them as text.

    Notes
    -----
    - A problem with `jac_approx`: `Anderson` with its inverse, until a step is rejected; `NewtonKrylov`, preconditioned
      by it, from there; and the following without it.
    - A causal problem (`Problem.substitute`): `Substitution`, and `NewtonKrylov` where that was not accurate enough.
    - A fixed-point problem (`Problem.fixed_point`): `Anderson`, `Homotopy` and `NewtonKrylov`, for half the blocks if
      the problem has `halves`; whole steps of `BlockNewton` at once where it has `blocks` with few entries, or as
      soon as Anderson's contract slowly.
    - At most 20 real unknowns on NumPy arrays without structure: `DenseNewton`, the same on equations of one size, or
      from farther on for a single equation, and `NewtonKrylov`.
    - More unknowns without structure: a search for the sparsity of J, then `SparseNewton` if it finds a pattern.
    - With factors of J the first attempt ends at a step of at most a tenth. Whole steps from x0 follow, since F may
      have kinks, and the search along directions continues from the best point where these fail.
    - A network's pattern is sought only when `NewtonKrylov` has cost, or will cost, more than the search.
    - A dense J: `NewtonKrylov`, preconditioned if its columns repeat by shifts.
    - Before products are tried again, "auto" for multiples of the unknowns' sizes, if these differ by three orders of
      magnitude at x0 or at the best point.
    - Where `SparseNewton` fails on at most 500 unknowns, `DenseNewton` on equations of one size follows, J by colors;
      where linear systems of at most 1000 took more than 40 products on average, it follows with J by differences.
    - Up to 100 unknowns without structure `DenseNewton` follows; next to bounds, if sizes differ so much, the first is
      `DenseNewton` with projected steps.
    - Declared blocks: `BlockNewton` where blocks have at most 64 unknowns and an assembly takes at most 64 products, or
      the problem offers `blocks`; up to 128 unknowns `NewtonKrylov` with a lagged `BlockLU`; else products alone.
    - Each stage begins at x0 with the systems on which those before have failed, within one budget of evaluations
      without progress (`NonlinearStop`): half of it for the first attempt, evenly more for each later one.
    """

    keeps_bounds: ClassVar[bool] = True

    def stages(self, context: SolveContext, x0: Array) -> Sequence[Stage]:
        if context.evaluator.approximate is not None:
            return approximated_stages(self, context)
        problem, is_bounded = context.evaluator.problem, context.evaluator.problem.bounds is not None
        if problem.substitute is not None and not is_bounded:
            return _stages(Substitution(), PRODUCTS)
        if problem.fixed_point and not is_bounded:
            return _for_fixed_points(context, x0)
        return _for_equations(context, x0)


def _stages(*methods: NonlinearMethod) -> list[Stage]:
    """Methods one after the other, each from x0 for the systems on which those before it have failed."""
    return [Stage(method=method) for method in methods]


FIRST_DENSE, LAST_DENSE, LAST = _stages(DENSE), _stages(EQUILIBRATED), _stages(PRODUCTS)


def _for_fixed_points(context: SolveContext, x0: Array) -> Sequence[Stage]:
    """Anderson's method, the homotopy and Newton–Krylov; Newton's whole steps first where they take less time."""
    steps, methods = _steps_of_newton(context, x0), (Anderson(), Homotopy(), PRODUCTS)
    if Halved.suits(context):
        if context.evaluator.flat_shape[0] > 1 or steps > AT_ONCE:
            return _stages(Halved(method=Auto()))
        return _stages(WHOLE_STEPS, *(Halved(method=method) for method in methods))
    if steps > MOST_STEPS:
        return _stages(*methods)
    brief = [] if steps <= AT_ONCE else [Stage(method=Anderson(), until=_more_than(steps))]
    return [*brief, Stage(method=WHOLE_STEPS, continues=ANY), *_stages(*methods)]


def _steps_of_newton(context: SolveContext, x0: Array) -> float:
    """Steps of Anderson's method that take as much time as a solve by Newton's; infinite where J has no `blocks`.

    Measured for systems that start at once, on NumPy arrays of real numbers.
    """
    problem, (systems, size) = context.evaluator.problem, context.evaluator.flat_shape
    structure, is_plain = problem.block_structure, type(x0) is np.ndarray and x0.dtype.char in "fd"
    if problem.blocks is None or structure is None or context.scheduler is not None or not is_plain:
        return math.inf
    size = size if problem.halves is None else size // 2
    return systems * size * structure.block_size * structure.width / ANDERSON_STEP


def _more_than(steps: float) -> End:
    """After its first step, if that predicts more than so many further ones."""

    def test(context: SolveContext) -> Callable[[Standing], bool]:
        first = iter([True])
        return lambda standing: next(first, False) and standing.ahead > steps

    return End(f"its first step predicts more than {steps:.0f} further ones", test)


def _for_equations(context: SolveContext, x0: Array) -> Sequence[Stage]:
    """Newton's method, by what is known of J."""
    evaluator = context.evaluator
    is_dense = evaluator.problem.structure in (None, "none") and DenseNewton.suits(context, x0)
    is_bounded = evaluator.box is not None
    rest = _stages(Logarithmic(method=Auto(), takes_all=False)) if is_bounded and Logarithmic.suits(context, x0) else []
    first = [Stage(method=DenseNewton(projected=True), when=UNITS)] if is_bounded and is_dense else []
    if is_dense and evaluator.size <= MOST_UNKNOWNS:
        # For a single equation equilibration changes nothing.
        others = [Stage(method=FartherStart(), continues=ANY)] if evaluator.size == 1 else LAST_DENSE
        return [*first, *FIRST_DENSE, *rest, *others, *LAST]
    if is_dense:
        rest += FIRST_DENSE
    elif evaluator.problem.structure in (None, "none") and DenseNewton.suits(context, x0, MOST_DENSE):
        rest += [Stage(method=DENSE, when=HARD)]
    is_factorable = host_dtype(evaluator.dtype).char in "fdFD"
    factored = (_for_patterns(context, x0, rest) or _for_blocks(context, x0)) if is_factorable else []
    return [*first, *(factored or [*LAST, *rest])]


def _for_patterns(context: SolveContext, x0: Array, rest: list[Stage]) -> Sequence[Stage]:
    """The stages with a sparse J that is declared or sought, before the rest; none where neither may be."""
    problem = context.evaluator.problem
    if not SparseNewton.suits(context, x0):
        return []
    if problem.sparse_structure is not None or problem.structure == "detect":
        return _by_pattern(SparseNewton(structure=problem.sparse_structure), context, x0)
    is_open = isinstance(x0, np.ndarray) or problem.jac is not None
    if not is_open or problem.structure is not None or problem.blocks is not None:
        return []
    bisection: Literal["late", False] = "late" if context.evaluator.size >= SMALLEST_GRAPH else False
    return [*_by_units(_by_pattern(SparseNewton(bisection=bisection), context, x0), context, x0), *rest]


def _for_blocks(context: SolveContext, x0: Array) -> Sequence[Stage]:
    """The stages with declared blocks that are not too large."""
    problem = context.evaluator.problem
    structure = problem.block_structure
    if structure is None or structure.block_size > 2 * LARGEST_BLOCK:
        return []
    is_direct = favors_direct(problem, structure.length(context.evaluator.size))
    return [*in_short_and_whole_steps(BLOCKS), *LAST] if is_direct else LAGGED.stages(context, x0)


def _by_pattern(method: SparseNewton, context: SolveContext, x0: Array) -> list[Stage]:
    """The stages with a sparse J.

    Before the whole system its independent parts, and a full J of few columns; after it a dense J of the same entries.
    """
    stages = method.stages(context, x0)
    place = next(k for k, stage in enumerate(stages) if stage.when is SPARSE)
    shifts = Stage(method=BY_SHIFTS, when=SHIFTS, until=DEAR)
    apart = Stage(method=IndependentBlocks(method=BLOCKS), when=APART)
    has_dense = DenseNewton.suits(context, x0, MOST_BY_PATTERN)
    dense = [Stage(method=EQUILIBRATED, when=SPARSE)] if has_dense else []
    after = place + sum(stage.when is SPARSE for stage in stages)
    return [*stages[:place], shifts, apart, *stages[place:after], *dense, *stages[after:]]


def _by_units(stages: Sequence[Stage], context: SolveContext, x0: Array) -> Sequence[Stage]:
    """The stages; before products are tried again, the system in other units."""
    if not Rescaled.suits(context, x0):
        return stages
    place = next(k for k, stage in enumerate(stages) if stage.continues is CLOSE)
    other = Stage(method=Rescaled(method=Auto(), takes_all=False), when=UNITS, continues=ANY)
    return [*stages[:place], other, *stages[place:]]


def _is_hard(context: SolveContext, solution: Solution) -> HostArray:
    """Systems whose linear systems took more products than the first Krylov space has room for."""
    return NOT_SPARSE.holds(context, solution) & (solution.krylov_iterations > LEAST_FIRST * solution.iterations)


HARD = Condition(f"linear systems took more than {LEAST_FIRST} products on average", _is_hard)
SHIFTS = outcome("J is full and its columns repeat by shifts", Outcome.SHIFTS)
APART = after("J consists of small independent blocks", lambda context: IndependentBlocks.form(context) is not None)


@dataclass(frozen=True, kw_only=True)
class FartherStart(DenseNewton):
    """`DenseNewton` for single equations, from beyond a point where |F| is stationary: where a first attempt ended.

    The way from x0 to that point continues four times as far. Of 2,000 cubics with random coefficients, from x0 = 3,
    the first attempt solves 0.86, and this one 0.8 of the rest.
    """

    @property
    def label(self) -> str:
        return "DenseNewton from farther on"

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        evaluator, some = context.evaluator, np.arange(len(start.x)) if rows is None else rows
        x0, x = start.start[some], start.x[some]
        with np.errstate(over="ignore"):
            farther = x + FARTHER_START * (x - x0 + np.copysign(1.0, x - x0))
        farther = np.where(np.isfinite(farther), farther, x0)
        start.x[some] = farther if evaluator.box is None else evaluator.box.take(some).clip(farther)
        return super().solve(context, start, rows)
