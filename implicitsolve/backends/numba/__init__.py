"""Compiled kernels for NumPy arrays; loaded by name when a kernel is first selected, and registered by the import.

`newton_batch` is for direct use: Newton's method for many small systems, all of it compiled.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from implicitsolve.errors import BackendUnavailable

if importlib.util.find_spec("numba") is None:
    raise BackendUnavailable("newton_batch needs Numba, which is not installed: pip install 'implicitsolve[numba]'")

from implicitsolve import kernels
from implicitsolve._heap import keep_large_blocks
from implicitsolve._typing import Array
from implicitsolve.backends.numba._assembly import place_colors, place_groups
from implicitsolve.backends.numba._cyclic_factors import cyclic_reduction
from implicitsolve.backends.numba._factors import block_lu, usable
from implicitsolve.backends.numba._gates import GRU, Mixture
from implicitsolve.backends.numba._gates_loops import COMPILES
from implicitsolve.backends.numba._gates_lstm import LSTM
from implicitsolve.backends.numba._gates_rnn import RNN
from implicitsolve.backends.numba._large_blocks import LargeBlockFactors
from implicitsolve.backends.numba._least_squares import newest_first
from implicitsolve.backends.numba._narrow import narrow_lu
from implicitsolve.backends.numba._newton import NewtonBatch, newton_batch
from implicitsolve.backends.numba._scalar_tridiagonal import ScalarTridiagonal
from implicitsolve.backends.numba._triangular import block_substitution
from implicitsolve.backends.numba._vectors import broyden_direction, rank_one

__all__ = ["NewtonBatch", "newton_batch"]


def _supports(like: Array, **facts: Any) -> bool:
    return like.dtype.char in "fdFD" and like.dtype.isnative


def _supports_real(like: Array, **facts: Any) -> bool:
    return like.dtype.char in "fd" and like.dtype.isnative


def _supports_loops(like: Array, **facts: Any) -> bool:
    return COMPILES and like.dtype.char in "fd" and like.dtype.isnative


def _block_lu(blocks: Array, lower: int, upper: int, *, pivoting: str = "block", overwrite: bool = False) -> Any:
    """Compiled loops for small blocks and for pivoting over the band, BLAS for large blocks."""
    if pivoting == "block" and blocks.shape[-1] >= kernels.LARGE_BLOCK:
        return LargeBlockFactors.factor(usable(blocks), lower, overwrite)
    return block_lu(blocks, lower, upper, pivoting=pivoting, overwrite=overwrite)


keep_large_blocks()  # the factors of 10^6 rows took 20 times as long on freshly mapped memory as the loop itself
kernels.block_lu.implement("numba", _block_lu, _supports)
kernels.block_substitution.implement("numba", block_substitution, _supports)
kernels.broyden_direction.implement("numba", broyden_direction, _supports)
kernels.cyclic_reduction.implement("numba", cyclic_reduction, _supports)
kernels.narrow_lu.implement("numba", narrow_lu, _supports)
kernels.place_colors.implement("numba", place_colors, _supports)
kernels.place_groups.implement("numba", place_groups, _supports)
kernels.newest_first.implement("numba", newest_first, _supports)
kernels.rank_one.implement("numba", rank_one, _supports)
kernels.scalar_tridiagonal.implement("numba", ScalarTridiagonal, _supports_real)
kernels.mixture.implement("numba", Mixture, _supports_loops)
kernels.gru.implement("numba", GRU, _supports_loops)
kernels.lstm.implement("numba", LSTM, _supports_loops)
kernels.rnn.implement("numba", RNN, _supports_loops)
