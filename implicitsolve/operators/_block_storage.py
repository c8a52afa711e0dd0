"""The storage of block-banded matrices: products with the blocks, and conversion to and from other forms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse

from implicitsolve._arrays.host import index_dtype, to_host
from implicitsolve._arrays.namespace import array_namespace, is_complex
from implicitsolve._typing import Array, ArrayT, HostArray
from implicitsolve.stopping import check_choice
from implicitsolve.structure import BlockBanded

FEW_COLUMNS = 4  # with as many right-hand sides or more, products of dense blocks beat SciPy's loops (if k > 1)

WIDE = 8  # a band of more block diagonals is scanned for those that are zero


def spans(length: int, offset: int, periodic: bool) -> Iterator[tuple[slice, slice]]:
    """Block rows t with a block in column t + offset, and those columns; two pairs of slices in a periodic matrix."""
    first, last = max(0, -offset), min(length, length - offset)
    if first < last:
        yield slice(first, last), slice(first + offset, last + offset)
    if periodic and offset > 0:
        yield slice(length - offset, length), slice(0, offset)
    elif periodic and offset < 0:
        yield slice(0, -offset), slice(length + offset, length)


def transpose_blocks(blocks: Array, lower: int, periodic: bool, *, conjugate: bool) -> Array:
    """Blocks of the transpose or the adjoint: lower and upper block diagonals are exchanged."""
    xp = array_namespace(blocks)
    length, width = blocks.shape[-4:-2]
    out = xp.zeros_like(blocks)
    for j in range(width):
        for rows, columns in spans(length, j - lower, periodic):
            out[..., columns, width - 1 - j, :, :] = xp.matrix_transpose(blocks[..., rows, j, :, :])
    return xp.conj(out) if conjugate and is_complex(out) else out


class Products:
    """Products with a block-banded matrix and its adjoint, on columns (*batch, T, k, K)."""

    def __init__(self, blocks: Any, lower: int, periodic: bool) -> None:
        self.blocks = blocks
        self.lower = lower
        self.periodic = periodic
        self._sparse: Any = None
        self._adjoint: Products | None = None

    def times(self, x: Any) -> Array:
        if self._use_sparse(x):
            if self._sparse is None:
                self._sparse = _block_diagonal_sparse(self.blocks, self.lower, self.periodic)
            return _sparse_times(self._sparse, x)
        return self._by_diagonals(x, adjoint=False)

    def adjoint_times(self, x: Any) -> Array:
        if self._use_sparse(x):
            if self._adjoint is None:
                upper = self.blocks.shape[-3] - 1 - self.lower
                adjoint = transpose_blocks(self.blocks, self.lower, self.periodic, conjugate=True)
                self._adjoint = Products(adjoint, upper, self.periodic)
            return self._adjoint.times(x)
        return self._by_diagonals(x, adjoint=True)

    def _by_diagonals(self, x: Array, *, adjoint: bool) -> Array:
        """A x or A^H x, a batched product of dense blocks for each block diagonal."""
        xp = array_namespace(self.blocks, x)
        length, width = self.blocks.shape[-4:-2]
        y = xp.zeros(x.shape, dtype=xp.result_type(self.blocks.dtype, x.dtype), device=x.device)
        with np.errstate(all="ignore"):  # entries that are not finite are the solver's to report
            for j in range(width):
                for rows, columns in spans(length, j - self.lower, self.periodic):
                    block = self.blocks[..., rows, j, :, :]
                    if adjoint:
                        block = xp.matrix_transpose(xp.conj(block) if is_complex(block) else block)
                        rows, columns = columns, rows
                    y[..., rows, :, :] += xp.matmul(block, x[..., columns, :, :])
        return y

    def _use_sparse(self, x: Array) -> bool:
        is_few = x.shape[-1] < FEW_COLUMNS or self.blocks.shape[-1] == 1
        return is_few and isinstance(self.blocks, np.ndarray) and isinstance(x, np.ndarray) and x.size > 0


def _sparse_times(A: Any, x: HostArray) -> HostArray:
    if x.dtype.kind == "c" and A.dtype.kind != "c":  # not by way of a complex copy of A
        parts = np.ascontiguousarray(x)[..., None].view(x.dtype.char.lower()).reshape(A.shape[1], -1)
        y = np.ascontiguousarray(A @ parts)
        return y.view(np.result_type(y.dtype, np.complex64)).reshape(x.shape)
    vectors = x.reshape(A.shape[1]) if x.shape[-1] == 1 else x.reshape(A.shape[1], -1)
    return (A @ vectors).reshape(x.shape)


def _block_diagonal_sparse(blocks: HostArray, lower: int, periodic: bool) -> Any:
    """SciPy's matrix of the whole batch; blocks are copied only to clear those outside it or to omit zero diagonals."""
    length, width, k = blocks.shape[-4:-1]
    data = blocks.reshape(-1, length, width, k, k)
    if not periodic:
        data = without_outside(data, lower)
    offsets = np.arange(width) - lower
    if width > WIDE:
        used = np.any(data, axis=(0, 1, 3, 4))
        used[lower] = True
        if 2 * np.count_nonzero(used) < width:
            data, offsets = data[:, :, used], offsets[used]
    width, rows = offsets.size, data.shape[0] * length
    index = index_dtype(rows * width * k)
    starts = length * np.arange(data.shape[0], dtype=index)[:, None]
    columns = np.empty((data.shape[0], length, width), dtype=index)
    for j, offset in enumerate(offsets):
        block = np.arange(offset, offset + length, dtype=index)
        # A block outside the matrix is zero; it is stored in the nearest column, which is in the row's band.
        columns[:, :, j] = starts + (block % length if periodic else np.clip(block, 0, length - 1))
    pointers = np.arange(0, rows * width + 1, width, dtype=index)
    shape = (rows * k, rows * k)
    if k == 1:
        return scipy.sparse.csr_array((data.reshape(-1), columns.reshape(-1), pointers), shape=shape)
    return scipy.sparse.bsr_array((data.reshape(-1, k, k), columns.reshape(-1), pointers), shape=shape)


def without_outside(blocks: ArrayT, lower: int) -> ArrayT:
    """Blocks with zeros where block t + j - lower is outside 0..T-1; a copy only where one is not zero."""
    xp = array_namespace(blocks)
    length, width = blocks.shape[-4:-2]
    outside = [(slice(0, min(lower - j, length)), j) for j in range(lower)]
    outside += [(slice(max(0, length - (j - lower)), length), j) for j in range(lower + 1, width)]
    if any(bool(xp.any(blocks[..., rows, j, :, :] != 0)) for rows, j in outside):
        blocks = xp.asarray(blocks, copy=True)
        for rows, j in outside:
            blocks[..., rows, j, :, :] = 0.0
    return blocks


def to_dense(blocks: Array, structure: BlockBanded) -> Array:
    xp = array_namespace(blocks)
    batch, (length, k) = blocks.shape[:-4], (blocks.shape[-4], blocks.shape[-1])
    dense = xp.zeros((*batch, length * length, k, k), dtype=blocks.dtype, device=blocks.device)
    for rows, along, j in _diagonals(length, structure):
        dense[..., along, :, :] = blocks[..., rows, j, :, :]
    dense = _swap(xp.reshape(dense, (*batch, length, length, k, k)), len(batch))
    return xp.reshape(dense, (*batch, length * k, length * k))


def from_dense(A: Array, structure: BlockBanded) -> Array:
    xp = array_namespace(A)
    if A.ndim < 2 or A.shape[-1] != A.shape[-2]:
        raise ValueError(f"from_dense: `A` must have shape (..., N, N), got {tuple(A.shape)}")
    length, k, batch = structure.length(A.shape[-1]), structure.block_size, A.shape[:-2]
    dense = _swap(xp.reshape(A, (*batch, length, k, length, k)), len(batch))
    dense = xp.asarray(xp.reshape(dense, (*batch, length * length, k, k)), copy=True)
    blocks = xp.zeros((*batch, length, structure.width, k, k), dtype=A.dtype, device=A.device)
    for rows, along, j in _diagonals(length, structure):
        blocks[..., rows, j, :, :] = dense[..., along, :, :]
        dense[..., along, :, :] = 0.0
    _check_nothing_lost("from_dense", bool(xp.any(dense != 0)), structure)
    return blocks


def _diagonals(length: int, structure: BlockBanded) -> list[tuple[slice, slice, int]]:
    """Rows of each block diagonal j, and the positions of its blocks among the T x T blocks, row by row."""
    return [
        (rows, slice(rows.start * length + columns.start, (rows.stop - 1) * length + columns.stop, length + 1), j)
        for j in range(structure.width)
        for rows, columns in spans(length, j - structure.lower, structure.periodic)
    ]


def _swap(x: Array, lead: int) -> Array:
    axes = (*range(lead), lead, lead + 2, lead + 1, lead + 3)
    return array_namespace(x).permute_dims(x, axes)


def to_sparse(blocks: Array, structure: BlockBanded, format: str) -> Any:
    check_choice("to_sparse", "format", format, ("bsr", "csr", "csc"))
    if int(np.prod(blocks.shape[:-4])) != 1:
        raise ValueError(f"to_sparse: the matrix must be one system, got batch shape {tuple(blocks.shape[:-4])}")
    band = to_host(array_namespace(blocks).reshape(blocks, blocks.shape[-4:]))
    length, width, k = band.shape[:3]
    columns = np.arange(length)[:, None] + np.arange(width) - structure.lower
    columns = columns % length if structure.periodic else columns
    inside = (columns >= 0) & (columns < length)
    pointers = np.concatenate([[0], np.cumsum(np.sum(inside, axis=1))])
    shape = (length * k, length * k)
    A = scipy.sparse.bsr_array((band[inside], columns[inside], pointers), shape=shape)
    A.sort_indices()
    return A.asformat(format)


def from_sparse(A: Any, structure: BlockBanded) -> HostArray:
    if not scipy.sparse.issparse(A):
        raise TypeError(f"from_sparse: `A` must be a SciPy sparse matrix, got {type(A).__name__}")
    if A.ndim != 2 or A.shape[0] != A.shape[1]:
        raise ValueError(f"from_sparse: `A` must be square, got shape {A.shape}")
    length, k = structure.length(A.shape[0]), structure.block_size
    bsr = scipy.sparse.bsr_array(A.tobsr(blocksize=(k, k)), copy=True)
    bsr.sum_duplicates()
    rows = np.repeat(np.arange(length), np.diff(bsr.indptr))
    j = bsr.indices - rows + structure.lower
    if structure.periodic:
        j %= length
    inside = (j >= 0) & (j < structure.width)
    _check_nothing_lost("from_sparse", bool(np.any(bsr.data[~inside] != 0)), structure)
    dtype = bsr.dtype if bsr.dtype.kind in "fc" else np.float64
    blocks = np.zeros((length, structure.width, k, k), dtype=dtype)
    blocks[rows[inside], j[inside]] = bsr.data[inside]
    return blocks


def from_banded(l_and_u: tuple[int, int], ab: Array) -> Array:
    """Return the blocks, of one entry, of a matrix in LAPACK's band storage."""
    (kl, ku), xp = l_and_u, array_namespace(ab)
    width = kl + ku + 1
    if ab.ndim < 2 or ab.shape[-2] != width:
        raise ValueError(f"from_banded: `ab` must have shape (..., {width}, N), got {tuple(ab.shape)}")
    blocks = xp.zeros((*ab.shape[:-2], ab.shape[-1], width, 1, 1), dtype=ab.dtype, device=ab.device)
    for j in range(width):
        for rows, columns in spans(ab.shape[-1], j - kl, False):
            blocks[..., rows, j, 0, 0] = ab[..., width - 1 - j, columns]
    return blocks


def _check_nothing_lost(owner: str, is_lost: bool, structure: BlockBanded) -> None:
    if is_lost:
        raise ValueError(f"{owner}: the matrix has entries outside {structure}")
