# pyright: basic
"""Cyclic reduction, small blocks by one launch for each level, large ones by five; what factors on a device share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import cupy
import numpy as np

from implicitsolve import kernels
from implicitsolve._typing import Indices
from implicitsolve.backends.cupy._module import MOST_BLOCKS, MOST_GRID, WARP, is_real, launch, limits
from implicitsolve.kernels import StoredFactors


class Factors(StoredFactors):
    """Arrays of the device; ``found`` (B, 2) holds the first singular block, or -1, and the growth."""

    axes: ClassVar[dict[str, int]] = {"found": 0}

    def __init__(self, found, **arrays) -> None:
        singular, growth = found.get().T
        super().__init__(singular.astype(int), np.where(singular < 0, growth, np.inf), found=found, **arrays)

    def solve(self, b, adjoint: bool = False):
        """Return A^-1 b or A^-T b for b (B, T, k, K)."""
        b = cupy.ascontiguousarray(b)
        x = cupy.empty_like(b)
        if b.size:
            self._solve(b, x, adjoint)
        return x

    def _solve(self, b, x, adjoint: bool) -> None:
        raise NotImplementedError


def lanes(k: int) -> int:
    """Lanes of a warp that work on one block row."""
    return 8 if k <= 8 else 16 if k <= 16 else WARP


def tile(K: int) -> int:
    """Right-hand sides that a lane works on at a time."""
    return 1 if K == 1 else 4


AT_THE_END = 16  # rows of a system that stay at the levels that one block does in one launch
BLOCK_THREADS = 256  # of a block, as in block_large.cuh
IN_REGISTERS = {4: 32, 8: 21}  # by bytes of a number: a lane holds a row of three blocks in 128 registers


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


def found_in(entries, multipliers, scale):
    """The array ``found`` of `Factors`; see ``cyclic_found.cu``."""
    B, T = entries.shape[:2]
    found, counts = cupy.empty((B, 2)), (x.size // (B * T) for x in (entries, multipliers, scale))
    arguments = entries, multipliers, scale, *counts, found, T
    launch("cyclic_found.cu", "cyclic_found", B, BLOCK_THREADS, arguments, 8 * BLOCK_THREADS)
    return found


class CyclicFactors(Factors):
    """Levels of eliminated rows; see ``cyclic.cu``."""

    axes: ClassVar[dict[str, int]] = {"F": 0, "P": 0, "order": 0, "found": 0}

    @classmethod
    def factor(cls, blocks) -> CyclicFactors:
        """Factor blocks (B, T, 3, k, k) in C order."""
        B, T, _, k, _ = blocks.shape
        dtype, group, kept = blocks.dtype, lanes(k), kept_rows(T)
        F, P = cupy.empty_like(blocks), cupy.empty((B, kept, 2, k, k), dtype)
        order = cupy.empty((B, T, k), cupy.uint8)
        entries, multipliers, scale = cupy.empty((B, T), dtype), cupy.zeros((B, T, 2), dtype), cupy.empty((B, T), dtype)
        store = 3 * k * k * dtype.itemsize

        def run(function: str, grid: int, threads: int, *arguments) -> None:
            constants, shared = (
                {"K": k, "GROUP": group, "COLUMNS": 1, "END_THREADS": BLOCK_THREADS},
                threads // group * store,
            )
            launch("cyclic.cu", function, grid, threads, arguments, shared, **constants)

        run("cyclic_begin", _warps(B * max(T // 2, 1), group), WARP, blocks, F, order, entries, scale, B, T)
        own = levels(T)
        for stride, rows, before in own:
            source = blocks if stride == 1 else F
            arrays = (source, F, P, order, entries, multipliers, scale)
            run("cyclic_reduce", _warps(B * rows, group), WARP, *arrays, B, T, stride, before, kept)
        arrays = (blocks, F, P, order, entries, multipliers, scale)
        threads = min(AT_THE_END * group, BLOCK_THREADS, limits()[1] // store * group // WARP * WARP)
        run("cyclic_end", B, threads, *arrays, B, T, *_after(own), kept)
        found = found_in(entries, multipliers, scale)
        return cls(F=F, P=P, order=order, found=found)

    def _solve(self, b, x, adjoint: bool) -> None:
        B, T, k, K = b.shape
        group, columns, kept = lanes(k), tile(K), self.P.shape[1]
        own = levels(T)

        def run(function: str, grid: int, threads: int, *arguments) -> None:
            constants = {"K": k, "GROUP": group, "COLUMNS": columns, "END_THREADS": BLOCK_THREADS}
            arguments, shape = (self.F, self.P, self.order, *arguments), (grid, min(-(-K // columns), MOST_BLOCKS))
            launch("cyclic_solve.cu", function, shape, threads, arguments, **constants)

        sizes = (B, T, kept, K, int(adjoint))
        run("cyclic_solve_begin", _warps(B * max(T // 2, 1), group), WARP, b, x, *sizes)
        for stride, rows, before in own:
            right = b if stride == 1 else x
            run("cyclic_solve_reduce", _warps(B * rows, group), WARP, right, x, *sizes, stride, before)
        run("cyclic_solve_end", B, min(AT_THE_END * group, BLOCK_THREADS), self.found, b, x, *sizes, *_after(own))
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


PANEL, HEIGHT = 32, 64  # as in block_large.cuh and large_product.cu
PREFERRED_SHARED = 72 * 1024  # bytes of shared memory with which three blocks fit on the largest multiprocessors
LOWER, UPPER = 1, 0  # triangles, as in large_solve.cu


def fits(k: int, itemsize: int) -> bool:
    """Whether shared memory holds a panel of 32 columns."""
    return max(_solve_shared(k, PANEL, itemsize), _factor_shared(k, itemsize)) <= limits()[1]


class LargeBlockFactors(Factors):
    """Levels of eliminated rows; see ``large_factor.cu``."""

    axes: ClassVar[dict[str, int]] = {"found": 0}

    @classmethod
    def factor(cls, blocks) -> LargeBlockFactors:
        """Factor blocks (B, T, 3, k, k) in C order."""
        B, T, _, k, _ = blocks.shape
        dtype = blocks.dtype
        tiles = -(-2 * k // _columns(k, 2 * k, dtype.itemsize))
        entries, multipliers = cupy.empty((B, T, 1 + tiles), dtype), cupy.empty((B, T, tiles), dtype)
        scale = cupy.empty((B, T), dtype)
        arguments, shared = (blocks, scale, B, T, k), BLOCK_THREADS * dtype.itemsize
        launch("large_factor.cu", "large_scale", min(B * T, MOST_GRID), BLOCK_THREADS, arguments, shared)
        levels: list[_Level] = []
        while True:
            levels.append(_Level.factor(blocks, 2 ** len(levels), T, entries, multipliers))
            if blocks.shape[1] == 1:
                break
            blocks = levels[-1].reduce(blocks)
        return cls(found=found_in(entries, multipliers, scale), levels=levels)

    @property
    def nbytes(self) -> int:
        return self.found.nbytes + sum(x.nbytes for level in self.levels for x in level.arrays().values())

    def take(self, indices: Indices) -> LargeBlockFactors:
        other = super().take(indices)
        other.levels = [level.take(cupy.asarray(indices)) for level in self.levels]
        return other

    def _solve(self, b, x, adjoint: bool) -> None:
        last = len(self.levels) - 1
        for i, level in enumerate(self.levels):
            right = b if i == 0 else x
            level.divide(right, x, UPPER if adjoint else LOWER, adjoint)
            if i < last:
                level.subtract(right, x, adjoint, eliminated=False)
        for i in range(last, -1, -1):
            if i < last:
                self.levels[i].subtract(x, x, adjoint, eliminated=True)
            self.levels[i].divide(x, x, LOWER if adjoint else UPPER, adjoint)
        if (self.singular >= 0).any():
            x[cupy.asarray(np.flatnonzero(self.singular >= 0))] = cupy.nan


@dataclass(frozen=True)
class _Level:
    """The rows first, first + step, ... of each system, which one level eliminates."""

    F: Any  # (B, rows, k, k)
    order: Any  # (B, rows, k)
    V: Any  # (B, rows, k, 2 k)
    W: Any  # (B, rows, 2 k, k)
    first: int
    step: int
    T: int

    @classmethod
    def factor(cls, A, stride: int, T: int, entries, multipliers) -> _Level:
        """Eliminate the odd rows of A (B, rows, 3, k, k), or the only one."""
        B, rows, _, k, _ = A.shape
        odd = max(rows // 2, 1)
        E, F, order = _empty(A, odd, k, k), _empty(A, odd, k, k), cupy.empty((B, odd, k), cupy.int32)
        V, W = _empty(A, odd, k, 2 * k), _empty(A, odd, 2 * k, k)
        level = cls(F, order, V, W, stride if rows > 1 else 0, 2 * stride, T)
        launch("large_factor.cu", "large_split", min(B * odd * k, MOST_GRID), BLOCK_THREADS, (A, E, V, W, B, rows, k))
        arguments, shared = (E, F, order, entries, k, *level.places(), entries.shape[2]), _factor_shared(k, A.itemsize)
        launch("large_factor.cu", "large_factor", B * odd, BLOCK_THREADS, arguments, shared)
        stacked = (odd, 0, 1, 2 * k * k)
        level.triangle(LOWER, False, (V, V), (2 * k, 1), 2 * k, stacked, entries, 1)
        level.triangle(UPPER, True, (W, W), (1, k), 2 * k, stacked, multipliers, 0)
        return level

    def reduce(self, A):
        """The rows that stay."""
        B, rows, _, k, _ = A.shape
        even = rows - rows // 2
        made, shared = cupy.empty((B, even, 3, k, k), A.dtype), _product_shared(HEIGHT, A.itemsize)
        arguments, grid = (A, self.V, self.W, made, B, rows, k), B * even * 3 * (-(-k // HEIGHT)) ** 2
        launch("large_product.cu", "large_reduce", grid, BLOCK_THREADS, arguments, shared, COLUMNS=HEIGHT)
        return made

    def divide(self, right, x, lower: int, adjoint: bool) -> None:
        """Solve with one triangle for the eliminated rows of vectors (B, T, k, K)."""
        k, K = x.shape[2:]
        self.triangle(lower, adjoint, (right, x), (K, 1), K, (self.T, self.first, self.step, k * K))

    def subtract(self, right, x, adjoint: bool, *, eliminated: bool) -> None:
        """Subtract from the rows that stay, or from the eliminated ones, what belongs to their neighbours."""
        B, T, k, K = x.shape
        odd = self.F.shape[1]
        count = odd if eliminated else (T - 1) // self.step + 1
        columns, first = 8 if K <= 8 else 64, self.first if eliminated else 0
        grid = B * count * -(-k // HEIGHT), min(-(-K // columns), MOST_BLOCKS)
        arguments = self.V, self.W, right, x, T, k, K, first, self.first, count, odd, int(adjoint)
        shared = _product_shared(columns, x.itemsize)
        launch("large_product.cu", "large_subtract", grid, BLOCK_THREADS, arguments, shared, COLUMNS=columns)

    def triangle(
        self, lower: int, adjoint: bool, right, steps, columns: int, places, largest=None, slot: int = 0
    ) -> None:
        """Solve with one of the triangles for (source, target); see ``large_solve.cu``."""
        k, itemsize = self.F.shape[2], self.F.dtype.itemsize
        width = _columns(k, columns, itemsize)
        count, *rest = self.places()
        slots, largest = (0, right[1]) if largest is None else (largest.shape[2], largest)
        arguments = self.F, self.order, *right, largest, k, columns, *steps, count, *places, *rest, slots, slot
        grid, shared = (
            (self.F.shape[0] * count, min(-(-columns // width), MOST_BLOCKS)),
            _solve_shared(k, width, itemsize),
        )
        constants = {"COLUMNS": width, "LOWER": lower, "TRANSPOSED": int(adjoint)}
        launch("large_solve.cu", "large_solve", grid, BLOCK_THREADS, arguments, shared, **constants)

    def places(self) -> tuple[int, int, int, int]:
        """Number of eliminated rows and of all rows, the first eliminated one, and the distance between them."""
        return self.F.shape[1], self.T, self.first, self.step

    def arrays(self) -> dict[str, Any]:
        """What a solve needs."""
        return {"F": self.F, "order": self.order, "V": self.V, "W": self.W}

    def take(self, indices) -> _Level:
        return replace(self, **{name: cupy.take(x, indices, axis=0) for name, x in self.arrays().items()})


def _empty(A, *shape: int):
    return cupy.empty((A.shape[0], *shape), A.dtype)


def _pad(k: int) -> int:
    return -(-k // PANEL) * PANEL


def _columns(k: int, columns: int, itemsize: int) -> int:
    """Columns at a time: as many as leave room for other blocks on a multiprocessor."""
    if columns <= 8:
        return 8
    return 64 if _solve_shared(k, 64, itemsize) <= min(PREFERRED_SHARED, limits()[1]) else PANEL


def _solve_shared(k: int, columns: int, itemsize: int) -> int:
    return (max(_pad(k) * (columns + 1), BLOCK_THREADS) + PANEL * (PANEL + 1)) * itemsize


def _factor_shared(k: int, itemsize: int) -> int:
    warps = BLOCK_THREADS // 32
    return ((_pad(k) + PANEL) * (PANEL + 1) + warps) * itemsize + 4 * (warps + k)


def _product_shared(columns: int, itemsize: int) -> int:
    return (HEIGHT * (PANEL + 1) + PANEL * (columns + 1)) * itemsize


def cyclic_reduction(blocks, *, overwrite: bool = False):
    """Factor a batch (B, T, 3, k, k), into 5 k^2 T numbers for each system; see `implicitsolve.kernels`."""
    if blocks.size == 0:
        return kernels.cyclic_reduction.reference(blocks)
    blocks, small = cupy.ascontiguousarray(blocks), blocks.shape[3] <= IN_REGISTERS[blocks.dtype.itemsize]
    return (CyclicFactors if small else LargeBlockFactors).factor(blocks)


def supports(like, *, block_size: int, **others) -> bool:
    return is_real(like) and fits(block_size, like.dtype.itemsize)


kernels.cyclic_reduction.implement("cupy", cyclic_reduction, supports)
