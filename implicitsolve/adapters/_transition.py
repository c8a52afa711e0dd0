"""One function of neighbouring states for all positions of a batch at once, and its derivative."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from array_api_compat import device

from implicitsolve._arrays.namespace import array_namespace
from implicitsolve._typing import Array, Arrays, Indices, Namespace
from implicitsolve.adapters._cell import Cell
from implicitsolve.adapters._common import ByFields, DType, quiet, zeros
from implicitsolve.adapters._rows import Rows


def difference(x: Array, y: Array) -> Array:
    """x - y; in the memory of y, where the library can: y is not used again."""
    return np.subtract(x, y, out=y) if isinstance(y, np.ndarray) else x - y


@dataclass(frozen=True, eq=False)
class Map(ByFields):
    """Rows to compute, and the rows on which they depend: of the whole layer, or of one half of the positions."""

    source: Rows  # layout of the neighbours' states
    target: Rows  # that of the results, with the same strides, so that a neighbour is a shifted row
    shifts: tuple[int, ...]  # positions in the source of the neighbours of a row of the target, relative to it
    size: int  # numbers in a state
    is_single: bool  # whether states are (T, size), without an axis for the batch

    def shape(self, rows: Rows) -> tuple[int, ...]:
        return (rows.blocks, self.size) if self.is_single else (rows.systems, rows.blocks, self.size)

    @cached_property
    def is_full(self) -> bool:
        return all(rows.place is None and rows.blocks > 0 for rows in (self.source, self.target))

    def batch(self, x: Array) -> Array:
        return array_namespace(x).expand_dims(x, axis=0) if self.is_single else x

    def unbatch(self, x: Array) -> Array:
        return x[0, ...] if self.is_single else x

    def pack(self, rows: Rows, x: Array) -> Array:
        """Matrix of states, with its margins."""
        return rows.pack(self.batch(x))

    def unpack(self, rows: Rows, matrix: Array) -> Array:
        return self.unbatch(rows.unpack(matrix))

    def neighbours(self, packed: Array) -> tuple[Array, ...]:
        """Views of a packed matrix of the source: one (count, k) for each shift."""
        return tuple(self.source.shift(packed, shift) for shift in self.shifts)

    def gather(self, cotangents: tuple[Array, ...]) -> Array:
        """Sum in each row of the source what its neighbours send to it; the cotangents are overwritten."""
        xp = array_namespace(cotangents[0])
        down = [i for i, shift in enumerate(self.shifts) if shift <= 0]
        if down:  # add all to the nearest, whose row `i + lead` then is row i of the source
            own = max(down, key=lambda i: self.shifts[i])
            total, lead = cotangents[own], -self.shifts[own]
        else:
            own, total, lead = -1, xp.zeros_like(cotangents[0]), 0
        count = total.shape[0]
        for i, shift in enumerate(self.shifts):
            if i != own:
                begin, end = max(0, shift), min(count - lead, count + shift)
                total[begin + lead : end + lead, :] += cotangents[i][begin - shift : end - shift, :]
        return total[lead:, :]

    def exists(self, like: Array) -> tuple[Array, ...]:
        """For each shift, the rows (count,) of positions whose neighbour there is a position too, as booleans."""
        xp = array_namespace(like)
        source, target = (
            rows.pack(xp.ones((rows.systems, rows.blocks, 1), dtype=like.dtype, device=device(like)))
            for rows in (self.source, self.target)
        )
        own = self.target.inner(target)
        return tuple((neighbour * own)[:, 0] != 0.0 for neighbour in self.neighbours(source))

    def take(self, indices: Indices, like: Array) -> tuple[Map, Array]:
        """The map for some of the sequences, and the rows of this target that its target has."""
        target, present = self.target.take(indices, like)
        source = target if self.source is self.target else self.source.take(indices, like)[0]
        return replace(self, source=source, target=target), present


@dataclass(frozen=True, eq=False)
class Transition(ByFields):
    cell: Cell  # the function of one position
    map: Map  # which rows it takes
    inputs: Array  # of the layer, rows of the target
    x: Arrays  # the cell's projections of them
    edges: tuple[Array | None, ...]  # for each offset the neighbours beyond an end, (count, size); None where zero

    @cached_property
    def has_edges(self) -> bool:
        return any(edge is not None for edge in self.edges)

    def with_edges(self, inside: tuple[Array, ...]) -> tuple[Array, ...]:
        """States of the neighbours, row by row, with those beyond the ends."""
        if not self.has_edges:
            return inside
        return tuple(p if edge is None else p + edge for p, edge in zip(inside, self.edges))

    def rows_of(self, states: Array) -> tuple[Array, ...]:
        return self.with_edges(self.map.neighbours(self.map.pack(self.map.source, states)))

    def values(self, neighbours: tuple[Array, ...]) -> Array:
        return self.cell.value(self.x, neighbours)

    @cached_property
    def in_sequences(self) -> bool:
        """Whether the cell takes states as they are, without a matrix of them."""
        return self.map.is_full and not self.has_edges and self.cell.takes_sequences

    def each(self, function: Callable[..., Array], states: Array, factors: Array | None = None) -> Array:
        """``function(own states, x, neighbours, factors, distances)`` of all positions."""
        map, rows = self.map, self.map.target
        if self.in_sequences:
            H, inside = map.batch(states), (..., slice(rows.blocks), slice(None))
            x = tuple(rows.sequences(block)[inside] for block in self.x)
            factors = None if factors is None else rows.sequences(factors)[inside]
            return map.unbatch(function(H, x, (H,) * len(map.shifts), factors, map.shifts))
        packed = map.pack(map.source, states)
        own = rows.inner(packed) if map.source is rows else ()
        neighbours = self.with_edges(map.neighbours(packed))
        return map.unpack(rows, function(own, self.x, neighbours, factors, None))

    @quiet
    def residual(self, states: Array) -> Array:
        if not self.in_sequences and self.map.target.place is not None:  # padding has no row of its own
            return difference(states, self.apply(states))
        return self.each(lambda H, x, near, _, distances: difference(H, self.cell.value(x, near, distances)), states)

    @quiet
    def apply(self, states: Array) -> Array:
        if not self.map.target.blocks:
            return zeros(self.map.shape(self.map.target), states)
        return self.each(lambda _, x, near, __, distances: self.cell.value(x, near, distances), states)

    @quiet
    def linearize(self, states: Array) -> tuple[Array, Derivative]:
        cell, target = self.cell, self.map.target
        factors = cell.new_factors(target.count)
        F = self.each(lambda _, *at: cell.linearize(*at), states, factors)
        if not self.in_sequences:
            factors = target.clear(factors)  # what a neighbour that is not finite left in its separator
        return F, Derivative(cell, self.map, factors)

    def take(self, indices: Indices) -> Transition:
        xp = array_namespace(self.x[0])
        part, present = self.map.take(indices, self.x[0])
        return Transition(self.cell, part, *self._rows(xp, present))

    def halves(self) -> tuple[Transition, Transition]:
        """Even and odd positions, each as a function of the others, for neighbours at -1 and +1."""
        like = self.x[0]
        (even, evens), (odd, odds) = (self.map.target.half(parity, like) for parity in (0, 1))
        from_odd = replace(self.map, source=odd, target=even, shifts=(-1, 0))
        from_even = replace(self.map, source=even, target=odd, shifts=(0, 1))
        xp = array_namespace(like)
        return (
            Transition(self.cell, from_odd, *self._rows(xp, evens)),
            Transition(self.cell, from_even, *self._rows(xp, odds)),
        )

    def _rows(self, xp: Namespace, present: Array) -> tuple[Array, tuple[Array, ...], tuple[Array | None, ...]]:
        inputs, *x = (xp.take(block, present, axis=-2) for block in (self.inputs, *self.x))
        return inputs, tuple(x), tuple(None if edge is None else xp.take(edge, present, axis=0) for edge in self.edges)


@dataclass(frozen=True, eq=False)
class Derivative(ByFields):
    """dF/dH at one state, without the identity: a `Coupling`."""

    cell: Cell
    map: Map
    factors: Array  # (factor_count, count, factor_size); those of separators are undefined, if in sequences

    @cached_property
    def in_sequences(self) -> Array | None:
        """The factors for sequences (factor_count, B, T, factor_size), if the cell takes these."""
        rows = self.map.target
        if not (self.map.is_full and self.cell.takes_sequences):
            return None
        return rows.sequences(self.factors)[..., : rows.blocks, :]

    def of_rows(self) -> Array:
        """The factors, zero where there is no position."""
        return self.factors if self.in_sequences is None else self.map.target.clear(self.factors)

    @quiet
    def matvec(self, v: Array) -> Array:
        map, push, factors = self.map, self.cell.push, self.in_sequences
        if factors is None:
            dneighbours = map.neighbours(map.pack(map.source, v))
            return map.unpack(map.target, push(self.factors, dneighbours))
        return map.unbatch(push(factors, (map.batch(v),) * len(map.shifts), map.shifts))

    @quiet
    def rmatvec(self, w: Array) -> Array:
        map, cell, factors = self.map, self.cell, self.in_sequences
        if factors is None:
            w = map.target.inner(map.pack(map.target, w))
            return map.unpack(map.source, map.gather(cell.pull(self.factors, w)))
        return map.unbatch(cell.pull_back(factors, map.batch(w), map.shifts, map.source.blocks))

    def take(self, indices: Indices) -> Derivative:
        part, present = self.map.take(indices, self.factors)
        return replace(self, map=part, factors=array_namespace(self.factors).take(self.factors, present, axis=1))

    def astype(self, dtype: DType) -> Derivative:
        if self.factors.dtype == dtype:
            return self
        cast = array_namespace(self.factors).astype(self.of_rows(), dtype)
        return replace(self, cell=self.cell.astype(dtype), factors=cast)

    @quiet
    def diagonals(self) -> tuple[Array, ...]:
        """Approximate diagonals of each position's derivatives, one for each neighbour; 0 where that is no position."""
        return tuple(self._inside(list(self.cell.diagonals(self.factors))))

    @quiet
    def blocks(self) -> list[Array]:
        """Each position's derivatives (B, T, size, size), one for each neighbour; 0 where that is no position."""
        k, blocks = self.map.size, self.cell.blocks(self.factors)
        xp = array_namespace(blocks)
        flat = self._inside([xp.reshape(blocks[i, ...], (-1, k * k)) for i in range(blocks.shape[0])])
        return [xp.reshape(block, (*block.shape[:-1], k, k)) for block in flat]

    def _inside(self, matrices: list[Array]) -> list[Array]:
        """New matrices of rows as arrays of positions, zero for those without this neighbour."""
        xp, map = array_namespace(self.factors), self.map
        if map.is_full:
            kept = [map.unpack(map.target, matrix) for matrix in matrices]
            for x, shift in zip(kept, map.shifts):
                if shift < 0:
                    x[..., :-shift, :] = 0.0
                if map.source.blocks - shift < map.target.blocks:
                    x[..., max(0, map.source.blocks - shift) :, :] = 0.0
            return kept
        kept = []
        for matrix, exists in zip(matrices, map.exists(self.factors)):
            inside = xp.where(xp.expand_dims(exists, axis=1), matrix, xp.zeros_like(matrix))
            kept.append(map.unpack(map.target, inside))
        return kept
