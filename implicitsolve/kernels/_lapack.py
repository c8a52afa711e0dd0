"""Block LU by LAPACK, one system after the other: what both ways of factoring share, and their choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels._contract import Factors
from implicitsolve.kernels._lapack_band import factor_band
from implicitsolve.kernels._lapack_blocks import factor_blocks

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
        """Bytes held."""
        return sum(system.nbytes for system in self.systems)

    def take(self, indices: Indices) -> Factors:
        """Return the factors of some systems."""
        return LapackFactors([self.systems[i] for i in indices])

    def solve(self, b: Array, adjoint: bool = False) -> Array:
        """Return A^-1 b or A^-H b for b (B, T, k, K)."""
        x = np.empty(b.shape, dtype=b.dtype)
        with np.errstate(all="ignore"):
            for i, system in enumerate(self.systems):
                x[i] = system.solve(b[i], adjoint) if system.singular < 0 and x[i].size else np.nan
        return x


def block_lu(blocks: Array, lower: int, upper: int, *, pivoting: str = "block", overwrite: bool = False) -> Factors:
    """Factor each system: small blocks, with pivoting over the band, as a scalar band, others block by block."""
    if pivoting == "band" and blocks.shape[-1] < SMALL_BLOCK:
        return _one_by_one(factor_band, blocks, lower, upper)
    return _one_by_one(partial(factor_blocks, pivoting=pivoting), blocks, lower, upper, _room(blocks, overwrite))


def _one_by_one(factor: Callable[..., System], blocks: HostArray, lower: int, upper: int, *out: Any) -> Factors:
    with np.errstate(all="ignore"):
        return LapackFactors([factor(system, lower, upper, *room) for system, *room in zip(blocks, *out)])


def _room(blocks: HostArray, overwrite: bool) -> Iterable[HostArray]:
    """Where the factors of each system go: new arrays, or the blocks if they may be written into and LAPACK can."""
    if overwrite and blocks.flags.c_contiguous and blocks.flags.writeable:
        return blocks
    return (np.empty(blocks.shape[1:], dtype=blocks.dtype) for _ in blocks)


def supports(like: Any, *, length: int, block_size: int, **others: Any) -> bool:
    """Whether there is anything to call LAPACK for."""
    return isinstance(like, np.ndarray) and length * block_size > 0


def pays(*, length: int, block_size: int, **others: Any) -> bool:
    """Whether to take one system after the other: not short ones of small blocks, which the reference does at once."""
    return length > 64 or block_size >= SMALL_BLOCK
