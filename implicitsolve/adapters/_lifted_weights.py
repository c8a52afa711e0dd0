"""The matrices of a lifted net, dense, sparse or block banded: products with rows, and sums of outer products.

A batch is a tall matrix with a row for each system, so that a product with all of them is one of matrices. What comes
back as a gradient has the structure of the matrix: entries that it does not store are no parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import scipy.sparse

from implicitsolve import BlockBandedMatrix
from implicitsolve.adapters._common import (
    Array,
    ByFields,
    DType,
    Matrix,
    array_namespace,
    check_array,
    from_host,
    to_host,
)

FEW = 128  # entries of a block up to which SciPy's loops beat a batched product


class Weight(Protocol):
    """A matrix W, m x n, in the form in which it multiplies."""

    @property
    def value(self) -> Any:
        """W in the user's form."""
        ...

    def times(self, x: Array) -> Array:
        """Return W x for every row x of an array (B, n), as rows (B, m)."""
        ...

    def adjoint_times(self, y: Array) -> Array:
        """Return W^T y for every row y of an array (B, m), as rows (B, n)."""
        ...

    def outer(self, y: Array, x: Array) -> Any:
        """Sum of y x^T over the rows of (B, m) and (B, n), where W stores entries, in W's own structure."""
        ...

    def astype(self, dtype: DType) -> Weight:
        """W in another floating-point dtype."""
        ...


def weight(
    caller: str, name: str, value: Matrix, shape: tuple[int | None, int | None], like: Array, *, copy: bool = True
) -> Weight:
    """Check a matrix, of the library and dtype of `like`, and wrap it, or a copy; None in `shape` is any size."""
    if isinstance(value, BlockBandedMatrix):
        check_array(caller, f"{name}.blocks", value.blocks, None, like)
        _check_shape(caller, name, value.shape, shape)
        if value.batch_shape:
            raise ValueError(f"{caller}: `{name}` must be one matrix, got batch shape {value.batch_shape}")
        return Banded(_clean(value))
    if scipy.sparse.issparse(value):
        if not isinstance(like, np.ndarray):
            raise TypeError(f"{caller}: `{name}` must not be sparse, since the inputs are no NumPy array")
        if value.dtype != like.dtype:
            raise TypeError(f"{caller}: `{name}` must have the dtype of the inputs, {like.dtype}, got {value.dtype}")
        _check_shape(caller, name, value.shape, shape)
        return sparse(value, copy=copy)
    value = check_array(caller, name, value, None, like)
    _check_shape(caller, name, tuple(value.shape), shape)
    return Dense(array_namespace(value).asarray(value, copy=True) if copy else value)


def sparse(value: Matrix, *, copy: bool) -> Weight:
    """Wrap a sparse matrix: BSR with large blocks directly, BSR with small ones and everything else by SciPy."""
    keeps_blocks = value.format == "bsr" and value.blocksize != (1, 1)
    form = scipy.sparse.bsr_array if keeps_blocks else scipy.sparse.csr_array
    matrix = form(value, copy=copy)
    if not matrix.has_canonical_format:
        matrix = matrix if copy else form(value, copy=True)
        matrix.sum_duplicates()
    return Blocks(matrix) if keeps_blocks else Sparse(matrix)


def _check_shape(caller: str, name: str, got: tuple[int, ...], expected: tuple[int | None, int | None]) -> None:
    if len(got) != 2 or 0 in got or any(size not in (None, found) for size, found in zip(expected, got)):
        wanted = ", ".join(axis if size is None else str(size) for axis, size in zip("mn", expected))
        raise ValueError(f"{caller}: `{name}` must have shape ({wanted}), none of them 0, got {got}")


@dataclass(frozen=True, eq=False)
class Dense:
    """An array (m, n)."""

    value: Array

    def times(self, x: Array) -> Array:
        xp = array_namespace(x)
        return xp.matmul(x, xp.matrix_transpose(self.value))

    def adjoint_times(self, y: Array) -> Array:
        return array_namespace(y).matmul(y, self.value)

    def outer(self, y: Array, x: Array) -> Array:
        xp = array_namespace(x)
        return xp.matmul(xp.matrix_transpose(y), x)

    def astype(self, dtype: DType) -> Dense:
        return Dense(array_namespace(self.value).astype(self.value, dtype))


@dataclass(frozen=True, eq=False)
class Sparse:
    """A CSR array, its entries sorted and unique."""

    value: Matrix

    def times(self, x: Array) -> Array:
        return sparse_times(self.value, x)

    def adjoint_times(self, y: Array) -> Array:
        return sparse_times(self.value.T, y)

    def outer(self, y: Array, x: Array) -> Any:
        A = self.value
        rows = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
        columns_y, columns_x = np.ascontiguousarray(y.T), np.ascontiguousarray(x.T)
        data = np.empty_like(A.data)
        step = max(1, 2**18 // max(1, len(x)))  # entries at once, whose temporaries stay in the cache
        for start in range(0, len(data), step):
            part = slice(start, start + step)
            data[part] = np.einsum("eb,eb->e", columns_y[rows[part]], columns_x[A.indices[part]])
        return scipy.sparse.csr_array((data, A.indices.copy(), A.indptr.copy()), shape=A.shape)

    def astype(self, dtype: DType) -> Sparse:
        return Sparse(self.value.astype(dtype))


@dataclass(frozen=True, eq=False)
class Blocks(ByFields):
    """A BSR array, its blocks sorted and unique: products of large blocks are batched, those of small ones SciPy's."""

    value: Matrix

    @cached_property
    def rows(self) -> npt.NDArray[np.intp]:
        """Block row of each block."""
        return np.repeat(np.arange(len(self.value.indptr) - 1), np.diff(self.value.indptr))

    @cached_property
    def by_column(self) -> npt.NDArray[np.intp]:
        """Order of the blocks by columns."""
        return np.argsort(self.value.indices, kind="stable")

    def times(self, x: Array) -> Array:
        A = self.value
        r, c = A.blocksize
        if r * c <= FEW:
            return sparse_times(A, x)
        products = np.matmul(_stacked(x, c)[A.indices], A.data.transpose(0, 2, 1))
        return _sums(products, self.rows, A.shape[0] // r)

    def adjoint_times(self, y: Array) -> Array:
        A = self.value
        r, c = A.blocksize
        if r * c <= FEW:
            return sparse_times(A.T, y)
        products = np.matmul(_stacked(y, r)[self.rows], A.data)
        order = self.by_column
        return _sums(products[order], A.indices[order], A.shape[1] // c)

    def outer(self, y: Array, x: Array) -> Any:
        A = self.value
        r, c = A.blocksize
        data = np.matmul(_stacked(y, r)[self.rows].transpose(0, 2, 1), _stacked(x, c)[A.indices])
        return scipy.sparse.bsr_array((data, A.indices.copy(), A.indptr.copy()), shape=A.shape)

    def astype(self, dtype: DType) -> Blocks:
        return Blocks(self.value.astype(dtype))


@dataclass(frozen=True, eq=False)
class Banded(ByFields):
    """A block-banded matrix whose blocks outside the matrix are zero: a batched product for each block diagonal."""

    value: BlockBandedMatrix

    @cached_property
    def spans(self) -> list[tuple[int, slice, slice]]:
        """Block diagonals that hold more than zeros, in at most two pieces: rows, and their columns."""
        A, T = self.value, self.value.length
        used = to_host(array_namespace(A.blocks).any(A.blocks != 0, axis=(0, 2, 3)))
        found: list[tuple[int, slice, slice]] = []
        for j in np.flatnonzero(used).tolist():
            shift = j - A.lower
            for offset in (shift, shift - T, shift + T):  # a periodic diagonal continues at the other end
                first, last = max(0, -offset), min(T, T - offset)
                if first < last and (A.periodic or offset == shift):
                    found.append((j, slice(first, last), slice(first + offset, last + offset)))
        return found

    def times(self, x: Array) -> Array:
        xp = array_namespace(x)
        if self.is_small(x):
            return xp.matrix_transpose(self.value.matmat(xp.matrix_transpose(x)))
        blocks, columns = self.value.blocks, self.stacked(x)
        total = xp.zeros_like(columns)
        for j, row, column in self.spans:
            total[row, :, :] += xp.matmul(columns[column, :, :], xp.matrix_transpose(blocks[row, j, :, :]))
        return self.flat(total)

    def adjoint_times(self, y: Array) -> Array:
        xp = array_namespace(y)
        if self.is_small(y):
            return xp.matrix_transpose(self.value.rmatmat(xp.matrix_transpose(y)))
        blocks, rows = self.value.blocks, self.stacked(y)
        total = xp.zeros_like(rows)
        for j, row, column in self.spans:
            total[column, :, :] += xp.matmul(rows[row, :, :], blocks[row, j, :, :])
        return self.flat(total)

    def is_small(self, x: Array) -> bool:
        """Whether SciPy's product is faster, which the matrix has."""
        return isinstance(x, np.ndarray) and self.value.block_size**2 <= FEW

    def stacked(self, x: Array) -> Array:
        """Rows (B, T k) as T stacked matrices (B, k)."""
        xp = array_namespace(x)
        return xp.permute_dims(xp.reshape(x, (x.shape[0], self.value.length, self.value.block_size)), (1, 0, 2))

    def flat(self, stacked: Array) -> Array:
        xp, (T, B, k) = array_namespace(stacked), stacked.shape
        return xp.reshape(xp.permute_dims(stacked, (1, 0, 2)), (B, T * k))

    def outer(self, y: Array, x: Array) -> BlockBandedMatrix:
        xp, A, T = array_namespace(x), self.value, self.value.length
        left, right = xp.matrix_transpose(self.stacked(y)), self.stacked(x)
        blocks = xp.empty_like(A.blocks)
        for j in range(A.structure.width):
            columns = from_host((np.arange(T) + j - A.lower) % T, x)
            blocks[:, j, :, :] = xp.matmul(left, xp.take(right, columns, axis=0))
        return banded(blocks, A)

    def astype(self, dtype: DType) -> Banded:
        return Banded(self.value.astype(dtype))


def sparse_times(A: Matrix, x: Array) -> Array:
    """Return A x for every row of x by SciPy's product."""
    if len(x) == 1:
        return (A @ x[0])[None]
    return np.ascontiguousarray((A @ x.T).T)


def _stacked(x: Array, size: int) -> Array:
    """Rows (B, N) as N / size stacked matrices (B, size)."""
    return x.reshape(len(x), -1, size).transpose(1, 0, 2)


def _sums(products: Array, owners: npt.NDArray[Any], count: int) -> Array:
    """Rows (B, count * size): block i is the sum of the products (B, size) that i owns; owners are sorted."""
    B, size = products.shape[1:]
    out = np.zeros((B, count, size), dtype=products.dtype)
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    if len(starts) < len(owners):
        products = np.add.reduceat(products, starts, axis=0)
    out[:, owners[starts]] = products.transpose(1, 0, 2)
    return out.reshape(B, -1)


def _clean(A: BlockBandedMatrix) -> BlockBandedMatrix:
    """Return a copy with zeros in the place of blocks outside the matrix."""
    return banded(array_namespace(A.blocks).asarray(A.blocks, copy=True), A)


def banded(blocks: Array, A: BlockBandedMatrix) -> BlockBandedMatrix:
    """Return the matrix of A's structure with these blocks, which are changed: those outside become zero."""
    lower, upper, T = A.lower, A.upper, A.length
    if not A.periodic:
        for j in range(lower):
            blocks[: min(lower - j, T), j, :, :] = 0.0
        for j in range(lower + 1, lower + upper + 1):
            blocks[max(0, T + lower - j) :, j, :, :] = 0.0
    return BlockBandedMatrix(blocks, lower=lower, upper=upper, periodic=A.periodic)
