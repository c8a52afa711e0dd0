"""Several systems at once: the number type, elimination, and what lanes may not change in the Newton method."""

import math

import numpy as np
import pytest

pytest.importorskip("numba")

import numba

from implicitsolve import BlockBanded, NonlinearStop, Status
from implicitsolve.backends.numba import _newton, newton_batch
from implicitsolve.backends.numba._jit import fma
from implicitsolve.backends.numba._lanes import LANES, aligned_zeros, bits, lanes, mask_of, select
from implicitsolve.backends.numba._newton_steps import divide, factor
from implicitsolve.backends.numba._residual import Residual
from implicitsolve.backends.numba._views import view

CELLS = BlockBanded(1, 1, 2)


def in_lanes(values, dtype="float64"):
    """Values (..., LANES) in memory of that kind."""
    out = aligned_zeros(np.shape(values)[:-1], dtype)
    out[...] = values
    return out


@numba.njit(error_model="numpy")
def expressions(x):
    u, v, out = lanes(view(x))[0], lanes(view(x))[1], lanes(view(x))
    out[2] = 2 * u - v / 3 + (-u) * +v
    out[3] = abs(u - v) + np.abs(v - u)
    out[4] = u**3 + v**2.5 + u ** (-1)
    out[5] = np.exp(u) + math.tanh(v) + np.sqrt(u) + math.log(v)
    out[6] = select((u < v) & ~(u <= 1) | (u > 2.5), u, v)
    out[7] = fma(u, v, u)
    out[8] = 1
    u -= v
    u *= 2.0
    u /= v
    out[9] = u
    return bits(lanes(view(x))[0] >= lanes(view(x))[1])


@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-14), ("float32", 1e-6)])
def test_arithmetic_is_that_of_arrays(dtype, rtol, rng):
    x = in_lanes(rng.uniform(0.5, 3.0, (10, LANES)), dtype)
    u, v = x[:2].copy()
    flags = expressions(x)
    expected = [
        2 * u - v / 3 - u * v,
        2 * abs(u - v),
        u**3 + v**2.5 + 1 / u,
        np.exp(u) + np.tanh(v) + np.sqrt(u) + np.log(v),
        np.where((u < v) & ~(u <= 1) | (u > 2.5), u, v),
        u * v + u,
        np.ones(LANES),
        (u - v) * 2 / v,
    ]
    np.testing.assert_allclose(x[2:], expected, rtol=rtol, atol=rtol)
    assert flags == sum(1 << i for i in np.flatnonzero(u >= v))


def test_masks_and_integers_are_inverse():
    @numba.njit
    def there_and_back(flags):
        return bits(mask_of(flags)), bits(~mask_of(flags))

    assert there_and_back(np.int64(5)) == (5, 2**LANES - 6)


def test_comparisons_with_nan_are_false():
    @numba.njit
    def compare(x):
        v = lanes(view(x))[0]
        return bits(v <= 1.0), bits(v > 1.0), bits(v == v)

    x = in_lanes([[np.nan, *[1.0] * (LANES - 1)]])
    assert compare(x) == (2**LANES - 2, 0, 2**LANES - 2)


@numba.njit(error_model="numpy")
def solve_in_lanes(blocks, pivots, reach, lower, x):
    factors = lanes(view(blocks)), lanes(view(pivots)), view(reach), lower
    factor(*factors)
    divide(factors, lanes(view(x)))


def solve(blocks, lower, x):
    T, m, k = blocks.shape[:3]
    reach = np.minimum(np.arange(T) + m - 1 - lower, T - 1)
    solve_in_lanes(blocks, aligned_zeros((T, k), "float64"), reach, lower, x)


def dense(blocks, lower):
    T, m, k = blocks.shape[:3]
    A = np.zeros((T, k, T, k))
    for t in range(T):
        for j in range(max(0, lower - t), min(m, T + lower - t)):
            A[t, :, t + j - lower] = blocks[t, j]
    return A.reshape(T * k, T * k)


@pytest.mark.parametrize(
    ("T", "k", "lower", "upper"), [(6, 2, 1, 1), (4, 3, 1, 1), (7, 1, 2, 1), (5, 2, 0, 2), (1, 6, 0, 0)]
)
def test_elimination_interchanges_rows_in_each_lane(T, k, lower, upper, rng):
    blocks = in_lanes(0.1 * rng.standard_normal((T, lower + upper + 1, k, k, LANES)))
    blocks[:, lower] += 2 * np.eye(k)[..., None]
    blocks[:, lower, :, :, ::3] = blocks[:, lower, ::-1, :, ::3]  # diagonals of some lanes are small or zero
    x = in_lanes(rng.standard_normal((T * k, LANES)))
    expected = [np.linalg.solve(dense(blocks[..., i], lower), x[:, i]) for i in range(LANES)]
    solve(blocks, lower, x)
    np.testing.assert_allclose(x.T, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("k", [2, 3])
def test_a_singular_lane_harms_no_other(k, rng):
    blocks = in_lanes(rng.standard_normal((4, 3, k, k, LANES)))
    x = in_lanes(rng.standard_normal((4 * k, LANES)))
    alone, right = blocks.copy(), x.copy()
    solve(alone, 1, right)
    blocks[2, :, :, :, 5] = 0.0
    solve(blocks, 1, x)
    assert not np.isfinite(x[:, 5]).any()
    np.testing.assert_array_equal(np.delete(x, 5, axis=1), np.delete(right, 5, axis=1))


@numba.njit
def reaction(x, p, out):
    """Two coupled fields on a line."""
    last = x.shape[0] - 1
    for t in range(last + 1):
        u, v = x[t]
        left = x[t - 1, 0] if t > 0 else p[0]
        right = x[t + 1, 1] if t < last else 1.0
        out[t, 0] = p[0] + u * u * v - (p[1] + 1) * u + left - u
        out[t, 1] = p[1] * u - u * u * v + right - v


@numba.njit
def reaction_with_branch(x, p, out):
    reaction(x, p, out)
    if x[0, 0] > 1e300:
        out[0, 0] = 0.0


FORMS = [reaction, reaction_with_branch]


def reactions(B, rng):
    p = np.stack([rng.uniform(0.8, 1.2, B), rng.uniform(1.0, 1.6, B)], axis=1)
    steady = np.stack([p[:, 0], p[:, 1] / p[:, 0]], axis=1)[:, None, :]
    return steady * (1 + 0.2 * rng.standard_normal((B, 8, 2))), p


def test_a_residual_that_branches_is_evaluated_for_each_system():
    def is_wide(residual, ndim, has_parameters):
        return Residual(residual, np.dtype(float), ndim, has_parameters).machine_code().is_wide

    assert is_wide(reaction, 2, True)
    assert not is_wide(reaction_with_branch, 2, True)
    assert not is_wide(lambda x: np.cumsum(x), 1, False)


@pytest.mark.parametrize("residual", FORMS, ids=["lanes", "branch"])
def test_neighbours_change_nothing(residual, rng):
    x0, p = reactions(3 * LANES + 2, rng)
    p[4], x0[7], x0[11], x0[13] = np.nan, 1e200, -50.0, 0.0
    x0[15:20] *= rng.uniform(-3.0, 3.0, (5, 8, 2))  # steps must be shortened
    together = newton_batch(residual, x0, p, structure=CELLS)
    assert together.status[4] == Status.NONFINITE
    assert (together.status[20:] == Status.CONVERGED).all()
    for b in range(len(x0)):
        alone = newton_batch(residual, x0[b : b + 1], p[b : b + 1], structure=CELLS)
        for name in ("x", "fun", "status", "residual_norm", "initial_norm", "iterations"):
            np.testing.assert_array_equal(getattr(alone, name)[0], getattr(together, name)[b], err_msg=name)


def test_both_forms_agree_bit_for_bit(rng):
    x0, p = reactions(50, rng)
    wide, narrow = (newton_batch(residual, x0, p, structure=CELLS) for residual in FORMS)
    assert wide.success.all()
    np.testing.assert_array_equal(wide.x, narrow.x)
    assert wide.counts == narrow.counts


@pytest.mark.parametrize("start", [0.0, 0.2])
def test_lanes_do_as_block_newton_on_arrays(start, rng, monkeypatch):
    x0, p = reactions(100, rng)
    x0 = start * x0
    lanes_of = newton_batch(reaction, x0, p, structure=CELLS, stop=NonlinearStop(rtol=1e-11))
    monkeypatch.setattr(_newton, "CACHE", 0)
    on_arrays = newton_batch(reaction, x0, p, structure=CELLS, stop=NonlinearStop(rtol=1e-11))
    assert lanes_of.success.all()
    assert on_arrays.success.all()
    residuals = np.empty_like(x0)
    for b in range(len(x0)):
        reaction.py_func(lanes_of.x[b], p[b], residuals[b])
    np.testing.assert_array_equal(residuals, lanes_of.fun)
    assert (np.abs(residuals).max(axis=(1, 2)) <= 1e-11 * lanes_of.initial_norm).all()
    assert lanes_of.counts.residuals <= 1.2 * on_arrays.counts.residuals


def test_far_starts(rng, monkeypatch):
    x0, p = reactions(60, rng)
    x0 *= rng.uniform(-2.0, 4.0, x0.shape)
    result = newton_batch(reaction, x0, p, structure=CELLS)
    monkeypatch.setattr(_newton, "CACHE", 0)
    expected = newton_batch(reaction, x0, p, structure=CELLS)
    converged = result.status == Status.CONVERGED
    assert converged.sum() >= (expected.status == Status.CONVERGED).sum() - 3
    assert result.iterations.max() > 10
    F = np.empty_like(x0)
    for b in range(len(x0)):
        reaction.py_func(result.x[b], p[b], F[b])
    np.testing.assert_array_equal(F, result.fun)
    assert (np.abs(F).max(axis=(1, 2)) <= np.finfo(float).eps ** 0.5 * result.initial_norm)[converged].all()


def test_single_precision(rng):
    x0, p = reactions(20, rng)
    result = newton_batch(reaction, x0.astype("float32"), p, structure=CELLS)
    assert result.success.all()
    assert result.x.dtype == "float32"
    np.testing.assert_allclose(result.x, newton_batch(reaction, x0, p, structure=CELLS).x, rtol=1e-2)


def test_a_step_that_must_be_shortened(monkeypatch):
    def arctan(x, p, out):  # full Newton steps diverge from |x| > 1.39
        u = x[0] - p[0]
        out[0] = 2 * u / (1 + u * u)

    x0, p = np.linspace(-0.4, 30.0, 40)[:, None], np.zeros((40, 1))
    result = newton_batch(arctan, x0, p)
    monkeypatch.setattr(_newton, "CACHE", 0)
    expected = newton_batch(arctan, x0, p)
    np.testing.assert_array_equal(result.success, expected.success)
    assert result.success.any()
    np.testing.assert_allclose(result.x[result.success], expected.x[result.success], atol=1e-6)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_in_one_system_was_printed():
    def positive(x, p, out):
        if p[0] < 0:
            raise ValueError("negative")
        out[0] = x[0] * x[0] - p[0]

    result = newton_batch(positive, np.ones((3, 1)), np.asarray([[4.0], [-4.0], [9.0]]))
    assert result.status.tolist() == [Status.CONVERGED, Status.NONFINITE, Status.CONVERGED]
    np.testing.assert_allclose(result.x[::2, 0], [2.0, 3.0], rtol=1e-7)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_mistake_of_the_residual_was_printed_for_each_system():
    def of_two(x):
        if x.shape[0] != 2:
            raise ValueError("there are two unknowns")
        return x * x - 1.0

    with pytest.raises(ValueError, match="there are two unknowns"):
        newton_batch(of_two, np.ones((2, 3)))


def test_a_failed_system_ended_at_a_point_worse_than_x0(rng):
    def coupled(x, p, out):
        for i in range(x.shape[0]):
            out[i] = x[i] * x[i] - p[0] + p[1] * x[i - 1]

    x0, p = rng.standard_normal((60, 3)), rng.standard_normal((60, 2))
    for limit in (1, 2, 50):
        result = newton_batch(coupled, x0, p, stop=NonlinearStop(max_iterations=limit, rtol=1e-12))
        assert not result.success.all()
        assert (result.residual_norm <= result.initial_norm).all()
        assert (result.iterations <= limit).all()


def test_limits_hold_in_lanes(rng):
    x0, p = reactions(30, rng)
    needed = newton_batch(reaction, x0, p, structure=CELLS).iterations
    limit = int(np.median(needed))
    result = newton_batch(reaction, x0, p, structure=CELLS, stop=NonlinearStop(max_iterations=limit))
    assert (result.iterations <= limit).all()
    assert (result.status[needed <= limit] == Status.CONVERGED).all()
    assert set(result.status[needed > limit]) <= {Status.CONVERGED, Status.ITERATION_LIMIT}
    assert Status.ITERATION_LIMIT in result.status
    none = newton_batch(reaction, x0, p, structure=CELLS, stop=NonlinearStop(max_iterations=0))
    assert (none.status == Status.ITERATION_LIMIT).all()
    np.testing.assert_array_equal(none.x, x0)


def test_a_norm_is_not_zero_where_one_residual_is_nan():
    def zero_and_nan(x, p, out):
        out[0] = x[0] * p[0]
        out[1] = (x[1] - 2.0) / p[0] * p[0]

    result = newton_batch(zero_and_nan, np.ones((2, 2)), np.asarray([[0.0], [1.0]]))
    assert result.status[0] == Status.NONFINITE
