"""Equations of blocks in a chain, and a solve that checks what must hold for every result of it."""

from __future__ import annotations

import numpy as np
import pytest
from array_api_compat import array_namespace

from implicitsolve import BlockBanded, NonlinearStop, Problem, root

TRIDIAGONAL, DIAGONAL = BlockBanded(1, 1), BlockBanded(0, 0)
MODES = ["broyden", "chord", "none"]
every_mode = pytest.mark.parametrize("reuse", MODES)


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


PROBLEMS = {
    "bratu": (bratu, np.zeros(60), TRIDIAGONAL),
    "bratu near its fold": (lambda u: bratu(u, 3.5), np.zeros(60), TRIDIAGONAL),
    "burgers": (burgers, np.linspace(1, -1, 82)[1:-1], TRIDIAGONAL),
    "troesch": (troesch, np.linspace(0, 1, 102)[1:-1], TRIDIAGONAL),
    "junction": (junction, np.zeros(80), TRIDIAGONAL),
    "brusselator": (lambda x: brusselator(x, B=2.0), brusselator_start(60, B=2.0), BlockBanded(1, 1, 2)),
    "circle": (circle, np.full(40, 0.3), BlockBanded(1, 1, periodic=True)),
}


def true_norm(F, x):
    return float(np.abs(F(x)).max())


def run(F, x0, structure, method="block-newton", stop=None, **functions):
    """Solve, and check what must hold for every result."""
    calls = [0]

    def counted(x):
        calls[0] += 1
        return F(x)

    x0 = x0.copy()
    saved = x0.copy()
    result = root(Problem(counted, structure=structure, **functions), x0, method=method, stop=stop)
    np.testing.assert_array_equal(x0, saved)
    assert calls[0] == result.counts.residuals
    np.testing.assert_array_equal(result.fun, F(result.x))
    assert result.residual_norm == true_norm(F, result.x)
    assert result.initial_norm == true_norm(F, x0)
    stop = stop or NonlinearStop()
    rtol = np.finfo(x0.dtype).eps ** 0.5 if stop.rtol is None else stop.rtol
    assert result.success == (result.residual_norm <= max(stop.atol, rtol * result.initial_norm))
    return result
