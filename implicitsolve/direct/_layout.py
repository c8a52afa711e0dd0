"""The order of elimination of a block-banded matrix.

A periodic band is folded: blocks t and T - 1 - t make one block of a matrix without corners. Bands wider than a
kernel takes are merged: p neighbours make one block. Both are a table ``order`` (G, p) of the blocks in each new block,
-1 where none is left; the diagonal of such a place is filled with the largest entry of A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from implicitsolve._arrays.host import from_host, gather
from implicitsolve._arrays.namespace import array_namespace
from implicitsolve._typing import Array, HostArray
from implicitsolve.operators import BlockBandedMatrix


@dataclass(frozen=True)
class Layout:
    """How the blocks of A are arranged for a kernel: unchanged if `order` is None."""

    lower: int
    upper: int
    order: HostArray | None = None

    @classmethod
    def of_bands(cls, A: BlockBandedMatrix) -> Layout:
        """Bands without corners, no wider than the matrix."""
        most = max(A.length - 1, 0)
        if not A.periodic or A.length == 0:
            return cls(min(A.lower, most), min(A.upper, most))
        order = _fold(A.length)
        reach = min(max(A.lower, A.upper), order.shape[0] - 1)
        return cls(reach, reach, order)

    @classmethod
    def tridiagonal(cls, A: BlockBandedMatrix) -> Layout:
        """One block on either side of the diagonal."""
        if (A.lower, A.upper, A.periodic) == (1, 1, False) or A.length == 0:
            return cls(1, 1)
        order = _fold(A.length) if A.periodic else np.arange(A.length)[:, None]
        p = max(A.lower, A.upper, 1)
        padding = np.full((-order.shape[0] % p, order.shape[1]), -1)
        order = np.concatenate([order, padding]).reshape(-1, p * order.shape[1])
        return cls(1, 1, order)

    def blocks(self, A: BlockBandedMatrix) -> Array:
        """The blocks of A so arranged, (B, G, lower + upper + 1, p k, p k): a view where they can stay."""
        xp, T, m, k = array_namespace(A.blocks), A.length, A.structure.width, A.block_size
        blocks = xp.reshape(A.blocks, (_count(A), T, m, k, k))
        if self.order is None:
            first = A.lower - self.lower if T else 0
            return blocks[:, :, first : first + self.lower + self.upper + 1, :, :]
        G, p = self.order.shape
        where, used = self._sources(A)
        flat = xp.reshape(blocks, (-1, T * m, k, k))
        scale = xp.max(xp.abs(gather(xp.permute_dims(flat, (1, 0, 2, 3)), used)), axis=(0, 2, 3))
        unit = xp.eye(k, dtype=A.blocks.dtype, device=A.blocks.device) * xp.astype(scale, flat.dtype)[:, None, None]
        flat = xp.concat([flat, xp.stack([xp.zeros_like(unit), unit], axis=1)], axis=1)
        pieces = xp.take(flat, from_host(where.reshape(-1), flat), axis=1)
        pieces = xp.reshape(pieces, (-1, G, self.lower + self.upper + 1, p, p, k, k))
        return xp.reshape(
            xp.permute_dims(pieces, (0, 1, 2, 3, 5, 4, 6)), (-1, G, self.lower + self.upper + 1, p * k, p * k)
        )

    def vectors(self, b: Array) -> Array:
        """Right-hand sides (B, T, k, K) so arranged."""
        if self.order is None:
            return b
        xp = array_namespace(b)
        padded = xp.concat([b, xp.zeros_like(b[:, :1, :, :])], axis=1)
        order = np.where(self.order < 0, b.shape[1], self.order).reshape(-1)
        arranged = xp.take(padded, from_host(order, b), axis=1)
        return xp.reshape(arranged, (b.shape[0], self.order.shape[0], self.order.shape[1] * b.shape[2], b.shape[3]))

    def restore(self, x: Array, k: int) -> Array:
        """Solutions in the order of A, (B, T, k, K)."""
        if self.order is None:
            return x
        xp, order = array_namespace(x), self.order.reshape(-1)
        places = np.argsort(order, kind="stable")[np.count_nonzero(order < 0) :]
        return xp.take(xp.reshape(x, (x.shape[0], order.size, k, x.shape[3])), from_host(places, x), axis=1)

    def _sources(self, A: BlockBandedMatrix) -> tuple[HostArray, HostArray]:
        """For each new block (g, j) and each of its p x p pieces, where it comes from in the flattened blocks of A."""
        assert self.order is not None  # noqa: S101
        T, m = A.length, A.structure.width
        G = self.order.shape[0]
        offsets = np.arange(G)[:, None] + np.arange(self.lower + self.upper + 1) - self.lower
        columns = np.where(((offsets >= 0) & (offsets < G))[..., None], self.order[offsets % G], -1)
        row, column = self.order[:, None, :, None], columns[:, :, None, :]
        j = column - row + A.lower
        if A.periodic:
            j = j % T
        is_inside = (row >= 0) & (column >= 0) & (j >= 0) & (j < m)
        is_padding = (
            (row < 0) & np.eye(self.order.shape[1], dtype=bool) & (offsets == np.arange(G)[:, None])[..., None, None]
        )
        where = np.where(is_inside, row * m + j, np.where(is_padding, T * m + 1, T * m))
        return where, np.unique(where[where < T * m])


def _fold(T: int) -> HostArray:
    """Pairs (t, T - 1 - t); the middle block of an odd number is alone."""
    order = np.stack([np.arange(T), np.arange(T)[::-1]], axis=1)[: (T + 1) // 2]
    if T % 2:
        order[-1, 1] = -1
    return order


def _count(A: BlockBandedMatrix) -> int:
    return math.prod(A.batch_shape)
