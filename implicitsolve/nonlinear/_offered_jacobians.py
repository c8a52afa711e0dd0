"""Jacobians that a problem's `jac` or `linearize` returns as matrices, whose pattern is that of their entries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse

from implicitsolve._arrays.host import from_host, to_host
from implicitsolve._arrays.namespace import array_namespace, device
from implicitsolve._typing import Array
from implicitsolve.direct._sparse_lu import DENSE_SHARE
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.nonlinear._state import JacobianAssembler, SolveContext
from implicitsolve.operators._convert import is_cupy_sparse
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.structure._sparse import Sparse, from_csc

LARGEST_DENSE = 100  # unknowns up to which dense factors cost less than the products in their place


class OfferedJacobians(JacobianAssembler):
    """Assembles J for `BlockLoop` by a function that returns matrices; `structure` has the entries of all so far."""

    def __init__(self, evaluator: Evaluator, structure: Sparse) -> None:
        self.name = "jac" if evaluator.problem.linearize is None else "linearize"
        self.sensitivity = np.full(evaluator.rows.size, np.nan)
        self.structure: Sparse = structure

    @classmethod
    def of(cls, evaluator: Evaluator, x: Array, known: Sparse | None = None) -> OfferedJacobians | None:
        """The Jacobians of a problem; None if it offers none, or at x no matrix but an operator.

        Where the pattern is known, from an earlier solve whose factors may serve, none is evaluated.
        """
        problem = evaluator.problem
        if (problem.linearize is None and problem.jac is None) or problem.blocks is not None:
            return None
        if known is not None:
            return cls(evaluator, known)
        J = evaluator.matrix(x, keep=True)
        evaluator.as_operator(J, "jac" if problem.linearize is None else "linearize")  # raises where the shape is wrong
        return cls(evaluator, _pattern(J)) if _is_matrix(J) else None

    @property
    def cost(self) -> int:
        return 1

    @property
    def is_dense(self) -> bool:
        """Whether products are cheaper than factors of a sparse matrix with so many entries."""
        n = self.structure.unknowns
        return n > LARGEST_DENSE and self.structure.nnz > DENSE_SHARE * n * n

    def assemble(self, evaluator: Evaluator, x: Array, F: Array) -> SparseMatrix:
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
        return SparseMatrix(evaluator.select(data), self.structure)

    def _entries(self, J: Any) -> Array:
        """Entries (..., nnz) at the places of `structure`, to which those are added that are new."""
        if isinstance(J, np.ndarray):
            self._widen(_pattern(J))
            return J[..., self.structure.indices, self.structure.columns]
        if isinstance(J, SparseMatrix):
            self._widen(J.structure)
            pattern, entries = J.structure, J.data
        else:
            J = _in_columns(J)
            pattern, entries = from_csc(to_host(J.indptr), to_host(J.indices)), J.data
            self._widen(pattern)
        if pattern.nnz == self.structure.nnz:
            return entries
        n, (own, all_of_them) = np.int64(pattern.unknowns), (pattern, self.structure)
        keys, own_keys = (part.columns * n + part.indices for part in (all_of_them, own))
        xp = array_namespace(entries)
        data = xp.zeros((*entries.shape[:-1], self.structure.nnz), dtype=entries.dtype, device=device(entries))
        data[..., from_host(np.searchsorted(keys, own_keys), entries)] = entries
        return data

    def _widen(self, pattern: Sparse) -> None:
        if not self.structure.has_entries_of(pattern):
            union = self.structure.union(pattern)
            self.structure = max(self.structure, union, key=lambda part: part.nnz)


def assembler_of(context: SolveContext, evaluator: Evaluator, x: Array) -> JacobianAssembler | None:
    """The assembler of J by a known pattern, or from `jac`, if it takes fewer differences than there are unknowns."""
    if context.jacobians is not None or evaluator.problem.jac is None:
        return context.jacobians
    return OfferedJacobians.of(evaluator, x)


def _in_columns(J: Any) -> Any:
    """A sparse matrix of SciPy or CuPy in compressed columns, in order and without duplicates."""
    columns = J.tocsc()
    if not columns.has_canonical_format:
        columns = columns.copy()
        columns.sum_duplicates()
    return columns


def _is_matrix(J: Any) -> bool:
    return scipy.sparse.issparse(J) or isinstance(J, np.ndarray | SparseMatrix) or is_cupy_sparse(J)


def _pattern(J: Any) -> Sparse:
    """Where a matrix, or any of a batch, has entries."""
    if isinstance(J, SparseMatrix):
        return J.structure
    if isinstance(J, np.ndarray):
        n = J.shape[-1] if J.ndim else 0
        return Sparse((J != 0).reshape(-1, n, n).any(axis=0) if n else np.zeros((0, 0), dtype=bool))
    J = _in_columns(J)
    return from_csc(to_host(J.indptr), to_host(J.indices))
