"""`newton_krylov` with the interface of SciPy's: every keyword of it means the same here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.optimize import OptimizeResult

from implicitsolve._arrays.namespace import as_inexact
from implicitsolve._record import NewtonStep
from implicitsolve._root import root
from implicitsolve._typing import Array, CallersArray, HostArray, Product, Residual
from implicitsolve.compat._linear import flat, krylov_method, preconditioner
from implicitsolve.errors import NoConvergence
from implicitsolve.globalize import Backtracking, FullStep, Wolfe
from implicitsolve.globalize._line_search import LineSearch
from implicitsolve.krylov import KrylovMethod
from implicitsolve.monitor import Monitor, check_signature, combine, table
from implicitsolve.nonlinear import NewtonKrylov
from implicitsolve.problem import Problem
from implicitsolve.result import NonlinearResult
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop, check_limit, check_number

DEFAULT_F_TOL = float(np.finfo(np.float64).eps ** (1 / 3))  # SciPy's
LINE_SEARCHES: dict[bool | str | None, LineSearch] = {
    None: FullStep(),
    False: FullStep(),
    "armijo": Backtracking(),
    True: Backtracking(),
    "wolfe": Wolfe(),
}


@dataclass(frozen=True, kw_only=True)
class ScipyStop(NonlinearStop):
    """SciPy's termination condition, for each system of a batch."""

    f_rtol: float = math.inf
    x_tol: float = math.inf
    x_rtol: float = math.inf
    ignores_residual: bool = False

    OWNER: ClassVar[str] = "newton_krylov"

    @classmethod
    def build(
        cls,
        x0: Array,
        batch_ndim: int,
        given: dict[str, float | None],
        *,
        iter: int | None,
        maxiter: int | None,
        tol_norm: Callable[[CallersArray], Any] | None,
        **budget: Any,
    ) -> ScipyStop:
        tolerances: dict[str, Any] = {}
        for name, value in given.items():
            if value is None:
                continue
            if isinstance(value, np.ndarray) and value.ndim == 0:
                value = value.item()
            check_number("newton_krylov", name, value)
            if not value >= 0:
                raise ValueError(f"newton_krylov: `{name}` must not be negative or NaN, got {value}")
            tolerances[name] = float(value)
        if tol_norm is not None and not callable(tol_norm):
            raise TypeError(f"newton_krylov: `tol_norm` must be callable, got {type(tol_norm).__name__}")
        for name, steps in (("iter", iter), ("maxiter", maxiter)):
            if steps is not None:
                check_limit("newton_krylov", name, steps)
        steps = 100 * (math.prod(x0.shape[batch_ndim:]) + 1) if maxiter is None else maxiter
        f_tol = tolerances.pop("f_tol", DEFAULT_F_TOL)
        return cls(
            atol=min(f_tol, float(np.finfo(np.float64).max)),
            rtol=0.0,
            max_iterations=steps if iter is None else iter if maxiter is None else min(iter, maxiter),
            norm="max" if tol_norm is None else lambda x: tol_norm(flat(x)),
            ignores_residual=iter is not None,
            **tolerances,
            **budget,
        )

    @property
    def keeps_last(self) -> bool:
        return self.ignores_residual

    def target(self, first: HostArray, F: Array) -> HostArray:
        """Right-hand side of both conditions on the residual; 0 where a number of steps is prescribed."""
        if self.ignores_residual:
            return np.zeros(first.shape)
        with np.errstate(invalid="ignore"):
            return np.fmin(self.atol, self.f_rtol * first)  # inf * 0 is no number, and gives way

    def holds(self, norms: HostArray, target: HostArray, x: Array, step: Array | None) -> HostArray:
        """Where all conditions hold, or F is zero."""
        is_zero, held = norms == 0, norms <= target
        if self.ignores_residual:
            return is_zero
        if self.x_tol == math.inf and self.x_rtol == math.inf:
            return is_zero | held
        if step is None:
            return is_zero
        x_norm, step_norm = self.measure(x, tuple(x.shape[1:])), self.measure(step, tuple(step.shape[1:]))
        relative = np.full(x_norm.shape, math.inf) if self.x_rtol == math.inf else self.x_rtol * x_norm
        return is_zero | (held & (step_norm <= self.x_tol) & (step_norm <= relative))


class ScipyProblem(Problem):
    """A problem whose F may have any shape, as SciPy accepts it."""

    reshapes = True


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
    exact: Any = {"derivatives" if isinstance(jvp, str) else "jvp": jvp}
    problem = ScipyProblem(function, **exact, jac=jac, structure=structure, batch_ndim=batch_ndim, bounds=bounds)
    is_own = isinstance(method, str) and method == "lgmres" and not inner_options  # GMRES that grows and recycles
    krylov = None if is_own else krylov_method(method, inner_maxiter, outer_k, inner_options)
    tolerances = {"f_tol": f_tol, "f_rtol": f_rtol, "x_tol": x_tol, "x_rtol": x_rtol}
    budget: dict[str, Any] = {"max_evaluations": max_evaluations, "max_seconds": max_seconds}
    stop = ScipyStop.build(x0, batch_ndim, tolerances, iter=iter, maxiter=maxiter, tol_norm=tol_norm, **budget)
    is_plain = krylov is None and iter is None and inner_M is None and rdiff is None and line_search in ("armijo", True)
    solver = None if is_plain else _newton(krylov, inner_maxiter, outer_k, line_search, inner_M, rdiff, iter, function)
    known = getattr(previous, "native", previous)
    observer = _monitor(verbose, callback, batch_ndim)
    result = root(problem, x0, method=solver or "auto", stop=stop, monitor=observer, previous=known)
    result = result if iter is None else _stop(result)
    if full_output:
        return result.x, _optimize_result(result, has_jac=jac is not None)
    if iter is None and not _is_wanted(result, maxiter):
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
        preconditioner=preconditioner(inner_M, residual),
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


def _monitor(verbose: bool, callback: Product | None, batch_ndim: int) -> Monitor | None:
    monitors: list[Any] = [table()] if verbose else []
    if callback is not None:

        def after_step(step: NewtonStep, x: Array, F: Array) -> None:
            if step.iteration:
                callback(*(part if batch_ndim else flat(part) for part in (x, F)))

        monitors.insert(0, after_step)
    return combine(*monitors) if monitors else None


def _is_wanted(result: NonlinearResult, maxiter: int | None) -> bool:
    return bool(np.all(result.success) and np.all(result.iterations < (np.inf if maxiter is None else maxiter)))


def _stop(result: NonlinearResult) -> NonlinearResult:
    """The result without the failure ITERATION_LIMIT: `iter` steps were requested, and taken."""
    status = np.asarray(result.status)
    status = np.where(status == Status.ITERATION_LIMIT, int(Status.STOPPED), status)
    return replace(result, status=Status(int(status)) if status.ndim == 0 else status)


def _optimize_result(result: NonlinearResult, *, has_jac: bool) -> Any:
    parts = {name: result[name] for name in ("x", "fun", "success", "message", "nit", "nfev", "detection")}
    parts["status"] = int(result.status) if isinstance(result.status, Status) else result.status
    return OptimizeResult(parts, njev=result.njev if has_jac else 0, njvp=result.counts.jvps, native=result)
