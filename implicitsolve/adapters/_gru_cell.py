"""The mathematics of the implicit GRU's transition f(p, q, x), row by row: value, JVP and VJP.

The two gates that are needed are 1-z and r: both are 1/(1 + exp(y)) with y = Wz x + Uz hhat + bz and
y = -(Wr x + Ur hhat + br), so what is named "gates" holds Uz and -Ur. The equations are those of Kazi and
Thompson (2017), section 2.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from implicitsolve.adapters._common import Array, array_namespace

INPUT_WEIGHTS = ("Wp", "Wn", "Wz", "Wr", "W")  # order of the blocks that are stacked
STATE_WEIGHTS = ("Up", "Un", "Uz", "Ur", "U")
BIASES = ("bp", "bn", "bz", "br", "b")
NAMES = tuple(name for block in zip(INPUT_WEIGHTS, STATE_WEIGHTS, BIASES) for name in block)


class Weights(NamedTuple):
    """The parameters in the forms in which they multiply; `_T` are transposed views."""

    W: Array  # (5k, d): Wp, Wn, Wz, Wr, W
    b: Array  # (5k,)
    Up: Array
    Un: Array
    gates: Array  # (2, k, k): Uz and -Ur
    U: Array
    Up_T: Array
    Un_T: Array
    gates_T: Array
    U_T: Array

    @classmethod
    def of(cls, parameters: Mapping[str, Array]) -> Weights:
        xp = array_namespace(parameters["U"])
        W, b = (xp.concat([parameters[name] for name in names], axis=0) for names in (INPUT_WEIGHTS, BIASES))
        gates = xp.stack([parameters["Uz"], -parameters["Ur"]])
        factors = (parameters["Up"], parameters["Un"], gates, parameters["U"])
        return cls(W, b, *factors, *(xp.matrix_transpose(factor) for factor in factors))


class Arguments(NamedTuple):
    """What the functions are applied to, row by row: (count, k) each, (2, count, k) of the gates."""

    a: Array
    c: Array
    gates: Array
    candidate: Array

    def part(self, rows: slice) -> Arguments:
        return Arguments(self.a[rows, :], self.c[rows, :], self.gates[:, rows, :], self.candidate[rows, :])


def project(W: Array, b: Array, x: Array) -> Arguments:
    """W x + b of the five blocks in one GEMM, as contiguous parts."""
    xp = array_namespace(x)
    merged = xp.matmul(x, xp.matrix_transpose(W))
    merged += b
    k = b.shape[0] // 5
    a, c, z, r, candidate = (merged[:, i * k : (i + 1) * k] for i in range(5))
    a, c, candidate = (xp.asarray(block, copy=True) for block in (a, c, candidate))
    return Arguments(a, c, xp.stack([z, -r]), candidate)


class Values(NamedTuple):
    """One application of f to all rows, with what its derivatives need; (count, k) each."""

    p: Array
    q: Array
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


def evaluate(w: Weights, x: Arguments, p: Array, q: Array) -> Values:
    """f(p, q, x) row by row."""
    xp = array_namespace(p)
    a = xp.matmul(p, w.Up_T)
    a += x.a
    c = xp.matmul(q, w.Un_T)
    c += x.c
    scale = xp.minimum(xp.minimum(a, c), 0.0)
    exp_a, exp_c, s = xp.exp(scale - a), xp.exp(scale - c), xp.exp(scale)
    total = s + exp_a
    s += exp_c
    total += s
    s /= total
    difference = p - q
    hhat = s * difference
    hhat += q
    gates = xp.matmul(hhat, w.gates_T)
    gates += x.gates
    gates = xp.exp(gates)
    gates += 1.0
    gates = 1.0 / gates
    keep, r = gates[0, ...], gates[1, ...]
    reset = r * hhat
    candidate = xp.matmul(reset, w.U_T)
    candidate += x.candidate
    candidate = xp.tanh(candidate)
    h = hhat - candidate
    h *= keep
    h += candidate
    return Values(p, q, difference, exp_a, exp_c, total, s, hhat, keep, r, reset, candidate, h)


class Factors(NamedTuple):
    """Derivatives of f at one state, (count, k) each: all that a product needs besides the weights."""

    s: Array
    slope_a: Array  # (p - q) ds/da
    slope_c: Array  # (p - q) ds/dc
    keep: Array  # 1 - z
    slope_z: Array  # z (1-z) (candidate - hhat), which is z (candidate - h)
    slope_r: Array  # -r (1-r) hhat
    r: Array
    slope_candidate: Array  # z (1 - candidate^2)


def views(stacked: Array) -> Factors:
    return Factors(*(stacked[i, ...] for i in range(8)))


def factors_of(v: Values) -> Factors:
    """Derivatives of f at the values, of which some are overwritten: p, q, hhat, reset and h remain."""
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
    return Factors(v.s, slope_a, slope_c, v.keep, slope_z, slope_r, v.r, slope_candidate=z)


class Cotangents(NamedTuple):
    """What `pull` finds: of the arguments of the five functions, and of hhat."""

    a: Array
    c: Array
    z: Array
    r: Array
    candidate: Array
    hhat: Array


def push(w: Weights, f: Factors, dp: Array, dq: Array, extra: Arguments | None = None) -> Array:
    """df for (dp, dq), and for changes `extra` of the arguments of the five functions."""
    xp = array_namespace(dp)
    dh = xp.matmul(dp, w.Up_T)
    dc = xp.matmul(dq, w.Un_T)
    if extra is not None:
        dh += extra.a
        dc += extra.c
    dh *= f.slope_a
    dc *= f.slope_c
    dh += dc
    mixed = dp - dq
    mixed *= f.s
    dh += mixed
    dh += dq  # dhhat
    gates = xp.matmul(dh, w.gates_T)
    if extra is not None:
        gates += extra.gates
    dz, dr = gates[0, ...], gates[1, ...]
    dr *= f.slope_r
    reset = f.r * dh
    reset += dr
    candidate = xp.matmul(reset, w.U_T)
    if extra is not None:
        candidate += extra.candidate
    candidate *= f.slope_candidate
    dz *= f.slope_z
    dh *= f.keep
    dh += candidate
    dh += dz
    return dh


def pull(weights: Weights, f: Factors, w: Array) -> Cotangents:
    """Cotangents inside f, for the cotangent w of its value."""
    xp = array_namespace(w)
    candidate = f.slope_candidate * w
    reset = xp.matmul(candidate, weights.U)
    r = f.slope_r * reset
    z = f.slope_z * w
    hhat = f.keep * w
    reset *= f.r
    hhat += reset
    hhat += xp.matmul(z, weights.gates[0, ...])
    hhat += xp.matmul(r, weights.gates[1, ...])
    return Cotangents(f.slope_a * hhat, f.slope_c * hhat, z, r, candidate, hhat)


def to_neighbours(weights: Weights, f: Factors, g: Cotangents) -> tuple[Array, Array]:
    """Cotangents of p and q, in the rows of the position whose neighbours they are; g.hhat is overwritten."""
    xp = array_namespace(g.hhat)
    dp = xp.matmul(g.a, weights.Up)
    dq = xp.matmul(g.c, weights.Un)
    dq += g.hhat
    share = g.hhat
    share *= f.s
    dp += share
    dq -= share
    return dp, dq
