"""The declared kernels, and how an implementation of one is chosen.

=====================  ====================================================================================  ==========
kernel                 call (returns `Factors`)                                                              matrix
=====================  ====================================================================================  ==========
``block_lu``           ``factor(blocks, lower, upper, *, pivoting="block" | "band", overwrite=False)``       any bands
``block_substitution`` ``factor(blocks, lower, upper, *, overwrite=False)``, `lower` or `upper` 0            triangular
``cyclic_reduction``   ``factor(blocks, *, overwrite=False)``, three blocks in a row                         tridiagonal
=====================  ====================================================================================  ==========

and ``place_color(blocks, changes, h, color, lower)``, which writes a color's differences into `blocks`.

`blocks` has shape (B, T, lower + upper + 1, k, k), ``blocks[:, t, j] = A[t, t + j - lower]``; entries outside the
matrix are never read. The caller sees to it that `lower` and `upper` are less than T (or 0). ``pivoting="block"``
exchanges rows inside a diagonal block, ``"band"`` all rows that have an entry in the column, as LAPACK does. An
implementation may write into `blocks` if `overwrite`. The facts for ``select``: length (T), block_size (k), lower,
upper, and pivoting (block_lu alone); the number of systems is none, so that each system of a batch gets the same
numbers as alone.
"""

from __future__ import annotations

from typing import Any

from implicitsolve.kernels import _assembly, _lapack, _reference
from implicitsolve.kernels._contract import BACKENDS, Factors, Kernel

__all__ = [
    "BACKENDS",
    "LARGE_BLOCK",
    "Factors",
    "Kernel",
    "block_lu",
    "block_substitution",
    "cyclic_reduction",
    "favors_band",
    "place_color",
]


LARGE_BLOCK = 20  # from here on compiled code that pivots inside the blocks leaves their arithmetic to BLAS


def _small_blocks(*, length: int, block_size: int, **others: Any) -> bool:
    """Compiled loops win where a call of LAPACK for each block costs more than its arithmetic."""
    return block_size <= 24 and length * block_size >= 16


def _several_unknowns(*, length: int, block_size: int) -> bool:
    """Compiled code writes whole blocks; scalars NumPy's strided loops write faster (0.17 against 0.67 ms for 10^5)."""
    return block_size > 1 and length * block_size >= 16


def _any_blocks(*, length: int, block_size: int, pivoting: str, **others: Any) -> bool:
    """Inside large blocks compiled code calls BLAS; over the band it has loops alone."""
    return length * block_size >= 16 and (block_size <= 24 or pivoting == "block")


block_lu = Kernel("block_lu", _reference.block_lu, pays={"numba": _any_blocks, "lapack": _lapack.pays})
block_lu.implement("lapack", _lapack.block_lu, _lapack.supports)
block_substitution = Kernel(
    "block_substitution", _reference.block_substitution, pays={"numba": _small_blocks, "lapack": _lapack.pays}
)
block_substitution.implement("lapack", _lapack.block_substitution, _lapack.supports)
cyclic_reduction = Kernel("cyclic_reduction", _reference.cyclic_reduction, pays={"numba": _small_blocks})


place_color = Kernel("place_color", _assembly.place_color, pays={"numba": _several_unknowns})


def favors_band(function: Any, block_size: int) -> bool:
    """Whether what was selected for block_lu is about as fast with pivoting over the band as inside the blocks.

    So it was measured for LAPACK, and for compiled loops beyond k = 8 (0.8 against 0.7 of LAPACK's time); with k = 1
    they try without interchanges first by themselves. Not for their smaller blocks (k = 2: 0.6 against 0.2), for
    BLAS called from compiled code, or for the QR of the reference.
    """
    compiled, _ = block_lu.implementations.get("numba", (None, None))
    if function is compiled:
        return block_size == 1 or 8 < block_size < LARGE_BLOCK
    return function is not block_lu.reference
