"""Cells that depend on the neighbours of a position, row by row: the GRU's and the RNN's.

The GRU's gates 1-z and r are both 1/(1 + exp(y)), so the block of -r is kept; the implicit GRU is the case of two
neighbours. What is done between two matrix products is in `kernels.mixture` and `kernels.gru`; all of it at once in
`kernels.gru_cell`. The RNN's phi of a sum over all neighbours is that of Kazi (2016), section 4.4; what follows its
matrix products is in `kernels.rnn`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Self

from implicitsolve._arrays.namespace import array_namespace, is_cupy_array
from implicitsolve._typing import Array, Arrays
from implicitsolve.adapters import kernels
from implicitsolve.adapters._cell import Cell, Cotangents, Distances, Factors, GatedCell
from implicitsolve.adapters._rows import (
    SMALL_STATE,
    InputWeights,
    Run,
    across,
    along,
    as_stack,
    contiguous,
    identity,
    join_sides,
    product,
)


@dataclass(frozen=True, eq=False)
class GRUCell(GatedCell):
    """The GRU of `stencil_gru`; its weights are Us_1, ..., Us_m, Uz, -Ur, U."""

    name = "implicit_gru"
    suffixes: ClassVar[tuple[str, ...]] = ("p", "n", "z", "r", "")
    flipped = ("r",)

    @cached_property
    def mixing_count(self) -> int:
        """All but one s_j, and all dhhat/da_j."""
        return 2 * len(self.offsets) - 1

    @property
    def factor_count(self) -> int:
        return self.mixing_count + 5

    @cached_property
    def gates(self) -> Array:
        """Uz and -Ur, (2, k, k)."""
        return self.weights[-3:-1, ...]

    @cached_property
    def U(self) -> Array:
        return self.weights[-1, ...]

    @cached_property
    def gates_transposed(self) -> tuple[Array, Array]:
        """The gates (k, 2 k) and U as they multiply from the right."""
        return join_sides(self.gates), contiguous(self.U)

    @cached_property
    def mixer(self) -> Any:
        """Elementwise work before the matrix products of the gates, and after those of their adjoints."""
        return kernels.mixture.select(self.U, size=self.size, neighbours=len(self.offsets))

    @cached_property
    def gru(self) -> Any:
        return kernels.gru.select(self.U, size=self.size)

    @cached_property
    def whole(self) -> Any:
        """The function as a whole; None where no kernel has it."""
        kernel = kernels.gru_cell.select(self.weights, size=self.size, neighbours=len(self.offsets))
        return kernel(self.weights)

    def whole_for(self, stack: Array) -> Any:
        """The function as a whole, if it takes as many rows as a stack (any, ..., k) has."""
        whole = self.whole
        return None if whole is None or math.prod(stack.shape[1:-1]) > whole.most_rows else whole

    @property
    def takes_sequences(self) -> bool:
        return self.whole is not None or (len(self.offsets) == 2 and self.mixer.takes_sequences)

    def step(self, x: Arrays, previous: Array) -> Array:
        whole = self.whole_for(x[0])
        if whole is not None:
            return whole.step(x[0], previous)
        return self.gate(x[0][len(self.offsets) :, ...], previous)

    def linearize(self, x: Arrays, neighbours: Arrays, factors: Factors, distances: Distances = None) -> Array:
        whole = self.whole_for(x[0])
        if whole is not None:
            return whole.value(x[0], neighbours, factors, distances)
        return super().linearize(x, neighbours, factors, distances)

    def gate(self, x: Array, mixture: Array, factors: Factors = None) -> Array:
        hhat, (gates_T, U_T) = mixture, self.gates_transposed
        keep, reset = self.gru.reset(as_stack(self.times(hhat, gates_T), self.size), x[:2, ...], hhat, factors)
        return self.gru.blend(self.times(reset, U_T), x[2, ...], keep, hhat, factors)

    def push(self, factors: Array, changes: Arrays, distances: Distances = None, extra: Array | None = None) -> Array:
        whole = self.whole_for(factors) if extra is None else None
        if whole is not None:
            return whole.push(factors, changes, distances)
        return super().push(factors, changes, distances, extra)

    def push_gates(self, dmixture: Array, factors: Array, extra: Array | None) -> Array:
        dhhat, (gates_T, U_T) = dmixture, self.gates_transposed
        gates = as_stack(self.times(dhhat, gates_T), self.size)
        if extra is not None:
            gates += extra[:2, ...]
        candidate = self.times(self.gru.push_reset(gates, dhhat, factors), U_T)
        if extra is not None:
            candidate += extra[2, ...]
        return self.gru.push_blend(candidate, gates, dhhat, factors)

    def pull_back(self, factors: Array, w: Array, distances: tuple[int, ...], length: int) -> Array:
        whole = self.whole_for(factors)
        if whole is not None:
            return whole.pull_back(factors, w, distances, length)
        return super().pull_back(factors, w, distances, length)

    def pull_sums(self, factors: Array, w: Array) -> Cotangents:
        whole = self.whole_for(factors)
        if whole is not None:
            neighbours, arguments, side_by_side = whole.pull(factors, w)
            return Cotangents(arguments, neighbours=neighbours, joined=side_by_side)
        mixing, gating = self.split(factors)
        candidate = self.gru.pull_blend(w, gating)
        hhat, gates = self.gru.pull_reset(self.times(candidate, self.U), w, gating)
        hhat, arguments = self.mixer.pull(self.product_sum(gates, self.gates), hhat, mixing)
        return Cotangents([*arguments, gates[0, ...], gates[1, ...], candidate], (hhat,))

    def gradients(self, inputs: Array, neighbours: Arrays, factors: Array, sums: Cotangents) -> list[dict[str, Array]]:
        if sums.joined is None:
            return super().gradients(inputs, neighbours, factors, sums)
        W, U, b = self.whole.gradients(inputs, neighbours, factors, sums.arguments, sums.joined)
        return [{"W": W[j, ...], "U": U[j], "b": b[j, ...]} for j in range(len(U))]

    def to_inputs(self, sums: Cotangents) -> Array:
        if sums.joined is not None:
            return array_namespace(sums.joined).matmul(sums.joined, self.x.W)
        return super().to_inputs(sums)

    def states(self, neighbours: Arrays, factors: Array) -> list[Array]:
        (mixing, gating), last = self.split(factors), neighbours[-1]
        hhat: Any = sum((mixing[j, ...] * (h - last) for j, h in enumerate(neighbours[:-1])), start=last)
        return [*neighbours, hhat, hhat, gating[1, ...] * hhat]

    def recurrence(self, of: str) -> Run | None:
        """The ordinary GRU where a kernel runs it: "step", and the rest for a single neighbour, the mixture itself."""
        run = kernels.gru_recurrence.select(self.U, size=self.size)
        if run is kernels.gru_recurrence.reference or (of != "step" and len(self.offsets) > 1):
            return None
        if of == "residual" and self.size > SMALL_STATE:
            return None
        return partial(run, "value" if of in ("step", "residual") else of, self.gates, self.U)

    def switch(self, x: Arrays, neighbours: Arrays) -> Array:
        """The switch s of the implicit GRU alone, the weight of the previous state."""
        factors = self.new_factors(neighbours[0].shape[0])
        self.mixer.value(self.products(neighbours), x[0][:2, ...], neighbours, factors)
        return factors[0, ...]

    def _shares(self, factors: Array) -> list[tuple[Array, Array]]:
        """For each neighbour s_j and dhhat/da_j."""
        m = len(self.offsets)
        shares = [factors[j, ...] for j in range(m - 1)]
        last: Any = 1.0 - sum(shares[1:], shares[0]) if shares else array_namespace(factors).ones_like(factors[0, ...])
        return list(zip([*shares, last], (factors[m - 1 + j, ...] for j in range(m))))

    def diagonals(self, factors: Array) -> tuple[Array, ...]:
        """Approximate diagonals: the product of two diagonals takes the place of that of two matrices."""
        if self.whole is not None:
            return self.whole.diagonals(factors)
        keep, r, slope_z, slope_r, slope_candidate = (self.split(factors)[1][i, ...] for i in range(5))
        diagonals = array_namespace(factors).linalg.diagonal(self.weights)
        Uz, Ur, U = diagonals[-3, :], diagonals[-2, :], diagonals[-1, :]
        outer = (slope_r * Ur + r) * slope_candidate * U + slope_z * Uz + keep
        return tuple((slope * diagonals[j, :] + s) * outer for j, (s, slope) in enumerate(self._shares(factors)))

    def blocks(self, factors: Array) -> Array:
        xp = array_namespace(factors)
        keep, r, slope_z, slope_r, slope_candidate = (self.split(factors)[1][i, ...] for i in range(5))
        outer = xp.matmul(self.U * across(slope_r), self.gates[1, ...]) + self.U * across(r)
        outer = along(slope_candidate) * outer + along(slope_z) * self.gates[0, ...] + along(keep) * identity(self.U)
        shares = enumerate(self._shares(factors))
        return xp.stack(
            [xp.matmul(outer * across(slope), self.Us[j, ...]) + outer * across(s) for j, (s, slope) in shares]
        )


class StencilGRUCell(GRUCell):
    """The GRU with the parameters of `stencil_gru`; those of the switch are stacks."""

    name = "stencil_gru"
    suffixes = ("s", "z", "r", "")


WEIGHT_NAMES = ("P", "N", "V", "b")


def shapes(d: int, k: int, lower: int, upper: int) -> dict[str, tuple[int, ...]]:
    return {"P": (lower, k, k), "N": (upper, k, k), "V": (k, d), "b": (k,)}


@dataclass(frozen=True, eq=False)
class RNNCell(Cell):
    """The cell phi(sum_j W_j h_j + V x + b); W_j are the blocks of P, of -1, -2, ..., then those of N, of 1, 2, ..."""

    activation: str

    name = "implicit_rnn"

    @classmethod
    def of(cls, parameters: Mapping[str, Array], activation: str) -> Self:
        P, N = parameters["P"], parameters["N"]
        offsets = (*range(-1, -P.shape[0] - 1, -1), *range(1, N.shape[0] + 1))
        x = InputWeights.of([parameters["V"]], [parameters["b"]])
        return cls(offsets, x, array_namespace(P).concat([P, N], axis=0), activation)

    def at(self, parameters: Mapping[str, Array]) -> Self:
        return self.of(parameters, self.activation)

    @property
    def factor_count(self) -> int:
        return 1

    @property
    def takes_sequences(self) -> bool:
        return self.rnn.takes_sequences

    @cached_property
    def is_nearly_diagonal(self) -> bool:
        """Whether the diagonals hold most of the weights' squares: otherwise they save no evaluation."""
        xp = array_namespace(self.weights)
        diagonals = xp.linalg.diagonal(self.weights)
        return 2.0 * float(xp.sum(diagonals**2)) > float(xp.sum(self.weights**2))

    @cached_property
    def rnn(self) -> Any:
        return kernels.rnn.select(self.weights, size=self.size)

    @cached_property
    def joined_weights(self) -> Array:
        """The weights side by side, (k, m k)."""
        xp = array_namespace(self.weights)
        return xp.reshape(xp.permute_dims(self.weights, (1, 0, 2)), (self.size, -1))

    def project(self, x: Array) -> tuple[Array, ...]:
        return (self.x.project(x)[0, ...],)

    def linearize(self, x: Arrays, neighbours: Arrays, factors: Factors, distances: Distances = None) -> Array:
        return self.rnn.value(self.activation, self.products(neighbours), x[0], factors, distances)

    def push(self, factors: Array, changes: Arrays, distances: Distances = None, extra: Array | None = None) -> Array:
        return self.rnn.push(self.products(changes, extra), factors, distances)

    def pull_back(self, factors: Array, w: Array, distances: tuple[int, ...], length: int) -> Array:
        return self.rnn.gather(self.pull(factors, w), distances, length)

    def pull_sums(self, factors: Array, w: Array) -> Cotangents:
        return Cotangents([factors[0, ...] * w])

    def to_neighbours(self, factors: Array, sums: Cotangents) -> tuple[Array, ...]:
        (sum_,) = sums.arguments
        return self.each_times([sum_] * len(self.offsets), self.weights, lambda: self.joined_weights)

    def states(self, neighbours: Arrays, factors: Array) -> list[Array]:
        return list(neighbours)

    def recurrent(self, states: Arrays) -> list[Array]:
        first, *others = self.products(states)
        return [sum(others, first)]

    def recurrence(self, of: str) -> Run | None:
        """The function of a sweep over the network's own states; "step" and "residual" only on a device."""
        if of in ("step", "residual") and not is_cupy_array(self.weights):
            return None
        if of == "residual" and self.size > SMALL_STATE:
            return None
        weights = self.weights if of == "pull" else self.by_columns
        if of == "step":
            weights = array_namespace(weights).sum(weights, axis=0, keepdims=True)
        return partial(self.rnn.run, of if of in ("push", "pull") else self.activation, weights)

    def diagonals(self, factors: Array) -> tuple[Array, ...]:
        """Diagonals of the derivatives, which are exact."""
        diagonals = array_namespace(factors).linalg.diagonal(self.weights)
        return tuple(factors[0, ...] * diagonals[j, :] for j in range(len(self.offsets)))

    def blocks(self, factors: Array) -> Array:
        xp = array_namespace(factors)
        return xp.expand_dims(factors[0, ...], axis=-1) * xp.expand_dims(self.weights, axis=1)

    def to_weights(self, inputs: Array, neighbours: Arrays, factors: Array, sums: Cotangents) -> dict[str, Array]:
        (sum_,), lower = sums.arguments, sum(offset < 0 for offset in self.offsets)
        xp = array_namespace(inputs)
        sum_T = xp.matrix_transpose(sum_)
        found = xp.stack([product(sum_T, h) for h in neighbours])
        P, N = found[:lower, ...], found[lower:, ...]
        return {"P": P, "N": N, "V": product(sum_T, inputs), "b": xp.sum(sum_, axis=0)}

    def step(self, x: Arrays, previous: Array) -> Array:
        """The ordinary RNN with the sum of all W_j."""
        return self.value(x, [previous] * len(self.offsets))


@dataclass(frozen=True, eq=False)
class ElmanCell(RNNCell):
    """An RNN of the previous position alone, with other names for its parameters."""

    has_bias: bool = True

    name = "elman"

    @classmethod
    def of(cls, parameters: Mapping[str, Array], activation: str) -> Self:
        W, V, xp = parameters["W"], parameters["V"], array_namespace(parameters["W"])
        b = parameters["b"] if "b" in parameters else xp.zeros_like(W[:, 0])
        return cls((-1,), InputWeights.of([V], [b]), xp.stack([W]), activation, "b" in parameters)

    def to_weights(self, inputs: Array, neighbours: Arrays, factors: Array, sums: Cotangents) -> dict[str, Array]:
        found = super().to_weights(inputs, neighbours, factors, sums)
        gradients = {"W": found["P"][0, ...], "V": found["V"]}
        return gradients | ({"b": found["b"]} if self.has_bias else {})
