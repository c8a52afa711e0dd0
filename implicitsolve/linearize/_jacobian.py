"""The Jacobian of a problem, and its structure, for callers who need them explicitly; and units that it suggests."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse

from implicitsolve._arrays.host import from_host
from implicitsolve._arrays.namespace import array_namespace, as_inexact, is_array
from implicitsolve._record import LimitReached, Tally
from implicitsolve._typing import Array, ArrayArgument, HostArray, Indices, Residual
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._checks import checked_array, checked_jacobian
from implicitsolve.linearize._detect import BUDGET, detect
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._sparse_jacobian import sparse_jacobian
from implicitsolve.monitor import Monitor, map_monitor
from implicitsolve.operators import BlockBandedMatrix
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.problem import Problem, chosen, host, spread, with_derivatives
from implicitsolve.result import NonlinearResult
from implicitsolve.stopping import check_flag, check_limit
from implicitsolve.structure import BlockBanded, Detection


def jacobian(problem: Problem | Residual, x: ArrayArgument) -> BlockBandedMatrix | SparseMatrix:
    """Assemble the Jacobian of a problem.

    Parameters
    ----------
    problem : Problem or callable
        The system; a callable is taken as its residual. `blocks`, `linearize`, `jac` or `jvp` are used, in this order;
        with none of them differences.
    x : array_like
        The point, of shape ``batch_shape + event_shape``.

    Returns
    -------
    BlockBandedMatrix or SparseMatrix
        J(x), of the batch shape of x: block-banded with the declared `BlockBanded`, sparse with a `Sparse` or `Grid`,
        where `jac` returns a sparse matrix, and where a pattern is detected (unless ``structure="none"``), else one
        dense block. Both have `todense`, and ``to_sparse("csr")`` for one system.

    Raises
    ------
    TypeError, ValueError
        If `problem` is neither, x does not fit it, or a declared pattern misses entries of J.

    Notes
    -----
    Takes k (lower + upper + 1) products for a `BlockBanded`, one for each color of a pattern, or N for a dense J; or
    twice as many residuals: central differences, accurate to about eps^(2/3). A detection takes 10 to 400 residuals
    more, and two where J is dense.

    Examples
    --------
    >>> ims.jacobian(lambda x: np.array([x[0] * x[1], x[1] ** 2]), [2.0, 3.0]).todense().round(6)
    array([[3., 2.],
           [0., 6.]])
    >>> problem = ims.Problem(lambda u: np.diff(u, 2, prepend=0.0, append=0.0) + u**2, structure=ims.BlockBanded(1, 1))
    >>> ims.jacobian(problem, np.full(4, 2.0)).to_sparse("csr")
    <Compressed Sparse Row sparse array of dtype 'float64'
        with 10 stored elements and shape (4, 4)>
    """
    problem = problem if isinstance(problem, Problem) else Problem(problem)
    return assemble_jacobian(problem, as_inexact(x, "x"))


def assemble_jacobian(
    problem: Problem, x: Array, tally: Tally | None = None, known: Detection | None = None
) -> BlockBandedMatrix | SparseMatrix:
    """`jacobian`, whose evaluations a `tally` may count, where a solve may have detected the sparsity."""
    problem = with_derivatives(problem, x)
    evaluator = Evaluator(problem, x, tally=tally)
    flat = evaluator.flatten(x)
    has_own = problem.jac is not None or problem.linearize is not None
    if problem.structure is None and not evaluator.batch_shape and has_own:
        J = evaluator.matrix(flat, keep=True)
        evaluator.as_operator(J, "jac" if problem.linearize is None else "linearize")  # raises where the shape is wrong
        if scipy.sparse.issparse(J):
            return SparseMatrix.from_scipy(J)
    F = None if evaluator.has_exact_products else evaluator.residual(flat)
    if problem.block_structure is None:
        is_sparse = problem.sparse_structure is not None or problem.structure == "detect"
        is_sparse |= problem.structure != "none" and not has_own
        known = known or getattr(problem.derivatives, "detection", None)
        found = sparse_jacobian("jacobian", evaluator, flat, F, known, by_columns=True) if is_sparse else None
        if found is not None:
            data = evaluator.xp.reshape(found.data, (*evaluator.batch_shape, found.data.shape[-1]))
            return SparseMatrix(data, found.structure)
        problem = replace(problem, structure=BlockBanded(0, 0, max(evaluator.size, 1)))
        evaluator = Evaluator(problem, x, tally=evaluator.tally)
    J = Assembler(evaluator, central=True).assemble(evaluator, flat, F)
    blocks = evaluator.xp.reshape(J.blocks, (*evaluator.batch_shape, *J.blocks.shape[1:]))
    return BlockBandedMatrix(blocks, lower=J.lower, upper=J.upper, periodic=J.periodic)


def detect_structure(
    problem: Problem | Residual, x0: ArrayArgument, *, budget: int = BUDGET, bisection: bool = True
) -> Detection:
    """Find where the Jacobian of a residual has entries, by evaluations near x0.

    Where F_i does not depend on x_j, it stays the same, bit for bit, as x_j changes. Diagonals and stencils are found
    in 10 to 30 evaluations, other patterns by halving groups of unknowns in 50 to several hundred. Their number hardly
    grows with that of the unknowns.

    Parameters
    ----------
    problem : Problem or callable
        The system; a callable is taken as its residual. The structure that it declares is not used.
    x0 : array_like
        A point, of shape ``batch_shape + event_shape``: its axes show grids and fields. The systems of a batch get one
        structure.
    budget : int, optional
        Largest number of evaluations. Default 400.
    bisection : bool, optional
        Whether patterns without diagonals are sought. Default True.

    Returns
    -------
    Detection
        Its `structure` is a `Sparse`, for ``Problem(structure=...)``, or None; then `reason` says why. `evaluations` is
        what the search has cost.

    Raises
    ------
    TypeError
        If `problem` is neither a Problem nor callable.

    Notes
    -----
    A residual that is not local in floating point (transforms, means, products with dense matrices, random numbers) has
    a dense Jacobian. Before a structure is returned, J d is compared with the change of F along a random d.

    Examples
    --------
    >>> def heat(u):
    ...     p = np.pad(u, 1)
    ...     return 4 * u - p[2:, 1:-1] - p[:-2, 1:-1] - p[1:-1, 2:] - p[1:-1, :-2] + u**3 - 1
    >>> found = ims.detect_structure(heat, np.zeros((40, 40)))
    >>> found.structure
    <Sparse 1600x1600, 7840 entries, at most 5 in a row>
    >>> result = ims.root(ims.Problem(heat, structure=found.structure), np.zeros((40, 40)), method="sparse-newton")
    >>> result.success
    True
    """
    problem = problem if isinstance(problem, Problem) else Problem(problem)
    check_limit("detect_structure", "budget", budget, least=1)
    check_flag("detect_structure", "bisection", bisection)
    x0 = as_inexact(x0, "x0")
    evaluator = Evaluator(problem, x0)
    flat, shape, inward = evaluator.flatten(x0), evaluator.event_shape, evaluator.inward
    return detect(evaluator.residual, flat, shape=shape, budget=budget, bisection=bisection, inward=inward)


UNIT_ROUNDS = 2  # assemblies for "auto": the first differences are no better than the units


@dataclass(frozen=True, eq=False)
class Scales:
    """Sizes of the unknowns and of the equations of a problem, arrays of the shape of its states: G(y) = F(x y) / F."""

    whole: Problem
    x: Array
    F: Array

    @classmethod
    def of(cls, problem: Problem, x0: Array, tally: Tally) -> Scales:
        """The scales that a problem declares; "auto" ones come from J at x0."""
        plain = replace(problem, x_scale=None, f_scale=None)
        declared = {"x_scale": problem.x_scale, "f_scale": problem.f_scale}
        seeks_x, seeks_F = (isinstance(scale, str) for scale in declared.values())
        known = {name: 1.0 if scale is None or isinstance(scale, str) else scale for name, scale in declared.items()}
        x, F = (spread(name, scale, tuple(x0.shape)) for name, scale in known.items())
        is_exact = plain.jac or plain.jvp or plain.linearize
        is_sought = (seeks_x or seeks_F) and 0 not in x.shape
        for _ in range((1 if is_exact else UNIT_ROUNDS) if is_sought else 0):
            scales = cls.with_sizes(plain, x, F, x0)
            try:
                J = tally.enforce(assemble_jacobian, scales.problem, scales.start(x0), tally)
            except LimitReached:
                break  # the solve ends with its first residual
            found = _equilibrate(J, seeks_x, seeks_F)
            x, F = (sizes * factors.reshape(sizes.shape) for sizes, factors in zip((x, F), found))
        return cls.with_sizes(plain, x, F, x0)

    @classmethod
    def with_sizes(cls, problem: Problem, x: HostArray, F: HostArray, like: Array) -> Scales:
        """The declared or found sizes at x0; those of x as powers of two, which round nothing."""
        return cls(problem, from_host(np.ldexp(1.0, np.frexp(x)[1] - 1), like), from_host(F, like))

    @property
    def problem(self) -> Problem:
        """The problem in these unknowns and equations; without `blocks`, which differences replace."""
        whole = self.whole
        return Problem(
            self.residual,
            jvp=whole.jvp and self.jvp,
            jvps=whole.jvps and self.jvps,
            vjp=whole.vjp and self.vjp,
            jac=whole.jac and self.jac,
            linearize=whole.linearize and self.linearize,
            structure=whole.structure,
            batch_ndim=whole.batch_ndim,
            derivatives=whole.derivatives,
            bounds=whole.bounds and tuple(host(side) / host(self.x) for side in whole.bounds),
            take=whole.take and self.take,
            rejects=whole.rejects,
            name=whole.name,
        )

    def start(self, x: Array) -> Array:
        """The y of an x."""
        return _over(self.x, x)

    def back(self, y: Array) -> Array:
        """The x of a y."""
        return _times(self.x, y)

    def slopes(self, y: Array) -> Array:
        """The derivatives of `back`, unknown by unknown."""
        return self.x

    def monitor(self, monitor: Monitor) -> Monitor:
        """The caller's monitor, which sees x and F in their units."""
        return map_monitor(monitor, lambda y, F: (self.back(y), _times(self.F, F)))

    def expand(self, result: NonlinearResult) -> NonlinearResult:
        """The result in the units of the caller; its norms remain those of F / f_scale."""
        return replace(result, x=self.back(result.x), fun=_times(self.F, result.fun))

    def residual(self, y: Array) -> Array:
        return self._divide(self.whole.residual(self.back(y)), "residual", y)

    def jvp(self, y: Array, v: Array) -> Array:
        return self._divide(self.whole.jvp(self.back(y), _times(self.slopes(y), v)), "jvp", y)  # type: ignore[misc]

    def jvps(self, y: Array, V: Array) -> Array:
        return _over(self.F, self.whole.jvps(self.back(y), _times(self.slopes(y), V)))  # type: ignore[misc]

    def vjp(self, y: Array, w: Array) -> Array:
        product = self.whole.vjp(self.back(y), _over(self.F, w))  # type: ignore[misc]
        return _times(self.slopes(y), self._as_array(product, "vjp", y))

    def jac(self, y: Array) -> Any:
        return self._jacobian(self.whole.jac(self.back(y)), "jac", y)  # type: ignore[misc]

    def linearize(self, y: Array) -> Any:
        pair: Any = self.whole.linearize(self.back(y))  # type: ignore[misc]
        if not (isinstance(pair, tuple) and len(pair) == 2):
            return pair
        return self._divide(pair[0], "linearize", y), self._jacobian(pair[1], "linearize", y)

    def take(self, indices: Indices) -> Problem:
        part = chosen(replace(self.whole, x_scale=host(self.x), f_scale=host(self.F)), indices, tuple(self.x.shape))
        like = self.x
        return Scales(part, from_host(part.x_scale, like), from_host(part.f_scale, like)).problem

    def _divide(self, F: Any, name: str, y: Array) -> Array:
        return _over(self.F, self._as_array(F, name, y))

    def _as_array(self, value: Any, name: str, y: Array) -> Array:
        xp, shape = array_namespace(y), tuple(self.F.shape)
        return xp.reshape(checked_array(value, name, xp, y.dtype, shape), shape)

    def _jacobian(self, J: Any, name: str, y: Array) -> Any:
        batch_shape = tuple(self.x.shape[: self.whole.batch_ndim])
        xp, flat = array_namespace(self.x), (*batch_shape, -1)
        x, F = xp.reshape(self.slopes(y), flat), xp.reshape(self.F, flat)
        size = x.shape[-1]
        J = J.to_sparse() if isinstance(J, SparseMatrix) and not J.batch_shape else J
        if scipy.sparse.issparse(J) and J.shape == (size, size):
            return scipy.sparse.diags_array(1 / host(F)) @ J @ scipy.sparse.diags_array(host(x))
        if is_array(J) and tuple(J.shape) == (*batch_shape, size, size):
            return _over(F[..., :, None], _times(x[..., None, :], J))
        A = checked_jacobian(J, name, batch_shape, size)
        x, F = (xp.reshape(part, (*A.batch_shape, *A.in_shape)) for part in (x, F))
        return A._alike(lambda v: _over(F, A.matvec(_times(x, v))), lambda w: _times(x, A.rmatvec(_over(F, w))))


def _times(scale: Array, values: Array) -> Array:
    with np.errstate(all="ignore"):
        return scale * values


def _over(scale: Array, values: Array) -> Array:
    with np.errstate(all="ignore"):
        return values / scale


def _equilibrate(J: Any, seeks_x: bool, seeks_F: bool) -> tuple[HostArray, HostArray]:
    """Factors (B, N) of x and F that bring the largest entry of each column and row of J near 1; 1 if not sought."""
    systems = [J.take(np.array([i])) for i in range(math.prod(J.batch_shape))] if J.batch_shape else [J]
    found: list[tuple[HostArray, HostArray]] = []
    for system in systems:
        A = abs(system.to_sparse("csr"))
        rows, columns = _largest(A, 1), np.ones(A.shape[0])
        if seeks_x:
            columns = 1 / _largest(scipy.sparse.diags_array(1 / rows) @ A if seeks_F else A, 0)
            rows = _largest(A @ scipy.sparse.diags_array(columns), 1)
        found.append((columns, rows if seeks_F else np.ones(A.shape[0])))
    columns, rows = (np.stack(part) for part in zip(*found))
    return columns, rows


def _largest(A: Any, axis: int) -> HostArray:
    """The largest entry of each row or column; 1 where all are zero, or one is not finite."""
    size = A.max(axis=axis).toarray().reshape(-1)
    return np.where((size > 0) & np.isfinite(size), size, 1.0)
