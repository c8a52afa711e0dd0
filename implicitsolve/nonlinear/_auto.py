"""Auto: the method by what the problem declares; and what only it uses, two precisions and a last trust region."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from implicitsolve._arrays.host import gather, scatter
from implicitsolve._arrays.namespace import array_namespace, eps, host_dtype
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.direct import BlockLU
from implicitsolve.globalize import Backtracking
from implicitsolve.globalize._line_search import ConstantForcing
from implicitsolve.linearize._detect import SMALLEST_GRAPH
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.monitor import mapped
from implicitsolve.nonlinear._anderson import Anderson, BriefAnderson
from implicitsolve.nonlinear._block_newton import BlockNewton
from implicitsolve.nonlinear._causal import Substitution
from implicitsolve.nonlinear._dense_newton import DenseNewton
from implicitsolve.nonlinear._direction import LEAST_ETA
from implicitsolve.nonlinear._fixed_point import Halved
from implicitsolve.nonlinear._homotopy import Homotopy
from implicitsolve.nonlinear._newton_krylov import NewtonKrylov
from implicitsolve.nonlinear._sparse_newton import SparseNewton
from implicitsolve.nonlinear._state import FixedPointMethod, NonlinearMethod, SolveContext, retried, unsolved
from implicitsolve.precondition._lagged import Lagged
from implicitsolve.problem import LARGEST_BLOCK, favors_direct
from implicitsolve.result import Solution
from implicitsolve.status import Status
from implicitsolve.stopping import ALLOWANCE, NonlinearStop

PRODUCTS, CAUTIOUS = NewtonKrylov(), NewtonKrylov(line_search=Backtracking().cautious())
LAGGED = NewtonKrylov(preconditioner=Lagged(preconditioner=BlockLU(), eager=False))


class WholeNewton(BlockNewton):
    """`BlockNewton` without line searches, which is chosen by the number of systems: one may differ in rounding."""

    label = "BlockNewton"
    rounds_freely = True


WHOLE_STEPS = {
    backend: WholeNewton(factor=BlockLU(backend=backend), line_search=Backtracking(max_trials=0))
    for backend in ("lapack", "reference")
}
BLOCKS, DENSE, EQUILIBRATED = BlockNewton(), DenseNewton(), DenseNewton(equilibrated=True)
NEWTON_STEPS = 4.5  # of a solve by `WHOLE_STEPS`, as on most layers
PASS, PASS_UNKNOWN = 200.0, 0.04  # us of a step, and for each unknown, of Anderson's method or of Newton's
FACTORS, FACTORS_SYSTEM = 320.0, 38.0  # us that J, its factors and solves with them take besides in 1.5 assemblies,
FACTORS_UNKNOWN, FACTORS_ENTRY = 0.17, 0.033  # ... for each unknown and each entry, as measured on RNNs with LAPACK
AT_ONCE = 9.5  # steps of Anderson's method that most layers take: up to as many Newton's method comes first
MOST_STEPS = 40.0  # above which Newton's method is not tried: as many Anderson's method takes for most
TWO_PRECISIONS, TWO_STARTS = 9.0, 4e6  # steps of a solve in two precisions; over unknowns times k: of its two starts
MANY_SYSTEMS = 200  # from which a loop over blocks takes less time than LAPACK, system by system
OVERRUN = 40  # evaluations by which a last step of Krylov methods may exceed an allowance
FARTHER = 4.0  # than from x0 to a stationary point; twice as far solves as many cubics
MOST_DENSE = 20  # unknowns up to which a dense J comes first: with more, Krylov methods take fewer evaluations


@dataclass(frozen=True, kw_only=True)
class Auto(NonlinearMethod):
    """Choose by what the problem declares.

    Notes
    -----
    - A causal problem (`Problem.substitute`): `Substitution`, and `NewtonKrylov` where that was not accurate enough.
    - A fixed-point problem (`Problem.fixed_point`): `Anderson`, which ends systems that do not halve ||F|| in 50 steps;
      for these `Homotopy`, and where that fails too `NewtonKrylov`, each from x0. They are solved for half the blocks
      (`even_odd`) where the problem has `halves`. In float64, with blocks of at least 64 unknowns and `Problem.astype`,
      both can begin in float32, and Newton's method takes the last step or two (`MixedPrecision`). On NumPy arrays the
      sizes tell how many of Anderson's steps take as long as that does, or, where the problem has `blocks`, as a solve
      by whole steps of `BlockNewton`. Up to 9.5, as for one system of 100 blocks of 8 unknowns, this comes first. With
      more it follows if a system would take more of Anderson's steps at the rate of the first; from 40 on whole steps
      are not tried. `Anderson` begins again where one of them is not acceptable. On larger implicit GRUs Anderson's
      method needed fewer products than Newton–Krylov wherever it converged, and the homotopy solved nearly all of the
      rest, where Newton's method, tried in between, cost more than it saved.
    - No structure, and at most 20 unknowns, real NumPy numbers, in a batch or not: Powell's hybrid method with a
      dense J (`DenseNewton`), then `NewtonKrylov` with two line searches (one within bounds), and last a trust region
      for equations brought to one size at every step (`DenseNewton.equilibrated`), each where those before have failed.
      Where the hybrid method has taken no step, that trust region comes second.
      For single equations `DenseNewton` is tried twice, the second time from beyond the point where it ended.
    - No structure and no `linearize`, on NumPy arrays with more unknowns: `SparseNewton`, which takes the sparse
      matrix that `jac` returns (CuPy's as well), or detects diagonals and stencils in some ten evaluations. Graphs
      take 50 to 250 and are detected where `NewtonKrylov` needs more. `NewtonKrylov` follows if the Jacobian is dense,
      which takes two evaluations to see, and for systems on which the factored J fails; where a column of a dense one
      is near that of a multiple of I, `Anderson` comes first. Up to 100 unknowns both dense methods follow.
    - No structure otherwise, extended precision, or ``structure="none"``: `NewtonKrylov`; up to 100 unknowns, without
      `linearize`, both dense methods follow.
    - Blocks of k <= 64 unknowns and an assembly of at most 64 products, k (lower + upper + 1), or the problem's own
      `blocks`: `BlockNewton`. Systems on which it fails are solved by `NewtonKrylov` from x0.
    - Blocks of k <= 128 unknowns: `NewtonKrylov`, which is preconditioned by a lagged `BlockLU` as soon as it has spent
      on Krylov products what the assembly takes.
    - Larger blocks: `NewtonKrylov` with products alone; a factorization would cost more than the whole solve.
    """

    keeps_bounds: ClassVar[bool] = True

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        first, *others = self._methods(context, start.x)
        favored, reserve = _reserve(context.evaluator, others)
        sparing = replace(context, reserve=reserve) if reserve else context
        solution = first.solve(sparing, start, rows)
        if (solution.status == Status.CONVERGED).all():
            return solution
        for method in others:
            again = np.flatnonzero(unsolved(context, solution))
            if not again.size:
                break
            if isinstance(method, Unmoved):
                again = again[solution.iterations[again] == 0]
            continues = isinstance(method, Beyond) or (isinstance(first, BriefAnderson) and method is others[0])
            settings = context if method is favored else sparing
            solution = retried(method, settings, solution, again, continues=continues)
        return solution

    def _methods(self, context: SolveContext, x0: Array) -> Sequence[NonlinearMethod]:
        """The methods for a problem, each for the systems on which those before it have failed."""
        evaluator, problem = context.evaluator, context.evaluator.problem
        is_bounded = problem.bounds is not None
        if problem.substitute is not None and not is_bounded:
            return [Substitution(), PRODUCTS]
        if problem.fixed_point and not is_bounded:
            methods: list[NonlinearMethod] = [Anderson(), Homotopy()]
            steps = _steps_of_newton(context, x0)
            if Halved.suits(context):
                if evaluator.flat_shape[0] > 1 or steps > AT_ONCE:
                    return [Halved(method=self)]
                return [WHOLE_STEPS["lapack"], *(Halved(method=method) for method in (*methods, PRODUCTS))]
            if steps <= MOST_STEPS:
                brief = [] if steps <= AT_ONCE else [BriefAnderson(most_steps=steps)]
                backend = "lapack" if evaluator.flat_shape[0] < MANY_SYSTEMS else "reference"
                return [*brief, WHOLE_STEPS[backend], *methods, PRODUCTS]
            if MixedPrecision.suits(context):
                methods = [MixedPrecision(rough=method) for method in methods]
                steps = _steps_of_two_precisions(context, x0)
                brief = [BriefAnderson(most_steps=steps)] if steps > AT_ONCE else []
                return [*brief, *methods, PRODUCTS]
            return [*methods, PRODUCTS]
        is_dense = problem.structure in (None, "none") and DenseNewton.suits(context, x0)
        dense: list[NonlinearMethod] = [DENSE] if is_dense else []
        last: list[NonlinearMethod] = [EQUILIBRATED] if is_dense else []
        if dense and evaluator.size <= MOST_DENSE:
            beyond: list[NonlinearMethod] = [Beyond()] if evaluator.size == 1 else []
            unmoved: list[NonlinearMethod] = [Unmoved(equilibrated=True)] if last and not beyond else []
            # Of 128 starts within bounds the dogleg last solves 124, the cautious search 112 with more evaluations.
            return [*dense, *beyond, *unmoved, PRODUCTS, *([] if is_bounded else [CAUTIOUS]), *last]
        is_factorable = host_dtype(evaluator.dtype).char in "fdFD"
        if is_factorable and SparseNewton.suits(context, x0):
            if problem.sparse_structure is not None or problem.structure == "detect":
                return [SparseNewton(structure=problem.sparse_structure)]
            is_open = isinstance(x0, np.ndarray) or problem.jac is not None
            if is_open and problem.structure is None and problem.linearize is None and problem.blocks is None:
                return [SparseNewton(bisection="late" if evaluator.size >= SMALLEST_GRAPH else False), *dense, *last]
        structure = problem.block_structure
        if structure is None or structure.block_size > 2 * LARGEST_BLOCK or not is_factorable:
            return [PRODUCTS, *dense, *last]
        if not favors_direct(problem, structure.length(evaluator.size)):
            return [LAGGED]
        return [BLOCKS, PRODUCTS]


class Unmoved(DenseNewton):
    """`DenseNewton.equilibrated` for systems in which Powell's hybrid method has accepted no step.

    Robertson's kinetics in a reactor from (1, 0, 0) take 190 evaluations in place of 690.
    """


@dataclass(frozen=True, kw_only=True)
class Beyond(DenseNewton):
    """`DenseNewton` for single equations, from beyond a point where |F| is stationary: where a first attempt ended.

    The way from x0 to that point continues four times as far. Of 2,000 cubics with random coefficients, from x0 = 3,
    the first attempt solves 0.86, and this one 0.8 of the rest.
    """

    @property
    def label(self) -> str:
        return "DenseNewton from farther on"

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        evaluator, rows = context.evaluator, np.arange(len(start.x)) if rows is None else rows
        x0, x = start.start[rows], start.x[rows]
        with np.errstate(over="ignore"):
            farther = x + FARTHER * (x - x0 + np.copysign(1.0, x - x0))
        farther = np.where(np.isfinite(farther), farther, x0)
        start.x[rows] = farther if evaluator.box is None else evaluator.box.take(rows).clipped(farther)
        return super().solve(context, start, rows)


def _reserve(evaluator: Evaluator, others: Sequence[NonlinearMethod]) -> tuple[NonlinearMethod | None, int]:
    """A later method, and the evaluations of each system's allowance that those before it leave to it."""
    if DENSE in others:
        return DENSE, evaluator.size + OVERRUN
    return (others[-1], ALLOWANCE // 2) if evaluator.problem.fixed_point and others else (None, 0)


def _steps_of_newton(context: SolveContext, x0: Array) -> float:
    """Steps of Anderson's method that take as much time as a solve by Newton's; infinite where J has no `blocks`."""
    evaluator, structure = context.evaluator, context.evaluator.problem.block_structure
    if evaluator.problem.blocks is None or structure is None or not _may_be_brief(context, x0):
        return math.inf
    systems, size = evaluator.flat_shape
    size = size // 2 if evaluator.problem.halves is not None else size
    entries = size * structure.block_size * structure.width
    factors = FACTORS + systems * (FACTORS_SYSTEM + FACTORS_UNKNOWN * size + FACTORS_ENTRY * entries)
    return NEWTON_STEPS + factors / (PASS + PASS_UNKNOWN * systems * size)


def _steps_of_two_precisions(context: SolveContext, x0: Array) -> float:
    """Steps of Anderson's method that take as much time as a solve by `MixedPrecision`; 0 where that is not known."""
    evaluator = context.evaluator
    k = evaluator.problem.block_structure.block_size  # type: ignore[union-attr]
    return TWO_PRECISIONS + TWO_STARTS / (k * math.prod(evaluator.flat_shape)) if _may_be_brief(context, x0) else 0.0


def _may_be_brief(context: SolveContext, x0: Array) -> bool:
    """Whether all systems start at once, on NumPy arrays of real numbers, for which times were measured."""
    return context.scheduler is None and type(x0) is np.ndarray and x0.dtype.char in "fd"


ROUNDING = 100  # units of rounding in x, in float32, to which it may solve: F is a difference of numbers like x
ANDERSON = Anderson()
FINE = NewtonKrylov(krylov_dtype="float32", forcing=ConstantForcing(eta=LEAST_ETA))
LEAST_BLOCK = 64  # unknowns in a block from which on products in float32 take half the time


@dataclass(frozen=True, kw_only=True)
class MixedPrecision(FixedPointMethod):
    """A method in float32 until rounding errors dominate, then Newton–Krylov with float32 products and float64 F.

    For fixed-point problems in float64 that offer `Problem.astype`. From where the first phase ends, one Newton step
    whose linear system is solved as accurately as the target asks is nearly always enough; the target, and all norms
    of the result, are those of float64. Measured on implicit GRUs with k = 200 and 448, against Anderson's method
    in float64: some more products, most of them in float32, and 0.5 to 0.7 of the time.
    """

    rough: NonlinearMethod = ANDERSON
    fine: NewtonKrylov = FINE

    @staticmethod
    def suits(context: SolveContext) -> bool:
        """Whether a problem offers what is needed, and is large enough for it to pay."""
        evaluator, structure = context.evaluator, context.evaluator.problem.block_structure
        is_large = structure is not None and structure.block_size >= LEAST_BLOCK
        is_double = evaluator.dtype == evaluator.xp.float64
        is_race = context.scheduler is not None and context.scheduler.groups is not None
        return is_double and is_large and evaluator.problem.astype is not None and not is_race

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        evaluator, stop = context.evaluator, context.stop
        precision = eps(evaluator.xp, evaluator.dtype)
        if rows is None and stop.relative(precision) > 0:
            start.first_norm = stop.measure(evaluator.residual(start.x), evaluator.event_shape)
        xp, dtype, single = evaluator.xp, evaluator.dtype, evaluator.xp.float32
        x0, first_norm, iterations = start.x, start.first_norm.copy(), start.iterations.copy()
        in_single = replace(
            context,
            evaluator=evaluator.astype(single),
            stop=_rough(stop, precision, evaluator.event_shape),
            monitor=mapped(context.monitor, lambda x, F: (xp.astype(x, dtype), xp.astype(F, dtype))),
        )
        rough = self.rough.solve(in_single, start.astype(single), rows)
        rows = np.arange(len(x0)) if rows is None else rows
        # where x0 was good enough for float32, its norm is yet to be measured
        is_still = rough.iterations == iterations
        is_overflow = ~np.isfinite(rough.first_norm)  # there may be none in float64
        solution = rough.astype(evaluator.dtype)
        solution.start = start.start
        solution.first_norm = np.where(is_still | is_overflow, first_norm, rough.first_norm)
        still = rows[is_still[rows]]
        scatter(solution.x, still, gather(x0, still))
        is_good = ((rough.status == Status.CONVERGED) | is_overflow)[rows]
        self._measure_again(evaluator, solution, rows[~is_good], stop)
        good = rows[is_good]
        if not good.size:
            return solution
        solution.norm[good] = np.inf
        return solution.copy().improved(good, self.fine.solve(context, solution, good))

    def _measure_again(self, evaluator: Evaluator, solution: Solution, rows: Indices, stop: NonlinearStop) -> None:
        """F in float64 where systems have failed."""
        if rows.size:
            F = evaluator.take(rows, solution.x).residual(gather(solution.x, rows))
            scatter(solution.F, rows, F)
            solution.norm[rows] = stop.measure(F, evaluator.event_shape)


@dataclass(frozen=True, kw_only=True)
class _RoughStop(NonlinearStop):
    """A rule that also accepts F at the level of rounding errors, in the same norm."""

    event_shape: tuple[int, ...] = ()

    def holds(self, norms: HostArray, target: HostArray, x: Array, step: Array | None) -> HostArray:
        rounding = ROUNDING * eps(array_namespace(x), x.dtype) * self.measure(x, self.event_shape)
        return super().holds(norms, np.maximum(target, rounding), x, step)


def _rough(stop: NonlinearStop, precision: float, event_shape: tuple[int, ...]) -> NonlinearStop:
    rtol, limit = stop.relative(precision), stop.max_iterations
    return _RoughStop(atol=stop.atol, rtol=rtol, max_iterations=limit, norm=stop.norm, event_shape=event_shape)
