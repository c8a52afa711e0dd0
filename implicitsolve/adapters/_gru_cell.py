"""The mathematics of the implicit GRU's transition f(p, q, x), row by row: value, JVP and VJP.

The two gates that are needed are 1-z and r: both are 1/(1 + exp(y)) with y = Wz x + Uz hhat + bz and
y = -(Wr x + Ur hhat + br), so what is named "gates" holds Uz and -Ur. The equations are those of Kazi and
Thompson (2017), section 2.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from implicitsolve.adapters._common import Array, array_namespace

INPUT_WEIGHTS = ("Wp", "Wn", "Wz", "Wr", "W")  # order of the blocks that are stacked
STATE_WEIGHTS = ("Up", "Un", "Uz", "Ur", "U")
BIASES = ("bp", "bn", "bz", "br", "b")
NAMES = tuple(name for block in zip(INPUT_WEIGHTS, STATE_WEIGHTS, BIASES) for name in block)

# Arguments of the five functions before what the states add: (n, k), (n, k), (2, n, k) of the gates, (n, k).
Arguments: TypeAlias = tuple[Array, ...]
Pair: TypeAlias = tuple[Array, ...]


def shapes(d: int, k: int) -> dict[str, tuple[int, ...]]:
    """Of the parameters, in their order."""
    return {name: {"W": (k, d), "U": (k, k), "b": (k,)}[name[0]] for name in NAMES}


class Values(NamedTuple):
    """One application of f to all rows, with what its derivatives need; (n, k) each."""

    difference: Array  # p - q
    exp_a: Array  # the terms of the switch: exp(-a), exp(-c) and their sum plus 2, all scaled
    exp_c: Array
    total: Array
    s: Array
    hhat: Array
    keep: Array  # 1 - z
    r: Array
    reset: Array  # r * hhat
    candidate: Array
    h: Array


class Factors(NamedTuple):
    """Derivatives of f at one state, (n, k) each: all that a product needs besides the weights."""

    s: Array
    slope_a: Array  # (p - q) ds/da
    slope_c: Array  # (p - q) ds/dc
    keep: Array  # 1 - z
    slope_z: Array  # z (1-z) (candidate - hhat), which is z (candidate - h)
    slope_r: Array  # -r (1-r) hhat
    r: Array
    slope_candidate: Array  # z (1 - candidate^2)

    @classmethod
    def of(cls, v: Values) -> Factors:
        """Derivatives at the values, of which some are overwritten: hhat, reset and h remain."""
        slope = v.difference
        slope /= v.total
        slope_a, slope_c = v.exp_a, v.exp_c
        slope_a *= slope
        slope_a *= v.s
        slope_c *= slope
        slope_c *= v.s - 1.0
        z = 1.0 - v.keep
        slope_z = v.candidate - v.h
        slope_z *= z
        slope_r = v.r - 1.0
        slope_r *= v.reset
        square = v.candidate
        square *= v.candidate
        square *= z
        z -= square
        return cls(v.s, slope_a, slope_c, v.keep, slope_z, slope_r, v.r, slope_candidate=z)

    @classmethod
    def views(cls, stacked: Array) -> Factors:
        """Those of one array (8, n, k)."""
        return cls(*(stacked[i, ...] for i in range(8)))


class Cotangents(NamedTuple):
    """Of the arguments of the five functions, and of hhat."""

    a: Array
    c: Array
    z: Array
    r: Array
    candidate: Array
    hhat: Array


@dataclass(frozen=True, eq=False)
class GRUCell:
    """The implicit GRU of one position: a `Cell` with one neighbour on either side."""

    W: Array  # (5k, d): Wp, Wn, Wz, Wr, W
    b: Array  # (5k,)
    Up: Array
    Un: Array
    gates: Array  # (2, k, k): Uz and -Ur
    U: Array

    name = "implicit_gru"
    offsets = (-1, 1)
    factor_count = 8

    @classmethod
    def of(cls, parameters: Mapping[str, Array]) -> GRUCell:
        """Stack the parameters as they multiply."""
        xp = array_namespace(parameters["U"])
        W, b = (xp.concat([parameters[name] for name in names], axis=0) for names in (INPUT_WEIGHTS, BIASES))
        gates = xp.stack([parameters["Uz"], -parameters["Ur"]])
        return cls(W, b, parameters["Up"], parameters["Un"], gates, parameters["U"])

    def astype(self, dtype: Any) -> GRUCell:
        xp = array_namespace(self.U)
        return GRUCell(*(xp.astype(w, dtype) for w in (self.W, self.b, self.Up, self.Un, self.gates, self.U)))

    @property
    def size(self) -> int:
        return self.U.shape[0]

    @property
    def factor_size(self) -> int:
        return self.U.shape[0]

    @cached_property
    def transposed(self) -> tuple[Array, Array, Array, Array]:
        """Up, Un, gates and U as they multiply from the right: views."""
        xp = array_namespace(self.U)
        Up, Un, gates, U = (xp.matrix_transpose(weight) for weight in (self.Up, self.Un, self.gates, self.U))
        return Up, Un, gates, U

    def project(self, x: Array) -> Arguments:
        """W x + b of the five blocks in one GEMM, as contiguous parts."""
        xp = array_namespace(x)
        merged = xp.matmul(x, xp.matrix_transpose(self.W))
        merged += self.b
        k = self.size
        a, c, z, r, candidate = (merged[:, i * k : (i + 1) * k] for i in range(5))
        a, c, candidate = (xp.asarray(block, copy=True) for block in (a, c, candidate))
        return a, c, xp.stack([z, -r]), candidate

    # Value

    def value(self, x: Arguments, neighbours: Pair) -> Array:
        return self.evaluate(x, neighbours).h

    def switch(self, x: Arguments, neighbours: Pair) -> Array:
        """The switch s alone."""
        return self.evaluate(x, neighbours).s

    def evaluate(self, x: Arguments, neighbours: Pair) -> Values:
        """f and all that it computes on the way."""
        (p, q), (x_a, x_c, x_gates, x_candidate) = neighbours, x
        xp = array_namespace(p)
        Up_T, Un_T, gates_T, U_T = self.transposed
        a = xp.matmul(p, Up_T)
        a += x_a
        c = xp.matmul(q, Un_T)
        c += x_c
        scale = xp.minimum(xp.minimum(a, c), 0.0)
        exp_a, exp_c, s = xp.exp(scale - a), xp.exp(scale - c), xp.exp(scale)
        total = s + exp_a
        s += exp_c
        total += s
        s /= total
        difference = p - q
        hhat = s * difference
        hhat += q
        gates = xp.matmul(hhat, gates_T)
        gates += x_gates
        gates = xp.exp(gates)
        gates += 1.0
        gates = 1.0 / gates
        keep, r = gates[0, ...], gates[1, ...]
        reset = r * hhat
        candidate = xp.matmul(reset, U_T)
        candidate += x_candidate
        candidate = xp.tanh(candidate)
        h = hhat - candidate
        h *= keep
        h += candidate
        return Values(difference, exp_a, exp_c, total, s, hhat, keep, r, reset, candidate, h)

    def step(self, x: Arguments, previous: Array) -> Array:
        """One step of the ordinary GRU: hhat is the previous state."""
        xp, (_, _, gates_T, U_T) = array_namespace(previous), self.transposed
        gates = 1.0 / (1.0 + xp.exp(xp.matmul(previous, gates_T) + x[2]))
        keep, r = gates[0, ...], gates[1, ...]
        candidate = xp.tanh(xp.matmul(r * previous, U_T) + x[3])
        return candidate + keep * (previous - candidate)

    # Derivatives with respect to the neighbours

    def linearize(self, x: Arguments, neighbours: Pair, factors: Array) -> Array:
        values = self.evaluate(x, neighbours)
        for i, factor in enumerate(Factors.of(values)):
            factors[i, ...] = factor
        return values.h

    def push(self, factors: Array, dneighbours: Pair) -> Array:
        dp, dq = dneighbours
        return self._push(Factors.views(factors), dp, dq)

    def _push(self, f: Factors, dp: Array, dq: Array, extra: Arguments | None = None) -> Array:
        """df for (dp, dq), and for changes `extra` of the arguments of the five functions."""
        xp = array_namespace(dp)
        Up_T, Un_T, gates_T, U_T = self.transposed
        dh = xp.matmul(dp, Up_T)
        dc = xp.matmul(dq, Un_T)
        if extra is not None:
            dh += extra[0]
            dc += extra[1]
        dh *= f.slope_a
        dc *= f.slope_c
        dh += dc
        mixed = dp - dq
        mixed *= f.s
        dh += mixed
        dh += dq  # dhhat
        gates = xp.matmul(dh, gates_T)
        if extra is not None:
            gates += extra[2]
        dz, dr = gates[0, ...], gates[1, ...]
        dr *= f.slope_r
        reset = f.r * dh
        reset += dr
        candidate = xp.matmul(reset, U_T)
        if extra is not None:
            candidate += extra[3]
        candidate *= f.slope_candidate
        dz *= f.slope_z
        dh *= f.keep
        dh += candidate
        dh += dz
        return dh

    def pull(self, factors: Array, w: Array) -> Pair:
        f = Factors.views(factors)
        return self._to_neighbours(f, self._pull(f, w))

    def _pull(self, f: Factors, w: Array) -> Cotangents:
        """Cotangents inside f, for the cotangent w of its value."""
        xp = array_namespace(w)
        candidate = f.slope_candidate * w
        reset = xp.matmul(candidate, self.U)
        r = f.slope_r * reset
        z = f.slope_z * w
        hhat = f.keep * w
        reset *= f.r
        hhat += reset
        hhat += xp.matmul(z, self.gates[0, ...])
        hhat += xp.matmul(r, self.gates[1, ...])
        return Cotangents(f.slope_a * hhat, f.slope_c * hhat, z, r, candidate, hhat)

    def _to_neighbours(self, f: Factors, g: Cotangents) -> Pair:
        """Cotangents of p and q; g.hhat is overwritten."""
        xp = array_namespace(g.hhat)
        dp = xp.matmul(g.a, self.Up)
        dq = xp.matmul(g.c, self.Un)
        dq += g.hhat
        share = g.hhat
        share *= f.s
        dp += share
        dq -= share
        return dp, dq

    def diagonals(self, factors: Array) -> Pair:
        """Diagonal of dh/dhhat, without its term in Ur, times the diagonals of dhhat/dp and dhhat/dq."""
        f = Factors.views(factors)
        xp = array_namespace(factors)
        Up, Un, Uz, U = (xp.linalg.diagonal(w) for w in (self.Up, self.Un, self.gates[0, ...], self.U))
        inner = f.keep + f.slope_z * Uz + f.slope_candidate * f.r * U
        return inner * (f.s + f.slope_a * Up), inner * (1.0 - f.s + f.slope_c * Un)

    def blocks(self, factors: Array) -> Array:
        xp = array_namespace(factors)
        f = Factors(*(xp.expand_dims(factors[i, ...], axis=2) for i in range(8)))  # (n, k, 1): they scale rows
        eye = xp.eye(self.size, dtype=factors.dtype)
        reset = eye * f.r + f.slope_r * self.gates[1, ...]  # d(r * hhat)/dhhat
        inner = eye * f.keep + f.slope_z * self.gates[0, ...] + f.slope_candidate * xp.matmul(self.U, reset)
        previous = eye * f.s + f.slope_a * self.Up
        following = eye * (1.0 - f.s) + f.slope_c * self.Un
        return xp.stack([xp.matmul(inner, previous), xp.matmul(inner, following)])

    # Derivatives with respect to everything

    def parameter_push(
        self,
        inputs: Array,
        x: Arguments,
        neighbours: Pair,
        change: Mapping[str, Array],
        dinputs: Array,
        dneighbours: Pair,
    ) -> Array:
        xp, dself = array_namespace(inputs), GRUCell.of(change)
        (dp, dq), v = dneighbours, self.evaluate(x, neighbours)
        unbiased = GRUCell(self.W, 0.0 * self.b, self.Up, self.Un, self.gates, self.U)
        extra = tuple(one + other for one, other in zip(dself.project(inputs), unbiased.project(dinputs)))
        for total, state, weight in zip(extra, (*neighbours, v.hhat, v.reset), dself.transposed):
            total += xp.matmul(state, weight)
        return self._push(Factors.of(v), dp, dq, extra)

    def parameter_pull(
        self, inputs: Array, x: Arguments, neighbours: Pair, w: Array
    ) -> tuple[dict[str, Array], Array, Pair]:
        xp, k = array_namespace(inputs), self.size
        v = self.evaluate(x, neighbours)
        f = Factors.of(v)
        g = self._pull(f, w)
        blocks = (g.a, g.c, g.z, -g.r, g.candidate)
        merged = xp.concat(blocks, axis=1)
        dW = xp.matmul(xp.matrix_transpose(merged), inputs)
        db = xp.sum(merged, axis=0)
        gradients = {}
        for i, (names, block, state) in enumerate(zip(GROUPS, blocks, (*neighbours, v.hhat, v.hhat, v.reset))):
            rows = slice(i * k, (i + 1) * k)
            own = (dW[rows, :], xp.matmul(xp.matrix_transpose(block), state), db[rows])
            gradients |= dict(zip(names, own))
        return gradients, xp.matmul(merged, self.W), self._to_neighbours(f, g)


GROUPS = tuple(zip(INPUT_WEIGHTS, STATE_WEIGHTS, BIASES))
