"""Equations on a line: u of shape (..., T), or (..., T, 2), with values prescribed beyond its ends."""

import numpy as np
from array_api_compat import array_namespace


def framed(u, left=0.0, right=0.0):
    xp = array_namespace(u)
    end = xp.ones_like(u[..., :1])
    return xp.concat([left * end, u, right * end], axis=-1)


def bratu(u, lam=3.0):
    p, xp = framed(u), array_namespace(u)
    return p[..., 2:] - 2 * u + p[..., :-2] + lam * xp.exp(u) / (u.shape[-1] + 1) ** 2


def bratu_blocks(u, lam=3.0):
    blocks = np.ones((*u.shape, 3, 1, 1))
    blocks[..., 1, 0, 0] = -2 + lam * np.exp(u) / (u.shape[-1] + 1) ** 2
    return blocks


def burgers(u, viscosity=0.02):
    p, h = framed(u, 1.0, -1.0), 1 / (u.shape[-1] + 1)
    return viscosity * (p[..., 2:] - 2 * u + p[..., :-2]) - 0.5 * h * u * (p[..., 2:] - p[..., :-2])


def troesch(u, mu=10.0):
    p, h = framed(u, 0.0, 1.0), 1 / (u.shape[-1] + 1)
    return p[..., 2:] - 2 * u + p[..., :-2] - h * h * mu * np.sinh(mu * u)


def junction(u):
    """A p-n junction: Poisson's equation with both carriers in equilibrium, exp(+-40 u), and doping 1e4."""
    n = u.shape[-1]
    end, doping = np.arcsinh(5e3) / 40, np.where(np.arange(n) < n // 2, -1e4, 1e4)
    p = framed(u, -end, end)
    with np.errstate(over="ignore"):
        carriers = np.exp(40 * u) - np.exp(-40 * u)
    return p[..., 2:] - 2 * u + p[..., :-2] - (carriers - doping) / (n + 1) ** 2


def brusselator(x, A=2.0, B=4.6, du=0.0016, dv=0.008):
    u, v, h = x[..., 0], x[..., 1], 1 / (x.shape[-2] + 1)
    p, q = framed(u, A, A), framed(v, B / A, B / A)
    reaction = u * u * v
    return np.stack(
        [
            du * (p[..., 2:] - 2 * u + p[..., :-2]) + h * h * (A - (B + 1) * u + reaction),
            dv * (q[..., 2:] - 2 * v + q[..., :-2]) + h * h * (B * u - reaction),
        ],
        axis=-1,
    )


def brusselator_start(T, A=2.0, B=4.6, size=0.1):
    t = np.arange(1, T + 1) / (T + 1)
    return np.stack([A + size * np.sin(3 * np.pi * t), B / A + size * np.cos(2 * np.pi * t)], axis=-1)


def circle(x):
    """A periodic chain with a cubic well, badly scaled equations."""
    n = x.shape[-1]
    size = 10.0 ** np.linspace(-5, 5, n)
    return size * (np.roll(x, 1, axis=-1) - 3 * x + np.roll(x, -1, axis=-1) - x**3 + np.sin(np.arange(n)))
