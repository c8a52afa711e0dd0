"""`newton_krylov` with the interface of SciPy's: every keyword of it means the same here."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import NoneType
from typing import Any, Literal

import numpy as np
import scipy.sparse.linalg as spla
from scipy.optimize import OptimizeResult

from implicitsolve._arrays.namespace import array_namespace, as_inexact
from implicitsolve._record import NewtonStep
from implicitsolve._root import root
from implicitsolve._scipy_keywords import DROP_IN_REPLACEMENTS
from implicitsolve._typing import Array, CallersArray, Product, Residual
from implicitsolve.compat._stop import ScipyStop, flat
from implicitsolve.errors import NoConvergence
from implicitsolve.globalize import Backtracking, FullStep, Wolfe
from implicitsolve.globalize._line_search import LineSearch
from implicitsolve.krylov import GMRES, BiCGSTAB, KrylovMethod, ScipyKrylov
from implicitsolve.krylov._scipy import SCIPY_METHODS
from implicitsolve.monitor import Monitor, check_signature, combine, table
from implicitsolve.nonlinear import NewtonKrylov
from implicitsolve.problem import Problem
from implicitsolve.result import NonlinearResult
from implicitsolve.status import Status
from implicitsolve.stopping import check_limit, kind_of

LINE_SEARCHES: dict[bool | str | None, LineSearch] = {
    None: FullStep(),
    False: FullStep(),
    "armijo": Backtracking(),
    True: Backtracking(),
    "wolfe": Wolfe(),
}


class ScipyProblem(Problem):
    """A problem whose F may have any shape, as SciPy accepts it."""

    reshapes = True


class UnknownOptionError(TypeError, ValueError):
    """An unknown option: a TypeError as in any call, a ValueError as in SciPy."""


def newton_krylov(
    residual: Residual | None = None,
    x0: Any = None,
    iter: int | None = None,
    rdiff: float | None = None,
    method: Any = "lgmres",
    inner_maxiter: int = 20,
    inner_M: Any = None,
    outer_k: int = 10,
    verbose: bool = False,
    maxiter: int | None = None,
    f_tol: float | None = None,
    f_rtol: float | None = None,
    x_tol: float | None = None,
    x_rtol: float | None = None,
    tol_norm: Callable[[CallersArray], Any] | None = None,
    line_search: Literal["armijo", "wolfe"] | bool | None = "armijo",
    callback: Callable[[CallersArray, CallersArray], Any] | None = None,
    *,
    jvp: Product | Literal["trace"] | None = None,
    jac: Callable[[CallersArray], Any] | None = None,
    structure: Any = None,
    batch_ndim: int = 0,
    max_evaluations: int | None = None,
    max_seconds: float | None = None,
    full_output: bool = False,
    previous: Any = None,
    bounds: Any = None,
    **inner_options: Any,
) -> Any:
    """Find a root of a function by an inexact Newton–Krylov method, as `scipy.optimize.newton_krylov`.

    Parameters
    ----------
    residual : callable
        ``residual(x)`` returns F(x), shaped like x. SciPy's keyword ``F`` is accepted too.
    x0 : array_like
        Start; its shape, library and precision are those of the result. SciPy's keyword ``xin`` is accepted too.
    iter : int, optional
        Take this many steps, whatever the residual, or fewer if the solve cannot continue; no failure is raised.
    rdiff : float, optional
        Step of difference products, relative to ||x||. Default sqrt(eps) of the dtype.
    method : str, callable or Krylov method, optional
        The default "lgmres" runs `NewtonKrylov`'s default instead, GMRES in one cycle that is preconditioned by the
        Krylov spaces of earlier Newton steps; for LGMRES itself pass ``implicitsolve.LGMRES()``, or an ``inner_...`` of
        SciPy's. "gmres", "fgmres", "bicgstab" are the library's own; other names in `scipy.sparse.linalg`, and
        functions with that interface, are called on NumPy arrays.
    inner_maxiter : int, optional
        Largest number of linear iterations in a step. For "lgmres" the space begins with three times as many.
    inner_M : LinearOperator, array, sparse matrix, factors or callable, optional
        Preconditioner: approximates the inverse of the Jacobian, as that of `NewtonKrylov`: ``splu(A)``, a hierarchy of
        pyamg, a function ``r -> z`` (or, with a `structure`, settings such as `BlockLU()`). ``setup(x, F, residual)``
        and ``update(x, F)``, if it has them, are called at the start and after each step, with flat arrays as in SciPy.
    outer_k : int, optional
        For "lgmres": 0 keeps nothing from earlier steps.
    verbose : bool, optional
        Print a line per step.
    maxiter : int, optional
        After so many steps `NoConvergence` is raised, whatever x satisfies; it carries the last iterate.
        Default 100 (N + 1), as in SciPy; a solve that stagnates ends earlier.
    f_tol, f_rtol, x_tol, x_rtol : float, optional
        Stop when norm(F) <= f_tol (default 6e-6) and norm(F) <= f_rtol norm(F(x0)) and norm(dx) <= x_tol and
        norm(dx) <= x_rtol norm(x); those not given do not count.
    tol_norm : callable, optional
        Norm of the stopping rule, of a flat array. Default: max-abs.
    line_search : {"armijo", "wolfe", None}, optional
        How the length of a step is found. None takes every step whole.
    callback : callable, optional
        ``callback(x, F)`` after each step, with copies: flat as in SciPy, or in the shape of x0 for a batch.
    jvp : callable, optional
        ``jvp(x, v)``: exact Jacobian product in place of differences; "trace": those of a NumPy function, by JAX.
    jac : callable, optional
        ``jac(x)``: the Jacobian as an operator (SciPy's or ours), an array or a sparse matrix.
    structure : BlockBanded, Sparse, Grid or str, optional
        What is known of the Jacobian (`Problem`). With it, and neither `inner_M`, `rdiff` nor another `method` or
        `line_search`, J is assembled and factored where that is worth it, as in ``root(..., method="auto")``.
    batch_ndim : int, optional
        The first `batch_ndim` axes of x0 index independent systems, each with its own space, step length and status.
    max_evaluations, max_seconds : optional
        As in `NonlinearStop`: limits of the residuals and products of the solve, and of its time.
    full_output : bool, optional
        Return ``(x, result)``, and do not raise when a system does not converge.
    previous : OptimizeResult or NonlinearResult, optional
        Result of a related solve, such as the last time step: its sparsity, coloring and factors are used; see `root`.
    bounds : tuple or scipy.optimize.Bounds, optional
        ``(lower, upper)``, which no evaluation violates; see `root`.
    **inner_options
        Options ``inner_...`` of the linear method, as in SciPy; with one, SciPy's own method is used where it has one.

    Returns
    -------
    x : Array
        Root, shaped like x0.
    result : scipy.optimize.OptimizeResult
        With `full_output`: ``x, fun, success, status, message, nit, nfev, njev, njvp, detection`` (sparsity of J), and
        the `native` result. `nfev` counts calls of `residual`, `njev` of `jac`, `njvp` of `jvp` or products with `jac`.

    Raises
    ------
    NoConvergence
        If a system did not converge; it carries the best iterate and the result.
    TypeError, ValueError
        If an argument is not usable.

    Examples
    --------
    >>> from implicitsolve import newton_krylov
    >>> newton_krylov(lambda x: x + 0.5 * np.cos(x[::-1]), [0.0, 0.0], f_tol=1e-10).round(6)
    array([-0.450184, -0.450184])
    """
    function, x0 = _arguments(residual, x0, inner_options)
    x0 = as_inexact(x0, "x0")
    _check_settings(line_search, callback, inner_maxiter, outer_k, verbose=verbose, full_output=full_output)
    exact: Any = {"derivatives": "trace"} if isinstance(jvp, str) and jvp == "trace" else {"jvp": jvp}
    problem = ScipyProblem(function, **exact, jac=jac, structure=structure, batch_ndim=batch_ndim, bounds=bounds)
    krylov = _krylov_method(method, inner_maxiter, outer_k, inner_options)
    tolerances = {"f_tol": f_tol, "f_rtol": f_rtol, "x_tol": x_tol, "x_rtol": x_rtol}
    budget: dict[str, Any] = {"max_evaluations": max_evaluations, "max_seconds": max_seconds}
    stop = ScipyStop.build(x0, batch_ndim, tolerances, iter=iter, maxiter=maxiter, tol_norm=tol_norm, **budget)
    is_plain = krylov is None and iter is None and inner_M is None and rdiff is None and line_search in ("armijo", True)
    solver = None if is_plain else _newton(krylov, inner_maxiter, outer_k, line_search, inner_M, rdiff, iter, function)
    known = getattr(previous, "native", previous)
    observer = _monitor(verbose, callback, batch_ndim)
    result = root(problem, x0, method=solver or "auto", stop=stop, monitor=observer, previous=known)
    result = result if iter is None else _stop(result)
    most = np.inf if maxiter is None else maxiter
    is_wanted = iter is not None or (np.all(result.success) and np.all(result.iterations < most))
    if full_output:
        return result.x, _optimize_result(result, has_jac=jac is not None)
    if not is_wanted:
        raise NoConvergence(result.x, result.message, result)
    return result.x


def _check_settings(line_search: Any, callback: Any, inner_maxiter: Any, outer_k: Any, **flags: Any) -> None:
    if not (line_search is None or isinstance(line_search, bool | str)) or line_search not in LINE_SEARCHES:
        raise ValueError(f'newton_krylov: `line_search` must be "armijo", "wolfe" or None, got {line_search!r}')
    if callback is not None:
        if not callable(callback):
            raise TypeError(f"newton_krylov: `callback` must be callable, got {type(callback).__name__}")
        check_signature("newton_krylov", callback, "callback(x, F)")
    for name, flag in flags.items():  # numbers, as for SciPy
        if not isinstance(flag, bool | int | np.bool_ | None):
            raise TypeError(f"newton_krylov: `{name}` must be True or False, got {type(flag).__name__}")
    check_limit("newton_krylov", "inner_maxiter", inner_maxiter, least=1)
    check_limit("newton_krylov", "outer_k", outer_k)


def _newton(
    krylov: KrylovMethod | None,
    inner_maxiter: int,
    outer_k: int,
    line_search: str | bool | None,
    inner_M: Any,
    rdiff: float | None,
    iter: int | None,
    residual: Residual,
) -> NewtonKrylov:
    is_own = krylov is None
    return NewtonKrylov(
        krylov=krylov,
        max_krylov=3 * inner_maxiter if is_own else inner_maxiter,
        recycle=200 if is_own and outer_k else 0,
        line_search=LINE_SEARCHES[line_search],
        preconditioner=_preconditioner(inner_M, residual),
        rdiff=rdiff,
        retry=iter is None,
    )


def _arguments(residual: Any, x0: Any, options: dict[str, Any]) -> list[Any]:
    """Return the residual and x0, given under our names or SciPy's."""
    given = []
    for name, scipy_name, value in (("residual", "F", residual), ("x0", "xin", x0)):
        other = options.pop(scipy_name, None)
        if value is not None and other is not None:
            raise TypeError(f"newton_krylov: `{name}` was given twice, also as `{scipy_name}`")
        given.append(other if value is None else value)
        if given[-1] is None:
            raise TypeError(f"newton_krylov: missing argument `{name}`")
    return given


def _krylov_method(method: Any, maxiter: int, outer_k: int, options: dict[str, Any]) -> KrylovMethod | None:
    """Return the linear method of a name, a callable or an object; None for our growing, recycling GMRES."""
    given = {name: value for name, value in options.items() if name.startswith("inner_")} if options else options
    for name in options:
        if name not in given:
            hint = f": give {DROP_IN_REPLACEMENTS[name]}" if name in DROP_IN_REPLACEMENTS else ""
            raise UnknownOptionError(f"Unknown parameter `{name}`: newton_krylov has no such option{hint}")
    if isinstance(method, str):
        gmres = partial(GMRES, restart=maxiter)
        own: dict[str, Any] = {"lgmres": NoneType, "gmres": gmres, "fgmres": gmres, "bicgstab": BiCGSTAB}
        if method in own and not given:
            return own[method]()
        if method not in SCIPY_METHODS:
            known = sorted({*own, *SCIPY_METHODS})
            raise ValueError(f"newton_krylov: `method` must be one of {known} or callable, got {method!r}")
    elif kind_of(method) == "krylov":
        if given:
            raise UnknownOptionError(f"Unknown parameter {sorted(given)[0]}: set it in {type(method).__name__}(...)")
        return method
    elif not callable(method) or isinstance(method, type):
        got = f"the class: write {method.__name__}()" if isinstance(method, type) else repr(method)
        raise TypeError(f"newton_krylov: `method` must be a name, a function or a Krylov method, got {got}")
    return ScipyKrylov(function=method, options=_scipy_options(method, maxiter, outer_k, given))


def _scipy_options(method: Any, maxiter: int, outer_k: int, given: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments that SciPy's own solver would pass to the method."""
    function = getattr(spla, method) if isinstance(method, str) else method
    keywords: dict[str, Any] = {"maxiter": maxiter}
    if method == "gmres":
        keywords = {"restart": maxiter, "maxiter": 1}
    elif method == "lgmres":
        keywords = {"inner_m": maxiter, "maxiter": 1, "outer_k": outer_k, "outer_v": [], "store_outer_Av": False}
        keywords["prepend_outer_v"] = True
    valid = [name for name in inspect.signature(function).parameters if name not in ("self", "args", "kwargs")]
    known = {p for name in SCIPY_METHODS for p in inspect.signature(getattr(spla, name)).parameters}
    for name, value in given.items():
        option = name.removeprefix("inner_")
        if option in valid:
            keywords[option] = value
        elif option in known:
            close = difflib.get_close_matches(option, valid, n=1)
            warnings.warn(
                f"Option '{name}' is invalid for the inner method: {method}. It will be ignored. "
                "Please check inner method documentation for valid options."
                + (f" Did you mean '{close[0]}'?" if close else ""),
                stacklevel=4,
            )
        else:
            raise UnknownOptionError(f"Unknown parameter {name}: no inner method has an option {option!r}")
    return keywords


def _preconditioner(M: Any, residual: Any) -> Any:
    """inner_M as the solver takes it: a function where M follows the iterates."""
    if M is None or not (hasattr(M, "update") or hasattr(M, "setup")):
        return M
    is_set_up = False

    def at(x: Array, F: Array) -> Any:
        nonlocal is_set_up
        if not is_set_up and hasattr(M, "setup"):
            M.setup(flat(x), flat(F), lambda z: flat(residual(array_namespace(z).reshape(z, x.shape))))
        elif is_set_up and hasattr(M, "update"):
            M.update(flat(x), flat(F))
        is_set_up = True
        return M

    return at


def _monitor(verbose: bool, callback: Product | None, batch_ndim: int) -> Monitor | None:
    monitors: list[Any] = [table()] if verbose else []
    if callback is not None:

        def after_step(step: NewtonStep, x: Array, F: Array) -> None:
            if step.iteration:
                callback(*(part if batch_ndim else flat(part) for part in (x, F)))

        monitors.insert(0, after_step)
    return combine(*monitors) if monitors else None


def _stop(result: NonlinearResult) -> NonlinearResult:
    """The result without the failure ITERATION_LIMIT: `iter` steps were requested, and taken."""
    status = np.asarray(result.status)
    status = np.where(status == Status.ITERATION_LIMIT, int(Status.STOPPED), status)
    return replace(result, status=Status(int(status)) if status.ndim == 0 else status)


def _optimize_result(result: NonlinearResult, *, has_jac: bool) -> Any:
    parts = {name: result[name] for name in ("x", "fun", "success", "message", "nit", "nfev", "detection")}
    parts["status"] = int(result.status) if isinstance(result.status, Status) else result.status
    return OptimizeResult(parts, njev=result.njev if has_jac else 0, njvp=result.counts.jvps, native=result)
