"""The mathematics of a GRU on any stencil, row by row.

With neighbours h_j and the switch s of their arguments a_j, f is an ordinary GRU that starts from the mixture hhat::

    a_j = Ws_j x + Us_j h_j + bs_j      s_j = sigma(a_j) / sum_l sigma(a_l)      hhat = sum_j s_j*h_j
    z = sigma(Wz x + Uz hhat + bz)      r = sigma(Wr x + Ur hhat + br)
    h = (1-z)*hhat + z*tanh(W x + U (r*hhat) + b)

The gates 1-z and r are both 1/(1 + exp(y)), so what is named "gates" holds the weights of z and of -r. What is done
between two matrix products stands in `kernels.mixture` and `kernels.gru`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from implicitsolve import kernels
from implicitsolve.adapters._common import Array, array_namespace, device
from implicitsolve.adapters._gates import (
    InputWeights,
    across,
    along,
    beside,
    contiguous,
    copied,
    identity,
    product_sum,
    stacked,
)

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
    """Cotangents of all arguments, in the order of the blocks of the input weights, and of hhat."""

    arguments: list[Array]
    hhat: Array


@dataclass(frozen=True, eq=False)
class StencilGRUCell:
    """The GRU above, of the positions at `offsets`."""

    offsets: tuple[int, ...]
    x: InputWeights  # blocks Ws_1, ..., Ws_m, Wz, -Wr, W
    Us: Array  # (m, k, k)
    gates: Array  # (2, k, k): Uz and -Ur
    U: Array
    name: str = "stencil_gru"

    @classmethod
    def of(cls, parameters: Mapping[str, Array], offsets: tuple[int, ...]) -> StencilGRUCell:
        """Take the parameters by their names."""
        P, xp = parameters, array_namespace(parameters["U"])
        each = range(len(offsets))
        W = [*(P["Ws"][j, ...] for j in each), P["Wz"], -P["Wr"], P["W"]]
        b = [*(P["bs"][j, ...] for j in each), P["bz"], -P["br"], P["b"]]
        return cls(offsets, InputWeights.of(W, b), P["Us"], xp.stack([P["Uz"], -P["Ur"]]), P["U"])

    @property
    def size(self) -> int:
        """Numbers in a state, k."""
        return self.U.shape[0]

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
    def transposed(self) -> tuple[Array, Array, Array]:
        """Us, gates (k, 2 k) and U as they multiply from the right."""
        return contiguous(self.Us), beside(self.gates), contiguous(self.U)

    def project(self, x: Array) -> tuple[Array, ...]:
        """All blocks, (m + 3, n, k)."""
        return (self.x.project(x),)

    def value(self, x: tuple[Array, ...], neighbours: Sequence[Array]) -> Array:
        """f row by row."""
        return self._evaluate(x[0], neighbours).h

    def step(self, x: tuple[Array, ...], previous: Array) -> Array:
        """One step of the ordinary GRU: f with the previous state in place of every neighbour."""
        return self._gated(x[0], previous).h

    def linearize(self, x: tuple[Array, ...], neighbours: Sequence[Array], factors: Array) -> Array:
        """f row by row, and its derivatives."""
        return self._evaluate(x[0], neighbours, factors).h

    def _evaluate(self, x: Array, neighbours: Sequence[Array], factors: Array = None) -> _Values:
        m, (mixing, gating) = len(self.offsets), self._split(factors)
        hhat = self.mixture.value(self._arguments(neighbours), x[:m, ...], neighbours, mixing)
        return self._gated(x, hhat, gating)

    def _gated(self, x: Array, hhat: Array, factors: Array = None) -> _Values:
        xp, m, (_, gates_T, U_T) = array_namespace(x), len(self.offsets), self.transposed
        y = stacked(xp.matmul(hhat, gates_T), self.size)
        gates, reset = self.gru.reset(y, x[m : m + 2, ...], hhat, factors)
        h = self.gru.blend(xp.matmul(reset, U_T), x[m + 2, ...], gates, hhat, factors)
        return _Values(hhat, reset, h)

    def _arguments(self, states: Sequence[Array]) -> list[Array]:
        """The products Us_j h_j."""
        xp, (Us_T, _, _) = array_namespace(self.U), self.transposed
        return [xp.matmul(h, Us_T[j, ...]) for j, h in enumerate(states)]

    def _split(self, factors: Array) -> tuple[Array, Array]:
        """Factors of the mixture and of the gates."""
        count = 2 * len(self.offsets) - 1
        return (None, None) if factors is None else (factors[:count, ...], factors[count:, ...])

    def push(self, factors: Array, dneighbours: Sequence[Array], extra: Array | None = None) -> Array:
        """df for a change of the neighbours, and for changes `extra` of all arguments, shaped like `project`'s."""
        xp, m, (_, gates_T, U_T) = array_namespace(factors), len(self.offsets), self.transposed
        mixing, gating = self._split(factors)
        arguments = self._arguments(dneighbours)
        if extra is not None:
            for j, product in enumerate(arguments):
                product += extra[j, ...]
        dhhat = self.mixture.push(arguments, dneighbours, mixing)
        gates = stacked(xp.matmul(dhhat, gates_T), self.size)
        if extra is not None:
            gates += extra[m : m + 2, ...]
        candidate = xp.matmul(self.gru.push_reset(gates, dhhat, gating), U_T)
        if extra is not None:
            candidate += extra[m + 2, ...]
        return self.gru.push_blend(candidate, gates, dhhat, gating)

    def pull(self, factors: Array, w: Array) -> tuple[Array, ...]:
        """Cotangents of the neighbours."""
        return self._to_neighbours(factors, self._pull(factors, w))

    def _pull(self, factors: Array, w: Array) -> _Cotangents:
        xp, (mixing, gating) = array_namespace(w), self._split(factors)
        candidate = self.gru.pull_blend(w, gating)
        hhat, gates = self.gru.pull_reset(xp.matmul(candidate, self.U), w, gating)
        hhat, arguments = self.mixture.pull(product_sum(gates, self.gates), hhat, mixing)
        return _Cotangents([*arguments, gates[0, ...], gates[1, ...], candidate], hhat)

    def _to_neighbours(self, factors: Array, g: _Cotangents) -> tuple[Array, ...]:
        xp = array_namespace(factors)
        products = [xp.matmul(g.arguments[j], self.Us[j, ...]) for j in range(len(self.offsets))]
        return self.mixture.share(products, g.hhat, self._split(factors)[0])

    def _shares(self, factors: Array) -> tuple[list[Array], list[Array]]:
        """Of each neighbour s_j, and dhhat/da_j."""
        m = len(self.offsets)
        weights = [factors[j, ...] for j in range(m - 1)]
        last = array_namespace(factors).ones_like(factors[0, ...])
        for weight in weights:
            last -= weight
        return [*weights, last], [factors[m - 1 + j, ...] for j in range(m)]

    def diagonals(self, factors: Array) -> tuple[Array, ...]:
        """Diagonals of df/dh_j, with the product of two matrices' diagonals for that of their product."""
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
        d = StencilGRUCell.of(change, self.offsets)
        extra = d.x.project(inputs)
        extra += self.x.linear(dinputs)
        for j, product in enumerate(d._arguments(neighbours)):
            extra[j, ...] += product
        _, gates_T, U_T = d.transposed
        extra[m : m + 2, ...] += stacked(xp.matmul(v.hhat, gates_T), self.size)
        extra[m + 2, ...] += xp.matmul(v.reset, U_T)
        return self.push(factors, dneighbours, extra)

    def parameter_pull(
        self, inputs: Array, x: tuple[Array, ...], neighbours: Sequence[Array], w: Array
    ) -> tuple[dict[str, Array], Array, tuple[Array, ...]]:
        """Cotangents of the parameters, summed over the rows, of the inputs and of the neighbours."""
        xp, m = array_namespace(inputs), len(self.offsets)
        factors = self._empty(inputs)
        v = self._evaluate(x[0], neighbours, factors)
        g = self._pull(factors, w)
        dW, db, dinputs = self.x.pull(g.arguments, inputs)
        states = [*neighbours, v.hhat, v.hhat, v.reset]
        dU = [xp.matmul(xp.matrix_transpose(one), state) for one, state in zip(g.arguments, states)]
        gradients = {"Ws": copied(dW[:m, ...]), "Us": xp.stack(dU[:m]), "bs": copied(db[:m, ...])}
        for name, i, sign in (("z", m, 1.0), ("r", m + 1, -1.0), ("", m + 2, 1.0)):
            gradients |= {"W" + name: sign * dW[i, ...], "U" + name: sign * dU[i], "b" + name: sign * db[i, ...]}
        return gradients, dinputs, self._to_neighbours(factors, g)

    def astype(self, dtype: Any) -> StencilGRUCell:
        """The same in another precision."""
        xp = array_namespace(self.U)
        Us, gates, U = (xp.astype(weights, dtype) for weights in (self.Us, self.gates, self.U))
        return replace(self, x=self.x.astype(dtype), Us=Us, gates=gates, U=U)

    def _empty(self, inputs: Array) -> Array:
        shape = (self.factor_count, inputs.shape[0], self.size)
        return array_namespace(inputs).empty(shape, dtype=inputs.dtype, device=device(inputs))
