"""The residuals of W2 and W4, and the Jacobian of W2, in JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from benchmarks.benchmarks.workloads import Bratu, Brusselators, Burgers

A, DIFFUSION = 1.0, 0.02


def neighbours(x: Any, left: Any, right: Any) -> tuple[Any, Any]:
    """What stands before and behind every point."""
    left, right = (jnp.broadcast_to(jnp.asarray(end, x.dtype), (1, *x.shape[1:])) for end in (left, right))
    return jnp.concatenate([left, x[:-1]]), jnp.concatenate([x[1:], right])


def jax_residual(workload: Bratu | Burgers | Brusselators) -> Callable[..., Any]:
    """F(x), of W4 F(x, B) of one system."""
    if isinstance(workload, Bratu):
        strength = workload.constant * workload.h**2

        def bratu(x: Any) -> Any:
            p, q = neighbours(x, 0.0, 0.0)
            return p - 2 * x + q + strength * jnp.exp(x)

        return bratu
    if isinstance(workload, Burgers):
        nu, h = workload.constant, workload.h

        def burgers(x: Any) -> Any:
            p, q = neighbours(x, 1.0, -1.0)
            return nu * (p - 2 * x + q) - 0.5 * h * x * (q - p)

        return burgers
    h2 = workload.h2

    def brusselator(x: Any, B: Any) -> Any:
        rest = jnp.stack([jnp.full_like(B, A), B / A])
        p, q = neighbours(x, rest, rest)
        u, v = x[:, 0], x[:, 1]
        uuv = u * u * v
        return DIFFUSION * (p - 2 * x + q) + h2 * jnp.stack([A - (B + 1) * u + uuv, B * u - uuv], axis=-1)

    return brusselator


def jax_diagonals(workload: Bratu | Burgers) -> Callable[[Any], tuple[Any, Any, Any]]:
    """The lower, main and upper diagonal of W2's Jacobian, as tridiagonal_solve takes them."""
    if isinstance(workload, Bratu):
        strength = workload.constant * workload.h**2

        def bratu(x: Any) -> tuple[Any, Any, Any]:
            one = jnp.ones_like(x)
            return one.at[0].set(0), strength * jnp.exp(x) - 2, one.at[-1].set(0)

        return bratu
    nu, h = workload.constant, workload.h

    def burgers(x: Any) -> tuple[Any, Any, Any]:
        p, q = neighbours(x, 1.0, -1.0)
        lower, upper = nu + 0.5 * h * x, nu - 0.5 * h * x
        return lower.at[0].set(0), -2 * nu - 0.5 * h * (q - p), upper.at[-1].set(0)

    return burgers
