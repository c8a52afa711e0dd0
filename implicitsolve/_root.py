"""The native entry, `root`, and the plan of a solve."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, Unpack

import numpy as np

from implicitsolve._arrays.namespace import as_inexact
from implicitsolve._record import Tally
from implicitsolve._scipy_keywords import adapt_keywords, method_hint
from implicitsolve._typing import ArrayArgument, CallersArray, MethodName, ScipyKeywords
from implicitsolve.errors import AccuracyWarning, require
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.monitor import Monitor, observer, silent
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
from implicitsolve.nonlinear._approximate_jacobian import offer_inverse
from implicitsolve.nonlinear._halved import Halved, expanded_stages
from implicitsolve.nonlinear._plan import Plan
from implicitsolve.nonlinear._solve import solve_root
from implicitsolve.nonlinear._state import NonlinearMethod, SolveContext
from implicitsolve.problem import Problem, own_start
from implicitsolve.result import NonlinearResult
from implicitsolve.stopping import NonlinearStop, kind_of

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
INACCURATE = 1e-3  # estimated error of x, relative to x, above which a success by a tolerance of F warns


def root(
    problem: Problem | Callable[..., CallersArray],
    x0: ArrayArgument | Mapping[str, CallersArray] | None = None,
    *,
    method: NonlinearMethod | MethodName = "auto",
    stop: NonlinearStop | None = None,
    monitor: Monitor | bool | None = None,
    progress: bool = False,
    previous: NonlinearResult | None = None,
    bounds: Any = None,
    x_scale: ArrayArgument | Mapping[str, CallersArray] | None = None,
    f_scale: ArrayArgument | Mapping[str, CallersArray] | None = None,
    jac_approx: Any = None,
    parameters: CallersArray = None,
    derivatives: Literal["trace"] | None = None,
    ramp: tuple[str, float, float] | None = None,
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
        the system is solved in float32. With a dict of NumPy arrays, also nested, F gets and returns dicts like it,
        bounds and scales may be such dicts, and the result has `parts`; other functions get the vector of all entries.
        Default: the problem's own initial guess, else ``previous.x``.
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
        Result of a related solve with as many unknowns, such as the last time step or the neighboring parameter: this
        solve begins with its detected sparsity, coloring, factors and recycled Krylov vectors, which cost evaluations
        where J has changed much, and never accuracy. See the notes.
    bounds : tuple of two array_like, or scipy.optimize.Bounds, optional
        ``(lower, upper)``, in place of those that the problem declares. See `Problem` and the notes.
    x_scale, f_scale : array_like or "auto", optional
        Sizes of the unknowns and of the equations, in place of those that the problem declares. The error of x is that
        of x / x_scale. With `f_scale` the norms of the result, and tolerances of F, are those of F / f_scale:
        norm(F(x) / f_scale) <= max(atol, rtol * norm(F(x0) / f_scale)). See `Problem`.
    jac_approx : matrix, operator, factors or callable, optional
        An approximation of J, whose inverse makes steps and preconditions. See `Problem`.
    parameters : mapping of str to Array, array or float, optional
        What F depends on in addition to x, in place of those that the problem declares. See `Problem`.
    derivatives : "trace", optional
        "trace": exact derivatives of a NumPy function, by JAX. See `Problem`. Default: differences, where
        the problem has no products of its own.
    ramp : (str, float, float), optional
        ``("Re", 100, 2000)``: the functions of the problem have an argument of this name, ``F(x, Re)``. The solutions
        are followed from x0 at the first value to the last one by `continuation`, where the solve begins: one real
        system, without bounds and scales. Where the branch ends before, as at a fold, it begins there.
    **scipy_keywords
        `args`, `jac` and `tol`, as in `scipy.optimize.root`, for a plain function: ``F(x, *args)``; the function
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
    What "auto" takes is described by `Auto`; `plan` shows the stages for a problem.

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
    if previous is not None:
        check_previous("root", previous)
    if scipy_keywords:
        problem, stop = adapt_keywords(problem, stop, scipy_keywords, (NewtonKrylov, NonlinearStop, Problem))
    problem = problem if isinstance(problem, Problem) else Problem(problem)
    declared = {"bounds": bounds, "x_scale": x_scale, "f_scale": f_scale}
    declared |= {"jac_approx": jac_approx, "parameters": parameters, "derivatives": derivatives}
    given = {name: value for name, value in declared.items() if value is not None}
    problem = replace(problem, **given) if given else problem
    solver, stop, watch = check_settings("root", method, stop, monitor, progress=progress)
    whole: Problem = problem
    tally: Tally | None = None
    if ramp is not None:
        ramps = require("implicitsolve.branches._continuation", "root: `ramp` needs implicitsolve.branches")
        whole, x0, tally = ramps.end_of_ramp(problem, x0, ramp, stop)
    if x0 is None:
        if previous is None or whole.initial_guess is not None:
            x0 = own_start("root", whole)
        else:
            x0 = previous.parts or previous.x
    if isinstance(x0, np.ndarray) and x0.dtype.char in "gG" and not stop.judges_F:
        kind = "complex" if x0.dtype.kind == "c" else "float"  # LAPACK, which errors of x need, has no long doubles
        raise TypeError(f"root: `x0` is of {x0.dtype}: pass np.array(x0, dtype={kind}), or a tolerance of F")
    return warn_if_inaccurate(solve_root(whole, x0, solver, stop, watch, previous=previous, tally=tally), stop)


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
    if problem.jac_approx is not None:
        offer_inverse(evaluator, problem.jac_approx)
    context, x = SolveContext(evaluator, stop), evaluator.flatten(x0)
    if problem.halves is not None and solver.eliminates and Halved.suits(context):
        solver = Halved(method=solver)
    return Plan(tuple(expanded_stages(solver, context, x)), evaluator.size)


def check_previous(caller: str, previous: Any) -> None:
    """Raise where what should be the result of an earlier solve is none."""
    if not hasattr(previous, "_memory"):
        way = f"{type(previous).__name__}: pass {'its x' if hasattr(previous, 'x') else 'arrays'} as x0"
        raise TypeError(f"{caller}: `previous` must be the result of an earlier solve, got {way}")


def warn_if_inaccurate(result: NonlinearResult, stop: NonlinearStop, stacklevel: int = 3) -> NonlinearResult:
    """Return the result, after a warning where the caller's tolerance of F has left x inaccurate."""
    if stop.judges_F and result.error is not None and np.any(np.asarray(result.error) > INACCURATE):
        message = (  # without numbers, so that Python shows it once
            f"{stop} holds, but the estimated error of x is above {INACCURATE:g} of it (`result.error`): require a "
            "smaller F, or leave the tolerance out, so that the error of x decides"
        )
        warnings.warn(message, AccuracyWarning, stacklevel=stacklevel)
    return result


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
    watch = silent if monitor is None and progress is False else observer(caller, monitor, progress=progress)
    return method, stop, watch
