"""Block LU by LAPACK, one system after the other as a scalar band (gttrf, gbtrf).

Rows change places over the whole band in any case, which includes interchanges inside the blocks. Compiled kernels
factor large blocks in half the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.linalg import blas, get_lapack_funcs

from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels._contract import Factors


class LapackFactors:
    """Factors of a batch of NumPy systems, one by one."""

    def __init__(self, systems: Sequence[BandSystem]) -> None:
        self.systems = systems
        self.singular = np.asarray([system.singular for system in systems], dtype=int)
        self.growth = np.asarray([system.growth for system in systems], dtype=float)

    @property
    def nbytes(self) -> int:
        return sum(system.nbytes for system in self.systems)

    def take(self, indices: Indices) -> Factors:
        return LapackFactors([self.systems[i] for i in indices])

    def solve(self, b: Array, adjoint: bool = False) -> Array:
        x = np.empty(b.shape, dtype=b.dtype)
        with np.errstate(all="ignore"):
            for i, system in enumerate(self.systems):
                x[i] = system.solve(b[i], adjoint) if system.singular < 0 and x[i].size else np.nan
        return x


def block_lu(blocks: HostArray, lower: int, upper: int, *, pivoting: str = "block", overwrite: bool = False) -> Factors:
    """Factor each system."""
    with np.errstate(all="ignore"):
        return LapackFactors([factor_band(system, lower, upper) for system in blocks])


def supports(like: Any, *, length: int, block_size: int, **others: Any) -> bool:
    """Whether the arrays are NumPy's and the systems not empty."""
    return isinstance(like, np.ndarray) and length * block_size > 0


def pays(*, length: int, block_size: int, **others: Any) -> bool:
    """Whether to factor system by system: not short ones of small blocks, which the reference does all at once."""
    return length > 64 or block_size >= 24


IAMAX = {"f": blas.isamax, "d": blas.idamax, "F": blas.icamax, "D": blas.izamax}


def largest_flat(x: HostArray) -> float:
    """Largest magnitude in an array (n,), by one pass of BLAS; of complex numbers up to a factor sqrt(2) less."""
    return float(abs(x[IAMAX[x.dtype.char](x)]))


def largest(x: HostArray) -> float:
    """Largest magnitude in an array, without a copy; of a complex one as `largest_flat`; NaN if there is one."""
    if x.dtype.kind == "c":
        return max(largest(np.real(x)), largest(np.imag(x)))
    return float(np.maximum(x.max(initial=0.0), -x.min(initial=0.0)))


class BandSystem:
    """LAPACK's band factors of one system."""

    def __init__(
        self, solve: Any, parts: Sequence[HostArray], pivots: HostArray, k: int, top: float, scale: float
    ) -> None:
        self._solve, self.parts = solve, parts
        bad = ~np.isfinite(pivots) | (pivots == 0)
        self.singular = int(bad.argmax()) // k if bad.any() else -1
        self.growth = top / scale if self.singular < 0 else np.inf

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def solve(self, b: HostArray, adjoint: bool) -> HostArray:
        """Return the solution for b (T, k, K)."""
        columns = np.array(b.reshape(-1, b.shape[-1]), order="F")
        x, _ = self._solve(columns, "C" if adjoint else "N")
        return x.reshape(b.shape)


def factor_band(blocks: HostArray, lower: int, upper: int) -> BandSystem:
    """Factor one system (T, m, k, k): scalar bands of (lower + 1) k - 1 and (upper + 1) k - 1."""
    T, _, k, _ = blocks.shape
    if k == 1 and (lower, upper) == (1, 1) and T > 2:  # SciPy's gttrf needs three rows
        return _factor_tridiagonal(blocks)
    kl, ku = (lower + 1) * k - 1, (upper + 1) * k - 1
    ab = band_storage(blocks, lower, upper, kl + ku)
    scale = largest_flat(ab.T.reshape(-1))
    gbtrf, gbtrs = get_lapack_funcs(("gbtrf", "gbtrs"), (ab,))
    lu, pivots, _ = gbtrf(ab, kl, ku, overwrite_ab=1)
    top = largest(lu.T[:, : kl + ku + 1])

    def solve(b: HostArray, trans: str) -> Any:
        return gbtrs(lu, kl, ku, b, pivots, trans={"N": 0, "C": 2}[trans], overwrite_b=1)

    return BandSystem(solve, (lu, pivots), lu[kl + ku], k, top, scale)


def _factor_tridiagonal(blocks: HostArray) -> BandSystem:
    rows = blocks[:, :, 0, 0]
    below, diagonal, above = (np.array(part) for part in (rows[1:, 0], rows[:, 1], rows[:-1, 2]))
    scale = max(largest(part) for part in (below, diagonal, above))
    gttrf, gttrs = get_lapack_funcs(("gttrf", "gttrs"), (diagonal,))
    *parts, _ = gttrf(below, diagonal, above, overwrite_dl=1, overwrite_d=1, overwrite_du=1)
    top = max(largest(part) for part in parts[1:4])

    def solve(b: HostArray, trans: str) -> Any:
        return gttrs(*parts, b, trans=trans, overwrite_b=1)

    return BandSystem(solve, parts, parts[1], 1, top, scale)


def band_storage(blocks: HostArray, lower: int, upper: int, diagonal: int) -> HostArray:
    """LAPACK's band storage ``ab[diagonal + i - j, j] = A[i, j]`` with (upper + 1) k - 1 rows above and kl below.

    In memory A[i, j] lies at ``j (rows - 1) + diagonal + i``, so that each block diagonal is one strided copy.
    """
    T, _, k, _ = blocks.shape
    rows = diagonal + (lower + 1) * k
    flat = np.zeros(T * k * rows, dtype=blocks.dtype)
    item = flat.itemsize
    for j in range(lower + upper + 1):
        first, last = max(lower - j, 0), min(T, T + lower - j)  # block rows whose block j is inside the matrix
        if first < last:
            start = (first + j - lower) * k * (rows - 1) + diagonal + first * k
            strides = (k * rows * item, item, (rows - 1) * item)
            window = np.lib.stride_tricks.as_strided(flat[start:], (last - first, k, k), strides)
            window[...] = blocks[first:last, j]
    return flat.reshape(T * k, rows).T
