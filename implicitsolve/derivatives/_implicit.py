"""Derivatives of a solution with respect to the parameters: reverse mode and forward mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from implicitsolve._parameters import NamedArrays
from implicitsolve._root import INACCURATE
from implicitsolve._typing import ArrayArgument, CallersArray
from implicitsolve.derivatives._parameter_differences import with_accuracy
from implicitsolve.derivatives._point import Point
from implicitsolve.derivatives._systems import AdjointResult, TangentResult, as_given
from implicitsolve.direct import DirectMethod
from implicitsolve.errors import AccuracyWarning, check_names
from implicitsolve.krylov import KrylovMethod
from implicitsolve.problem import Problem
from implicitsolve.result import LinearResult, NonlinearResult
from implicitsolve.status import Status
from implicitsolve.stopping import LinearStop


@check_names
def pull_back(
    problem: Problem | NonlinearResult,
    result: NonlinearResult | ArrayArgument | Mapping[str, ArrayArgument],
    cotangent: ArrayArgument | Mapping[str, ArrayArgument] | None = None,
    *,
    method: KrylovMethod | DirectMethod | None = None,
    M: Any = None,
    x0: ArrayArgument | None = None,
    stop: LinearStop | None = None,
    wrt: Collection[str] | None = None,
) -> AdjointResult:
    """Gradients of a loss through the solution of F(x, theta) = 0.

    Solves the adjoint system ``J^H lam = cotangent`` at the solution, once for all parameters, and returns
    ``d loss / d theta = -(dF / d theta)^H lam`` for each. The loss's direct dependence on theta is the caller's to add.

    Parameters
    ----------
    problem : Problem
        May be left out where `result` is what `root` returned: ``pull_back(result, cotangent)``. With
        ``derivatives="trace"`` nothing else is needed. Else it needs `vjp`, `linearize` or `jac` (with adjoint
        products), or `structure`, or a `result` whose solve has detected the sparsity of J, and `parameter_vjp` if it
        has parameters. With a structure and nothing but the residual, J is assembled from central differences of a
        length that suits F, relative to `x_scale` or x. The gradients are then accurate to about eps^(2/3) times the
        condition number of J, less where F varies fast with x. Where no digit is left the status is SINGULAR.
    result : NonlinearResult or array_like
        What `root` returned, or a solution.
    cotangent : array_like
        d loss / d x, of the shape of x; or a dict of some of the parts, where x0 was a dict.
    method : Krylov method, BlockLU or CyclicReduction, optional
        Default: factors of the assembled J, by `BlockLU` where `root` would take it by "auto" (a declared structure of
        small blocks), by sparse LU with a `Sparse` or `Grid` structure or "detect"; else `LGMRES` with as many vectors,
        up to 200, as fit into 336 MB: a restart can cost more products than the whole solve. With `halves`, float64 and
        blocks of at least 64 unknowns it begins in float32, where products take half the time; a residual in float64
        says what is left to solve.
    M : LinearOperator, array or sparse matrix, optional
        Approximates the inverse of J^H. With a declared structure it may be `BlockLU` or one of
        `implicitsolve.precondition`: built from the assembled J, and used transposed. Without it a problem with
        `halves` is solved for every second block alone (`even_odd`).
    x0 : array_like, optional
        Start for lam, such as the adjoint of an earlier, similar solve. With it the default method is `LGMRES`.
    stop : LinearStop, optional
        Default: ||cotangent - J^H lam||_2 <= 1e-6 ||cotangent||_2.
    wrt : collection of str, optional
        Names of the parameters whose gradients are requested; if empty only lam is computed. Default: all. A layer's
        gradient with respect to its inputs, for example, takes as much work as that of its input weights.

    Returns
    -------
    AdjointResult
        Gradients by name, lam, and a status for each system. FORWARD_NOT_CONVERGED marks gradients that were
        taken at a point which is not a solution, INACCURATE those that F contradicts.

    Raises
    ------
    TypeError
        If the problem cannot multiply with J^H.
    ValueError
        If `cotangent` does not have the shape of x, or `wrt` names an unknown parameter.

    Warns
    -----
    AccuracyWarning
        If the solve of `result` ended by a tolerance of F, and the error of x is above 1e-3 of x or unknown.

    Notes
    -----
    Before a status says CONVERGED, ``lam^H J d`` is compared with ``cotangent^H d`` for a random d, with J d from
    differences of F. A wrong `vjp`, `jac` or `blocks`, or a structure that lacks entries, ends as INACCURATE. This
    takes two evaluations of F, or four where J comes from differences, since a second length estimates their error.
    Where F varies fast with x, or J is ill-conditioned, up to eight shorter lengths are tried, for two evaluations
    each; so are they for differences in the parameters.

    References
    ----------
    .. [1] M. Kazi and B. Thompson, "Implicitly-defined neural networks for sequence labeling", ACL (2017), (1).

    Examples
    --------
    >>> a = np.array([4.0, 9.0])
    >>> sqrt = ims.Problem(
    ...     lambda x: x**2 - a,
    ...     jvp=lambda x, v: 2 * x * v,
    ...     vjp=lambda x, w: 2 * x * w,
    ...     parameters={"a": a},
    ...     parameter_vjp=lambda x, w: {"a": -w},
    ... )
    >>> solution = ims.root(sqrt, np.ones(2), stop=ims.NonlinearStop(atol=1e-12))
    >>> ims.pull_back(sqrt, solution, np.ones(2), stop=ims.LinearStop(rtol=1e-12)).gradients["a"].round(6)
    array([0.25    , 0.166667])
    """
    solved, result, cotangent = _arguments("pull_back", problem, result, cotangent)
    point = Point(solved, result, needs_adjoint=True, wrt=wrt)
    linear = point.solve(cotangent, "cotangent", method, M, x0, stop)
    gradients, evaluator = point.gradients(linear.x), point.evaluator
    whole, counts = with_accuracy(evaluator.problem.parameter_vjp, linear, evaluator.tally.counts())
    return AdjointResult(
        gradients=gradients,
        adjoint=linear.x,
        status=status_of("pull_back", result, whole),
        linear=linear,
        counts=counts,
        _second=partial(_second, cache(partial(Point, solved, point.x, needs_adjoint=True, wrt=wrt))),
    )


@check_names
def push_forward(
    problem: Problem | NonlinearResult,
    result: NonlinearResult | ArrayArgument | Mapping[str, ArrayArgument],
    tangents: Mapping[str, ArrayArgument] | None = None,
    *,
    method: KrylovMethod | DirectMethod | None = None,
    M: Any = None,
    x0: ArrayArgument | None = None,
    stop: LinearStop | None = None,
) -> TangentResult:
    """Directional derivative of the solution of F(x, theta) = 0.

    Solves ``J dx = -(dF / d theta) d theta`` at the solution.

    Parameters
    ----------
    problem : Problem
        May be left out where `result` is what `root` returned. Needs ``derivatives="trace"``, or `parameter_jvp`;
        products with J are exact where the problem offers them, else differences.
    result : NonlinearResult or array_like
        What `root` returned, or a solution.
    tangents : mapping of str to array_like
        d theta for some of the problem's parameters.
    method, M, x0, stop : optional
        As in `pull_back`, for J in place of J^H; by differences the default tolerance is at least 8 sqrt(eps), 2.8e-3
        in float32.

    Returns
    -------
    TangentResult
        dx, shaped like x, and a status for each system, as in `pull_back`.

    Raises
    ------
    TypeError
        If the problem has no `parameter_jvp`, or `tangents` is not a mapping.
    ValueError
        If `tangents` names an unknown parameter.

    Warns
    -----
    AccuracyWarning
        As `pull_back` does.

    Notes
    -----
    Before a status says CONVERGED, J dx is compared with a difference of F along dx: two evaluations of F, or eight
    where J comes from differences. See `pull_back`.

    Examples
    --------
    >>> a = np.array([4.0, 9.0])
    >>> sqrt = ims.Problem(
    ...     lambda x: x**2 - a,
    ...     jvp=lambda x, v: 2 * x * v,
    ...     parameters={"a": a},
    ...     parameter_jvp=lambda x, tangents: -tangents["a"],
    ... )
    >>> ims.push_forward(sqrt, np.array([2.0, 3.0]), {"a": np.ones(2)}).tangent.round(6)
    array([0.25    , 0.166667])
    """
    solved, result, tangents = _arguments("push_forward", problem, result, tangents)
    point = Point(solved, result, needs_adjoint=False)
    linear = _solve_along(point, tangents, method, M, x0, stop)
    whole, counts = with_accuracy(point.evaluator.problem.parameter_jvp, linear, point.evaluator.tally.counts())
    status = status_of("push_forward", result, whole)
    return TangentResult(tangent=linear.x, status=status, linear=linear, counts=counts)


def _solve_along(point: Point, tangents: CallersArray, *how: Any) -> LinearResult:
    """dx for given d theta."""
    evaluator, x, product = point.evaluator, point.x, point.evaluator.problem.parameter_jvp
    if product is None:
        raise TypeError("push_forward: the problem has no `parameter_jvp`")
    if not isinstance(tangents, Mapping):
        raise TypeError(f"push_forward: `tangents` must map names to arrays, got {type(tangents).__name__}")
    unknown = sorted(set(tangents) - set(evaluator.problem.parameters or tangents))
    if unknown:
        raise ValueError(f"push_forward: `tangents` must name parameters of the problem, got {unknown}")
    given = {name: as_given(value, f"tangents[{name!r}]") for name, value in tangents.items()}
    right: Any = product(evaluator.xp.asarray(x, copy=True), given)
    if right is None:
        raise TypeError("push_forward: `parameter_jvp` returned None; it must return an array of the shape of x")
    return point.solve(-right, "parameter_jvp", *how)


def _second(
    point_of: Callable[[], Point], found: AdjointResult, tangents: CallersArray, cotangent: CallersArray, *how: Any
) -> AdjointResult:
    """The derivative of a result of `pull_back`: that of J^H lam = cotangent, and of -(dF / d theta)^H lam."""
    evaluator = (point := point_of()).evaluator
    trace, before = evaluator.problem.derivatives, evaluator.tally.counts()
    if not getattr(trace, "is_traced", False):
        raise TypeError(f'push_forward: second derivatives take `derivatives="trace"`, not {trace or "differences"}')
    tangent = _solve_along(point.forward(is_free=how[0] is None), tangents, *how)
    pulled, gradients = trace.second(point.x, found.adjoint, tangent.x, tangents)
    change = cotangent(tangent.x.copy()) if callable(cotangent) else cotangent
    right = -pulled if change is None else point.like_x(change, "cotangent") - pulled
    linear = point.solve(right, "cotangent", *how)
    status = np.asarray(found.status)
    for each in (tangent, linear):
        status = np.where(status == Status.CONVERGED, np.asarray(each.status), status)
    return AdjointResult(
        gradients={name: value - gradients[name] for name, value in point.gradients(linear.x).items()},
        adjoint=linear.x,
        status=status if status.ndim else Status(int(status)),
        linear=linear,
        counts=evaluator.tally.counts() - before,
    )


def _arguments(
    caller: str, problem: CallersArray, result: CallersArray, direction: CallersArray
) -> tuple[CallersArray, CallersArray, CallersArray]:
    """The arguments, where the problem may be left out before the result of its solve."""
    if isinstance(problem, NonlinearResult) and direction is None:
        if problem.problem is None:
            raise TypeError(f"{caller}: a result that was pickled has no problem: {caller}(problem, result, ...)")
        problem, result, direction = problem.problem, problem, result
    if caller == "pull_back" and isinstance(direction, Mapping) and getattr(result, "parts", None):
        direction = NamedArrays(result.parts).join("cotangent", direction, 0.0)
    if not isinstance(problem, Problem):
        raise TypeError(f"{caller}: `problem` must be a Problem, got {type(problem).__name__}")
    return problem, result, direction


def status_of(caller: str, result: Any, linear: LinearResult) -> Any:
    """The linear solve's status, or FORWARD_NOT_CONVERGED where it converged but the nonlinear solve had not."""
    if not isinstance(result, NonlinearResult):
        return linear.status
    _warn_if_inaccurate(caller, result)
    wrong = (np.asarray(result.status) != Status.CONVERGED) & (np.asarray(linear.status) == Status.CONVERGED)
    if wrong.ndim == 0:
        return Status.FORWARD_NOT_CONVERGED if wrong else linear.status
    return np.where(wrong, int(Status.FORWARD_NOT_CONVERGED), linear.status)


def _warn_if_inaccurate(caller: str, result: NonlinearResult) -> None:
    """Warn where a converged x is inaccurate, or its error unknown: x has met no more than a tolerance of F."""
    converged = np.asarray(result.status) == Status.CONVERGED
    errors = np.broadcast_to(np.asarray(np.nan if result.error is None else result.error, dtype=float), converged.shape)
    is_unknown = np.isnan(errors) & (np.asarray(result.iterations) == 0) & (np.asarray(result.residual_norm) > 0)
    unsure = converged & ((errors > INACCURATE) | is_unknown)
    if not unsure.any():
        return
    known = errors[unsure & np.isfinite(errors)]
    found = "the estimated error of x is large (`result.error`)" if known.size else "the error of x is not known"
    message = (
        f"{caller}: {found}, since the solve ended by a tolerance of F: the derivative is that at this x. Solve "
        "without `atol` and `rtol`, so that the error of x decides"
    )
    warnings.warn(message, AccuracyWarning, stacklevel=5)
