"""Products with block-banded matrices whose block rows are split over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.distributed._array import DistributedArray
from implicitsolve.distributed._communicator import has_neighbours
from implicitsolve.distributed._halo import padded
from implicitsolve.operators._block_banded_products import Products


class BandProducts:
    """As `Products`: each rank multiplies its own block rows, and sends or gets what lies beyond their columns.

    Parameters
    ----------
    blocks : DistributedArray (*batch, T, lower + upper + 1, k, k)
        Split along T.
    lower, periodic : int, bool
        As of `BlockBandedMatrix`.

    Raises
    ------
    ValueError
        From the first product, if another axis is split, or a rank has fewer block rows than the band reaches.
    """

    def __init__(self, blocks: DistributedArray, lower: int, periodic: bool) -> None:
        self.blocks, self.lower, self.upper = blocks, lower, blocks.local.shape[-3] - 1 - lower
        self.periodic = periodic
        self.comm: Any = blocks.comm

    @cached_property
    def own(self) -> Products:
        """Products with the blocks that stand in this rank's own columns."""
        blocks, reach = self.blocks, max(self.lower, self.upper)
        if blocks.axis != blocks.ndim - 4 or (self.comm.size > 1 and min(blocks.counts) < reach):
            raise ValueError(
                f"BlockBandedMatrix: the blocks must be split along T (axis -4), and every rank must have at least "
                f"max(lower, upper) = {reach} block rows, got {blocks!r}"
            )
        return Products(blocks.local, self.lower, self.periodic and self.comm.size == 1)

    def times(self, x: DistributedArray) -> DistributedArray:
        """A x for columns x (*batch, T, k, K); one message to each neighbour."""
        y = self.own.times(self._local(x))
        to_next, to_previous = x.local[..., y.shape[-3] - self.lower :, :, :], x.local[..., : self.upper, :, :]
        from_previous, from_next = self._exchanged(to_previous, to_next)
        with np.errstate(all="ignore"):  # entries that are not finite are the solver's to report
            for given, spans in ((from_previous, self._before()), (from_next, self._after())):
                if given is not None:
                    for j, rows, places in spans:
                        y[..., rows, :, :] += np.matmul(self.blocks.local[..., rows, j, :, :], given[..., places, :, :])
        return DistributedArray(y, x.axis, x.comm, x.counts)

    def adjoint_times(self, x: DistributedArray) -> DistributedArray:
        """A^H x for columns x (*batch, T, k, K); one message to each neighbour."""
        w = self._local(x)
        y = self.own.adjoint_times(w)
        shape, ending = y.shape[:-3], y.shape[-2:]
        to_previous = np.zeros((*shape, self.lower, *ending), y.dtype)
        to_next = np.zeros((*shape, self.upper, *ending), y.dtype)
        with np.errstate(all="ignore"):
            for given, spans in ((to_previous, self._before()), (to_next, self._after())):
                for j, rows, places in spans:
                    adjoints = _adjoints(self.blocks.local[..., rows, j, :, :])
                    given[..., places, :, :] += np.matmul(adjoints, w[..., rows, :, :])
            from_previous, from_next = self._exchanged(to_previous, to_next)
            if from_previous is not None:
                y[..., : self.upper, :, :] += from_previous
            if from_next is not None:
                y[..., y.shape[-3] - self.lower :, :, :] += from_next
        return DistributedArray(y, x.axis, x.comm, x.counts)

    def _exchanged(self, to_previous: HostArray, to_next: HostArray) -> tuple[HostArray | None, HostArray | None]:
        """What the neighbours give for this; None beyond the ends, and of no blocks."""
        if self.comm.size == 1 or not (self.lower or self.upper):
            return None, None
        both = (np.ascontiguousarray(part) if part.shape[-3] else None for part in (to_previous, to_next))
        return self.comm.exchange(*both, periodic=self.periodic)

    def _before(self) -> Iterator[tuple[int, slice, slice]]:
        """Block diagonals j whose first own rows stand in columns of the rank before, and which of its last `lower`."""
        for j in range(self.lower):
            reach = self.lower - j
            yield j, slice(0, reach), slice(j, self.lower)

    def _after(self) -> Iterator[tuple[int, slice, slice]]:
        """The same of the last own rows, and the first `upper` columns of the rank after."""
        length = self.blocks.local.shape[-4]
        for reach in range(1, self.upper + 1):
            yield self.lower + reach, slice(length - reach, length), slice(0, reach)

    def _local(self, x: DistributedArray) -> HostArray:
        """The local part of a vector that is split as the matrix is."""
        if x.axis != x.ndim - 3 or not self.blocks.counts.is_same(x.counts):
            raise ValueError(f"the block rows of a matrix and a vector must be split alike, got {self.blocks!r}, {x!r}")
        return x.local


def transposed(blocks: DistributedArray, lower: int, periodic: bool, *, conjugate: bool) -> DistributedArray:
    """Blocks of the transpose, or the adjoint, whose bands have changed places; one message to each neighbour."""
    comm: Any = blocks.comm
    length, width = blocks.local.shape[-4:-2]
    upper = width - 1 - lower
    around = padded(comm, blocks.local, blocks.ndim - 4, upper, lower, periodic=periodic)
    before = upper if has_neighbours(comm, periodic)[0] else 0
    out = np.zeros_like(blocks.local)
    for j in range(width):
        offset = j - upper + before  # from a row to the place of its block among those that are seen
        first, last = max(0, -offset), min(length, around.shape[-4] - offset)
        if first < last:
            rows = around[..., first + offset : last + offset, width - 1 - j, :, :]
            out[..., first:last, j, :, :] = np.swapaxes(rows, -1, -2)
    return DistributedArray(np.conj(out) if conjugate else out, blocks.axis, comm, blocks.counts)


def _adjoints(blocks: HostArray) -> HostArray:
    blocks = np.swapaxes(blocks, -1, -2)
    return np.conj(blocks) if blocks.dtype.kind == "c" else blocks
