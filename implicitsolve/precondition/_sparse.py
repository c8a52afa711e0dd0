"""Preconditioners for sparse matrices whose LU factors would fill too much: incomplete LU and algebraic multigrid."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from implicitsolve._typing import HostArray
from implicitsolve.errors import BackendUnavailable
from implicitsolve.operators import LinearOperator
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.stopping import check_limit


@dataclass(frozen=True, kw_only=True)
class ILU:
    """Incomplete LU factors of a sparse matrix, with threshold, by SuperLU [1]_.

    A system whose factorization breaks down is multiplied by the inverse of its diagonal instead.

    References
    ----------
    .. [1] X. S. Li and M. Shao, "A supernodal approach to incomplete LU factorization with partial pivoting", ACM
           Trans. Math. Softw. 37 (2011) 43.
    """

    drop_tolerance: float = 1e-2  # part of a column below which its entries are dropped; a smaller one may take minutes
    fill: float = 4.0  # entries of the factors at most, over those of A: `spilu` has no other bound on its time

    def __post_init__(self) -> None:
        """Check the settings."""
        if not 0 <= self.drop_tolerance < 1:
            raise ValueError(f"ILU: `drop_tolerance` must be at least 0 and below 1, got {self.drop_tolerance}")
        if not self.fill >= 1:
            raise ValueError(f"ILU: `fill` must be at least 1, got {self.fill}")

    def build(self, A: SparseMatrix) -> LinearOperator:
        """Return the inverse of the incomplete factors of each system."""
        return _operator(A, [self._inverse(matrix) for matrix in _systems(A)])

    def _inverse(self, A: Any) -> _Inverse:
        try:
            factors = scipy.sparse.linalg.spilu(
                A, drop_tol=self.drop_tolerance, fill_factor=self.fill, permc_spec="MMD_AT_PLUS_A"
            )
        except RuntimeError:  # SuperLU's word for a zero pivot
            return _diagonal(A)
        return _Inverse(factors.solve, lambda w: factors.solve(w, "H"))


@dataclass(frozen=True, kw_only=True)
class AMG:
    """One V-cycle of smoothed aggregation multigrid for a sparse matrix, by pyamg [1]_ (extra ``amg``).

    References
    ----------
    .. [1] N. Bell, L. N. Olson, J. Schroder and B. Southworth, "PyAMG: Algebraic Multigrid Solvers in Python", J. Open
           Source Softw. 8 (2023) 5495.
    """

    fields: int = 1  # unknowns at a point, interleaved
    coarsest: int = 500  # unknowns at which coarsening ends

    def __post_init__(self) -> None:
        """Check the settings."""
        check_limit("AMG", "fields", self.fields, least=1)
        check_limit("AMG", "coarsest", self.coarsest, least=1)

    def build(self, A: SparseMatrix) -> LinearOperator:
        """Return a V-cycle for each system."""
        try:
            pyamg: Any = importlib.import_module("pyamg")
        except ImportError as error:
            raise BackendUnavailable(
                "AMG: needs pyamg, which is not installed: pip install 'implicitsolve[amg]', or use ILU"
            ) from error
        return _operator(A, [self._inverse(pyamg, matrix) for matrix in _systems(A)])

    def _inverse(self, pyamg: Any, A: Any) -> _Inverse:
        rows = scipy.sparse.csr_matrix(A)
        if self.fields > 1:
            rows = rows.tobsr((self.fields, self.fields))
        options = {"sweep": "symmetric", **({"blocksize": self.fields} if self.fields > 1 else {})}
        smoother = ("block_gauss_seidel" if self.fields > 1 else "gauss_seidel", options)
        hierarchy = pyamg.smoothed_aggregation_solver(
            rows,
            symmetry="nonsymmetric",
            strength=("symmetric", {"theta": 0.0}),
            presmoother=smoother,
            postsmoother=smoother,
            max_coarse=self.coarsest,
        )
        cycle = hierarchy.aspreconditioner("V")
        return _Inverse(cycle.matvec, None)


@dataclass(frozen=True)
class _Inverse:
    """Products with an approximate inverse, and with its adjoint if there are any."""

    matvec: Callable[[HostArray], HostArray]
    rmatvec: Callable[[HostArray], HostArray] | None


def _systems(A: SparseMatrix) -> list[Any]:
    count = int(np.prod(A.batch_shape))
    return [scipy.sparse.csc_matrix(A.to_sparse(system=system)) for system in range(count)]


def _diagonal(A: Any) -> _Inverse:
    d = A.diagonal()
    inverse = 1.0 / np.where((d == 0) | ~np.isfinite(d), 1.0, d)
    return _Inverse(lambda v: inverse * v, lambda w: np.conj(inverse) * w)


def _operator(A: SparseMatrix, inverses: list[_Inverse]) -> LinearOperator:
    def each(products: list[Callable[[HostArray], HostArray]]) -> Callable[[HostArray], HostArray]:
        def apply(v: HostArray) -> HostArray:
            flat = v.reshape(len(products), -1)
            return np.stack([product(row) for product, row in zip(products, flat)]).reshape(v.shape)

        return apply

    adjoints = [inverse.rmatvec for inverse in inverses if inverse.rmatvec is not None]
    return LinearOperator(
        each([inverse.matvec for inverse in inverses]),
        each(adjoints) if len(adjoints) == len(inverses) else None,
        in_shape=A.in_shape,
        batch_shape=A.batch_shape,
        dtype=A.dtype,
        take=(lambda indices: _operator(A.take(indices), [inverses[i] for i in indices]))  # type: ignore[arg-type]
        if A.batch_shape
        else None,
    )
