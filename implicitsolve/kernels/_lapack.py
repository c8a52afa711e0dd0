"""Block LU by LAPACK, one system after the other: as a scalar band (gttrf, gbtrf), or by calls for each block.

Rows change places over the whole band in either case, which includes interchanges inside the blocks, and is
faster. Step t of the second factors the panel, the blocks of column t in rows t, ..., t + lower. Only
if a row of another block has moved up, the rows reach further to the right than before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from scipy.linalg import blas, get_blas_funcs, get_lapack_funcs

from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels._contract import Factors

SMALL_BLOCK = 24  # below this LAPACK's scalar band LU is at least as fast as calls for each block


class System(Protocol):
    """The factors of one system; `growth` is infinite where it is singular."""

    @property
    def singular(self) -> int: ...
    @property
    def growth(self) -> float: ...
    @property
    def nbytes(self) -> int: ...

    def solve(self, b: HostArray, adjoint: bool) -> HostArray:
        """Return the solution for b (T, k, K), as a new array."""
        ...


class LapackFactors:
    """Factors of a batch of NumPy systems, one by one."""

    def __init__(self, systems: Sequence[System]) -> None:
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
    """Factor each system: small blocks as a scalar band, others block by block."""
    factor: Callable[..., System] = factor_band if blocks.shape[-1] < SMALL_BLOCK else factor_blocks
    with np.errstate(all="ignore"):
        return LapackFactors([factor(system, lower, upper) for system in blocks])


def supports(like: Any, *, length: int, block_size: int, **others: Any) -> bool:
    """Whether there is anything to call LAPACK for."""
    return isinstance(like, np.ndarray) and length * block_size > 0


def pays(*, length: int, block_size: int, **others: Any) -> bool:
    """Whether to take one system after the other: not short ones of small blocks, which the reference does at once."""
    return length > 64 or block_size >= SMALL_BLOCK


# Scalar bands


CHUNK = 1 << 15  # numbers of a piece
IAMAX = {"f": blas.isamax, "d": blas.idamax, "F": blas.icamax, "D": blas.izamax}


def largest_flat(x: HostArray) -> float:
    """Largest magnitude in an array (n,), by one pass of BLAS; of complex numbers up to a factor sqrt(2) less."""
    return float(abs(x[IAMAX[x.dtype.char](x)]))


def largest(x: HostArray) -> float:
    """Largest magnitude in an array, taken along its first axis."""
    step = max(CHUNK * len(x) // max(x.size, 1), 1)
    pieces = [np.abs(x[i : i + step]).max(initial=0.0) for i in range(0, len(x), step)]
    return float(np.max(pieces, initial=0.0))  # NaN if there is one


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


# Block by block


class Step(NamedTuple):
    """One block step: P L U of a panel, as LAPACK's views: a block in C order is its transpose in Fortran order."""

    LU: HostArray  # L and U of the diagonal block
    order: Indices | None  # rows of the panel in their new order; None if none moved
    below: list[HostArray]  # the blocks of L below it
    right: list[tuple[int, HostArray]]  # distance and transpose of each block of U right of it


class BlockSystem:
    """Factors of one system of T blocks of k unknowns."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.singular, self.growth = -1, 1.0

    @property
    def nbytes(self) -> int:
        blocks = sum(1 + len(step.below) + len(step.right) for step in self.steps)
        return blocks * self.steps[0].LU.nbytes if blocks else 0

    def solve(self, b: HostArray, adjoint: bool) -> HostArray:
        """Return the solution for b (T, k, K)."""
        x = np.array(b.swapaxes(1, 2), order="C")
        trsm, gemm = get_blas_funcs(("trsm", "gemm"), (x,))
        if adjoint:  # A^H x = b is A^T conj(x) = conj(b)
            np.conj(x, out=x)
            self._solve_transpose(x, trsm, gemm)
            np.conj(x, out=x)
        else:
            self._solve(x, trsm, gemm)
        return x.swapaxes(1, 2)

    def _solve(self, x: HostArray, trsm: Any, gemm: Any) -> None:
        rows = [row.T for row in x]  # (k, K) in Fortran order, in the memory of x
        for t, step in enumerate(self.steps):
            if step.order is not None:
                _exchange(x[t:], step.order, np.arange(step.order.size))
            trsm(1, step.LU, rows[t], 0, 1, 0, 1, 1)  # side, lower, trans, unit diagonal, in place
            for i, L in enumerate(step.below, start=t + 1):
                gemm(-1, L, rows[t], 1, rows[i], 0, 0, 1)  # trans a, trans b, in place
        for t, step in reversed(list(enumerate(self.steps))):
            for c, U in step.right:
                gemm(-1, U, rows[t + c], 1, rows[t], 1, 0, 1)
            trsm(1, step.LU, rows[t], 0, 0, 0, 0, 1)

    def _solve_transpose(self, x: HostArray, trsm: Any, gemm: Any) -> None:
        rows = [row.T for row in x]
        for t, step in enumerate(self.steps):
            trsm(1, step.LU, rows[t], 0, 0, 1, 0, 1)
            for c, U in step.right:
                gemm(-1, U, rows[t], 1, rows[t + c], 0, 0, 1)
        for t, step in reversed(list(enumerate(self.steps))):
            for i, L in enumerate(step.below, start=t + 1):
                gemm(-1, L, rows[i], 1, rows[t], 1, 0, 1)
            trsm(1, step.LU, rows[t], 0, 1, 1, 1, 1)
            if step.order is not None:
                _exchange(x[t:], np.arange(step.order.size), step.order)


Row: TypeAlias = list[Any]  # blocks of a block row, from column t on; None is zero


def factor_blocks(blocks: HostArray, lower: int, upper: int) -> BlockSystem:
    """Factor one system (T, m, k, k), with row interchanges over the whole panel, as gbtrf.

    14/3 k^3 flops for a block row of a block tridiagonal matrix, up to 23/3 k^3 where rows of two blocks change places.
    Each row is copied, and looked through for its largest entry, while it is in the cache.
    """
    T, m, k, _ = blocks.shape
    out, system, scale, top = np.empty(blocks.shape, blocks.dtype), BlockSystem(), 0.0, 0.0
    getrf, laswp = get_lapack_funcs(("getrf", "laswp"), (out,))
    places, unmoved = np.arange((lower + 1) * k, dtype=out.dtype)[:, None], np.arange(k, dtype=np.int32).tobytes()
    window: list[Row] = []  # rows t, ..., t + lower, each from column t on
    for t in range(-lower, T):
        if t + lower < T:
            row, size = out[t + lower], slice(max(-t, 0), min(m, T - t))  # blocks inside the matrix
            row[...] = blocks[t + lower]
            scale = max(scale, largest_flat(row[size].reshape(-1)))
            inside = range(m)[size]
            window.append([row[j] if j in inside else None for j in range(max(-t, 0), m + max(-t, 0))])
        if t < 0:
            continue
        panel = np.empty((len(window) * k, k), dtype=out.dtype, order="F")
        for i, row in enumerate(window):
            panel[i * k : i * k + k] = row[0]
        top = max(top, largest_flat(panel.T.reshape(-1)))
        _, pivots, info = getrf(panel, 1)
        if info > 0:
            system.singular, system.growth = t, np.inf
            return system
        order = None
        if pivots.tobytes() != unmoved:
            order = laswp(places[: len(panel)], pivots)[:, 0].real.astype(np.intp)
            order = order[:k] if pivots.max() < k else order
            _reorder(window[: order.size // k], order)
        top = max(top, _eliminate(window, panel, order, system))
        window = [[*row[1:], None] for row in window[1:]]
    is_bad = ~np.isfinite([step.LU[-1, -1] for step in system.steps])  # a bad pivot spoils those after it
    system.singular = int(is_bad.argmax()) if is_bad.any() else -1
    system.growth = top / scale if system.singular < 0 else np.inf
    return system


def _eliminate(window: list[Row], panel: HostArray, order: Indices | None, system: BlockSystem) -> float:
    """One step, for the factored panel; return the largest entry of U right of it."""
    trsm, gemm = get_blas_funcs(("trsm", "gemm"), (panel,))
    LU, *below = (row[0].T for row in window)
    for i, L in enumerate((LU, *below)):
        L[...] = panel[i * len(LU) : (i + 1) * len(LU)]
    step, size = Step(LU, order, below, []), 0.0
    for c, block in enumerate(window[0][1:], start=1):
        if block is not None:
            U = block.T
            trsm(1, LU, U, 1, 1, 1, 1, 1)  # U L^-T
            size = max(size, largest_flat(block.reshape(-1)))
            step.right.append((c, U))
            for row, L in zip(window[1:], below):
                row[c] = np.zeros_like(block) if row[c] is None else row[c]
                gemm(-1, U, L, 1, row[c].T, 0, 1, 1)
    system.steps.append(step)
    return size


def _reorder(rows: list[Row], order: Indices) -> None:
    """Bring the rows of some block rows into another order, right of their first column."""
    for c in range(1, len(rows[0])):
        blocks = [row[c] for row in rows]
        known = [block for block in blocks if block is not None]
        if known:
            moved = np.concatenate([np.zeros_like(known[0]) if block is None else block for block in blocks])[order]
            for row, piece in zip(rows, moved.reshape(len(rows), *known[0].shape)):
                if row[c] is not None:
                    row[c][...] = piece
                elif piece.any():
                    row[c] = piece.copy()  # not a view that keeps the others


def _exchange(x: HostArray, source: HostArray, target: HostArray) -> None:
    """Move rows of x (T, K, k), counted over T and k, from `source` to `target`."""
    k = x.shape[2]
    x[target // k, :, target % k] = x[source // k, :, source % k]
