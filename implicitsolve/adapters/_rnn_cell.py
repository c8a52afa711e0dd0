"""The mathematics of an implicit RNN's transition, row by row: phi of a sum over all neighbours.

The equations are those of Kazi (2016), section 4.4. What follows the matrix products is in `kernels.rnn`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self

from implicitsolve._namespace import array_namespace, is_cupy_array
from implicitsolve._typing import Array
from implicitsolve.adapters import kernels
from implicitsolve.adapters._cell import Cell, Cotangents, Distances
from implicitsolve.adapters._rows import FEW, InputWeights, Run, each_times

NAMES = ("P", "N", "V", "b")


def shapes(d: int, k: int, lower: int, upper: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters by name."""
    return {"P": (lower, k, k), "N": (upper, k, k), "V": (k, d), "b": (k,)}


@dataclass(frozen=True, eq=False)
class RNNCell(Cell):
    """f(h_1, ..., h_m, x) = phi(sum_j W_j h_j + V x + b), where W_j are the blocks of P, then those of N.

    The neighbours are the positions at -1, -2, ... and at 1, 2, ...
    """

    activation: str

    name = "implicit_rnn"

    @classmethod
    def of(cls, parameters: Mapping[str, Array], activation: str) -> Self:
        """Take the parameters by their names."""
        P, N = parameters["P"], parameters["N"]
        offsets = (*range(-1, -P.shape[0] - 1, -1), *range(1, N.shape[0] + 1))
        x = InputWeights.of([parameters["V"]], [parameters["b"]])
        return cls(offsets, x, array_namespace(P).concat([P, N], axis=0), activation)

    def at(self, parameters: Mapping[str, Array]) -> Self:
        return self.of(parameters, self.activation)

    @property
    def factor_count(self) -> int:
        """One, phi'."""
        return 1

    @property
    def takes_sequences(self) -> bool:
        return self.rnn.takes_sequences

    @cached_property
    def is_nearly_diagonal(self) -> bool:
        """Whether most of the weights' squares are on their diagonals: else these save no evaluation."""
        xp = array_namespace(self.weights)
        diagonals = xp.linalg.diagonal(self.weights)
        return 2.0 * float(xp.sum(diagonals**2)) > float(xp.sum(self.weights**2))

    @cached_property
    def rnn(self) -> Any:
        """Elementwise work after the matrix products."""
        return kernels.rnn.select(self.weights, size=self.size)

    @cached_property
    def joined_weights(self) -> Array:
        """The weights side by side, (k, m k)."""
        xp = array_namespace(self.weights)
        return xp.reshape(xp.permute_dims(self.weights, (1, 0, 2)), (self.size, -1))

    def project(self, x: Array) -> tuple[Array, ...]:
        return (self.x.project(x)[0, ...],)

    def linearize(
        self, x: tuple[Array, ...], neighbours: Sequence[Array], factors: Array, distances: Distances = None
    ) -> Array:
        return self.rnn.value(self.activation, self.products(neighbours), x[0], factors, distances)

    def push(
        self, factors: Array, dneighbours: Sequence[Array], distances: Distances = None, extra: Array | None = None
    ) -> Array:
        return self.rnn.push(self.products(dneighbours, extra), factors, distances)

    def pull_back(self, factors: Array, w: Array, distances: tuple[int, ...], length: int) -> Array:
        return self.rnn.gather(self.pull(factors, w), distances, length)

    def pull_sums(self, factors: Array, w: Array) -> Cotangents:
        return Cotangents([factors[0, ...] * w])

    def to_neighbours(self, factors: Array, sums: Cotangents) -> tuple[Array, ...]:
        (sum_,) = sums.arguments
        return tuple(each_times([sum_] * len(self.offsets), self.weights, lambda: self.joined_weights))

    def states(self, neighbours: Sequence[Array], factors: Array) -> list[Array]:
        return list(neighbours)

    def recurrent(self, states: Sequence[Array]) -> list[Array]:
        return [sum(self.products(states))]

    def recurrence(self, of: str) -> Run | None:
        """One of these, with the network's own states for neighbours; "step" and "residual" only on a device."""
        if of in ("step", "residual") and not is_cupy_array(self.weights):
            return None
        if of == "residual" and self.size > FEW:
            return None
        weights = self.weights if of == "pull" else self.transposed
        if of == "step":
            weights = array_namespace(weights).sum(weights, axis=0, keepdims=True)
        return partial(self.rnn.run, of if of in ("push", "pull") else self.activation, weights)

    def diagonals(self, factors: Array) -> tuple[Array, ...]:
        """Exact ones."""
        diagonals = array_namespace(factors).linalg.diagonal(self.weights)
        return tuple(factors[0, ...] * diagonals[j, :] for j in range(len(self.offsets)))

    def blocks(self, factors: Array) -> Array:
        xp = array_namespace(factors)
        return xp.expand_dims(factors[0, ...], axis=-1) * xp.expand_dims(self.weights, axis=1)

    def to_weights(
        self, inputs: Array, neighbours: Sequence[Array], factors: Array, sums: Cotangents
    ) -> dict[str, Array]:
        (sum_,), lower = sums.arguments, sum(offset < 0 for offset in self.offsets)
        xp = array_namespace(inputs)
        sum_T = xp.matrix_transpose(sum_)
        found = xp.stack([xp.matmul(sum_T, h) for h in neighbours])
        P, N = found[:lower, ...], found[lower:, ...]
        return {"P": P, "N": N, "V": xp.matmul(sum_T, inputs), "b": xp.sum(sum_, axis=0)}

    def step(self, x: tuple[Array, ...], previous: Array) -> Array:
        """The ordinary RNN with the sum of all W_j."""
        return self.value(x, [previous] * len(self.offsets))


@dataclass(frozen=True, eq=False)
class ElmanCell(RNNCell):
    """An RNN of the previous position alone, with other names for its parameters."""

    has_bias: bool = True

    name = "elman"

    @classmethod
    def of(cls, parameters: Mapping[str, Array], activation: str) -> Self:
        """Take W, V and perhaps b."""
        W, V, xp = parameters["W"], parameters["V"], array_namespace(parameters["W"])
        b = parameters["b"] if "b" in parameters else xp.zeros_like(W[:, 0])
        return cls((-1,), InputWeights.of([V], [b]), xp.stack([W]), activation, "b" in parameters)

    def to_weights(
        self, inputs: Array, neighbours: Sequence[Array], factors: Array, sums: Cotangents
    ) -> dict[str, Array]:
        found = super().to_weights(inputs, neighbours, factors, sums)
        gradients = {"W": found["P"][0, ...], "V": found["V"]}
        return gradients | ({"b": found["b"]} if self.has_bias else {})
