"""Jacobians that a problem's `jac` or `linearize` returns as matrices: their pattern is that of their entries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse

from implicitsolve._namespace import array_namespace, device, from_host, to_host
from implicitsolve._sparse_structure import Sparse
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.direct._sparse_lu import DENSE
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.operators._convert import is_cupy_sparse
from implicitsolve.operators._sparse import SparseMatrix

LARGEST_DENSE = 100  # unknowns up to which the factors of a dense matrix cost less than the products in their place


class OfferedJacobians:
    """The assembler of `BlockLoop` from a function of the problem that returns matrices.

    Attributes
    ----------
    structure : Sparse
        The entries of all matrices so far. Of a dense array these are its nonzeros.
    """

    cost: int = 1

    def __init__(self, evaluator: Evaluator, J: Any) -> None:
        self.name = "jac" if evaluator.problem.linearize is None else "linearize"
        self.sensitivity: HostArray = np.full(evaluator.rows.size, np.nan)
        self.structure: Sparse = _pattern(J)
        self._indices: tuple[Array, Array] | None = None  # of the last matrix on a device, in compressed rows
        self._places: Array = None  # ... and of its entries in `structure`

    @classmethod
    def of(cls, evaluator: Evaluator, x: Array) -> OfferedJacobians | None:
        """The Jacobians of a problem; None if it offers none, or at x no matrix but an operator."""
        problem = evaluator.problem
        if (problem.linearize is None and problem.jac is None) or problem.blocks is not None:
            return None
        J = evaluator.matrix(x, keep=True)
        evaluator.as_operator(J, "jac" if problem.linearize is None else "linearize")  # raises where the shape is wrong
        return cls(evaluator, J) if _is_matrix(J) else None

    @property
    def is_dense(self) -> bool:
        """Whether products are cheaper than factors of a sparse matrix with so many entries."""
        n = self.structure.unknowns
        return n > LARGEST_DENSE and self.structure.nnz > DENSE * n * n

    def assemble(self, evaluator: Evaluator, x: Array, F: Array) -> SparseMatrix:
        """J(x) for x (b, N)."""
        J = evaluator.matrix(x)
        evaluator.as_operator(J, self.name)  # raises where its shape is wrong
        if not _is_matrix(J):
            raise TypeError(f"`{self.name}` returned a matrix first, and then {type(J).__name__}")
        dtype = J.dtype
        if np.issubdtype(dtype, np.complexfloating) and not np.issubdtype(x.dtype, np.complexfloating):
            raise TypeError(
                f"`{self.name}` returned complex numbers for a real x0: pass a complex x0 to solve in complex"
            )
        entries = self._entries_on_device(J) if is_cupy_sparse(J) else self._entries(J)
        data = entries.reshape(math.prod(evaluator.batch_shape), -1).astype(x.dtype)
        return SparseMatrix(evaluator.selected(data), self.structure)

    def is_certain(self, rows: Indices) -> bool:
        """Whether no length of a difference was guessed."""
        return True

    def check(self, rows: Indices, newton_step: Array) -> HostArray:
        """Which systems need another assembly."""
        return np.zeros(rows.size, dtype=bool)

    def _entries(self, J: Any) -> HostArray:
        """Entries (..., nnz) at the places of `structure`, to which those are added that are new."""
        pattern = _pattern(J)
        if isinstance(J, SparseMatrix):
            J = J.to_sparse() if not J.batch_shape else J.todense()
        is_same = np.array_equal(pattern.indptr, self.structure.indptr)
        if not is_same or not np.array_equal(pattern.indices, self.structure.indices):
            union = self.structure.union(pattern)
            if union.nnz > self.structure.nnz:
                self.structure = union
        if not scipy.sparse.issparse(J):
            return np.asarray(J)[..., self.structure.indices, self.structure.columns]
        own = SparseMatrix.from_scipy(J)
        if own.structure.nnz == self.structure.nnz:
            return own.data
        data = np.zeros(self.structure.nnz, dtype=own.data.dtype)
        data[self._places_of(own.structure.indices, own.structure.columns)] = own.data
        return data

    def _places_of(self, rows: HostArray, columns: HostArray) -> HostArray:
        """Where entries of the structure stand in it."""
        n, structure = self.structure.unknowns, self.structure
        keys = columns.astype(np.int64) * n + rows
        return np.searchsorted(structure.columns.astype(np.int64) * n + structure.indices, keys)

    def _entries_on_device(self, J: Any) -> Array:
        """The same of CuPy's matrix: its indices are read by the host when they differ from the last ones."""
        J = _in_rows(J)
        xp, last = array_namespace(J.data), self._indices
        if last is None or not (_is_equal(last[0], J.indices) and _is_equal(last[1], J.indptr)):
            pattern = _pattern_in_rows(J)
            union = self.structure.union(Sparse(pattern))
            self.structure = union if union.nnz > self.structure.nnz else self.structure
            rows = np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr))
            self._places = from_host(self._places_of(rows, pattern.indices), J.data)
            self._indices = J.indices.copy(), J.indptr.copy()
        data = xp.zeros(self.structure.nnz, dtype=J.data.dtype, device=device(J.data))
        data[self._places] = J.data
        return data


def _is_equal(a: Array, b: Array) -> bool:
    return a.shape == b.shape and bool((a == b).all())


def _in_rows(J: Any) -> Any:
    """CuPy's matrix in compressed rows, without duplicates."""
    J = J.tocsr()
    if not J.has_canonical_format:
        J = J.copy()
        J.sum_duplicates()
    return J


def _pattern_in_rows(J: Any) -> Any:
    """Entries of CuPy's matrix in compressed rows, read by the host, as SciPy's."""
    parts = np.ones(J.nnz, dtype=bool), to_host(J.indices), to_host(J.indptr)
    return scipy.sparse.csr_array(parts, shape=J.shape)


def _is_matrix(J: Any) -> bool:
    return scipy.sparse.issparse(J) or isinstance(J, np.ndarray | SparseMatrix) or is_cupy_sparse(J)


def _pattern(J: Any) -> Sparse:
    """Where a matrix, or any of a batch, has entries."""
    if isinstance(J, SparseMatrix):
        return J.structure
    if isinstance(J, np.ndarray):
        n = J.shape[-1] if J.ndim else 0
        return Sparse((J != 0).reshape(-1, n, n).any(axis=0) if n else np.zeros((0, 0), dtype=bool))
    if is_cupy_sparse(J):
        return Sparse(_pattern_in_rows(_in_rows(J)))
    return Sparse(J)
