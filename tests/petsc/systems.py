"""Systems that the tests solve in one process and on ranks."""

from __future__ import annotations

import numpy as np

import implicitsolve as ims
from implicitsolve import distributed


def bratu_line(part, u):
    """u'' + 3 exp(u) = 0 with u = 0 at both ends, on a rank's points with those around them."""
    u = np.pad(u, ((1 - part.before, 1 - part.after), (0, 0)))
    return u[2:] - 2 * u[1:-1] + u[:-2] + 3 * np.exp(u[1:-1]) / (part.length + 1) ** 2


def line(comm, length=200):
    """Bratu's problem on a line, and its start."""
    a = np.asarray([3.0])
    problem = distributed.problem(
        comm,
        lambda part, u: bratu_line(part, u) + (a[0] - 3.0) * np.exp(u[part.own]) / (part.length + 1) ** 2,
        length=length,
        parameters={"a": a},
        parameter_vjp=lambda part, u, w: {
            "a": np.sum(w * np.exp(u[part.own]), keepdims=True)[0] / (part.length + 1) ** 2
        },
        parameter_jvp=lambda part, u, t: t["a"][0] * np.exp(u[part.own]) / (part.length + 1) ** 2,
    )
    return problem, distributed.split(comm, np.zeros((length, 1)), axis=0)


A, B, ALPHA = 3.4, 1.0, 10.0


def brusselator(mesh, dt=np.inf, old=None):
    """The steady Brusselator on a torus, of NonlinearSolve.jl, or a step of implicit Euler."""
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

    return residual, jvp, mesh.array(start)


STOP = {"grid": ims.NonlinearStop(rtol=1e-13), "line": ims.NonlinearStop(rtol=1e-11)}


def layers(comm, length, width=1e-3):
    """-width^2 u'' + u + u^3 = 2 with u = 0 at both ends: boundary layers, and a condition that 10^6 points allow."""
    c = (width * (length + 1)) ** 2

    def padded(part, u):
        return np.pad(u, ((1 - part.before, 1 - part.after), (0, 0)))

    def residual(part, u):
        p = padded(part, u)
        return c * (2 * p[1:-1] - p[2:] - p[:-2]) + p[1:-1] + p[1:-1] ** 3 - 2

    def jvp(part, u, v):
        p = padded(part, v)
        return c * (2 * p[1:-1] - p[2:] - p[:-2]) + (1 + 3 * u[part.own] ** 2) * p[1:-1]

    counts = distributed.layout(length, comm.size)
    x0 = distributed.from_local(comm, np.ones((counts[comm.rank], 1)), axis=0, counts=counts)
    return distributed.problem(comm, residual, jvp=jvp, length=length), x0
