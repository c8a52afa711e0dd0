"""The mathematics of an implicit LSTM's transition, row by row.

A state is (h, c), side by side. With p and q the states of the previous and the next position, one switch mixes both
parts of them, and f is an ordinary LSTM that starts from the mixture::

    a = Wp x + Up hp + bp      a' = Wn x + Un hq + bn      s = sigma(a) / (sigma(a) + sigma(a'))
    hhat = s*hp + (1-s)*hq     chat = s*cp + (1-s)*cq
    i, f, o = sigma(W. x + U. hhat + b.)      g = tanh(Wg x + Ug hhat + bg)
    c = f*chat + i*g           h = o*tanh(c)

The gates are 1/(1 + exp(y)), so what is named "gates" holds the weights of -i, -f, -o and of g. What is done between
two matrix products stands in `kernels.lstm`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

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

NAMES = tuple(kind + which for which in "ifogpn" for kind in "WUb")
SIGNS = {"p": 1.0, "n": 1.0, "i": -1.0, "f": -1.0, "o": -1.0, "g": 1.0}  # in the order of the stacked blocks


def shapes(d: int, k: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters by name."""
    return {name: {"W": (k, d), "U": (k, k), "b": (k,)}[name[0]] for name in NAMES}


class _Factors(NamedTuple):
    """Derivatives of f at one state: all that a product needs besides the weights; see `kernels.lstm`."""

    s: Array
    slope_p: Array  # ds/da
    slope_n: Array
    dh: Array  # hp - hq
    dc: Array
    f: Array
    slope_h: Array  # o (1 - tanh(c)^2)
    slopes: Array  # (4, n, k), of -i, -f, -o and g in c or, for o, in h

    @classmethod
    def of(cls, factors: Array) -> _Factors:
        return cls._make([*(factors[i, ...] for i in range(7)), factors[7:11, ...]])


class _Cotangents(NamedTuple):
    """Cotangents of the arguments, in the order of the blocks of the input weights, and of the mixture."""

    arguments: list[Array]
    hhat: Array
    chat: Array


@dataclass(frozen=True, eq=False)
class LSTMCell(ByFields):
    """The LSTM above."""

    x: InputWeights  # blocks Wp, Wn, -Wi, -Wf, -Wo, Wg
    Up: Array
    Un: Array
    gates: Array  # (4, k, k): -Ui, -Uf, -Uo, Ug
    name: str = "implicit_lstm"
    offsets: tuple[int, ...] = (-1, 1)
    factor_count: int = 11

    @classmethod
    def of(cls, parameters: Mapping[str, Array]) -> LSTMCell:
        """Take the parameters by their names."""
        P, xp = parameters, array_namespace(parameters["Up"])
        W, U, b = ([sign * P[kind + which] for which, sign in SIGNS.items()] for kind in "WUb")
        return cls(InputWeights.of(W, b), P["Up"], P["Un"], xp.stack(U[2:]))

    @property
    def factor_size(self) -> int:
        """Numbers per row of a factor, k."""
        return self.Up.shape[0]

    @property
    def size(self) -> int:
        """Numbers in a state, 2 k."""
        return 2 * self.factor_size

    def project(self, x: Array) -> tuple[Array, ...]:
        """All blocks, (6, n, k)."""
        return (self.x.project(x),)

    @cached_property
    def lstm(self) -> Any:
        """Elementwise work between the matrix products."""
        return kernels.lstm.select(self.Up, size=self.factor_size)

    @cached_property
    def transposed(self) -> tuple[Array, Array]:
        """Up and Un (2, k, k), and gates (k, 4 k) as they multiply from the right."""
        return contiguous(self._switch), beside(self.gates)

    @cached_property
    def merged(self) -> Array:
        """The first of these side by side, (k, 2 k)."""
        return beside(self._switch)

    @property
    def _switch(self) -> Array:
        """Up and Un, (2, k, k)."""
        return array_namespace(self.Up).stack([self.Up, self.Un])

    @property
    def takes_sequences(self) -> bool:
        """Whether neighbours may be given in their own places, with distances: where a kernel does that at once."""
        return self.lstm is not kernels.lstm.reference

    def value(
        self, x: tuple[Array, ...], neighbours: Sequence[Array], distances: tuple[int, ...] | None = None
    ) -> Array:
        """f row by row."""
        return self._evaluate(x[0], neighbours, None, distances)[1]

    def step(self, x: tuple[Array, ...], previous: Array) -> Array:
        """One step of the ordinary LSTM: f with the previous state in place of both neighbours."""
        return self._gated(x[0], *self._halves(previous))

    def linearize(
        self,
        x: tuple[Array, ...],
        neighbours: Sequence[Array],
        factors: Array,
        distances: tuple[int, ...] | None = None,
    ) -> Array:
        """f row by row, and its derivatives."""
        return self._evaluate(x[0], neighbours, factors, distances)[1]

    def _evaluate(
        self,
        x: Array,
        neighbours: Sequence[Array],
        factors: Array = None,
        distances: tuple[int, ...] | None = None,
    ) -> tuple[Array, Array]:
        """Return hhat and f."""
        mixing, gating = self._split(factors)
        hhat, chat = self.lstm.mix(self._arguments(neighbours), x[:2, ...], neighbours, mixing, distances)
        return hhat, self._gated(x, hhat, chat, gating)

    def _gated(self, x: Array, hhat: Array, chat: Array, factors: Array = None) -> Array:
        y = self._products(hhat)
        return self.lstm.state(y, x[2:, ...], chat, factors)

    def _arguments(self, states: Sequence[Array]) -> list[Array]:
        """The products Up hp and Un hq."""
        halves = {id(state): self._halves(state)[0] for state in states}  # of one array but one view
        return each_times([halves[id(state)] for state in states], self.transposed[0], lambda: self.merged)

    def _products(self, hhat: Array) -> Array:
        """Of the gates' weights, (4, n, k)."""
        return stacked(times(hhat, self.transposed[1]), self.factor_size)

    def _split(self, factors: Array) -> tuple[Array, Array]:
        """Factors of the mixture and of the rest."""
        return (None, None) if factors is None else (factors[:5, ...], factors[5:, ...])

    def push(
        self,
        factors: Array,
        dneighbours: Sequence[Array],
        distances: tuple[int, ...] | None = None,
        extra: Array | None = None,
    ) -> Array:
        """df for a change of the neighbours, and for changes `extra` of all arguments, shaped like `project`'s."""
        mixing, gating = self._split(factors)
        arguments = self._arguments(dneighbours)
        if extra is not None:
            for j, product in enumerate(arguments):
                product += extra[j, ...]
        dhhat, dchat = self.lstm.push_mix(arguments, dneighbours, mixing, distances)
        y = self._products(dhhat)
        if extra is not None:
            y += extra[2:, ...]
        return self.lstm.push_state(y, dchat, gating)

    def pull(self, factors: Array, w: Array) -> tuple[Array, ...]:
        """Cotangents of the neighbours."""
        return self.to_neighbours(factors, self.pull_sums(factors, w))

    def pull_back(self, factors: Array, w: Array, distances: tuple[int, ...], length: int) -> Array:
        """The sum of these for each neighbour, in its own place of sequences of this length."""
        sums = self.pull_sums(factors, w)
        mixing = self._split(factors)[0]
        return self.lstm.gather(self._to_states(sums), sums.hhat, sums.chat, mixing, distances, length)

    def pull_sums(self, factors: Array, w: Array) -> _Cotangents:
        """Cotangents of all arguments, and of the mixture."""
        mixing, gating = self._split(factors)
        gates, chat = self.lstm.pull_state(w, gating)
        hhat = product_sum(gates, self.gates)
        switch = self.lstm.pull_mix(hhat, chat, mixing)
        return _Cotangents([*switch, *(gates[j, ...] for j in range(4))], hhat, chat)

    def to_neighbours(self, factors: Array, sums: _Cotangents) -> tuple[Array, ...]:
        """Cotangents of the neighbours."""
        return self.lstm.share(self._to_states(sums), sums.hhat, sums.chat, self._split(factors)[0])

    def _to_states(self, sums: _Cotangents) -> list[Array]:
        """The products of the cotangents of the switch's arguments."""
        return [times(own, U) for own, U in zip(sums.arguments, (self.Up, self.Un))]

    def recurrence(self, of: str) -> None:
        """There is no such kernel."""

    def diagonals(self, factors: Array) -> tuple[Array, ...]:
        """Diagonals of df/dp and df/dq, with the product of two matrices' diagonals for that of their product."""
        xp, F = array_namespace(factors), _Factors.of(factors)
        gates = F.slopes * xp.expand_dims(xp.linalg.diagonal(self.gates), axis=1)
        dc_dhhat = gates[0, ...] + gates[1, ...] + gates[3, ...]
        dh_dhhat, dh_dchat = gates[2, ...] + F.slope_h * dc_dhhat, F.slope_h * F.f
        found: list[Array] = []
        for share, slope, U in ((F.s, F.slope_p, self.Up), (1.0 - F.s, F.slope_n, self.Un)):
            ds = slope * xp.linalg.diagonal(U)
            found.append(_joined(dh_dhhat * (share + F.dh * ds) + dh_dchat * F.dc * ds, F.f * share))
        return tuple(found)

    def blocks(self, factors: Array) -> Array:
        """df/dp and df/dq, shape (2, n, 2 k, 2 k)."""
        xp, F, k = array_namespace(factors), _Factors.of(factors), self.factor_size
        dc_dhhat = sum(along(F.slopes[j, ...]) * self.gates[j, ...] for j in (0, 1, 3))
        dh_dhhat = along(F.slope_h) * dc_dhhat + along(F.slopes[2, ...]) * self.gates[2, ...]
        dhhat = xp.concat([dh_dhhat, dc_dhhat], axis=1)  # (n, 2 k, k)
        dchat = xp.concat([F.slope_h * F.f, F.f], axis=1)  # (n, 2 k), of which each half is a diagonal
        one, twice = identity(self.Up), xp.concat([F.dc, F.dc], axis=1)
        found: list[Array] = []
        for share, slope, U in ((F.s, F.slope_p, self.Up), (1.0 - F.s, F.slope_n, self.Un)):
            of_h = xp.matmul(dhhat * across(F.dh * slope), U) + dhhat * across(share)
            of_h += along(dchat * twice * xp.concat([slope, slope], axis=1)) * xp.concat([U, U], axis=0)
            diagonal = along(dchat * xp.concat([share, share], axis=1))
            found.append(xp.concat([of_h, diagonal * xp.concat([one, one], axis=0)], axis=2))
        return xp.reshape(xp.stack(found), (2, -1, 2 * k, 2 * k))

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
        factors = self._empty(inputs)
        hhat, _ = self._evaluate(x[0], neighbours, factors)
        d = LSTMCell.of(change)
        extra = d.x.project(inputs)
        extra += self.x.linear(dinputs)
        for j, product in enumerate(d._arguments(neighbours)):
            extra[j, ...] += product
        extra[2:, ...] += d._products(hhat)
        return self.push(factors, dneighbours, extra=extra)

    def to_weights(
        self, inputs: Array, neighbours: Sequence[Array], factors: Array, sums: _Cotangents
    ) -> dict[str, Array]:
        """Gradients of the parameters, summed over the rows."""
        F, (hp, hq) = _Factors.of(factors), (self._halves(state)[0] for state in neighbours)
        hhat = F.s * F.dh
        hhat += hq
        gradients: dict[str, Array] = {}
        for (which, sign), sum_, state in zip(SIGNS.items(), sums.arguments, (hp, hq, hhat, hhat, hhat, hhat)):
            found = affine_gradients(sum_, inputs, state, is_negated=sign < 0)
            gradients |= {kind + which: gradient for kind, gradient in found.items()}
        return gradients

    def to_inputs(self, sums: _Cotangents) -> Array:
        """Cotangents of the inputs."""
        return self.x.pull(sums.arguments)

    def astype(self, dtype: Any) -> LSTMCell:
        """The same in another precision."""
        xp = array_namespace(self.Up)
        Up, Un, gates = (xp.astype(weights, dtype) for weights in (self.Up, self.Un, self.gates))
        return replace(self, x=self.x.astype(dtype), Up=Up, Un=Un, gates=gates)

    def _halves(self, state: Array) -> tuple[Array, Array]:
        k = self.factor_size
        return state[..., :k], state[..., k:]

    def _empty(self, inputs: Array) -> Array:
        shape = (self.factor_count, inputs.shape[0], self.factor_size)
        return array_namespace(inputs).empty(shape, dtype=inputs.dtype, device=device(inputs))


def _joined(h: Array, c: Array) -> Array:
    return array_namespace(h).concat([h, c], axis=1)
