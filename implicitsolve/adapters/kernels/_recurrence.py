"""Sequences of different lengths: rows of a matrix in another order, and recurrences, one step of all at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from implicitsolve._arrays.host import from_host
from implicitsolve._arrays.namespace import array_namespace
from implicitsolve._typing import Array, Arrays, Indices
from implicitsolve.adapters.kernels._formulas import (
    Factors,
    Formula,
    Functions,
    Number,
    OnArrays,
    Results,
    functions_of,
)
from implicitsolve.adapters.kernels._gates import GRU, Distances, near, total

Lags: TypeAlias = tuple[int, ...]
Given: TypeAlias = Array | None
Step: TypeAlias = Callable[[tuple[Array, ...], tuple[Array, ...]], tuple[Array, Array]]


@dataclass(frozen=True, eq=False)
class Plan:
    """Location of runs: step t takes row `source` + t `way` of the arguments, and makes row `target` + t `way`."""

    lengths: Indices  # (runs,) steps of each
    sources: Indices  # (runs,) rows of the first step
    targets: Indices
    ways: Indices  # (runs,) 1 or -1
    rows: int  # of the result; those that are no target are zero
    kept: dict[Any, Any] = field(default_factory=dict)  # what implementations made of it for later

    @property
    def longest_first(self) -> Indices:
        """An order of the runs in which those active in a step come first."""
        return np.argsort(-self.lengths, kind="stable")

    @property
    def is_full(self) -> bool:
        """Whether every row of the result is a target."""
        return int(self.lengths.sum()) == self.rows

    def steps(self, order: Indices) -> tuple[Indices, Indices, Indices]:
        """How many runs are active in each step, and step after step, run after run, their sources and targets."""
        steps = np.arange(int(self.lengths.max()))
        active = (self.lengths[:, None] > steps).sum(axis=0)
        step = np.repeat(steps, active)
        run = order[np.arange(len(step)) - (np.cumsum(active) - active)[step]]
        moved = self.ways[run] * step
        return active, self.sources[run] + moved, self.targets[run] + moved


def recurrence(step: Step, x: Arrays, begin: Array, lags: Lags, plan: Plan, given: Given = None) -> Array:
    """Run a recurrence, and return the results (plan.rows, k).

    ``step(x, states)`` returns the results of one step (m, k), and the states that later steps get, for rows of `x`,
    which are on axis -2, and the states `lags` steps ago, each at least 1. `begin` holds the states (runs, max(lags),
    k) before the first step, the latest first. Where states (plan.rows, k) are `given` in the places of the results,
    steps use these as earlier states, and return the given states minus their own: a residual.
    """
    xp, start, order = array_namespace(begin), 0, plan.longest_first
    active, at, targets = plan.steps(order)
    begin = xp.take(begin, from_host(order, begin), axis=0)
    x = tuple(xp.take(part, from_host(at, begin), axis=-2) for part in x)
    results: list[Array] = []
    states: list[Array] = []
    for t, m in enumerate(active.tolist()):
        rows = tuple(part[..., start : start + m, :] for part in x)
        previous = tuple(states[t - lag][:m, :] if lag <= t else begin[:m, lag - t - 1, :] for lag in lags)
        result, state = step(rows, previous)
        if given is not None:
            state = xp.take(given, from_host(targets[start : start + m], begin), axis=0)
            result = state - result
        results.append(result)
        states.append(state)
        start += m
    others = xp.zeros((1, begin.shape[-1]), dtype=begin.dtype, device=begin.device) if given is None else given
    source = np.full(plan.rows, start) if given is None else start + np.arange(plan.rows)
    source[targets] = np.arange(start)
    return xp.take(xp.concat([*results, others], axis=0), from_host(source, begin), axis=0)


def affine_recurrence(rule: str, x: Arrays, begin: Array, lags: Lags, plan: Plan) -> Array:
    """Return the h_t (plan.rows, p k) of all runs for x = (b, D), by one of the rules

    - "push": h_t = b_t + D_t h_(t-1),
    - "pull": h_t = b_t + D_(t-1)^T h_(t-1), the adjoint, which runs the other way; `begin` holds the products.

    The first p^2 matrices of the stack D are the diagonals of the p x p blocks of size k, row by row: k independent
    recurrences of p numbers. `begin`, `lags`, which is (1,), and `plan` are as in `recurrence`.
    """  # noqa: D400

    def step(x: Arrays, states: Arrays) -> tuple[Array, Array]:
        if rule == "push":
            h = x[0] + block_times(x[1], states[0])
            return h, h
        h = x[0] + states[0]
        return h, block_times(x[1], h, transposed=True)

    b, D = x
    parts = begin.shape[-1] // D.shape[-1]
    return recurrence(step, (b, D[: parts * parts, ...]), begin, lags, plan)


def block_times(D: Array, h: Array, *, transposed: bool = False) -> Array:
    """Blocks of diagonals, the first p^2 of a stack (any, ..., k), times states (..., p k)."""
    k = D.shape[-1]
    p = h.shape[-1] // k
    if p == 1:
        return D[0, ...] * h
    parts = [h[..., j * k : (j + 1) * k] for j in range(p)]
    row, column = (1, p) if transposed else (p, 1)
    rows: Sequence[Any] = [sum(D[i * row + j * column, ...] * part for j, part in enumerate(parts)) for i in range(p)]
    return array_namespace(h).concat(rows, axis=-1)


def take_rows(x: Array, source: Array, none: int) -> Array:
    """Rows of a matrix (n, k) at the places `source`, zero where that is `none`; a new matrix."""
    xp, is_none = array_namespace(x), source == none
    return clear_rows(xp.take(x, xp.where(is_none, 0, source), axis=0), is_none)


def clear_rows(x: Array, empty: Array) -> Array:
    """Rows (..., n, k) with zeros where `empty` (n,) is True; perhaps in the same memory."""
    return array_namespace(x).where(empty[:, None], 0.0, x)


# Networks without gates, and a GRU's recurrence


class Activation(NamedTuple):
    """An elementwise function, and its derivative in terms of the function's value, as formulas take them."""

    of: Callable[[Functions, Number], Number]
    slope_of: Callable[[Functions, Number], Number]

    def value(self, a: Array) -> Array:
        return self.of(functions_of(a), a)

    def slope(self, h: Array) -> Array:
        return self.slope_of(functions_of(h), h)


ACTIVATIONS = {
    "tanh": Activation(lambda f, a: f.tanh(a), lambda f, h: 1.0 - h * h),
    "logistic": Activation(lambda f, a: f.gate(-a), lambda f, h: h - h * h),
    "relu": Activation(lambda f, a: f.where(a < 0.0, 0.0, a), lambda f, h: f.where(h > 0.0, f.one(h), 0.0)),
    "identity": Activation(lambda f, a: a, lambda f, h: f.one(h)),
}


def _layer(name: str) -> Formula:
    """h for products and x, and its slope."""
    phi = ACTIVATIONS[name]

    def value(f: Functions, products: Sequence[Number], x: Number) -> Results:
        h = phi.of(f, sum(products[1:], products[0] + x))
        return h, lambda: [phi.slope_of(f, h)]

    value.__name__ = f"layer_{name}"
    return value


def _step(name: str) -> Formula:
    """The result of one step, and what later steps get, for the sum y of the products and two arguments."""
    phi = ACTIVATIONS[name]

    def step(f: Functions, y: Number, x: Number, unused: Number) -> Results:
        h = phi.of(f, y + x)
        return h, h

    step.__name__ = f"step_{name}"
    return step


def push(f: Functions, y: Number, x: Number, factor: Number) -> Results:
    h = f.fma(factor, y, x)
    return h, h


def pull(f: Functions, y: Number, x: Number, factor: Number) -> Results:
    h = y + x
    return h, factor * h


LAYERS = {name: _layer(name) for name in ACTIVATIONS}
STEP_RULES = {name: _step(name) for name in ACTIVATIONS} | {"push": push, "pull": pull}


class RNN:
    """h = phi(a), where a is the sum of matrix products and x. The factors are a stack of one: phi'(a).

    `run` takes a whole recurrence with such products y, ``y_t = sum_j h_(t - lags[j]) weights[j]``, by one of the rules

    - the name of phi, for h_t = phi(y_t + x_t),
    - "push", for h_t = x_t + f_t*y_t with factors f,
    - "pull", for h_t = x_t + y_t, where the products are those of f_t*h_t: the adjoint, which runs the other way.
    """

    takes_sequences: ClassVar[bool] = False

    def __init__(self, work: type[OnArrays] = OnArrays) -> None:
        self.work = work

    def value(
        self, activation: str, products: Arrays, x: Array, factors: Factors = None, distances: Distances = None
    ) -> Array:
        """Return h for the name of phi."""
        products = near(products, distances, x.shape[-2])
        return self.work.fill(LAYERS[activation], products[:1], (products, x), factors)[0]

    def push(self, products: Arrays, factors: Array, distances: Distances = None) -> Array:
        """Return dh for the products of the dh_j."""
        dh = total(near(products, distances, factors.shape[-2]))
        dh *= factors[0, ...]
        return dh

    def gather(self, products: Arrays, distances: Sequence[int], length: int) -> Array:
        """Return the sum of the products with the adjoints that each of the neighbours gets, (B, length, k)."""
        return total(near(products, [-distance for distance in distances], length))

    def run(
        self, rule: str, weights: Array, x: Arrays, begin: Array, lags: Lags, plan: Plan, given: Given = None
    ) -> Array:
        """Return the h_t (plan.rows, k) of all runs; x is (x,) or (x, f); see `recurrence` for the rest."""

        def step(x: Arrays, states: Arrays) -> tuple[Array, Array]:
            y = total([array_namespace(h).matmul(h, weights[j, ...]) for j, h in enumerate(states)])
            h, state = STEP_RULES[rule](functions_of(y), y, x[0], x[-1])
            return h, state

        return recurrence(step, x, begin, lags, plan, given)


def gru_recurrence(
    rule: str, gates: Array, U: Array, x: Arrays, begin: Array, lags: Lags, plan: Plan, given: Given = None
) -> Array:
    """Return the h_t (plan.rows, k) of all runs, by one of the rules

    - "value": h_t = f_t(h_(t-lag)), for x = (stack,), whose last three matrices belong to keep, r and the candidate,
    - "push": h_t = x_t + df_t h_(t-lag), for x = (x, stack) with a stack whose last five are the factors,
    - "pull": h_t = x_t + df_(t-lag)^T h_(t-lag), the adjoint, which runs the other way; `begin` holds the products.

    The arguments of the gates are ``gates[0] hhat`` and ``gates[1] hhat``, that of tanh is U (r*hhat). There is one
    lag; `x`, `begin`, `plan` and `given` are as in `recurrence`.
    """  # noqa: D400
    xp, gru = array_namespace(U), GRU()

    def along(states: Array, weights: Array) -> Array:
        return xp.matmul(states, xp.matrix_transpose(weights))

    def value(x: Arrays, states: Arrays) -> tuple[Array, Array]:
        own, (hhat,) = x[0][-3:, ...], states
        keep, reset = gru.reset(along(hhat, gates), own[:2, ...], hhat)
        h = gru.blend(along(reset, U), own[2, ...], keep, hhat)
        return h, h

    def push(x: Arrays, states: Arrays) -> tuple[Array, Array]:
        factors, (dhhat,) = x[1][-5:, ...], states
        y = along(dhhat, gates)
        h = gru.push_blend(along(gru.push_reset(y, dhhat, factors), U), y, dhhat, factors)
        h += x[0]
        return h, h

    def pull(x: Arrays, states: Arrays) -> tuple[Array, Array]:
        factors, w = x[1][-5:, ...], x[0] + states[0]
        hhat, sums = gru.pull_reset(xp.matmul(gru.pull_blend(w, factors), U), w, factors)
        return w, hhat + xp.sum(xp.matmul(sums, gates), axis=0)

    return recurrence({"value": value, "push": push, "pull": pull}[rule], x, begin, lags, plan, given)


def check_activation(caller: str, activation: object) -> None:
    """Check that `activation` names an activation."""
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        known = ", ".join(repr(name) for name in ACTIVATIONS)
        raise ValueError(f"{caller}: `activation` must be one of {known}, got {activation!r}")
