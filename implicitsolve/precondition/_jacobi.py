"""BlockJacobi and Neumann: the diagonal blocks alone, and a few terms of the series around them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from implicitsolve._namespace import array_namespace
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.precondition._diagonals import block_diagonals, check_matrix, inverses, row_scales
from implicitsolve.precondition._split import Split, repeated
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

    def build(self, A: BlockBandedMatrix) -> LinearOperator:
        """Return D^-1 for each system of A."""
        check_matrix("BlockJacobi", A, takes_split=True)
        return repeated(A, jacobi_split(A))


@dataclass(frozen=True, kw_only=True)
class Neumann:
    """The first terms of a Neumann series: D^-1 + (I - D^-1 A) D^-1 + (I - D^-1 A)^2 D^-1 + ...

    Parameters
    ----------
    terms : int, optional
        Terms that are summed. Default 2, as in most experiments of [1]_.
    scaled : bool, optional
        Whether D holds the diagonal blocks. With False D is I: then ``terms = n + 1`` is the polynomial
        P_n = sum_(i <= n) (I - A)^i of [1]_ for A = I - J, made for layers h = F(h), whose A is near the identity.
        Default True.

    Notes
    -----
    `build` costs what that of `BlockJacobi` does, or nothing if not scaled. A product costs `terms` - 1 products with
    A, which is kept, and `terms` with D^-1.

    The error is (I - D^-1 A)^terms: small only where the diagonal blocks dominate. A term saves at most about one
    product of a Krylov method each time, so that this pays where the products are cheaper than the Krylov method's own
    vector operations: many terms on a GPU, or long Krylov spaces. Without scaling it depends on the size of A, and
    expects A near the identity.

    References
    ----------
    .. [1] M. Kazi, "Implicitly-defined neural networks for sequence labeling" (2016), section 4.2.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.operators import BlockBandedMatrix
    >>> from implicitsolve.precondition import Neumann
    >>> A = BlockBandedMatrix(np.array([[[[0.0]], [[1.0]]], [[[-0.5]], [[1.0]]]]), lower=1, upper=0)
    >>> Neumann(terms=2).build(A) @ np.ones(2)
    array([1. , 1.5])
    """

    terms: int = 2
    scaled: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        check_limit("Neumann", "terms", self.terms, least=1)
        if not isinstance(self.scaled, bool):
            raise TypeError(f"Neumann: `scaled` must be a bool, got {type(self.scaled).__name__}")

    def build(self, A: BlockBandedMatrix) -> LinearOperator:
        """Return the truncated series for each system of A."""
        check_matrix("Neumann", A, takes_split=True)
        return repeated(A, jacobi_split(A) if self.scaled else Split(None), self.terms)


def jacobi_split(A: BlockBandedMatrix) -> Split:
    """D^-1 of the systems of a flattened batch."""
    xp = array_namespace(A.blocks)
    diagonal = xp.reshape(A.diagonal, (math.prod(A.batch_shape), *A.diagonal.shape[-3:]))
    return Split(inverses(diagonal, lambda: row_scales(block_diagonals(A), A.length)))
