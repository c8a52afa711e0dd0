# pyright: basic
"""The elementwise work of recurrent networks without gates: what `kernels._gates_rnn` defines."""

from __future__ import annotations

from implicitsolve.adapters import kernels
from implicitsolve.adapters.kernels._rnn import RNN as reference  # noqa: N811
from implicitsolve.backends.numba._gates_loops import BODIES, fused, supports
from implicitsolve.backends.numba._gates_near import of_neighbours
from implicitsolve.backends.numba._gates_numbers import fma, gate, one, tanh, where
from implicitsolve.backends.numba._gates_recurrence import run


def _argument(products, x):
    return sum(products[1:], products[0] + x)


@fused
def of_tanh(products, x):
    h = tanh(_argument(products, x))
    return h, [1.0 - h * h]


@fused
def of_logistic(products, x):
    h = gate(-_argument(products, x))
    return h, [h - h * h]


@fused
def of_relu(products, x):
    a = _argument(products, x)
    return where(a < 0.0, 0.0, a), [where(a > 0.0, one(a), 0.0)]


@fused
def of_identity(products, x):
    a = _argument(products, x)
    return a, [one(a)]


@fused
def push(products, factors):
    return (factors[0] * sum(products[1:], products[0]),)


@fused
def gather(products):
    return (sum(products[1:], products[0]),)


ACTIVATIONS = {"tanh": of_tanh, "logistic": of_logistic, "relu": of_relu, "identity": of_identity}


def step_of(phi):
    """The rule of a recurrence with h = phi(y + x)."""

    def step(y, x, unused):
        h, _ = BODIES[phi.name]([y], x)
        return h, h

    return step


def push_step(y, x, factor):
    h = fma(factor, y, x)
    return h, h


def pull_step(y, x, factor):
    h = y + x
    return h, factor * h


RULES = {name: step_of(phi) for name, phi in ACTIVATIONS.items()} | {"push": push_step, "pull": pull_step}
BODIES.update((f"{__name__}.RULES.{name}", rule) for name, rule in RULES.items())


class RNN:
    """Implements `kernels.rnn`."""

    @staticmethod
    def value(activation, products, x, factors=None, distances=None):
        h, products = of_neighbours(products, distances, x.shape)
        ACTIVATIONS[activation]((h,) if factors is None else (h, factors), (products, x))
        return h

    @staticmethod
    def push(products, factors, distances=None):
        dh, products = of_neighbours(products, distances, factors.shape[1:])
        push((dh,), (products, factors))
        return dh

    @staticmethod
    def gather(products, distances, length):
        B, _, k = products[0].shape
        total, products = of_neighbours(products, [-distance for distance in distances], (B, length, k))
        gather((total,), (products,))
        return total

    @staticmethod
    def run(rule, weights, x, begin, lags, plan, given=None):
        if given is not None:  # every step stands alone: layers compute them all at once
            return reference.run(rule, weights, x, begin, lags, plan, given)
        return run(f"{__name__}.RULES.{rule}", weights, x, begin, lags, plan)


kernels.rnn.implement("numba", RNN, supports)
