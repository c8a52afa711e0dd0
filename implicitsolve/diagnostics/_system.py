"""One system of a problem at a point, with its F and J, and the condition of J."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse.linalg

from implicitsolve._arrays.host import from_host, gather, to_host
from implicitsolve._arrays.namespace import as_inexact
from implicitsolve._linear_solve import linear_solve
from implicitsolve._summary import Representation
from implicitsolve._typing import Array, HostArray
from implicitsolve.direct import BlockLU
from implicitsolve.direct._sparse_lu import SparseLU
from implicitsolve.errors import NoConvergence
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._sparse_jacobian import sparse_jacobian
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.problem import Problem
from implicitsolve.result import NonlinearResult
from implicitsolve.status import Status
from implicitsolve.stopping import LinearStop

MOST_WRITTEN = 500  # unknowns up to which J is written out, and products that an assembly of J may take


def unwrap(result: Any) -> Any:
    """The native result of what a solve returned, or of the exception that it raised."""
    result = result.result if isinstance(result, NoConvergence) else result
    return getattr(result, "native", result)


def row_of(caller: str, index: Any, batch_shape: tuple[int, ...]) -> int:
    given = () if index is None else tuple(index) if isinstance(index, tuple | list) else (index,)
    if len(given) != len(batch_shape):
        expected = f"an index of {len(batch_shape)} numbers" if batch_shape else "None"
        raise ValueError(f"{caller}: `system` must be {expected}, for a batch of shape {batch_shape}, got {index!r}")
    if not all(-n <= int(i) < n for i, n in zip(given, batch_shape)):
        raise ValueError(f"{caller}: `system` must lie in the batch of shape {batch_shape}, got {index!r}")
    places = tuple(int(i) % n for i, n in zip(given, batch_shape))
    return int(np.ravel_multi_index(places, batch_shape)) if places else 0


class System:
    """One system of a problem at x, on arrays (1, N)."""

    def __init__(self, caller: str, problem: Problem | Callable[[Array], Array], x: Any, index: Any = None) -> None:
        problem = problem if isinstance(problem, Problem) else Problem(problem)
        given = unwrap(x)
        self.detection = given.detection if isinstance(given, NonlinearResult) else None
        x = as_inexact(given.x if isinstance(given, NonlinearResult) else given, "x")
        self.given = x
        whole = Evaluator(problem, x)
        row = np.asarray([row_of(caller, index, whole.batch_shape)])
        flat = whole.flatten(x)
        self.caller, self.problem, self.x, self.xp = caller, problem, gather(flat, row), whole.xp
        self.whole, self.evaluator = whole, whole.take(row, flat)
        if not whole.has_exact_products:
            whole.length.follow(self.evaluator.rows, norm2(self.x))
        with np.errstate(all="ignore"):
            self.F = self.evaluator.residual(self.x)
            self.J: LinearOperator = self.evaluator.jacobian(self.x, self.F)

    @property
    def size(self) -> int:
        return self.x.shape[1]

    @functools.cached_property
    def matrix(self) -> BlockBandedMatrix | SparseMatrix | None:
        """J in the declared structure, or in one that the solve detected or, for a large J, a search finds."""
        if self.problem.block_structure is not None:
            assembler = Assembler(self.whole, central=True)
            return assembler.assemble(self.evaluator, self.x, self.F) if assembler.cost <= MOST_WRITTEN else None
        declared, found = self.problem.structure, self.detection
        is_known = found is not None and found.structure is not None
        if declared == "none" or (declared is None and not is_known and self.size <= MOST_WRITTEN):
            return None
        return sparse_jacobian(self.caller, self.evaluator, self.x, self.F, found)

    @functools.cached_property
    def adjoint(self) -> LinearOperator | None:
        """J^H, if the problem can multiply by it."""
        if self.J._rmatvec is not None:
            return self.J.H
        J = self.matrix
        return None if J is None else J.flat().H if isinstance(J, BlockBandedMatrix) else J.H

    @functools.cached_property
    def dense(self) -> HostArray:
        """J written out, by N products where it is not assembled."""
        if self.matrix is not None:
            return self.matrix.to_sparse("csc").toarray()
        return to_host(self.J.matmat(from_host(np.eye(self.size)[None], self.x)))[0]

    @functools.cached_property
    def factors(self) -> LinearOperator | None:
        J = self.matrix
        if isinstance(J, SparseMatrix):
            return SparseLU().factor(J)
        return None if J is None else BlockLU().factor(J).flat()

    @functools.cached_property
    def step(self) -> Array:
        """J^-1 F(x), the shortest one where J is singular."""
        if self.size <= MOST_WRITTEN:
            solved: HostArray = np.linalg.lstsq(self.dense, to_host(self.F)[0])[0]
            return from_host(solved[None], self.x)
        with np.errstate(all="ignore"):
            return self.solve(self.J, self.F) if self.factors is None else self.factors.matvec(self.F)

    def solve(self, A: LinearOperator, b: Array, failed: list[int] | None = None) -> Array:
        """A^-1 b by products; the status of a failure is added to `failed`."""
        result = linear_solve(A, b, stop=LinearStop(max_iterations=2 * self.size))
        if failed is not None:
            failed.extend(np.asarray(result.status)[~np.asarray(result.success)].tolist())
        return result.x

    def residual(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return self.evaluator.residual(x)


@dataclass(frozen=True, repr=False)
class Condition(Representation):
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


def condition(
    problem: Problem | Callable[[Array], Array], x: Array, *, system: int | tuple[int, ...] | None = None
) -> Condition:
    """Estimate the condition number of J(x) in the 1-norm.

    Parameters
    ----------
    problem, x, system : optional
        As in `spectrum`.

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
    was detected by the solve of a result, or is found by a search; else LGMRES solves systems with it, to 1e-6. Then
    ``||J^-1||_1`` is estimated from below by a few solves [1]_, rarely wrong by a factor of 3. Where products are
    differences of the residual, condition numbers above 1e7 are lost in their rounding errors.

    References
    ----------
    .. [1] N. J. Higham, "FORTRAN codes for estimating the one-norm of a real or complex matrix, with applications to
           condition estimation", ACM Trans. Math. Softw. 14 (1988) 381-396.

    Examples
    --------
    >>> problem = ims.Problem(lambda x: np.array([1.0, 1e3]) * x**2, jvp=lambda x, v: np.array([2.0, 2e3]) * x * v)
    >>> round(ims.diagnostics.condition(problem, np.ones(2)).number)
    1000
    """
    return measure_condition(System("condition", problem, x, system))


def measure_condition(system: System) -> Condition:
    if system.size <= MOST_WRITTEN:
        return _of_dense(system)
    adjoint, factors, failed = system.adjoint, system.factors, list[int]()
    if adjoint is None:
        raise TypeError(
            f"condition: the problem has {system.size} unknowns, and needs `vjp`, a `linearize` or `jac` with adjoint "
            f"products, or `structure`; without them there may be at most {MOST_WRITTEN}"
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
    """Estimate of the 1-norm of a map on (1, N): an ascent over columns, and one further vector, as in LAPACK."""
    N = system.size

    def on_host(function: Callable[[Array], Array]) -> Callable[[HostArray], HostArray]:
        return lambda v: to_host(function(from_host(np.ravel(v)[None, :], system.x)))[0]

    multiply, dtype = on_host(product), to_host(system.F).dtype
    A = scipy.sparse.linalg.LinearOperator((N, N), matvec=multiply, rmatvec=on_host(adjoint), dtype=dtype)
    alternating = (-1.0) ** np.arange(N) * (1 + np.arange(N) / max(N - 1, 1))
    return float(max(scipy.sparse.linalg.onenormest(A, t=1), 2 * np.abs(multiply(alternating)).sum() / (3 * N)))
