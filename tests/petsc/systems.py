"""Systems that the tests solve in one process and on ranks."""

import numpy as np

import implicitsolve as ims
from implicitsolve.petsc import Mesh

A, B, ALPHA = 3.4, 1.0, 10.0
STOP = {"grid": ims.NonlinearStop(rtol=1e-13), "line": ims.NonlinearStop(rtol=1e-11)}


def padded(patch, u):
    """The points of a line with those around them, and zeros beyond both ends."""
    return np.pad(u, ((1 - patch.before[0], 1 - patch.after[0]), (0, 0)))


def line(length=200, **settings):
    """Bratu's problem u'' + a exp(u) = 0 on a line, with u = 0 at both ends: its mesh and its functions."""
    a = np.asarray([3.0])
    h2 = (length + 1) ** -2

    def residual(patch, u):
        u = padded(patch, u)
        return u[2:] - 2 * u[1:-1] + u[:-2] + a[0] * np.exp(u[1:-1]) * h2

    mesh = Mesh((length,))
    problem = mesh.problem(
        residual,
        parameters={"a": a},
        parameter_vjp=lambda patch, u, w: {"a": np.sum(w * np.exp(u[patch.own])).reshape(1) * h2},
        parameter_jvp=lambda patch, u, t: t["a"][0] * np.exp(u[patch.own]) * h2,
        name="Bratu",
        **settings,
    )
    return mesh, problem


def brusselator(mesh):
    """The steady Brusselator on a torus, of NonlinearSolve.jl."""
    n = mesh.patch.shape[0]
    x, y = np.meshgrid(*(np.arange(f, s) / n for f, s in zip(mesh.patch.first, mesh.patch.stop)), indexing="ij")
    source = np.where((x - 0.3) ** 2 + (y - 0.6) ** 2 <= 0.01, 5.0, 0.0)
    start = np.stack([22 * (y * (1 - y)) ** 1.5, 27 * (x * (1 - x)) ** 1.5], axis=-1)

    def laplace(patch, w):
        rows, columns = (slice(p.start - 1, p.stop + 1) for p in patch.own)
        w = w[rows, columns]
        return ALPHA * n**2 * (w[2:, 1:-1] + w[:-2, 1:-1] + w[1:-1, 2:] + w[1:-1, :-2] - 4 * w[1:-1, 1:-1])

    def residual(patch, w):
        own = w[patch.own]
        u, v = own[..., 0], own[..., 1]
        F = laplace(patch, w)
        F[..., 0] += B + u * u * v - (A + 1) * u + source
        F[..., 1] += A * u - u * u * v
        return F / n**2

    def jvp(patch, w, d):
        u, v = np.moveaxis(w[patch.own], -1, 0)
        du, dv = np.moveaxis(d[patch.own], -1, 0)
        F = laplace(patch, d)
        change = 2 * u * v * du + u * u * dv
        F[..., 0] += change - (A + 1) * du
        F[..., 1] += A * du - change
        return F / n**2

    return residual, jvp, start


def layers(length, width=1e-3):
    """-width^2 u'' + u + u^3 = 2 with u = 0 at both ends: boundary layers, and a condition that 10^6 points allow."""
    c = (width * (length + 1)) ** 2

    def residual(patch, u):
        p = padded(patch, u)
        return c * (2 * p[1:-1] - p[2:] - p[:-2]) + p[1:-1] + p[1:-1] ** 3 - 2

    def jvp(patch, u, v):
        p = padded(patch, v)
        return c * (2 * p[1:-1] - p[2:] - p[:-2]) + (1 + 3 * u[patch.own] ** 2) * p[1:-1]

    mesh = Mesh((length,))
    return mesh, mesh.problem(residual, jvp=jvp)
