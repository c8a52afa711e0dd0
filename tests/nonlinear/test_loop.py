"""Where Newton's loop ends by its own rules: stagnation, divergence, limits; what it counts and reports."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import FullStep, NewtonKrylov, NonlinearStop, Problem, Status, root

FULL = NewtonKrylov(line_search=FullStep())


def wrong(slope):
    """F(x) = x with `slope` for J: each step multiplies x by 1 - 1 / slope, without a rounding error to speak of."""
    return Problem(lambda x: x, jvp=lambda x, v: slope * v, batch_ndim=1)


def test_a_cycle_ends_20_steps_after_its_best_point():
    """Newton's method for x^3 - 2 x + 2 goes from 0 to 1 and back."""
    problem = Problem(lambda x: x**3 - 2 * x + 2, jvp=lambda x, v: (3 * x**2 - 2) * v)
    result = root(problem, np.zeros(1), method=FULL)
    assert result.status is Status.STAGNATED
    assert result.iterations == 21  # the first step was the best
    assert len(result.steps) == 22


@pytest.mark.parametrize(("slope", "status"), [(500.0, Status.ITERATION_LIMIT), (2000.0, Status.STAGNATED)])
def test_progress_of_less_than_a_hundredth_since_the_last_best_is_none(slope, status):
    """20 steps by 1 - 1/500 gain 4 %, by 1 - 1/2000 less than 1 %."""
    result = root(wrong(slope), np.ones((1, 1)), method=FULL, stop=NonlinearStop(rtol=1e-9, max_iterations=60))
    assert result.status[0] == status
    assert result.iterations[0] == (60 if status is Status.ITERATION_LIMIT else 20)


def test_growth_by_10_to_the_12_is_divergence():
    """-99 to the powers of 6 and 7 lie on either side."""
    result = root(wrong(0.01), np.asarray([[1.0]]), method=FULL)
    assert result.status[0] == Status.DIVERGED
    assert result.iterations[0] == 7
    assert result.residual_norm[0] == result.initial_norm[0]  # the best point of all is x0


def test_a_step_that_leaves_x_where_it_is_ends_the_solve():
    result = root(wrong(1e17), np.ones((1, 1)), method=FULL)
    assert result.status[0] == Status.STAGNATED
    assert result.iterations[0] == 1


@pytest.mark.parametrize("limit", [0, 1, 7])
def test_the_limit_counts_steps(limit):
    result = root(wrong(1.25), np.ones((2, 1)), method=FULL, stop=NonlinearStop(rtol=1e-30, max_iterations=limit))
    np.testing.assert_array_equal(result.status, Status.ITERATION_LIMIT)
    np.testing.assert_array_equal(result.iterations, limit)
    np.testing.assert_allclose(result.x, 0.2**limit, rtol=1e-9)


def test_the_limit_is_1000_steps_unless_the_rule_says_otherwise():
    result = root(wrong(20.0), np.ones((1, 1)), method=FULL, stop=NonlinearStop(rtol=1e-30))
    assert (result.status[0], result.iterations[0]) == (Status.ITERATION_LIMIT, 1000)


def assemblies(slope, reuse, steps, batch=()):
    """Numbers of the steps that began with a new J, for F(x) = x and J = slope: ||F|| falls by 1 - 1 / slope."""
    problem = Problem(
        lambda x: x,
        jac=lambda x: ims.BlockBandedMatrix(np.full((*batch, 4, 1, 1, 1), slope), lower=0, upper=0),
        structure=ims.BlockBanded(0, 0),
        batch_ndim=len(batch),
    )
    method = ims.BlockNewton(reuse=reuse)
    stop = NonlinearStop(rtol=1e-60, max_iterations=steps)
    result = root(problem, np.ones((*batch, 4)), method=method, stop=stop)
    assert (result.iterations == steps) if not batch else (result.iterations == steps).all()
    return [step.iteration for step in result.steps[1:] if step.factorized.all()]


@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_jacobian_serves_20_steps_at_most(batch):
    assert assemblies(1.1, "chord", 45, batch) == [1, 21, 41]
    assert assemblies(1.1, "none", 5, batch) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize(("rate", "kept"), [(0.17, True), (0.185, False)])
def test_a_jacobian_is_kept_as_long_as_steps_bring_what_a_new_one_promises(rate, kept, batch):
    """1.5 digits for the two evaluations of a step with a new J: 10^(-1.5 / 2) = 0.178 for one."""
    assert assemblies(1 / (1 - rate), "chord", 6, batch) == ([1] if kept else [1, 2, 3, 4, 5, 6])


METHODS = "auto", "newton-krylov", "sparse-newton", "anderson", "picard", "broyden", "homotopy", "pseudo-transient"


@pytest.mark.parametrize("batch_ndim", [0, 1])
@pytest.mark.parametrize("method", METHODS)
def test_x0_that_is_not_finite_converged_where_the_residual_does_not_notice(method, batch_ndim):
    x0 = np.array([[np.nan, 1.0], [np.inf, 1.0]])[1 - batch_ndim :]
    problem = Problem(lambda x: np.where(x > 0, 0.0, 0.0), batch_ndim=batch_ndim)
    result = root(problem, x0, method=method)
    assert np.all(np.asarray(result.status) == Status.NONFINITE)


def test_a_step_to_infinity_converged_where_the_residual_does_not_notice():
    def leap(x):
        return np.where(np.isfinite(x), 1e308, 0.0)

    for method in ("picard", "broyden", "anderson"):
        result = root(leap, np.full(2, -1e308), method=method)
        assert not result.success
        assert np.isfinite(result.x).all()


@pytest.mark.parametrize("block_size", [None, 2])
def test_systems_that_end_alone_leave_the_others_and_the_trace_as_they_are(block_size):
    """The last systems take the places of few that have ended; the same in another order, bit by bit."""
    rate = np.logspace(-2, 1, 60)[:, None]
    x0 = rate * np.linspace(1.0, 2.0, 6)
    structure = None if block_size is None else ims.BlockBanded(1, 1, block_size)
    seen = []

    def solved(rate, x0, monitor=None):
        problem = Problem(lambda x: x + x**3 - rate + 0.1 * np.roll(x, 1, 1), structure=structure, batch_ndim=1)
        return root(problem, x0, stop=NonlinearStop(atol=1e-9), monitor=monitor)

    kept = x0.copy()
    result = solved(rate, x0, lambda step, x, F: seen.append((step.residual_norm.copy(), np.abs(F).max(axis=1))))
    other = solved(rate[::-1], x0[::-1])
    assert result.success.all()
    assert np.ptp(result.iterations) > 0
    np.testing.assert_array_equal(other.x, result.x[::-1])
    np.testing.assert_array_equal(other.iterations, result.iterations[::-1])
    np.testing.assert_array_equal(x0, kept)
    for step, (norms, largest) in zip(result.steps, seen, strict=True):
        np.testing.assert_array_equal(step.residual_norm, norms)
        np.testing.assert_array_equal(largest[step.systems], norms)
        np.testing.assert_array_equal(step.target, 1e-9)
