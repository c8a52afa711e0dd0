# pyright: basic
"""`block_lu` with one thread, or some lanes of a warp, for each system, and the choice of the factorization by size."""

from __future__ import annotations

from typing import Any, ClassVar

import cupy

from implicitsolve import kernels
from implicitsolve.backends.cupy import _cyclic_reduction
from implicitsolve.backends.cupy._cyclic_reduction import Factors, lanes, tile
from implicitsolve.backends.cupy._module import MOST_BLOCKS, WARP, is_real, launch, launch_each, limits

MOST_SHARED = 96 * 1024  # bytes of the block rows that the lanes share
LANE_NUMBERS = 128  # of 32 bits in the registers of a lane


def fits_lanes(k: int, lower: int, upper: int, itemsize: int) -> bool:
    """Whether registers and shared memory hold the block rows that are worked on."""
    m, shared = lower + upper + 1, _shared_memory(k, lower, upper, itemsize)
    return k <= WARP and m * k * itemsize // 4 <= LANE_NUMBERS and shared <= min(MOST_SHARED, limits()[1])


class LaneFactors(Factors):
    """Block LU; see ``block_lanes.cu``."""

    axes: ClassVar[dict[str, int]] = {"F": 0, "order": 0, "found": 0}

    @classmethod
    def factor(cls, blocks, lower: int, upper: int) -> LaneFactors:
        """Factor blocks (B, T, m, k, k) in C order."""
        B, T, _, k, _ = blocks.shape
        F, order, found = cupy.empty_like(blocks), cupy.empty((B, T, k), cupy.uint8), cupy.empty((B, 2))
        constants, shared = (
            {"K": k, "GROUP": lanes(k), "LOWER": lower, "UPPER": upper},
            _shared_memory(k, lower, upper, blocks.itemsize),
        )
        arguments, grid = (blocks, F, order, found, B, T), -(-B * lanes(k) // WARP)
        launch("block_lanes.cu", "block_lanes_factor", grid, WARP, arguments, shared, **constants, COLUMNS=1)
        return cls(F=F, order=order, found=found, constants=constants)

    def _solve(self, b, x, adjoint: bool) -> None:
        B, T, k, K = b.shape
        columns, arguments = tile(K), (self.F, self.order, self.found, b, x, B, T, K, int(adjoint))
        grid = -(-B * lanes(k) // WARP), min(-(-K // columns), MOST_BLOCKS)
        launch("block_lanes.cu", "block_lanes_solve", grid, WARP, arguments, **self.constants, COLUMNS=columns)


def _shared_memory(k: int, lower: int, upper: int, itemsize: int) -> int:
    return WARP // lanes(k) * (lower + 1) * (lower + upper + 1) * k * k * itemsize


THREAD_UNKNOWNS = 4  # of a block that one thread factors in its registers
THREAD_NUMBERS = 160  # of 32 bits in the registers of a thread
SHARED_COLUMNS = 32  # right-hand sides of a system that its warp brings into shared memory at once


def fits_thread(k: int, lower: int, upper: int, itemsize: int) -> bool:
    """Whether a thread can hold the block rows that it works on."""
    return k <= THREAD_UNKNOWNS and (lower * (upper + 1) + lower + upper + 1) * k * k * itemsize // 4 <= THREAD_NUMBERS


class ThreadFactors(Factors):
    """One thread for each system, the last axis of arrays; see ``block_threads.cu`` and ``band.cu``."""

    axes: ClassVar[dict[str, int]] = {"F": -1, "order": -1, "found": 0}

    @classmethod
    def factor(cls, blocks, lower: int, upper: int) -> ThreadFactors:
        """Factor blocks (B, T, m, k, k) in C order."""
        _, _, m, k, _ = blocks.shape
        numbers, constants = m * k * k, {"K": k, "LOWER": lower, "UPPER": upper}
        return cls._factor("block_threads", blocks, (m, k, k), max(32 // numbers, 1) * numbers | 1, **constants)

    @classmethod
    def over_band(cls, blocks) -> ThreadFactors:
        """Factor blocks (B, T, 3, 1, 1) in C order, with row interchanges over the band."""
        return cls._factor("band", blocks, (4,), 31)

    @classmethod
    def _factor(cls, source: str, blocks, row: tuple[int, ...], room: int, **constants: int) -> ThreadFactors:
        """Factor by a CUDA source: `row` is the shape of a row of the factors, `room` numbers are in shared memory."""
        B, T, _, k, _ = blocks.shape
        F, order, found = cupy.empty((T, *row, B), blocks.dtype), cupy.empty((T, B), cupy.uint8), cupy.empty((B, 2))
        arguments, shared = (blocks, F, order, found, B, T), WARP * room * blocks.itemsize
        launch(f"{source}.cu", f"{source}_factor", -(-B // WARP), WARP, arguments, shared, **constants)
        room = SHARED_COLUMNS // k * k | 1
        return cls(F=F, order=order, found=found, source=source, room=room, constants=constants)

    def _solve(self, b, x, adjoint: bool) -> None:
        B, T, _, K = b.shape
        arguments, shared = (self.F, self.order, self.found, b, x, B, T, K, int(adjoint)), WARP * self.room * b.itemsize
        grid = -(-B // WARP), min(K, MOST_BLOCKS)
        launch(f"{self.source}.cu", f"{self.source}_solve", grid, WARP, arguments, shared, **self.constants)


MOST_LINKS = {True: 1024, False: 64}  # chains of tiny blocks, and of others, that one thread or warp processes


def block_lu(blocks, lower: int, upper: int, *, pivoting: str = "block", overwrite: bool = False):
    """Factor a batch (B, T, lower + upper + 1, k, k); see `implicitsolve.kernels`.

    Cyclic reduction, in as many steps as T has digits, is for long block tridiagonal matrices and those of large
    blocks. With pivoting over the band the reference factors all but scalar tridiagonal matrices, on the host.
    """
    T, _, k = blocks.shape[1:4]
    if blocks.size == 0 or (pivoting == "band" and (lower, upper, k) != (1, 1, 1)):
        return kernels.block_lu.reference(blocks, lower, upper, pivoting=pivoting)
    blocks = cupy.ascontiguousarray(blocks)
    if pivoting == "band":
        return ThreadFactors.over_band(blocks)
    itemsize = blocks.dtype.itemsize
    if lower == upper == 1 and (k > _cyclic_reduction.IN_REGISTERS[itemsize] or MOST_LINKS[k <= THREAD_UNKNOWNS] < T):
        return _cyclic_reduction.cyclic_reduction(blocks)
    is_tiny = fits_thread(k, lower, upper, itemsize)
    return (ThreadFactors if is_tiny else LaneFactors).factor(blocks, lower, upper)


def _supports(like, *, block_size: int, lower: int, upper: int, **others) -> bool:
    if lower == upper == 1 and _cyclic_reduction.supports(like, block_size=block_size):
        return True
    sizes = block_size, lower, upper, like.dtype.itemsize
    return is_real(like) and (fits_thread(*sizes) or fits_lanes(*sizes))


class ScalarTridiagonal:
    """`scalar_tridiagonal` by one thread for each chain: one launch to factor, one to solve."""

    @staticmethod
    def factor(lower, main, upper) -> tuple[Any, Any, Any]:
        parts = [cupy.empty(main.shape, main.dtype) for _ in range(3)]
        _launch_chains("tridiagonal_factor", main.shape, (lower, main, upper), tuple(parts))
        return parts[0], parts[1], parts[2]

    @staticmethod
    def solve(b, below, scale, above):
        x = cupy.empty(b.shape, b.dtype)
        _launch_chains("tridiagonal_solve", b.shape, (b, below, scale, above), (x,))
        return x


def _launch_chains(function: str, shape: tuple[int, ...], given: tuple[Any, ...], made: tuple[Any, ...]) -> None:
    T, k = shape[-2:]
    chains = made[0].size // T if T else 0
    arrays = (cupy.ascontiguousarray(x) for x in given)
    launch_each("tridiagonal.cu", function, chains, (*arrays, *made, chains, T, k))


kernels.block_lu.implement("cupy", block_lu, _supports)
kernels.scalar_tridiagonal.implement("cupy", ScalarTridiagonal, is_real)
