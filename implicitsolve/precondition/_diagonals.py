"""What preconditioners declare; block diagonals of a matrix, and inverses of diagonal blocks that are always finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

from implicitsolve._namespace import array_namespace, check_whole, to_host
from implicitsolve._typing import Array
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.operators._block_storage import spans
from implicitsolve.stopping import kind_of

Diagonals: TypeAlias = dict[int, Array]
"""Blocks A[t, t + d] of each block diagonal d that has some, (B, T - |d|, k, k), in ascending order of d."""


class Preconditioner(Protocol):
    """Frozen settings that make an approximate inverse of a matrix.

    Attributes
    ----------
    kind : {"preconditioner"}
        `DirectMethod` settings can take the place of these: see `build_inverse`.
    partitioned : bool
        Whether it takes matrices whose block rows are partitioned across ranks.
    """

    kind: ClassVar[str]
    partitioned: ClassVar[bool]

    def build(self, A: BlockBandedMatrix) -> LinearOperator:
        """Return an operator that approximates A^-1, with adjoint products."""
        ...


def builds_inverse(settings: Any) -> bool:
    """Whether these are settings from which `build_inverse` makes a preconditioner."""
    return kind_of(settings) in ("preconditioner", "direct")


def takes_sparse(settings: Any, *kinds: str) -> bool:
    """Whether these are settings of one of the `kinds` for sparse matrices as well as for block-banded ones."""
    return kind_of(settings) in (kinds or ("preconditioner", "direct")) and getattr(settings, "takes_sparse", False)


def build_inverse(settings: Any, A: Any) -> LinearOperator:
    """Return the approximate inverse of A by a preconditioner's settings, or its factors by a direct method's."""
    return settings.factor(A) if settings.kind == "direct" else settings.build(A)


def check_matrix(settings: Preconditioner, A: Any) -> None:
    """Raise unless `A` is a block-banded matrix that these settings can take."""
    owner = type(settings).__name__
    if not isinstance(A, BlockBandedMatrix):
        raise TypeError(f"{owner}.build: `A` must be a BlockBandedMatrix, got {type(A).__name__}")
    if not settings.partitioned:
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
