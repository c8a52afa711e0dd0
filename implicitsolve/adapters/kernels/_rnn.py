"""Array-API references: the elementwise work of recurrent networks without gates, see `_gates`; whole recurrences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from implicitsolve._namespace import array_namespace
from implicitsolve._typing import Array
from implicitsolve.adapters.kernels._gates import GRU, gate, near, total
from implicitsolve.adapters.kernels._recurrence import Plan, recurrence


class Activation(NamedTuple):
    """A function of each number, and its derivative by the function's value."""

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]


class RNN:
    """h = phi(a), where a is the sum of matrix products and x. The factors are a stack of one: phi'(a).

    `run` takes a whole recurrence with such products y, ``y_t = sum_j h_(t - lags[j]) weights[j]``, by one of the rules

    - the name of phi, for h_t = phi(y_t + x_t),
    - "push", for h_t = x_t + f_t*y_t with factors f,
    - "pull", for h_t = x_t + y_t, where the products are those of f_t*h_t: the adjoint, which runs the other way.
    """

    takes_sequences: ClassVar[bool] = False

    @staticmethod
    def value(
        activation: str,
        products: Sequence[Array],
        x: Array,
        factors: Array = None,
        distances: Sequence[int] | None = None,
    ) -> Array:
        """Return h for the name of phi."""
        phi, a = ACTIVATIONS[activation], total(near(products, distances, x.shape[-2]))
        a += x
        h = phi.value(a)
        if factors is not None:
            factors[0, ...] = phi.slope(h)
        return h

    @staticmethod
    def push(products: Sequence[Array], factors: Array, distances: Sequence[int] | None = None) -> Array:
        """Return dh for the products of the dh_j."""
        dh = total(near(products, distances, factors.shape[-2]))
        dh *= factors[0, ...]
        return dh

    @staticmethod
    def gather(products: Sequence[Array], distances: Sequence[int], length: int) -> Array:
        """Return the sum of the products with the adjoints that each of the neighbours gets, (B, length, k)."""
        return total(near(products, [-distance for distance in distances], length))

    @staticmethod
    def run(
        rule: str,
        weights: Array,
        x: tuple[Array, ...],
        begin: Array,
        lags: tuple[int, ...],
        plan: Plan,
        given: Array = None,
    ) -> Array:
        """Return the h_t (plan.rows, k) of all runs; x is (x,) or (x, f); see `recurrence` for the rest."""

        def step(x: tuple[Array, ...], states: tuple[Array, ...]) -> tuple[Array, Array]:
            y = total([array_namespace(h).matmul(h, weights[j, ...]) for j, h in enumerate(states)])
            if rule == "pull":
                y += x[0]
                return y, x[1] * y
            if rule == "push":
                y *= x[1]
            y += x[0]
            h = y if rule == "push" else ACTIVATIONS[rule].value(y)
            return h, h

        return recurrence(step, x, begin, lags, plan, given)


def gru_recurrence(
    rule: str,
    gates: Array,
    U: Array,
    x: tuple[Array, ...],
    begin: Array,
    lags: tuple[int, ...],
    plan: Plan,
    given: Array = None,
) -> Array:
    """Return the h_t (plan.rows, k) of all runs, by one of the rules

    - "value": h_t = f_t(h_(t-lag)), for x = (stack,), whose last three matrices belong to keep, r and the candidate,
    - "push": h_t = x_t + df_t h_(t-lag), for x = (x, stack) with a stack whose last five are the factors,
    - "pull": h_t = x_t + df_(t-lag)^T h_(t-lag), the adjoint, which runs the other way; `begin` holds the products.

    Parameters
    ----------
    rule : str
        See above.
    gates, U : Array of shape (2, k, k) and (k, k)
        Weights: the arguments of the gates are ``gates[0] hhat`` and ``gates[1] hhat``, that of tanh is U (r*hhat).
    x, begin, plan, given
        As of `recurrence`.
    lags : tuple of int
        One.
    """  # noqa: D400
    xp = array_namespace(U)

    def along(states: Array, weights: Array) -> Array:
        return xp.matmul(states, xp.matrix_transpose(weights))

    def value(x: tuple[Array, ...], states: tuple[Array, ...]) -> tuple[Array, Array]:
        own, (hhat,) = x[0][-3:, ...], states
        keep, reset = GRU.reset(along(hhat, gates), own[:2, ...], hhat)
        h = GRU.blend(along(reset, U), own[2, ...], keep, hhat)
        return h, h

    def push(x: tuple[Array, ...], states: tuple[Array, ...]) -> tuple[Array, Array]:
        factors, (dhhat,) = x[1][-5:, ...], states
        y = along(dhhat, gates)
        h = GRU.push_blend(along(GRU.push_reset(y, dhhat, factors), U), y, dhhat, factors)
        h += x[0]
        return h, h

    def pull(x: tuple[Array, ...], states: tuple[Array, ...]) -> tuple[Array, Array]:
        factors, w = x[1][-5:, ...], x[0] + states[0]
        hhat, sums = GRU.pull_reset(xp.matmul(GRU.pull_blend(w, factors), U), w, factors)
        return w, hhat + xp.sum(xp.matmul(sums, gates), axis=0)

    return recurrence({"value": value, "push": push, "pull": pull}[rule], x, begin, lags, plan, given)


ACTIVATIONS = {
    "tanh": Activation(lambda a: array_namespace(a).tanh(a), lambda h: 1.0 - h * h),
    "logistic": Activation(lambda a: gate(-a), lambda h: h - h * h),
    "relu": Activation(
        lambda a: array_namespace(a).maximum(a, array_namespace(a).zeros_like(a)),
        lambda h: array_namespace(h).astype(h > 0.0, h.dtype),
    ),
    "identity": Activation(lambda a: a, lambda h: array_namespace(h).ones_like(h)),
}


def check_activation(caller: str, activation: object) -> None:
    """Check that `activation` is the name of one."""
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        known = ", ".join(repr(name) for name in ACTIVATIONS)
        raise ValueError(f"{caller}: `activation` must be one of {known}, got {activation!r}")
