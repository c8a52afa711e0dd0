"""Systems of several coupled fields, with constraints, inequalities, or far couplings, that declare nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.benchmarks.problems import GalleryProblem as SparseProblem
from implicitsolve._typing import HostArray


def _problem(
    name: str, residual: Callable[[HostArray], HostArray], x0: HostArray, source: str, rtol: float = 1e-8
) -> SparseProblem:
    return SparseProblem(name=name, residual=residual, x0=x0, source=source, rtol=rtol)


def _laplacian(u: HostArray, outside: float = 0.0) -> HostArray:
    """Five points, in units of the spacing."""
    p = np.pad(u, 1, constant_values=outside)
    return p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * u


def _flux_difference(u: HostArray, left: float, right: float, h: float) -> HostArray:
    """Second differences on a line with values beyond its ends."""
    return np.diff(np.diff(np.concatenate([[left], u, [right]])) / h) / h


def nozzle(n: int = 200) -> SparseProblem:
    """Euler's equations along a nozzle, Rusanov's flux; density and pressure at the inlet, pressure at the end."""
    gamma, back = 1.4, 0.6784
    area = 1 + 2.2 * (3 * (np.linspace(0, 1, n + 1) - 0.5)) ** 2

    def residual(q: HostArray) -> HostArray:
        density, momentum, _ = q
        speed = momentum[0] / density[0]
        inlet = np.array([1.0, speed, 1 / (gamma - 1) + 0.5 * speed**2])
        outlet = np.array([density[-1], momentum[-1], back / (gamma - 1) + 0.5 * momentum[-1] ** 2 / density[-1]])
        r, m, E = Q = np.concatenate([inlet[:, None], q, outlet[:, None]], axis=1)
        u = m / r
        p = (gamma - 1) * (E - 0.5 * m * u)
        flux, fastest = np.array([m, m * u + p, (E + p) * u]), np.abs(u) + np.sqrt(gamma * p / r)
        viscous = np.maximum(fastest[1:], fastest[:-1]) * np.diff(Q, axis=1)
        out = np.diff(area * 0.5 * (flux[:, 1:] + flux[:, :-1] - viscous), axis=1) * n
        out[1] -= p[1:-1] * np.diff(area) * n
        return out

    x0 = np.array([np.ones(n), np.full(n, 0.3), np.full(n, 1 / (gamma - 1) + 0.05)])
    return _problem("nozzle", residual, x0, "Rusanov (1961)")


def two_phase(n: int = 24) -> SparseProblem:
    """A time step of water that displaces oil in a heterogeneous plane: pressure and saturation, upwind mobilities."""
    K = np.exp(2 * np.random.default_rng(1).standard_normal((n, n)))
    faces = [2 / (1 / K[1:] + 1 / K[:-1]), 2 / (1 / K[:, 1:] + 1 / K[:, :-1])]
    wells, dt, s0 = np.zeros((n, n)), 0.05, 0.2
    wells[0, 0], wells[-1, -1] = 1.0, -1.0

    def outflow(mobility: HostArray, p: HostArray) -> HostArray:
        out = np.zeros((n, n))
        for axis, k in enumerate(faces):
            d = np.diff(p, axis=axis)
            upwind = np.where(d > 0, np.delete(mobility, 0, axis), np.delete(mobility, -1, axis))
            ends = [(1, 1) if a == axis else (0, 0) for a in (0, 1)]
            out += np.diff(np.pad(k * upwind * d, ends), axis=axis)
        return out

    def residual(z: HostArray) -> HostArray:
        p, s = z
        water, oil = s**2, 0.2 * (1 - s) ** 2
        flow = outflow(water, p)
        total = flow + outflow(oil, p) + wells
        total[-1, -1] -= 1e-3 * p[-1, -1]
        return np.array([total, (s - s0) / dt - flow - np.where(wells > 0, wells, wells * water / (water + oil))])

    return _problem("two-phase", residual, np.array([np.zeros((n, n)), np.full((n, n), s0)]), "Aziz and Settari (1979)")


def staggered_cavity(n: int = 20, reynolds: float = 200.0) -> SparseProblem:
    """Navier-Stokes equations on a staggered grid, a driven cavity: velocities and pressures one after the other."""
    h, k = 1 / n, n * (n - 1)

    def residual(z: HostArray) -> HostArray:
        u, v, p = z[:k].reshape(n - 1, n), z[k : 2 * k].reshape(n, n - 1), z[2 * k :].reshape(n, n)
        U, V = np.pad(u, 1), np.pad(v, 1)
        U[:, 0], U[:, -1], V[0], V[-1] = -U[:, 1], 2 - U[:, -2], -V[1], -V[-2]
        uu, vv = ((U[1:, 1:-1] + U[:-1, 1:-1]) / 2) ** 2, ((V[1:-1, 1:] + V[1:-1, :-1]) / 2) ** 2
        uv = (U[:, 1:] + U[:, :-1]) / 2 * (V[1:] + V[:-1]) / 2
        drag = [W[2:, 1:-1] + W[:-2, 1:-1] + W[1:-1, 2:] + W[1:-1, :-2] - 4 * W[1:-1, 1:-1] for W in (U, V)]
        along = drag[0] / h / reynolds - np.diff(uu, axis=0) - np.diff(uv[1:-1], axis=1) - np.diff(p, axis=0)
        across = drag[1] / h / reynolds - np.diff(vv, axis=1) - np.diff(uv[:, 1:-1], axis=0) - np.diff(p, axis=1)
        balance = np.diff(U[:, 1:-1], axis=0) + np.diff(V[1:-1], axis=1)
        balance[0, 0] = h * p[0, 0]
        return np.concatenate([along.ravel(), across.ravel(), balance.ravel()]) / h

    return _problem("staggered-cavity", residual, np.zeros(2 * k + n * n), "Harlow and Welch (1965)")


def fracture(n: int = 150) -> SparseProblem:
    """A bar that is pulled: displacements, and a phase field of damage."""
    h, length, stiffness, load = 1 / n, 0.05, 100.0, 0.12
    line = np.linspace(0, 1, n + 1)

    def residual(z: HostArray) -> HostArray:
        strain, d = np.diff(np.concatenate([[0.0], z[: n - 1], [load]])) / h, z[n - 1 :]
        whole = 1 - (d[1:] + d[:-1]) / 2
        stress = stiffness * (whole**2 + 1e-6) * strain
        release = np.pad(whole * stiffness * strain**2, 1, mode="edge")
        p = np.pad(d, 1, mode="edge")
        damage = d / length - length * (p[2:] - 2 * d + p[:-2]) / h**2 - (release[1:] + release[:-1]) / 2
        return np.concatenate([np.diff(stress) / h, damage])

    x0 = np.concatenate([load * line[1:-1], 0.1 * np.exp(-np.abs(line - 0.5) / length)])
    return _problem("fracture", residual, x0, "Miehe, Hofacker and Welschinger (2010)")


def enclosure(n: int = 600) -> SparseProblem:
    """Temperatures of gray surfaces that radiate to those near them."""
    places = np.random.default_rng(5).random((n, 3))
    distance = ((places[:, None] - places) ** 2).sum(axis=-1)
    view = np.where(distance < 0.02, np.exp(-50 * distance), 0.0)
    np.fill_diagonal(view, 0.0)
    view /= 1.2 * view.sum(axis=1, keepdims=True) + 1e-9
    heat = np.where(np.arange(n) < 20, 1000.0, 0.0) + 5.67e-8 * 300**4 * (1 - view.sum(axis=1))

    def residual(T: HostArray) -> HostArray:
        emitted = 5.67e-8 * T**4
        return emitted - view @ emitted - heat

    return _problem("enclosure", residual, np.full(n, 300.0), "Hottel and Sarofim (1967)")


def ordinates(n: int = 80, directions: int = 8) -> SparseProblem:
    """Radiation and conduction in a slab by discrete ordinates, upwind: intensities by direction, and temperatures."""
    cosine, weight = np.polynomial.legendre.leggauss(directions)
    h, k, slope = 1 / n, directions * n, np.abs(cosine)[:, None] * n

    def residual(z: HostArray) -> HostArray:
        beam, T = z[:k].reshape(directions, n), z[k:]
        mean, emitted, opacity = weight @ beam / 2, T**4, 1 + 2 / T
        ends = np.pad(beam, ((0, 0), (1, 1)), constant_values=((0, 0), (1.0, 0.01)))
        upwind = np.where(cosine[:, None] > 0, ends[:, :-2], ends[:, 2:])
        transport = slope * (beam - upwind) + opacity * (beam - 0.5 * mean - 0.5 * emitted)
        return np.append(transport, opacity * (mean - emitted) + 0.01 * _flux_difference(T, 1.0, 0.316, h))

    return _problem("ordinates", residual, np.append(np.full(k, 0.5), np.full(n, 0.8)), "Chandrasekhar (1950)")


def stiff_reactions(n: int = 16) -> SparseProblem:
    """Five species in the plane, with rates of 10^2 to 10^4 beside their diffusion."""
    outside = (1.0, 0.5, 0.0, 0.2, 0.0)

    def residual(y: HostArray) -> HostArray:
        a, b, c, d, _ = y
        forth, back, on = 1e4 * a * b, 1e2 * c, 5e3 * c * d
        made = (back - forth, back - forth, forth - back - on, -on, on)
        return np.array([0.01 * n * n * _laplacian(u, edge) + r for u, edge, r in zip(y, outside, made)])

    x0 = np.ones((5, n, n)) * np.array([1.0, 0.5, 0.0, 0.2, 0.0])[:, None, None]
    return _problem("stiff-reactions", residual, x0, "Hundsdorfer and Verwer (2003)")


def microgrid(n: int = 1500) -> SparseProblem:
    """Voltages of a network of direct current with loads of constant power."""
    random = np.random.default_rng(6)
    a = np.arange(1, n)
    b = np.array([random.integers(max(0, k - 6), k) for k in a])
    ties = random.integers(0, n, (2, n // 6))
    ties = ties[:, ties[0] != ties[1]]
    a, b = np.concatenate([a, ties[0]]), np.concatenate([b, ties[1]])
    g, load = random.uniform(5, 50, a.size), random.uniform(0, 0.02, n) * (random.random(n) < 0.6)
    is_source = np.arange(n) % 150 == 0

    def residual(v: HostArray) -> HostArray:
        current = g * (v[a] - v[b])
        return np.where(is_source, v - 1, np.bincount(a, current, n) - np.bincount(b, current, n) + load / v)

    return _problem("microgrid", residual, np.ones(n), "generated")


def mean_field_game(n: int = 30) -> SparseProblem:
    """Values and densities of players on a ring: n time steps, forth and back."""
    dx = dt = 1 / n
    x = np.arange(n) * dx
    start, end = np.exp(-30 * (x - 0.5) ** 2), np.cos(2 * np.pi * x)
    start /= start.sum() * dx

    def diffusion(a: HostArray) -> HostArray:
        return 0.1 * (np.roll(a, -1, 1) - 2 * a + np.roll(a, 1, 1)) / dx**2

    def residual(z: HostArray) -> HostArray:
        u, m = z.reshape(2, n, n)
        forward = (np.roll(u, -1, 1) - u) / dx
        right, left = np.minimum(forward, 0), np.maximum(np.roll(forward, 1, 1), 0)
        values = -np.diff(u, axis=0, append=end[None]) / dt - diffusion(u) + 0.5 * (right**2 + left**2) - m
        flux, counter = m * right, m * left
        drift = (flux - np.roll(flux, 1, 1)) / dx + (np.roll(counter, -1, 1) - counter) / dx
        return np.append(values, np.diff(m, axis=0, prepend=start[None]) / dt - diffusion(m) - drift)

    x0 = np.append(np.tile(end, n), np.tile(start, n))
    return _problem("mean-field-game", residual, x0, "Achdou and Capuzzo-Dolcetta (2010)")


def optimal_control(n: int = 24) -> SparseProblem:
    """State and adjoint of a semilinear equation whose control is bounded."""
    h, cost = 1 / (n + 1), 1e-4
    x = np.arange(1, n + 1) * h
    wanted = np.sin(np.pi * x)[:, None] * np.sin(2 * np.pi * x)

    def residual(z: HostArray) -> HostArray:
        y, p = z
        state = -_laplacian(y) / h**2 + y**3 - np.clip(-p / cost, -20, 20)
        return np.array([state, -_laplacian(p) / h**2 + 3 * y**2 * p - (y - wanted)])

    return _problem("optimal-control", residual, np.zeros((2, n, n)), "Hintermueller, Ito and Kunisch (2002)")


def harmonic_balance(points: int = 60, times: int = 17) -> SparseProblem:
    """Periodic heat in a line with a cubic loss: all times are coupled by Fourier's derivative."""
    h, t = 1 / (points + 1), np.arange(times) / times
    frequencies = 2j * np.fft.fftfreq(times, 1 / times)[:, None]

    def residual(z: HostArray) -> HostArray:
        u = z.reshape(times, points)
        p = np.pad(u, ((0, 0), (1, 1)))
        p[:, 0] = np.sin(2 * np.pi * t)
        rate = np.fft.ifft(frequencies * np.fft.fft(u, axis=0), axis=0).real
        return (rate - 0.05 * (p[:, 2:] - 2 * u + p[:, :-2]) / h**2 + u**3).ravel()

    return _problem("harmonic-balance", residual, np.zeros(times * points), "Nakhla and Vlach (1976)")


def total_variation(n: int = 40) -> SparseProblem:
    """A noisy step in the plane, denoised by smoothed total variation."""
    i = np.arange(n)
    noisy = (np.add.outer(i, i) > n) + 0.1 * np.random.default_rng(8).standard_normal((n, n))

    def residual(u: HostArray) -> HostArray:
        x, y = np.diff(u, axis=0, append=u[-1:]), np.diff(u, axis=1, append=u[:, -1:])
        size = np.sqrt(x**2 + y**2 + 1e-4)
        zero = np.zeros((n, 1))
        return u - noisy - 0.2 * (np.diff(x / size, axis=0, prepend=zero.T) + np.diff(y / size, axis=1, prepend=zero))

    return _problem("total-variation", residual, noisy, "Rudin, Osher and Fatemi (1992)")


def american_option(n: int = 300) -> SparseProblem:
    """A time step of an American put on a graded grid, as a complementarity problem by `np.minimum`."""
    s = 300 * np.linspace(0, 1, n) ** 1.5
    payoff, down, up, dt, rate = np.maximum(100 - s, 0), np.diff(s)[:-1], np.diff(s)[1:], 0.05, 0.05

    def residual(v: HostArray) -> HostArray:
        slope = np.diff(v) / np.diff(s)
        curvature, inner = 2 * np.diff(slope) / (down + up), s[1:-1]
        gain = 0.5 * 0.3**2 * inner**2 * curvature + rate * inner * slope[1:] - rate * v[1:-1]
        return np.minimum(np.concatenate([v[:1] - 100, (v - payoff)[1:-1] / dt - gain, v[-1:]]), v - payoff)

    return _problem("american-option", residual, payoff, "Brennan and Schwartz (1977)")


def oscillators(n: int = 2000) -> SparseProblem:
    """Phases of oscillators on a random network, at rest in a rotating frame."""
    random = np.random.default_rng(9)
    a, b, own = np.repeat(np.arange(n), 3), random.integers(0, n, 3 * n), random.normal(0, 0.3, n)
    own -= own.mean()

    def residual(phase: HostArray) -> HostArray:
        pull = np.sin(phase[b] - phase[a])
        out = own + np.bincount(a, pull, n) - np.bincount(b, pull, n)
        out[0] = phase[0]
        return out

    return _problem("oscillators", residual, np.zeros(n), "Kuramoto (1975)")


def tower(levels: int = 120) -> SparseProblem:
    """A braced tower of bars with logarithmic strains, pushed at its top: two unknowns a node."""
    rest = np.stack([np.tile([0.0, 1.0], levels), np.repeat(np.arange(levels), 2)], axis=1)
    base = 2 * np.arange(levels - 1)[:, None]
    a, b = (base + np.array([0, 1, 0, 1, 2])).ravel(), (base + np.array([2, 3, 3, 2, 3])).ravel()
    length, nodes = np.linalg.norm(rest[b] - rest[a], axis=1), 2 * levels

    def residual(z: HostArray) -> HostArray:
        place = rest.copy()
        place[2:] += z.reshape(-1, 2)
        d = place[b] - place[a]
        now = np.sqrt((d**2).sum(axis=1))
        force = (1e5 * np.log(now / length) / now**2)[:, None] * d
        out = np.stack([np.bincount(a, f, nodes) - np.bincount(b, f, nodes) for f in force.T], axis=1)
        out[:, 1] -= 0.001
        out[-2:, 0] += 0.05
        return out[2:].ravel()

    return _problem("tower", residual, np.zeros(2 * nodes - 4), "Hencky (1928)", rtol=1e-6)  # rounding of forces


def vegetation(n: int = 32) -> SparseProblem:
    """Biomass and water on a periodic plane that dries out: patterns beside a uniform state."""

    def diffusion(u: HostArray) -> HostArray:
        return (sum(np.roll(u, s, a) for a in (0, 1) for s in (1, -1)) - 4 * u) * (n / 8) ** 2

    def residual(z: HostArray) -> HostArray:
        b, w = z
        grown = w * b**2
        return np.array([grown - 0.45 * b + 0.1 * diffusion(b), 1.8 - w - grown + 10 * diffusion(w)])

    b0 = 1 + 0.3 * np.random.default_rng(10).standard_normal((n, n))
    return _problem("vegetation", residual, np.array([b0, np.ones((n, n))]), "Klausmeier (1999)")


def electrode(n: int = 80) -> SparseProblem:
    """A porous electrode: potentials of solid and liquid and a concentration, with Butler-Volmer kinetics."""
    h = 1 / n

    def residual(z: HostArray) -> HostArray:
        solid, liquid, c = z.reshape(3, n)
        current = np.sqrt(np.maximum(c, 1e-9)) * np.sinh(15 * (solid - liquid - 0.1))
        balance = 10 * _flux_difference(solid, solid[0], solid[-1] + h, h) - current
        supply = 0.5 * _flux_difference(c, 1.0, c[-1], h) + 0.3 * current
        return np.concatenate([balance, _flux_difference(liquid, 0.0, liquid[-1], h) + current, supply])

    x0 = np.repeat([0.1, 0.0, 1.0], n)
    return _problem("electrode", residual, x0, "Doyle, Fuller and Newman (1993)")


def coupled_problems() -> list[SparseProblem]:
    """Return all, with 240 to 2,048 unknowns."""
    makers = (nozzle, two_phase, staggered_cavity, fracture, enclosure, ordinates, stiff_reactions, microgrid)
    makers += (mean_field_game, optimal_control, harmonic_balance, total_variation, american_option, oscillators)
    return [make() for make in (*makers, tower, vegetation, electrode)]
