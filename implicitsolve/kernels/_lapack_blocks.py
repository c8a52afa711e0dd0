"""Block LU of one system by LAPACK calls for each block, in place, with blocks beyond only where rows change places.

A block is stored in C order, which LAPACK sees as its transpose in Fortran order; these views are what is kept and
passed on. Step t factors the panel, the blocks of column t in rows t, ..., t + lower. Its rows are exchanged inside the
diagonal block ("block") or over the whole panel ("band", as gbtrf does). Only if a row of another block has moved up,
the rows reach further to the right than before.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy.linalg import get_blas_funcs, get_lapack_funcs

from implicitsolve._typing import HostArray
from implicitsolve.kernels._lapack_band import largest_flat

Row: TypeAlias = list[HostArray | None]  # blocks of a block row, from column t on; None is zero


class Step(NamedTuple):
    """One block step: P L U of a panel, as LAPACK's views."""

    LU: HostArray  # L and U of the diagonal block
    order: HostArray | None  # rows of the panel in their new order; None if none moved
    below: list[HostArray]  # the blocks of L below it
    right: list[tuple[int, HostArray]]  # distance and transpose of each block of U right of it


class BlockSystem:
    """Factors of one system of T blocks of k unknowns."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.singular, self.growth = -1, 1.0

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        blocks = sum(1 + len(step.below) + len(step.right) for step in self.steps)
        orders = sum(step.order.nbytes for step in self.steps if step.order is not None)
        return blocks * self.steps[0].LU.nbytes + orders if blocks else 0

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


def factor_blocks(blocks: HostArray, lower: int, upper: int, out: HostArray, pivoting: str = "band") -> BlockSystem:
    """Factor one system (T, m, k, k) into `out`, in C order, which may be `blocks`.

    14/3 k^3 flops for a block row of a block tridiagonal matrix, up to 23/3 k^3 where rows of two blocks change places.
    Each row is copied, and looked through for its largest entry, while it is in the cache.
    """
    T, _, k, _ = blocks.shape
    getrf, laswp = get_lapack_funcs(("getrf", "laswp"), (out,))
    trsm, gemm = get_blas_funcs(("trsm", "gemm"), (out,))
    system, scale, top, is_band = BlockSystem(), 0.0, 0.0, pivoting == "band"
    places = np.arange((lower + 1) * k, dtype=out.dtype)[:, None]
    unmoved = np.arange(k, dtype=np.int32).tobytes()
    window: list[Row] = []  # rows t, ..., t + lower, each from column t on
    for t in range(-lower, T):
        if t + lower < T:
            row, size = _entering(blocks, out, t + lower, lower)
            scale = max(scale, size)
            window.append(row[-t:] + row[:-t] if t < 0 else row)
        if t < 0:
            continue
        panel = np.empty(((len(window) if is_band else 1) * k, k), dtype=out.dtype, order="F")
        for i in range(len(panel) // k):
            panel[i * k : i * k + k] = window[i][0]
        size = largest_flat(panel.T.reshape(-1))
        _, pivots, info = getrf(panel, 1)
        if info > 0:
            system.singular, system.growth = t, np.inf
            return system
        order = None
        if pivots.tobytes() != unmoved:
            order = laswp(places[: len(panel)], pivots)[:, 0].real.astype(np.intp)
            order = order[:k] if pivots.max() < k else order
            _exchange_rows(window, order, k)
        LU, *below = (row[0].T for row in window)  # type: ignore[union-attr]
        LU[...] = panel[:k]
        multiplier = 1.0
        for i, L in enumerate(below, start=1):
            if is_band:
                L[...] = panel[i * k : i * k + k]
            else:
                L[...] = L.T.copy()
                trsm(1, LU, L, 1, 0, 0, 0, 1)
                multiplier = max(multiplier, largest_flat(L.T.reshape(-1)))
        right: list[tuple[int, HostArray]] = []
        for c, block in enumerate(window[0]):
            if c == 0 or block is None:
                continue
            U = block.T
            trsm(1, LU, U, 1, 1, 1, 1, 1)  # U L^-T
            size = max(size, largest_flat(block.reshape(-1)))
            right.append((c, U))
            for i, L in enumerate(below, start=1):
                target = window[i][c]
                if target is None:
                    target = window[i][c] = np.zeros((k, k), dtype=out.dtype)
                gemm(-1, U, L, 1, target.T, 0, 1, 1)
        top = max(top, size * multiplier)
        system.steps.append(Step(LU, order, below, right))
        window = [[*row[1:], None] for row in window[1:]]
    is_bad = ~np.isfinite([step.LU[-1, -1] for step in system.steps])  # a bad pivot spoils those after it
    system.singular = int(is_bad.argmax()) if is_bad.any() else -1
    system.growth = top / scale if system.singular < 0 else np.inf
    return system


def _entering(blocks: HostArray, out: HostArray, t: int, lower: int) -> tuple[Row, float]:
    """Block row t, copied to its place, and its largest entry."""
    T, m = blocks.shape[:2]
    if out is not blocks:
        out[t] = blocks[t]
    first, last = max(lower - t, 0), min(lower - t + T, m)  # blocks inside the matrix
    inside = out[t, first:last]
    return [None] * first + list(inside) + [None] * (m - last), max(map(largest_flat, inside.reshape(last - first, -1)))


def _exchange_rows(window: list[Row], order: HostArray, k: int) -> None:
    """Bring the rows of the window's first blocks into a new order, right of its first column."""
    rows = window[: order.size // k]
    for c in range(1, len(window[0])):
        column = [row[c] for row in rows]
        if all(block is None for block in column):
            continue
        zero = np.zeros_like(next(block for block in column if block is not None))
        moved = np.concatenate([zero if block is None else block for block in column])[order]
        for i, (row, block) in enumerate(zip(rows, column)):
            piece = moved[i * k : i * k + k]
            if block is not None:
                block[...] = piece
            elif piece.any():
                row[c] = piece.copy()


def _exchange(x: HostArray, source: HostArray, target: HostArray) -> None:
    """Move rows of x (T, K, k), counted over T and k, from `source` to `target`."""
    k = x.shape[2]
    x[target // k, :, target % k] = x[source // k, :, source % k]
