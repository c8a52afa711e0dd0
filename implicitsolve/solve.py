"""The native entries: `root` for nonlinear systems, `linear_solve` for linear ones."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Unpack, cast

import numpy as np

from implicitsolve._arrays.namespace import array_namespace, as_inexact, is_array, is_complex
from implicitsolve._scipy_keywords import adapted, method_hint
from implicitsolve._typing import Array, ArrayArgument, CallersArray, HostArray, MethodName, ScipyKeywords
from implicitsolve.direct import BlockLU, DirectMethod, solve_factored
from implicitsolve.errors import AccuracyWarning, WrongDerivativesError
from implicitsolve.kernels._norms import norm2
from implicitsolve.krylov import LGMRES, KrylovMethod
from implicitsolve.krylov._base import with_idle_measured
from implicitsolve.linearize._evaluator import FEW, CoarseResidualError, Evaluator
from implicitsolve.linearize._jacobian import Scales, jacobian_of
from implicitsolve.monitor import Monitor, mapped, observer
from implicitsolve.nonlinear import (
    Anderson,
    Auto,
    BlockNewton,
    Broyden,
    CausalNewton,
    Homotopy,
    NewtonKrylov,
    Picard,
    PseudoTransient,
    SparseNewton,
    Substitution,
)
from implicitsolve.nonlinear._fixed_point import Halved, expanded_stages
from implicitsolve.nonlinear._logarithmic import Logarithmic
from implicitsolve.nonlinear._plan import Plan
from implicitsolve.nonlinear._state import CONVERGED, NonlinearMethod, Scheduler, SolveContext, SolveMemory, memory_of
from implicitsolve.operators import BlockBandedMatrix, aslinearoperator
from implicitsolve.operators._convert import as_inverse
from implicitsolve.operators._wrappers import guarded
from implicitsolve.precondition._parts import build_inverse, builds_inverse, takes_sparse
from implicitsolve.problem import Problem, in_state, own_start, problem_in_state, with_derivatives
from implicitsolve.result import (
    LinearResult,
    NonlinearResult,
    Solution,
    error_per_system,
    per_system,
    status_per_system,
)
from implicitsolve.status import Status
from implicitsolve.stopping import LinearStop, NonlinearStop, Tally, kind_of

METHODS: dict[str, NonlinearMethod] = {
    "anderson": Anderson(),
    "auto": Auto(),
    "block-newton": BlockNewton(),
    "broyden": Broyden(),
    "causal-newton": CausalNewton(),
    "homotopy": Homotopy(),
    "newton-krylov": NewtonKrylov(),
    "picard": Picard(),
    "pseudo-transient": PseudoTransient(),
    "sparse-newton": SparseNewton(),
    "substitution": Substitution(),
}
DEFAULT = NonlinearStop()
VECTORS = 16  # like x that a solve holds at most, about, and frees at its end
LARGEST_FREED = 2**25 - 2**16  # bytes: glibc does not adapt to larger blocks


def keep_heap(x: Array) -> None:
    """Keep the memory that a solve with arrays like `x` frees in the process, for its next arrays and the next solve.

    glibc returns free memory beyond twice the largest block that was ever freed, and the kernel then maps it again page
    by page. A block that is never written to costs nothing and sets that limit: with 10^5 unknowns on a line a solve
    takes 0.7 to 0.9 of the time.
    """
    if isinstance(x, np.ndarray):
        np.empty(min(VECTORS * x.nbytes, LARGEST_FREED), dtype=np.uint8)


ASIDE = 1e-3  # of x, by which a point is moved where F is to have generic digits
INACCURATE = 1e-3  # estimated error of x, relative to x, above which a success by a tolerance of F warns


def root(
    problem: Problem | Callable[..., CallersArray],
    x0: ArrayArgument | None = None,
    *,
    method: NonlinearMethod | MethodName = "auto",
    stop: NonlinearStop | None = None,
    monitor: Monitor | bool | None = None,
    progress: bool = False,
    previous: NonlinearResult | None = None,
    bounds: Any = None,
    x_scale: ArrayArgument | None = None,
    f_scale: ArrayArgument | None = None,
    parameters: CallersArray = None,
    derivatives: Literal["trace"] | None = None,
    **scipy_keywords: Unpack[ScipyKeywords],
) -> NonlinearResult:
    """Solve F(x) = 0, for one system or a batch of independent ones.

    Parameters
    ----------
    problem : Problem or callable
        The system; a callable is taken as its residual.
    x0 : array_like, optional
        Start, of shape ``batch_shape + event_shape``. Its library, device and dtype are those of the solution (integers
        become float64, float16 becomes float32, a matrix an array). Where F returns float32 numbers for a float64 x0
        the system is solved in float32. Default: the problem's own initial guess, else ``previous.x``.
    method : NewtonKrylov, BlockNewton, SparseNewton, Anderson, ..., CausalNewton or str, optional
        Solver settings, or the name of default ones: "newton-krylov", "block-newton", "sparse-newton", "anderson",
        "picard", "broyden", "homotopy", "substitution", "causal-newton", or "auto" (the default), which chooses from
        what the problem declares: see the notes.
    stop : NonlinearStop, optional
        When a system has converged. Default: the estimated error of x is at most sqrt(eps) of x.
    monitor : callable or True, optional
        Called as ``monitor(step, x, F)`` with the start and every step, a `NewtonStep` and copies of x and F; where it
        returns True, the solve ends. True prints a table. See `implicitsolve.monitor`.
    progress : bool, optional
        Show a progress bar on standard error: one line in a terminal or a notebook. Default False.
    previous : NonlinearResult, optional
        Result of a related solve with as many unknowns, such as the last time step or the neighboring parameter: the
        detected sparsity, the coloring, the factors and the recycled Krylov vectors are the first ones of this solve.
        They cost evaluations where J has changed much, and never accuracy. See the notes.
    bounds : tuple of two array_like, or scipy.optimize.Bounds, optional
        ``(lower, upper)``, in place of those that the problem declares. See `Problem` and the notes.
    x_scale, f_scale : array_like or "auto", optional
        Sizes of the unknowns and of the equations, in place of those that the problem declares. The error of x is that
        of x / x_scale. With `f_scale` the norms of the result, and tolerances of F, are those of F / f_scale:
        norm(F(x) / f_scale) <= max(atol, rtol * norm(F(x0) / f_scale)). See `Problem`.
    parameters : mapping of str to Array, array or float, optional
        What F depends on in addition to x, in place of those that the problem declares. See `Problem`.
    derivatives : "trace", optional
        "trace": exact derivatives of a NumPy function, which JAX compiles. See `Problem`. Default: differences, where
        the problem has no products of its own.
    **scipy_keywords
        `args`, `jac` and `tol`, as of `scipy.optimize.root`, for a plain function: ``F(x, *args)``; the function
        ``jac(x, *args)``, or True where F returns ``(F, J)``; ``stop=NonlinearStop(atol=tol)``. SciPy's other keywords
        raise a TypeError that names the replacement.

    Returns
    -------
    NonlinearResult
        Solution, a status for each system, counts and trace. A numerical failure is a status, never an exception:
        ``result.raise_for_status()`` makes it one.

    Raises
    ------
    TypeError, ValueError
        If an argument, or what one of the problem's functions returns, is not usable; if `previous` has other shapes,
        another dtype or another declared structure. Exceptions of those functions pass unchanged.

    Notes
    -----
    "auto" takes `Substitution` for causal problems. For fixed-point problems it takes `Anderson`, then, for systems
    that contract poorly, `Homotopy`, and last `NewtonKrylov`. The first two work in float32 as long as that makes
    progress, where x0 is float64, blocks have at least 64 unknowns, and the problem offers `astype`. On small layers
    with `blocks` whole steps of `BlockNewton` come first, or follow where those of `Anderson` contract slowly. A
    problem that is neither
    and declares no structure: Newton's method with a dense J in a trust region for at most 20 unknowns, sparse J where
    they are detected (`SparseNewton`), `NewtonKrylov`. With a declared structure: `BlockNewton` where blocks have at
    most 64 unknowns and an assembly takes at most 64 products or the problem offers `blocks`; systems on which it fails
    begin again with `NewtonKrylov`. Up to 128 unknowns in a block: `NewtonKrylov`, with a lagged `BlockLU` once
    products have cost as much as the assembly. Larger blocks: products alone.

    Problems with `halves` are solved for every second block alone (`even_odd`), by all methods but those that were
    made for all blocks (`BlockNewton`, also as the first choice of "auto", a `preconditioner`, `TruncatedInverse`);
    ``dataclasses.replace(problem, halves=None)`` keeps them whole. A residual of the halved problem is the work of one,
    and counts as one; x0 and ||F(x0)|| are those with the other blocks already computed. One more residual completes
    x at the end.

    One step of `NewtonKrylov` costs one Jacobian product for each Krylov iteration, and one residual (more where the
    line search shortens the step). Without exact products each is a residual.

    With `bounds`, iterates and all points of evaluation lie within them: differences are taken inwards, and a step
    leaves the part min(0.1, ||F|| / ||F(x0)||) of the distance to a bound, so that a root on a bound is approached as
    fast as ||F|| falls. Where a step shortened so gains little, the unknowns at bounds are held and ||F + J s|| is
    minimized over the others. Convergence is judged as without bounds; a system that becomes stationary
    on a bound without a root ends as STATIONARY_ON_BOUND. `NewtonKrylov`, `SparseNewton` and `BlockNewton` keep
    bounds, and "auto" uses no others; the other methods raise. A difference product next to a bound may take two
    residuals. Systems on which "auto" fails, and whose unknowns are bounded by 0 from below, are solved for the
    logarithms of these, as all are with ``x_scale="log"``.

    With `previous`, a J that was found dense is not searched again. Kept factors give directions as long as they reduce
    ||F|| fast enough, by the rules of `BlockNewton`; a pattern that two assemblies of J show to be too narrow is
    detected again, once in a solve. Every result holds structure and coloring; factors and Krylov vectors, the larger
    part, only after a solve with `previous`, and only if all systems of the batch have converged in the same step. So
    the first result of a chain has none, the second factors its J, and later ones begin with these factors. They are
    kept as long as a result that holds them: keep ``result.without_memory()`` of old steps.

    With NumPy arrays and glibc, a process may keep free memory of up to 32 times x0, at most 64 MiB, for later solves,
    which saves mapping it again; ``MALLOC_TRIM_THRESHOLD_`` in the environment sets another limit.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> def circle_and_line(x):
    ...     return np.stack([x[..., 0] ** 2 + x[..., 1] ** 2 - 4, x[..., 0] - x[..., 1]], axis=-1)
    >>> batch = ims.Problem(circle_and_line, batch_ndim=1)
    >>> result = ims.root(batch, np.array([[1.0, 0.5], [-1.0, -3.0]]))
    >>> result.success
    array([ True,  True])
    >>> result.x.round(6)
    array([[ 1.414214,  1.414214],
           [-1.414214, -1.414214]])
    """
    if scipy_keywords:
        problem, stop = adapted(problem, stop, scipy_keywords, (NewtonKrylov, NonlinearStop, Problem))
    problem = problem if isinstance(problem, Problem) else Problem(problem)
    declared = {"bounds": bounds, "x_scale": x_scale, "f_scale": f_scale}
    declared |= {"parameters": parameters, "derivatives": derivatives}
    given = {name: value for name, value in declared.items() if value is not None}
    problem = replace(problem, **given) if given else problem
    solver, stop, watch = check_settings("root", method, stop, monitor, progress=progress)
    if x0 is None:
        is_known = problem.initial_guess is None and isinstance(previous, NonlinearResult)
        x0 = previous.x if is_known else own_start("root", problem)  # type: ignore[union-attr]
    return warn_if_inaccurate(solve_root(problem, x0, solver, stop, watch, previous=previous), stop)


def plan(
    problem: Problem | Callable[..., CallersArray],
    x0: ArrayArgument | None = None,
    *,
    method: NonlinearMethod | MethodName = "auto",
    bounds: Any = None,
) -> Plan:
    """Return what `root` will do with these arguments, as stages; F is not evaluated.

    Parameters
    ----------
    problem : Problem or callable
        The system, as for `root`.
    x0 : array_like, optional
        Start. Default: the problem's own initial guess.
    method : NewtonKrylov, ... or str, optional
        As for `root`.
    bounds : tuple of two array_like, optional
        As for `root`.

    Returns
    -------
    Plan
        The stages; `print` shows one in a line. Each takes the systems on which those before it have failed, where its
        condition holds; what was tried is in ``result.retries``.

    Raises
    ------
    TypeError, ValueError
        If an argument is not usable.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> print(ims.plan(lambda x: x**2 - 2, np.ones(3)))
    1. DenseNewton (50% of the budget).
    2. DenseNewton, equilibrated where those before failed (75% of the budget).
    3. NewtonKrylov with Backtracking where those before failed (100% of the budget).
    Budget: 480 evaluations without progress for each system; more where J takes many.
    """
    problem = problem if isinstance(problem, Problem) else Problem(problem)
    problem = problem if bounds is None else replace(problem, bounds=bounds)
    solver, stop, _ = check_settings("plan", method, None, None)
    x0 = as_inexact(own_start("plan", problem) if x0 is None else x0, "x0")
    evaluator = Evaluator(problem, x0, solver.rdiff)
    context, x = SolveContext(evaluator, stop), evaluator.flatten(x0)
    if problem.halves is not None and solver.eliminates and Halved.suits(context):
        solver = Halved(method=solver)
    return Plan(tuple(expanded_stages(solver, context, x)), evaluator.size)


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
    x0 = as_inexact(x0, "x0")
    problem = with_derivatives(problem, x0)
    state: Any = np.geterr()
    if state["under"] != "ignore" or not {"ignore", "warn"}.issuperset(state.values()):  # those of F are the caller's
        problem, monitor = problem_in_state(state, problem), in_state(state, monitor)
        stop = replace(stop, norm=in_state(state, stop.norm)) if callable(stop.norm) else stop
        with np.errstate(all="ignore"):
            return solve_root(problem, x0, solver, stop, monitor, scheduler, previous, tally)
    try:
        result = _solve(problem, x0, solver, stop, monitor, scheduler, previous, tally)
    except WrongDerivativesError as error:
        problem = problem.derivatives.refuse(str(error))
        result = _solve(problem, x0, solver, stop, monitor, scheduler, previous, tally)
    return result if result.problem is problem else replace(result, problem=problem)


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
    if problem.bounds is not None and not solver.keeps_bounds:
        raise ValueError(f'root: {type(solver).__name__} cannot keep `bounds`: take NewtonKrylov() or method="auto"')
    if scheduler is not None and any(isinstance(scale, str) for scale in (problem.x_scale, problem.f_scale)):
        raise ValueError('`x_scale` and `f_scale` must be numbers here, the same from every start, got "auto"')
    tally = Tally(stop.max_evaluations, stop.max_seconds) if tally is None else tally
    trace = problem.derivatives
    tally.residuals += 0 if trace is None else trace.evaluations
    if isinstance(problem.x_scale, str) and problem.x_scale == "log":
        bounds = (0.0, np.inf) if problem.bounds is None else problem.bounds
        problem, solver = replace(problem, x_scale=None, bounds=bounds), Logarithmic(method=solver)
    has_scales = problem.x_scale is not None or problem.f_scale is not None
    whole, scales = problem, Scales.of(problem, x0, tally) if has_scales else None
    tally.charge()
    if scales is not None:
        problem, x0, monitor = scales.problem, scales.start(x0), scales.monitor(monitor)
    known = SolveMemory() if previous is None else memory_of("root", problem, x0, previous)
    if trace is not None and known.assembler is None:
        known = replace(known, assembler=trace.assembler)
    memory = SolveMemory(declared=problem.structure, keeps=previous is not None)
    few = FEW if scheduler is None or scheduler.capacity is None else 1.0
    evaluator = Evaluator(problem, x0, solver.rdiff, few=few)
    evaluator.tally = tally
    is_plain = scales is None and problem.linearize is None  # and so may be called in float32
    evaluator.reports_coarse = scheduler is None and is_plain and type(x0) is np.ndarray
    keep_heap(x0)
    solution = Solution.at(evaluator.flatten(x0))
    if 0 in x0.shape:  # no unknowns, or no systems
        none = solution.norm
        solution = replace(solution, status=solution.status + Status.CONVERGED, first_norm=none, target=none)
    else:
        context = SolveContext(evaluator, stop, monitor, scheduler, previous=known, memory=memory)
        if problem.halves is not None and solver.eliminates and Halved.suits(context):
            solver = Halved(method=solver)
        if type(solver) is Logarithmic and not Logarithmic.suits(context, solution.x):
            raise ValueError('root: x_scale="log" needs a positive x0 of NumPy, and no lower bounds but 0')
        try:
            solution = solver.solve(context, solution)
        except CoarseResidualError:
            return _in_single(problem, x0, solver, stop, monitor, previous, tally)
        if evaluator.reports_coarse and tally.ended is None and _has_failed_in_single(evaluator, solution):
            return _in_single(problem, x0, solver, stop, monitor, previous, tally)
    result = _result(solution, evaluator, memory, whole)
    result = result if scales is None else scales.expanded(result)
    if trace is not None:
        trace.assembler = memory.assembler or trace.assembler
        if not np.all(result.success):
            trace.confirm(result.x)
    return result


def _has_failed_in_single(evaluator: Evaluator, solution: Solution) -> bool:
    """Whether a system has failed near a root, where F computes in float32, though x is of float64: one F tells."""
    failed = solution.status != CONVERGED
    if not np.count_nonzero(failed) or solution.x.dtype != np.float64:
        return False
    failed &= solution.norm <= ASIDE * solution.first_norm
    if not failed.any() or not _is_of_single(solution.F[failed]):
        return False
    with np.errstate(all="ignore"):
        F: HostArray = evaluator.residual(evaluator.moved(solution.x, ASIDE * solution.x))[failed]
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
    watch = mapped(monitor, in_double)
    result = solve_root(problem, x0.astype(np.float32), solver, stop, watch, previous=known, tally=tally)
    x, F = in_double(result.x, result.fun)
    return replace(result, x=x, fun=F)


def _result(solution: Solution, evaluator: Evaluator, memory: SolveMemory, problem: Problem) -> NonlinearResult:
    batch_shape = evaluator.batch_shape
    return NonlinearResult(
        x=cast("HostArray", evaluator.unflatten(solution.x)),  # or an array of another library
        fun=cast("HostArray", evaluator.unflatten(solution.F)),
        status=status_per_system(solution.status, batch_shape),
        residual_norm=per_system(solution.norm, batch_shape),
        initial_norm=per_system(solution.first_norm, batch_shape),
        target=per_system(solution.target, batch_shape),
        error=error_per_system(solution.error, batch_shape),
        iterations=per_system(solution.iterations, batch_shape),
        krylov_iterations=per_system(solution.krylov_iterations, batch_shape),
        counts=evaluator.tally.counts(),
        steps=tuple(solution.steps),
        retries=tuple(solution.retries),
        detection=memory.detection,
        problem=problem,
        _memory=memory,
        _jacobian=partial(jacobian_of, problem, memory.detection),
    )


def warn_if_inaccurate(result: NonlinearResult, stop: NonlinearStop, stacklevel: int = 3) -> NonlinearResult:
    """Return the result, after a warning where the caller's tolerance of F has left x inaccurate."""
    if stop.judges_F and result.error is not None and np.any(np.asarray(result.error) > INACCURATE):
        message = (  # without numbers, so that Python shows it once
            f"{stop} holds, but the estimated error of x is above {INACCURATE:g} of it (`result.error`): ask for a "
            "smaller F, or leave the tolerance out, so that the error of x decides"
        )
        warnings.warn(message, AccuracyWarning, stacklevel=stacklevel)
    return result


def linear_solve(
    A: Any,
    b: Any,
    *,
    method: KrylovMethod | DirectMethod | None = None,
    M: Any = None,
    x0: ArrayArgument | None = None,
    stop: LinearStop | None = None,
) -> LinearResult:
    """Solve A x = b by a Krylov method, for one system or a batch of independent ones.

    Parameters
    ----------
    A : LinearOperator, array or sparse matrix
        Square. An array may have leading batch axes, ``(..., N, N)``.
    b : array_like
        Right-hand side of shape ``batch_shape + in_shape`` of A, or flattened ``batch_shape + (N,)``.
    method : GMRES, LGMRES, BiCGSTAB, ScipyKrylov, BlockLU or CyclicReduction, optional
        The last two, and `petsc.PETScLU`, are direct methods, for a `BlockBandedMatrix` (that of PETSc for sparse
        matrices too): the matrix is factored, and the solution refined, by at most 5 steps, until the stopping rule
        holds. Default: ``BlockLU()`` for such a matrix, if neither `M` nor `x0` is given, else ``LGMRES()``, whose
        restarts remember.
    M : LinearOperator, array, sparse matrix, factors or callable, optional
        Approximates the inverse of A: ``splu(A)``, a hierarchy of pyamg and a function ``r -> z`` are taken too. For a
        `BlockBandedMatrix` it may be `BlockLU` or one of `implicitsolve.precondition`, which are built from A. Default:
        A's own approximate inverse, if it has one; see `LinearOperator`.
    x0 : array_like, optional
        Start. Default 0, which saves a product.
    stop : LinearStop, optional
        Default: ||b - A x||_2 <= 1e-6 ||b||_2, at most 500 iterations.

    Returns
    -------
    LinearResult
        Solution and a status for each system; the residual norm is measured by a product at the returned x.

    Raises
    ------
    TypeError, ValueError
        If an argument is not usable.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> ims.linear_solve(np.array([[4.0, 1.0], [2.0, 3.0]]), np.array([1.0, 2.0])).x
    array([0.1, 0.6])
    """
    operator = aslinearoperator(A)
    solver: Any = method
    if method is None:
        solver = BlockLU() if isinstance(operator, BlockBandedMatrix) and M is None and x0 is None else LGMRES()
    stop = LinearStop() if stop is None else stop
    check_linear("linear_solve", solver, stop)
    is_direct = solver.kind == "direct"
    if operator.shape[0] != operator.shape[1]:
        raise ValueError(f"linear_solve: `A` must be square, got shape {operator.shape}")
    b = as_inexact(b, "b")
    _fits(operator.batch_shape, operator.out_shape, b, "b")
    start = None if x0 is None else as_inexact(x0, "x0")
    if start is not None:
        _fits(operator.batch_shape, operator.in_shape, start, "x0")
    if builds_inverse(M):
        M = build_inverse(M, A if takes_sparse(M) else operator)
    offer = operator.approximate_inverse() if M is None and solver.may_transform else None
    inverse = offer if M is None else as_inverse(M, "M", operator.in_shape, operator.batch_shape)
    if inverse is not None and (inverse.shape, inverse.batch_shape) != (operator.shape, operator.batch_shape):
        raise ValueError(
            f"linear_solve: `M` must have the shape {operator.shape} and batch shape {operator.batch_shape} of A, "
            f"got {inverse.shape} and {inverse.batch_shape}"
        )
    if is_direct:
        for name, value in (("M", M), ("x0", x0)):
            if value is not None:
                raise ValueError(f"linear_solve: `{name}` must be None for a direct method, got {type(value).__name__}")
        if not (isinstance(operator, BlockBandedMatrix) or takes_sparse(solver)):
            raise TypeError(f"linear_solve: a direct method needs a BlockBandedMatrix as `A`, got {type(A).__name__}")
    xp = array_namespace(*(part for part in (b, start, A, M) if is_array(part)))
    dtypes = [part.dtype for part in (operator, inverse, start) if part is not None]
    if not is_complex(b) and any("complex" in str(dtype) for dtype in dtypes):
        b = xp.astype(b, xp.complex64 if xp.finfo(b.dtype).bits == 32 else xp.complex128)
    shape = math.prod(operator.batch_shape), operator.shape[1]
    flat = xp.reshape(b, shape)
    tally = Tally()
    counted = guarded(operator, "A", tally.add)
    target: HostArray | None = None
    with np.errstate(all="ignore"):
        if is_direct:
            factors = solver.factor(operator if isinstance(operator, BlockBandedMatrix) else A)
            outcome = solve_factored(counted, factors, flat, stop)
        else:
            target = stop.target(norm2(flat), flat)
            outcome = solver.solve(
                counted,
                flat,
                target=target,
                max_iterations=stop.max_iterations,
                M=None if inverse is None else guarded(inverse, "M"),
                x0=None if start is None else xp.astype(xp.reshape(start, shape), b.dtype),
            )
            outcome = outcome if start is not None else with_idle_measured(outcome, counted, flat, target)
    is_state = tuple(b.shape) == operator.batch_shape + operator.out_shape
    return LinearResult(
        x=xp.reshape(outcome.x, operator.batch_shape + operator.in_shape if is_state else b.shape),
        status=status_per_system(outcome.status, operator.batch_shape),
        residual_norm=per_system(outcome.residual_norm, operator.batch_shape),
        target=math.nan if target is None else per_system(target, operator.batch_shape),
        iterations=per_system(outcome.iterations, operator.batch_shape),
        matvecs=tally.jvps + tally.vjps,
    )


def check_linear(caller: str, method: Any, stop: Any) -> None:
    """Raise unless `method` is a linear solver and `stop` a rule for one."""
    if kind_of(method) not in ("krylov", "direct"):
        raise TypeError(f"{caller}: `method` must be GMRES() or another Krylov method, or BlockLU(), got {method!r}")
    if not isinstance(stop, LinearStop):
        raise TypeError(f"{caller}: `stop` must be a LinearStop, got {type(stop).__name__}")


def check_settings(
    caller: str, method: Any, stop: Any, monitor: Any, *, progress: bool = False
) -> tuple[NonlinearMethod, NonlinearStop, Monitor]:
    """The solver, stopping rule and monitor that a caller's arguments stand for."""
    if isinstance(method, str):
        if method not in METHODS:
            known = f"{caller}: `method` must be a solver or one of {sorted(METHODS)}, got {method!r}"
            raise ValueError(known + method_hint(method, METHODS))
        method = METHODS[method]
    elif kind_of(method) != "nonlinear":
        got = f"the class: write {method.__name__}()" if isinstance(method, type) else type(method).__name__
        got += f": write NewtonKrylov(krylov={method!r})" if kind_of(method) == "krylov" else ""
        raise TypeError(f"{caller}: `method` must be a nonlinear solver or its name, got {got}")
    stop = DEFAULT if stop is None else stop
    if not isinstance(stop, NonlinearStop):
        raise TypeError(f"{caller}: `stop` must be a NonlinearStop, got {type(stop).__name__}")
    return method, stop, observer(caller, monitor, progress=progress)


def _fits(batch_shape: tuple[int, ...], event_shape: tuple[int, ...], b: Array, name: str) -> None:
    shapes = batch_shape + event_shape, (*batch_shape, math.prod(event_shape))
    if tuple(b.shape) not in shapes:
        expected = " or ".join(str(s) for s in dict.fromkeys(shapes))
        raise ValueError(f"linear_solve: `{name}` must have shape {expected}, got {tuple(b.shape)}")
