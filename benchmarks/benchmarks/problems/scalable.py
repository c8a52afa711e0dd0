"""Systems of any number of unknowns, as papers on large nonlinear systems use them, from their starts and from afar.

References
----------
.. [1] W. La Cruz, J. M. Martínez and M. Raydan, "Spectral residual method without gradient information for solving
   large-scale nonlinear systems of equations", Math. Comp. 75 (2006) 1429-1448.
.. [2] L. Lukšan and J. Vlček, "Sparse and partially separable test problems for unconstrained and equality constrained
   optimization", report V767, Academy of Sciences of the Czech Republic (1999).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from .problem import HostArray

F = Callable[[HostArray], HostArray]


def _neighbors(x: HostArray, left: float = 0.0, right: float = 0.0) -> tuple[HostArray, HostArray]:
    """The unknowns before and behind each, with values at both ends."""
    z = np.concatenate([[left], x, [right]])
    return z[:-2], z[2:]


def exponential(x: HostArray) -> HostArray:
    """The first exponential function of [1]_."""
    before = np.append(0.0, x[:-1])
    return np.arange(1, x.size + 1) * (np.expm1(x - 1) + (np.arange(x.size) > 0) * (1 - before))


def rosenbrock_pairs(x: HostArray) -> HostArray:
    """Rosenbrock's function, pair by pair [1]_."""
    a, b = x[::2], x[1::2]
    return np.stack([10 * (b - a**2), 1 - a], axis=1).ravel()


def freudenstein_roth_pairs(x: HostArray) -> HostArray:
    """Freudenstein and Roth's function, pair by pair [1]_."""
    a, b = x[::2], x[1::2]
    return np.stack([a + ((5 - b) * b - 2) * b - 13, a + ((b + 1) * b - 14) * b - 29], axis=1).ravel()


def badly_scaled_pairs(x: HostArray) -> HostArray:
    """Powell's badly scaled function, pair by pair [1]_."""
    a, b = x[::2], x[1::2]
    return np.stack([1e4 * a * b - 1, np.exp(-a) + np.exp(-b) - 1.0001], axis=1).ravel()


def singular_fours(x: HostArray) -> HostArray:
    """Powell's singular function of four unknowns each [1]_."""
    a, b, c, d = (x[k::4] for k in range(4))
    parts = a + 10 * b, math.sqrt(5) * (c - d), (b - 2 * c) ** 2, math.sqrt(10) * (a - d) ** 2
    return np.stack(parts, axis=1).ravel()


def cragg_levy_fours(x: HostArray) -> HostArray:
    """Cragg and Levy's function of four unknowns each, whose J is singular at the root [2]_."""
    a, b, c, d = (x[k::4] for k in range(4))
    return np.stack([(np.exp(a) - b) ** 2, 10 * (b - c) ** 3, np.tan(c - d) ** 2, d - 1], axis=1).ravel()


def wood_fours(x: HostArray) -> HostArray:
    """The gradient of Wood's function of four unknowns each, without a factor [2]_."""
    a, b, c, d = (x[k::4] for k in range(4))
    two, four = 200 * (b - a**2) + 20.2 * (b - 1) + 19.8 * (d - 1), 180 * (d - c**2) + 20.2 * (d - 1) + 19.8 * (b - 1)
    return np.stack([-200 * a * (b - a**2) - (1 - a), two, -180 * c * (d - c**2) - (1 - c), four], axis=1).ravel()


def broyden_tridiagonal(x: HostArray) -> HostArray:
    """Broyden's tridiagonal function [1]_."""
    before, behind = _neighbors(x)
    return (3 - 2 * x) * x - before - 2 * behind + 1


def trigonometric(x: HostArray) -> HostArray:
    """The trigonometric function [1]_."""
    inner = x.size + np.arange(1, x.size + 1) * (1 - np.cos(x)) - np.sin(x) - np.cos(x).sum()
    return 2 * inner * (2 * np.sin(x) - np.cos(x))


def trigonometric_exponential(x: HostArray) -> HostArray:
    """The trigonometric exponential system [1]_."""
    a, b, c = x[:-2], x[1:-1], x[2:]
    middle = -a * np.exp(a - b) + b * (4 + 3 * b**2) + 2 * c + np.sin(b - c) * np.sin(b + c) - 8
    first = 3 * x[0] ** 3 + 2 * x[1] - 5 + np.sin(x[0] - x[1]) * np.sin(x[0] + x[1])
    return np.concatenate([[first], middle, [-x[-2] * np.exp(x[-2] - x[-1]) + 4 * x[-1] - 3]])


def exponentials_apart(x: HostArray) -> HostArray:
    """The second strictly convex function of [1]_."""
    return np.arange(1, x.size + 1) / 10 * np.expm1(x)


def variably_dimensioned(x: HostArray) -> HostArray:
    """The variably dimensioned function, with a dense J [1]_."""
    weights = np.arange(1, x.size + 1)
    total = weights @ (x - 1)
    return x - 1 + weights * total * (1 + 2 * total**2)


def tridiagonal(x: HostArray) -> HostArray:
    """The tridiagonal system of chained Rosenbrock functions [1]_."""
    before, behind = _neighbors(x)
    f = 8 * x * (x**2 - before) - 2 * (1 - x) + 4 * (x - behind**2)
    f[0], f[-1] = 4 * (x[0] - x[1] ** 2), 8 * x[-1] * (x[-1] ** 2 - x[-2]) - 2 * (1 - x[-1])
    return f


def five_diagonal(x: HostArray) -> HostArray:
    """The five-diagonal system [1]_."""
    z = np.pad(x, 2)
    far_before, before, behind, far_behind = z[:-4], z[1:-3], z[3:-1], z[4:]
    f = tridiagonal(x) + before**2 - far_before + behind - far_behind**2
    f[0], f[1] = 4 * (x[0] - x[1] ** 2) + x[1] - x[2] ** 2, f[1] - x[0] ** 2
    f[-2], f[-1] = f[-2] - x[-1], 8 * x[-1] * (x[-1] ** 2 - x[-2]) - 2 * (1 - x[-1]) + x[-2] ** 2 - x[-3]
    return f


def troesch(x: HostArray) -> HostArray:
    """Troesch's problem with the parameter 10, unscaled [1]_."""
    before, behind = _neighbors(x, right=1.0)
    return 2 * x + 10 / (x.size + 1) ** 2 * np.sinh(10 * x) - before - behind


def countercurrent_reactors(x: HostArray) -> HostArray:
    """Two streams of reactants in opposite directions [2]_."""
    z = np.concatenate([[1.0, 0.0], x, [0.0, 1.0]])
    is_even = np.arange(x.size) % 2 == 0
    flow = 0.5 * z[:-4] - np.where(is_even, 0.5, 1.5) * z[4:]
    return flow - x * (1 + 4 * np.where(is_even, z[3:-1], z[1:-3]))


def toint_trigonometric(x: HostArray) -> HostArray:
    """Toint's trigonometric tridiagonal system, with another right-hand side [2]_."""
    before, behind = _neighbors(x)
    place = np.arange(x.size)
    pairs = np.sin(before + x) * (place > 0) + np.sin(x + behind) * (place < x.size - 1)
    return np.sin(x) + pairs - 0.3 * np.cos(x) - 0.1


def channel_flow(x: HostArray) -> HostArray:
    """Flow in a channel at the Reynolds number 500 [2]_."""
    v, coefficient = np.concatenate([x[:1], [0.0], x, [1.0], x[-1:]]), 500 / (x.size + 1)
    fourth = v[:-4] - 4 * v[1:-3] + 6 * v[2:-2] - 4 * v[3:-1] + v[4:]
    slope, third = (v[3:-1] - v[1:-3]) / 2, (v[4:] - 2 * v[3:-1] + 2 * v[1:-3] - v[:-4]) / 2
    return fourth - coefficient * (slope * (v[3:-1] - 2 * v[2:-2] + v[1:-3]) - v[2:-2] * third)


def swirling_flow(x: HostArray) -> HostArray:
    """Flow between two disks that turn, at the Reynolds number 500 [2]_."""
    n = x.size // 2
    h, R, f = 1 / (n + 1), 500.0, np.concatenate([x[:1], [0.0], x[:n], [0.0], x[n - 1 : n]])
    g = np.concatenate([[1.0], x[n:], [-1.0]])
    fourth = f[:-4] - 4 * f[1:-3] + 6 * f[2:-2] - 4 * f[3:-1] + f[4:]
    third, slope = (f[4:] - 2 * f[3:-1] + 2 * f[1:-3] - f[:-4]) / 2, (f[3:-1] - f[1:-3]) / 2
    turn, middle = (g[2:] - g[:-2]) / 2, f[2:-2]
    swirl = g[:-2] - 2 * g[1:-1] + g[2:] + R * h * (middle * turn - slope * g[1:-1])
    return np.concatenate([fourth + R * h * middle * third + R * h**3 * g[1:-1] * turn, swirl])


def _square(x: HostArray, ghosts: int) -> tuple[HostArray, float]:
    m = math.isqrt(x.size)
    return np.pad(x.reshape(m, m), ghosts), 1 / (m + 1)


def _laplacian(u: HostArray) -> HostArray:
    return u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1]


def porous_medium(x: HostArray) -> HostArray:
    """A porous medium with a source [2]_."""
    u, h = _square(x, 1)
    u[0, :] = u[:, 0] = 1.0
    f = _laplacian(u**2) - 25 * h * (u[2:, 1:-1] ** 3 - u[:-2, 1:-1] ** 3)
    f[len(f) // 2, len(f) // 2] += 50 * h**2
    return f.ravel()


def convection_diffusion(x: HostArray) -> HostArray:
    """Convection and diffusion in a square [2]_."""
    u, h = _square(x, 1)
    t = np.arange(1, u.shape[0] - 1) * h
    slopes = u[2:, 1:-1] - u[:-2, 1:-1] + u[1:-1, 2:] - u[1:-1, :-2]
    return (10 * h * u[1:-1, 1:-1] * slopes - _laplacian(u) - 1000 * h**2 * np.outer(t * (1 - t), t * (1 - t))).ravel()


def driven_cavity(x: HostArray) -> HostArray:
    """The stream function in a driven cavity at the Reynolds number 500 [2]_."""
    v, h = _square(x, 2)
    v[0], v[-1] = v[2], v[-3] + 2 * h
    v[:, 0], v[:, -1] = v[:, 2], v[:, -3]
    w, u = _laplacian(v), v[1:-1, 1:-1]
    turns = (u[1:-1, 2:] - u[1:-1, :-2]) * (w[2:, 1:-1] - w[:-2, 1:-1])
    turns -= (u[2:, 1:-1] - u[:-2, 1:-1]) * (w[1:-1, 2:] - w[1:-1, :-2])
    return (_laplacian(w) + 125 * turns).ravel()


def starts(n: int) -> Iterator[tuple[F, HostArray]]:
    """Each system with its start; n is a square and a multiple of 4."""
    t = np.arange(1, n + 1) / (n + 1)
    grid = np.arange(1, math.isqrt(n) + 1) / (math.isqrt(n) + 1)
    yield exponential, np.full(n, n / (n - 1.0))
    yield rosenbrock_pairs, np.tile([-1.2, 1.0], n // 2)
    yield freudenstein_roth_pairs, np.tile([90.0, 60.0], n // 2)
    yield badly_scaled_pairs, np.tile([0.0, 1.0], n // 2)
    yield singular_fours, np.tile([3.0, -1.0, 0.0, 1.0], n // 4)
    yield cragg_levy_fours, np.tile([1.0, 2.0, 2.0, 2.0], n // 4)
    yield wood_fours, np.tile([-3.0, -1.0, -3.0, -1.0], n // 4)
    yield broyden_tridiagonal, -np.ones(n)
    yield trigonometric, np.full(n, 1.01 / n)
    yield trigonometric_exponential, np.zeros(n)
    yield exponentials_apart, np.ones(n)
    yield variably_dimensioned, 1 - np.arange(1, n + 1) / n
    yield tridiagonal, np.full(n, 12.0)
    yield five_diagonal, np.full(n, -2.0)
    yield troesch, np.zeros(n)
    yield countercurrent_reactors, np.resize([0.1, 0.2, 0.3, 0.4, 0.5, 0.4, 0.3, 0.2], n)
    yield toint_trigonometric, np.full(n, 0.1)
    yield channel_flow, (t - 0.5) ** 2
    yield swirling_flow, np.zeros(n)
    yield porous_medium, 1 - np.outer(grid, grid).ravel()
    yield convection_diffusion, 1 - np.outer(grid, grid).ravel()
    yield driven_cavity, np.zeros(n)


def quiet(residual: F, x: HostArray) -> HostArray:
    """F without warnings: from afar it overflows."""
    with np.errstate(all="ignore"):
        return residual(x)


def scalable_cases(n: int) -> Iterator[tuple[F, HostArray]]:
    """Each system from its start, from 3, 10 and -1 times that, and from beside it."""
    for residual, x0 in starts(n):
        for factor in (1, 3, 10, -1):
            yield partial(quiet, residual), factor * x0
        yield partial(quiet, residual), x0 + np.random.default_rng(3).normal(size=n)
