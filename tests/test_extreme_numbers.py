"""Huge and tiny numbers, noise, and problems without a smooth root: every solve ends, and tells the truth."""

import itertools

import numpy as np
import pytest

from implicitsolve import NewtonKrylov, NonlinearStop, Problem, Status, newton_krylov, root
from implicitsolve.kernels._norms import norm2
from tests.helpers.cubic import START, A, B, N, every_krylov, jvp, residual

pytestmark = pytest.mark.timeout(60)

SCALES = [1e-150, 1e-75, 1e75, 1e150]


@pytest.mark.parametrize("F_scale", [1.0, *SCALES])
@pytest.mark.parametrize("x_scale", [1.0, *SCALES])
@pytest.mark.parametrize("start", [0.3, 0.0])
def test_huge_scales(F_scale, x_scale, start):
    """Residuals and unknowns of size 1e+-150."""
    clean = root(residual, np.full(N, start))

    def F(y):
        with np.errstate(over="ignore"):  # a first step from 0 may be any number of sizes too long
            return F_scale * residual(y * x_scale)

    result = root(F, np.full(N, start) / x_scale)
    assert result.success
    np.testing.assert_allclose(result.x * x_scale, clean.x, rtol=1e-5, atol=1e-6)


@every_krylov
@pytest.mark.parametrize("F_scale", SCALES)
@pytest.mark.parametrize("exact", [False, True])
def test_huge_residuals_with_every_krylov_method(krylov, F_scale, exact):
    problem = Problem(lambda x: F_scale * residual(x), jvp=(lambda x, v: F_scale * jvp(x, v)) if exact else None)
    result = root(problem, START, method=NewtonKrylov(krylov=krylov))
    assert result.success
    assert np.max(np.abs(residual(result.x))) <= 2e-8 * np.max(np.abs(residual(START)))


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e18, 1e30])
@pytest.mark.parametrize("start", [0.3, 0.0])
def test_huge_scales_in_single_precision(scale, start):
    matrix, right = A.astype(np.float32), B.astype(np.float32)

    def F(x):
        return np.float32(scale) * (matrix @ x + np.float32(0.1) * x**3 - right)

    result = root(F, np.full(N, start, dtype=np.float32))
    assert result.success
    assert result.x.dtype == np.float32
    np.testing.assert_allclose(result.x, root(residual, START).x, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("value", [1e300, 1e308, 5e-324, 1e-310])
def test_numbers_at_the_ends_of_the_range(value):
    """Whatever comes out is true and comes soon."""
    for F, x0 in (
        (lambda x: x - value, np.zeros(2)),
        (lambda x: x - value, np.ones(2)),
        (lambda x: value * (x - 1), np.zeros(2)),
        (lambda x: x**2 - 2, np.full(2, value)),
        (lambda x: x - 1, np.full(2, value)),
    ):
        calls = itertools.count()

        def counted(x, F=F, calls=calls):
            next(calls)
            with np.errstate(all="ignore"):
                return F(x)

        result = root(counted, x0)
        assert next(calls) < 5000
        if result.success:
            first = np.max(np.abs(counted(x0)))
            assert np.max(np.abs(counted(result.x))) <= 1.5e-8 * first
    assert result.success  # of x - 1, which is easy from anywhere


@pytest.mark.parametrize(
    ("F", "x0"),
    [
        (lambda x: x**2 + 1, 1.0),
        (lambda x: np.exp(x), 1.0),
        (lambda x: np.abs(x) + 1, 3.0),
        (lambda x: np.where(x > 0, 1.0, -1.0), 0.5),
        (lambda x: np.sign(x) * np.sqrt(np.abs(x)), 1.0),
        (lambda x: np.cbrt(x), 1.0),
        (lambda x: np.round(x, 3) - 0.12345, 1.0),
        (lambda x: np.arctan(x) + 2, 1.0),
        (lambda x: 1 / x, 1.0),
        (lambda x: x * np.exp(-(x**2)) + 1e-30, 2.0),
        (lambda x: np.sin(1e6 * x) + 2, 0.1),
        (lambda x: np.maximum(x, 0) ** 2 + 0 * x, 1.0),
        (lambda x: x - x + 1, 1.0),
        (lambda x: np.floor(x) - 0.5, 3.0),
        (lambda x: np.full_like(x, np.finfo(float).max), 1.0),
    ],
    ids=range(15),
)
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    "options", [{}, {"line_search": None}, {"line_search": "wolfe"}, {"method": "bicgstab"}], ids=str
)
def test_problems_without_a_smooth_root_end_soon(F, x0, n, options):
    calls = itertools.count()

    def counted(x):
        next(calls)
        with np.errstate(all="ignore"):
            return F(x)

    x, result = newton_krylov(counted, np.full(n, x0), f_tol=1e-9, full_output=True, **options)
    used = next(calls)
    assert result.nfev == used < 20_000
    fresh = counted(x)
    np.testing.assert_array_equal(result.fun, fresh)
    assert result.success is bool(np.max(np.abs(fresh)) <= 1e-9)


def test_noisy_residual_ends():
    noise = np.random.default_rng(0)
    result = root(lambda x: residual(x) + 1e-6 * noise.standard_normal(N), START, stop=NonlinearStop(rtol=1e-12))
    assert not result.success
    assert result.counts.residuals < 20_000
    wide = root(
        lambda x: residual(x) + 1e-6 * noise.standard_normal(N),
        START,
        method=NewtonKrylov(rdiff=1e-3),
        stop=NonlinearStop(rtol=0.0, atol=2e-5),
    )
    assert wide.success


@pytest.mark.parametrize("method", ["auto", "anderson", "picard", "broyden", "newton-krylov", "pseudo-transient"])
@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("scale", [5e-324, 1e-310, 1e-300, 1e300])
def test_subnormal_numbers_raised_where_floating_point_errors_do(method, dtype, scale):
    def F(x):
        with np.errstate(all="ignore"):
            return scale * (x - (1 + 2j) if dtype is complex else x - 1)

    with np.errstate(all="raise"):
        result = root(Problem(F, fixed_point=True), np.zeros(3, dtype), method=method)
    assert isinstance(result.status, Status)
    assert norm2(np.full((2, 3), 3 * scale, dtype)).tolist() == pytest.approx(
        [3**1.5 * scale] * 2, rel=1e-6, abs=5e-324
    )
