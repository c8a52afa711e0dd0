"""The mathematics of an implicit LSTM's transition, row by row.

A state is (h, c), side by side. With p and q the states of the previous and the next position, one switch mixes both
parts of them, and f is an ordinary LSTM that starts from the mixture::

    a = Wp x + Up hp + bp      a' = Wn x + Un hq + bn      s = sigma(a) / (sigma(a) + sigma(a'))
    hhat = s*hp + (1-s)*hq     chat = s*cp + (1-s)*cq
    i, f, o = sigma(W. x + U. hhat + b.)      g = tanh(Wg x + Ug hhat + bg)
    c = f*chat + i*g           h = o*tanh(c)

The gates are 1/(1 + exp(y)), so what is named "gates" holds the weights of -i, -f, -o and of g.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from implicitsolve.adapters._common import Array, array_namespace, device
from implicitsolve.adapters._gates import InputWeights, Switch, across, along, gate, identity

NAMES = tuple(kind + which for which in "ifogpn" for kind in "WUb")
SIGNS = {"p": 1.0, "n": 1.0, "i": -1.0, "f": -1.0, "o": -1.0, "g": 1.0}  # in the order of the stacked blocks


def shapes(d: int, k: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters by name."""
    return {name: {"W": (k, d), "U": (k, k), "b": (k,)}[name[0]] for name in NAMES}


class _Mixture(NamedTuple):
    """What the switch makes of the neighbours."""

    switch: Switch
    hhat: Array
    chat: Array
    dh: Array  # hp - hq
    dc: Array


class _Gated(NamedTuple):
    """An ordinary LSTM that starts from the mixture, with what its derivatives need."""

    sigmas: Array  # (3, n, k): i, f, o
    g: Array
    c: Array
    tanh_c: Array
    h: Array


class _Factors(NamedTuple):
    """Derivatives of f at one state: all that a product needs besides the weights."""

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
        return cls(*(factors[i, ...] for i in range(7)), slopes=factors[7:11, ...])


class _Cotangents(NamedTuple):
    """Cotangents of the arguments, in the order of the blocks of the input weights, and of the mixture."""

    arguments: list[Array]
    hhat: Array
    chat: Array


@dataclass(frozen=True, eq=False)
class LSTMCell:
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

    def value(self, x: tuple[Array, ...], neighbours: Sequence[Array]) -> Array:
        """f row by row."""
        mixture = self._mix(x[0], neighbours)
        v = self._gated(x[0], mixture.hhat, mixture.chat)
        return _joined(v.h, v.c)

    def step(self, x: tuple[Array, ...], previous: Array) -> Array:
        """One step of the ordinary LSTM: f with the previous state in place of both neighbours."""
        v = self._gated(x[0], *self._halves(previous))
        return _joined(v.h, v.c)

    def linearize(self, x: tuple[Array, ...], neighbours: Sequence[Array], factors: Array) -> Array:
        """f row by row, and its derivatives."""
        v = self._linearize(x[0], neighbours, factors)[1]
        return _joined(v.h, v.c)

    def _linearize(self, x: Array, neighbours: Sequence[Array], factors: Array) -> tuple[_Mixture, _Gated]:
        mixture = self._mix(x, neighbours)
        v, F = self._gated(x, mixture.hhat, mixture.chat), _Factors.of(factors)
        (s, rest), (tail_p, tail_n) = mixture.switch.weights, mixture.switch.tails()
        both = s * rest
        i, f, o = (v.sigmas[j, ...] for j in range(3))
        F.s[...], F.dh[...], F.dc[...], F.f[...] = s, mixture.dh, mixture.dc, f
        F.slope_p[...] = both * tail_p
        both *= -1.0
        F.slope_n[...] = both * tail_n
        F.slope_h[...] = o * (1.0 - v.tanh_c * v.tanh_c)
        slopes = v.sigmas - 1.0
        slopes *= v.sigmas
        F.slopes[0, ...] = slopes[0, ...] * v.g
        F.slopes[1, ...] = slopes[1, ...] * mixture.chat
        F.slopes[2, ...] = slopes[2, ...] * v.tanh_c
        F.slopes[3, ...] = i * (1.0 - v.g * v.g)
        return mixture, v

    def _mix(self, x: Array, neighbours: Sequence[Array]) -> _Mixture:
        xp = array_namespace(x)
        (hp, cp), (hq, cq) = (self._halves(state) for state in neighbours)
        a, b = xp.matmul(hp, xp.matrix_transpose(self.Up)), xp.matmul(hq, xp.matrix_transpose(self.Un))
        a += x[0, ...]
        b += x[1, ...]
        switch = Switch.of([a, b])
        dh, dc = hp - hq, cp - cq
        hhat, chat = switch.weights[0] * dh, switch.weights[0] * dc
        hhat += hq
        chat += cq
        return _Mixture(switch, hhat, chat, dh, dc)

    def _gated(self, x: Array, hhat: Array, chat: Array) -> _Gated:
        xp = array_namespace(x)
        y = xp.matmul(hhat, xp.matrix_transpose(self.gates))
        y += x[2:, ...]
        sigmas, g = gate(y[:3, ...]), xp.tanh(y[3, ...])
        c = sigmas[0, ...] * g
        c += sigmas[1, ...] * chat
        tanh_c = xp.tanh(c)
        return _Gated(sigmas, g, c, tanh_c, sigmas[2, ...] * tanh_c)

    def push(self, factors: Array, dneighbours: Sequence[Array], extra: Array | None = None) -> Array:
        """df for a change of the neighbours, and for changes `extra` of all arguments, shaped like `project`'s."""
        xp, F = array_namespace(factors), _Factors.of(factors)
        (dhp, dcp), (dhq, dcq) = (self._halves(state) for state in dneighbours)
        ds, db = xp.matmul(dhp, xp.matrix_transpose(self.Up)), xp.matmul(dhq, xp.matrix_transpose(self.Un))
        if extra is not None:
            ds += extra[0, ...]
            db += extra[1, ...]
        ds *= F.slope_p
        db *= F.slope_n
        ds += db
        dhhat, dchat = _mixed(F.s, ds, F.dh, dhp, dhq), _mixed(F.s, ds, F.dc, dcp, dcq)
        gates = xp.matmul(dhhat, xp.matrix_transpose(self.gates))
        if extra is not None:
            gates += extra[2:, ...]
        gates *= F.slopes
        dc = dchat
        dc *= F.f
        for j in (0, 1, 3):
            dc += gates[j, ...]
        dh = F.slope_h * dc
        dh += gates[2, ...]
        return _joined(dh, dc)

    def pull(self, factors: Array, w: Array) -> tuple[Array, ...]:
        """Cotangents of the neighbours."""
        F = _Factors.of(factors)
        return self._to_neighbours(F, self._pull(F, w))

    def _pull(self, F: _Factors, w: Array) -> _Cotangents:
        xp = array_namespace(w)
        wh, wc = self._halves(w)
        c = F.slope_h * wh
        c += wc
        gates = F.slopes * xp.expand_dims(c, axis=0)
        gates[2, ...] = F.slopes[2, ...] * wh
        hhat = xp.sum(xp.matmul(gates, self.gates), axis=0)
        c *= F.f
        s = hhat * F.dh
        s += c * F.dc
        return _Cotangents([s * F.slope_p, s * F.slope_n, *(gates[j, ...] for j in range(4))], hhat, c)

    def _to_neighbours(self, F: _Factors, g: _Cotangents) -> tuple[Array, ...]:
        xp = array_namespace(F.s)
        dhp, dhq = xp.matmul(g.arguments[0], self.Up), xp.matmul(g.arguments[1], self.Un)
        share, dcp = F.s * g.hhat, F.s * g.chat
        dhp += share
        dhq += g.hhat
        dhq -= share
        return _joined(dhp, dcp), _joined(dhq, g.chat - dcp)

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
        xp, factors = array_namespace(inputs), self._empty(inputs)
        mixture = self._linearize(x[0], neighbours, factors)[0]
        d = LSTMCell.of(change)
        extra = d.x.project(inputs)
        extra += self.x.linear(dinputs)
        for j, (U, state) in enumerate(zip((d.Up, d.Un), neighbours)):
            extra[j, ...] += xp.matmul(self._halves(state)[0], xp.matrix_transpose(U))
        extra[2:, ...] += xp.matmul(mixture.hhat, xp.matrix_transpose(d.gates))
        return self.push(factors, dneighbours, extra)

    def parameter_pull(
        self, inputs: Array, x: tuple[Array, ...], neighbours: Sequence[Array], w: Array
    ) -> tuple[dict[str, Array], Array, tuple[Array, ...]]:
        """Cotangents of the parameters, summed over the rows, of the inputs and of the neighbours."""
        xp, factors = array_namespace(inputs), self._empty(inputs)
        hhat = self._linearize(x[0], neighbours, factors)[0].hhat
        F = _Factors.of(factors)
        g = self._pull(F, w)
        dW, db, dinputs = self.x.pull(g.arguments, inputs)
        states = [*(self._halves(state)[0] for state in neighbours), hhat, hhat, hhat, hhat]
        dU = [xp.matmul(xp.matrix_transpose(one), state) for one, state in zip(g.arguments, states)]
        gradients: dict[str, Array] = {}
        for i, (which, sign) in enumerate(SIGNS.items()):
            parts = {"W": dW[i, ...], "U": dU[i], "b": db[i, ...]}
            gradients |= {kind + which: sign * part for kind, part in parts.items()}
        return gradients, dinputs, self._to_neighbours(F, g)

    def astype(self, dtype: Any) -> LSTMCell:
        """The same in another precision."""
        xp = array_namespace(self.Up)
        Up, Un, gates = (xp.astype(weights, dtype) for weights in (self.Up, self.Un, self.gates))
        return replace(self, x=self.x.astype(dtype), Up=Up, Un=Un, gates=gates)

    def _halves(self, state: Array) -> tuple[Array, Array]:
        k = self.factor_size
        return state[:, :k], state[:, k:]

    def _empty(self, inputs: Array) -> Array:
        shape = (self.factor_count, inputs.shape[0], self.factor_size)
        return array_namespace(inputs).empty(shape, dtype=inputs.dtype, device=device(inputs))


def _joined(h: Array, c: Array) -> Array:
    return array_namespace(h).concat([h, c], axis=1)


def _mixed(s: Array, ds: Array, difference: Array, dp: Array, dq: Array) -> Array:
    """Change of s*p + (1-s)*q."""
    mixed = dp - dq
    mixed *= s
    mixed += dq
    mixed += difference * ds
    return mixed
