"""Preconditioners for sparse matrices whose LU factors would fill too much: incomplete LU and algebraic multigrid."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from implicitsolve._arrays.host import from_host, to_host
from implicitsolve._typing import Array, HostArray
from implicitsolve.direct._sparse_lu import is_factorable
from implicitsolve.errors import require
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.precondition._parts import Preconditioner
from implicitsolve.stopping import check_choice, check_flag, check_limit, check_number


@dataclass(frozen=True, kw_only=True)
class ILU(Preconditioner):
    """Incomplete LU factors with threshold, of a sparse or block-banded matrix, by SuperLU [1]_.

    For the J of a problem that declares `Sparse`, `Grid` or `BlockBanded`: ``NewtonKrylov(preconditioner=ILU())``.

    Parameters
    ----------
    drop_tolerance : float, optional
        Fraction of a column's norm below which entries are dropped, at least 0 and below 1. With less, Krylov methods
        take fewer iterations and the factorization longer, up to minutes. Default 0.01.
    fill : float, optional
        Largest ratio of the entries of the factors to those of A, at least 1: nothing else limits a factorization's
        time. Default 4.

    Notes
    -----
    A product costs two flops per entry of the factors. Systems of a batch are factorized one after the other, on the
    host. Where a factorization breaks down, the inverse of that system's diagonal takes its place.

    References
    ----------
    .. [1] X. S. Li and M. Shao, "A supernodal approach to incomplete LU factorization with partial pivoting", ACM
           Trans. Math. Softw. 37 (2011) 43.

    Examples
    --------
    >>> from implicitsolve.precondition import ILU
    >>> def bratu(u):
    ...     p = np.pad(u, 1)
    ...     neighbors = p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2]
    ...     return 4 * u - neighbors - 5 * np.exp(u) / 65**2
    >>> problem = ims.Problem(bratu, structure=ims.Grid(shape=(64, 64)))
    >>> result = ims.root(problem, np.zeros((64, 64)), method=ims.NewtonKrylov(preconditioner=ILU()))
    >>> result.success, result.krylov_iterations < 50
    (True, True)
    """

    drop_tolerance: float = 1e-2
    fill: float = 4.0

    takes_sparse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("ILU", "drop_tolerance", self.drop_tolerance)
        check_number("ILU", "fill", self.fill, least=1)
        if not 0 <= self.drop_tolerance < 1:
            raise ValueError(f"ILU: `drop_tolerance` must be at least 0 and below 1, got {self.drop_tolerance}")

    def build(self, A: Any) -> LinearOperator:
        """Return the inverse of the incomplete factors of each system of A."""
        return _operator(A, [self._inverse(matrix) for matrix in _systems("ILU", A)])

    def _inverse(self, A: Any) -> _Inverse:
        if not is_factorable(A.data, A.indices, A.indptr):
            return _diagonal(A)
        try:
            factors = scipy.sparse.linalg.spilu(
                A, drop_tol=self.drop_tolerance, fill_factor=self.fill, permc_spec="MMD_AT_PLUS_A"
            )
        except RuntimeError:  # a zero pivot
            return _diagonal(A)
        return _Inverse(factors.solve, lambda w: factors.solve(w, "H"))


@dataclass(frozen=True, kw_only=True)
class AMG(Preconditioner):
    """One V-cycle of algebraic multigrid for a sparse or block-banded matrix, by pyamg [1]_ (extra ``amg``).

    For diffusion on large grids and meshes, where LU factors fill too much: the iterations of a Krylov method hardly
    grow with the number of unknowns.

    Parameters
    ----------
    coarsening : {"aggregation", "classical"}, optional
        Smoothed aggregation, or the choice of points by strong couplings (Ruge and Stueben) for real matrices. The
        latter has no blocks, takes half the setup time, and fewer iterations where coefficients jump or differ between
        axes; weakly coupled fields need no declaration. Default "aggregation".
    fields : int, optional
        Unknowns per point. Default 1; the blocks of a `BlockBandedMatrix` are its points.
    fields_last : bool, optional
        Whether the fields are the last axis of x0 (interleaved) instead of the first (stacked), as in `Grid`. Default
        False.
    coarsest : int, optional
        Unknowns at which coarsening ends. Default 500.

    Raises
    ------
    BackendUnavailable, TypeError, ValueError
        From `build`, if pyamg is missing, `A` is complex with "classical" coarsening, or its unknowns are not a
        multiple of `fields`.

    Notes
    -----
    A symmetric Gauss-Seidel sweep, by points, smooths before and after each correction: a product costs about eight
    with A. Adjoint products are those of the adjoint cycle. Systems of a batch are treated one after the other, on the
    host.

    References
    ----------
    .. [1] N. Bell, L. N. Olson, J. Schroder and B. Southworth, "PyAMG: Algebraic Multigrid Solvers in Python", J. Open
           Source Softw. 8 (2023) 5495.

    Examples
    --------
    >>> from implicitsolve.precondition import AMG
    >>> method = ims.NewtonKrylov(preconditioner=AMG(fields=2))
    """

    coarsening: Literal["aggregation", "classical"] = "aggregation"
    fields: int = 1
    fields_last: bool = False
    coarsest: int = 500

    takes_sparse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_limit("AMG", "fields", self.fields, least=1)
        check_limit("AMG", "coarsest", self.coarsest, least=1)
        check_flag("AMG", "fields_last", self.fields_last)
        check_choice("AMG", "coarsening", self.coarsening, ("aggregation", "classical"))
        if self.coarsening == "classical" and self.fields > 1:
            raise ValueError(f'AMG: `fields` must be 1 with `coarsening` "classical", got {self.fields}')

    def build(self, A: Any) -> LinearOperator:
        """Return a V-cycle for each system of A."""
        need = "AMG: needs pyamg, which is not installed: pip install 'implicitsolve[amg]', or use ILU"
        pyamg = require("pyamg", need)
        has_blocks = isinstance(A, BlockBandedMatrix)
        if self.coarsening == "classical" and np.issubdtype(A.dtype, np.complexfloating):
            raise TypeError(f'AMG.build: `A` must be real with `coarsening` "classical", got {A.dtype}')
        fields = A.structure.block_size if has_blocks and self.coarsening == "aggregation" else self.fields
        if A.shape[-1] % fields:
            raise ValueError(f"AMG: `fields` must divide the {A.shape[-1]} unknowns of A, got {fields}")
        is_stacked = fields > 1 and not (has_blocks or self.fields_last)
        return _operator(A, [self._inverse(pyamg, matrix, fields, is_stacked) for matrix in _systems("AMG", A)])

    def _inverse(self, pyamg: Any, A: Any, fields: int, is_stacked: bool) -> _Inverse:
        if not is_factorable(A.data, A.indices, A.indptr):
            return _diagonal(A)
        order: HostArray | slice = slice(None)
        whole, place = A, order
        if is_stacked:
            places = np.arange(A.shape[0]).reshape(fields, -1).T.ravel()
            A, order, place = A[places][:, places], places, np.argsort(places)
        rows = scipy.sparse.csr_matrix(A)
        options: dict[str, Any] = {"sweep": "symmetric"}
        if fields > 1:
            rows = rows.tobsr((fields, fields))
            options["blocksize"] = fields
        smoother = ("block_gauss_seidel" if fields > 1 else "gauss_seidel", options)
        settings: dict[str, Any] = {"presmoother": smoother, "postsmoother": smoother, "max_coarse": self.coarsest}
        if self.coarsening == "classical":
            hierarchy = pyamg.ruge_stuben_solver(rows, **settings)
        else:
            settings |= {"symmetry": "nonsymmetric", "strength": ("symmetric", {"theta": 0.0})}
            hierarchy = pyamg.smoothed_aggregation_solver(rows, **settings)
        if not all(np.isfinite(level.A.data).all() for level in hierarchy.levels):  # zeros on a coarse diagonal
            return _diagonal(whole)
        adjoint = functools.cache(lambda: _adjoint(pyamg, hierarchy, smoother).aspreconditioner("V"))
        cycle = hierarchy.aspreconditioner("V")
        return _Inverse(lambda b: cycle.matvec(b[order])[place], lambda b: adjoint().matvec(b[order])[place])


def _adjoint(pyamg: Any, hierarchy: Any, smoother: Any) -> Any:
    """The hierarchy whose V-cycle is the adjoint: a symmetric sweep for A^H is the adjoint of that for A."""
    levels: list[Any] = []
    for level in hierarchy.levels:
        levels.append(type(level)())
        levels[-1].A = level.A.conj().T.asformat(level.A.format)
        if hasattr(level, "P"):
            levels[-1].P, levels[-1].R = level.R.conj().T.tocsr(), level.P.conj().T.tocsr()
    adjoint = pyamg.MultilevelSolver(levels, coarse_solver="pinv")
    pyamg.relaxation.smoothing.change_smoothers(adjoint, smoother, smoother)
    return adjoint


@dataclass(frozen=True)
class _Inverse:
    matvec: Callable[[HostArray], HostArray]
    rmatvec: Callable[[HostArray], HostArray]


def _systems(owner: str, A: Any) -> list[Any]:
    """The matrix of each system, in compressed columns."""
    if scipy.sparse.issparse(A):
        return [scipy.sparse.csc_matrix(A)]
    if isinstance(A, BlockBandedMatrix):
        places = np.arange(math.prod(A.batch_shape))[:, None]
        parts = [A.take(place) for place in places] if A.batch_shape else [A]
        return [scipy.sparse.csc_matrix(part.to_sparse("csc")) for part in parts]
    if isinstance(A, SparseMatrix):
        return [scipy.sparse.csc_matrix(A.to_sparse(system=system)) for system in range(math.prod(A.batch_shape))]
    raise TypeError(f"{owner}.build: `A` must be a sparse matrix or a BlockBandedMatrix, got {type(A).__name__}")


def _diagonal(A: Any) -> _Inverse:
    d = A.diagonal()
    inverse = 1.0 / np.where((d == 0) | ~np.isfinite(d), 1.0, d)
    return _Inverse(lambda v: inverse * v, lambda w: np.conj(inverse) * w)


def _operator(A: Any, inverses: list[_Inverse]) -> LinearOperator:
    """The inverses of all systems as one operator, which computes on the host."""
    batch_shape = tuple(getattr(A, "batch_shape", ()))

    def each(products: list[Callable[[HostArray], HostArray]]) -> Callable[[Array], Array]:
        def apply(v: Array) -> Array:
            rows = to_host(v).reshape(len(products), -1)
            found = np.stack([product(row) for product, row in zip(products, rows)]) if products else rows
            return from_host(found.reshape(v.shape), v)

        return apply

    return LinearOperator(
        each([inverse.matvec for inverse in inverses]),
        each([inverse.rmatvec for inverse in inverses]),
        in_shape=getattr(A, "in_shape", A.shape[:1]),
        batch_shape=batch_shape,
        dtype=A.dtype,
        take=(lambda indices: _operator(A.take(indices), [inverses[i] for i in indices])) if batch_shape else None,
    )
