"""One solve of a problem by a method with checked settings."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from implicitsolve._arrays.host import keep_heap
from implicitsolve._arrays.namespace import as_inexact
from implicitsolve._parameters import NamedArrays
from implicitsolve._record import Tally
from implicitsolve._typing import Array, CallersArray, HostArray
from implicitsolve.errors import WrongDerivativesError, is_of_call
from implicitsolve.linearize._evaluator import CoarseResidualError, Evaluator
from implicitsolve.linearize._jacobian import Scales, assemble_jacobian
from implicitsolve.linearize._systems import GATHERED
from implicitsolve.monitor import Monitor, map_monitor
from implicitsolve.nonlinear._approximate_jacobian import offer_inverse
from implicitsolve.nonlinear._certificate import refute
from implicitsolve.nonlinear._halved import Halved
from implicitsolve.nonlinear._other_variables import Logarithmic
from implicitsolve.nonlinear._state import (
    CONVERGED,
    NonlinearMethod,
    Scheduler,
    Solution,
    SolveContext,
    SolveMemory,
    memory_of,
)
from implicitsolve.problem import FUNCTIONS, Problem, with_derivatives
from implicitsolve.result import NonlinearResult, fields_per_system
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop

ASIDE = 1e-3  # of x, by which a point is moved where F is to have generic digits

P = ParamSpec("P")
R = TypeVar("R")
ProblemT = TypeVar("ProblemT", bound="Problem")


def solve_root(
    problem: Problem,
    x0: Any,
    solver: NonlinearMethod,
    stop: NonlinearStop,
    monitor: Monitor,
    scheduler: Scheduler | None = None,
    previous: NonlinearResult | None = None,
    tally: Tally | None = None,
) -> NonlinearResult:
    """`root` with checked settings; without a scheduler all systems iterate at once."""
    if isinstance(x0, Mapping):
        parts = NamedArrays(x0)
        problem = _of_vector(problem, parts)
        result = solve_root(problem, parts.x0, solver, stop, monitor, scheduler, previous, tally)
        return replace(result, parts=parts.split(result.x))
    x0 = as_inexact(x0, "x0")
    problem = with_derivatives(problem, x0)
    state: Any = np.geterr()
    if state["under"] != "ignore" or not {"ignore", "warn"}.issuperset(state.values()):  # those of F are the caller's
        problem, monitor = problem_in_state(state, problem), in_state(state, monitor)
        stop = replace(stop, norm=in_state(state, stop.norm)) if callable(stop.norm) else stop
        with np.errstate(all="ignore"):
            return solve_root(problem, x0, solver, stop, monitor, scheduler, previous, tally)
    rest = solver, stop, monitor, scheduler, previous, tally
    try:
        result = _solve(problem, x0, *rest)
    except WrongDerivativesError as error:
        problem = problem.derivatives.refuse(str(error))
        result = _solve(problem, x0, *rest)
    except TypeError as error:
        if is_of_call(error):
            way = "functions are called with the array of all unknowns; `args` or `parameters` hold what else they take"
            raise TypeError(f"{error}: {way}") from error
        raise
    return result if result.problem is problem else replace(result, problem=problem)


def _of_vector(problem: Problem, parts: NamedArrays) -> Problem:
    """The problem whose state is a dict, as one of the vector of its parts."""
    given: dict[str, CallersArray] = {"residual": parts.of_vector(problem.residual)}
    given |= {name: getattr(problem, name) or parts.sizes for name in ("names", "equations")}
    given |= {name: parts.join(name, getattr(problem, name), 1.0) for name in ("x_scale", "f_scale")}
    if problem.bounds is not None:
        sides = zip(problem.bounds, (-np.inf, np.inf), strict=True)
        given["bounds"] = tuple(parts.join("bounds", side, rest) for side, rest in sides)
    return replace(problem, **given)


def _solve(
    problem: Problem,
    x0: Array,
    solver: NonlinearMethod,
    stop: NonlinearStop,
    monitor: Monitor,
    scheduler: Scheduler | None,
    previous: NonlinearResult | None,
    tally: Tally | None,
) -> NonlinearResult:
    tally = Tally(stop.max_evaluations, stop.max_seconds) if tally is None else tally
    whole, trace, scales = problem, problem.derivatives, None
    tally.residuals += 0 if trace is None else trace.evaluations
    _check(problem, solver, scheduler)
    if (problem.x_scale == "log") is True:  # an array compares entry by entry
        bounds = (0.0, np.inf) if problem.bounds is None else problem.bounds
        whole = problem = replace(problem, x_scale=None, bounds=bounds)
        solver = Logarithmic(method=solver)
    if problem.x_scale is not None or problem.f_scale is not None:
        scales = Scales.of(problem, x0, tally)
        problem, x0, monitor = scales.problem, scales.start(x0), scales.monitor(monitor)
    tally.charge()
    evaluator = _evaluator(problem, x0, solver, scheduler, tally, scales)
    keep_heap(x0)
    known = SolveMemory() if previous is None else memory_of("root", problem, x0, previous)
    if trace is not None and known.assembler is None:
        known = replace(known, assembler=trace.assembler)
    memory = SolveMemory(declared=problem.structure, keeps=previous is not None)
    context = SolveContext(evaluator, stop, monitor, scheduler, previous=known, memory=memory)
    solution = _solution(solver, context, x0)
    if solution is None:
        return _in_single(problem, x0, solver, stop, monitor, previous, tally)
    result = _result(solution, evaluator, memory, whole)
    result = result if scales is None else scales.expand(result)
    if trace is not None:
        trace.assembler = memory.assembler or trace.assembler
        if not np.all(result.success):
            trace.confirm(result.x)
    return result


def _evaluator(
    problem: Problem,
    x0: Array,
    solver: NonlinearMethod,
    scheduler: Scheduler | None,
    tally: Tally,
    scales: Scales | None,
) -> Evaluator:
    few = GATHERED if scheduler is None or scheduler.capacity is None else 1.0
    evaluator = Evaluator(problem, x0, solver.rdiff, few=few, tally=tally)
    is_plain = scales is None and problem.linearize is None  # and so may be called in float32
    evaluator.reports_coarse = scheduler is None and is_plain and type(x0) is np.ndarray
    given = problem.jac_approx if scales is None else scales.whole.jac_approx
    if given is not None:
        offer_inverse(evaluator, given, scales)
    return evaluator


def _check(problem: Problem, solver: NonlinearMethod, scheduler: Scheduler | None) -> None:
    """Raise where a problem declares what the method, or a caller who schedules systems, cannot have."""
    if problem.bounds is not None and not solver.keeps_bounds:
        raise ValueError(f'root: {type(solver).__name__} cannot keep `bounds`: take NewtonKrylov() or method="auto"')
    if scheduler is not None and any(isinstance(scale, str) for scale in (problem.x_scale, problem.f_scale)):
        raise ValueError('`x_scale` and `f_scale` must be numbers here, the same from every start, got "auto"')


def _solution(solver: NonlinearMethod, context: SolveContext, x0: Array) -> Solution | None:
    """Where the method leads from x0; None where F computes in float32, though x is of float64."""
    evaluator = context.evaluator
    start = Solution.at(evaluator.flatten(x0))
    if 0 in x0.shape:  # no unknowns, or no systems
        return replace(start, status=start.status + Status.CONVERGED, first_norm=start.norm, target=start.norm)
    if evaluator.problem.halves is not None and solver.eliminates and Halved.suits(context):
        solver = Halved(method=solver)
    if type(solver) is Logarithmic and not Logarithmic.suits(context, start.x):
        raise ValueError('root: x_scale="log" needs a positive x0 of NumPy, and no lower bounds but 0')
    try:
        solution = solver.solve(context, start)
    except CoarseResidualError:
        return None
    if context.stop.judges_x and not context.stop.judges_F:
        refute(evaluator, solution)
    may_be_coarse = evaluator.reports_coarse and evaluator.tally.ended is None
    return None if may_be_coarse and _has_failed_in_single(evaluator, solution) else solution


def in_state(state: dict[str, Any], function: Callable[P, R]) -> Callable[P, R]:
    """The function under these settings of floating-point errors, as are those of a problem that it returns."""

    @functools.wraps(function, updated=())
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        with np.errstate(**state):
            value = function(*arguments, **keywords)
        return problem_in_state(state, value) if isinstance(value, Problem) else value

    return call


def problem_in_state(state: dict[str, Any], problem: ProblemT) -> ProblemT:
    """The problem with all its functions in the state."""
    other = copy.copy(problem)
    for name in ("residual", *FUNCTIONS):
        if (function := getattr(problem, name)) is not None:
            object.__setattr__(other, name, in_state(state, function))
    return other


def _has_failed_in_single(evaluator: Evaluator, solution: Solution) -> bool:
    """Whether a system has failed near a root, where F computes in float32; one evaluation."""
    failed = solution.status != CONVERGED
    if not np.count_nonzero(failed) or solution.x.dtype != np.float64:
        return False
    failed &= solution.norm <= ASIDE * solution.first_norm
    if not failed.any() or not _is_of_single(solution.F[failed]):
        return False
    with np.errstate(all="ignore"):
        F: HostArray = evaluator.residual(evaluator.move(solution.x, ASIDE * solution.x))[failed]
        return _is_of_single(F) and bool((F.astype(np.float16) != F).any())


def _is_of_single(F: HostArray) -> bool:
    with np.errstate(all="ignore"):
        return bool((F.astype(np.float32) == F).all())


def _in_single(
    problem: Problem,
    x0: Any,
    solver: NonlinearMethod,
    stop: NonlinearStop,
    monitor: Monitor,
    previous: NonlinearResult | None,
    tally: Tally,
) -> NonlinearResult:
    """Solve in float32, the precision of F, where differences are as long; x and F are returned in that of x0."""

    def in_double(x: Array, F: Array) -> tuple[HostArray, HostArray]:
        return np.asarray(x, dtype=np.float64), np.asarray(F, dtype=np.float64)

    if problem.derivatives is not None:  # those of float64
        problem = replace(problem, jvp=None, jvps=None, vjp=None, derivatives=None)
    known = None if previous is None else replace(previous, x=previous.x.astype(np.float32))
    watch = map_monitor(monitor, in_double)
    result = solve_root(problem, x0.astype(np.float32), solver, stop, watch, previous=known, tally=tally)
    x, F = in_double(result.x, result.fun)
    return replace(result, x=x, fun=F)


def _result(solution: Solution, evaluator: Evaluator, memory: SolveMemory, problem: Problem) -> NonlinearResult:
    fields = {
        "status": solution.status,
        "residual_norm": solution.norm,
        "initial_norm": solution.first_norm,
        "target": solution.target,
        "error": solution.error,
        "iterations": solution.iterations,
        "krylov_iterations": solution.krylov_iterations,
    }
    return NonlinearResult(
        **fields_per_system(fields, evaluator.batch_shape),
        x=cast("HostArray", evaluator.unflatten(solution.x)),  # or an array of another library
        fun=cast("HostArray", evaluator.unflatten(solution.F)),
        counts=evaluator.tally.counts(),
        steps=tuple(solution.steps),
        retries=tuple(solution.retries),
        detection=memory.detection,
        problem=problem,
        _memory=memory,
        _jacobian=partial(assemble_jacobian, problem, known=memory.detection),
    )
