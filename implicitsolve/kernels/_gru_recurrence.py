"""Array-API reference of whole recurrences of ordinary GRUs; see `_gates.GRU` for what one step does."""

from __future__ import annotations

from implicitsolve._namespace import array_namespace
from implicitsolve._typing import Array
from implicitsolve.kernels._gates import GRU
from implicitsolve.kernels._recurrence import Plan, recurrence


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
