"""A cubic system, and the ways to solve it, for tests with hostile callers."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import NonlinearStop

N = 9
RNG = np.random.default_rng(2)
A = np.eye(N) + 0.4 * RNG.standard_normal((N, N)) / np.sqrt(N)
B = RNG.standard_normal(N)
START = np.full(N, 0.3)
TIGHT = NonlinearStop(rtol=1e-10)


def residual(x):
    return A @ x + 0.1 * x**3 - B


def jvp(x, v):
    return A @ v + 0.3 * x**2 * v


def matrix(x):
    return A + np.diag(0.3 * x**2)


KRYLOV = {
    "own": None,
    "gmres": ims.GMRES(restart=5),
    "lgmres": ims.LGMRES(restart=5),
    "bicgstab": ims.BiCGSTAB(),
    "tfqmr": ims.ScipyKrylov(function="tfqmr"),
    "gcrotmk": ims.ScipyKrylov(function="gcrotmk"),
}
every_krylov = pytest.mark.parametrize("krylov", KRYLOV.values(), ids=KRYLOV.keys())
LINE_SEARCHES = {"armijo": ims.Backtracking(), "full": ims.FullStep(), "wolfe": ims.Wolfe()}


def same(result, clean):
    np.testing.assert_array_equal(result.x, clean.x)
    np.testing.assert_array_equal(result.fun, clean.fun)
    assert result.counts == clean.counts
    assert result.status == clean.status
