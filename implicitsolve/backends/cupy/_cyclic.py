# pyright: basic
"""Cyclic reduction of block tridiagonal matrices with small blocks: one launch for each level."""

from __future__ import annotations

from typing import Any, ClassVar

import cupy

from implicitsolve.backends.cupy._factors import WARP, Factors, lanes, tile
from implicitsolve.backends.cupy._module import MOST_BLOCKS, launch, limits

AT_THE_END = 16  # rows of a system that stay at the levels that one block does in one launch
THREADS = 256
MOST_UNKNOWNS = {4: 32, 8: 21}  # by bytes of a number: a lane holds a row of three blocks in 128 registers


def levels(T: int) -> list[tuple[int, int, int]]:
    """For each level with its own launches: its stride, the rows that stay, and all that stayed before."""
    found, stride, before = [], 1, 0
    while stride < T and (rows := (T - 1) // (2 * stride) + 1) > AT_THE_END:
        found.append((stride, rows, before))
        stride, before = 2 * stride, before + rows
    return found


def kept_rows(T: int) -> int:
    """Rows that stay, counted at all levels."""
    rows, total = T, 0
    while rows > 1:
        rows = (rows + 1) // 2
        total += rows
    return total


def verdict_of(entries: Any, multipliers: Any, scale: Any) -> Any:
    """The array ``found`` of `Factors`; see ``cyclic_found.cu``."""
    B, T = entries.shape[:2]
    found = cupy.empty((B, 2))
    counts = (x.size // (B * T) for x in (entries, multipliers, scale))
    launch(
        "cyclic_found.cu",
        "cyclic_found",
        entries.dtype.char,
        (B,),
        (THREADS,),
        (entries, multipliers, scale, *counts, found, T),
        shared=8 * THREADS,
    )
    return found


class CyclicFactors(Factors):
    """Levels of eliminated rows; see ``cyclic.cu``."""

    axes: ClassVar[dict[str, int]] = {"F": 0, "P": 0, "order": 0, "found": 0}
    F: Any
    P: Any
    order: Any

    @classmethod
    def factor(cls, blocks: Any) -> CyclicFactors:
        """Factor blocks (B, T, 3, k, k) in C order."""
        B, T, _, k, _ = blocks.shape
        dtype, group, kept = blocks.dtype, lanes(k), kept_rows(T)
        F, P = cupy.empty_like(blocks), cupy.empty((B, kept, 2, k, k), dtype)
        order = cupy.empty((B, T, k), cupy.uint8)
        entries, multipliers, scale = cupy.empty((B, T), dtype), cupy.zeros((B, T, 2), dtype), cupy.empty((B, T), dtype)
        store = 3 * k * k * dtype.itemsize

        def run(function: str, grid: int, threads: int, *arguments: Any) -> None:
            constants = {"K": k, "GROUP": group, "COLUMNS": 1, "END_THREADS": THREADS}
            shared = threads // group * store
            launch("cyclic.cu", function, dtype.char, (grid,), (threads,), arguments, shared, **constants)

        run("cyclic_begin", _warps(B * max(T // 2, 1), group), WARP, blocks, F, order, entries, scale, B, T)
        own = levels(T)
        for stride, rows, before in own:
            source = blocks if stride == 1 else F
            arrays = (source, F, P, order, entries, multipliers, scale)
            run("cyclic_reduce", _warps(B * rows, group), WARP, *arrays, B, T, stride, before, kept)
        arrays = (blocks, F, P, order, entries, multipliers, scale)
        threads = min(AT_THE_END * group, THREADS, limits()[1] // store * group // WARP * WARP)
        run("cyclic_end", B, threads, *arrays, B, T, *_after(own), kept)
        found = verdict_of(entries, multipliers, scale)
        return cls(F=F, P=P, order=order, found=found)

    def _solve(self, b: Any, x: Any, adjoint: bool) -> None:
        B, T, k, K = b.shape
        group, columns, kept = lanes(k), tile(K), self.P.shape[1]
        own = levels(T)

        def run(function: str, grid: int, threads: int, *arguments: Any) -> None:
            constants = {"K": k, "GROUP": group, "COLUMNS": columns, "END_THREADS": THREADS}
            shape = (grid, min(-(-K // columns), MOST_BLOCKS))
            arguments = (self.F, self.P, self.order, *arguments)
            launch("cyclic_solve.cu", function, b.dtype.char, shape, (threads,), arguments, **constants)

        sizes = (B, T, kept, K, int(adjoint))
        run("cyclic_solve_begin", _warps(B * max(T // 2, 1), group), WARP, b, x, *sizes)
        for stride, rows, before in own:
            right = b if stride == 1 else x
            run("cyclic_solve_reduce", _warps(B * rows, group), WARP, right, x, *sizes, stride, before)
        run("cyclic_solve_end", B, min(AT_THE_END * group, THREADS), self.found, b, x, *sizes, *_after(own))
        for stride, _, before in reversed(own):
            odd = ((T - 1) // stride + 1) // 2
            run("cyclic_solve_expand", _warps(B * odd, group), WARP, self.found, x, *sizes, stride, before)


def _warps(rows: int, group: int) -> int:
    return -(-rows * group // WARP)


def _after(own: list[tuple[int, int, int]]) -> tuple[int, int]:
    """Stride of the level that follows, and the rows that stayed before."""
    if not own:
        return 1, 0
    stride, rows, before = own[-1]
    return 2 * stride, before + rows
