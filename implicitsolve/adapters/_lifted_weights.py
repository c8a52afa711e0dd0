"""The matrices of a lifted net, dense, sparse or block banded: checks, products with rows, and sums of outer products.

A batch is a tall matrix with a row for each system, so that a product with all of them is one of matrices. Gradients
have the structure of the matrix: entries that it does not store are no parameters.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse

from implicitsolve import BlockBandedMatrix
from implicitsolve.adapters._common import Array, HostArray, Matrix, array_namespace, check_array, from_host, to_host

FEW = 128  # entries of a block up to which SciPy's loops beat a batched product


def check_matrix(
    caller: str, name: str, value: Matrix, shape: tuple[int | None, int | None], like: Array, *, copy: bool = True
) -> Matrix:
    """Check a matrix of the library and dtype of `like`, and bring it, or a copy, to a form that `times` takes.

    None in `shape` is any size. A sparse matrix becomes a BSR or CSR array, its entries sorted and unique; the blocks
    outside a block-banded one become zero.
    """
    if isinstance(value, BlockBandedMatrix):
        check_array(caller, f"{name}.blocks", value.blocks, None, like)
        if value.batch_shape:
            raise ValueError(f"{caller}: `{name}` must be one matrix, got batch shape {value.batch_shape}")
        value = inside(array_namespace(like).asarray(value.blocks, copy=True), value)
    elif scipy.sparse.issparse(value):
        if not isinstance(like, np.ndarray):
            raise TypeError(f"{caller}: `{name}` must not be sparse, since the inputs are no NumPy array")
        if value.dtype != like.dtype:
            raise TypeError(f"{caller}: `{name}` must have the dtype of the inputs, {like.dtype}, got {value.dtype}")
        keeps_blocks = value.format == "bsr" and value.blocksize != (1, 1)
        form = scipy.sparse.bsr_array if keeps_blocks else scipy.sparse.csr_array
        found = form(value, copy=copy)
        if not found.has_canonical_format:
            found = found if copy else form(value, copy=True)
            found.sum_duplicates()
        value = found
    else:
        check_array(caller, name, value, None, like)
        value = array_namespace(value).asarray(value, copy=True) if copy else value
    got = tuple(value.shape)
    if len(got) != 2 or 0 in got or any(size not in (None, found) for size, found in zip(shape, got)):
        expected = ", ".join(axis if size is None else str(size) for axis, size in zip("mn", shape))
        raise ValueError(f"{caller}: `{name}` must have shape ({expected}), none of them 0, got {got}")
    return value


def inside(blocks: Array, A: BlockBandedMatrix) -> BlockBandedMatrix:
    """The matrix of A's structure with these blocks, which are changed: those outside the matrix become zero."""
    for j in () if A.periodic else range(A.lower + A.upper + 1):
        blocks[: max(0, A.lower - j), j, :, :] = 0.0
        blocks[max(0, A.length + min(0, A.lower - j)) :, j, :, :] = 0.0
    return BlockBandedMatrix(blocks, lower=A.lower, upper=A.upper, periodic=A.periodic)


def times(A: Matrix, x: Array, *, adjoint: bool = False) -> Array:
    """A x, or A^T x, for every row of x (..., n)."""
    xp, lead = array_namespace(x), x.shape[:-1]
    rows = xp.reshape(x, (math.prod(lead), x.shape[-1]))
    if isinstance(A, BlockBandedMatrix):
        product = A.rmatmat if adjoint else A.matmat
        found = xp.matrix_transpose(product(xp.matrix_transpose(rows)))
    elif not scipy.sparse.issparse(A):
        found = xp.matmul(rows, A if adjoint else xp.matrix_transpose(A))
    elif A.format == "bsr" and math.prod(A.blocksize) > FEW:
        found = _block_times(A, rows, adjoint)
    else:
        A = A.T if adjoint else A
        found = A @ rows[0] if len(rows) == 1 else np.ascontiguousarray((A @ rows.T).T)
    return xp.reshape(found, (*lead, found.shape[-1] if found.ndim > 1 else len(found)))


def _block_times(A: Matrix, x: HostArray, adjoint: bool) -> HostArray:
    """The same for large blocks, by a batched product and sums of its parts."""
    (r, c), rows, columns = A.blocksize, block_rows(A), A.indices
    if adjoint:
        products, owners, count = np.matmul(_stacked(x, r)[rows], A.data), columns, A.shape[1] // c
    else:
        products, owners, count = np.matmul(_stacked(x, c)[columns], A.data.transpose(0, 2, 1)), rows, A.shape[0] // r
    order = np.argsort(owners, kind="stable")
    starts = np.flatnonzero(np.diff(owners[order], prepend=-1))
    if len(starts) < len(owners):
        products, owners = np.add.reduceat(products[order], starts, axis=0), owners[order][starts]
    out = np.zeros((len(x), count, products.shape[-1]), products.dtype)
    out[:, owners] = products.transpose(1, 0, 2)
    return out.reshape(len(x), -1)


def outer(A: Matrix, y: Array, x: Array) -> Any:
    """Sum of y x^T over the rows of (..., m) and (..., n), where A stores entries, in A's own structure."""
    xp = array_namespace(x)
    y, x = (xp.reshape(rows, (-1, rows.shape[-1])) for rows in (y, x))
    if isinstance(A, BlockBandedMatrix):
        k, T, blocks = A.block_size, A.length, xp.zeros_like(A.blocks)
        left, right = xp.permute_dims(xp.reshape(y, (-1, T, k)), (1, 2, 0)), _stacked(x, k)
        for j in range(A.structure.width):
            columns = from_host((np.arange(T) + j - A.lower) % T, x)
            blocks[:, j, :, :] = xp.matmul(left, xp.take(right, columns, axis=0))
        return inside(blocks, A)
    if not scipy.sparse.issparse(A):
        return xp.matmul(xp.matrix_transpose(y), x)
    (r, c), rows, data = A.blocksize if A.format == "bsr" else (1, 1), block_rows(A), np.empty_like(A.data)
    blocks, left, right = data.reshape(-1, r, c), _stacked(y, r), _stacked(x, c)
    step = max(1, 2**18 // (len(x) * max(r, c)))  # blocks at once, whose temporaries stay in the cache
    for start in range(0, len(blocks), step):
        part = slice(start, start + step)
        np.matmul(left[rows[part]].transpose(0, 2, 1), right[A.indices[part]], out=blocks[part])
    return type(A)((data, A.indices.copy(), A.indptr.copy()), shape=A.shape)


def astype(A: Matrix, dtype: Any) -> Matrix:
    """The matrix in another floating-point dtype."""
    is_array = not isinstance(A, BlockBandedMatrix) and not scipy.sparse.issparse(A)
    return array_namespace(A).astype(A, dtype) if is_array else A.astype(dtype)


def entries(A: Matrix) -> Any:
    """The entries of a matrix that are not zero, on the host, as a new CSR array."""
    if isinstance(A, BlockBandedMatrix):
        A = BlockBandedMatrix(to_host(A.blocks), lower=A.lower, upper=A.upper, periodic=A.periodic).to_sparse("csr")
    found = scipy.sparse.csr_array(A if scipy.sparse.issparse(A) else to_host(A), copy=True)
    found.sum_duplicates()
    found.eliminate_zeros()
    return found


def block_rows(A: Matrix) -> HostArray:
    """Block row of each block of a BSR array, or row of each entry of a CSR array."""
    return np.repeat(np.arange(len(A.indptr) - 1), np.diff(A.indptr))


def _stacked(x: Array, size: int) -> Array:
    """Rows (B, N) as N / size stacked matrices (B, size)."""
    xp = array_namespace(x)
    return xp.permute_dims(xp.reshape(x, (x.shape[0], -1, size)), (1, 0, 2))
