"""Preconditioners from stationary iterations: block Jacobi, the truncated Neumann series, block Gauss-Seidel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from implicitsolve._namespace import array_namespace
from implicitsolve._typing import Array
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.precondition._diagonals import (
    Diagonals,
    block_diagonals,
    check_matrix,
    finite,
    inverses,
    row_scales,
)
from implicitsolve.precondition._triangular import Split, Triangle, repeated
from implicitsolve.stopping import check_limit


@dataclass(frozen=True, kw_only=True)
class BlockJacobi:
    """D^-1: the inverses of the diagonal blocks.

    Notes
    -----
    `build` inverts T blocks, 2 k^3 flops each, and keeps them: T k^2 numbers for each system. A product costs 2 T k^2
    flops. Every block is independent of the others, which suits a GPU.

    A diagonal block that has no finite inverse is replaced by the identity times the largest row sum of magnitudes in
    its block row, so that the products of finite vectors stay finite.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.operators import BlockBandedMatrix
    >>> from implicitsolve.precondition import BlockJacobi
    >>> second_difference = np.broadcast_to(np.array([-1.0, 2.0, -1.0])[:, None, None], (4, 3, 1, 1))
    >>> BlockJacobi().build(BlockBandedMatrix(second_difference, lower=1, upper=1)) @ np.ones(4)
    array([0.5, 0.5, 0.5, 0.5])
    """

    kind: ClassVar[str] = "preconditioner"
    partitioned: ClassVar[bool] = True

    def build(self, A: BlockBandedMatrix) -> LinearOperator:
        """Return D^-1 for each system of A."""
        check_matrix(self, A)
        return repeated(A, jacobi_split(A))


@dataclass(frozen=True, kw_only=True)
class Neumann:
    """A truncated Neumann series, sum_(i <= n) (I - D^-1 A)^i D^-1.

    Parameters
    ----------
    order : int, optional
        n, the order of the polynomial, as in `TruncatedInverse`. Default 1, as in most experiments of [1]_; 0 is
        `BlockJacobi`.
    scaled : bool, optional
        Whether D holds the diagonal blocks. With False D is I, and the polynomial that of [1]_ for layers h = F(h),
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
    >>> import numpy as np
    >>> from implicitsolve.operators import BlockBandedMatrix
    >>> from implicitsolve.precondition import Neumann
    >>> A = BlockBandedMatrix(np.array([[[[0.0]], [[1.0]]], [[[-0.5]], [[1.0]]]]), lower=1, upper=0)
    >>> Neumann(order=1).build(A) @ np.ones(2)
    array([1. , 1.5])
    """

    kind: ClassVar[str] = "preconditioner"
    partitioned: ClassVar[bool] = True

    order: int = 1
    scaled: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        check_limit("Neumann", "order", self.order)
        if not isinstance(self.scaled, bool):
            raise TypeError(f"Neumann: `scaled` must be a bool, got {type(self.scaled).__name__}")

    def build(self, A: BlockBandedMatrix) -> LinearOperator:
        """Return the truncated series for each system of A."""
        check_matrix(self, A)
        return repeated(A, jacobi_split(A) if self.scaled else Split(None), self.order + 1)


def jacobi_split(A: BlockBandedMatrix) -> Split:
    """D^-1 of the systems of a flattened batch."""
    xp = array_namespace(A.blocks)
    diagonal = xp.reshape(A.diagonal, (math.prod(A.batch_shape), *A.diagonal.shape[-3:]))
    return Split(inverses(diagonal, lambda: row_scales(block_diagonals(A), A.length)))


ORDERS = ("forward", "backward", "symmetric")


@dataclass(frozen=True, kw_only=True)
class BlockGaussSeidel:
    """Sweeps over the blocks, each solved for with its neighbours' newest values.

    With D, L and U the diagonal blocks and what is below and above them, one sweep applies (D + L)^-1 ("forward"),
    (D + U)^-1 ("backward") or (D + U)^-1 D (D + L)^-1 ("symmetric").

    Parameters
    ----------
    sweeps : int, optional
        How often, each after the first on the residual that is left: x <- x + M^-1 (b - A x). Default 1, since a
        Krylov method makes better use of the products.
    order : {"forward", "backward", "symmetric"}, optional
        Default: "symmetric". "forward" is half of its cost, and exact, where nothing depends on later blocks: for a
        recurrence, or transport towards larger t.

    Notes
    -----
    `build` inverts the diagonal blocks and multiplies the others by them: 2 T (lower + upper + 1) k^3 flops, and as
    many numbers as A are kept (A too, for more sweeps). A symmetric sweep takes the flops of a product with A, one in
    one direction about half; each further sweep one product more. Being sequential it takes longer: on NumPy arrays 3
    to 5 times a product's time were measured (k = 1, 2 and 8), up to 8 for the adjoint.

    The blocks are solved for one after another. On NumPy arrays LAPACK's or SuperLU's triangular solves do that, in
    other libraries a loop over those blocks that do not wait for each other: T steps for a band, slow on a GPU.
    In a circle the corners are part of L and U.

    A diagonal block that has no finite inverse is replaced by the identity times the largest row sum of magnitudes in
    its block row, and entries of D^-1 L that are not finite are left out: the products of finite vectors stay finite.

    References
    ----------
    .. [1] Y. Saad, "Iterative Methods for Sparse Linear Systems", 2nd edition (2003), section 10.2.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.operators import BlockBandedMatrix
    >>> from implicitsolve.precondition import BlockGaussSeidel
    >>> steps = np.broadcast_to(np.array([-1.0, 1.0])[:, None, None], (4, 2, 1, 1))  # x[t] - x[t - 1]
    >>> BlockGaussSeidel(order="forward").build(BlockBandedMatrix(steps, lower=1, upper=0)) @ np.ones(4)
    array([1., 2., 3., 4.])
    """

    kind: ClassVar[str] = "preconditioner"
    partitioned: ClassVar[bool] = False

    sweeps: int = 1
    order: str = "symmetric"

    def __post_init__(self) -> None:
        """Check the settings."""
        check_limit("BlockGaussSeidel", "sweeps", self.sweeps, least=1)
        if self.order not in ORDERS:
            raise ValueError(f"BlockGaussSeidel: `order` must be one of {ORDERS}, got {self.order!r}")

    def build(self, A: BlockBandedMatrix) -> LinearOperator:
        """Return the sweeps for each system of A."""
        check_matrix(self, A)
        diagonals, length = block_diagonals(A), A.length
        D_inverse = inverses(diagonals[0], lambda: row_scales(diagonals, length))
        lower = None if self.order == "backward" else triangle(diagonals, D_inverse, length, below=True)
        upper = None if self.order == "forward" else triangle(diagonals, D_inverse, length, below=False)
        return repeated(A, Split(D_inverse, lower, upper), self.sweeps)


def triangle(diagonals: Diagonals, D_inverse: Array, length: int, *, below: bool) -> Triangle:
    """I + L D^-1 or I + D^-1 U, with what is not finite left out."""
    scaled: Diagonals = {}
    for d, blocks in diagonals.items():
        with np.errstate(all="ignore"):
            if below and d < 0:
                scaled[d] = finite(blocks @ D_inverse[:, : length + d, :, :])
            elif not below and d > 0:
                scaled[d] = finite(D_inverse[:, : length - d, :, :] @ blocks)
    return Triangle(scaled, D_inverse.shape[:3])
