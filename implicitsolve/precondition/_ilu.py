"""BlockILU: block LU that keeps to the blocks which A has."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from implicitsolve._namespace import array_namespace, gather, scatter, to_host
from implicitsolve._typing import Array
from implicitsolve.direct import BlockLU
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.precondition._diagonals import (
    Diagonals,
    block_diagonals,
    check_matrix,
    finite,
    inverses,
    row_scales,
    rows_of,
)
from implicitsolve.precondition._triangular import Split, Triangle, levels, repeated


@dataclass(frozen=True, kw_only=True)
class BlockILU:
    """Incomplete block LU factorization without fill, ILU(0): blocks that are zero in A stay zero.

    For wide bands of which only a few block diagonals hold anything, such as a stencil in the plane whose points are
    numbered line by line: there the complete factorization fills the whole band.

    Notes
    -----
    A band without gaps leaves no place for fill: then ILU(0) is the LU factorization, and that of `BlockLU` is returned
    (unless it meets a singular block).

    `build` costs 2 k^3 flops for each pair of a block below the diagonal and a block of the row it points to that meet
    in a block of A, and keeps the blocks that are not zero. It takes one step for all blocks that do not wait for each
    other, n + m - 1 of them on a grid of n x m points, 0.1 to 0.2 ms each on NumPy arrays. A product takes the flops of
    one with the nonzero blocks of A: by SuperLU's or LAPACK's triangular solves on NumPy arrays (0.2 ms for 6400 points
    of a five-point stencil, where the product with A takes 0.02 ms), in as many steps elsewhere.

    A pivot block that has no finite inverse is replaced by the identity times the largest row sum of magnitudes in its
    block row of A, and entries of the factors that are not finite are left out.

    References
    ----------
    .. [1] J. A. Meijerink and H. A. van der Vorst, "An iterative solution method for linear systems of which the
           coefficient matrix is a symmetric M-matrix", Math. Comp. 31 (1977) 148-162.
    .. [2] Y. Saad, "Iterative Methods for Sparse Linear Systems", 2nd edition (2003), sections 10.3 and 11.6.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> from implicitsolve.operators import BlockBandedMatrix
    >>> from implicitsolve.precondition import BlockILU
    >>> n = 20  # -Laplace(u) on n x n points
    >>> blocks = np.zeros((n * n, 2 * n + 1, 1, 1))
    >>> blocks[:, [0, n - 1, n, n + 1, 2 * n], 0, 0] = [-1.0, -1.0, 4.0, -1.0, -1.0]
    >>> blocks[::n, n - 1] = blocks[n - 1 :: n, n + 1] = 0
    >>> A, b = BlockBandedMatrix(blocks, lower=n, upper=n), np.ones(n * n)
    >>> ims.linear_solve(A, b, method=ims.GMRES()).iterations
    32
    >>> ims.linear_solve(A, b, method=ims.GMRES(), M=BlockILU().build(A)).iterations
    16
    """

    kind: ClassVar[str] = "preconditioner"
    partitioned: ClassVar[bool] = False

    def build(self, A: BlockBandedMatrix) -> LinearOperator:
        """Return the inverse of the incomplete factorization of each system of A."""
        check_matrix(self, A)
        diagonals = block_diagonals(A)
        lower, upper = -min(diagonals), max(diagonals)
        if not A.periodic and _has_no_gaps(diagonals, lower, upper):
            kept = A.blocks[..., A.lower - lower : A.lower + upper + 1, :, :]
            exact = BlockLU().factor(BlockBandedMatrix(kept, lower=lower, upper=upper))
            if np.all(np.asarray(exact.singular_block) < 0):
                return exact
        return repeated(A, _incomplete(diagonals, A.length))


def _has_no_gaps(diagonals: Diagonals, lower: int, upper: int) -> bool:
    """Whether every system has something in each block diagonal, the main one aside."""
    xp = array_namespace(*diagonals.values())
    if len(diagonals) <= lower + upper:
        return False
    used = [xp.all(xp.any(blocks != 0, axis=(1, 2, 3))) for d, blocks in diagonals.items() if d]
    return not used or bool(xp.all(xp.stack(used)))


def _incomplete(diagonals: Diagonals, length: int) -> Split:
    """ILU(0), row after row (Saad, algorithm 10.4), all rows at once that do not wait for each other."""
    xp = array_namespace(diagonals[0])
    scales = functools.cache(lambda: xp.permute_dims(row_scales(diagonals, length), (1, 0)))

    def scale_of(rows: Any) -> Array:
        return gather(scales(), rows)

    # Rows first, and zeros in the rows that a diagonal does not have: W[d][t] is the block in row t and column t + d.
    W = {d: _padded(blocks, d, length) for d, blocks in diagonals.items()}
    pattern = {d: xp.any(blocks != 0, axis=(2, 3), keepdims=True) for d, blocks in W.items()}
    exists = {d: to_host(xp.any(pattern[d], axis=(1, 2, 3))) for d in W if d < 0}
    D_inverse = xp.zeros_like(W[0])
    below, above = [d for d in W if d < 0], [d for d in W if d > 0]
    for rows in levels({d: exists[d][-d:] for d in below}, length):
        for d in below:
            at = rows[exists[d][rows]]
            if not at.size:
                continue
            with np.errstate(all="ignore"):
                multiplier = finite(gather(W[d], at) @ gather(D_inverse, at + d))
                scatter(W[d], at, multiplier)
                for e in (e for e in above if d + e in W):
                    update = xp.where(gather(pattern[d + e], at), multiplier @ gather(W[e], at + d), 0.0)
                    scatter(W[d + e], at, gather(W[d + e], at) - update)
        scatter(D_inverse, rows, inverses(gather(W[0], rows), functools.partial(scale_of, rows)))
    shape = (D_inverse.shape[1], length, D_inverse.shape[-1])
    with np.errstate(all="ignore"):
        lower = {d: _trimmed(W[d], d, length) for d in below}
        upper = {d: _trimmed(finite(D_inverse @ W[d]), d, length) for d in above}
    return Split(xp.permute_dims(D_inverse, (1, 0, 2, 3)), Triangle(lower, shape), Triangle(upper, shape))


def _padded(blocks: Array, d: int, length: int) -> Array:
    xp = array_namespace(blocks)
    size, _, k = blocks.shape[:3]
    padded = xp.zeros((length, size, k, k), dtype=blocks.dtype, device=blocks.device)
    padded[rows_of(d, length), ...] = xp.permute_dims(blocks, (1, 0, 2, 3))
    return padded


def _trimmed(padded: Array, d: int, length: int) -> Array:
    return array_namespace(padded).permute_dims(padded[rows_of(d, length), ...], (1, 0, 2, 3))
