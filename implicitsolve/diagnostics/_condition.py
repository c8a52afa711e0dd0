"""One system of a problem at a point, the condition of its J, and with it the distance of x to the solution."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from implicitsolve._arrays.host import from_host, gather, to_host
from implicitsolve._arrays.namespace import as_inexact
from implicitsolve._arrays.traits import check_whole
from implicitsolve._typing import Array, HostArray
from implicitsolve.diagnostics._history import native
from implicitsolve.direct import BlockLU
from implicitsolve.direct._sparse_lu import SparseLU
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._sparse_assemble import sparse_jacobian
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.problem import Problem
from implicitsolve.result import NonlinearResult
from implicitsolve.solve import linear_solve
from implicitsolve.status import Status
from implicitsolve.stopping import LinearStop
from implicitsolve.testing._checks import normal

DENSE = 500  # unknowns up to which J is written out
ASSEMBLY = 1000  # products that an assembly may take
ACCURACY = 1e-6  # of linear solves without a matrix
MOST_COLUMNS = 5  # of the inverse, as in LAPACK's estimator


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
        """Three digits of each number."""
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
        Where.
    system : int or tuple of int, optional
        Which system, by its index in the batch. Needed where there is a batch.

    Returns
    -------
    Condition
        Number, its factors, and the estimated distance to the solution.

    Raises
    ------
    TypeError
        If there are more than 500 unknowns, no `structure`, and no products with J^H.
    ValueError
        If an argument is not usable.

    Notes
    -----
    In order of preference: a declared `structure` is assembled and factored; up to 500 unknowns J is written out by N
    products, and the number is exact; else products with J and J^H, whose inverses are LGMRES solves to 1e-6. Except
    for the second, ``||J^-1||_1`` is an estimate from below by a few solves [1]_, rarely wrong by a factor of 3. Where
    products are differences of the residual, condition numbers above 1e7 are lost in their rounding error.

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
    return condition_of(System("condition", problem, x, system))


def condition_of(part: System) -> Condition:
    """`condition` of one prepared system."""
    J = part.assembled(ASSEMBLY)
    if J is not None:
        return _of_matrix(part, J)
    if part.size <= DENSE:
        return _of_dense(part)
    adjoint = part.adjoint()
    if adjoint is None:
        raise TypeError(
            f"condition: the problem has {part.size} unknowns, and needs `vjp`, a `linearize` or `jac` with adjoint "
            f"products, or `structure`; without them there may be at most {DENSE}"
        )
    return _of_products(part, adjoint)


def _of_dense(part: System) -> Condition:
    """J written out."""
    J, F = part.dense, to_host(part.F)[0]
    norm = float(np.linalg.norm(J, 1)) if J.size else 0.0
    try:
        inverse = np.linalg.inv(J)
    except np.linalg.LinAlgError:
        return Condition(math.inf, norm, math.inf, math.inf)
    with np.errstate(all="ignore"):
        inverse_norm = float(np.linalg.norm(inverse, 1)) if J.size else 0.0
        return Condition(norm * inverse_norm, norm, inverse_norm, float(np.linalg.norm(inverse @ F)))


def _of_matrix(part: System, J: BlockBandedMatrix | SparseMatrix) -> Condition:
    """J of a declared structure, by its factors."""
    norm = float(np.abs(J.to_sparse("csc")).sum(axis=0).max(initial=0.0))
    inverse: LinearOperator = SparseLU().factor(J) if isinstance(J, SparseMatrix) else BlockLU().factor(J).flat()
    with np.errstate(all="ignore"):
        error = float(norm2(inverse.matvec(part.F))[0])
        if not math.isfinite(error):
            return Condition(math.inf if math.isfinite(norm) else math.nan, norm, math.inf, math.inf)
        inverse_norm = _norm1(part, inverse.matvec, inverse.rmatvec)
    return Condition(norm * inverse_norm, norm, inverse_norm, error)


def _of_products(part: System, adjoint: LinearOperator) -> Condition:
    """J by its products, and its inverse by linear solves."""
    failed: list[int] = []

    def solver(A: LinearOperator) -> Callable[[Array], Array]:
        def solve(b: Array) -> Array:
            result = linear_solve(A, b, stop=LinearStop(rtol=ACCURACY, max_iterations=2 * part.size))
            failed.extend(np.asarray(result.status)[~np.asarray(result.success)].tolist())
            return result.x

        return solve

    norm = _norm1(part, part.J.matvec, adjoint.matvec)
    error = float(norm2(solver(part.J)(part.F))[0])
    inverse_norm = _norm1(part, solver(part.J), solver(adjoint))
    if failed:
        is_singular = bool({Status.SINGULAR, Status.BREAKDOWN} & set(failed))
        inverse_norm = error = math.inf if is_singular else math.nan
    return Condition(norm * inverse_norm, norm, inverse_norm, error)


def _norm1(part: System, product: Callable[[Array], Array], adjoint: Callable[[Array], Array]) -> float:
    """Estimate of the 1-norm of a map on (1, N): an ascent over columns, and one vector beside it, as in LAPACK."""

    def on_host(function: Callable[[Array], Array], v: HostArray) -> HostArray:
        return to_host(function(from_host(v[None, :], part.x)))[0]

    i, N = np.arange(part.size), max(part.size, 1)
    y = on_host(product, (-1.0) ** i * (1 + i / max(N - 1, 1)))
    estimates = [2 * np.abs(y).sum() / (3 * N)]
    v, j = np.full(part.size, 1 / N), -1
    for _ in range(MOST_COLUMNS):
        y = on_host(product, v)
        estimates.append(np.abs(y).sum())
        if not estimates[-1] > max(estimates[1:-1], default=0.0):
            break
        with np.errstate(all="ignore"):
            signs = np.where(y == 0, 1.0, y / np.abs(y))
        z = on_host(adjoint, signs)
        last, j = j, int(np.argmax(np.abs(z)))
        if j == last or not np.abs(z[j]) > np.real(np.vdot(v, z)):
            break
        v = (i == j).astype(float)
    return float(np.max(estimates))


class System:
    """One system of a problem at x, on arrays (1, N)."""

    def __init__(self, caller: str, problem: Any, x: Array, system: Any = None) -> None:
        if not isinstance(problem, Problem):
            problem = Problem(problem)
        x = native(x)  # of SciPy's entry
        x = as_inexact(x.x if isinstance(x, NonlinearResult) else x, "x")
        check_whole(caller, x, "the functions of one rank's part")
        whole = Evaluator(problem, x)
        row = np.asarray([position(caller, system, whole.batch_shape)])
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
        """Unknowns, N."""
        return self.x.shape[1]

    def assembled(self, most: int | None = None) -> BlockBandedMatrix | SparseMatrix | None:
        """J as a matrix of the declared structure, if there is one and it takes no more than `most` products."""
        if self.problem.sparse_structure is not None or self.problem.structure == "detect":
            return sparse_jacobian(self.caller, self.evaluator, self.x, self.F)
        if self.problem.block_structure is None:
            return None
        assembler = Assembler(self.whole, central=True)
        if most is not None and assembler.cost > most:
            return None
        return assembler.assemble(self.evaluator, self.x, self.F)

    def adjoint(self) -> LinearOperator | None:
        """J^H, if the problem can multiply by it."""
        if self.J._rmatvec is not None:
            return self.J.H
        J = self.assembled()
        if isinstance(J, BlockBandedMatrix):
            return J.flat().H
        return None if J is None else J.H

    @functools.cached_property
    def dense(self) -> HostArray:
        """J, column by column, by N products the first time."""
        return to_host(self.J.matmat(from_host(np.eye(self.size)[None], self.x)))[0]

    def random(self, rng: np.random.Generator) -> Array:
        """A vector of random numbers, complex where x is."""
        return normal(rng, tuple(self.x.shape), self.x)


def position(caller: str, system: Any, batch_shape: tuple[int, ...]) -> int:
    """Position in the flattened batch."""
    index = () if system is None else tuple(system) if isinstance(system, tuple | list) else (system,)
    if len(index) != len(batch_shape):
        expected = f"an index of {len(batch_shape)} numbers" if batch_shape else "None"
        raise ValueError(
            f"{caller}: `system` must be {expected}, since the batch has the shape {batch_shape}, got {system!r}"
        )
    if not all(-n <= int(i) < n for i, n in zip(index, batch_shape)):
        raise ValueError(f"{caller}: `system` must lie in the batch of shape {batch_shape}, got {system!r}")
    places = tuple(int(i) % n for i, n in zip(index, batch_shape))
    return int(np.ravel_multi_index(places, batch_shape)) if places else 0
