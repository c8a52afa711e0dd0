"""The kernel `cyclic_reduction` and its factors: levels of the compiled loops, shared out over threads by rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from implicitsolve._typing import HostArray, Indices
from implicitsolve.backends.numba import _cyclic
from implicitsolve.backends.numba._factors import Batch, usable
from implicitsolve.backends.numba._jit import static_size
from implicitsolve.backends.numba._threads import share


class _Level(NamedTuple):
    """Rows stride, 3 stride, ... (`odd` of them) go; `even` stay."""

    stride: int
    odd: int
    even: int


def _levels(T: int) -> list[_Level]:
    levels, stride = [], 1
    while (rows := -(-T // stride)) > 1:
        levels.append(_Level(stride, rows // 2, rows - rows // 2))
        stride *= 2
    return levels


def cyclic_reduction(blocks: HostArray, *, overwrite: bool = False) -> Any:
    """Factor a batch (B, T, 3, k, k) of block tridiagonal matrices; see `implicitsolve.kernels`.

    Memory: the blocks (none with `overwrite`), and 2 k^2 T numbers.
    """
    F = usable(blocks)
    F = F.copy() if F is blocks and not overwrite else F
    B, T, _, k, _ = F.shape
    if T:
        F[:, 0, 0] = F[:, -1, 2] = 0  # outside the matrix; may hold anything
    levels, size = _levels(T), static_size(k)
    pivots = np.zeros((B, T, k), np.int32)  # of a singular block some are never set
    P = [np.zeros((B, level.even, 2, k, k), F.dtype) for level in levels]
    singular, growth = np.full(B, T), np.zeros(B)
    scale = _largest(F)

    def factor(first: int, stride: int, count: int) -> HostArray:
        bad, largest = np.zeros((B, count), bool), np.zeros((B, count))
        flat_bad, flat = bad.reshape(-1), largest.reshape(-1)
        share(
            lambda part: _cyclic.factor_rows(
                F, pivots, stride, first, count, part.start, part.stop, size, flat_bad, flat
            ),
            B * count,
            4.0 * B * count * k**3,
        )
        place = first + stride * np.where(bad.any(axis=1), bad.argmax(axis=1), T)
        np.minimum(singular, place, out=singular)
        return largest.max(axis=1)

    if F.size:
        for level, multipliers in zip(levels, P):
            entries = factor(level.stride, 2 * level.stride, level.odd)
            largest = np.zeros(B * level.even)

            def update(part: slice, level: _Level = level, P: HostArray = multipliers, largest: HostArray = largest):
                _cyclic.update_rows(F, P, pivots, level.stride, level.even, part.start, part.stop, size, largest)

            share(update, largest.size, 12.0 * largest.size * k**3)
            np.maximum(growth, entries * np.maximum(1.0, largest.reshape((B, -1)).max(axis=1)), out=growth)
        np.maximum(growth, factor(0, 1, 1), out=growth)
    singular = np.where(singular < T, singular, -1)
    with np.errstate(invalid="ignore", divide="ignore"):
        growth = np.where(singular < 0, np.where(scale > 0, growth / scale, 1.0), np.inf)
    return _Cyclic(singular, growth, F=F, pivots=pivots, P=P, levels=levels)


def _largest(F: HostArray) -> HostArray:
    """Largest magnitude of each system's entries."""
    return np.abs(F).max(axis=(1, 2, 3, 4), initial=0.0).astype(np.float64)


class _Cyclic(Batch):
    """Levels of eliminated rows."""

    arrays = ("F", "pivots")
    F: HostArray
    pivots: HostArray
    P: list[HostArray]
    levels: list[_Level]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return super().nbytes + sum(multipliers.nbytes for multipliers in self.P)

    def take(self, indices: Indices) -> Any:
        """Return the factors of some systems."""
        other = super().take(indices)
        other.P = [multipliers[indices] for multipliers in self.P]
        return other

    def _solve(self, x: HostArray, adjoint: bool) -> None:
        B, T, k, K = x.shape
        flat = x.reshape((B, T * k, K))
        F, pivots, cost = self.F, self.pivots, 2.0 * k * k * K

        def each(count: int, loop: Any, *arguments: Any) -> None:
            share(lambda part: loop(*arguments, part.start, part.stop, flat), B * count, cost * B * count)

        for level, P in zip(self.levels, self.P):
            odd = (2 * level.stride, level.stride, level.odd)
            if adjoint:
                each(level.odd, _cyclic.solve_rows_adjoint, F, pivots, *odd)
                each(level.even, _cyclic.reduce_rows_adjoint, F, level.stride, level.even)
            else:
                each(level.even, _cyclic.reduce_rows, P, level.stride)
        each(1, _cyclic.solve_rows_adjoint if adjoint else _cyclic.solve_rows, F, pivots, 1, 0, 1)
        for level, P in zip(reversed(self.levels), reversed(self.P)):
            if adjoint:
                each(level.odd, _cyclic.expand_rows_adjoint, P, level.stride, level.odd)
            else:
                each(level.odd, _cyclic.solve_rows, F, pivots, 2 * level.stride, level.stride, level.odd)
        x[self.singular >= 0] = np.nan
