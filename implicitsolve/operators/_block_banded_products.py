"""Products with block-banded matrices: SciPy's compiled ones for NumPy, one batched product an offset elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse

from implicitsolve._namespace import array_namespace, extension, is_complex
from implicitsolve._typing import Array

FEW_COLUMNS = 4  # with as many right-hand sides or more, products of dense blocks beat SciPy's loops (if k > 1)

WIDE = 8  # a band with more block diagonals is looked through for those that hold zeros alone


def spans(length: int, offset: int, periodic: bool) -> Iterator[tuple[slice, slice]]:
    """Block rows t that have a block in column t + offset, and those columns; in a circle they come in two pieces."""
    first, last = max(0, -offset), min(length, length - offset)
    if first < last:
        yield slice(first, last), slice(first + offset, last + offset)
    if periodic and offset > 0:
        yield slice(length - offset, length), slice(0, offset)
    elif periodic and offset < 0:
        yield slice(0, -offset), slice(length + offset, length)


def transposed(blocks: Array, lower: int, periodic: bool, *, conjugate: bool) -> Array:
    """Blocks of the transpose, or the adjoint, whose bands have changed places."""
    own = extension(blocks, "band_transposed")
    if own is not None:
        return own(blocks, lower, periodic, conjugate=conjugate)
    xp = array_namespace(blocks)
    length, width = blocks.shape[-4:-2]
    out = xp.zeros_like(blocks)
    for j in range(width):
        for rows, columns in spans(length, j - lower, periodic):
            out[..., columns, width - 1 - j, :, :] = xp.matrix_transpose(blocks[..., rows, j, :, :])
    return xp.conj(out) if conjugate and is_complex(out) else out


class Products:
    """Products with a block-banded matrix and its adjoint, on columns (*batch, T, k, K).

    What SciPy's products need (4 bytes a block; and the adjoint's blocks, once an adjoint product was asked for) is
    prepared when first used, and kept.
    """

    def __init__(self, blocks: Array, lower: int, periodic: bool) -> None:
        self.blocks = blocks
        self.lower = lower
        self.periodic = periodic
        own = extension(blocks, "BandProducts")
        self._own: Any = None if own is None else own(blocks, lower, periodic)
        self._sparse: Any = None
        self._adjoint: Products | None = None

    def times(self, x: Array) -> Array:
        """Return A x."""
        if self._use_sparse(x):
            if self._sparse is None:
                self._sparse = _block_diagonal_sparse(self.blocks, self.lower, self.periodic)
            return _sparse_times(self._sparse, x)
        if self._own is not None:
            return self._own.times(x)
        xp = array_namespace(self.blocks, x)
        length, width = self.blocks.shape[-4:-2]
        y = xp.zeros(x.shape, dtype=xp.result_type(self.blocks.dtype, x.dtype), device=x.device)
        with np.errstate(all="ignore"):  # entries that are not finite are the solver's to report
            for j in range(width):
                for rows, columns in spans(length, j - self.lower, self.periodic):
                    y[..., rows, :, :] += xp.matmul(self.blocks[..., rows, j, :, :], x[..., columns, :, :])
        return y

    def adjoint_times(self, x: Array) -> Array:
        """Return A^H x."""
        if self._use_sparse(x):
            if self._adjoint is None:
                upper = self.blocks.shape[-3] - 1 - self.lower
                adjoint = transposed(self.blocks, self.lower, self.periodic, conjugate=True)
                self._adjoint = Products(adjoint, upper, self.periodic)
            return self._adjoint.times(x)
        if self._own is not None:
            return self._own.adjoint_times(x)
        xp = array_namespace(self.blocks, x)
        length, width = self.blocks.shape[-4:-2]
        y = xp.zeros(x.shape, dtype=xp.result_type(self.blocks.dtype, x.dtype), device=x.device)
        with np.errstate(all="ignore"):
            for j in range(width):
                for rows, columns in spans(length, j - self.lower, self.periodic):
                    block = xp.matrix_transpose(self.blocks[..., rows, j, :, :])
                    block = xp.conj(block) if is_complex(block) else block
                    y[..., columns, :, :] += xp.matmul(block, x[..., rows, :, :])
        return y

    def _use_sparse(self, x: Array) -> bool:
        is_few = x.shape[-1] < FEW_COLUMNS or self.blocks.shape[-1] == 1
        return is_few and isinstance(self.blocks, np.ndarray) and isinstance(x, np.ndarray) and x.size > 0


def _sparse_times(A: Any, x: Array) -> Array:
    if x.dtype.kind == "c" and A.dtype.kind != "c":  # not by way of a complex copy of A
        parts = np.ascontiguousarray(x)[..., None].view(x.real.dtype).reshape(A.shape[1], -1)
        y = np.ascontiguousarray(A @ parts)
        return y.view(np.result_type(y.dtype, np.complex64)).reshape(x.shape)
    vectors = x.reshape(A.shape[1]) if x.shape[-1] == 1 else x.reshape(A.shape[1], -1)
    return (A @ vectors).reshape(x.shape)


def _block_diagonal_sparse(blocks: Array, lower: int, periodic: bool) -> Any:
    """SciPy's matrix of the whole batch.

    It shares the blocks, unless some outside the matrix are not zero, or most block diagonals hold zeros alone.
    """
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
    index = np.int32 if rows * width * k < np.iinfo(np.int32).max else np.int64
    starts = length * np.arange(data.shape[0], dtype=index)[:, None]
    columns = np.empty((data.shape[0], length, width), dtype=index)
    for j, offset in enumerate(offsets):
        block = np.arange(offset, offset + length, dtype=index)
        # A block outside is zero, and stands in the nearest column, which the row's band holds.
        columns[:, :, j] = starts + (block % length if periodic else np.clip(block, 0, length - 1))
    pointers = np.arange(0, rows * width + 1, width, dtype=index)
    shape = (rows * k, rows * k)
    if k == 1:
        return scipy.sparse.csr_array((data.reshape(-1), columns.reshape(-1), pointers), shape=shape)
    return scipy.sparse.bsr_array((data.reshape(-1, k, k), columns.reshape(-1), pointers), shape=shape)


def without_outside(blocks: Array, lower: int) -> Array:
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
