"""Systems on a line or a ring that declare nothing: boundary value problems, orbits, stacked time, integrals."""

from __future__ import annotations

import numpy as np

from benchmarks.benchmarks.problems import GalleryProblem as SparseProblem
from implicitsolve._typing import HostArray

RTOL = 1e-8


def boundary_layer(n: int) -> SparseProblem:
    """Two-point boundary value problem eps y'' = y y' - y as a first-order system, two interleaved fields."""
    h, eps = 1.0 / n, 0.05

    def residual(x: HostArray) -> HostArray:
        y, z = x[0::2], x[1::2]
        ym, zm = 0.5 * (y[1:] + y[:-1]), 0.5 * (z[1:] + z[:-1])
        out = np.empty_like(x)
        out[0], out[-1] = y[0] - 1.0, y[-1] - 1.5
        out[1:-1:2] = np.diff(y) - h * zm
        out[2:-1:2] = eps * np.diff(z) - h * ym * (zm - 1.0)
        return out

    x0 = np.empty(2 * (n + 1))
    x0[0::2], x0[1::2] = np.linspace(1.0, 1.5, n + 1), 0.5
    return SparseProblem(name="boundary-layer", residual=residual, x0=x0, rtol=RTOL, source="Ascher, Mattheij, Russell")


def drift_diffusion(n: int) -> SparseProblem:
    """A diode: potential, electrons, holes on a line, three interleaved fields, by exponential fitting."""
    h = 1.0 / (n + 1)
    x = h * np.arange(1, n + 1)
    doping = 8.0 * np.tanh(20 * (x - 0.5))
    ends = np.array([[np.arcsinh(-4.0), 0, 0], [np.arcsinh(4.0), 0, 0]])
    ends[:, 1], ends[:, 2] = np.exp(ends[:, 0]), np.exp(-ends[:, 0])
    ends[1, 0] += 0.5

    def bernoulli(t: HostArray) -> HostArray:
        t = np.where(np.abs(t) < 1e-5, 1e-5, t)
        return t / np.expm1(t)

    def residual(q: HostArray) -> HostArray:
        p = np.concatenate([ends[:1], q, ends[1:]])
        v = np.diff(p[:, 0])
        down, up = bernoulli(-v), bernoulli(v)
        electrons = p[1:, 1] * up - p[:-1, 1] * down
        holes = p[1:, 2] * down - p[:-1, 2] * up
        recombined = h * h * (q[:, 1] * q[:, 2] - 1.0) / (q[:, 1] + q[:, 2] + 2.0)
        charge = 20.0 * h * h * (q[:, 1] - q[:, 2] - doping)
        return np.stack([np.diff(v) - charge, np.diff(electrons) - recombined, np.diff(holes) - recombined], axis=1)

    psi = np.arcsinh(0.5 * doping)
    x0 = np.stack([psi, np.exp(psi), np.exp(-psi)], axis=1)
    return SparseProblem(
        name="drift-diffusion", residual=residual, x0=x0, rtol=RTOL, source="Scharfetter, Gummel (1969)"
    )


def kuramoto_sivashinsky(n: int) -> SparseProblem:
    """One implicit step of u_t = -u u_x - u_xx - u_xxxx on a ring."""
    h, dt = 0.25, 0.5
    x = 2 * np.pi * np.arange(n) / n
    old = np.cos(x) * (1 + np.sin(5 * x))

    def residual(u: HostArray) -> HostArray:
        right, left = np.roll(u, -1), np.roll(u, 1)
        w = (right - 2 * u + left) / h**2
        return u - old + dt * (u * (right - left) / (2 * h) + w + (np.roll(w, -1) - 2 * w + np.roll(w, 1)) / h**2)

    return SparseProblem(name="kuramoto-sivashinsky", residual=residual, x0=old, rtol=RTOL, source="Kuramoto (1978)")


def periodic_orbit(n: int) -> SparseProblem:
    """A closed orbit of van der Pol's oscillator with its unknown period: one full column, one condition of phase."""

    def residual(x: HostArray) -> HostArray:
        y, z, h = x[:n], x[n:-1], x[-1] / n
        yn, zn = np.roll(y, -1), np.roll(z, -1)
        ym, zm = 0.5 * (y + yn), 0.5 * (z + zn)
        out = np.empty_like(x)
        out[:n] = yn - y - h * zm
        out[n:-1] = zn - z - h * ((1 - ym * ym) * zm - ym)
        out[-1] = z[0]
        return out

    t = 2 * np.pi * np.arange(n) / n
    x0 = np.concatenate([2 * np.cos(t), -2 * np.sin(t), [6.5]])
    return SparseProblem(name="periodic-orbit", residual=residual, x0=x0, rtol=RTOL, source="van der Pol (1926)")


def business_cycle(n: int) -> SparseProblem:
    """Stacked-time growth model: capital, consumption and productivity of each period, interleaved."""
    alpha, beta, delta, rho = 0.33, 0.96, 0.08, 0.9
    steady = (alpha / (1 / beta - 1 + delta)) ** (1 / (1 - alpha))
    spent = steady**alpha - delta * steady

    def residual(x: HostArray) -> HostArray:
        q = x.reshape(n, 3)
        k, c, a = q[:, 0], q[:, 1], q[:, 2]
        before = np.concatenate([[0.7 * steady], k[:-1]])
        last = np.concatenate([[0.1], a[:-1]])
        c_next, a_next = np.append(c[1:], spent), np.append(a[1:], 0.0)
        out = np.empty_like(q)
        out[:, 0] = k + c - np.exp(a) * before**alpha - (1 - delta) * before
        out[:, 1] = 1 / c - beta / c_next * (alpha * np.exp(a_next) * k ** (alpha - 1) + 1 - delta)
        out[:, 2] = a - rho * last
        return out.ravel()

    x0 = np.tile([steady, spent, 0.0], n)
    return SparseProblem(name="business-cycle", residual=residual, x0=x0, rtol=RTOL, source="Juillard (1996), Dynare")


def hanging_chain(n: int) -> SparseProblem:
    """Forces on the links of an elastic chain between two hooks, two coordinates interleaved."""
    rest, stiff = 1.0 / (n + 1), 5.0

    def residual(q: HostArray) -> HostArray:
        p = np.concatenate([np.zeros((1, 2)), q, [[1.0, 0.2]]])
        d = np.diff(p, axis=0)
        length = np.hypot(d[:, 0], d[:, 1])
        force = (stiff * (length - rest) / length)[:, None] * d
        out = -np.diff(force, axis=0)
        out[:, 1] += 1.0 / (n + 1)
        return out

    t = np.linspace(0, 1, n + 2)[1:-1]
    x0 = np.stack([t, 0.2 * t - 0.3 * t * (1 - t)], axis=1)
    return SparseProblem(name="hanging-chain", residual=residual, x0=x0, rtol=RTOL, source="discrete elastic catenary")


def h_equation(n: int) -> SparseProblem:
    """Chandrasekhar's H-equation: dense."""
    mu = (np.arange(n) + 0.5) / n
    A = 0.9 * mu[:, None] / (mu[:, None] + mu) / (2 * n)
    return SparseProblem(
        name="h-equation",
        residual=lambda H: H - 1 / (1 - A @ H),
        x0=np.ones(n),
        rtol=RTOL,
        source="Chandrasekhar (1960)",
    )


def cosh_with_mean(n: int) -> SparseProblem:
    """u'' = 1 + cosh(mean u) / 10 on a line: one mean makes all dense."""
    hh = 1.0 / (n + 1) ** 2

    def residual(u: HostArray) -> HostArray:
        out = 2 * u
        out[1:] -= u[:-1]
        out[:-1] -= u[1:]
        return out + hh * (1 + 0.1 * np.cosh(u.mean()))

    return SparseProblem(name="cosh-with-mean", residual=residual, x0=np.zeros(n), rtol=RTOL, source="nonlocal source")


def line_problems(n: int) -> list[SparseProblem]:
    """Return all, with about n unknowns."""
    return [
        boundary_layer(n // 2),
        drift_diffusion(n // 3),
        kuramoto_sivashinsky(n),
        periodic_orbit(min(n, 800) // 2),
        business_cycle(min(n, 1200) // 3),
        hanging_chain(min(n, 200) // 2),
        h_equation(min(n, 500)),
        cosh_with_mean(n),
    ]
