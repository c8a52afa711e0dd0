"""The declared kernels, and how an implementation of one is chosen.

=====================  ====================================================================================  ==========
kernel                 call (returns `Factors`)                                                              matrix
=====================  ====================================================================================  ==========
``block_lu``           ``factor(blocks, lower, upper, *, pivoting="block" | "band", overwrite=False)``       any bands
``cyclic_reduction``   ``factor(blocks, *, overwrite=False)``, three blocks in a row                         tridiagonal
=====================  ====================================================================================  ==========

Newton's method uses ``rank_one(z, w, amount, following)``, an update of vectors.

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
    "Factors",
    "Kernel",
    "StoredFactors",
    "block_lu",
    "cyclic_reduction",
    "rank_one",
    "scalar_tridiagonal",
    "vectors",
]


def _long_rows(*, size: int) -> bool:
    """Whether rows are long enough to load compiled code, which makes one pass where NumPy makes ten."""
    return size >= 32


def _long_systems(*, length: int, block_size: int, **others: Any) -> bool:
    """Whether systems are large enough to load compiled code, which takes longer than solving small ones."""
    return length * block_size >= 16


block_lu: Kernel = Kernel("block_lu", _reference.block_lu, pays={"numba": _long_systems, "lapack": _lapack.pays})
block_lu.implement("lapack", _lapack.block_lu, _lapack.supports)
cyclic_reduction: Kernel = Kernel("cyclic_reduction", _reference.cyclic_reduction)
scalar_tridiagonal: Kernel = Kernel(
    "scalar_tridiagonal", _scalar_tridiagonal.ScalarTridiagonal, {"numba": _long_rows}, "block_lu"
)
rank_one: Kernel = Kernel("rank_one", _vectors.rank_one, module="vectors")
