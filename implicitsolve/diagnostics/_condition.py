"""The condition of J, and with it the distance of x to the solution."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import scipy.sparse.linalg

from implicitsolve._arrays.host import from_host, to_host
from implicitsolve._typing import Array, HostArray
from implicitsolve.diagnostics._system import DENSE, System
from implicitsolve.kernels._norms import norm2
from implicitsolve.problem import Problem
from implicitsolve.status import Status


@dataclass(frozen=True, repr=False)
class Condition:
    """Condition of one system's J; its text has three digits.

    Attributes
    ----------
    number : float
        ``||J||_1 ||J^-1||_1``; infinite where J is singular, NaN where a linear solve did not end.
    norm, inverse_norm : float
        The two factors.
    error : float
        ``||J^-1 F(x)||_2``, which estimates the distance from x to the solution.
    """

    number: float
    norm: float
    inverse_norm: float
    error: float

    def __repr__(self) -> str:
        parts = (f"{name}={value:.3g}" for name, value in asdict(self).items())
        return f"Condition({', '.join(parts)})"


def condition(
    problem: Problem | Callable[[Array], Array], x: Array, *, system: int | tuple[int, ...] | None = None
) -> Condition:
    """Estimate the condition number of J(x) in the 1-norm.

    Parameters
    ----------
    problem : Problem or callable
        The system.
    x : array_like or NonlinearResult
        The point.
    system : int or tuple of int, optional
        Which system, by its index in the batch. Needed where there is a batch.

    Returns
    -------
    Condition
        Number, its factors, and the estimated distance to the solution.

    Raises
    ------
    TypeError
        If there are more than 500 unknowns, no sparsity, and no products with J^H.
    ValueError
        If an argument is not usable.

    Notes
    -----
    Up to 500 unknowns J is written out, and the number is exact. A larger J is factored if its sparsity is declared,
    was detected by the solve of a result, or is found by a search; else it is solved with by LGMRES, to 1e-6. Then
    ``||J^-1||_1`` is estimated from below by a few solves [1]_, rarely wrong by a factor of 3. Where products are
    differences of the residual, condition numbers above 1e7 are lost in their rounding errors.

    References
    ----------
    .. [1] N. J. Higham, "FORTRAN codes for estimating the one-norm of a real or complex matrix, with applications to
           condition estimation", ACM Trans. Math. Softw. 14 (1988) 381-396.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> problem = ims.Problem(lambda x: np.array([1.0, 1e3]) * x**2, jvp=lambda x, v: np.array([2.0, 2e3]) * x * v)
    >>> round(ims.diagnostics.condition(problem, np.ones(2)).number)
    1000
    """
    return measure_condition(System("condition", problem, x, system))


def measure_condition(system: System) -> Condition:
    """`condition` of one prepared system."""
    if system.size <= DENSE:
        return _of_dense(system)
    adjoint, factors, failed = system.adjoint, system.factors, list[int]()
    if adjoint is None:
        raise TypeError(
            f"condition: the problem has {system.size} unknowns, and needs `vjp`, a `linearize` or `jac` with adjoint "
            f"products, or `structure`; without them there may be at most {DENSE}"
        )
    if system.matrix is None or factors is None:
        norm = _estimate_norm(system, system.J.matvec, adjoint.matvec)
        solves = [partial(system.solve, A, failed=failed) for A in (system.J, adjoint)]
    else:
        norm = float(np.abs(system.matrix.to_sparse("csc")).sum(axis=0).max(initial=0.0))
        solves = [factors.matvec, factors.rmatvec]
    with np.errstate(all="ignore"):
        error = float(norm2(solves[0](system.F))[0])
        inverse_norm = _estimate_norm(system, *solves) if math.isfinite(error) else math.inf
    if failed:
        is_singular = bool({Status.SINGULAR, Status.BREAKDOWN} & set(failed))
        inverse_norm = error = math.inf if is_singular else math.nan
    elif not math.isfinite(error):
        return Condition(math.inf if math.isfinite(norm) else math.nan, norm, math.inf, math.inf)
    return Condition(norm * inverse_norm, norm, inverse_norm, error)


def _of_dense(system: System) -> Condition:
    J: HostArray = system.dense
    norm = float(np.abs(J).sum(axis=0).max(initial=0.0))
    if not math.isfinite(norm):
        return Condition(math.nan, norm, math.nan, math.nan)
    try:
        inverse = np.linalg.inv(J)
    except np.linalg.LinAlgError:
        return Condition(math.inf, norm, math.inf, math.inf)
    with np.errstate(all="ignore"):
        inverse_norm = float(np.abs(inverse).sum(axis=0).max(initial=0.0))
        return Condition(norm * inverse_norm, norm, inverse_norm, float(np.linalg.norm(inverse @ to_host(system.F)[0])))


def _estimate_norm(system: System, product: Callable[[Array], Array], adjoint: Callable[[Array], Array]) -> float:
    """Estimate of the 1-norm of a map on (1, N): an ascent over columns, and one vector beside it, as in LAPACK."""
    N = system.size

    def on_host(function: Callable[[Array], Array]) -> Callable[[HostArray], HostArray]:
        return lambda v: to_host(function(from_host(np.ravel(v)[None, :], system.x)))[0]

    multiply, dtype = on_host(product), to_host(system.F).dtype
    A = scipy.sparse.linalg.LinearOperator((N, N), matvec=multiply, rmatvec=on_host(adjoint), dtype=dtype)
    alternating = (-1.0) ** np.arange(N) * (1 + np.arange(N) / max(N - 1, 1))
    return float(max(scipy.sparse.linalg.onenormest(A, t=1), 2 * np.abs(multiply(alternating)).sum() / (3 * N)))
