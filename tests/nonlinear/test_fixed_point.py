"""What all fixed-point loops share: patience, ways back, the damping that recovers, when M is built anew."""

import numpy as np
import pytest

from implicitsolve import Anderson, Broyden, LinearOperator, NonlinearStop, Picard, Problem, Status, root

PLAIN = Anderson(memory=0)  # x <- G(x)


def shrinking(rate):
    """G(x) = rate x, and F = (1 - rate) x falls by that in every step."""
    return Problem(lambda x: x - rate * x, fixed_point=True, batch_ndim=1)


@pytest.mark.parametrize(
    ("method", "rate", "ends"),
    [
        (PLAIN, 0.99, 50),  # 0.99^50 = 0.6 is no half
        (PLAIN, 0.98, 120),
        (Anderson(memory=0, patience=20), 0.98, 20),
        (Picard(), 0.9999, 50),  # not a hundredth in 50 steps
        (Picard(), 0.9997, 120),
    ],
)
def test_patience_is_for_half_the_residual_and_of_picard_for_a_hundredth(method, rate, ends):
    stop = NonlinearStop(rtol=1e-9, max_iterations=120)
    result = root(shrinking(rate), np.ones((2, 3)), method=method, stop=stop)
    np.testing.assert_array_equal(result.iterations, ends)
    np.testing.assert_array_equal(result.status, Status.STAGNATED if ends < 120 else Status.ITERATION_LIMIT)


def test_of_two_systems_the_one_that_fails_ends_at_its_best_point():
    result = root(shrinking(np.asarray([[1.05], [0.9]])), np.ones((2, 3)), method=PLAIN, stop=NonlinearStop(rtol=1e-4))
    assert list(result.success) == [False, True]
    np.testing.assert_array_equal(result.x[0], 1.0)
    np.testing.assert_allclose(result.residual_norm[0], 0.05)


@pytest.mark.parametrize("method", [PLAIN, Anderson(), Broyden()])
def test_ten_bad_steps_in_a_row_are_the_end(method):
    """Nothing is finite beyond the start; each way back halves the damping."""
    problem = Problem(lambda x: np.where(x == 1.0, 1.0, np.nan), fixed_point=True)
    result = root(problem, np.ones(2), method=method)
    assert result.status is Status.NONFINITE
    assert result.counts.residuals == 1 + 10
    np.testing.assert_array_equal(result.x, 1.0)
    assert all(step.step_length[0] == 0 for step in result.steps[1:])


def test_damping_halves_where_a_step_was_bad_and_doubles_again():
    """F is not finite below 0.3, where the whole first step leads, and half of it does not."""

    def F(x):
        return np.where(x < 0.3, np.nan, 0.5 * (x - 0.2) + 0.4 * (x > 0.9))

    method = Anderson(memory=0, damping=1.0)
    result = root(Problem(F, fixed_point=True), np.ones(1), method=method, stop=NonlinearStop(atol=0.06, rtol=0.0))
    lengths = [step.step_length[0] for step in result.steps[1:]]
    assert lengths[:4] == [0.0, 0.5, 1.0, 1.0][: len(lengths)]
    assert result.success


@pytest.mark.parametrize(("steps", "linearizations"), [(7, 1), (8, 2), (31, 2), (32, 3), (127, 3), (128, 4)])
def test_the_inverse_is_built_anew_at_ages_8_and_32_and_128(steps, linearizations):
    rate = 0.99

    def linearize(x):
        identity = LinearOperator(lambda v: v, in_shape=x.shape)
        return (1 - rate) * x, LinearOperator(lambda v: (1 - rate) * v, in_shape=x.shape, inverse=lambda: identity)

    problem = Problem(lambda x: (1 - rate) * x, linearize=linearize, fixed_point=True)
    method = Anderson(memory=0, patience=1000)
    result = root(problem, np.ones(3), method=method, stop=NonlinearStop(rtol=1e-9, max_iterations=steps))
    assert result.iterations == steps
    assert result.counts.linearizations == linearizations
    np.testing.assert_allclose(result.x, rate**steps)


@pytest.mark.parametrize("method", [Anderson, Broyden])
def test_the_least_settings_are_settings_and_less_is_not(method):
    assert method(growth_limit=1, patience=1, memory=1).patience == 1
    with pytest.raises(TypeError, match="`growth_limit`"):
        method(growth_limit="large")
    with pytest.raises(ValueError, match="`growth_limit`"):
        method(growth_limit=0.99)
    with pytest.raises(ValueError, match="`patience`"):
        method(patience=0)
