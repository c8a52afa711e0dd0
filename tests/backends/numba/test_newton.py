"""The compiled Newton method: against known roots and `BlockNewton`, its statuses, its forms of a residual."""

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("numba")

import numba

from implicitsolve import BlockBanded, NoConvergence, NonlinearResult, NonlinearStop, Status
from implicitsolve.backends.numba import newton_batch
from implicitsolve.diagnostics import explain


@numba.njit
def brusselator(x, p, out):
    """u' = A + u^2 v - (B + 1) u + D lap u, v' = B u - u^2 v + D lap v with the steady values at the ends."""
    A, B, D = p
    T = x.shape[0]
    for t in range(T):
        u, v = x[t]
        u_left, v_left = (x[t - 1, 0], x[t - 1, 1]) if t > 0 else (A, B / A)
        u_right, v_right = (x[t + 1, 0], x[t + 1, 1]) if t < T - 1 else (A, B / A)
        out[t, 0] = A + u * u * v - (B + 1) * u + D * (u_left - 2 * u + u_right)
        out[t, 1] = B * u - u * u * v + D * (v_left - 2 * v + v_right)


@numba.njit
def power(x, p, out):
    for i in range(x.size):
        out[i] = x[i] ** 3 - p[0]


def squares(x, p):
    return (x * x - p[0]) * p[1]


CELLS = BlockBanded(1, 1, 2)


def cells(B, rng):
    p = np.stack([rng.uniform(0.8, 1.2, B), rng.uniform(1.0, 1.6, B), rng.uniform(0.5, 2.0, B)], axis=1)
    steady = np.stack([p[:, 0], p[:, 1] / p[:, 0]], axis=1)[:, None, :]
    return steady * (1 + 0.1 * rng.standard_normal((B, 8, 2))), p


def test_finds_roots_of_many_systems(rng):
    x0, p = cells(200, rng)
    before = x0.copy()
    result = newton_batch(brusselator, x0, p, structure=CELLS)
    assert result.success.all()
    np.testing.assert_array_equal(x0, before)
    F = np.empty_like(x0)
    for b in range(200):
        brusselator.py_func(result.x[b], p[b], F[b])
    np.testing.assert_array_equal(F, result.fun)
    np.testing.assert_array_equal(result.residual_norm, np.abs(F).max(axis=(1, 2)))
    assert (result.error <= 1.5e-8).all()
    steady = np.stack([p[:, 0], p[:, 1] / p[:, 0]], axis=1)[:, None, :]
    np.testing.assert_allclose(result.x, np.broadcast_to(steady, x0.shape), rtol=1e-5)
    assert result.counts.residuals < 25 * len(x0)


def test_the_structure_saves_evaluations_and_changes_no_root(rng):
    x0, p = cells(20, rng)
    stop = NonlinearStop(rtol=1e-12)
    banded = newton_batch(brusselator, x0, p, structure=CELLS, stop=stop)
    full = newton_batch(brusselator, x0, p, stop=stop)
    assert banded.success.all()
    assert full.success.all()
    np.testing.assert_allclose(banded.x, full.x, rtol=1e-8)
    assert banded.counts.residuals < 0.8 * full.counts.residuals


def test_threads_change_nothing(rng, monkeypatch):
    from implicitsolve.backends.numba import _jit

    x0, p = cells(40, rng)
    alone = newton_batch(brusselator, x0, p, structure=CELLS)
    monkeypatch.setattr(_jit, "LEAST_OPERATIONS", 0)
    monkeypatch.setattr(_jit.config, "NUMBA_NUM_THREADS", 3)
    shared = newton_batch(brusselator, x0, p, structure=CELLS)
    np.testing.assert_array_equal(alone.x, shared.x)
    assert alone.counts == shared.counts


@pytest.mark.parametrize("residual", [lambda x, out: cube(x, out), lambda x: x**3 - 8.0], ids=["writes", "returns"])
def test_forms_without_parameters(residual):
    result = newton_batch(residual, np.asarray([[1.0, 3.0], [4.0, 2.0]]), stop=NonlinearStop(rtol=1e-13))
    assert result.success.all()
    np.testing.assert_allclose(result.x, 2.0, rtol=1e-12)


@numba.njit
def cube(x, out):
    out[:] = x**3 - 8.0


def test_forms_with_parameters():
    x0 = np.ones((2, 1))
    for residual in (power, lambda x, p: x**3 - p[0]):
        result = newton_batch(residual, x0, np.asarray([[8.0], [27.0]]), stop=NonlinearStop(rtol=1e-13))
        np.testing.assert_allclose(result.x[:, 0], [2.0, 3.0], rtol=1e-12)
    np.testing.assert_allclose(newton_batch(power, x0, np.asarray([8.0])).x, 2.0, rtol=1e-7)


def test_single_precision_and_complex_numbers():
    p = np.asarray([[8.0 + 1.0j]])
    result = newton_batch(power, np.ones((1, 3), "complex64"), p)
    assert result.x.dtype == "complex64"
    assert result.success.all()
    np.testing.assert_allclose(result.x**3, np.full((1, 3), p[0, 0]), rtol=1e-3)


def test_starts_at_zero_find_a_length():
    result = newton_batch(lambda x: x * 1e6 - 3e-6, np.zeros((2, 2)), stop=NonlinearStop(rtol=1e-10))
    assert result.success.all()
    np.testing.assert_allclose(result.x, 3e-12, rtol=1e-8)


@pytest.mark.parametrize("scale", [2.0**-300, 2.0**300])
def test_powers_of_two_change_no_decision(scale, rng):
    x0 = rng.uniform(1, 3, (5, 4))
    plain = newton_batch(squares, x0, np.array([2.0, 1.0]))
    scaled = newton_batch(squares, x0, np.array([2.0, scale]))
    np.testing.assert_array_equal(scaled.x, plain.x)
    assert scaled.counts == plain.counts


def test_statuses():
    def polynomial(x, p):
        return p[0] + p[1] * x * x

    zero, constant, minimum = newton_batch(polynomial, np.ones((3, 1)), np.array([[0.0, 0.0], [1, 0], [1, 1]])).status
    assert (zero, constant) == (Status.CONVERGED, Status.SINGULAR)
    assert minimum in (Status.LINE_SEARCH_FAILED, Status.SINGULAR, Status.STAGNATED)  # how the search ends is rounding

    def no_number(x, p):
        return 1.0 / (x - p[0]) + np.sqrt(x - p[1])

    at_a_pole_and_outside = newton_batch(no_number, np.ones((2, 1)), np.array([[1.0, 0.0], [5.0, 2.0]]))
    assert (at_a_pole_and_outside.status == Status.NONFINITE).all()


def test_a_step_to_where_the_residual_vanishes_was_taken_for_a_root():
    def secant(x, out):
        out[0] = 1 / np.cosh(x[0])

    x0 = np.concatenate([[0.0], 10 ** np.linspace(-9, -0.5, 15)])[:, None]
    assert not newton_batch(secant, x0).success.any()


def test_roots_at_infinity_were_solved_again_from_where_x_had_run_away_to():
    def vanishes(x, p, out):
        out[0] = np.exp(-x[0] * p[0]) if p[1] > 0 else 1.0 / np.cosh(x[0] * p[0])

    def mixed(x, p, out):
        a, b = np.exp(-x[0]), 2 * x[1] + np.sin(x[1]) - p[0]
        out[0], out[1] = 0.8 * a + 0.3 * b, 0.2 * b - 0.5 * a

    data = np.array([[1.0, 1.0], [-3.0, 1.0], [1.0, 0.0], [2.0, 0.0]])
    alone = newton_batch(vanishes, np.array([[-0.6], [0.3], [2.4], [-1.4]]), data)
    several = newton_batch(mixed, np.array([[-0.6, 1.0], [0.5, -2.0]]), np.array([[0.9], [-3.0]]))
    assert not alone.success.any()
    assert not several.success.any()


def test_limits():
    x0 = np.full((1, 1), 50.0)
    for limit in (0, 1, 3):
        result = newton_batch(lambda x: np.exp(x) - 1.0, x0, stop=NonlinearStop(max_iterations=limit))
        assert result.status[0] == Status.ITERATION_LIMIT
        assert result.iterations[0] <= limit
    result = newton_batch(squares, x0, np.array([2.0, 1.0]), stop=NonlinearStop(rtol=0.0))
    assert result.status[0] in (Status.STAGNATED, Status.CONVERGED)
    np.testing.assert_allclose(result.x, np.sqrt(2.0), rtol=1e-15)


def test_one_bad_system_harms_no_other():
    p = np.asarray([[8.0], [np.nan], [27.0]])
    result = newton_batch(power, np.ones((3, 1)), p)
    assert result.status.tolist() == [Status.CONVERGED, Status.NONFINITE, Status.CONVERGED]


def signs(x, out):
    for i in range(x.size):
        out[i] = 1.0 if x[i] > 0 else -1.0 if x[i] < 0 else 0.0  # 0 at NaN


def nothing(x, out):
    pass


@pytest.mark.parametrize(("residual", "status"), [(signs, Status.SINGULAR), (nothing, Status.NONFINITE)])
def test_nan_and_numbers_that_were_not_written_looked_converged(residual, status):
    result = newton_batch(residual, np.ones((3, 2)))
    assert (result.status == status).all()
    np.testing.assert_array_equal(result.x, 1.0)


@pytest.mark.parametrize("start", [np.nan, np.inf])
def test_residuals_that_are_not_finite_at_the_start_were_counted_as_the_least_integer(start):
    result = newton_batch(cube, np.array([[start], [8.0]]))
    assert result.status.tolist() == [Status.NONFINITE, Status.CONVERGED]
    alone = newton_batch(cube, np.array([[8.0]]))
    assert 1 <= result.counts.residuals - alone.counts.residuals <= 3
    assert result.iterations.tolist() == [0, alone.iterations[0]]


def test_the_result_is_that_of_root():
    p = np.asarray([[8.0, 1.0], [-1.0, 1.0], [np.nan, 1.0]])
    result = newton_batch(squares, np.full((3, 1), 1.3), p)
    assert isinstance(result, NonlinearResult)
    assert result.status.tolist() == [Status.CONVERGED, Status.LINE_SEARCH_FAILED, Status.NONFINITE]
    assert "1 of 3 systems: CONVERGED" in result.message
    assert "3 systems" in result.summary()
    assert "NONFINITE" in str(explain(result))
    with pytest.raises(NoConvergence):
        result.raise_for_status()


def test_nothing_to_solve():
    assert newton_batch(power, np.ones((0, 3)), np.ones(1)).success.all()
    assert newton_batch(power, np.ones((2, 0)), np.ones(1)).status.tolist() == [Status.CONVERGED] * 2


@pytest.mark.parametrize(
    ("arguments", "settings", "error", "message"),
    [
        ((power, np.ones(3), np.ones(1)), {}, ValueError, "`x0` must have shape"),
        ((power, np.ones((2, 3)), np.ones((3, 1))), {}, ValueError, "`parameters` must have shape"),
        ((power, np.ones((2, 3)), np.ones(1)), {"structure": (1, 1)}, TypeError, "`structure` must be a BlockBanded"),
        ((power, np.ones((2, 3)), np.ones(1)), {"structure": BlockBanded(1, 1, 2)}, ValueError, "multiple"),
        ((power, np.ones((2, 3)), np.ones(1)), {"structure": BlockBanded(1, 1, periodic=True)}, ValueError, "periodic"),
        ((power, np.ones((2, 3)), np.ones(1)), {"stop": NonlinearStop(norm="2")}, ValueError, "`stop.norm`"),
        ((power, np.ones((2, 3))), {}, TypeError, "`residual` must take"),
        ((3, np.ones((2, 3))), {}, TypeError, "`residual` must be callable"),
        ((power, np.asarray([["a"]]), np.ones(1)), {}, TypeError, "must hold numbers"),
    ],
    ids=["x0", "parameters", "structure", "size", "periodic", "norm", "arguments", "callable", "numbers"],
)
def test_mistakes(arguments, settings, error, message):
    with pytest.raises(error, match=message):
        newton_batch(*arguments, **settings)


LATENCY = """
import time
import numba, numpy as np, scipy.linalg
from implicitsolve import BlockBandedMatrix, kernels
import implicitsolve.backends.numba
blocks = np.zeros((1, 9, 3, 2, 2)) + 4 * np.eye(2)
@numba.njit(cache=False)
def nothing(x):
    return x
nothing(1)  # what Numba itself does at its first call
begin = time.process_time()
kernels.block_lu.load("numba")
factors = kernels.block_lu.implementations["numba"][0](blocks, 1, 1)
factors.solve(np.ones((1, 9, 2, 1)))
print(time.process_time() - begin)
"""


def test_first_call_with_a_warm_cache_is_quick():
    times = [
        float(subprocess.run([sys.executable, "-c", LATENCY], capture_output=True, text=True, check=True).stdout)
        for _ in range(2)
    ]
    assert times[1] < 1.0  # compiled it takes several seconds


@pytest.mark.parametrize("form", ["writes", "returns"])
def test_complex_division_by_zero_is_not_finite_and_prints_nothing(form, capfd):
    def writes(x, out):
        for i in range(2):
            out[i] = 1 / (x[i] - 1) + x[i]

    def returns(x):
        return 1 / (x - 1) + x

    x0 = np.array([[1.0, 1.0], [0.2 + 0.7j, 0.2 + 0.7j]])
    result = newton_batch({"writes": writes, "returns": returns}[form], x0)
    np.testing.assert_array_equal(result.status, [Status.NONFINITE, Status.CONVERGED])
    assert np.isnan(result.fun[0]).all()
    assert "Exception" not in capfd.readouterr().err


def test_a_residual_may_work_in_place():
    def F(x):
        x *= 2.0
        x -= 3.0
        return x

    result = newton_batch(F, np.array([[1.0, 5.0], [0.5, 2.0]]))
    assert result.success.all()
    np.testing.assert_allclose(result.x, 1.5, rtol=1e-12)
