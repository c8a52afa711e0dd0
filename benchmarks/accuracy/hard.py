"""Random systems of harder kinds, whose roots are all known, or that have none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize

from benchmarks.accuracy.systems import (
    Array,
    Mixed,
    Residual,
    at_infinity,
    far,
    increasing,
    line,
    mixing,
    monotone,
    signs,
)

GAS = 8.314
Bounds = tuple[Array, Array]


@dataclass(frozen=True)
class Hard:
    """A system, its start, and how far a point is from the nearest root, relative to that; infinite without roots."""

    kind: str
    residual: Residual
    x0: Array
    error: Callable[[Any], float]
    bounds: Bounds | None = None


def away_from(*roots: Array) -> Callable[[Any], float]:
    """The largest error of an unknown, relative to the largest unknown of the nearest root."""

    def error(x: Any) -> float:
        with np.errstate(all="ignore"):
            return min(float(np.abs(np.asarray(x) - r).max() / np.abs(r).max()) for r in roots)

    return error


def nowhere(x: Any) -> float:
    """There is no root."""
    return float("inf")


def mixed(kind: str, phi: Callable[..., Any], B: Array, r: Array, x0: Array) -> Hard:
    """B (phi(x) - phi(r)), in NumPy's or another namespace, for an injective phi."""

    def F(x: Any, xp: Any = np) -> Any:
        return xp.asarray(B) @ (phi(x, xp) - phi(xp.asarray(r), xp))

    return Hard(kind, F, x0, away_from(r))


def decades(rng: np.random.Generator) -> Hard:
    """A chain of rate laws whose constants span ten decades: k (x^p - r^p) + m (x_{i-1} - r_{i-1})."""
    n = int(rng.integers(2, 12))
    k, m = 10 ** rng.uniform(-5, 5, n), np.zeros(n)
    m[1:] = k[1:] * 10 ** rng.uniform(-3, 0.5, n - 1)
    p, r = rng.integers(1, 4, n).astype(float), 10 ** rng.uniform(-1, 1, n)

    def F(x: Any, xp: Any = np) -> Any:
        a, b, power, root = (xp.asarray(part) for part in (k, m, p, r))
        own = xp.sign(x) * xp.abs(x) ** power - root**power
        before = xp.concatenate([0 * x[:1], (x - root)[:-1]])
        return a * own + b * before

    return Hard("parameters over ten decades", F, r * 10 ** rng.uniform(-1, 1, n), away_from(r))


def holomorphic(rng: np.random.Generator) -> Hard:
    """B (z^k - r^k), whose roots are r times roots of unity, from a complex start."""
    n, k = int(rng.integers(1, 6)), int(rng.integers(2, 6))
    B = mixing(rng, n) + 1j * 0.3 * mixing(rng, n)
    r = signs(rng, n) + 1j * signs(rng, n)

    def F(z: Any, xp: Any = np) -> Any:
        return xp.asarray(B) @ (z**k - xp.asarray(r) ** k)

    def error(z: Any) -> float:
        turns = np.exp(2j * np.pi * np.arange(k) / k)[:, None] * r
        return float(np.abs(np.asarray(z) - turns).min(axis=0).max() / np.abs(r).max())

    return Hard("complex", F, 10 ** rng.uniform(-1, 1) * (signs(rng, n) + 1j * signs(rng, n)), error)


def single(rng: np.random.Generator) -> Hard:
    """Far starts, monotone systems and roots at infinity in single precision."""
    system = (far, monotone, at_infinity)[rng.integers(3)](rng)
    equations: Any = system.residual

    def F(x: Any, xp: Any = np) -> Any:
        return equations(x.astype(float)).astype(np.float32) if xp is np else equations(x, xp)

    def error(x: Any) -> float:
        return 1e-2 * system.error(x)  # 1e-4 stands for 1e-2

    return Hard("single precision", F, system.x0.astype(np.float32), error)


def bounded(rng: np.random.Generator) -> Hard:
    """Bounds that contain the root, touch it, or exclude it."""
    system = (far, monotone)[rng.integers(2)](rng)
    r: Any = system.root
    low, high = (r - 10 ** rng.uniform(-3, 2, r.size), r + 10 ** rng.uniform(-3, 2, r.size))
    touches, excludes = rng.random(r.size) < 0.2, rng.random() < 0.3
    low = np.where(touches, r, low)
    if excludes:
        i = rng.integers(r.size)
        low[i] = r[i] + 0.1 * (high[i] - r[i])
    error = nowhere if excludes else system.error
    return Hard("bounds", system.residual, np.clip(system.x0, low, high), error, (low, high))


def exponentials(rng: np.random.Generator) -> Hard:
    """Sums of growing and decaying exponentials of one unknown each, from far."""
    n = int(rng.integers(1, 7))
    B, r, rate = mixing(rng, n), signs(rng, n), rng.uniform(0.3, 3, n) * rng.choice([-1.0, 1.0], n)
    far_away = 10 ** rng.uniform(-0.5, 1.3)
    return mixed("exponentials", lambda x, xp: xp.exp(xp.asarray(rate) * x), B, r, r + far_away * rng.uniform(-1, 1, n))


def poles(rng: np.random.Generator) -> Hard:
    """Rational functions with a pole between the start and the root."""
    n = int(rng.integers(1, 7))
    B, r = mixing(rng, n), signs(rng, n)
    side = rng.choice([-1.0, 1.0], n)
    pole = r + side * rng.uniform(0.2, 2, n)
    x0 = np.where(rng.random(n) < 0.6, pole + side * rng.uniform(0.1, 3, n), r + 0.1 * signs(rng, n))
    return mixed("poles", lambda x, xp: 1 / (x - xp.asarray(pole)), B, r, x0)


def solution_line(rng: np.random.Generator) -> Hard:
    """A line of solutions, or the same equations with a right-hand side that is out of their range."""
    n = int(rng.integers(2, 7))
    m, r = n - 1, signs(rng, n)
    C, B = mixing(rng, n)[:m], np.linalg.qr(rng.standard_normal((n, m)))[0]
    phi = increasing(np)[rng.integers(3)] if rng.random() < 0.5 else lambda x: x
    has_roots = rng.random() < 0.5
    out = np.linalg.svd(B)[0][:, -1] * 10 ** rng.uniform(-3, 0)
    target = C @ r

    def F(x: Any, xp: Any = np) -> Any:
        return B @ (phi(C @ x) - phi(target)) - (0 if has_roots else out)

    def error(x: Any) -> float:
        return float(np.abs(C @ np.asarray(x) - target).max() / np.abs(r).max()) if has_roots else np.inf

    return Hard("lines of solutions", F, r + signs(rng, n), error)


def chain(rng: np.random.Generator) -> Hard:
    """Each unknown follows from the one before: phi(x_i) = a x_{i-1} + b_i."""
    n, a = int(10 ** rng.uniform(0.5, 2.3)), rng.uniform(-1.2, 1.2)
    phi = increasing(np)[rng.choice([0, 3, 4, 6])]
    r = signs(rng, n)

    def F(x: Any, xp: Any = np) -> Any:
        return phi(x) - phi(r) - a * np.concatenate([[0.0], (x - r)[:-1]])

    return Hard("chains", F, r + 10 ** rng.uniform(-1, 1) * rng.standard_normal(n), away_from(r))


def offset(rng: np.random.Generator) -> Hard:
    """Far starts to which 1e8 is added and taken away again: eight digits of F are lost."""
    system, size = far(rng), 10 ** rng.uniform(4, 8)
    return Hard("cancellation", lambda x, xp=np: (system.residual(x, xp) + size) - size, system.x0, system.error)


def powers(rng: np.random.Generator) -> Hard:
    """|x - s|^p with its sign, p of 0.5 or 1.5, whose kink may be the root."""
    n, p = int(rng.integers(1, 6)), rng.choice([0.5, 1.5, 2.5])
    B, r = mixing(rng, n), signs(rng, n)
    kink = np.where(rng.random(n) < 0.3, r, r + signs(rng, n))

    def phi(x: Any, xp: Any) -> Any:
        d = x - xp.asarray(kink)
        return xp.sign(d) * xp.abs(d) ** p

    return mixed("powers of abs(x)", phi, B, r, r + 10 ** rng.uniform(-1, 1) * signs(rng, n))


def reactor(rng: np.random.Generator) -> Hard:
    """A stirred tank with an Arrhenius law: balances of an amount c and a temperature T, with one to three roots."""
    k0, energy, heat = 10 ** rng.uniform(6, 13), rng.uniform(5e4, 1e5), rng.uniform(10, 300)
    feed, tau = rng.uniform(280, 400), 10 ** rng.uniform(-1, 2)

    def rate(T: Any, xp: Any) -> Any:
        return k0 * xp.exp(-energy / (GAS * T))

    def F(x: Any, xp: Any = np) -> Any:
        c, T = x[0], x[1]
        reaction = rate(T, xp) * c
        return xp.stack([(1 - c) / tau - reaction, (feed - T) / tau + heat * reaction])

    def heat_balance(T: Any) -> Any:  # c follows from T
        return feed - T + heat * tau * rate(T, np) / (1 + tau * rate(T, np))

    T = np.linspace(feed - 1, feed + heat + 1, 20_001)
    values = heat_balance(T)
    spots = np.flatnonzero(np.sign(values[:-1]) * np.sign(values[1:]) <= 0)
    found = [scipy.optimize.brentq(heat_balance, T[i], T[i + 1], xtol=1e-13, rtol=1e-14) for i in spots]
    roots = [np.array([1 / (1 + tau * rate(t, np)), t]) for t in found]

    def error(x: Any) -> float:
        return min(float(np.abs((np.asarray(x) - r) / r).max()) for r in roots)

    return Hard(
        "reactors", F, np.array([rng.uniform(0, 1), feed + rng.uniform(-30, 1) + heat * rng.uniform(0, 1)]), error
    )


def plateau(rng: np.random.Generator) -> Hard:
    """Functions of two unknowns that are nearly constant away from the root; some vanish at infinity too."""
    B, r, a = mixing(rng, 2), signs(rng, 2), rng.uniform(0.5, 3)
    shape = int(rng.integers(4))

    def phi(x: Any, xp: Any) -> Any:
        d = a * (x - xp.asarray(r))
        return [xp.tanh(d), d / (1 + xp.abs(d)), d * xp.exp(-(d**2) / 2), d / (1 + d**2)][shape]

    return mixed("plateaus", phi, B, r, r + 10 ** rng.uniform(-1, 1) * signs(rng, 2))


def large_at_infinity(rng: np.random.Generator) -> Hard:
    """A root at infinity among 21 to 60 unknowns."""
    n = int(rng.integers(21, 61))
    r, B = signs(rng, n), mixing(rng, n, 0.5)
    F = Mixed.of(r, int(rng.integers(8)), B, g=int(rng.integers(8)))
    return Hard("larger, at infinity", F, r + 0.3 * rng.standard_normal(n), nowhere)


def two_units(rng: np.random.Generator) -> Hard:
    """Two fields on a line, coupled, in units that differ by up to ten decades."""
    first, unit, c = line(rng), 10 ** rng.uniform(-10, 10), rng.uniform(-0.5, 0.5)
    u: Any = first.root
    n, size = u.size, np.abs(first.residual(first.x0)).max()
    v = u + 0.5 * np.cos(np.arange(n))

    def F(x: Any, xp: Any = np) -> Any:
        a, b = x[::2], x[1::2] / unit
        return np.stack(
            [first.residual(a) + c * size * (b - v), unit * (b + b**3 - v - v**3 - c * (a - u))], axis=1
        ).ravel()

    r = np.stack([u, unit * v], axis=1).ravel()

    def error(x: Any) -> float:
        d = np.abs(np.asarray(x) - r).reshape(n, 2).max(axis=0)
        return float((d / np.abs(r).reshape(n, 2).max(axis=0)).max())

    return Hard("fields in two units", F, r * (1 + rng.uniform(-0.5, 0.5, 2 * n)), error)


KINDS = (
    decades, holomorphic, single, bounded, exponentials, poles, solution_line, chain, offset, powers, reactor, plateau,
    large_at_infinity, two_units,
)  # fmt: skip


def systems(count: int, seed: int) -> Iterator[Hard]:
    """Yield so many systems, each from its own seed: the kinds in turn."""
    for i in range(count):
        yield KINDS[i % len(KINDS)](np.random.default_rng([seed, i]))
