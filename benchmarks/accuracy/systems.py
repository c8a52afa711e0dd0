"""Random systems whose only root is known, or that have none, of eight kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Function = Callable[[Any], Any]
Residual = Callable[..., Any]  # of x, and of a namespace with NumPy's names that is another than NumPy


@dataclass(frozen=True)
class System:
    """A system, its start, and its only root, or None."""

    kind: str
    residual: Residual
    x0: Array
    root: Array | None
    units: Array | float = 1.0  # of the unknowns, in which errors are measured

    def error(self, x: Any) -> float:
        """Largest error of an unknown, over its unit times the size of the root in these units."""
        if self.root is None:
            return float("inf")
        with np.errstate(all="ignore"):
            size = np.max(np.abs(self.root / self.units))
            return float(np.max(np.abs((np.asarray(x) - self.root) / self.units)) / size)


MOST = (1e5, 30.0, 30.0, 1e6, 1e5, 1e4, 1e3, 1e3)  # how far from a root a start may lie, for each increasing function


@cache
def increasing(xp: Any) -> list[Function]:
    """Increasing functions of one number onto the real line."""
    return [
        lambda x: x + x**3,
        lambda x: xp.sinh(x),
        lambda x: x + xp.exp(x),
        lambda x: x * xp.abs(x) + x,
        lambda x: 2 * x + xp.sin(x),
        lambda x: xp.arcsinh(x),
        lambda x: x + x**5,
        lambda x: xp.sign(x) * xp.log1p(xp.abs(x)) + 0.1 * x,
    ]


@cache
def vanishing(xp: Any) -> list[Function]:
    """Positive functions that vanish at infinity only."""
    return [
        lambda x: xp.exp(-x),
        lambda x: 1 / (1 + x**2),
        lambda x: xp.sqrt(1 + x**2) - x,
        lambda x: xp.arctan(x) - np.pi / 2,
        lambda x: xp.log1p(xp.exp(-x)),
        lambda x: 1 / xp.cosh(x),
        lambda x: xp.exp(-(xp.abs(x) ** 1.5)),
        lambda x: (1 + x**2) ** -0.25,
    ]


@dataclass(frozen=True)
class Mixed:
    """rows * (A (u - r) + B (phi(u) - phi(r))) with u = x / units; a g(u_0) takes the place of phi(u_0) - phi(r_0)."""

    r: Array
    phi: int
    B: Array
    A: Array
    rows: Array
    units: Array
    g: int = -1

    @staticmethod
    def of(r: Array, phi: int, B: Array, A: Any = None, rows: Any = None, units: Any = None, g: int = -1) -> Mixed:
        """Without A, and with units of 1, by default."""
        none, one = np.zeros_like(B), np.ones_like(r)
        return Mixed(
            r, phi, B, none if A is None else A, one if rows is None else rows, one if units is None else units, g
        )

    def __call__(self, x: Any, xp: Any = np) -> Any:
        """F(x), in a namespace with NumPy's names."""
        r, B, A, rows, units = (xp.asarray(part) for part in (self.r, self.B, self.A, self.rows, self.units))
        u, phi = x / units, increasing(xp)[self.phi]
        value = phi(u) - phi(r)
        if self.g >= 0:
            value = xp.concatenate([vanishing(xp)[self.g](u[:1]), value[1:]])
        value = B @ value
        return rows * (value + A @ (u - r) if self.A.any() else value)


def signs(rng: np.random.Generator, n: int) -> Array:
    """Numbers of magnitude 0.3 to 3 and random signs."""
    return rng.uniform(0.3, 3.0, n) * rng.choice([-1.0, 1.0], n)


def mixing(rng: np.random.Generator, n: int, least: float = 0.3) -> Array:
    """A matrix whose singular values go from 1 to `least`."""
    Q, R = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
    return Q * np.geomspace(1.0, least, n) @ R


def far(rng: np.random.Generator) -> System:
    """Increasing functions of each unknown, mixed, from a start up to a million times too far."""
    n = int(rng.integers(1, 9))
    phi = int(rng.integers(len(MOST)))
    B, r = mixing(rng, n), signs(rng, n)
    x0 = r + MOST[phi] ** rng.uniform(0.0, 1.0) * signs(rng, n) / 3
    return System("far starts", Mixed.of(r, phi, B), x0, r)


def monotone(rng: np.random.Generator) -> System:
    """A positive definite matrix, not symmetric, and increasing functions of each unknown."""
    n = int(rng.integers(2, 41))
    S, K = mixing(rng, n, 10 ** -rng.uniform(0, 3)), rng.standard_normal((n, n)) / n**0.5
    A, r = S @ S.T + K - K.T, signs(rng, n)
    phi = int(rng.integers(len(MOST)))
    x0 = r + 10 ** rng.uniform(-1, 1) * rng.standard_normal(n)
    return System("monotone", Mixed.of(r, phi, np.eye(n), A), x0, r)


def at_infinity(rng: np.random.Generator) -> System:
    """One equation whose left-hand side vanishes at infinity only, beside regular ones."""
    n = int(rng.integers(1, 7))
    g, r, B = int(rng.integers(len(vanishing(np)))), signs(rng, n), mixing(rng, n)
    phi = int(rng.integers(len(MOST)))
    return System("roots at infinity", Mixed.of(r, phi, B, g=g), r + rng.standard_normal(n), None)


def mixed_units(rng: np.random.Generator) -> System:
    """Equations and unknowns in units over twenty decades."""
    n = int(rng.integers(2, 11))
    phi = int(rng.integers(len(MOST)))
    B, r = mixing(rng, n), signs(rng, n)
    decades = rng.uniform(0, 10)
    rows, units = (10 ** rng.uniform(-decades, decades, n) for _ in range(2))
    if rng.random() < 0.3:  # one equation far smaller than the others
        rows[:], units[:] = 1.0, 1.0
        rows[rng.integers(n)] = 10 ** rng.uniform(-14, -6)
    x0 = units * (r + 10 ** rng.uniform(-1, 0.5) * rng.standard_normal(n))
    return System("mixed units", Mixed.of(r, phi, B, rows=rows, units=units), x0, units * r, units)


def nearly_singular(rng: np.random.Generator) -> System:
    """A Jacobian whose condition number is 10^3 to 10^9."""
    n = int(rng.integers(2, 9))
    phi = int(rng.integers(len(MOST)))
    B, r = mixing(rng, n, 10 ** -rng.uniform(3, 9)), signs(rng, n)
    x0 = r + 10 ** rng.uniform(-2, 0.5) * rng.standard_normal(n)
    return System("nearly singular", Mixed.of(r, phi, B), x0, r)


def warm(rng: np.random.Generator) -> System:
    """Another kind, from its root up to a part of 10^-12 to 10^-3."""
    other = (far, monotone, mixed_units, line, plane)[rng.integers(5)](rng)
    r: Any = other.root
    x0 = r * (1 + 10 ** rng.uniform(-12, -3) * rng.uniform(-1, 1, r.shape))
    return System("warm starts", other.residual, x0, r, other.units)


def padded(v: Any, xp: Any) -> Any:
    """With a row of zeros before and one behind."""
    zero = 0 * v[:1]
    return xp.concatenate([zero, v, zero])


def line(rng: np.random.Generator) -> System:
    """-(k u')' + c (u + u^3) = b on a line, whose right-hand side belongs to a known u."""
    n = int(10 ** rng.uniform(1.5, 2.6))
    t, k = np.linspace(0, 1, n + 2), 10 ** rng.uniform(0, rng.uniform(0, 2), n + 1)
    u, c, h = sum(a * np.sin((j + 1) * np.pi * t) for j, a in enumerate(signs(rng, 3))), rng.uniform(0, 5), 1 / (n + 1)
    scale = 1.0 if rng.random() < 0.5 else h**-2

    def A(v: Any, xp: Any = np) -> Any:
        flux = xp.asarray(k) * xp.diff(padded(v, xp))
        return scale * (flux[:-1] - flux[1:] + h**2 * c * (v + v**3))

    r = np.asarray(u)[1:-1]
    b = A(r)
    return System(
        "lines", lambda v, xp=np: A(v, xp) - xp.asarray(b), 10 ** rng.uniform(-1, 1) * rng.standard_normal(n), r
    )


def plane(rng: np.random.Generator) -> System:
    """The same in a square, with convection."""
    m = int(rng.integers(6, 22))
    t, w, h = np.linspace(0, 1, m + 2)[1:-1], rng.uniform(0, 0.5, 2), 1 / (m + 1)
    r = sum(a * np.outer(np.sin((j + 1) * np.pi * t), np.sin(np.pi * t)) for j, a in enumerate(signs(rng, 3)))
    r = np.asarray(r)
    c = rng.uniform(0, 5)

    def A(v: Any, xp: Any = np) -> Any:
        rows, columns = padded(v, xp), padded(v.T, xp).T
        x, y = (rows[2:], rows[:-2]), (columns[:, 2:], columns[:, :-2])
        drift = w[0] * (x[0] - x[1]) + w[1] * (y[0] - y[1])
        return 4 * v - x[0] - x[1] - y[0] - y[1] + drift + h**2 * c * xp.sinh(v)

    b = A(r)
    return System(
        "planes", lambda v, xp=np: A(v, xp) - xp.asarray(b), 10 ** rng.uniform(-1, 1) * rng.standard_normal((m, m)), r
    )


KINDS = (far, monotone, at_infinity, mixed_units, nearly_singular, warm, line, plane)


def systems(count: int, seed: int) -> Iterator[System]:
    """Yield so many systems, each from its own seed: the kinds in turn."""
    for i in range(count):
        yield KINDS[i % len(KINDS)](np.random.default_rng([seed, i]))
