"""The formulas of gated layers' elementwise work, each once for every backend that Python code describes.

A formula is called with the elementary functions `f` and its arguments: whole arrays (`OnArrays`, the reference for
any library), or single numbers, from which a backend makes a loop. It returns a tuple of results, which in a formula
for values ends with a function that returns the factors, which derivatives read. For a stack (i, n, k), of i matrices
for n positions with k numbers each, ``f.stack`` and the list of factors are stacks too; None leaves a part as it is.
A tuple stands for several matrices. `_gates` describes arguments and results where it calls formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias

from implicitsolve._arrays.namespace import array_namespace
from implicitsolve._typing import Array, Namespace

Factors: TypeAlias = Array | None
"""What is filled, if it is there."""
Number: TypeAlias = Any
"""An array, or one number of a loop."""
Results: TypeAlias = tuple[Number, ...]
Formula: TypeAlias = Callable[..., Results]


class Functions:
    """The functions in formulas, on arrays of one library."""

    def __init__(self, xp: Namespace) -> None:
        self.exp, self.tanh, self.where, self.one = xp.exp, xp.tanh, xp.where, xp.ones_like
        self.minimum: Callable[..., Array] = xp.minimum
        self.stack: Callable[[list[Array]], Array] = xp.stack

    @staticmethod
    def fma(a: Array, b: Array, c: Array) -> Array:
        return a * b + c

    def gate(self, y: Array) -> Array:
        y = self.exp(y)  # infinite where the gate is 0
        y += 1.0
        return 1.0 / y

    def switch(self, a: Array, c: Array) -> tuple[Array, Callable[[], tuple[Array, Array]]]:
        """s = sigma(a) / (sigma(a) + sigma(c)), safe at any a and c; and a function that returns ds/da and ds/dc.

        That is (1 + exp(-c)) / (2 + exp(-a) + exp(-c)), with numerator and denominator scaled by exp(min(a, c, 0)):
        then the largest of the exponentials is 1.
        """
        scale = self.minimum(self.minimum(a, c), 0.0)
        exp_a, exp_c, s = self.exp(scale - a), self.exp(scale - c), self.exp(scale)
        total = s + exp_a
        s += exp_c
        total += s
        s /= total
        return s, lambda: (exp_a * s / total, exp_c * (s - 1.0) / total)


_functions: dict[type, Functions] = {}


def functions_of(x: Array) -> Functions:
    found = _functions.get(type(x))
    if found is None:
        found = _functions[type(x)] = Functions(array_namespace(x))
    return found


class OnArrays:
    """Formulas on arrays of any library, which return new arrays; the second of their arguments is an array."""

    @staticmethod
    def run(formula: Formula, places: Sequence[Number], arguments: Results) -> Sequence[Number]:
        """The results of a formula, which a backend may write to the `places`, one for each."""
        return formula(functions_of(arguments[1]), *arguments)

    @staticmethod
    def fill(formula: Formula, places: Sequence[Number], arguments: Results, factors: Factors) -> Sequence[Number]:
        """The results of a formula for values, and perhaps its factors."""
        *found, of_factors = formula(functions_of(arguments[1]), *arguments)
        if factors is not None:
            for i, value in enumerate(of_factors()):
                if value is not None:
                    factors[i, ...] = value
        return found

    @staticmethod
    def join(parts: Sequence[Array]) -> Array:
        """The state (n, 2 k) of its halves h and c."""
        return array_namespace(parts[0]).concat(list(parts), axis=-1)

    @staticmethod
    def new(like: Array) -> Number:
        """A place for a matrix."""

    @staticmethod
    def stack(count: int, like: Array) -> Number:
        """A place for a stack."""

    @staticmethod
    def state(like: Array) -> Results:
        """Places for the halves of a new state."""
        return ()


# Mixtures


def mix(f: Functions, products: Sequence[Number], x: Number, states: Sequence[Number]) -> Results:
    arguments = [product + x[j, ...] for j, product in enumerate(products)]
    if len(states) == 2:
        (p, q), (s, slopes) = states, f.switch(*arguments)
        difference = p - q
        return f.fma(s, difference, q), lambda: [s, *(slope * difference for slope in slopes())]
    # Numerators and denominator are scaled by exp(m), m = min(0, max_j a_j): at most one exponential in a sum is above
    # 1, where its quotient is about to vanish anyhow, and the largest quotient is at least 1/2.
    m = reduce(lambda a, b: f.where(a < b, b, a), arguments)
    m = f.where(m < 0.0, m, 0.0)
    of_zero = f.exp(m)
    sigmas = [1.0 / (f.exp(m - a) + of_zero) for a in arguments]
    scale = 1.0 / sum(sigmas[1:], sigmas[0])
    weights = [sigma * scale for sigma in sigmas]
    hhat = weights[0] * states[0]
    for weight, h in zip(weights[1:], states[1:]):
        hhat = f.fma(weight, h, hhat)

    def factors() -> list[Number]:
        slopes = [s * (1.0 - of_zero * sigma) * (h - hhat) for s, sigma, h in zip(weights, sigmas, states)]
        return weights[:-1] + slopes

    return hhat, factors


def push_mix(f: Functions, products: Sequence[Number], factors: Number, dstates: Sequence[Number]) -> Results:
    m, last = len(products), dstates[-1]
    total = last
    for j, product in enumerate(products):
        total = f.fma(product, factors[m - 1 + j, ...], total)
    for j, dh in enumerate(dstates[:-1]):
        total = f.fma(factors[j, ...], dh - last, total)
    return (total,)


def pull_mix(f: Functions, arguments: Sequence[Number], y: Number, hhat: Number, factors: Number) -> Results:
    m, hhat = len(arguments), y + hhat
    return hhat, tuple([factors[m - 1 + j, ...] * hhat for j in range(m)])


def share(f: Functions, products: Sequence[Number], hhat: Number, factors: Number) -> Results:
    rest, found = hhat, []
    for j, product in enumerate(products[:-1]):
        own = factors[j, ...] * hhat
        rest = rest - own
        found.append(product + own)
    return ((*found, products[-1] + rest),)


# Gated recurrent units


def reset(f: Functions, y: Number, x: Number, hhat: Number) -> Results:
    keep, r = f.gate(y[0, ...] + x[0, ...]), f.gate(y[1, ...] + x[1, ...])
    product = r * hhat
    return keep, product, lambda: [keep, r, None, (r - 1.0) * product]


def blend(f: Functions, y: Number, x: Number, keep: Number, hhat: Number) -> Results:
    candidate = f.tanh(y + x)
    h = f.fma(keep, hhat - candidate, candidate)

    def factors() -> list[Number]:
        z = 1.0 - keep
        return [None, None, z * (candidate - h), None, z * (1.0 - candidate * candidate)]

    return h, factors


def push_reset(f: Functions, dhhat: Number, y: Number, factors: Number) -> Results:
    return (f.fma(factors[1, ...], dhhat, factors[3, ...] * y[1, ...]),)


def push_blend(f: Functions, y: Number, gates: Number, dhhat: Number, factors: Number) -> Results:
    return (f.fma(factors[0, ...], dhhat, f.fma(factors[4, ...], y, factors[2, ...] * gates[0, ...])),)


def pull_reset(f: Functions, y: Number, w: Number, factors: Number) -> Results:
    arguments = f.stack([factors[2, ...] * w, factors[3, ...] * y])
    return f.fma(factors[0, ...], w, factors[1, ...] * y), arguments


# Long short-term memory


def mix_states(
    f: Functions, products: Sequence[Number], x: Number, h: Sequence[Number], c: Sequence[Number]
) -> Results:
    s, slopes = f.switch(products[0] + x[0, ...], products[1] + x[1, ...])
    dh, dc = h[0] - h[1], c[0] - c[1]
    return f.fma(s, dh, h[1]), f.fma(s, dc, c[1]), lambda: [s, *slopes(), dh, dc]


def state(f: Functions, y: Number, x: Number, chat: Number) -> Results:
    i, forget, o = (f.gate(y[j, ...] + x[j, ...]) for j in range(3))
    g = f.tanh(y[3, ...] + x[3, ...])
    c = f.fma(i, g, forget * chat)
    tanh_c = f.tanh(c)

    def factors() -> list[Number]:
        by_gates = [(i - 1.0) * i * g, (forget - 1.0) * forget * chat, (o - 1.0) * o * tanh_c, i * (1.0 - g * g)]
        return [forget, o * (1.0 - tanh_c * tanh_c), *by_gates]

    return o * tanh_c, c, factors


def push_mix_states(
    f: Functions, products: Sequence[Number], factors: Number, dh: Sequence[Number], dc: Sequence[Number]
) -> Results:
    ds = f.fma(factors[1, ...], products[0], factors[2, ...] * products[1])
    pairs = enumerate((dh, dc), start=3)
    return tuple([f.fma(factors[j, ...], ds, f.fma(factors[0, ...], dp - dq, dq)) for j, (dp, dq) in pairs])


def push_state(f: Functions, dchat: Number, y: Number, factors: Number) -> Results:
    dc = factors[0, ...] * dchat
    for j in (0, 1, 3):
        dc = f.fma(factors[2 + j, ...], y[j, ...], dc)
    return f.fma(factors[1, ...], dc, factors[4, ...] * y[2, ...]), dc


def pull_state(f: Functions, wh: Number, wc: Number, factors: Number) -> Results:
    c = f.fma(factors[1, ...], wh, wc)
    arguments = [factors[2, ...] * c, factors[3, ...] * c, factors[4, ...] * wh, factors[5, ...] * c]
    return f.stack(arguments), factors[0, ...] * c


def pull_mix_states(f: Functions, hhat: Number, chat: Number, factors: Number) -> Results:
    s = f.fma(hhat, factors[3, ...], chat * factors[4, ...])
    return s * factors[1, ...], s * factors[2, ...]


def share_states(f: Functions, products: Sequence[Number], hhat: Number, chat: Number, factors: Number) -> Results:
    own_h, own_c = factors[0, ...] * hhat, factors[0, ...] * chat
    return products[0] + own_h, own_c, products[1] + (hhat - own_h), chat - own_c
