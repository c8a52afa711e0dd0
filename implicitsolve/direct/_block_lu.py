"""Direct solves of block-banded systems: BlockLU by block elimination, CyclicReduction in log2(T) parallel steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from implicitsolve._arrays.host import gather, scatter
from implicitsolve._arrays.namespace import array_namespace, host_dtype
from implicitsolve._typing import Array, Indices
from implicitsolve.direct._factorization import BlockSettings, Factorization
from implicitsolve.direct._layout import Layout
from implicitsolve.kernels import Factors, block_lu, cyclic_reduction
from implicitsolve.operators import BlockBandedMatrix

WORTH_COMPILING = 30_000  # entries of one system; below, LAPACK takes 0.8 to 1.4 of the time of compiled loops


@dataclass(frozen=True, kw_only=True)
class BlockLU(BlockSettings):
    """Block LU factorization of a block-banded matrix, for each system of a batch (the block Thomas algorithm).

    Parameters
    ----------
    pivoting : {"auto", "block", "band"}, optional
        Which rows may be exchanged. "block": those of one diagonal block, in place and fast; it fails where a diagonal
        block is singular and loses digits where one nearly is. "band": all that have an entry in the column, as in
        LAPACK's band solver, for up to ``2 lower + upper + 1`` blocks a row. "auto" (the default) pivots inside
        the blocks, and where that met a singular block or `growth` exceeds `growth_limit`, factors the system again
        with "band". LAPACK exchanges rows over the band in any case.
    refine : int, optional
        Steps of iterative refinement in each solve: a product with A and a solve each. Default 0: `growth_limit` keeps
        the backward error small without.
    growth_limit : float, optional
        For "auto". In some 10^4 random, graded and nearly singular matrices the scaled residual was at most twice
        `growth`, and below 16 with the default, 16.
    backend : {"auto", "numba", "lapack", "cupy", "reference"}, optional
        Kernels to use. "auto" decides by library and by the sizes of one system, so that each system of a batch has
        the same solution as alone:

        - Numba, if it is installed, for NumPy arrays with T k >= 16: compiled loops. `BlockNewton` takes LAPACK instead
          for a problem without batch axes whose Jacobian has fewer than 30 000 entries: loops compile for seconds;
        - LAPACK's band solvers gttrf and gbtrf for other NumPy arrays with T > 64 or k >= 24, one call a system;
        - CUDA kernels for real CuPy arrays, in one launch: a thread for each system with k <= 4, some lanes of a warp
          with k <= 32 (21 in float64). Block tridiagonal matrices of larger blocks, or with T > 64 (1024 for k <= 4),
          are reduced as by `CyclicReduction`. For "band", scalar tridiagonal ones only;
        - the array-API reference otherwise, which loops over the blocks of all systems at once. For "band" it sends
          the systems to LAPACK on the host.

    Raises
    ------
    ValueError
        If a setting is not usable.
    BackendUnavailable
        If a backend that was named is not installed.

    Notes
    -----
    Block triangular matrices (`lower` or `upper` is 0) need nothing but the LU of their diagonal blocks, and block
    substitution. A periodic matrix is folded: blocks t and T - 1 - t become one of 2 k, and the corners
    disappear; this costs 4 times the arithmetic of the same matrix without corners.

    Flops per block row of a block tridiagonal matrix: 14/3 k^3, up to 23/3 k^3 where rows of different blocks change
    places, against 8 to 16 k^3 of LAPACK's gbtrf; and 6 k^2 for a solve. With other bands ``2/3 + lower + upper +
    2 lower upper`` times k^3, with up to lower + upper in place of upper.

    Memory of the factors, in numbers for each system (`Factorization.nbytes` is their actual size)::

        LAPACK    T k^2 (2 lower + upper + 3), 5 T if k = lower = upper = 1
        Numba     T k^2 (lower + upper + 1), and T k^2 lower for "band"

    and T k integers for the pivots. The peak while factoring is within 10 % of that for T k >= 10^4.

    References
    ----------
    .. [1] G. H. Golub and C. F. Van Loan, "Matrix Computations", 4th ed., Johns Hopkins (2013), 4.5.
    .. [2] J. W. Demmel, N. J. Higham and R. S. Schreiber, "Stability of block LU factorization", Numer. Linear Algebra
           Appl. 2 (1995) 173-190.

    Examples
    --------
    >>> from implicitsolve import BlockBandedMatrix, BlockLU
    >>> blocks = np.random.default_rng(0).normal(size=(100, 3, 2, 2))
    >>> A = BlockBandedMatrix(blocks, lower=1, upper=1)
    >>> inverse = BlockLU().factor(A)
    >>> b = np.ones((100, 2))
    >>> bool(np.abs(A @ inverse.solve(b) - b).max() < 1e-10)
    True
    """

    def factor(self, A: BlockBandedMatrix, *, overwrite: bool = False) -> Factorization:
        """Factor A, one system or a batch: a status for each system, and no exception for a singular one.

        With `overwrite` the factors may take the place of A's blocks, and A must not be used any more. Numba does so
        for "block"; not where "auto" pivots inside the blocks, and may need A again.
        """
        check_matrix("BlockLU", A)
        if overwrite and self.refine:
            raise ValueError("BlockLU.factor: `overwrite` must be False for `refine` > 0, which needs A")
        layout = Layout.of_bands(A)
        factors = self.factors(layout.blocks(A), layout.lower, layout.upper, overwrite=overwrite)
        return Factorization.of(A, factors, layout, refine=self.refine, overwritten=overwrite)

    def factors(self, blocks: Array, lower: int, upper: int, *, overwrite: bool = False) -> Factors:
        """Factor blocks (B, T, lower + upper + 1, k, k), where `lower` and `upper` are less than T; see `Factors`."""
        if lower and not upper:  # backwards there is nothing below the diagonal blocks to eliminate
            return Backwards(self.factors(array_namespace(blocks).flip(blocks, axis=(1, 2)), 0, lower), blocks.shape[1])
        sizes = kernel_sizes(blocks, lower, upper) | {"backend": self.backend}
        pivoting = "band" if self.pivoting == "band" else "block"
        function = block_lu.select(blocks, pivoting=pivoting, **sizes)
        if self.pivoting != "auto":
            return function(blocks, lower, upper, pivoting=pivoting, overwrite=overwrite)
        return refactor(function(blocks, lower, upper), blocks, lower, upper, self.growth_limit, self.backend)

    def for_one(self, size: int) -> BlockLU:
        """The settings for a system of NumPy numbers without batch axes, whose matrix has `size` entries."""
        return replace(self, backend="lapack") if self.backend == "auto" and 0 < size < WORTH_COMPILING else self


def check_matrix(owner: str, A: Any) -> None:
    if not isinstance(A, BlockBandedMatrix):
        raise TypeError(f"{owner}.factor: `A` must be a BlockBandedMatrix, got {type(A).__name__}")
    if host_dtype(A.dtype).char not in "fdFD":
        raise TypeError(f"{owner}.factor: `A` must hold float32, float64, complex64 or complex128, got {A.dtype}")


def kernel_sizes(blocks: Array, lower: int, upper: int) -> dict[str, Any]:
    """Sizes by which a kernel is chosen; the number of systems is not one, so that a batch changes no system."""
    _, T, _, k, _ = blocks.shape
    return {"length": T, "block_size": k, "lower": lower, "upper": upper}


def refactor(factors: Factors, blocks: Array, lower: int, upper: int, growth_limit: float, backend: str) -> Factors:
    """Refactor with pivoting over the whole band those systems whose growth exceeds the limit or that are singular."""
    is_bad = ~(factors.growth <= growth_limit)
    bad, good = np.flatnonzero(is_bad), np.flatnonzero(~is_bad)
    if not bad.size:
        return factors
    kept = factors.take(good)
    del factors  # the only reference, if the caller keeps none: the second attempt can use the room
    blocks = gather(blocks, bad) if good.size else blocks
    again = BlockLU(pivoting="band", backend=backend).factors(blocks, lower, upper)
    return MergedFactors((kept, again), (good, bad)) if good.size else again


class MergedFactors:
    """Factors of a batch whose systems were factored in two ways: the parts, and their places in the batch, sorted."""

    def __init__(self, parts: tuple[Factors, ...], places: tuple[Indices, ...]) -> None:
        self.parts, self.places = parts, places
        size = sum(place.size for place in places)
        self.singular, self.growth = np.empty(size, dtype=int), np.empty(size)
        for part, place in zip(parts, places):
            self.singular[place], self.growth[place] = part.singular, part.growth

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def solve(self, b: Array, adjoint: bool = False) -> Array:
        x = array_namespace(b).empty_like(b)
        for part, place in zip(self.parts, self.places):
            scatter(x, place, part.solve(gather(b, place), adjoint))
        return x

    def take(self, indices: Indices) -> Factors:
        owner = np.isin(indices, self.places[1])
        parts: list[Factors] = []
        places: list[Indices] = []
        for i, (part, place) in enumerate(zip(self.parts, self.places)):
            chosen = np.flatnonzero(owner == i)
            parts.append(part.take(np.searchsorted(place, indices[chosen])))  # places are sorted
            places.append(chosen)
        return MergedFactors(tuple(parts), tuple(places))


class Backwards:
    """Factors of systems whose blocks were taken from the last to the first."""

    def __init__(self, factors: Factors, length: int) -> None:
        self.factors, self.length = factors, length
        self.singular = np.where(factors.singular < 0, -1, length - 1 - factors.singular)
        self.growth = factors.growth

    @property
    def nbytes(self) -> int:
        return self.factors.nbytes

    def solve(self, b: Array, adjoint: bool = False) -> Array:
        xp = array_namespace(b)
        return xp.asarray(xp.flip(self.factors.solve(xp.flip(b, axis=1), adjoint), axis=1), copy=True)

    def take(self, indices: Indices) -> Factors:
        return Backwards(self.factors.take(indices), self.length)


@dataclass(frozen=True, kw_only=True)
class CyclicReduction(BlockSettings):
    """Block cyclic reduction of a block-banded matrix, for each system of a batch.

    Every second block row is eliminated, all of them at once, and again in the half that is left: log2(T) steps, each
    of a few products of batches of blocks. For devices and libraries on which a loop over T blocks is slow; in
    compiled loops `BlockLU` takes fewer flops.

    Parameters
    ----------
    pivoting : {"auto", "block"}, optional
        As in `BlockLU`, which factors systems again with band pivoting where "auto" (the default) needs that.
    refine, growth_limit, backend : int, float, str, optional
        As in `BlockLU`; there is no backend "lapack".

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
    >>> from implicitsolve import BlockBandedMatrix, CyclicReduction
    >>> second_difference = np.broadcast_to(np.array([-1.0, 2.0, -1.0])[:, None, None], (4, 3, 1, 1))
    >>> A = BlockBandedMatrix(second_difference, lower=1, upper=1)
    >>> CyclicReduction().factor(A).solve(np.array([1.0, 0.0, 0.0, 1.0])).round(12)
    array([1., 1., 1., 1.])
    """

    _PIVOTING: ClassVar[tuple[str, ...]] = ("auto", "block")

    def factor(self, A: BlockBandedMatrix, *, overwrite: bool = False) -> Factorization:
        """Factor A: a status for each system, and no exception for a singular one. `overwrite` saves nothing here."""
        check_matrix("CyclicReduction", A)
        layout = Layout.tridiagonal(A)
        blocks = layout.blocks(A)
        factors = cyclic_reduction.select(blocks, **kernel_sizes(blocks, 1, 1), backend=self.backend)(blocks)
        if self.pivoting == "auto":
            lower, upper = (1 if A.periodic else min(side, 1) for side in (A.lower, A.upper))  # no zeros are eliminated
            bands = blocks[:, :, 1 - lower : 2 + upper, :, :]
            factors = refactor(factors, bands, lower, upper, self.growth_limit, self.backend)
        return Factorization.of(A, factors, layout, refine=self.refine)
