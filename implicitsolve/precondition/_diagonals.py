"""Block diagonals of a matrix one by one, and inverses of diagonal blocks that are always finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from implicitsolve._namespace import array_namespace, check_whole, to_host
from implicitsolve._typing import Array
from implicitsolve.operators import BlockBandedMatrix
from implicitsolve.operators._block_banded_products import spans

Diagonals: TypeAlias = dict[int, Array]
"""Blocks A[t, t + d] of each block diagonal d that has some, (B, T - |d|, k, k), in ascending order of d."""


def check_matrix(owner: str, A: Any, *, takes_split: bool = False) -> None:
    """Raise unless `A` is a block-banded matrix, on one rank but where `takes_split`."""
    if not isinstance(A, BlockBandedMatrix):
        raise TypeError(f"{owner}.build: `A` must be a BlockBandedMatrix, got {type(A).__name__}")
    if not takes_split:
        check_whole(owner, A.blocks, "BlockJacobi, Neumann or BlockLU")


def block_diagonals(A: BlockBandedMatrix) -> Diagonals:
    """Block diagonals of the systems of a flattened batch, without those that hold zeros alone, save the main one.

    A circle's corners are block diagonals far from the main one.
    """
    xp = array_namespace(A.blocks)
    blocks = xp.reshape(A.blocks, (math.prod(A.batch_shape), *A.blocks.shape[-4:]))
    found = {
        columns.start - rows.start: blocks[:, rows, j, :, :]
        for j in range(A.structure.width)
        for rows, columns in spans(A.length, j - A.lower, A.periodic)
    }
    found.setdefault(0, blocks[:, :, A.lower, :, :])  # no blocks at all
    used = to_host(xp.stack([xp.any(blocks != 0) for blocks in found.values()]))
    return {d: found[d] for d in sorted(d for d, some in zip(found, used) if some or d == 0)}


def rows_of(d: int, length: int) -> slice:
    """Block rows that have a block in diagonal d."""
    return slice(max(0, -d), min(length, length - d))


def row_scales(diagonals: Diagonals, length: int) -> Array:
    """A size of each block row (B, T): its largest row sum of magnitudes, that of all rows where it is 0, or 1."""
    xp = array_namespace(*diagonals.values())
    main = diagonals[0]
    sums = xp.zeros(main.shape[:-1], dtype=xp.abs(main[:0, ...]).dtype, device=main.device)
    with np.errstate(all="ignore"):
        for d, blocks in diagonals.items():
            sums[:, rows_of(d, length), :] += xp.sum(xp.abs(blocks), axis=-1)
        rows = xp.max(sums, axis=-1)
    rows = xp.where(xp.isfinite(rows), rows, xp.zeros_like(rows))
    rows = xp.where(rows > 0, rows, xp.max(rows, axis=-1, keepdims=True))
    return xp.where(rows > 0, rows, xp.ones_like(rows))


def inverses(blocks: Array, scales: Callable[[], Array]) -> Array:
    """Inverses of blocks (..., k, k); the identity over the block's scale (...) where there is no finite inverse."""
    xp = array_namespace(blocks)
    identity = xp.eye(blocks.shape[-1], dtype=blocks.dtype, device=blocks.device)
    with np.errstate(all="ignore"):
        if blocks.shape[-1] == 1:
            inverse = 1 / blocks
        else:
            identities = xp.broadcast_to(identity, blocks.shape)  # the `inv` of CuPy writes nothing for singular blocks
            try:
                inverse = xp.linalg.solve(blocks, identities)
            except np.linalg.LinAlgError:  # one singular block spoils the call: 0 in the LU that it divides by
                singular = (xp.linalg.slogdet(blocks)[0] == 0)[..., None, None]
                regular = xp.where(singular, identity, blocks)
                inverse = xp.where(singular, xp.nan, xp.linalg.solve(regular, identities))
        usable = xp.all(xp.isfinite(inverse), axis=(-2, -1), keepdims=True)
        if not bool(xp.all(usable)):
            inverse = xp.where(usable, inverse, identity / scales()[..., None, None])
    return inverse


def finite(x: Array) -> Array:
    """Return `x` with zeros where it is not finite."""
    xp = array_namespace(x)
    return xp.where(xp.isfinite(x), x, xp.zeros_like(x))
