"""Success means solved: x is accurate where a system has converged, as far as its result says."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import implicitsolve as ims
from benchmarks.accuracy import hard
from benchmarks.accuracy.solvers import solver
from benchmarks.accuracy.systems import systems
from benchmarks.benchmarks.problems.scalable import tridiagonal
from implicitsolve import NonlinearStop, Problem, Status, root
from tests.helpers.equilibria import SYSTEMS, equilibrium

pytestmark = pytest.mark.rounding


@pytest.mark.parametrize(
    ("F", "x0", "x"),
    [
        (lambda x: x**3 + x - 5, [1e5], 1.5159802276928),
        (lambda x: np.exp(x) - 1, [20.0], 0.0),
        (lambda x: np.arctan(x - 3), [3.5], 3.0),
        (lambda x: x**5 - 2, [1e4], 2**0.2),
    ],
    ids=["cubic", "exponential", "arctangent", "fifth power"],
)
def test_a_far_start_is_not_solved_by_a_fall_of_the_residual(F, x0, x):
    result = root(F, np.asarray(x0))
    assert result.success
    assert abs(result.x[0] - x) <= 1e-7
    assert result.error <= 1.5e-8


AT_INFINITY = {
    "exponential": lambda x: np.exp(-x),
    "hill": lambda x: 1 / (1 + x**2),
    "arctangent": lambda x: np.arctan(x) - np.pi / 2,
    "hyperbola": lambda x: np.sqrt(1 + x**2) - x,
}


@pytest.mark.parametrize("name", AT_INFINITY)
@pytest.mark.parametrize("method", ["auto", "newton-krylov"])
def test_a_root_at_infinity_is_no_success(name, method):
    assert not root(AT_INFINITY[name], np.array([1.0]), method=method).success
    both = root(
        lambda x: np.stack([AT_INFINITY[name](x[0]), x[1] ** 3 - 2 + 0.1 * x[0] * 0]), np.ones(2), method=method
    )
    assert not both.success


FLAT = {  # near 0, and nothing but rounding far away
    "secant": lambda x: 2 * np.exp(-abs(x)) / (1 + np.exp(-2 * abs(x))),
    "bell": lambda x: np.exp(-(x**2)),
    "step": lambda x: 1 - np.tanh(x),
}


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("method", ["auto", "block-newton", "newton-krylov"])
@pytest.mark.parametrize("n", [1, 3])
def test_one_step_from_a_flat_start_was_taken_for_a_root(name, method, n):
    """The J of x0 predicts no further step where it has led to, but does not hold there."""
    rng = np.random.default_rng(7)
    B = np.linalg.qr(rng.standard_normal((n, n)))[0] + np.eye(n)

    def F(x):
        return np.concatenate([FLAT[name](x[..., :1] - 0.02), x[..., 1:] - 2], axis=-1) @ B

    starts = np.zeros(n), np.full(n, 0.001), 0.1 * rng.standard_normal(n)
    # From the last one a bell among other unknowns still is, on some processors, where it has fallen to 1e-17.
    for x0 in starts[: 2 if name == "bell" and n > 1 else 3]:
        one, some = (Problem(F, structure=ims.BlockBanded(0, 0, n), batch_ndim=ndim) for ndim in (0, 1))
        assert not root(F if method == "newton-krylov" else one, x0, method=method).success
        assert not root(some, np.stack([x0, x0 + 0.01]), method=method).success.any()


def clipped(x):
    return np.linspace(1, 3, x.size) * x + np.exp(np.clip(x, -30, 30)) - 5


def brown(x):
    return np.append(x[:-1] + x.sum() - x.size - 1, x.prod() - 1)


KINKS = {  # ... of J by 10^7 on the way, where the last step led across it
    "one": (lambda x: 6e-3 * x + 1e5 * np.maximum(x, 0) + 0.012, [46.0]),
    "three": (lambda x: 6e-3 * x + 1e5 * np.maximum(x, 0) + 0.012, [46.0, 30.0, 20.0]),
    "coupled": (lambda x: 6e-3 * x + 1e5 * np.maximum(x, 0) + 0.012 + 1e-4 * np.roll(x, 1), [46.0, 30.0, 20.0]),
    "clipped": (clipped, np.full(28, 150.0)),  # the first step goes to 10^12
    "product": (brown, np.full(16, 5.0)),  # J changes, too
    "product from nearer": (brown, np.full(16, 1.5)),
    "product from below": (brown, np.full(16, -5.0)),
}


@pytest.mark.parametrize("name", KINKS)
@pytest.mark.parametrize("method", ["auto", "block-newton", "newton-krylov", "pseudo-transient"])
def test_a_step_across_a_kink_was_taken_for_the_last_one(name, method):
    F, x0 = KINKS[name]
    n = len(x0)
    problem = Problem(F, structure=ims.BlockBanded(0, 0, n)) if method == "block-newton" else F
    result = root(problem, np.asarray(x0), method=method)
    assert result.success or method in ("newton-krylov", "pseudo-transient")
    if result.success:
        assert np.abs(F(result.x)).max() <= 1e-6
        assert result.error <= 1.5e-8


@pytest.mark.parametrize("method", ["auto", "newton-krylov", "anderson", "pseudo-transient"])
def test_all_equations_but_one_were_ignored(method):
    """The last one is a product of 40 numbers, 10^27 at first, so that no Krylov step reduced the others."""
    result = root(lambda x: np.append(x[:-1] + x.sum() - 41, x.prod() - 1), np.full(40, 5.0), method=method)
    assert not result.success or np.abs(result.fun).max() <= 1e-6


def test_one_inexact_step_of_a_retry_was_a_success():
    """Where F was 1, by a step that had led there from 626."""
    result = root(tridiagonal, np.full(36, 1200.0))
    assert not result.success or np.abs(result.fun).max() <= 1e-3


@pytest.mark.parametrize("scale", [1, 2, 4])
def test_equations_that_fall_little_in_single_precision_were_called_ignored(scale):
    params = ims.adapters.gru_parameters(8, 8, rng=np.random.default_rng(1))
    params = {name: (v * (scale if name[0] == "U" else 1)).astype(np.float32) for name, v in params.items()}
    inputs = np.random.default_rng(0).standard_normal((16, 48, 8)).astype(np.float32)
    for method in ("auto", "anderson"):
        result = root(ims.adapters.implicit_gru(params, inputs), method=method)
        assert result.success.all()
        assert not result.retries


@pytest.mark.parametrize("part", [1e-12, 1e-9, 1e-7, 1e-5])
def test_equations_need_not_fall_far_from_a_near_start(part):
    rng = np.random.default_rng(2)
    x = rng.uniform(1, 2, 60)
    b = 3 * x - np.roll(x, 1) + x**3
    x0 = x * (1 + part * rng.uniform(-1, 1, 60))
    assert root(lambda x: 3 * x - np.roll(x, 1) + x**3 - b, x0, method="newton-krylov").success


def test_a_unit_of_an_unknown_far_beyond_the_others_hid_its_error():
    """Columns of J from exp(300) to exp(1): an unknown of size 2 was accurate to 10^88."""
    A = np.random.default_rng(1).standard_normal((4, 4)) + 2 * np.eye(4)
    x0 = np.array([68.0, 300.0, 2.0, -5.0])
    problem = Problem(
        lambda x: A @ np.exp(np.clip(x, -300, 300)) - A @ np.exp([33.0, 210.0, 1.0, -7.0]),
        structure=ims.BlockBanded(0, 0, 4),
    )
    result = root(problem, x0, method="block-newton")
    assert not result.success or np.abs(result.x - [33.0, 210.0, 1.0, -7.0]).max() <= 1e-3


def test_an_attempt_that_began_farther_away_at_F_0_was_a_success():
    assert not root(lambda x: np.exp(-((x + 0.02) ** 2)), np.array([0.0])).success


def test_a_root_at_infinity_has_a_status_of_its_own():
    result = root(lambda x: np.exp(-x), np.array([1.0]))
    assert result.status is Status.AT_INFINITY
    assert "infinity" in result.message


def test_random_systems_are_solved_or_fail_and_know_their_error():
    false, solved, ratios = 0, 0, []
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for system in systems(400, seed=3):
            result = root(system.residual, system.x0)
            error = system.error(result.x)
            false += result.success and not error <= 1e-4
            solved += bool(result.success)
            if result.success and result.error is not None:
                ratios.append(result.error / max(error, 2.3e-16))
    ratios = np.asarray(ratios)
    assert false == 0
    assert solved >= 340  # of 350 that have a root
    assert np.mean((ratios < 30) & (ratios > 1 / 30)) >= 0.95
    assert np.mean(ratios < 0.01) <= 0.005


@pytest.mark.parametrize("part", [0.0, 1e-15, 1e-12, 1e-9, 1e-6, 1e-3])
def test_a_start_at_the_root_succeeds_without_a_further_fall_of_the_residual(part):
    rng = np.random.default_rng(1)
    A = rng.standard_normal((5, 5)) + 4 * np.eye(5)
    x = rng.uniform(1, 2, 5)
    b = A @ x + x**3
    result = root(lambda x: A @ x + x**3 - b, x * (1 + part * rng.uniform(-1, 1, 5)))
    assert result.success
    assert np.abs(result.x - x).max() <= 3e-8
    assert result.counts.residuals <= 20


@pytest.mark.parametrize("size", [1e-8, 1e-11, 1e-14])
def test_an_equation_far_smaller_than_the_others_is_not_ignored(size):
    def F(x):
        return np.stack([x[0] + x[1] - 3, size * (x[0] * x[1] ** 3 - 8), x[2] ** 3 + x[2] - x[0] - 9])

    result = root(F, np.array([0.5, 3.0, 1.0]))
    if result.success:
        assert abs(result.x[0] * result.x[1] ** 3 - 8) <= 1e-5
    assert result.success


@pytest.mark.parametrize("exponents", [(40, 0), (0, -60), (-30, 17)])
def test_powers_of_two_in_the_units_change_no_decision(exponents):
    f, u = np.ldexp(1.0, exponents)

    def F(x):
        return f * np.stack([(x[0] / u) ** 3 + x[1] / u - 5, np.exp(x[1] / u) - 2 + 0.1 * x[0] / u])

    plain = root(lambda x: F(x * u) / f, np.array([3.0, 1.0]))
    other = root(F, u * np.array([3.0, 1.0]))
    np.testing.assert_array_equal(other.x / u, plain.x)
    assert other.error == plain.error
    assert other.counts == plain.counts


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(0, 1000))
def test_each_system_of_a_batch_has_its_own_error_and_status(systems, seed):
    rng = np.random.default_rng(seed)
    r, x0 = rng.uniform(1, 2, (systems, 2)), rng.uniform(0.5, 40, (systems, 2))

    def problem(rows):
        target = r[rows]
        return Problem(lambda x: x**3 + x[..., ::-1] - target**3 - target[..., ::-1], batch_ndim=1)

    whole = root(problem(slice(None)), x0)
    assert whole.success.all()
    np.testing.assert_allclose(whole.x, r, rtol=4e-7)
    for i in range(systems):
        alone = root(problem(slice(i, i + 1)), x0[i : i + 1])
        assert alone.success.all()
        assert alone.error[0] <= 1.5e-8


def test_an_inaccurate_success_by_the_tolerance_of_the_caller_warns():
    stop = NonlinearStop(rtol=1.5e-8)
    with pytest.warns(ims.AccuracyWarning, match="estimated error of x is above"):
        result = root(lambda x: np.exp(x) - 1, np.array([20.0]), stop=stop)
    assert result.success
    assert result.error > 1e-3


def test_a_tolerance_of_x_may_be_given_beside_one_of_the_residual():
    result = root(lambda x: x**3 - 2, np.array([3.0]), stop=NonlinearStop(xtol=1e-3))
    strict = root(lambda x: x**3 - 2, np.array([3.0]), stop=NonlinearStop(xtol=1e-3, atol=1e-12))
    assert abs(result.fun[0]) > 1e-12
    assert abs(strict.fun[0]) <= 1e-12
    assert str(NonlinearStop(xtol=1e-3, atol=1e-12)) == "error(x) <= 0.001 and max|F(x)| <= 1e-12"
    with pytest.raises(ValueError, match="xtol"):
        NonlinearStop(xtol=-1.0)


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_other_precisions_are_judged_by_their_own_rounding(dtype):
    x0 = np.asarray([1.0, 2.0], dtype=dtype) * (1 if dtype is np.float32 else 1 + 0.5j)
    result = root(lambda x: x**2 - np.asarray([2.0, 5.0], dtype=dtype), x0)
    assert result.success
    assert result.error <= np.finfo(dtype).eps ** 0.5
    np.testing.assert_allclose(result.x**2, [2.0, 5.0], rtol=1e-3 if dtype is np.float32 else 1e-7)


def test_a_double_root_is_accepted_with_its_error_or_fails():
    result = root(lambda x: (x - 1) ** 2, np.array([3.0]))
    if result.success:
        assert abs(result.x[0] - 1) <= 100 * result.error + 1e-15


@pytest.mark.parametrize(
    ("seed", "place"),
    [
        (1, 244),  # F is out of the range of a singular J, far away
        (3, 720),
        (2, 263),  # the last step was shorter than Newton's, and reduced F more than predicted
        (2, 753),  # an unknown no longer enters F, to rounding
        (2, 781),
        (1, 352),  # ... in single precision
        (2, 436),
        (1, 195),  # a sparse J whose unknowns have different units
    ],
)
def test_what_was_a_false_success_of_harder_kinds_is_none(seed, place):
    system = hard.KINDS[place % len(hard.KINDS)](np.random.default_rng([seed, place]))
    with np.errstate(all="ignore"):
        result = root(system.residual, system.x0)
    assert not result.success or system.error(result.x) <= 1e-4


@pytest.mark.parametrize("name", ["phosphate", "titration"])
def test_an_amount_of_a_trace_was_judged_by_its_start(name):
    parts, start = SYSTEMS[name]
    F, G = (equilibrium(*parts, by_logarithms=kind) for kind in (False, True))
    with np.errstate(all="ignore"):
        result = root(F, np.full(np.shape(parts[0])[1], start), bounds=(0, np.inf))
        assert not result.success or np.abs(G(result.x)).max() <= 1e-4


@pytest.mark.parametrize("method", ["anderson", "broyden", "newton-krylov", "block-newton"])
def test_each_method_knows_its_error(method):
    """Gains of steps that enlarge F, small unknowns of the same unit, and the first step's size misled it."""
    found = [system for i, system in enumerate(systems(64, seed=2026)) if i % 8 in (1, 3, 5, 7)]
    with np.errstate(all="ignore"):
        answers = solver(method)(found)
    errors = [(error, system.error(x)) for system, (x, success, error, _) in zip(found, answers) if success]
    ratios = np.array([error / max(true, 2.3e-16) for error, true in errors])
    assert ratios.size >= 8
    assert np.mean((ratios < 30) & (ratios > 1 / 30)) >= 0.85
    assert ratios.min() >= 1e-2


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("kind", ["an unknown without effect", "the same equations", "an empty equation"])
def test_singular_systems_with_solutions_are_solved(kind, n, batch):
    """F = 0 exactly, at an x that a singular J does not determine: this was taken for a root at infinity."""
    A = np.diag(np.append(np.ones(n - 1), 0.0))
    A = {"the same equations": np.ones((n, n)), "an empty equation": A + A @ np.eye(n, k=1)}.get(kind, A)
    b = A @ np.ones(n)
    for x0 in (np.zeros(n), np.full(n, 5.0), np.linspace(-1, 1, n)):
        for bend in (0.0, 0.1):
            problem = Problem(lambda x, bend=bend: (x + bend * (x - 1) ** 3) @ A.T - b, batch_ndim=int(batch))
            result = root(problem, np.stack([x0, x0 + 1]) if batch else x0)
            F = np.abs(problem.residual(result.x)).max(axis=-1)
            is_rounding = (F > 0) & (F <= 1e-12) & (np.asarray(result.status) != Status.AT_INFINITY)
            assert np.all(result.success | is_rounding), (kind, x0, bend)


@pytest.mark.parametrize("factor", [10, 100])
def test_complex_numbers_were_solved_by_one_equation_alone(factor):
    """The larger of two equations, by products: the smaller one determines the unknown from afar."""

    def pairs(x):
        a, b = x[::2], x[1::2]
        return np.stack([1e4 * a * b - 1, np.exp(-a) + np.exp(-b) - 1.0001], axis=1).ravel()

    start = factor * np.asarray([0.3j, 1 + 0.3j, -0.2j, 1 - 0.2j])
    with np.errstate(all="ignore"):
        result = root(pairs, start)
        roots = root(pairs, np.asarray([1e-5, 9.1, 1e-5, 9.1])).x
    assert not result.success or np.abs(np.exp(-result.x[1::2]) - np.exp(-roots[1::2])).max() <= 1e-8


@pytest.mark.parametrize("size", [5, 10, 40])
def test_a_large_x_along_the_null_vector_was_taken_for_a_root(size):
    """A x = b with rank n - 1 has no root: F is rounding error of an x of 1e15, and as large as F(x0)."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        A, b = rng.integers(-3, 4, (size, size)).astype(float), rng.standard_normal(size)
        A[-1] = A[:-1].sum(axis=0)
        problem = Problem(lambda x: x @ A.T - b, batch_ndim=1)  # noqa: B023
        for method in ("auto", "newton-krylov"):
            result = root(lambda x: A @ x - b, np.zeros(size), method=method)  # noqa: B023
            assert not result.success, (seed, method, str(result))
        assert not np.any(root(problem, np.zeros((2, size))).success), seed


def test_no_null_vector_in_lanes():
    def residual(x, p, out):
        out[0] = x[0] + x[1] - 1.0
        out[1] = 2.0 * x[0] + 2.0 * x[1] - p[0]

    newton_batch = pytest.importorskip("implicitsolve.backends.numba").newton_batch
    result = newton_batch(residual, np.zeros((3, 2)), np.asarray([[3.0], [5.0], [7.0]]))
    assert not np.any(result.success), str(result)


@pytest.mark.parametrize("size", [1, 2])
def test_a_jump_at_x0_was_taken_for_rounding_error(size):
    """F between neighbours of x0 differs by as much as F itself, and a difference across the jump is a large J."""
    for F in (lambda x: np.where(x > 1, 1.0, -1.0), lambda x: np.sign(x - 1) + 0.5, lambda x: x - 2 * (x <= 1)):
        assert not root(F, np.ones(size)).success
