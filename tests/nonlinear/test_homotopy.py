"""Homotopy: sure where Newton's method is not, and the same whatever the units, the batch and the library."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve import Homotopy, NonlinearStop, Problem, root
from implicitsolve.adapters import gru_parameters, implicit_gru
from implicitsolve.monitor import silent
from implicitsolve.nonlinear._solve import solve_root
from implicitsolve.nonlinear._state import Scheduler
from implicitsolve.status import Status
from tests.helpers.compare import host

TIGHT = NonlinearStop(atol=1e-11, rtol=0.0)


def recurrent(
    xp: Any, seed: int = 0, B: int = 3, n: int = 4, gain: float = 4.0, dtype: Any = None, **parts: Any
) -> Any:
    """x = tanh(W x + c) for each system, with exact products unless `parts` says otherwise."""
    rng = np.random.default_rng(seed)
    dtype = xp.float64 if dtype is None else dtype
    W = xp.asarray(gain * rng.standard_normal((n, n)) / n**0.5, dtype=dtype)
    c = xp.asarray(rng.standard_normal((B, n)), dtype=dtype)

    def of(c):
        def value(x):
            return xp.tanh(xp.matmul(x[:, None, :], W.T)[:, 0, :] + c)

        def linearize(x):
            h = value(x)
            return x - h, ims.LinearOperator(
                lambda v: v - (1 - h**2) * xp.matmul(v[:, None, :], W.T)[:, 0, :],
                in_shape=n,
                batch_shape=(x.shape[0],),
                dtype=dtype,
                take=lambda i: of(xp.take(c, xp.asarray(i), axis=0)).linearize(xp.take(x, xp.asarray(i), axis=0))[1],
            )

        take = lambda i: of(xp.take(c, xp.asarray(i), axis=0))  # noqa: E731
        return Problem(lambda x: x - value(x), linearize=linearize, take=take, fixed_point=True, batch_ndim=1)

    return of(c)


def check(problem: Problem, result: ims.NonlinearResult) -> None:
    F = problem.residual(result.x)
    np.testing.assert_allclose(host(result.fun), host(F), rtol=0, atol=1e-13)
    norms = np.abs(host(result.fun)).reshape(len(host(result.x)), -1).max(axis=1)
    np.testing.assert_array_equal(result.residual_norm, norms)


@pytest.mark.parametrize(("k", "T", "seed"), [(6, 8, 0), (7, 9, 2), (8, 10, 3)])
def test_implicit_grus_with_large_weights_from_anywhere(k, T, seed):
    """Weights uniform in +-3, from zero and from 48 random starts; all solutions lie in the box."""
    rng = np.random.default_rng(seed)
    params = gru_parameters(3, k, scale=3.0, rng=rng)
    inputs = np.repeat(rng.standard_normal((1, T, 3)), 49, axis=0)
    starts = np.concatenate([np.zeros((1, T, k)), rng.uniform(-1, 1, (48, T, k))])
    layer = implicit_gru(params, inputs)
    result = root(layer, starts, method=Homotopy())
    assert result.success[0]
    assert result.success[1:].sum() >= 44
    check(layer, result)
    assert (np.abs(result.x[result.success]) <= 1.0).all()


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.sampled_from([0.5, 2.0, 6.0]))
def test_bounded_maps_are_solved_from_inside(seed, n, gain):
    """G maps the cube into itself: a path leads to a solution from almost every point of it.

    For gain 6 a prediction may land on another path, which may be closed: such a system ends without a solution.
    """
    problem = recurrent(np, seed, 2, n, gain)
    x0 = np.random.default_rng(seed).uniform(-1, 1, (2, n))
    before = x0.copy()
    result = root(problem, x0, method=Homotopy())
    np.testing.assert_array_equal(x0, before)
    check(problem, result)
    assert result.success.all() or gain == 6.0


@pytest.mark.parametrize("capacity", [1, 3])
def test_systems_may_wait_for_a_place(capacity):
    problem = recurrent(np, 3, 4, 5, 5.0)
    x0 = np.random.default_rng(3).uniform(-1, 1, (4, 5))
    together = root(problem, x0, method=Homotopy())
    result = solve_root(problem, x0, Homotopy(), NonlinearStop(), silent, Scheduler(capacity=capacity))
    np.testing.assert_allclose(result.x, together.x, rtol=1e-12)
    for name in ("status", "iterations", "krylov_iterations", "initial_norm"):
        np.testing.assert_array_equal(getattr(result, name), getattr(together, name))


@pytest.mark.parametrize("parts", ["residual", "jvp", "jac"])
def test_plain_problems_by_whatever_they_offer(parts):
    slope = lambda x: 1 + 3 * np.sin(3 * x)  # noqa: E731
    options: dict[str, Any] = {
        "residual": {},
        "jvp": {"jvp": lambda x, v: slope(x) * v},
        "jac": {"jac": lambda x: np.diag(slope(x))},
    }[parts]
    problem = Problem(lambda x: x - np.cos(3 * x), fixed_point=True, **options)
    for x0 in (np.zeros(2), np.asarray([0.9, -0.9]), np.asarray([1e-3, 0.2])):
        result = root(problem, x0, method=Homotopy(), stop=TIGHT)
        assert result.success
        np.testing.assert_allclose(result.x, np.cos(3 * result.x), atol=1e-10)


def test_complex_numbers():
    """x = cos(x) / 2 + i / 4 has a solution off the real axis."""
    problem = Problem(lambda x: x - np.cos(x) / 2 - 0.25j, jvp=lambda x, v: v + np.sin(x) / 2 * v, fixed_point=True)
    result = root(problem, np.zeros(2, complex), method=Homotopy(), stop=TIGHT)
    assert result.success
    np.testing.assert_allclose(result.x, np.cos(result.x) / 2 + 0.25j, atol=1e-10)


def test_the_start_may_be_the_solution():
    problem = recurrent(np, 2, 3, 4, 3.0)
    x = root(problem, np.zeros((3, 4)), method=Homotopy(), stop=TIGHT).x
    again = root(problem, x, method=Homotopy(), stop=TIGHT)
    assert again.success.all()
    assert (again.iterations == 0).all()
    exact = root(Problem(lambda x: x, fixed_point=True), np.zeros(3), method=Homotopy())
    assert exact.success
    assert exact.iterations == 0


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_the_iteration_limit(limit):
    problem = recurrent(np, 3, 4, 6, 5.0)
    stop = NonlinearStop(atol=1e-14, rtol=0.0, max_iterations=limit)
    result = root(problem, np.zeros((4, 6)), method=Homotopy(), stop=stop)
    assert (result.status == Status.ITERATION_LIMIT).all()
    assert (result.iterations == limit).all()
    assert len(result.steps) == limit + 1
    check(problem, result)


MAPS: dict[str, Any] = {"square": lambda x: 1 + x**2, "exponential": np.exp, "constant": np.ones_like}


@pytest.mark.parametrize("F", MAPS.values(), ids=MAPS)
def test_maps_without_a_solution_end_with_a_status(F):
    """The path turns back below tau = 0, or goes to infinity, where it was followed for 2,000 steps."""
    result = root(Problem(F, fixed_point=True), np.asarray([0.3, -0.2]), method=Homotopy())
    assert result.status in (Status.STAGNATED, Status.AT_INFINITY)
    assert result.counts.residuals <= 500
    assert np.isfinite(result.x).all()
    assert np.isfinite(result.residual_norm)


def test_a_path_that_comes_back_to_the_start_ends_there():
    result = root(Problem(MAPS["square"], fixed_point=True), np.asarray([0.5]), method=Homotopy())
    assert result.status == Status.STAGNATED
    assert result.iterations < 500


def test_a_domain_that_ends_is_left_alone():
    """sqrt is NaN left of zero: steps that lead there are shortened."""
    problem = Problem(
        lambda x: x - 0.1 - 0.5 * np.sqrt(x), jvp=lambda x, v: v - 0.25 / np.sqrt(x) * v, fixed_point=True
    )
    with np.errstate(invalid="ignore"):
        result = root(problem, np.asarray([1e-3, 0.9]), method=Homotopy(), stop=TIGHT)
    assert result.success
    np.testing.assert_allclose(result.x, 0.1 + 0.5 * np.sqrt(result.x), atol=1e-10)


def test_what_is_returned_is_finite_where_something_was():
    """F ends at 0.1, short of the solution at 1: the solve ends inside."""
    F = lambda x: np.where(np.abs(x) > 0.1, np.nan, x - 1)  # noqa: E731
    for problem in (Problem(F, fixed_point=True), Problem(F, jvp=lambda x, v: v, fixed_point=True)):
        result = root(problem, np.zeros(2), method=Homotopy())
        assert not result.success
        assert np.isfinite(result.fun).all()
        np.testing.assert_array_equal(result.fun, F(result.x))


def test_monitors_see_every_step():
    problem, seen = recurrent(np, 3, 4, 6, 5.0), []
    x0 = np.random.default_rng(3).uniform(-1, 1, (4, 6))
    result = root(problem, x0, method=Homotopy(), monitor=lambda *what: seen.append(what))
    assert len(seen) == len(result.steps) == result.iterations.max() + 1
    for i, (step, x, F) in enumerate(seen):
        assert step.iteration == i
        assert x.shape == F.shape == (4, 6)
        np.testing.assert_array_equal(F, problem.residual(x))
        np.testing.assert_array_equal(step.residual_norm, np.abs(F[step.systems]).max(axis=1))
        if i:
            assert step.step_length.shape == step.krylov_iterations.shape == step.systems.shape
    assert seen[-1][0].running == 0
    total = np.zeros(4, dtype=int)
    for step, _, _ in seen[1:]:
        total[step.systems] += step.krylov_iterations
    np.testing.assert_array_equal(total, result.krylov_iterations)


def test_counts_are_those_of_the_calls():
    calls = dict.fromkeys(("F", "jvp"), 0)

    def F(x):
        calls["F"] += 1
        return x - np.cos(3 * x)

    def jvp(x, v):
        calls["jvp"] += 1
        return (1 + 3 * np.sin(3 * x)) * v

    result = root(Problem(F, jvp=jvp, fixed_point=True), np.zeros(2), method=Homotopy())
    assert (result.counts.residuals, result.counts.jvps) == (calls["F"], calls["jvp"])
    assert result.krylov_iterations == calls["jvp"]


def test_settings_have_an_effect():
    problem = recurrent(np, 3, 3, 6, 5.0)
    x0 = np.random.default_rng(3).uniform(-1, 1, (3, 6))
    default = root(problem, x0, method=Homotopy())
    short = root(problem, x0, method=Homotopy(first_step=0.01))
    rough = root(problem, x0, method=Homotopy(max_krylov=4))
    exact = root(problem, x0, method=Homotopy(linear_rtol=1e-10))
    assert short.success.all()
    assert exact.success.all()
    assert (short.iterations > default.iterations).any()
    assert (exact.krylov_iterations >= default.krylov_iterations).all()
    assert max(step.krylov_iterations.max(initial=0) for step in rough.steps) <= 4


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"first_step": 0.0}, ValueError, "`first_step` must lie in"),
    ({"first_step": 1.0}, ValueError, "`first_step` must lie in"),
    ({"first_step": np.nan}, ValueError, "`first_step` must lie in"),
    ({"first_step": "a"}, TypeError, "`first_step` must be a real number"),
    ({"linear_rtol": -0.1}, ValueError, "`linear_rtol` must lie in"),
    ({"linear_rtol": True}, TypeError, "`linear_rtol` must be a real number"),
    ({"max_krylov": 0}, ValueError, "`max_krylov` must be at least 1"),
    ({"max_krylov": 2.5}, TypeError, "`max_krylov` must be an integer"),
]


@pytest.mark.parametrize(("arguments", "error", "words"), WRONG, ids=[str(wrong[0]) for wrong in WRONG])
def test_wrong_settings_are_named(arguments, error, words):
    with pytest.raises(error, match=f"Homotopy: {words}"):
        Homotopy(**arguments)
