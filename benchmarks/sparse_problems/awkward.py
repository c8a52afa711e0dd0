"""Large systems as they are in porous media, semiconductors, elasticity and finite elements: jumps, meshes, layers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.spatial

from benchmarks.benchmarks.problems import GalleryProblem as SparseProblem
from benchmarks.sparse_problems.networks import generated_edges
from implicitsolve._typing import HostArray

RTOL = 1e-8


def _problem(
    name: str, residual: Callable[[HostArray], HostArray], x0: HostArray, source: str, rtol: float = RTOL
) -> SparseProblem:
    return SparseProblem(name=name, residual=residual, x0=x0, source=source, rtol=rtol)


def _faces(K: HostArray) -> list[HostArray]:
    """Harmonic means of cell values at the faces across each axis, also at both ends, where u = 0 half a cell away."""
    means: list[HostArray] = []
    for axis in range(K.ndim):
        ends = [np.take(K, [i], axis) for i in (0, -1)]
        padded = np.concatenate([ends[0], K, ends[1]], axis)
        a, b = np.delete(padded, -1, axis), np.delete(padded, 0, axis)
        means.append(2 * a * b / (a + b))
    return means


def _outflow(u: HostArray, faces: list[HostArray], nonlinear: float) -> HostArray:
    """-div(K (1 + c u^2) grad u) h^2 over the cells, u = 0 outside."""
    out = np.zeros_like(u)
    for axis, k in enumerate(faces):
        padded = np.pad(u, [(1, 1) if a == axis else (0, 0) for a in range(u.ndim)])
        d = np.diff(padded, axis=axis)
        if nonlinear:
            middle = 0.5 * (np.delete(padded, -1, axis) + np.delete(padded, 0, axis))
            d *= 1 + nonlinear * middle * middle
        out -= np.diff(k * d, axis=axis)
    return out


def _diffusion(name: str, K: HostArray, source: str, weights: tuple[float, ...] | None = None) -> SparseProblem:
    """-div(K (1 + u^2) grad u) = 10; `weights` multiply the axes."""
    hh = K.shape[0] ** -2.0
    faces = [w * k for w, k in zip(weights or (1.0,) * K.ndim, _faces(K))]
    return _problem(name, lambda u: _outflow(u, faces, 1.0) - 10 * hh, np.zeros(K.shape), source)


def heterogeneous(n: int) -> SparseProblem:
    """Coefficients of four decades, cell by cell."""
    K = 10.0 ** np.random.default_rng(3).uniform(-2, 2, (n, n))
    return _diffusion("heterogeneous", K, "cell-wise permeability")


def lognormal(n: int) -> SparseProblem:
    """A lognormal field of six decades that is correlated over a tenth of the domain."""
    k = np.fft.fftfreq(n, 1.0 / n)
    noise = np.fft.fft2(np.random.default_rng(4).standard_normal((n, n)))
    field = np.real(np.fft.ifft2(noise / (1.0 + (np.hypot(k[:, None], k) / 10.0) ** 2) ** 1.5))
    field = 6.0 * ((field - field.min()) / np.ptp(field) - 0.5)
    return _diffusion("lognormal", 10.0**field, "reservoirs: log-permeability as a random field")


def anisotropic(n: int) -> SparseProblem:
    """A hundred times the diffusion along one axis."""
    return _diffusion("anisotropic", np.ones((n, n)), "anisotropy 100:1", (100.0, 1.0))


def jumps_cube(n: int) -> SparseProblem:
    """Blocks of an eighth of the cube's edge, with coefficients of four decades."""
    blocks = 10.0 ** np.random.default_rng(5).uniform(-2, 2, (8, 8, 8))
    i = np.arange(n) * 8 // n
    return _diffusion("jumps-cube", blocks[np.ix_(i, i, i)], "layered media in the cube")


def graded_layers(n: int) -> SparseProblem:
    """-eps laplace u + u^3 = 1 on a grid that is graded towards the boundary layers."""
    edges = 0.5 * (1 + np.tanh(3 * np.linspace(-1, 1, n + 1)) / np.tanh(3))
    h = np.diff(edges)
    gaps = np.concatenate([[h[0] / 2], 0.5 * (h[1:] + h[:-1]), [h[-1] / 2]])
    faces = [1e-4 * np.outer(1 / gaps, h), 1e-4 * np.outer(h, 1 / gaps)]
    area = np.outer(h, h)
    return _problem(
        "graded-layers", lambda u: _outflow(u, faces, 0.0) + area * (u**3 - 1), 0 * area, "singular perturbation"
    )


def recirculating(n: int, peclet: float = 1e3) -> SparseProblem:
    """Heat in a vortex, upwind, with conductivity 1 + u^2 / 10, one hot wall."""
    e = np.linspace(0, 1, n + 1)
    c = 0.5 * (e[1:] + e[:-1])

    def psi(x: HostArray, y: HostArray) -> HostArray:
        return np.outer(np.sin(np.pi * x) ** 2, np.sin(np.pi * y) ** 2) / np.pi

    corners = psi(e, e)
    flux = [peclet * np.diff(corners, axis=1), -peclet * np.diff(corners, axis=0)]  # through the faces: no divergence

    def residual(u: HostArray) -> HostArray:
        out = np.zeros_like(u)
        for axis in (0, 1):
            p = np.pad(u, [(1, 1) if a == axis else (0, 0) for a in (0, 1)])
            if axis == 0:
                p[0] = 1.0
            a, b, q = np.delete(p, -1, axis), np.delete(p, 0, axis), flux[axis]
            m = 0.5 * (a + b)
            out += np.diff(np.maximum(q, 0) * a + np.minimum(q, 0) * b - (1 + 0.1 * m * m) * (b - a), axis=axis)
        return out

    return _problem("recirculating", residual, np.zeros((c.size, c.size)), "convection at Peclet 10^3")


def triangles(n: int) -> tuple[HostArray, HostArray]:
    """Points and triangles of a Delaunay mesh of n^2 random points and the corners of the square."""
    points = np.random.default_rng(6).random((n * n, 2))
    points[:4] = [[0, 0], [0, 1], [1, 0], [1, 1]]
    t = np.arange(1, n) / n
    points[4 : 4 + 4 * (n - 1)] = np.concatenate(
        [np.stack(p, 1) for p in ((t, 0 * t), (t, 0 * t + 1), (0 * t, t), (0 * t + 1, t))]
    )
    return points, scipy.spatial.Delaunay(points).simplices


def delaunay(n: int) -> SparseProblem:
    """P1 elements on a random mesh, conductivity 10^3 in a disc: -div(k (1 + u^2) grad u) = 10."""
    points, cells = triangles(n)
    p = points[cells]
    e = np.stack([p[:, 2] - p[:, 1], p[:, 0] - p[:, 2], p[:, 1] - p[:, 0]], axis=1)
    area = 0.5 * np.abs(e[:, 0, 0] * e[:, 1, 1] - e[:, 0, 1] * e[:, 1, 0])
    keep = area > 1e-12
    cells, e, area, p = cells[keep], e[keep], area[keep], p[keep]
    k = np.where(np.hypot(*(p.mean(axis=1) - 0.5).T) < 0.25, 1e3, 1.0)
    local = (k / (4 * area))[:, None, None] * (e @ e.transpose(0, 2, 1))
    on_edge = ((points == 0) | (points == 1)).any(axis=1)
    load = 10 * np.bincount(cells.ravel(), np.repeat(area / 3, 3), len(points))
    flat = cells.ravel()

    def residual(u: HostArray) -> HostArray:
        v = u[cells]
        flow = np.matvec(local, v) * (1 + v.mean(axis=1) ** 2)[:, None]
        return np.where(on_edge, u, np.bincount(flat, flow.ravel(), u.size) - load)

    return _problem("delaunay", residual, np.zeros(len(points)), "P1 elements, contrast 10^3")


def spring_lattice(n: int) -> SparseProblem:
    """Springs between the nodes of a square, stiff ones among them, pulled far; two interleaved coordinates."""
    number = np.arange(n * n).reshape(n, n)
    pairs = [(number[1:], number[:-1]), (number[:, 1:], number[:, :-1]), (number[1:, 1:], number[:-1, :-1])]
    pairs.append((number[1:, :-1], number[:-1, 1:]))
    a, b = (np.concatenate([pair[i].ravel() for pair in pairs]) for i in (0, 1))
    rest = np.stack(np.divmod(np.arange(n * n), n), axis=1) / (n - 1.0)
    length = np.hypot(*(rest[a] - rest[b]).T)
    stiff = np.where(np.random.default_rng(8).random(a.size) < 0.1, 10.0, 1.0) / length
    fixed = np.zeros(n * n, dtype=bool)
    fixed[number[0]] = fixed[number[-1]] = True
    target = rest + np.where(np.arange(n * n)[:, None] >= n * (n - 1), [[0.3, 0.1]], 0.0)

    def residual(x: HostArray) -> HostArray:
        q = x.reshape(-1, 2)
        d = q[a] - q[b]
        long = np.hypot(d[:, 0], d[:, 1])
        f = (stiff * (long - length) / long)[:, None] * d
        force = np.stack([np.bincount(a, f[:, i], n * n) - np.bincount(b, f[:, i], n * n) for i in (0, 1)], axis=1)
        return np.where(fixed[:, None], q - target, force).reshape(x.shape)

    x0 = rest * [1.3, 1.0] + rest[:, :1] * [0.0, 0.1]
    return _problem("spring-lattice", residual, x0.reshape(n, n, 2), "elastic lattices")


def drift_diffusion_plane(n: int) -> SparseProblem:
    """A diode in the plane: potential, and logarithms of electrons and holes, interleaved, by exponential fitting."""
    x = (np.arange(n) + 0.5) / n
    doping = 20.0 * np.tanh(20 * (x[:, None] + 0.2 * np.sin(2 * np.pi * x) - 0.5))
    contacts = np.arcsinh(np.stack([doping[0], doping[-1]]) / 2)
    hh = n**-2.0

    def bernoulli(t: HostArray) -> HostArray:
        small = np.abs(t) < 1e-3
        t = np.where(small, 1.0, t), np.where(small, t, 0.0)
        return np.where(small, 1 - t[1] / 2 + t[1] ** 2 / 12, t[0] / np.expm1(t[0]))

    edge = np.stack([contacts, contacts, -contacts], axis=-1)
    edge[1, :, 0] += 0.5

    def residual(q: HostArray) -> HostArray:
        p = np.concatenate([edge[:1], q, edge[1:]])
        carriers = np.exp(q[..., 1] + q[..., 2])
        recombined = hh * (carriers - 1.0) / (np.exp(q[..., 1]) + np.exp(q[..., 2]) + 2.0)
        out = np.zeros_like(q)
        for axis, w in ((0, p), (1, q)):
            v = np.diff(w[..., 0], axis=axis)
            density = np.exp(w[..., 1:])
            a, b = np.delete(density, -1, axis), np.delete(density, 0, axis)
            down, up = bernoulli(-v), bernoulli(v)
            flows = [v, b[..., 0] * up - a[..., 0] * down, b[..., 1] * down - a[..., 1] * up]
            flow = np.stack(flows, axis=-1)
            out -= np.diff(flow if axis == 0 else np.pad(flow, ((0, 0), (1, 1), (0, 0))), axis=axis)
        out[..., 0] += 1e3 * hh * (np.exp(q[..., 1]) - np.exp(q[..., 2]) - doping)
        out[..., 1:] += recombined[..., None]
        return out

    psi = np.arcsinh(doping / 2)
    return _problem(
        "drift-diffusion-plane", residual, np.stack([psi, psi, -psi], axis=-1), "Scharfetter, Gummel (1969)"
    )


def richards(n: int) -> SparseProblem:
    """An implicit step of water that seeps into layered soil: pressure head, van Genuchten's curves."""
    layers = 10.0 ** np.random.default_rng(9).uniform(-1, 1, 8)
    K = np.repeat(layers[np.arange(n) * 8 // n][:, None], n, axis=1)
    h, dt = 1.0 / n, 0.01

    def saturation(u: HostArray) -> HostArray:
        return (1 + np.maximum(-3.0 * u, 0.0) ** 2) ** -0.5

    def conductivity(u: HostArray) -> HostArray:
        s = saturation(u)
        return K_padded * np.sqrt(s) * (1 - np.sqrt(np.maximum(1 - s * s, 0.0))) ** 2

    K_padded = np.pad(K, 1, mode="edge")
    old = np.full((n, n), -1.0)
    wet = np.zeros(n)
    wet[n // 4 : n // 2] = 1.0

    def residual(u: HostArray) -> HostArray:
        p = np.pad(u, 1, mode="edge")
        p[0, 1:-1] = np.where(wet > 0, 0.05, p[0, 1:-1])
        k = conductivity(p)
        down = 0.5 * (k[1:] + k[:-1]) * (np.diff(p, axis=0) / h - 1.0)
        across = 0.5 * (k[:, 1:] + k[:, :-1]) * np.diff(p, axis=1) / h
        out = np.diff(down, axis=0)[:, 1:-1] + np.diff(across, axis=1)[1:-1]
        return h * h * (saturation(u) - saturation(old) + 0.01 * (u - old)) - dt * h * out

    return _problem("richards-step", residual, old, "Richards (1931), van Genuchten (1980)")


def gas_network(n: int) -> SparseProblem:
    """Squared pressures at n nodes and the flows of the pipes between them, stacked."""
    random = np.random.default_rng(17)
    a, b = generated_edges(n, 16, 0.3)
    r = 10.0 ** random.uniform(-1, 1, a.size)
    demand = random.uniform(0.0, 2.0, n) / n

    def residual(x: HostArray) -> HostArray:
        p, flow = x[:n], x[n:]
        out = np.concatenate(
            [np.bincount(b, flow, n) - np.bincount(a, flow, n) - demand, p[a] - p[b] - r * flow * np.abs(flow)]
        )
        out[0] = p[0] - 10.0
        return out

    x0 = np.concatenate([np.full(n, 10.0), np.full(a.size, 0.05)])
    return _problem("gas-network", residual, x0, "Weymouth's equation")


def hyperelastic(n: int) -> SparseProblem:
    """A compressible neo-Hookean sheet of n x n bilinear cells, stretched; two interleaved coordinates."""
    number = np.arange((n + 1) ** 2).reshape(n + 1, n + 1)
    cells = np.stack([number[:-1, :-1], number[1:, :-1], number[1:, 1:], number[:-1, 1:]], axis=-1).reshape(-1, 4)
    a = 0.5 / np.sqrt(3)
    s, t = np.array([[0.5 + i * a, 0.5 + j * a] for i in (-1, 1) for j in (-1, 1)]).T
    gradients = n * np.stack(  # (points, nodes, axes)
        [np.stack([t - 1, s - 1], -1), np.stack([1 - t, -s], -1), np.stack([t, s], -1), np.stack([-t, 1 - s], -1)], 1
    )
    rest = np.stack(np.divmod(np.arange((n + 1) ** 2), n + 1), axis=1) / float(n)
    stiffness = 10.0 ** (np.random.default_rng(18).integers(0, 2, (4, 4))[np.ix_(*[np.arange(n) * 4 // n] * 2)])
    mu = stiffness.reshape(-1, 1, 1, 1) / n**2 / 4
    ends = np.concatenate([number[0], number[-1]])
    flat = cells.ravel()

    def residual(x: HostArray) -> HostArray:
        q = x.reshape(-1, 2)
        G = np.einsum("cni,gnj->cgij", q[cells], gradients)
        det = G[..., 0, 0] * G[..., 1, 1] - G[..., 0, 1] * G[..., 1, 0]
        cofactor = np.stack([G[..., 1, 1], -G[..., 1, 0], -G[..., 0, 1], G[..., 0, 0]], -1).reshape(G.shape)
        stress = mu * (G + ((2.0 * np.log(det) - 1.0) / det)[..., None, None] * cofactor)
        force = np.einsum("cgij,gnj->cni", stress, gradients).reshape(-1, 2)
        out = np.stack([np.bincount(flat, force[:, i], len(rest)) for i in (0, 1)], axis=1)
        out[ends] = q[ends] - rest[ends] * [1.1, 1.0]
        return out.reshape(x.shape)

    return _problem("hyperelastic", residual, (rest * [1.1, 1.0]).reshape(n + 1, n + 1, 2), "neo-Hookean sheet")


def contact(n: int) -> SparseProblem:
    """A membrane that is pressed onto a rough floor, by a penalty."""
    x = (np.arange(n) + 0.5) / n
    floor = -0.03 - 0.02 * np.cos(9 * np.pi * x)[:, None] * np.cos(7 * np.pi * x)
    hh, faces = n**-2.0, [np.ones((n + 1, n)), np.ones((n, n + 1))]
    return _problem(
        "contact",
        lambda u: _outflow(u, faces, 0.0) + hh * (2.0 - 1e5 * np.maximum(floor - u, 0.0)),
        np.zeros((n, n)),
        "Signorini's problem by a penalty",
    )


def awkward_problems(n: int) -> list[SparseProblem]:
    """Return all, with about n^2 unknowns for each field."""
    plane = [heterogeneous, lognormal, anisotropic, graded_layers, recirculating, delaunay, spring_lattice]
    plane += [drift_diffusion_plane, richards, hyperelastic, contact]
    return [*(make(n) for make in plane), jumps_cube(round(n ** (2 / 3))), gas_network(n * n)]
