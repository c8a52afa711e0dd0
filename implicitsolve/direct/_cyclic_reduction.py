"""CyclicReduction: direct solves in log2(T) parallel steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from implicitsolve._namespace import check_whole
from implicitsolve.direct._block_lu import check_matrix, kernel_sizes, refactored
from implicitsolve.direct._factorization import Factorization
from implicitsolve.direct._layout import Layout
from implicitsolve.direct._settings import BlockSettings
from implicitsolve.kernels import cyclic_reduction
from implicitsolve.operators import BlockBandedMatrix


@dataclass(frozen=True, kw_only=True)
class CyclicReduction(BlockSettings):
    """Block cyclic reduction of a block-banded matrix, for each system of a batch.

    Every second block row is eliminated, all of them at once, and again in the half that is left: log2(T) steps, each
    of a few products of batches of blocks. For devices and libraries on which a loop over T blocks is slow; in a loop
    of compiled code `BlockLU` does less.

    Parameters
    ----------
    pivoting : {"auto", "block"}, optional
        "block" exchanges rows inside diagonal blocks alone. "auto" (the default) factors systems again by `BlockLU`
        with band pivoting where a block was singular or `growth` exceeds `growth_limit`.
    refine : int, optional
        Steps of iterative refinement in each solve. Default 0.
    growth_limit : float, optional
        For "auto"; see `BlockLU`. Default 16.
    backend : {"auto", "numba", "cupy", "reference"}, optional
        Kernels to use; see `BlockLU`.

    Raises
    ------
    ValueError
        If a setting is not usable.
    BackendUnavailable
        If a backend that was named is not installed.

    Notes
    -----
    Wider bands are merged: p = max(lower, upper) neighbouring blocks become one of p k. Periodic matrices are folded,
    as in `BlockLU`. Flops per block row of a block tridiagonal matrix: 38/3 k^3, 2.7 times those of block LU. Holds
    5 T k^2 numbers for each system.

    References
    ----------
    .. [1] D. Heller, "Some aspects of the cyclic reduction algorithm for block tridiagonal linear systems", SIAM J.
           Numer. Anal. 13 (1976) 484-496.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve import BlockBandedMatrix, CyclicReduction
    >>> second_difference = np.broadcast_to(np.array([-1.0, 2.0, -1.0])[:, None, None], (4, 3, 1, 1))
    >>> A = BlockBandedMatrix(second_difference, lower=1, upper=1)
    >>> CyclicReduction().factor(A).solve(np.array([1.0, 0.0, 0.0, 1.0])).round(12)
    array([1., 1., 1., 1.])
    """

    partitioned: ClassVar[bool] = False
    _PIVOTING: ClassVar[tuple[str, ...]] = ("auto", "block")

    def factor(self, A: BlockBandedMatrix, *, overwrite: bool = False) -> Factorization:
        """Factor A: a status for each system, and no exception for a singular one. `overwrite` saves nothing here."""
        check_matrix("CyclicReduction", A)
        check_whole("CyclicReduction", A.blocks, "BlockLU")
        layout = Layout.tridiagonal(A)
        blocks = layout.blocks(A)
        sizes = kernel_sizes(blocks, 1, 1) | {"backend": self.backend}
        function = cyclic_reduction.select(blocks, **sizes)
        if self.pivoting == "auto":
            factors = refactored(function(blocks), blocks, 1, 1, self.growth_limit, sizes)
        else:
            factors = function(blocks)
        return Factorization(A, factors, layout, refine=self.refine)
