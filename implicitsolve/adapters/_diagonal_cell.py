"""Cells with diagonal recurrent weights: each channel is a recurrence of its own, given the inputs.

The derivative of a cell is a p x p block of diagonals, where a state has p parts of k numbers. A linearization keeps
these p^2 diagonals first, and then what the arguments' derivatives need.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, Self

from implicitsolve._namespace import array_namespace
from implicitsolve._typing import Array
from implicitsolve.adapters import kernels
from implicitsolve.adapters._cell import Cell, Cotangents, Distances, InputWeights
from implicitsolve.adapters._matrices import along, identity
from implicitsolve.adapters._rows import Run
from implicitsolve.adapters.kernels._gates import gate, near
from implicitsolve.adapters.kernels._recurrence import block_times


@dataclass(frozen=True, eq=False)
class DiagonalCell(Cell):
    """f(h, x) of the previous position alone, with arguments W x + u*state + b; `weights` are the u, (blocks, k)."""

    suffixes: ClassVar[tuple[str, ...]]  # of the arguments
    parts: ClassVar[int]  # p

    @classmethod
    def shapes(cls, d: int, k: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters by name."""
        return {kind + which: {"W": (k, d), "U": (k,), "b": (k,)}[kind] for which in cls.suffixes for kind in "WUb"}

    @classmethod
    def of(cls, parameters: Mapping[str, Array]) -> Self:
        """Take the parameters by their names."""
        W, U, b = ([parameters[kind + which] for which in cls.suffixes] for kind in "WUb")
        return cls((-1,), InputWeights.of(W, b), array_namespace(U[0]).stack(U))

    def at(self, parameters: Mapping[str, Array]) -> Self:
        return self.of(parameters)

    @cached_property
    def size(self) -> int:
        """Numbers in a state, p k."""
        return self.parts * self.factor_size

    @property
    def takes_sequences(self) -> bool:
        return True

    def linearize(
        self, x: tuple[Array, ...], neighbours: Sequence[Array], factors: Array, distances: Distances = None
    ) -> Array:
        return self.evaluate(x[0], near(neighbours, distances, x[0].shape[-2])[0], factors)

    @abstractmethod
    def evaluate(self, x: Array, state: Array, factors: Array) -> Array:
        """f for the arguments' projections (blocks, ..., k), and its derivatives unless `factors` is None."""

    @abstractmethod
    def push_arguments(self, factors: Array, dy: Array) -> Array:
        """Change of f for changes dy (blocks, n, k) of the arguments."""

    @abstractmethod
    def pull_arguments(self, factors: Array, w: Array) -> list[Array]:
        """Cotangents of the arguments."""

    def recurrent(self, states: Sequence[Array]) -> list[Array]:
        return [self.weights[j, ...] * state for j, state in enumerate(states)]

    def push(
        self, factors: Array, dneighbours: Sequence[Array], distances: Distances = None, extra: Array | None = None
    ) -> Array:
        change = block_times(factors, near(dneighbours, distances, factors.shape[-2])[0])
        return change if extra is None else change + self.push_arguments(factors, extra)

    def pull(self, factors: Array, w: Array) -> tuple[Array, ...]:
        return (block_times(factors, w, transposed=True),)

    def pull_back(self, factors: Array, w: Array, distances: tuple[int, ...], length: int) -> Array:
        return near(self.pull(factors, w), [-distance for distance in distances], length)[0]

    def pull_sums(self, factors: Array, w: Array) -> Cotangents:
        return Cotangents(self.pull_arguments(factors, w), neighbours=self.pull(factors, w))

    def to_neighbours(self, factors: Array, sums: Cotangents) -> tuple[Array, ...]:
        return sums.neighbours or ()

    def to_weights(
        self, inputs: Array, neighbours: Sequence[Array], factors: Array, sums: Cotangents
    ) -> dict[str, Array]:
        xp, found = array_namespace(inputs), {}
        for which, y, state in zip(self.suffixes, sums.arguments, self.states(neighbours, factors)):
            found["W" + which] = xp.matmul(xp.matrix_transpose(y), inputs)
            found["U" + which], found["b" + which] = xp.sum(y * state, axis=0), xp.sum(y, axis=0)
        return found

    def recurrence(self, of: str) -> Run | None:
        """Affine recurrences alone: f itself takes one step of all sequences and channels after the other."""
        if of not in ("push", "pull"):
            return None
        return partial(kernels.affine_recurrence.select(self.weights, size=self.factor_size), of)

    def diagonals(self, factors: Array) -> tuple[Array, ...]:
        """Exact ones, of every part."""
        own = [factors[j * (self.parts + 1), ...] for j in range(self.parts)]
        return (array_namespace(factors).concat(own, axis=-1),)

    def blocks(self, factors: Array) -> Array:
        xp, p, k = array_namespace(factors), self.parts, self.factor_size
        eye = identity(xp.empty((k, k), dtype=factors.dtype, device=factors.device))
        diagonals = [along(factors[j, ...]) * eye for j in range(p * p)]
        rows = [xp.concat(diagonals[i * p : (i + 1) * p], axis=-1) for i in range(p)]
        return xp.expand_dims(xp.concat(rows, axis=-2), axis=0)

    def step(self, x: tuple[Array, ...], previous: Array) -> Array:
        return self.value(x, (previous,))


@dataclass(frozen=True, eq=False)
class DiagonalGRUCell(DiagonalCell):
    """The GRU of `diagonal_gru`; the factors are df/dh, df/dy of z, r and the candidate, and r."""

    name = "diagonal_gru"
    suffixes = ("z", "r", "")
    parts = 1

    @property
    def factor_count(self) -> int:
        return 5

    def evaluate(self, x: Array, state: Array, factors: Array) -> Array:
        u, h, tanh = self.weights, state, array_namespace(x).tanh
        keep, r = gate(u[0, :] * h + x[0, ...]), gate(-(u[1, :] * h + x[1, ...]))
        candidate = tanh(u[2, :] * (r * h) + x[2, ...])
        if factors is not None:
            z = 1.0 - keep
            of_z, of_candidate = z * keep * (candidate - h), z * (1.0 - candidate * candidate)
            of_r = of_candidate * (1.0 - r) * (r * h) * u[2, :]
            factors[0, ...] = keep + of_z * u[0, :] + of_r * u[1, :] + of_candidate * r * u[2, :]
            for j, factor in enumerate((of_z, of_r, of_candidate, r), start=1):
                factors[j, ...] = factor
        return candidate + keep * (h - candidate)

    def push_arguments(self, factors: Array, dy: Array) -> Array:
        return array_namespace(dy).sum(factors[1:4, ...] * dy, axis=0)

    def pull_arguments(self, factors: Array, w: Array) -> list[Array]:
        return [factors[j, ...] * w for j in range(1, 4)]

    def states(self, neighbours: Sequence[Array], factors: Array) -> list[Array]:
        (h,) = neighbours
        return [h, h, factors[4, ...] * h]


@dataclass(frozen=True, eq=False)
class DiagonalLSTMCell(DiagonalCell):
    """The LSTM of `diagonal_lstm`; the factors are d(h, c)/d(h, c), dc/dy of i, f, g and dh/dy of o, and dh/dc."""

    name = "diagonal_lstm"
    suffixes = ("i", "f", "g", "o")
    parts = 2

    @property
    def factor_count(self) -> int:
        return 9

    def evaluate(self, x: Array, state: Array, factors: Array) -> Array:
        xp, u, k = array_namespace(x), self.weights, self.factor_size
        h, c = state[..., :k], state[..., k:]
        i, f, o = (gate(-(u[j, :] * h + x[j, ...])) for j in (0, 1, 3))
        g = xp.tanh(u[2, :] * h + x[2, ...])
        following = f * c + i * g
        t = xp.tanh(following)
        if factors is not None:
            slopes = i * (1.0 - i) * g, f * (1.0 - f) * c, i * (1.0 - g * g)
            of_o, of_c = o * (1.0 - o) * t, o * (1.0 - t * t)
            dc_dh = slopes[0] * u[0, :] + slopes[1] * u[1, :] + slopes[2] * u[2, :]
            all_factors = of_c * dc_dh + of_o * u[3, :], of_c * f, dc_dh, f, *slopes, of_o, of_c
            for j, factor in enumerate(all_factors):
                factors[j, ...] = factor
        return xp.concat([o * t, following], axis=-1)

    def push_arguments(self, factors: Array, dy: Array) -> Array:
        xp = array_namespace(dy)
        dc = xp.sum(factors[4:7, ...] * dy[:3, ...], axis=0)
        return xp.concat([factors[8, ...] * dc + factors[7, ...] * dy[3, ...], dc], axis=-1)

    def pull_arguments(self, factors: Array, w: Array) -> list[Array]:
        of_h, of_c = w[..., : self.factor_size], w[..., self.factor_size :]
        total = of_c + factors[8, ...] * of_h
        return [*(factors[j, ...] * total for j in (4, 5, 6)), factors[7, ...] * of_h]

    def states(self, neighbours: Sequence[Array], factors: Array) -> list[Array]:
        return [neighbours[0][..., : self.factor_size]] * 4
