"""Results of different kinds, and the pages that `report` writes of them."""

import functools
from dataclasses import replace
from typing import Any

import numpy as np

import implicitsolve as ims


def bratu(n: int = 16) -> tuple[Any, Any]:
    """SciPy's entry on a grid: the structure is detected."""

    def F(u):
        p = np.pad(u, 1)
        return p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * u + 6 * np.exp(u) / (n + 1) ** 2

    return ims.newton_krylov(F, np.zeros((n, n)), full_output=True)[1], F


def squares(targets) -> tuple[Any, Any]:
    """x^2 = target, which has no solution where that is negative."""
    targets = np.asarray(targets, dtype=float)[:, None]
    problem = ims.Problem(lambda x: x**2 - targets, jvp=lambda x, v: 2 * x * v, batch_ndim=1)
    return ims.root(problem, np.ones_like(targets), method="newton-krylov"), problem


def many() -> tuple[Any, Any]:
    """A batch of which quantiles are drawn, and some of those that failed."""
    targets = np.exp(np.random.default_rng(0).normal(size=300) * 4)
    targets[::30] *= -1
    return squares(targets)


def layer() -> tuple[Any, Any]:
    """A fixed-point problem with a declared structure."""
    rng = np.random.default_rng(0)
    params = ims.adapters.gru_parameters(3, 4, scale=0.7, rng=rng)
    problem = ims.adapters.implicit_gru(params, rng.standard_normal((3, 8, 3)))
    return ims.root(problem), problem


def adjoint() -> tuple[Any, None]:
    result, problem = layer()
    return ims.pull_back(problem, result, np.ones_like(result.x)), None


def nonfinite() -> tuple[Any, Any]:
    problem = ims.Problem(lambda x: np.where(x > 0, x**2 - 2, np.nan))
    return ims.root(problem, np.array([4.0, -1.0])), problem


GRID = ims.Problem(lambda u: np.diff(u, 2, prepend=0.0, append=0.0) + np.exp(u) / 99, structure=ims.Grid(shape=(12,)))
CASES = {
    "grid": bratu,
    "batch": lambda: squares([2.0, 3.0, -1.0, 5.0]),
    "many": many,
    "layer": layer,
    "nonfinite": nonfinite,
    "linear": lambda: (ims.linear_solve(np.eye(5) + 0.1, np.ones(5)), None),
    "adjoint": adjoint,
    "no history": lambda: (replace(squares([2.0, 3.0])[0], steps=()), None),
    "no unknowns": lambda: (ims.root(lambda x: x, np.zeros(0)), lambda x: x),
    "empty": lambda: (squares([])[0], None),
    "norm 0": lambda: (ims.root(lambda x: x - 1, np.zeros(3)), lambda x: x - 1),
    "declared": lambda: (ims.root(GRID, np.zeros(12), method="newton-krylov"), GRID),
    "converged at once": lambda: (ims.root(lambda x: x, np.zeros(3)), lambda x: x),
}


@functools.cache
def solved(name: str) -> tuple[Any, Any]:
    """A result, and its problem or None."""
    return CASES[name]()
