"""Preconditioners of block-banded matrices: block Jacobi, Neumann series, block Gauss-Seidel, incomplete block LU."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from implicitsolve._arrays.host import gather, scatter, to_host
from implicitsolve._arrays.namespace import array_namespace
from implicitsolve._typing import Array
from implicitsolve.direct import BlockLU
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.precondition import _parts as parts
from implicitsolve.precondition._parts import Diagonals, Preconditioner, Split, Triangle
from implicitsolve.stopping import check_choice, check_flag, check_limit


@dataclass(frozen=True, kw_only=True)
class BlockJacobi(Preconditioner):
    """D^-1: the inverses of the diagonal blocks.

    Notes
    -----
    `build` inverts T blocks, 2 k^3 flops each, and keeps them: T k^2 numbers for each system. A product costs 2 T k^2
    flops. Every block is independent of the others, which suits a GPU. A diagonal block that has no finite inverse is
    replaced by the identity times the largest row sum of magnitudes in its block row: products stay finite.

    Examples
    --------
    >>> from implicitsolve.operators import BlockBandedMatrix
    >>> from implicitsolve.precondition import BlockJacobi
    >>> second_difference = np.broadcast_to(np.array([-1.0, 2.0, -1.0])[:, None, None], (4, 3, 1, 1))
    >>> BlockJacobi().build(BlockBandedMatrix(second_difference, lower=1, upper=1)) @ np.ones(4)
    array([0.5, 0.5, 0.5, 0.5])
    """

    def build(self, A: BlockBandedMatrix) -> LinearOperator:
        """Return D^-1 for each system of A."""
        parts.check_matrix(self, A)
        return parts.repeat_sweeps(A, jacobi_split(A))


@dataclass(frozen=True, kw_only=True)
class Neumann(Preconditioner):
    """A truncated Neumann series, sum_(i <= n) (I - D^-1 A)^i D^-1.

    Parameters
    ----------
    order : int, optional
        n, the order of the polynomial, as in `TruncatedInverse`. Default 1, as in most experiments of [1]_; 0 is
        `BlockJacobi`.
    scaled : bool, optional
        Whether D holds the diagonal blocks. With False D is I: the polynomial of [1]_ for layers h = F(h),
        whose A is near the identity. Default True.

    Notes
    -----
    `build` costs what that of `BlockJacobi` does, or nothing if not scaled. A product costs n products with A, which
    is kept, and n + 1 with D^-1.

    The error is (I - D^-1 A)^(n + 1): small only where the diagonal blocks dominate. Each order saves a Krylov method
    at most about one product, so that this helps where products are cheaper than the Krylov method's own vector
    operations: high orders on a GPU, or long Krylov spaces. Without scaling A has to be near the identity.

    References
    ----------
    .. [1] M. Kazi, "Implicitly-defined neural networks for sequence labeling" (2016), section 4.2.

    Examples
    --------
    >>> from implicitsolve.operators import BlockBandedMatrix
    >>> from implicitsolve.precondition import Neumann
    >>> A = BlockBandedMatrix(np.array([[[[0.0]], [[1.0]]], [[[-0.5]], [[1.0]]]]), lower=1, upper=0)
    >>> Neumann(order=1).build(A) @ np.ones(2)
    array([1. , 1.5])
    """

    order: int = 1
    scaled: bool = True

    def __post_init__(self) -> None:
        check_limit("Neumann", "order", self.order)
        check_flag("Neumann", "scaled", self.scaled)

    def build(self, A: BlockBandedMatrix) -> LinearOperator:
        """Return the truncated series for each system of A."""
        parts.check_matrix(self, A)
        return parts.repeat_sweeps(A, jacobi_split(A) if self.scaled else Split(None), self.order + 1)


def jacobi_split(A: BlockBandedMatrix) -> Split:
    """D^-1 of the systems of a flattened batch."""
    xp = array_namespace(A.blocks)
    diagonal = xp.reshape(A.diagonal, (math.prod(A.batch_shape), *A.diagonal.shape[-3:]))
    return Split(parts.inverses(diagonal, lambda: parts.row_scales(parts.block_diagonals(A), A.length)))


ORDERS = ("forward", "backward", "symmetric")


@dataclass(frozen=True, kw_only=True)
class BlockGaussSeidel(Preconditioner):
    """Sweeps over the blocks, each solved for with its neighbours' newest values.

    With D, L and U the diagonal blocks and what is below and above them, one sweep applies (D + L)^-1 ("forward"),
    (D + U)^-1 ("backward") or (D + U)^-1 D (D + L)^-1 ("symmetric").

    Parameters
    ----------
    sweeps : int, optional
        Number of sweeps; those after the first act on the remaining residual: x <- x + M^-1 (b - A x). Default 1,
        since a Krylov method makes better use of the products.
    order : {"forward", "backward", "symmetric"}, optional
        Default: "symmetric". "forward" costs half as much, and is exact where no block depends on later ones: for a
        recurrence, or transport towards larger t.

    Notes
    -----
    `build` inverts the diagonal blocks and multiplies the others by them: 2 T (lower + upper + 1) k^3 flops, and as
    many numbers as A are kept (A too, for more sweeps). A symmetric sweep takes the flops of a product with A, one in
    one direction about half; each further sweep one product more. The blocks are solved for one after another: on NumPy
    arrays by SuperLU's triangular solves, in 3 to 8 times a product's time, in other libraries by a loop over sets of
    mutually independent blocks: T steps for a band, slow on a GPU.
    In a periodic matrix the corners are part of L and U. Diagonal blocks without a finite inverse are treated as by
    `BlockJacobi`, and entries of D^-1 L that are not finite are left out.

    References
    ----------
    .. [1] Y. Saad, "Iterative Methods for Sparse Linear Systems", 2nd edition (2003), section 10.2.

    Examples
    --------
    >>> from implicitsolve.operators import BlockBandedMatrix
    >>> from implicitsolve.precondition import BlockGaussSeidel
    >>> steps = np.broadcast_to(np.array([-1.0, 1.0])[:, None, None], (4, 2, 1, 1))  # x[t] - x[t - 1]
    >>> BlockGaussSeidel(order="forward").build(BlockBandedMatrix(steps, lower=1, upper=0)) @ np.ones(4)
    array([1., 2., 3., 4.])
    """

    sweeps: int = 1
    order: Literal["forward", "backward", "symmetric"] = "symmetric"

    def __post_init__(self) -> None:
        check_limit("BlockGaussSeidel", "sweeps", self.sweeps, least=1)
        check_choice("BlockGaussSeidel", "order", self.order, ORDERS)

    def build(self, A: BlockBandedMatrix) -> LinearOperator:
        """Return the sweeps for each system of A."""
        parts.check_matrix(self, A)
        diagonals, length = parts.block_diagonals(A), A.length
        D_inverse = parts.inverses(diagonals[0], lambda: parts.row_scales(diagonals, length))
        lower = None if self.order == "backward" else triangle(diagonals, D_inverse, length, below=True)
        upper = None if self.order == "forward" else triangle(diagonals, D_inverse, length, below=False)
        return parts.repeat_sweeps(A, Split(D_inverse, lower, upper), self.sweeps)


def triangle(diagonals: Diagonals, D_inverse: Array, length: int, *, below: bool) -> Triangle:
    """I + L D^-1 or I + D^-1 U, with what is not finite left out."""
    scaled: Diagonals = {}
    for d, blocks in diagonals.items():
        with np.errstate(all="ignore"):
            if below and d < 0:
                scaled[d] = parts.finite(blocks @ D_inverse[:, : length + d, :, :])
            elif not below and d > 0:
                scaled[d] = parts.finite(D_inverse[:, : length - d, :, :] @ blocks)
    b, T, k = D_inverse.shape[:3]
    return Triangle(scaled, (b, T, k))


@dataclass(frozen=True, kw_only=True)
class BlockILU(Preconditioner):
    """Incomplete block LU factorization without fill, ILU(0): blocks that are zero in A stay zero.

    For wide bands in which only a few block diagonals are not zero, such as that of a stencil in the plane whose points
    are numbered line by line: there the complete factorization fills the whole band.

    Notes
    -----
    A band without gaps leaves no place for fill: then ILU(0) is the LU factorization, and that of `BlockLU` is returned
    (unless it meets a singular block).

    `build` costs 2 k^3 flops for each pair of a block below the diagonal and a block of the row it points to that meet
    in a block of A, and keeps the blocks that are not zero. It takes one step for each set of mutually
    independent blocks, n + m - 1 on n x m grid points, 0.1 to 0.2 ms each on NumPy arrays. A product takes the flops of
    one with the nonzero blocks of A: by SuperLU's or LAPACK's triangular solves on NumPy arrays (0.2 ms for 6400 points
    of a five-point stencil, where the product with A takes 0.02 ms), in as many steps elsewhere.

    Pivot blocks without a finite inverse are treated as by `BlockJacobi`, and entries of the factors that are not
    finite are left out.

    References
    ----------
    .. [1] J. A. Meijerink and H. A. van der Vorst, "An iterative solution method for linear systems of which the
           coefficient matrix is a symmetric M-matrix", Math. Comp. 31 (1977) 148-162.
    .. [2] Y. Saad, "Iterative Methods for Sparse Linear Systems", 2nd edition (2003), sections 10.3 and 11.6.

    Examples
    --------
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

    def build(self, A: BlockBandedMatrix) -> LinearOperator:
        """Return the inverse of the incomplete factorization of each system of A."""
        parts.check_matrix(self, A)
        diagonals = parts.block_diagonals(A)
        lower, upper = -min(diagonals), max(diagonals)
        if not A.periodic and _has_no_gaps(diagonals, lower, upper):
            kept = A.blocks[..., A.lower - lower : A.lower + upper + 1, :, :]
            exact = BlockLU().factor(BlockBandedMatrix(kept, lower=lower, upper=upper))
            if np.all(np.asarray(exact.singular_block) < 0):
                return exact
        return parts.repeat_sweeps(A, _incomplete(diagonals, A.length))


def _has_no_gaps(diagonals: Diagonals, lower: int, upper: int) -> bool:
    """Whether every block diagonal, except the main one, is nonzero in every system."""
    xp = array_namespace(*diagonals.values())
    if len(diagonals) <= lower + upper:
        return False
    used = [xp.all(xp.any(blocks != 0, axis=(1, 2, 3))) for d, blocks in diagonals.items() if d]
    return not used or bool(xp.all(xp.stack(used)))


def _incomplete(diagonals: Diagonals, length: int) -> Split:
    """ILU(0) by rows (Saad, algorithm 10.4), with all mutually independent rows at once."""
    xp = array_namespace(diagonals[0])
    scales = functools.cache(lambda: xp.permute_dims(parts.row_scales(diagonals, length), (1, 0)))

    def scale_of(rows: Any) -> Array:
        return gather(scales(), rows)

    # Rows first, and zeros in the rows that a diagonal does not have: W[d][t] is the block in row t and column t + d.
    W = {d: _pad(blocks, d, length) for d, blocks in diagonals.items()}
    pattern = {d: xp.any(blocks != 0, axis=(2, 3), keepdims=True) for d, blocks in W.items()}
    exists = {d: to_host(xp.any(pattern[d], axis=(1, 2, 3))) for d in W if d < 0}
    D_inverse = xp.zeros_like(W[0])
    below, above = [d for d in W if d < 0], [d for d in W if d > 0]
    for rows in parts.levels({d: exists[d][-d:] for d in below}, length):
        for d in below:
            at = rows[exists[d][rows]]
            if not at.size:
                continue
            with np.errstate(all="ignore"):
                multiplier = parts.finite(gather(W[d], at) @ gather(D_inverse, at + d))
                scatter(W[d], at, multiplier)
                for e in (e for e in above if d + e in W):
                    update = xp.where(gather(pattern[d + e], at), multiplier @ gather(W[e], at + d), 0.0)
                    scatter(W[d + e], at, gather(W[d + e], at) - update)
        scatter(D_inverse, rows, parts.inverses(gather(W[0], rows), functools.partial(scale_of, rows)))
    shape = (D_inverse.shape[1], length, D_inverse.shape[-1])
    with np.errstate(all="ignore"):
        lower = {d: _trim(W[d], d, length) for d in below}
        upper = {d: _trim(parts.finite(D_inverse @ W[d]), d, length) for d in above}
    return Split(xp.permute_dims(D_inverse, (1, 0, 2, 3)), Triangle(lower, shape), Triangle(upper, shape))


def _pad(blocks: Array, d: int, length: int) -> Array:
    xp = array_namespace(blocks)
    size, _, k = blocks.shape[:3]
    padded = xp.zeros((length, size, k, k), dtype=blocks.dtype, device=blocks.device)
    padded[parts.rows_of(d, length), ...] = xp.permute_dims(blocks, (1, 0, 2, 3))
    return padded


def _trim(padded: Array, d: int, length: int) -> Array:
    return array_namespace(padded).permute_dims(padded[parts.rows_of(d, length), ...], (1, 0, 2, 3))
