"""Ragged batches as tall matrices, in which the neighbours of all positions are the same matrix, shifted.

Weights multiply such matrices, and recurrences run along them, one position of all sequences at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from array_api_compat import device

from implicitsolve._arrays.host import from_host
from implicitsolve._arrays.namespace import array_namespace
from implicitsolve._typing import Array, Arrays, Indices
from implicitsolve.adapters import kernels
from implicitsolve.adapters._common import ByFields, zeros
from implicitsolve.adapters.kernels._recurrence import Lags


class InputWeights(NamedTuple):
    """Weights and biases of everything that is linear in the inputs, block below block."""

    W: Array  # (blocks k, d)
    b: Array  # (blocks, k)

    @classmethod
    def of(cls, W: Sequence[Array], b: Sequence[Array]) -> InputWeights:
        """Stack blocks W_i (k, d) and b_i (k,)."""
        xp = array_namespace(W[0])
        return cls(xp.concat(list(W), axis=0), xp.stack(list(b)))

    def project(self, x: Array) -> Array:
        """Return W_i x + b_i for x (n, d), shape (blocks, n, k)."""
        projected = self.linear(x)
        projected += array_namespace(x).expand_dims(self.b, axis=1)
        return projected

    def linear(self, x: Array) -> Array:
        """Return W_i x in one GEMM, as contiguous blocks."""
        xp = array_namespace(x)
        merged = product(x, contiguous(self.W))
        blocks, k = self.b.shape
        return xp.stack([merged[:, i * k : (i + 1) * k] for i in range(blocks)])

    def pull(self, cotangents: Sequence[Array]) -> Array:
        """The cotangent of x, for cotangents (n, k) of each block."""
        xp = array_namespace(self.W)
        return product(xp.concat(list(cotangents), axis=1), self.W)

    def astype(self, dtype: object) -> InputWeights:
        xp = array_namespace(self.W)
        return InputWeights(xp.astype(self.W, dtype), xp.astype(self.b, dtype))


def along(rows: Array) -> Array:
    """Rows (n, k) as factors of the rows of n matrices: diag(row) on the left."""
    return array_namespace(rows).expand_dims(rows, axis=-1)


def across(rows: Array) -> Array:
    """Rows (n, k) as factors of the columns of n matrices: diag(row) on the right."""
    return array_namespace(rows).expand_dims(rows, axis=-2)


def identity(like: Array) -> Array:
    return array_namespace(like).eye(like.shape[0], dtype=like.dtype, device=device(like))


def contiguous(weights: Array) -> Array:
    """Transposes of matrices in memory of their own: products of few rows with views took up to 12 % longer."""
    xp = array_namespace(weights)
    views = xp.matrix_transpose(weights)
    transposed = xp.empty(views.shape, dtype=weights.dtype, device=device(weights))
    transposed[...] = views
    return transposed


def join_sides(weights: Array) -> Array:
    """Matrices (c, k, k) side by side, (k, c k), transposed: one wide product takes up to 8 % less time than c do."""
    c, k, _ = weights.shape
    return contiguous(array_namespace(weights).reshape(weights, (c * k, k)))


def product(x: Array, y: Array) -> Array:
    return array_namespace(x).matmul(x, y)


def split(y: Array, m: int) -> list[Array]:
    k = y.shape[-1] // m
    return [y[..., j * k : (j + 1) * k] for j in range(m)]


def as_stack(y: Array, k: int) -> Array:
    """Blocks (..., k) side by side in a matrix as a stack, perhaps a view."""
    xp, rows = array_namespace(y), y.ndim - 1
    return xp.permute_dims(xp.reshape(y, (*y.shape[:-1], -1, k)), (rows, *range(rows), rows + 1))


def affine_gradients(sum_: Array, inputs: Array, state: Array, is_diagonal: bool) -> dict[str, Array]:
    """Gradients of W, U and b in W x + U h + b, for the cotangent of the rows of that sum; U may be a diagonal."""
    xp = array_namespace(sum_)
    sum_T = xp.matrix_transpose(sum_)
    U = xp.sum(sum_ * state, axis=0) if is_diagonal else product(sum_T, state)
    return {"W": product(sum_T, inputs), "U": U, "b": xp.sum(sum_, axis=0)}


@dataclass(frozen=True, eq=False)
class Rows(ByFields):
    """Places of a ragged batch's positions in one tall matrix, in which a neighbour is a row nearby.

    The matrix holds sequence after sequence, each in ``strides[b]`` rows: its positions, then separators, as many as
    a neighbour may lie beyond an end. `margin` spare rows follow: ``count = sum(strides) + margin`` rows, of which
    padding takes none. Products with a weight matrix are then single GEMMs, and the states of all neighbours at one
    distance are the same matrix, shifted: `pack` returns it with `margin` zero rows more on either side, so that
    ``packed[margin + shift : margin + shift + count]`` is a view of them.
    """

    lengths: Indices  # (B,) positions of each sequence
    strides: Indices  # (B,) its rows
    blocks: int  # T, the length of the padded sequences
    margin: int  # the largest shift
    source: Array | None = None  # where a row comes from (B T where it holds no position); None where nothing is padded
    place: Array | None = None  # where a position goes (`spare_row` if padded)

    @classmethod
    def of(cls, lengths: Indices, blocks: int, margin: int, like: Array) -> Rows:
        """Lay out sequences of these lengths, padded to `blocks`, with index arrays on the device of `like`."""
        return cls._with(lengths, lengths + margin, blocks, margin, like)

    @classmethod
    def _with(cls, lengths: Indices, strides: Indices, blocks: int, margin: int, like: Array) -> Rows:
        rows = cls(lengths, strides, blocks, margin)
        if (lengths == blocks).all() and (strides == strides[0]).all():
            return rows
        valid = np.arange(blocks) < lengths[:, None]
        positions = np.flatnonzero(valid)
        at = rows.positions
        place = np.full(valid.size, rows.spare_row)
        place[positions] = at
        source = np.full(rows.count + 2 * margin, valid.size)
        source[at + margin] = positions
        return cls(lengths, strides, blocks, margin, from_host(source, like), from_host(place, like))

    def half(self, parity: int, like: Array) -> tuple[Rows, Array]:
        """Layout of the positions with t % 2 == parity, and the rows of this layout of which it consists.

        Both halves have the same strides. One separator for each sequence of even length is enough: where the length
        is odd, the last row of the odd positions is free.
        """
        lengths, strides = (self.lengths + 1 - parity) // 2, self.lengths // 2 + 1
        part = Rows._with(lengths, strides, (self.blocks + 1 - parity) // 2, 1, like)
        rows = np.full(part.count, self.spare_row)
        system, slot = part.owners
        is_position = slot < lengths[system]
        rows[: part.body][is_position] = (self.first[system] + 2 * slot + parity)[is_position]
        return part, from_host(rows, like)

    @cached_property
    def systems(self) -> int:
        return len(self.lengths)

    @cached_property
    def body(self) -> int:
        return int(self.strides.sum())

    @cached_property
    def count(self) -> int:
        return self.body + self.margin

    @cached_property
    def empty(self) -> Any:
        """Which rows hold no position, with the margins."""
        return self.source == self.systems * self.blocks

    @property
    def first(self) -> Indices:
        return np.cumsum(self.strides) - self.strides

    @property
    def spare_row(self) -> int:
        """A row that holds no position: where there is one, the last separator."""
        return self.body - int(self.strides[-1] > self.lengths[-1])

    @property
    def owners(self) -> tuple[Indices, Indices]:
        """Sequence of each row but the spare ones, and the row's number in it."""
        system = np.repeat(np.arange(self.systems), self.strides)
        return system, np.arange(self.body) - self.first[system]

    @property
    def positions(self) -> Indices:
        system, slot = self.owners
        return np.flatnonzero(slot < self.lengths[system])

    def sequences(self, matrix: Array) -> Array:
        """Rows (..., count, k) with their separators, as (..., B, T + separators, k): a view, if nothing is padded."""
        xp, B = array_namespace(matrix), self.systems
        return xp.reshape(matrix[..., : self.body, :], (*matrix.shape[:-2], B, self.body // B, matrix.shape[-1]))

    def pack(self, x: Array) -> Array:
        """Matrix (count + 2 margin, k) of the positions of x (B, T, k); all other rows are zero."""
        xp = array_namespace(x)
        B, T, k = x.shape
        if self.source is not None and T > 0:
            flat = xp.reshape(x, (B * T, k))
            if not isinstance(x, np.ndarray):
                return take_or_zero(flat, self.source, B * T)
            return _without(flat.take(self.source, axis=0, mode="clip"), self.empty)
        packed = zeros((self.count + 2 * self.margin, k), x)
        if T > 0:
            body = xp.reshape(packed[self.margin : self.margin + self.body, :], (B, self.body // B, k))  # a view
            body[:, :T, :] = x
        return packed

    def inner(self, packed: Array) -> Array:
        """The rows of a packed matrix without its margins, a view."""
        return packed[self.margin : self.margin + self.count, :]

    def shift(self, packed: Array, shift: int) -> Array:
        """The rows `shift` further down in a packed matrix, a view: the neighbours at that distance."""
        return packed[self.margin + shift : self.margin + shift + self.count, ...]

    def unpack(self, rows: Array) -> Array:
        """Positions (B, T, k) of a matrix, zero where padded; perhaps a view, and the matrix may be changed."""
        xp = array_namespace(rows)
        B, T, k = self.systems, self.blocks, rows.shape[1]
        if self.place is not None and isinstance(rows, np.ndarray):
            rows[self.spare_row] = 0.0
            return rows.take(self.place, axis=0).reshape(B, T, k)
        if self.place is not None:
            return xp.reshape(take_or_zero(rows, self.place, self.spare_row), (B, T, k))
        return xp.reshape(rows[: self.body, :], (B, self.body // B, k))[:, :T, :]

    def clear(self, rows: Array) -> Array:
        """Rows (..., count, k), zero where they hold no position; perhaps in the same memory."""
        if self.place is not None:
            return _without(rows, self.empty[self.margin : self.margin + self.count])
        xp, (*stacks, _, k), B = array_namespace(rows), rows.shape, self.systems
        body = xp.reshape(rows[..., : self.body, :], (*stacks, B, self.body // B, k))  # a view
        body[..., self.blocks :, :] = 0.0
        rows[..., self.body :, :] = 0.0
        return rows

    def take(self, indices: Indices, like: Array) -> tuple[Rows, Array]:
        """Layout of some of the sequences, and the rows of this layout of which it consists."""
        part = Rows._with(self.lengths[indices], self.strides[indices], self.blocks, self.margin, like)
        shift = np.repeat(self.first[indices] - part.first, part.strides)
        rows = np.append(np.arange(part.body) + shift, np.arange(self.body, self.count))
        return part, from_host(rows, like)


def take_or_zero(x: Array, source: Array, none: int) -> Array:
    """Rows of a matrix at the places `source`, zero where that is `none`."""
    return kernels.take_rows.select(x, size=x.shape[-1])(x, source, none)


def _without(rows: Array, empty: Array) -> Array:
    """Rows (..., n, k) with zeros where `empty` (n,) is True; assignment to a mask would synchronize a GPU."""
    if isinstance(rows, np.ndarray):
        rows[..., empty, :] = 0.0
        return rows
    return kernels.clear_rows.select(rows, size=rows.shape[-1])(rows, empty)


# Recurrences


SMALL_STATE = 32  # numbers in a state up to which a device passes over memory once, matrix products several times

Run: TypeAlias = Callable[..., Array]
"""``run(x, begin, lags, plan, given=None)``, a whole recurrence, as `kernels.recurrence` with its step."""


def stepwise(step: Callable[[tuple[Array, ...], tuple[Array, ...]], Array]) -> Run:
    """The recurrence of ``step(x, states)``, which returns the next states (m, k) from those `lags` steps ago."""

    def pair(x: tuple[Array, ...], states: tuple[Array, ...]) -> tuple[Array, Array]:
        value = step(x, states)
        return value, value

    return partial(kernels.recurrence, pair)


def sweep(run: Run, x: Arrays, rows: Rows, lags: Lags, starts: dict[int, Array]) -> dict[int, Array]:
    """Run a recurrence from one end of every sequence, or from both at once, as one batch.

    `x` are projections, with the rows of `rows` on axis -2; `lags` are the ages of its states in steps, at least 1.
    `starts` has, for the direction +1 (from the first position to the last) or -1, or both, the states (B, max(lags),
    k) that went before, the latest first. For each direction the states (B, T, k) are returned, zero where padded.
    """
    begins, plan = list(starts.values()), _plan(rows, list(starts))
    begin = begins[0] if len(begins) == 1 else array_namespace(x[0]).concat(begins, axis=0)
    found = run(x, begin, lags, plan)
    found = array_namespace(found).reshape(found, (len(starts), rows.systems, rows.blocks, begin.shape[-1]))
    return {direction: found[i, ...] for i, direction in enumerate(starts)}


def sweep_residual(run: Run, x: Arrays, rows: Rows, lags: Lags, starts: dict[int, Array], given: Array) -> Array:
    """States (B, T, k) minus the step of each position, in one direction, from those before it."""
    ((direction, start),) = starts.items()
    flat = array_namespace(given).reshape(given, (rows.systems * rows.blocks, start.shape[-1]))
    return array_namespace(given).reshape(run(x, start, lags, _plan(rows, [direction]), flat), given.shape)


def _plan(rows: Rows, directions: list[int]) -> kernels.Plan:
    """The plan of the runs, direction by direction, sequence by sequence; it is kept with the rows."""
    plans: dict[tuple[int, ...], kernels.Plan] = rows.__dict__.setdefault("_plans", {})
    if tuple(directions) in plans:
        return plans[tuple(directions)]
    count = len(directions) * rows.systems
    lengths, firsts = (np.tile(part, len(directions)) for part in (rows.lengths, rows.first))
    ways = np.repeat(np.sign(directions), rows.systems)
    begins = np.where(ways > 0, 0, lengths - 1)
    targets = rows.blocks * np.arange(count) + begins
    plan = plans[tuple(directions)] = kernels.Plan(lengths, firsts + begins, targets, ways, count * rows.blocks)
    return plan
