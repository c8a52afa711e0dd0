"""Systems with kinks: melting, contact, obstacles, complementarity, infiltration. Whole steps of Newton's method end
where their active sets are right; on the way ||F|| grows, by the penalty for instance.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


def laplacian(u, left=0.0, right=0.0):
    """The second difference along a line with values at its ends."""
    p = np.concatenate([[left], u, [right]])
    return p[2:] - 2 * u + p[:-2]


def melting(n: int, step: float) -> tuple[Callable[[Any], Any], Any]:
    """One implicit step of the enthalpy of a cold bar that is heated at one end."""

    def residual(h):
        temperature = np.where(h < 0, h, np.maximum(h - 1, 0))
        return h + 0.1 - step * n**2 * laplacian(temperature, 1.0, temperature[-1])

    return residual, np.full(n, -0.1)


def string_above_a_floor(n: int, load: float, penalty: float = 1e6) -> tuple[Callable[[Any], Any], Any]:
    """A string that a penalty keeps from a floor, from its straight position."""

    def residual(u):
        return u - 0.01 * (n**2 * laplacian(u) + load - penalty * np.maximum(u - 0.8, 0))

    return residual, np.zeros(n)


def membrane_over_a_hill(n: int) -> tuple[Callable[[Any], Any], Any]:
    """A membrane in the plane above an obstacle, by a minimum."""
    x = np.linspace(-2, 2, n + 2)[1:-1]
    hill = 1 - x[:, None] ** 2 - x**2

    def residual(u):
        p = np.pad(u, 1)
        force = 4 * u - p[2:, 1:-1] - p[:-2, 1:-1] - p[1:-1, 2:] - p[1:-1, :-2]
        return np.minimum(force * (n / 4) ** 2, u - hill)

    return residual, np.zeros((n, n))


def line_above_a_hill(n: int) -> tuple[Callable[[Any], Any], Any]:
    """The same along a line."""
    x = np.linspace(-2, 2, n + 2)[1:-1]
    return lambda u: np.minimum(-laplacian(u) * (n / 4) ** 2, u - 1 + x**2), np.zeros(n)


def infiltration(n: int, step: float) -> tuple[Callable[[Any], Any], Any]:
    """One implicit step of Richards' equation in dry soil below a pond: saturated where the pressure is positive."""
    dry = np.full(n, -2.0)

    def water(p):
        return np.where(p < 0, 1 / (1 + (3 * np.abs(p)) ** 2), 1.0) + 1e-4 * p

    def residual(p):
        q = np.concatenate([[0.1], p, [p[-1]]])
        conductivity = np.where(q < 0, 1 / (1 + (5 * np.abs(q)) ** 3), 1.0)
        flow = -(conductivity[1:] + conductivity[:-1]) / 2 * (n * np.diff(q) - 1)
        return water(p) - water(dry) + step * n * np.diff(flow)

    return residual, dry


def complementarity(n: int, seed: int) -> tuple[Callable[[Any], Any], Any]:
    """x >= 0, M x + q >= 0, one of them 0 in each row, with a full positive definite M."""
    rng = np.random.default_rng(seed)
    m, q = rng.standard_normal((n, n)), rng.standard_normal(n)
    m = m @ m.T / n + 0.1 * np.eye(n)
    return lambda x: np.minimum(x, m @ x + q), np.zeros(n)


def kinked_systems() -> Iterator[tuple[str, Callable[[Any], Any], Any]]:
    """Names, residuals and starts."""
    for n in (12, 100, 1000):
        for step in (1e-3, 1e-2, 1e-1)[: 3 if n < 1000 else 1]:
            yield f"melting, {n}, {step}", *melting(n, step)
            yield f"infiltration, {n}, {step}", *infiltration(n, step)
        for load in (10.0, 20.0, 100.0):
            yield f"string, {n}, {load}", *string_above_a_floor(n, load)
        yield f"hill, {n}", *line_above_a_hill(n)
    for n in (10, 30, 60):
        yield f"membrane, {n}", *membrane_over_a_hill(n)
        yield f"complementarity, {n}", *complementarity(n, n)
