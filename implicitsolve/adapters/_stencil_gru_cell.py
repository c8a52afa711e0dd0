"""The mathematics of a GRU on any stencil, row by row.

With neighbours h_j and the switch s of their arguments a_j, f is an ordinary GRU that starts from the mixture hhat::

    a_j = Ws_j x + Us_j h_j + bs_j      s_j = sigma(a_j) / sum_l sigma(a_l)      hhat = sum_j s_j*h_j
    z = sigma(Wz x + Uz hhat + bz)      r = sigma(Wr x + Ur hhat + br)
    h = (1-z)*hhat + z*tanh(W x + U (r*hhat) + b)

The gates 1-z and r are both 1/(1 + exp(y)), so what is named "gates" holds the weights of z and of -r. What is done
between two matrix products stands in `kernels.mixture` and `kernels.gru`; all of it at once in `kernels.gru_cell`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

from implicitsolve import kernels
from implicitsolve.adapters._common import Array, ByFields, array_namespace, device
from implicitsolve.adapters._gates import (
    InputWeights,
    across,
    affine_gradients,
    along,
    beside,
    contiguous,
    each_times,
    identity,
    product_sum,
    stacked,
    times,
)
from implicitsolve.adapters._sweep import FEW, GRUStep

NAMES = ("Ws", "Us", "bs", "Wz", "Uz", "bz", "Wr", "Ur", "br", "W", "U", "b")


def shapes(d: int, k: int, m: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters by name, for m offsets."""
    one = {"W": (k, d), "U": (k, k), "b": (k,)}
    return {name: (m, *one[name[0]]) if name[1:] == "s" else one[name[0]] for name in NAMES}


class _Values(NamedTuple):
    """f, and what else its weights multiply."""

    hhat: Array
    reset: Array  # r * hhat
    h: Array


class _Cotangents(NamedTuple):
    """Cotangents of all arguments, in the order of the blocks of the input weights, and of hhat.

    A kernel of the whole function finds those of the neighbours in place of hhat's, and the arguments side by side.
    """

    arguments: Sequence[Array]
    hhat: Array = None
    neighbours: tuple[Array, ...] | None = None
    beside: Array = None  # (n, (m + 3) k)


@dataclass(frozen=True, eq=False)
class StencilGRUCell(ByFields):
    """The GRU above, of the positions at `offsets`."""

    offsets: tuple[int, ...]
    x: InputWeights  # blocks Ws_1, ..., Ws_m, Wz, -Wr, W
    weights: Array  # (m + 3, k, k): Us_1, ..., Us_m, Uz, -Ur, U
    name: str = "stencil_gru"

    @classmethod
    def of(cls, parameters: Mapping[str, Array], offsets: tuple[int, ...]) -> StencilGRUCell:
        """Take the parameters by their names."""
        m, names = len(offsets), ("z", "r", "")
        W, U, b = (
            [*(parameters[kind + "s"][j, ...] for j in range(m)), *(parameters[kind + name] for name in names)]
            for kind in "WUb"
        )
        return cls._of(offsets, W, U, b)

    @classmethod
    def _of(cls, offsets: tuple[int, ...], W: list[Array], U: list[Array], b: list[Array]) -> Self:
        """Take those of all arguments, in their order."""
        for blocks in (W, U, b):
            blocks[-2] = -blocks[-2]
        return cls(offsets, InputWeights.of(W, b), array_namespace(U[0]).stack(U))

    @cached_property
    def Us(self) -> Array:
        """Of the switch, (m, k, k)."""
        return self.weights[: len(self.offsets), ...]

    @cached_property
    def gates(self) -> Array:
        """Uz and -Ur, (2, k, k)."""
        return self.weights[-3:-1, ...]

    @cached_property
    def U(self) -> Array:
        """Of the candidate."""
        return self.weights[-1, ...]

    @property
    def size(self) -> int:
        """Numbers in a state, k."""
        return self.weights.shape[-1]

    @property
    def factor_size(self) -> int:
        """Numbers per row of a factor, k."""
        return self.size

    @property
    def factor_count(self) -> int:
        """Those of the mixture, 2 m - 1, and of the gates, 5."""
        return 2 * len(self.offsets) + 4

    @cached_property
    def mixture(self) -> Any:
        """Elementwise work before the matrix products of the gates, and behind those of their adjoints."""
        return kernels.mixture.select(self.U, size=self.size)

    @cached_property
    def gru(self) -> Any:
        """Elementwise work between the matrix products of the gates."""
        return kernels.gru.select(self.U, size=self.size)

    @cached_property
    def whole(self) -> Any:
        """The function as a whole; None where no kernel has it."""
        kernel = kernels.gru_cell.select(self.weights, size=self.size, neighbours=len(self.offsets))
        return kernel(self.weights)

    def whole_for(self, stack: Array) -> Any:
        """The same, if it takes as many rows as a stack (any, ..., k) has."""
        whole = self.whole
        return None if whole is None or math.prod(stack.shape[1:-1]) > whole.most_rows else whole

    @cached_property
    def transposed(self) -> tuple[Array, Array, Array]:
        """Us, gates (k, 2 k) and U as they multiply from the right."""
        return contiguous(self.Us), beside(self.gates), contiguous(self.U)

    @cached_property
    def merged(self) -> Array:
        """The first of these side by side, (k, m k)."""
        return beside(self.Us)

    def project(self, x: Array) -> tuple[Array, ...]:
        """All blocks, (m + 3, n, k)."""
        return (self.x.project(x),)

    @property
    def takes_sequences(self) -> bool:
        """Whether neighbours may be given in their own places, with distances: where a kernel does that at once."""
        return self.whole is not None or (len(self.offsets) == 2 and self.mixture is not kernels.mixture.reference)

    def value(
        self, x: tuple[Array, ...], neighbours: Sequence[Array], distances: tuple[int, ...] | None = None
    ) -> Array:
        """f row by row."""
        return self.linearize(x, neighbours, None, distances)

    def step(self, x: tuple[Array, ...], previous: Array) -> Array:
        """One step of the ordinary GRU: f with the previous state in place of every neighbour."""
        whole = self.whole_for(x[0])
        return self._gated(x[0], previous).h if whole is None else whole.step(x[0], previous)

    def linearize(
        self,
        x: tuple[Array, ...],
        neighbours: Sequence[Array],
        factors: Array,
        distances: tuple[int, ...] | None = None,
    ) -> Array:
        """f row by row, and its derivatives."""
        whole = self.whole_for(x[0])
        if whole is not None:
            return whole.value(x[0], neighbours, factors, distances)
        return self._evaluate(x[0], neighbours, factors, distances).h

    def _evaluate(
        self,
        x: Array,
        neighbours: Sequence[Array],
        factors: Array = None,
        distances: tuple[int, ...] | None = None,
    ) -> _Values:
        m, (mixing, gating) = len(self.offsets), self._split(factors)
        hhat = self.mixture.value(self._arguments(neighbours), x[:m, ...], neighbours, mixing, distances)
        return self._gated(x, hhat, gating)

    def _gated(self, x: Array, hhat: Array, factors: Array = None) -> _Values:
        m, (_, gates_T, U_T) = len(self.offsets), self.transposed
        y = stacked(times(hhat, gates_T), self.size)
        keep, reset = self.gru.reset(y, x[m : m + 2, ...], hhat, factors)
        h = self.gru.blend(times(reset, U_T), x[m + 2, ...], keep, hhat, factors)
        return _Values(hhat, reset, h)

    def _arguments(self, states: Sequence[Array]) -> list[Array]:
        """The products Us_j h_j."""
        return each_times(states, self.transposed[0], lambda: self.merged)

    def _split(self, factors: Array) -> tuple[Array, Array]:
        """Factors of the mixture and of the gates."""
        count = 2 * len(self.offsets) - 1
        return (None, None) if factors is None else (factors[:count, ...], factors[count:, ...])

    def push(
        self,
        factors: Array,
        dneighbours: Sequence[Array],
        distances: tuple[int, ...] | None = None,
        extra: Array | None = None,
    ) -> Array:
        """df for a change of the neighbours, and for changes `extra` of all arguments, shaped like `project`'s."""
        whole = self.whole_for(factors) if extra is None else None
        if whole is not None:
            return whole.push(factors, dneighbours, distances)
        m, (_, gates_T, U_T) = len(self.offsets), self.transposed
        mixing, gating = self._split(factors)
        arguments = self._arguments(dneighbours)
        if extra is not None:
            for j, product in enumerate(arguments):
                product += extra[j, ...]
        dhhat = self.mixture.push(arguments, dneighbours, mixing, distances)
        gates = stacked(times(dhhat, gates_T), self.size)
        if extra is not None:
            gates += extra[m : m + 2, ...]
        candidate = times(self.gru.push_reset(gates, dhhat, gating), U_T)
        if extra is not None:
            candidate += extra[m + 2, ...]
        return self.gru.push_blend(candidate, gates, dhhat, gating)

    def pull(self, factors: Array, w: Array) -> tuple[Array, ...]:
        """Cotangents of the neighbours."""
        return self.to_neighbours(factors, self.pull_sums(factors, w))

    def pull_back(self, factors: Array, w: Array, distances: tuple[int, ...], length: int) -> Array:
        """The sum of these for each neighbour, in its own place of sequences of this length."""
        whole = self.whole_for(factors)
        if whole is not None:
            return whole.pull_back(factors, w, distances, length)
        sums = self.pull_sums(factors, w)
        mixing = self._split(factors)[0]
        return self.mixture.gather(self._to_states(sums), sums.hhat, mixing, distances, length)

    def pull_sums(self, factors: Array, w: Array) -> _Cotangents:
        """Cotangents of all arguments, and of the mixture."""
        whole = self.whole_for(factors)
        if whole is not None:
            neighbours, arguments, beside = whole.pull(factors, w)
            return _Cotangents(arguments, neighbours=neighbours, beside=beside)
        mixing, gating = self._split(factors)
        candidate = self.gru.pull_blend(w, gating)
        hhat, gates = self.gru.pull_reset(times(candidate, self.U), w, gating)
        hhat, arguments = self.mixture.pull(product_sum(gates, self.gates), hhat, mixing)
        return _Cotangents([*arguments, gates[0, ...], gates[1, ...], candidate], hhat)

    def to_neighbours(self, factors: Array, sums: _Cotangents) -> tuple[Array, ...]:
        """Cotangents of the neighbours."""
        if sums.neighbours is not None:
            return sums.neighbours
        return self.mixture.share(self._to_states(sums), sums.hhat, self._split(factors)[0])

    def _to_states(self, sums: _Cotangents) -> list[Array]:
        """The products Us_j^T times the cotangents of the a_j."""
        return [times(sums.arguments[j], self.Us[j, ...]) for j in range(len(self.offsets))]

    def _shares(self, factors: Array) -> tuple[list[Array], list[Array]]:
        """Of each neighbour s_j, and dhhat/da_j."""
        m = len(self.offsets)
        weights = [factors[j, ...] for j in range(m - 1)]
        last = array_namespace(factors).ones_like(factors[0, ...])
        for weight in weights:
            last -= weight
        return [*weights, last], [factors[m - 1 + j, ...] for j in range(m)]

    def recurrence(self, of: str) -> GRUStep | None:
        """The ordinary GRU where a kernel runs it: "step", and a single neighbour's others, whose mixture is itself."""
        run = kernels.gru_recurrence.select(self.U, size=self.size)
        if run is kernels.gru_recurrence.reference or (of != "step" and len(self.offsets) > 1):
            return None
        if of == "residual" and self.size > FEW:
            return None
        return GRUStep("value" if of in ("step", "residual") else of, self.gates, self.U)

    def diagonals(self, factors: Array) -> tuple[Array, ...]:
        """Diagonals of df/dh_j, with the product of two matrices' diagonals for that of their product."""
        if self.whole is not None:
            return self.whole.diagonals(factors)
        xp, (_, gating) = array_namespace(factors), self._split(factors)
        keep, r, slope_z, slope_r, slope_candidate = (gating[i, ...] for i in range(5))
        Us, gates, U = (xp.linalg.diagonal(weights) for weights in (self.Us, self.gates, self.U))
        outer = keep + slope_z * gates[0, :] + slope_candidate * U * (r + slope_r * gates[1, :])
        return tuple(outer * (s + slope * Us[j, :]) for j, (s, slope) in enumerate(zip(*self._shares(factors))))

    def blocks(self, factors: Array) -> Array:
        """df/dh_j, shape (m, n, k, k)."""
        xp, (_, gating) = array_namespace(factors), self._split(factors)
        keep, r, slope_z, slope_r, slope_candidate = (gating[i, ...] for i in range(5))
        outer = xp.matmul(self.U * across(slope_r), self.gates[1, ...])
        outer += self.U * across(r)
        outer *= along(slope_candidate)
        outer += along(slope_z) * self.gates[0, ...]
        outer += along(keep) * identity(self.U)
        found: list[Array] = []
        for j, (s, slope) in enumerate(zip(*self._shares(factors))):
            block = xp.matmul(outer * across(slope), self.Us[j, ...])
            block += outer * across(s)
            found.append(block)
        return xp.stack(found)

    def parameter_push(
        self,
        inputs: Array,
        x: tuple[Array, ...],
        neighbours: Sequence[Array],
        change: Mapping[str, Array],
        dinputs: Array,
        dneighbours: Sequence[Array],
    ) -> Array:
        """df for a change of everything."""
        xp, m = array_namespace(inputs), len(self.offsets)
        factors = self._empty(inputs)
        v = self._evaluate(x[0], neighbours, factors)
        d = self._like(change)
        extra = d.x.project(inputs)
        extra += self.x.linear(dinputs)
        for j, product in enumerate(d._arguments(neighbours)):
            extra[j, ...] += product
        _, gates_T, U_T = d.transposed
        extra[m : m + 2, ...] += stacked(xp.matmul(v.hhat, gates_T), self.size)
        extra[m + 2, ...] += xp.matmul(v.reset, U_T)
        return self.push(factors, dneighbours, extra=extra)

    def _like(self, parameters: Mapping[str, Array]) -> StencilGRUCell:
        """The cell with other parameters."""
        return StencilGRUCell.of(parameters, self.offsets)

    def to_weights(
        self, inputs: Array, neighbours: Sequence[Array], factors: Array, sums: _Cotangents
    ) -> dict[str, Array]:
        """Gradients of the parameters, summed over the rows."""
        xp, m = array_namespace(inputs), len(self.offsets)
        found = self._gradients(inputs, neighbours, factors, sums)
        stacks = {kind + "s": xp.stack([switch[kind] for switch in found[:m]]) for kind in "WUb"}
        return stacks | named(found[m:], ("z", "r", ""))

    def _gradients(
        self, inputs: Array, neighbours: Sequence[Array], factors: Array, sums: _Cotangents
    ) -> list[dict[str, Array]]:
        """Gradients of W, U and b of each argument, in the order of the blocks of the input weights."""
        if sums.beside is None:
            hhat, (_, gating) = self._mixed(factors, neighbours), self._split(factors)
            states = (*neighbours, hhat, hhat, gating[1, ...] * hhat)
            found = [affine_gradients(sum_, inputs, state) for sum_, state in zip(sums.arguments, states)]
        else:
            W, U, b = self.whole.gradients(inputs, neighbours, factors, sums.arguments, sums.beside)
            found = [{"W": W[j, ...], "U": U[j], "b": b[j, ...]} for j in range(len(U))]
        for gradient in found[-2].values():  # the block of -r
            gradient *= -1.0
        return found

    def to_inputs(self, sums: _Cotangents) -> Array:
        """Cotangents of the inputs."""
        if sums.beside is not None:
            return array_namespace(sums.beside).matmul(sums.beside, self.x.W)
        return self.x.pull(sums.arguments)

    def _mixed(self, factors: Array, neighbours: Sequence[Array]) -> Array:
        """Compute hhat from its factors."""
        last = neighbours[-1]
        hhat = 0.0 * last if len(neighbours) == 1 else factors[0, ...] * (neighbours[0] - last)
        for j, h in enumerate(neighbours[1:-1], start=1):
            hhat += factors[j, ...] * (h - last)
        hhat += last
        return hhat

    def astype(self, dtype: Any) -> StencilGRUCell:
        """The same in another precision."""
        weights = array_namespace(self.weights).astype(self.weights, dtype)
        return replace(self, x=self.x.astype(dtype), weights=weights)

    def _empty(self, inputs: Array) -> Array:
        shape = (self.factor_count, inputs.shape[0], self.size)
        return array_namespace(inputs).empty(shape, dtype=inputs.dtype, device=device(inputs))


def named(gradients: list[dict[str, Array]], names: Sequence[str]) -> dict[str, Array]:
    """Gradients of W, U and b under the names of the parameters."""
    return {kind + name: gradient for found, name in zip(gradients, names) for kind, gradient in found.items()}
