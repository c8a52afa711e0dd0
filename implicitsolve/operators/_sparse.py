"""SparseMatrix: a sparse matrix, or a batch of them with one pattern, by its entries in compressed columns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse

from implicitsolve._namespace import as_inexact
from implicitsolve._sparse_structure import Sparse
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.operators._base import LinearOperator


class SparseMatrix(LinearOperator):
    """A square sparse matrix; or the matrices of a batch of systems, which share one pattern.

    Parameters
    ----------
    data : array of shape (..., nnz)
        Entries in the order of ``structure.indices``: column after column. Leading axes are a batch.
    structure : Sparse
        Where they stand.

    Attributes
    ----------
    data, structure
        As given.

    Raises
    ------
    ValueError
        If `data` does not have as many entries as the pattern.

    Notes
    -----
    A product takes two flops for each entry; adjoint products need no copy. `matmat` multiplies all columns at once.

    Examples
    --------
    >>> import numpy as np, scipy.sparse
    >>> from implicitsolve.operators._sparse import SparseMatrix
    >>> A = SparseMatrix.from_scipy(scipy.sparse.diags_array([[-1.0, -1.0], [2.0, 2.0, 2.0]], offsets=[-1, 0]))
    >>> A @ np.ones(3)
    array([2., 1., 1.])
    """

    def __init__(self, data: Any, structure: Sparse) -> None:
        data = as_inexact(data, "data")
        if data.ndim < 1 or data.shape[-1] != structure.nnz:
            raise ValueError(
                f"SparseMatrix: `data` must have shape (..., {structure.nnz}), one for each entry of the pattern, "
                f"got {tuple(data.shape)}"
            )
        self.data: Array = data
        self.structure: Sparse = structure
        n, batch_shape = structure.unknowns, tuple(data.shape[:-1])
        parts = [_columns(row, structure) for row in self.flat_data]
        super().__init__(
            lambda v: _each(parts, v, adjoint=False),
            lambda w: _each(parts, w, adjoint=True),
            in_shape=n,
            batch_shape=batch_shape,
            dtype=data.dtype,
            take=(lambda indices: _taken(data, structure, indices)) if batch_shape else None,
        )

    @classmethod
    def from_scipy(cls, A: Any) -> SparseMatrix:
        """Return SciPy's sparse matrix or array `A` as a SparseMatrix of one system; duplicates are added up."""
        columns = scipy.sparse.csc_array(A, copy=not isinstance(A, scipy.sparse.csc_array | scipy.sparse.csc_matrix))
        if not columns.has_canonical_format:
            columns = columns.copy()
            columns.sum_duplicates()
        return cls(columns.data, Sparse(columns))

    @property
    def flat_data(self) -> Array:
        """Entries (B, nnz) of the flattened batch."""
        return self.data.reshape(math.prod(self.data.shape[:-1]), self.structure.nnz)

    def __repr__(self) -> str:
        """Shape, entries, batch and dtype."""
        batch = f", batch_shape={self.batch_shape}" if self.batch_shape else ""
        n, nnz = self.structure.unknowns, self.structure.nnz
        return f"<SparseMatrix {n}x{n}, {nnz} entries{batch}, dtype={self.dtype}>"

    def matmat(self, columns: Array) -> Array:
        """Return A V for the columns of V, shape ``batch_shape + (N, K)``, all at once."""
        if self.batch_shape:
            return super().matmat(columns)
        return self.to_sparse() @ np.asarray(columns)

    def to_sparse(self, format: str = "csc", *, system: int = 0) -> Any:
        """Return one system's matrix, by its place in the flattened batch, as a SciPy sparse array.

        In the default format, compressed columns, the array shares its entries with this matrix.
        """
        return _columns(self.flat_data[system], self.structure).asformat(format)

    def todense(self) -> Array:
        """Return the matrix, or matrices, with all its zeros."""
        n = self.structure.unknowns
        dense = np.zeros((*self.batch_shape, n, n), dtype=self.data.dtype)
        dense[..., self.structure.indices, self.structure.columns] = self.data
        return dense

    def diagonal(self) -> Array:
        """Return the main diagonal, ``(*batch, N)``."""
        on_it = np.flatnonzero(self.structure.indices == self.structure.columns)
        diagonal = np.zeros((*self.batch_shape, self.structure.unknowns), dtype=self.data.dtype)
        diagonal[..., self.structure.indices[on_it]] = self.data[..., on_it]
        return diagonal


def _columns(data: HostArray, structure: Sparse) -> Any:
    shape = structure.unknowns, structure.unknowns
    A = scipy.sparse.csc_array((data, structure.indices, structure.indptr), shape=shape)
    A.has_sorted_indices = A.has_canonical_format = True
    return A


def _taken(data: Array, structure: Sparse, indices: Indices) -> SparseMatrix:
    return SparseMatrix(data.reshape(math.prod(data.shape[:-1]), structure.nnz)[indices], structure)


def _each(parts: list[Any], v: Array, *, adjoint: bool) -> Array:
    """Products of each system's matrix, or its adjoint, with its vector."""
    flat = v.reshape(len(parts), v.shape[-1])
    with np.errstate(all="ignore"):
        products = [np.conj(A.T @ np.conj(row)) if adjoint else A @ row for A, row in zip(parts, flat)]
    return np.stack(products).reshape(v.shape) if products else v.copy()
