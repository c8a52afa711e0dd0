"""Systems with bounds, from the literature: a root lies in the box, in its interior or on a face of it.

Sources: Floudas et al., "Handbook of test problems in local and global optimization" (1999), section 14.1; Moré, Garbow
and Hillstrom, ACM Trans. Math. Softw. 7 (1981) 17-41; Meintjes and Morgan, ACM Trans. Math. Softw. 16 (1990) 143-151.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

inf = np.inf


@dataclass(frozen=True)
class Bounded:
    """F, a start in the box, and the box."""

    name: str
    residual: Callable[[Any], Any]
    x0: Any
    lower: Any
    upper: Any


def himmelblau(x):
    a, b = x
    return np.array([4 * a**3 + 4 * a * b + 2 * b**2 - 42 * a - 14, 4 * b**3 + 2 * a**2 + 4 * a * b - 26 * b - 22])


def bullard_biegler(x):
    return np.array([1e4 * x[0] * x[1] - 1, np.exp(-x[0]) + np.exp(-x[1]) - 1.001])


def ferraris_tronconi(x):
    a, b = x
    return np.array(
        [
            0.5 * np.sin(a * b) - 0.25 * b / np.pi - 0.5 * a,
            (1 - 0.25 / np.pi) * (np.exp(2 * a) - np.e) + np.e * b / np.pi - 2 * np.e * a,
        ]
    )


def robot(x):
    x1, x2, x3, x4, x5, x6, x7, x8 = x
    return np.array(
        [
            4.731e-3 * x1 * x3 - 0.3578 * x2 * x3 - 0.1238 * x1 + x7 - 1.637e-3 * x2 - 0.9338 * x4 - 0.3571,
            0.2238 * x1 * x3 + 0.7623 * x2 * x3 + 0.2638 * x1 - x7 - 0.07745 * x2 - 0.6734 * x4 - 0.6022,
            x6 * x8 + 0.3578 * x1 + 4.731e-3 * x2,
            -0.7623 * x1 + 0.2238 * x2 + 0.3461,
            x1**2 + x2**2 - 1,
            x3**2 + x4**2 - 1,
            x5**2 + x6**2 - 1,
            x7**2 + x8**2 - 1,
        ]
    )


def two_tanks(recycled):
    """Two stirred tanks in series with a recycle stream, an exothermic reaction of first order."""

    def residual(x):
        a, b = x
        gamma, D, beta = 1000.0, 22.0, 2.0
        return np.array(
            [
                (1 - recycled) * (D / (10 * (1 + beta)) - a) * np.exp(10 * a / (1 + 10 * a / gamma)) - a,
                (1 - recycled) * (D / 10 - beta * a - (1 + beta) * b) * np.exp(10 * b / (1 + 10 * b / gamma))
                + a
                - (1 + beta) * b,
            ]
        )

    return residual


def brown(x):
    F = x + x.sum() - (x.size + 1)
    F[-1] = np.prod(x) - 1
    return F


def propane(x):
    a, b, c, d, e = x
    R, s5, s6, s7, s8, s9, s10 = 10, 0.193, 4.10622e-4, 5.45177e-4, 4.4975e-7, 3.40735e-5, 9.615e-7
    return np.array(
        [
            a * b + a - 3 * e,
            2 * a * b + a + 3 * s10 * b**2 + b * c**2 + s7 * b * c + s9 * b * d + s8 * b - R * e,
            2 * b * c**2 + s7 * b * c + 2 * s5 * c**2 + s6 * c - 8 * e,
            s9 * b * d + 2 * d**2 - 4 * R * e,
            a * b + a + s10 * b**2 + b * c**2 + s7 * b * c + s9 * b * d + s8 * b + s5 * c**2 + s6 * c + d**2 - 1,
        ]
    )


def rosenbrock(x):
    return np.array([10 * (x[1] - x[0] ** 2), 1 - x[0]])


def powell_singular(x):
    a, b, c, d = x
    return np.array([a + 10 * b, 5**0.5 * (c - d), (b - 2 * c) ** 2, 10**0.5 * (a - d) ** 2])


def helical_valley(x):
    a, b, c = x
    return np.array([10 * (c - 10 * np.arctan2(b, a) / (2 * np.pi)), 10 * (np.hypot(a, b) - 1), c])


def broyden_tridiagonal(x):
    p = np.pad(x, 1)
    return (3 - 2 * x) * x - p[:-2] - 2 * p[2:] + 1


def chebyquad(x):
    T, old = 2 * x - 1, np.ones_like(x)
    y, F = T, np.empty_like(x)
    for i in range(x.size):
        F[i] = T.mean() + (1 / ((i + 1) ** 2 - 1) if i % 2 else 0.0)
        old, T = T, 2 * y * T - old
    return F


def trigonometric(x):
    i = np.arange(1, x.size + 1)
    return x.size - np.cos(x).sum() + i * (1 - np.cos(x)) - np.sin(x)


def chandrasekhar(c, n=20):
    mu = (np.arange(n) + 0.5) / n
    A = 0.5 * c / n * mu[:, None] / (mu[:, None] + mu)
    return lambda H: H - 1 / (1 - A @ H)


def discrete_boundary(x):
    n = x.size
    h = 1 / (n + 1)
    p = np.pad(x, 1)
    return 2 * x - p[:-2] - p[2:] + h**2 * (x + h * np.arange(1, n + 1) + 1) ** 3 / 2


def sparse_linear(n, seed):
    """A dense linear system, a third of whose solution lies on the bound 0."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(n, n)) + 2 * n**0.5 * np.eye(n)
    z = np.maximum(rng.normal(size=n) + 0.4, 0.0)
    return lambda x: A @ (x - z)


def entropy(x):
    """Logarithms, which exist inside the bounds alone."""
    return np.log(x) + x.sum() - np.linspace(-5.0, 3.0, x.size)


def robertson(x):
    """Steady state of Robertson's kinetics, with what is conserved: all has become the third species."""
    a, b, c = x
    return np.array([-0.04 * a + 1e4 * b * c, 3e7 * b**2, a + b + c - 1])


def weak_acid(x):
    """Acetic acid: H, OH, A, HA."""
    h, oh, a, ha = x
    return np.array([h * oh - 1e-14, h * a - 1.8e-5 * ha, a + ha - 0.1, h - oh - a])


def phosphoric_acid(x):
    """Phosphate buffer: H, OH, and four species of the acid; three dissociations."""
    h, oh, a0, a1, a2, a3 = x
    return np.array(
        [
            h * oh / 1e-14 - 1,
            h * a1 / 7.1e-3 - a0,
            h * a2 / 6.3e-8 - a1,
            h * a3 / 4.5e-13 - a2,
            (a0 + a1 + a2 + a3) / 0.1 - 1,
            (h + 0.15 - oh - a1 - 2 * a2 - 3 * a3) / 0.1,
        ]
    )


def competition(x):
    """Two species that compete: four steady states, three of them with an extinct one."""
    a, b = x
    return np.array([a * (1 - a - 0.5 * b), b * (1 - 1.5 * a - b)])


def porous(n):
    """Porous medium with a source on one side: u = 0 elsewhere, on the bound, where J is singular but for `u`."""
    t = np.linspace(0, 1, n + 2)[1:-1]
    z = np.maximum(0.4 - np.abs(t - 0.4), 0.0)

    def operator(u):
        p = np.pad(u**3, 1)
        return u - 50.0 * (p[2:] - 2 * p[1:-1] + p[:-2])

    source = operator(z)
    return lambda u: operator(u) - source


def saturation(n, steps=5.0):
    """An implicit step of the Buckley-Leverett equation: saturations between 0 and 1."""
    old = np.where(np.arange(n) < n // 4, 1.0, 0.0)

    def flux(s):
        return s**2 / (s**2 + 0.25 * (1 - s) ** 2)

    return lambda s: s - old + steps * np.diff(flux(np.concatenate([[1.0], s])))


def bratu(lam, n):
    h = 1 / (n + 1)
    return lambda u: 2 * u - np.pad(u, 1)[2:] - np.pad(u, 1)[:-2] - h**2 * lam * np.exp(u)


def diffusing_acid(n):
    """Two species that annihilate each other, from both sides of a layer: both are tiny where the other one is."""

    def residual(x):
        a, b = x.reshape(2, n)
        rate = 1e4 / n**2 * a * b
        left, right = np.concatenate([[1.0], a, a[-1:]]), np.concatenate([b[:1], b, [1.0]])
        return np.concatenate([2 * a - left[2:] - left[:-2] + rate, 2 * b - right[2:] - right[:-2] + rate])

    return residual


def diode(x):
    """A diode and a resistor: the voltage at the node, and the current."""
    v, i = x
    return np.array([i - 1e-14 * np.expm1(v / 0.02585), v + 1e3 * i - 5.0])


GALLERY = (
    Bounded("Himmelblau, whole box", himmelblau, [0.5, -0.5], -5.0, 5.0),
    Bounded("Himmelblau, minimum", himmelblau, [4.5, 4.5], [2.5, 1.0], 5.0),
    Bounded("Himmelblau, root on a face", himmelblau, [4.5, 4.5], [3.0, -5.0], [5.0, 2.0 + 2.6]),
    Bounded("Bullard and Biegler", bullard_biegler, [1.0, 1.0], [5.49e-6, 2.196e-3], [4.553, 18.21]),
    Bounded("Bullard and Biegler, middle", bullard_biegler, [2.27, 9.1], [5.49e-6, 2.196e-3], [4.553, 18.21]),
    Bounded("Ferraris and Tronconi", ferraris_tronconi, [0.6, 4.0], [0.25, 1.5], [1.0, 2 * np.pi]),
    Bounded("Ferraris and Tronconi, corner", ferraris_tronconi, [0.25, 1.5], [0.25, 1.5], [1.0, 2 * np.pi]),
    Bounded("robot", robot, np.full(8, 0.2), -1.0, 1.0),
    Bounded("two tanks, 0.96", two_tanks(0.96), [0.1, 0.1], 0.0, 1.0),
    Bounded("two tanks, 0.99", two_tanks(0.99), [1.0, 1.0], 0.0, 1.0),
    Bounded("Brown", brown, np.full(5, 0.5), -2.0, 2.0),
    Bounded("Brown, positive", brown, np.full(10, 0.1), 0.0, 2.0),
    Bounded("propane", propane, np.full(5, 10.0), 1e-4, 100.0),
    Bounded("propane, positive", propane, np.ones(5), 0.0, inf),
    Bounded("Rosenbrock, root on a bound", rosenbrock, [-1.2, 1.0], -inf, [1.0, inf]),
    Bounded("Rosenbrock, root in a corner", rosenbrock, [-1.2, 0.5], [-2.0, -2.0], 1.0),
    Bounded("Powell's singular function, corner", powell_singular, [3.0, 1.0, 2.0, 1.0], 0.0, inf),
    Bounded("helical valley", helical_valley, [0.5, 2.0, 1.0], [0.0, -5.0, -1.0], [2.0, 5.0, 5.0]),
    Bounded("Broyden's tridiagonal function", broyden_tridiagonal, np.full(30, -0.1), -1.0, 0.0),
    Bounded("Chebyquad", chebyquad, np.arange(1, 6) / 6, 0.0, 1.0),
    Bounded("trigonometric", trigonometric, np.full(5, 0.2), 0.0, 1.0),
    Bounded("Chandrasekhar", chandrasekhar(0.999), np.ones(20), 1.0, inf),
    Bounded("discrete boundary value", discrete_boundary, np.full(40, -0.2), -1.0, 0.0),
    Bounded("linear, third of x on the bound", sparse_linear(12, 0), np.ones(12), 0.0, inf),
    Bounded("linear, larger", sparse_linear(60, 1), np.ones(60), 0.0, 10.0),
    Bounded("logarithms", entropy, np.full(8, 5.0), 0.0, inf),
    Bounded("Robertson", robertson, [1.0, 0.1, 0.1], 0.0, 1.0),
    Bounded("weak acid", weak_acid, np.full(4, 1e-3), 0.0, inf),
    Bounded("competition, both", competition, [0.1, 0.9], [0.0, 0.0], 1.0),
    Bounded("porous medium", porous(50), np.full(50, 0.5), 0.0, inf),
    Bounded("saturation", saturation(60), np.full(60, 0.5), 0.0, 1.0),
    Bounded("Bratu", bratu(3.0, 40), np.full(40, 0.1), 0.0, 2.0),
    Bounded("reaction front", diffusing_acid(40), np.full(80, 0.5), 0.0, 1.0),
    Bounded("diode", diode, [0.0, 0.0], 0.0, [5.0, 1.0]),
)
