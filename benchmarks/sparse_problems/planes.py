"""Systems in the plane and in the volume."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.benchmarks.problems import GalleryProblem as SparseProblem
from implicitsolve._typing import HostArray

RTOL = 1e-8


def neighbors(u: HostArray) -> HostArray:
    """Sum of the neighbors along all axes; zeros outside."""
    s = np.zeros_like(u)
    for axis in range(u.ndim):
        a, b = _ends(u.ndim, axis)
        s[a] += u[b]
        s[b] += u[a]
    return s


def around(u: HostArray) -> HostArray:
    """Sum of the neighbors in the plane, closed to a torus."""
    return np.roll(u, 1, -1) + np.roll(u, -1, -1) + np.roll(u, 1, -2) + np.roll(u, -1, -2)


def insulated(u: HostArray) -> HostArray:
    """Laplacian in the plane with no flux through the boundary, times h^2."""
    out = np.zeros_like(u)
    for axis in (-2, -1):
        d = np.diff(u, axis=axis)
        a, b = _ends(u.ndim, axis % u.ndim)
        out[a] += d
        out[b] -= d
    return out


def _ends(ndim: int, axis: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """All but the last and all but the first along an axis."""
    a, b = [slice(None)] * ndim, [slice(None)] * ndim
    a[axis], b[axis] = slice(None, -1), slice(1, None)
    return tuple(a), tuple(b)


def _problem(
    name: str, residual: Callable[[HostArray], HostArray], x0: HostArray, source: str, **more: float
) -> SparseProblem:
    return SparseProblem(name=name, residual=residual, x0=x0, source=source, rtol=more.get("rtol", RTOL))


def _mesh(n: int) -> tuple[HostArray, HostArray]:
    x = np.linspace(0.0, 1.0, n + 2)[1:-1]
    return x[:, None], x[None, :]


def bratu(dimension: int, n: int) -> SparseProblem:
    """-laplace u = lam exp(u), u = 0 on the boundary."""
    c = (3.0, 6.0, 9.0)[dimension - 1] / (n + 1) ** 2

    def residual(u: HostArray) -> HostArray:
        return 2.0 * dimension * u - neighbors(u) - c * np.exp(u)

    return _problem(f"bratu-{dimension}d", residual, np.zeros((n,) * dimension), "Bratu-Gelfand")


def permuted_bratu(n: int) -> SparseProblem:
    """Bratu on a line whose points are numbered at random."""
    line = bratu(1, n)
    order = np.random.default_rng(7).permutation(n)
    back = np.argsort(order)
    return _problem("permuted-bratu", lambda u: line.residual(u[order])[back], np.zeros(n), "Bratu-Gelfand")


def p_laplacian(n: int) -> SparseProblem:
    """-div((eps + |grad u|^2) grad u) = 1: cells with gradients from their four corners, nine points."""
    h = 1.0 / (n + 1)

    def residual(u: HostArray) -> HostArray:
        p = np.pad(u, 1)
        ux = 0.5 * (p[1:, 1:] - p[:-1, 1:] + p[1:, :-1] - p[:-1, :-1]) / h
        uy = 0.5 * (p[1:, 1:] - p[1:, :-1] + p[:-1, 1:] - p[:-1, :-1]) / h
        k = 0.01 + ux * ux + uy * uy
        fx, fy = k * ux, k * uy
        east = fx[1:, 1:] + fx[1:, :-1] - fx[:-1, 1:] - fx[:-1, :-1]
        north = fy[1:, 1:] + fy[:-1, 1:] - fy[1:, :-1] - fy[:-1, :-1]
        return -0.5 * h * (east + north) - h * h

    x, y = _mesh(n)
    return _problem("p-laplacian", residual, 0.5 * x * (1 - x) * y * (1 - y), "p = 4, regularized")


def allen_cahn(n: int) -> SparseProblem:
    """One implicit Euler step of u_t = laplace u + (u - u^3) / eps^2, no flux."""
    x, y = _mesh(n)
    old, c = np.tanh(20 * (0.3 - np.hypot(x - 0.5, y - 0.4))), 0.1 * n

    def residual(u: HostArray) -> HostArray:
        return u - old - c * insulated(u) - 0.5 * (u - u * u * u)

    return _problem("allen-cahn-step", residual, old, "Allen and Cahn (1979)")


def gray_scott(n: int) -> SparseProblem:
    """One implicit step of the Gray-Scott equations on a torus, two stacked fields."""
    x, y = _mesh(n)
    spot = np.exp(-80 * ((x - 0.5) ** 2 + (y - 0.5) ** 2))
    old = np.stack([1 - 0.5 * spot, 0.25 * spot])

    def residual(w: HostArray) -> HostArray:
        u, v = w
        reaction = u * v * v
        out = w - old
        out -= 5.0 * np.array([0.16, 0.08])[:, None, None] * (around(w) - 4.0 * w)
        out[0] -= 5.0 * (0.035 * (1 - u) - reaction)
        out[1] -= 5.0 * (reaction - 0.1 * v)
        return out

    return _problem("gray-scott-step", residual, old, "Pearson, Science 261 (1993) 189")


def cahn_hilliard(n: int) -> SparseProblem:
    """One implicit step of the Cahn-Hilliard equation on a torus: concentration and potential, stacked."""
    old = 0.4 * np.random.default_rng(5).standard_normal((n, n))

    def residual(w: HostArray) -> HostArray:
        c, m = w
        return np.stack([c - old - 0.5 * (around(m) - 4 * m), m - (c * c * c - c) + (around(c) - 4 * c)])

    return _problem("cahn-hilliard-step", residual, np.stack([old, 0 * old]), "Cahn and Hilliard (1958)")


def swift_hohenberg(n: int) -> SparseProblem:
    """One implicit step of u_t = r u - (1 + laplace)^2 u - u^3 on a torus, thirteen points."""
    old = 0.3 * np.random.default_rng(6).standard_normal((n, n))

    def residual(u: HostArray) -> HostArray:
        w = u + around(u) - 4 * u
        return u - old + 0.5 * (w + around(w) - 4 * w) + 0.5 * (u * u * u - 0.3 * u)

    return _problem("swift-hohenberg-step", residual, old, "Swift and Hohenberg (1977)")


def brusselator(n: int) -> SparseProblem:
    """The Brusselator on a torus, steady, two stacked fields: a published benchmark of NonlinearSolve.jl."""
    x = np.linspace(0.0, 1.0, n)
    X, Y = np.meshgrid(x, x, indexing="ij")
    c = 10.0 * (n - 1) ** 2
    source = np.where((X - 0.3) ** 2 + (Y - 0.6) ** 2 <= 0.01, 5.0, 0.0)

    def residual(w: HostArray) -> HostArray:
        u, v = w
        uuv = u * u * v
        out = c * (around(w) - 4.0 * w)
        out[0] += 1.0 + uuv - 4.4 * u + source
        out[1] += 3.4 * u - uuv
        return out

    x0 = np.stack([22.0 * (Y * (1 - Y)) ** 1.5, 27.0 * (X * (1 - X)) ** 1.5])
    return _problem("brusselator", residual, x0, "NonlinearSolve.jl, arXiv:2403.16341")


def convection_diffusion(n: int) -> SparseProblem:
    """-laplace u + 20 u (u_x + u_y) = f."""
    x, y = _mesh(n)
    c = 10.0 / (n + 1)
    root = 10 * x * (1 - x) * y * (1 - y) * np.exp(x**4.5)

    def operator(u: HostArray) -> HostArray:
        p = np.pad(u, 1)
        slope = p[2:, 1:-1] - p[:-2, 1:-1] + p[1:-1, 2:] - p[1:-1, :-2]
        return 4.0 * u - neighbors(u) + c * u * slope

    f = operator(root)
    return _problem("convection-diffusion", lambda u: operator(u) - f, np.zeros((n, n)), "Kelley (2003), chapter 3")


def upwind(n: int) -> SparseProblem:
    """Burgers' equation in the plane by upwind differences: the stencil changes with the sign of u."""
    x, y = _mesh(n)
    h = 1.0 / (n + 1)
    f = 4.0 * h * h * np.sin(2 * np.pi * x) * np.cos(np.pi * y)

    def residual(u: HostArray) -> HostArray:
        p = np.pad(u, 1)
        back = 2 * u - p[:-2, 1:-1] - p[1:-1, :-2]
        ahead = p[2:, 1:-1] + p[1:-1, 2:] - 2 * u
        return 0.05 * (4 * u - neighbors(u)) + h * np.where(u > 0, u * back, u * ahead) - f

    return _problem("upwind-burgers", residual, 0.1 * np.sin(2 * np.pi * x) * np.sin(np.pi * y), "Burgers (1948)")


def minimal_surface(n: int) -> SparseProblem:
    """The surface of least area over the square with given height at the boundary; height on cell corners."""
    t = np.linspace(0.0, 1.0, n + 2)
    frame = np.zeros((n + 2, n + 2))
    frame[0], frame[-1], frame[:, 0], frame[:, -1] = np.sin(np.pi * t), -np.sin(np.pi * t), 0.5 * t * (1 - t), 0.0
    h = t[1]

    def residual(u: HostArray) -> HostArray:
        p = frame.copy()
        p[1:-1, 1:-1] = u
        dx, dy = np.diff(p, axis=0) / h, np.diff(p, axis=1) / h
        # Area of the two triangles of each cell; its derivative with respect to the corners.
        first = 1.0 / np.sqrt(1.0 + dx[:, :-1] ** 2 + dy[:-1] ** 2)
        second = 1.0 / np.sqrt(1.0 + dx[:, 1:] ** 2 + dy[1:] ** 2)
        gx, gy = np.zeros_like(dx), np.zeros_like(dy)
        gx[:, :-1] += first * dx[:, :-1]
        gx[:, 1:] += second * dx[:, 1:]
        gy[:-1] += first * dy[:-1]
        gy[1:] += second * dy[1:]
        return -0.5 * (np.diff(gx, axis=0)[:, 1:-1] + np.diff(gy, axis=1)[1:-1])

    return _problem("minimal-surface", residual, np.zeros((n, n)), "Averick et al., MINPACK-2 (1992), MSA")


def poisson_boltzmann(n: int) -> SparseProblem:
    """-laplace u + 50 sinh u = charges."""
    x, y = _mesh(n)
    hh = 1.0 / (n + 1) ** 2
    charge = (
        400 * hh * (np.exp(-200 * ((x - 0.3) ** 2 + (y - 0.5) ** 2)) - np.exp(-200 * ((x - 0.7) ** 2 + (y - 0.5) ** 2)))
    )
    return _problem(
        "poisson-boltzmann",
        lambda u: 4 * u - neighbors(u) + 50 * hh * np.sinh(u) - charge,
        np.zeros((n, n)),
        "Debye and Hückel (1923), not linearized",
    )


def radiation(n: int) -> SparseProblem:
    """Conduction k(T) with T^4 radiation through the left edge, one-sided differences of second order there."""
    h = 1.0 / (n - 1)

    def residual(T: HostArray) -> HostArray:
        out = np.empty_like(T)
        K = T + 0.25 * T * T
        out[1:-1, 1:-1] = 4 * K[1:-1, 1:-1] - K[2:, 1:-1] - K[:-2, 1:-1] - K[1:-1, 2:] - K[1:-1, :-2] - h * h
        out[0] = 3 * T[0] - 4 * T[1] + T[2] + 2 * h * (T[0] ** 4 - 0.5)
        out[-1] = T[-1] - 1.0
        out[1:-1, 0] = T[1:-1, 0] - T[1:-1, 1]
        out[1:-1, -1] = T[1:-1, -1] - 1.0
        return out

    return _problem("radiation", residual, np.ones((n, n)), "heat conduction with a black wall")


def obstacle(n: int) -> SparseProblem:
    """A membrane above an obstacle: the complementarity problem as a smoothed Fischer-Burmeister equation."""
    x, y = _mesh(n)
    hh = 1.0 / (n + 1) ** 2
    floor = 0.15 - 2 * ((x - 0.5) ** 2 + (y - 0.5) ** 2)

    def residual(u: HostArray) -> HostArray:
        a, b = u - floor, 4 * u - neighbors(u) + 0.5 * hh
        return a + b - np.sqrt(a * a + b * b + 1e-6)

    return _problem("obstacle", residual, np.maximum(floor, 0.0), "Fischer (1992)")


def porous_medium(n: int) -> SparseProblem:
    """One implicit step of u_t = laplace u^3, no flux."""
    x, y = _mesh(n)
    old = np.maximum(0.0, 1 - 8 * ((x - 0.4) ** 2 + (y - 0.6) ** 2)) + 0.01
    return _problem("porous-medium-step", lambda u: u - old - 5.0 * insulated(u * u * u), old, "Barenblatt (1952)")


def ginzburg_landau(n: int) -> SparseProblem:
    """Steady complex Ginzburg-Landau equation in real form, two interleaved fields, fixed at the boundary."""
    x, y = _mesh(n)
    hh = 40.0 / (n + 1) ** 2
    start = np.stack([np.broadcast_to(x - 0.5, (n, n)), np.broadcast_to(y - 0.5, (n, n))], axis=-1)
    edge = np.pad(0 * start, ((1, 1), (1, 1), (0, 0)))
    t = np.linspace(-0.5, 0.5, n + 2)
    edge[..., 0], edge[..., 1] = t[:, None], t[None, :]
    edge /= np.maximum(1e-9, np.hypot(edge[..., :1], edge[..., 1:]))

    def residual(w: HostArray) -> HostArray:
        p = edge.copy()
        p[1:-1, 1:-1] = w
        size = w[..., :1] ** 2 + w[..., 1:] ** 2
        return 4 * w - p[2:, 1:-1] - p[:-2, 1:-1] - p[1:-1, 2:] - p[1:-1, :-2] - hh * (1 - size) * w

    return _problem("ginzburg-landau", residual, start, "Ginzburg and Landau (1950): one vortex")


def food_web(n: int) -> SparseProblem:
    """Prey and predators that diffuse, no flux, two interleaved species, growth that depends on the place."""
    x, y = _mesh(n)
    growth = 1.0 + 0.8 * x * y + 0.3 * np.sin(4 * np.pi * x) * np.sin(4 * np.pi * y)
    hh = 20.0 / (n + 1) ** 2

    def residual(c: HostArray) -> HostArray:
        prey, hunter = c[..., 0], c[..., 1]
        out = np.empty_like(c)
        out[..., 0] = -insulated(prey) - hh * prey * (growth - prey - 0.5 * hunter)
        out[..., 1] = -0.05 * insulated(hunter) - hh * hunter * (prey - 0.8 * hunter)
        return out

    return _problem("food-web", residual, np.ones((n, n, 2)), "Brown, SIAM J. Sci. Stat. Comput. 7 (1986)")


def driven_cavity(n: int, reynolds: float = 100.0) -> SparseProblem:
    """Velocity, vorticity and temperature in a cavity with a moving lid: four interleaved fields."""
    h, c = 1.0 / (n - 1), slice(1, -1)

    def residual(q: HostArray) -> HostArray:
        u, v, w, T = (q[..., i] for i in range(4))
        out = np.empty_like(q)
        inner = 4 * q[c, c] - q[2:, c] - q[:-2, c] - q[c, 2:] - q[c, :-2]
        dx, dy = 0.5 * (q[2:, c] - q[:-2, c]), 0.5 * (q[c, 2:] - q[c, :-2])
        transport = u[c, c, None] * dx[..., 2:] + v[c, c, None] * dy[..., 2:]
        inner[..., 0] -= h * dy[..., 2]
        inner[..., 1] += h * dx[..., 2]
        inner[..., 2:] += h * transport * np.array([reynolds, 1.0])
        inner[..., 2] -= 10.0 * h * dx[..., 3]
        out[c, c] = inner
        for edge, side, sign in ((0, 1, 1.0), (-1, -2, -1.0)):
            out[edge, :, 0], out[edge, :, 1] = u[edge], v[edge]
            out[edge, :, 2] = h * w[edge] - sign * (v[side] - v[edge])
            out[edge, :, 3] = T[edge] - (edge == 0)
            out[c, edge, 0], out[c, edge, 1] = u[c, edge] - (edge == -1), v[c, edge]
            out[c, edge, 2] = h * w[c, edge] + sign * (u[c, side] - u[c, edge])
            out[c, edge, 3] = T[c, edge] - T[c, side]
        return out

    return _problem("driven-cavity", residual, np.zeros((n, n, 4)), "as in PETSc's SNES tutorial 19")


def reaction_cube(n: int) -> SparseProblem:
    """-laplace u + u^3 - 20 u = 5 in the cube."""
    hh = 1.0 / (n + 1) ** 2
    return _problem(
        "reaction-3d",
        lambda u: 6 * u - neighbors(u) + hh * (u * u * u - 20 * u - 5),
        np.ones((n, n, n)),
        "Chafee and Infante (1974)",
    )
