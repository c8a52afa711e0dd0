"""The mathematics of a GRU on any stencil, row by row.

With neighbours h_j and the switch s of their arguments a_j, f is an ordinary GRU that starts from the mixture hhat::

    a_j = Ws_j x + Us_j h_j + bs_j      s_j = sigma(a_j) / sum_l sigma(a_l)      hhat = sum_j s_j*h_j
    z = sigma(Wz x + Uz hhat + bz)      r = sigma(Wr x + Ur hhat + br)
    h = (1-z)*hhat + z*tanh(W x + U (r*hhat) + b)

The gates 1-z and r are both 1/(1 + exp(y)), so what is named "gates" holds the weights of z and of -r.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from implicitsolve.adapters._common import Array, array_namespace, device
from implicitsolve.adapters._gates import InputWeights, Switch, across, along, copied, gate, identity

NAMES = ("Ws", "Us", "bs", "Wz", "Uz", "bz", "Wr", "Ur", "br", "W", "U", "b")


def shapes(d: int, k: int, m: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters by name, for m offsets."""
    one = {"W": (k, d), "U": (k, k), "b": (k,)}
    return {name: (m, *one[name[0]]) if name[1:] == "s" else one[name[0]] for name in NAMES}


class _Gated(NamedTuple):
    """An ordinary GRU that starts from the mixture, with what its derivatives need."""

    keep: Array  # 1 - z
    r: Array
    reset: Array  # r * hhat
    candidate: Array
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
        """Each neighbour's s_j and slope, then 1 - z, r, and the slopes of z, -r and the candidate."""
        return 2 * len(self.offsets) + 5

    def project(self, x: Array) -> tuple[Array, ...]:
        """All blocks, (m + 3, n, k)."""
        return (self.x.project(x),)

    def value(self, x: tuple[Array, ...], neighbours: Sequence[Array]) -> Array:
        """f row by row."""
        return self._gated(x[0], _weighted_sum(self._switch(x[0], neighbours).weights, neighbours)).h

    def step(self, x: tuple[Array, ...], previous: Array) -> Array:
        """One step of the ordinary GRU: f with the previous state in place of every neighbour."""
        return self._gated(x[0], previous).h

    def linearize(self, x: tuple[Array, ...], neighbours: Sequence[Array], factors: Array) -> Array:
        """f row by row, and its derivatives."""
        return self._linearize(x[0], neighbours, factors)[1].h

    def _linearize(self, x: Array, neighbours: Sequence[Array], factors: Array) -> tuple[Array, _Gated]:
        m, switch = len(self.offsets), self._switch(x, neighbours)
        hhat = _weighted_sum(switch.weights, neighbours)
        v = self._gated(x, hhat)
        for j, (s, slope, h) in enumerate(zip(switch.weights, switch.tails(), neighbours)):
            slope *= s
            slope *= h - hhat
            factors[j, ...], factors[m + j, ...] = s, slope
        z = 1.0 - v.keep
        factors[2 * m, ...], factors[2 * m + 1, ...] = v.keep, v.r
        factors[2 * m + 2, ...] = z * (v.candidate - v.h)  # z (1-z) (candidate - hhat)
        factors[2 * m + 3, ...] = v.reset * (v.r - 1.0)
        factors[2 * m + 4, ...] = z * (1.0 - v.candidate * v.candidate)
        return hhat, v

    def _switch(self, x: Array, neighbours: Sequence[Array]) -> Switch:
        xp = array_namespace(x)
        arguments = [xp.matmul(h, xp.matrix_transpose(self.Us[j, ...])) for j, h in enumerate(neighbours)]
        for j, a in enumerate(arguments):
            a += x[j, ...]
        return Switch.of(arguments)

    def _gated(self, x: Array, hhat: Array) -> _Gated:
        xp, m = array_namespace(x), len(self.offsets)
        y = xp.matmul(hhat, xp.matrix_transpose(self.gates))
        y += x[m : m + 2, ...]
        y = gate(y)
        keep, r = y[0, ...], y[1, ...]
        reset = r * hhat
        candidate = xp.matmul(reset, xp.matrix_transpose(self.U))
        candidate += x[m + 2, ...]
        candidate = xp.tanh(candidate)
        h = hhat - candidate
        h *= keep
        h += candidate
        return _Gated(keep, r, reset, candidate, h)

    def push(self, factors: Array, dneighbours: Sequence[Array], extra: Array | None = None) -> Array:
        """df for a change of the neighbours, and for changes `extra` of all arguments, shaped like `project`'s."""
        xp, m = array_namespace(factors), len(self.offsets)
        dhhat = _weighted_sum([factors[j, ...] for j in range(m)], dneighbours)
        for j, dh in enumerate(dneighbours):
            da = xp.matmul(dh, xp.matrix_transpose(self.Us[j, ...]))
            if extra is not None:
                da += extra[j, ...]
            da *= factors[m + j, ...]
            dhhat += da
        keep, r, slope_z, slope_r, slope_candidate = (factors[2 * m + i, ...] for i in range(5))
        gates = xp.matmul(dhhat, xp.matrix_transpose(self.gates))
        if extra is not None:
            gates += extra[m : m + 2, ...]
        dz, dr = gates[0, ...], gates[1, ...]
        dr *= slope_r
        reset = r * dhhat
        reset += dr
        candidate = xp.matmul(reset, xp.matrix_transpose(self.U))
        if extra is not None:
            candidate += extra[m + 2, ...]
        candidate *= slope_candidate
        dz *= slope_z
        dhhat *= keep
        dhhat += candidate
        dhhat += dz
        return dhhat

    def pull(self, factors: Array, w: Array) -> tuple[Array, ...]:
        """Cotangents of the neighbours."""
        return self._to_neighbours(factors, self._pull(factors, w))

    def _pull(self, factors: Array, w: Array) -> _Cotangents:
        xp, m = array_namespace(w), len(self.offsets)
        keep, r, slope_z, slope_r, slope_candidate = (factors[2 * m + i, ...] for i in range(5))
        candidate = slope_candidate * w
        reset = xp.matmul(candidate, self.U)
        gr, gz = slope_r * reset, slope_z * w
        hhat = keep * w
        reset *= r
        hhat += reset
        hhat += xp.matmul(gz, self.gates[0, ...])
        hhat += xp.matmul(gr, self.gates[1, ...])
        return _Cotangents([*(factors[m + j, ...] * hhat for j in range(m)), gz, gr, candidate], hhat)

    def _to_neighbours(self, factors: Array, g: _Cotangents) -> tuple[Array, ...]:
        xp = array_namespace(factors)
        found: list[Array] = []
        for j in range(len(self.offsets)):
            dh = xp.matmul(g.arguments[j], self.Us[j, ...])
            dh += factors[j, ...] * g.hhat
            found.append(dh)
        return tuple(found)

    def diagonals(self, factors: Array) -> tuple[Array, ...]:
        """Diagonals of df/dh_j, with the product of two matrices' diagonals for that of their product."""
        xp, m = array_namespace(factors), len(self.offsets)
        keep, r, slope_z, slope_r, slope_candidate = (factors[2 * m + i, ...] for i in range(5))
        Us, gates, U = (xp.linalg.diagonal(weights) for weights in (self.Us, self.gates, self.U))
        outer = keep + slope_z * gates[0, :] + slope_candidate * U * (r + slope_r * gates[1, :])
        return tuple(outer * (factors[j, ...] + factors[m + j, ...] * Us[j, :]) for j in range(m))

    def blocks(self, factors: Array) -> Array:
        """df/dh_j, shape (m, n, k, k)."""
        xp, m = array_namespace(factors), len(self.offsets)
        r, slope_z, slope_r, slope_candidate = (factors[2 * m + i, ...] for i in range(1, 5))
        outer = xp.matmul(self.U * across(slope_r), self.gates[1, ...])
        outer += self.U * across(r)
        outer *= along(slope_candidate)
        outer += along(slope_z) * self.gates[0, ...]
        outer += along(factors[2 * m, ...]) * identity(self.U)
        found: list[Array] = []
        for j in range(m):
            block = xp.matmul(outer * across(factors[m + j, ...]), self.Us[j, ...])
            block += outer * across(factors[j, ...])
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
        hhat, v = self._linearize(x[0], neighbours, factors)
        d = StencilGRUCell.of(change, self.offsets)
        extra = d.x.project(inputs)
        extra += self.x.linear(dinputs)
        for j, h in enumerate(neighbours):
            extra[j, ...] += xp.matmul(h, xp.matrix_transpose(d.Us[j, ...]))
        extra[m : m + 2, ...] += xp.matmul(hhat, xp.matrix_transpose(d.gates))
        extra[m + 2, ...] += xp.matmul(v.reset, xp.matrix_transpose(d.U))
        return self.push(factors, dneighbours, extra)

    def parameter_pull(
        self, inputs: Array, x: tuple[Array, ...], neighbours: Sequence[Array], w: Array
    ) -> tuple[dict[str, Array], Array, tuple[Array, ...]]:
        """Cotangents of the parameters, summed over the rows, of the inputs and of the neighbours."""
        xp, m = array_namespace(inputs), len(self.offsets)
        factors = self._empty(inputs)
        hhat, v = self._linearize(x[0], neighbours, factors)
        g = self._pull(factors, w)
        dW, db, dinputs = self.x.pull(g.arguments, inputs)
        states = [*neighbours, hhat, hhat, v.reset]
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


def _weighted_sum(weights: Sequence[Array], states: Sequence[Array]) -> Array:
    total = weights[0] * states[0]
    for weight, state in zip(weights[1:], states[1:]):
        total += weight * state
    return total
