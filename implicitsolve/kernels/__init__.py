"""The declared kernels, and how an implementation of one is chosen.

=====================  ====================================================================================  ==========
kernel                 call (returns `Factors`)                                                              matrix
=====================  ====================================================================================  ==========
``block_lu``           ``factor(blocks, lower, upper, *, pivoting="block" | "band", overwrite=False)``       any bands
``cyclic_reduction``   ``factor(blocks, *, overwrite=False)``, three blocks in a row                         tridiagonal
=====================  ====================================================================================  ==========

Newton's method uses ``rank_one(z, w, amount, following)``, an update of vectors. ``narrow_lu(blocks, growth_limit)``
factors those systems of a block tridiagonal batch whose outer blocks are triangular as scalar bands without
interchanges, where entries grow by no more than `growth_limit`, and returns their places and `Factors`.

`blocks` has shape (B, T, lower + upper + 1, k, k), ``blocks[:, t, j] = A[t, t + j - lower]``; entries outside the
matrix are never read. The caller ensures that `lower` and `upper` are less than T (or 0). ``pivoting="block"``
exchanges rows inside a diagonal block, ``"band"`` all rows that have an entry in the column, as LAPACK does. An
implementation may write into `blocks` if `overwrite`. The arguments of ``select``: length (T), block_size (k), lower,
upper, and pivoting (block_lu only). The number of systems is not one of them, so that a system of a batch gets the same
numbers as alone.

``scalar_tridiagonal`` selects a class that factors many tridiagonal matrices at once, and solves with them; ``vectors``
one with the solvers' work on vectors, where a device needs few launches for it: see the references. Their argument is
size, the numbers of a row or vector.
"""

from __future__ import annotations

from typing import Any

from implicitsolve.kernels import _lapack, _reference, _scalar_tridiagonal, _vectors
from implicitsolve.kernels._contract import BACKENDS, Factors, Kernel, StoredFactors
from implicitsolve.kernels._vectors import vectors

__all__ = [
    "BACKENDS",
    "LARGE_BLOCK",
    "Factors",
    "Kernel",
    "StoredFactors",
    "block_lu",
    "cyclic_reduction",
    "favors_band",
    "is_compiled",
    "narrow_lu",
    "rank_one",
    "scalar_tridiagonal",
    "vectors",
]


LARGE_BLOCK = 16  # from here on compiled code that pivots inside the blocks leaves their arithmetic to BLAS
NARROW_BLOCK = 19  # largest one for which narrow bands are tried


def _narrow(*, length: int, block_size: int, lower: int, upper: int) -> bool:
    """Blocks of two are as fast as their band; block tridiagonal is the only width that is implemented.

    Measured with `BlockNewton` on reaction-diffusion lines, one long and 100 short ones: a solve with k = 1, 4, 8 and
    16 takes 0.72 to 0.99, 0.82 to 0.92, 0.78 to 0.88 and 0.80 to 0.85 of the time of elimination with interchanges.
    """
    return lower == upper == 1 and block_size != 2 and block_size <= NARROW_BLOCK and length * block_size >= 16


def _long_rows(*, size: int) -> bool:
    """Compiled code makes one pass where NumPy makes ten; layers of fewer numbers are not worth loading it."""
    return size >= 32


def _any_blocks(*, length: int, block_size: int, pivoting: str, **others: Any) -> bool:
    """Inside large blocks compiled code calls BLAS; over the band it has loops alone."""
    return length * block_size >= 16 and (block_size <= 24 or pivoting == "block")


block_lu: Kernel = Kernel("block_lu", _reference.block_lu, pays={"numba": _any_blocks, "lapack": _lapack.pays})
block_lu.implement("lapack", _lapack.block_lu, _lapack.supports)
cyclic_reduction: Kernel = Kernel("cyclic_reduction", _reference.cyclic_reduction)

narrow_lu: Kernel = Kernel("narrow_lu", _reference.narrow_lu, {"numba": _narrow}, "block_lu")
scalar_tridiagonal: Kernel = Kernel("scalar_tridiagonal", _scalar_tridiagonal.ScalarTridiagonal, {"numba": _long_rows})
scalar_tridiagonal.implement("lapack", _scalar_tridiagonal.Chains, _scalar_tridiagonal.Chains.supports)
rank_one: Kernel = Kernel("rank_one", _vectors.rank_one, module="vectors")


def is_compiled(function: Any) -> bool:
    """Whether what was selected for block_lu is Numba's."""
    compiled, _ = block_lu.implementations.get("numba", (None, None))
    return function is compiled


def favors_band(function: Any, block_size: int) -> bool:
    """Whether what was selected for block_lu is about as fast with pivoting over the band as inside the blocks.

    So it was measured for LAPACK, and for compiled loops beyond k = 8 (0.8 against 0.7 of LAPACK's time); with k = 1
    they already try without interchanges first. Not for their smaller blocks (k = 2: 0.6 against 0.2), for
    BLAS called from compiled code, or for the QR of the reference, which CuPy's kernels also use.
    """
    if is_compiled(function):
        return block_size == 1 or 8 < block_size < LARGE_BLOCK
    return function is block_lu.implementations["lapack"][0]
