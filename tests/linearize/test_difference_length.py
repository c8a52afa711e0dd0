"""Jacobian products by differences: accuracy, units, precision, complex numbers, and the search for the step."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve import NonlinearStop, Problem, root
from implicitsolve.linearize._difference_product import DifferenceLength
from implicitsolve.linearize._evaluator import Evaluator

N = 12
RNG = np.random.default_rng(8)
A = np.eye(N) + 0.5 * RNG.standard_normal((N, N)) / np.sqrt(N)
B = RNG.standard_normal(N)
X = RNG.standard_normal(N)


def residual(x):
    return A.astype(x.real.dtype) @ x + 0.3 * np.sin(x) - B.astype(x.real.dtype)


def exact(x, v):
    return A @ v + 0.3 * np.cos(x) * v


def product(F, x, v, rdiff=None, products=1):
    """J v by differences, the number of residuals it took, and the step."""
    x = np.asarray(x)[None, :]
    points = []

    def seen(x):
        points.append(x.copy())
        return np.stack([F(row) for row in x])

    evaluator = Evaluator(Problem(seen, batch_ndim=1), x, rdiff)
    Fx = evaluator.residual(x)
    evaluator.length.follow(evaluator.rows, np.linalg.norm(x, axis=1).astype(float))
    J = evaluator.jacobian(x, Fx)
    for _ in range(products):
        out = J.matvec(np.asarray(v)[None, :])
    return out[0], len(points) - 1, points[-1][0] - x[0]


def error(computed, expected):
    return np.linalg.norm(computed - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("dtype", "limit"), [("float32", 2e-3), ("float64", 1e-7), ("complex64", 2e-3), ("complex128", 1e-7)]
)
def test_accuracy_in_each_precision(rng, dtype, limit):
    x, v = X.astype(dtype), rng.standard_normal(N).astype(dtype)
    if dtype.startswith("complex"):
        x, v = x + 0.5j * x[::-1], v - 1j * v[::-1]
    Jv, used, _ = product(residual, x, v)
    assert Jv.dtype == np.dtype(dtype)
    assert used == 1
    assert error(Jv, exact(x.astype(complex), v)) <= limit


def test_complex_directions_are_complex_linear(rng):
    """J (i v) = i J v for a holomorphic residual."""
    x, v = X + 0.3j, rng.standard_normal(N) + 0j
    np.testing.assert_allclose(product(residual, x, 1j * v)[0], 1j * product(residual, x, v)[0], atol=1e-6)


@pytest.mark.parametrize("scale", [1e-150, 1e-9, 1e9, 1e150])
def test_units_of_x(scale):
    Jv, used, _ = product(lambda y: residual(y / scale), X * scale, B)
    assert used == 1
    assert error(Jv * scale, exact(X, B)) < 1e-7


@pytest.mark.parametrize("scale", [1e-200, 1e-9, 1e9, 1e200])
def test_units_of_F(scale):
    Jv, used, _ = product(lambda x: scale * residual(x), X, B)
    assert used == 1
    assert error(Jv / scale, exact(X, B)) < 1e-7


@pytest.mark.parametrize("power", [0, -4, -9, -20, -50, -100, -150, 4, 9, 20, 50, 100, 150])
def test_length_of_x_is_found_where_x_is_zero(power):
    """In units in which x is 10^power, with nothing but F to tell."""
    scale = 10.0**power

    def F(y):
        with np.errstate(over="ignore", invalid="ignore"):
            return residual(y / scale) + 0.1 * (y / scale) ** 3

    Jv, used, _ = product(F, np.zeros(N), B)
    assert used <= 24
    assert error(Jv * scale, exact(np.zeros(N), B)) < 1e-4
    _, twice, _ = product(F, np.zeros(N), B, products=3)
    assert twice == used + 2  # found once for all


def test_tiny_start_that_says_nothing_of_the_length():
    """x0 = 1e-30 where x lives at 1: a step of 1e-38 would change nothing."""
    Jv, used, _ = product(residual, np.full(N, 1e-30), B)
    assert used <= 24
    assert error(Jv, exact(np.zeros(N), B)) < 1e-4
    result = root(residual, np.full(N, 1e-30), method="newton-krylov")
    assert result.success
    assert result.counts.residuals <= root(residual, np.zeros(N), method="newton-krylov").counts.residuals + 15
    assert root(residual, np.full(N, 1e-30)).steps[-1].iteration < 25  # the trust region does not begin at 1e-28


def test_zero_residual_zero_direction_zero_x():
    assert np.array_equal(product(lambda x: 0 * x, X, B)[0], np.zeros(N))
    assert np.array_equal(product(residual, X, np.zeros(N))[0], np.zeros(N))
    Jv, used, _ = product(lambda x: A @ x, np.zeros(N), B)  # F(0) = 0: nothing to compare with
    assert used == 1
    assert error(Jv, A @ B) < 1e-7


def test_a_direction_of_zero_teaches_nothing():
    """A product with 0 first must not spoil the length for the next."""
    x = np.zeros((1, N))
    evaluator = Evaluator(Problem(lambda x: np.stack([residual(r) for r in x]), batch_ndim=1), x)
    evaluator.length.follow(evaluator.rows, np.zeros(1))
    J = evaluator.jacobian(x, evaluator.residual(x))
    J.matvec(np.zeros((1, N)))
    assert error(J.matvec(B[None, :])[0], exact(np.zeros(N), B)) < 1e-4


def test_direction_that_F_does_not_feel_ends():
    """A singular direction: bounded work, and a later product is still right."""
    matrix = np.diag([0.0, 1.0, 2.0])
    calls = itertools.count()

    def F(x):
        next(calls)
        with np.errstate(all="ignore"):
            return matrix @ x + np.array([1.0, 0.0, 0.0]) + 0.1 * np.sin(x) * [0, 1, 1]

    x = np.zeros((1, 3))
    evaluator = Evaluator(Problem(lambda x: np.stack([F(r) for r in x]), batch_ndim=1), x)
    evaluator.length.follow(evaluator.rows, np.zeros(1))
    J = evaluator.jacobian(x, evaluator.residual(x))
    assert not J.matvec(np.array([[1.0, 0.0, 0.0]])).any()
    assert next(calls) < 40
    Jv = J.matvec(np.array([[0.0, 1.0, 1.0]]))[0]
    assert error(Jv, np.array([0.0, 1.1, 2.1])) < 1e-2


@given(scales=st.lists(st.integers(-60, 60), min_size=2, max_size=5), zero=st.booleans())
def test_each_system_finds_its_own(scales, zero):
    scale = 10.0 ** np.asarray(scales, dtype=float)[:, None]
    x = np.zeros((len(scales), N)) if zero else X * scale

    def F(y):
        with np.errstate(all="ignore"):
            return np.stack([residual(row) for row in y / scale]) + 0.05 * (y / scale) ** 3

    evaluator = Evaluator(Problem(F, batch_ndim=1), x)
    evaluator.length.follow(evaluator.rows, np.linalg.norm(x, axis=1))
    J = evaluator.jacobian(x, evaluator.residual(x))
    Jv = J.matvec(np.broadcast_to(B, x.shape).copy())
    for row in range(len(scales)):
        inner = (x / scale)[row]
        expected = exact(inner, B) + 0.15 * inner**2 * B
        assert error(Jv[row] * scale[row], expected) < 1e-4


def test_library_arrays(xp, any_dtype):
    matrix, b = xp.asarray(A, dtype=any_dtype), xp.asarray(B, dtype=any_dtype)
    result = root(lambda x: xp.matmul(matrix, x) - b, xp.zeros(N, dtype=any_dtype))
    assert result.success
    assert result.counts.jvps == 0


def test_noise_needs_a_larger_rdiff():
    """With noise of 1e-6 the default step drowns; sqrt of the noise does not."""
    noise = np.random.default_rng(0)
    F = lambda x: residual(x) + 1e-6 * noise.standard_normal(N)  # noqa: E731
    drowned = product(F, X, B)[0]
    clear = product(F, X, B, rdiff=1e-3)[0]
    assert error(clear, exact(X, B)) < 1e-2 < error(drowned, exact(X, B))


@pytest.mark.parametrize("returned", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_residual_that_computes_in_float32_converges_as_far_as_float32_goes(returned, scale):
    """The difference step of float64, 1.5e-8, lay below the resolution of F: SINGULAR after 4 steps."""

    def coarse(x):
        return (scale * residual((x / scale).astype(np.float32))).astype(np.float32).astype(returned)

    for x0 in (scale * np.ones(N), np.zeros(N)):
        result = root(coarse, x0, method="newton-krylov", stop=NonlinearStop(atol=2e-6 * scale))
        assert result.success, result.summary()
        assert result.counts.residuals < 40
    batch = Problem(lambda x: np.stack([coarse(x[0]), scale * residual(x[1] / scale)]), batch_ndim=1)
    found = root(batch, scale * np.ones((2, N)), method="newton-krylov", stop=NonlinearStop(atol=2e-6 * scale))
    assert found.success.all()


EPS = 2.0**-52


def length_of(*norms):
    """The length of systems whose x have these norms."""
    length = DifferenceLength(len(norms))
    length.follow(np.arange(len(norms)), np.asarray(norms))
    return length


def test_the_length_follows_x_up_at_once_and_down_by_a_tenth_a_step():
    length = length_of(5.0, 0.0)
    np.testing.assert_array_equal(length.sigma, [5.0, 1.0])
    np.testing.assert_array_equal(length.is_guess, [False, True])
    length.follow(np.arange(2), np.asarray([1e-3, 7.0]))
    np.testing.assert_array_equal(length.sigma, [0.5, 7.0])
    assert not length.is_guess.any()
    length.follow(np.asarray([1]), np.asarray([0.0]))  # of the second system alone
    np.testing.assert_allclose(length.sigma, [0.5, 0.7])


@pytest.mark.parametrize(
    ("ratio", "sigma"),
    [
        (0.0, 1e4),  # not felt: ten thousand times as far, and ever farther
        (5 * EPS, 1e4),
        (20 * EPS, EPS**-0.5 / 20),  # felt, but little: as far as a change by the root of eps wants it
        (2 * EPS**0.25, EPS**0.25 / 2),
        (np.inf, 1e-4),
        (np.nan, 1e-4),
    ],
)
def test_a_guess_moves_to_where_f_changes_by_a_root_of_eps(ratio, sigma):
    length = length_of(0.0)
    assert not length.adjust(np.zeros(1, dtype=int), np.asarray([ratio]), np.ones(1), EPS, 0)
    assert length.sigma[0] == pytest.approx(sigma)
    assert not length.is_known[0]


def test_steps_that_tell_nothing_go_farther_and_farther_and_end_where_they_began():
    length, row = length_of(1.0), np.zeros(1, dtype=int)
    lengths = []
    for attempt in range(21):
        done = length.adjust(row, np.zeros(1), np.ones(1), EPS, attempt)
        lengths.append(length.sigma[0])
        if done:
            break
    np.testing.assert_allclose(lengths[:4], [1e4, 1e12, 1e28, 1e60])
    assert max(lengths) == 1e290
    assert lengths[-1] == 1.0
    assert length.is_known[0]


@pytest.mark.parametrize("method", ["homotopy", "newton-krylov"])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_step_that_nothing_felt_left_the_range_of_float32(method, dtype):
    def signs(x):
        assert np.isfinite(x).all()
        return np.where(x.real > 0, 1, -1).astype(x.dtype)

    result = root(Problem(signs, batch_ndim=1), np.array([[1, -2], [3, 4]], dtype), method=method)
    assert not result.success.any()
