"""Jacobians that a problem's `jac` or `linearize` returns as matrices: their pattern is that of their entries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse

from implicitsolve._sparse_structure import Sparse
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.direct._sparse_lu import DENSE
from implicitsolve.linearize._evaluator import Evaluator
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

    @classmethod
    def of(cls, evaluator: Evaluator, x: HostArray) -> OfferedJacobians | None:
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
        data = self._entries(J).reshape(math.prod(evaluator.batch_shape), -1).astype(x.dtype)
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
        n = self.structure.unknowns
        keys = own.structure.columns.astype(np.int64) * n + own.structure.indices
        places = np.searchsorted(self.structure.columns.astype(np.int64) * n + self.structure.indices, keys)
        data = np.zeros(self.structure.nnz, dtype=own.data.dtype)
        data[places] = own.data
        return data


def _is_matrix(J: Any) -> bool:
    return scipy.sparse.issparse(J) or isinstance(J, np.ndarray | SparseMatrix)


def _pattern(J: Any) -> Sparse:
    """Where a matrix, or any of a batch, has entries."""
    if isinstance(J, SparseMatrix):
        return J.structure
    if isinstance(J, np.ndarray):
        n = J.shape[-1] if J.ndim else 0
        return Sparse((J != 0).reshape(-1, n, n).any(axis=0) if n else np.zeros((0, 0), dtype=bool))
    return Sparse(J)
