"""Places of weights in a large matrix: building the matrix from them, and summing its gradient over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse

from implicitsolve import BlockBandedMatrix
from implicitsolve.adapters._common import Array, array_namespace, zeros

Places: TypeAlias = dict[str, npt.NDArray[Any]]
"""Where each weight stands in a matrix: rows and columns (places, 2) of its upper left corners."""


def placed(caller: str, weights: Mapping[str, Array], places: Places, shape: tuple[int, int], format: str) -> Any:
    """Return the matrix with the weights in their places, zero elsewhere."""
    if format == "dense":
        return _dense(weights, places, shape)
    if format == "block-banded":
        return _block_banded(caller, weights, places, shape)
    return _sparse(weights, places, shape)


def _dense(weights: Mapping[str, Array], places: Places, shape: tuple[int, int]) -> Array:
    matrix = zeros(shape, next(iter(weights.values())))
    for name, corners in places.items():
        r, c = weights[name].shape
        for i, j in corners.tolist():
            matrix[i : i + r, j : j + c] = weights[name]
    return matrix


def _sparse(weights: Mapping[str, Array], places: Places, shape: tuple[int, int]) -> Any:
    """BSR where all blocks have one shape and stand on its grid, else CSR."""
    used = {name: weights[name] for name, corners in places.items() if len(corners)}
    if not used:
        return scipy.sparse.csr_array(shape, dtype=next(iter(weights.values())).dtype)
    corners = np.concatenate([places[name] for name in used])
    if _is_grid(used, corners, shape):
        r, c = next(iter(used.values())).shape
        rows, columns = corners[:, 0] // r, corners[:, 1] // c
        order = np.lexsort((columns, rows))
        stack = np.concatenate([np.broadcast_to(used[name], (len(places[name]), r, c)) for name in used])
        pointers = np.searchsorted(rows[order], np.arange(shape[0] // r + 1))
        return scipy.sparse.bsr_array((stack[order], columns[order], pointers), shape=shape)
    data, rows, columns = (np.concatenate(parts) for parts in zip(*(_entries(v, places[n]) for n, v in used.items())))
    return scipy.sparse.csr_array((data, (rows, columns)), shape=shape)


def _entries(value: Array, corners: npt.NDArray[Any]) -> tuple[Array, Array, Array]:
    """Entries of copies of a block at these corners, and their rows and columns."""
    r, c = value.shape
    rows = corners[:, 0, None, None] + np.arange(r)[:, None]
    columns = corners[:, 1, None, None] + np.arange(c)
    data, rows, columns = (np.broadcast_to(part, (len(corners), r, c)).ravel() for part in (value, rows, columns))
    return data, rows, columns


def _is_grid(weights: Mapping[str, Array], corners: npt.NDArray[Any], shape: tuple[int, int]) -> bool:
    shapes = {tuple(value.shape) for value in weights.values()}
    block = np.array(next(iter(shapes)))
    return len(shapes) == 1 and not (corners % block).any() and not (np.array(shape) % block).any()


def _block_banded(caller: str, weights: Mapping[str, Array], places: Places, shape: tuple[int, int]) -> Any:
    like = next(iter(weights.values()))
    used = {name: weights[name] for name, corners in places.items() if len(corners)}
    corners = np.concatenate([places[name] for name in used]) if used else np.zeros((0, 2), dtype=np.intp)
    k = next(iter(used.values())).shape[0] if used else shape[0]
    if used and not (next(iter(used.values())).shape == (k, k) and _is_grid(used, corners, shape)):
        sizes = ", ".join(str(tuple(value.shape)) for value in used.values())
        raise ValueError(f'{caller}: `format` must not be "block-banded", since A has blocks of shapes {sizes}')
    offsets = (corners[:, 1] - corners[:, 0]) // k
    lower, upper = max(0, -int(offsets.min(initial=0))), max(0, int(offsets.max(initial=0)))
    blocks = zeros((shape[0] // k, lower + upper + 1, k, k), like)
    for name, value in used.items():
        for i, j in (places[name] // k).tolist():
            blocks[i, j - i + lower, :, :] = value
    return BlockBandedMatrix(blocks, lower=lower, upper=upper)


def block_sum(matrix: Any, corners: npt.NDArray[Any], like: Array) -> Array:
    """Sum of a matrix's blocks of the shape of `like` that begin at these corners."""
    total = array_namespace(like).zeros_like(like)
    if not len(corners):
        return total
    r, c = like.shape
    if isinstance(matrix, BlockBandedMatrix) and matrix.block_size == r == c and not (corners % r).any():
        for i, j in (corners // r).tolist():
            place = (j - i + matrix.lower) % matrix.length if matrix.periodic else j - i + matrix.lower
            if 0 <= place < matrix.structure.width:
                total = total + matrix.blocks[i, place, :, :]
        return total
    if isinstance(matrix, BlockBandedMatrix):
        matrix = matrix.tosparse("csr") if isinstance(matrix.blocks, np.ndarray) else matrix.todense()
    if not scipy.sparse.issparse(matrix):
        for i, j in corners.tolist():
            total = total + matrix[i : i + r, j : j + c]
        return total
    if matrix.format == "bsr" and matrix.blocksize == (r, c) and not (corners % (r, c)).any():
        return _sum_of_bsr(matrix, corners // (r, c), like)
    rows = scipy.sparse.csr_array(matrix)
    for i, j in corners.tolist():
        total = total + rows[i : i + r, j : j + c].toarray()
    return total


def _sum_of_bsr(matrix: Any, corners: npt.NDArray[Any], like: Array) -> Array:
    """Sum of the blocks in these block rows and columns, found all at once."""
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    width = matrix.shape[1] // like.shape[1]
    rows = np.repeat(np.arange(len(matrix.indptr) - 1), np.diff(matrix.indptr))
    wanted = corners[:, 0] * width + corners[:, 1]
    is_wanted = np.isin(rows * width + matrix.indices, wanted, assume_unique=True)
    return matrix.data[is_wanted].sum(axis=0, dtype=like.dtype)
