"""Fixed points of an Elman network beyond plain iterations, on NumPy's arrays and torch's tensors alike.

States h_t = sigma(W h_{t-1} + a_t) of sequences (B, T, k) from their inputs a. All are causal, and states of order rho
depend on rho inputs: coefficients of an acceleration belong to one position, since those of a whole sequence would tell
its words what follows them.
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace


def iterated(inputs: Any, W: Any, rho: int) -> Any:
    """rho iterations from zero: order rho."""
    states = _logistic(inputs)
    for _ in range(rho - 1):
        states = _next(states, inputs, W)
    return states


def doubled(inputs: Any, W: Any, rho: int) -> Any:
    """Newton steps for all positions at once, each of which doubles the order, to at least rho.

    A step from order m adds sum_{j<m} J_t ... J_{t-j+1} r_{t-j}, with r = F(h) - h and the recurrence's derivatives J.
    A parallel scan needs log2 m levels of products for it.
    """
    states, order = _logistic(inputs), 1
    while order < rho:
        values = _next(states, inputs, W)
        states = states + _scan(values * (1 - values), W, values - states, order)
        order *= 2
    return states


def accelerated(inputs: Any, W: Any, rho: int) -> Any:
    """rho iterations, mixed with the ones before by Anderson's method of depth one in each position: order rho."""
    xp = array_namespace(inputs)
    older = states = _logistic(inputs)
    residual = states
    for _ in range(rho - 1):
        values = _next(states, inputs, W)
        change = values - states - residual
        residual = values - states
        products = (xp.sum(residual * change, axis=-1), xp.sum(change * change, axis=-1) + 1e-12)
        weight = xp.clip(_constant(products[0] / products[1]), -0.5, 0.5)[..., None]
        older, states = values, values - weight * (values - older)
    return states


def _scan(slopes: Any, W: Any, total: Any, order: int) -> Any:
    """Sums of `order` terms (order a power of two) of products of J_t = diag(slopes_t) W with shifted vectors."""
    J, span = slopes[..., None] * W, 1
    while span < order:
        total = total + (J @ _shifted(total, span)[..., None])[..., 0]
        J, span = (J @ _shifted(J, span) if 2 * span < order else J), 2 * span
    return total


def _next(states: Any, inputs: Any, W: Any) -> Any:
    return _logistic(_shifted(states, 1) @ W.T + inputs)


def _logistic(x: Any) -> Any:
    return 1 / (1 + array_namespace(x).exp(-x))


def _shifted(x: Any, steps: int) -> Any:
    """Positions t - steps in the places of t, zero before the first."""
    xp = array_namespace(x)
    return xp.concat([0 * x[:, :steps], x[:, : max(0, x.shape[1] - steps)]], axis=1)


def _constant(x: Any) -> Any:
    return x.detach() if hasattr(x, "detach") else x
