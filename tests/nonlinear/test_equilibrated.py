"""DenseNewton on equilibrated equations: far starts, units of single equations, batches, and no root."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import implicitsolve as ims
from benchmarks.benchmarks.problems import get
from benchmarks.benchmarks.problems.scalable import five_diagonal, wood_fours
from implicitsolve import NonlinearStop, Problem, Status, root
from implicitsolve.nonlinear._dense_newton import DenseNewton

METHOD, STOP, FIVE = DenseNewton(equilibrated=True), NonlinearStop(atol=1e-8), get("mgh07-chebyquad-5")


@pytest.mark.parametrize(
    ("name", "factor"),
    [("mgh03-powell-badly-scaled", 100), ("mgh07-chebyquad-9", 100), ("mgh08-brown-almost-linear-40", 10)],
)
def test_far_starts_by_defaults(name, factor):
    """Powell's hybrid method and Newton-Krylov follow the largest equation to where the others have no root."""
    problem = get(name)
    with np.errstate(all="ignore"):
        result = root(problem.residual, factor * problem.x0, stop=STOP)
    assert result.success
    assert np.max(np.abs(problem.residual(result.x))) <= 1e-8


def chebyquad(x):
    return np.stack([FIVE.residual(row) for row in x]) if x.ndim > 1 else FIVE.residual(x)


@settings(max_examples=5)
@given(powers=st.lists(st.integers(-40, 40), min_size=5, max_size=5), q=st.integers(-20, 20))
def test_units_of_single_equations_change_no_iterate(powers, q):
    x0, units, a = 10 * FIVE.x0, 2.0 ** np.array(powers), 2.0**q
    stop = NonlinearStop(atol=0.0, rtol=0.0, max_iterations=8)
    seen, scaled = [], []
    root(chebyquad, x0, method=METHOD, stop=stop, monitor=lambda step, x, F: seen.append(x))

    def F(x):
        return units * chebyquad(x / a)

    root(F, a * x0, method=METHOD, stop=stop, monitor=lambda step, x, F: scaled.append(x))
    assert len(seen) > 5
    np.testing.assert_array_equal(np.stack(scaled), a * np.stack(seen))


def test_exact_products_take_no_central_differences():
    problem = Problem(lambda x: np.exp(x) - 2, jvp=lambda x, v: np.exp(x) * v)
    result = root(problem, np.array([5.0, -3.0, 1.0]), method=METHOD, stop=STOP)
    assert result.success
    assert result.counts.jvps > 0
    assert result.counts.residuals < 40


@pytest.mark.parametrize("n", [36, 144])
def test_a_sparse_system_far_from_its_root_is_solved_with_equations_of_one_size(n):
    x0 = np.tile([-30.0, -10.0], n // 2)
    for structure in (None, ims.Sparse(np.kron(np.eye(n // 4), np.ones((4, 4))))):
        result = root(Problem(wood_fours, structure=structure), x0)
        assert result.success
        assert np.abs(wood_fours(result.x)).max() <= 1e-6
        assert result.retries[-1].method in (METHOD.label, "SparseNewton with FullStep")  # J takes a few colors
        assert result.counts.residuals <= 1200


def test_longer_and_longer_steps_that_enlarge_the_residual_were_a_root_at_infinity():
    assert root(five_diagonal, np.full(144, -20.0)).success


def test_every_attempt_keeps_its_reason():
    both = Problem(lambda x: x**2 + np.array([[1.0], [-1.0]]), batch_ndim=1)
    result = root(both, np.array([[3.0], [3.0]]))
    assert tuple(retry.method for retry in result.retries) == result.plan.names[1:]
    assert all(retry.systems.tolist() == [0] for retry in result.retries)
    assert all((retry.status != Status.CONVERGED).all() for retry in result.retries)
    assert all(str(retry) in result.summary() for retry in result.retries)
    assert [retry.iteration for retry in result.retries] == sorted(retry.iteration for retry in result.retries)
    assert max(map(len, result.summary().splitlines())) <= 100
    assert root(lambda x: x - 1, 3.0).retries == ()


def test_fifty_unknowns_without_a_root_took_ten_thousand_evaluations():
    x0 = np.random.default_rng(0).standard_normal(50)  # J, which takes 50, has rows of very different sizes
    for residual in (lambda x: np.tanh(x) - 2, lambda x: np.exp(x) + 0.1):
        with np.errstate(all="ignore"):
            result = root(residual, x0, stop=STOP)
        assert not result.success
        assert result.counts.residuals <= 1700


def test_second_attempt_of_a_batch_gave_its_whole_x_to_jac_of_a_part():
    target = np.array([[1.0], [-1.0]])  # x^2 = -1 has no root
    problem = Problem(lambda x: x**2 - target, jac=lambda x: (2 * x)[:, :, None], batch_ndim=1)
    result = root(problem, np.array([[3.0], [3.0]]), method=METHOD)
    assert result.success.tolist() == [True, False]
    again = root(problem, np.array([[3.0], [3.0]]))
    assert again.success.tolist() == [True, False]
    assert len(again.retries) > 0


def test_a_system_without_a_root_is_given_up_after_40_idle_steps():
    """arctan(x) + 2 took 7,001 evaluations: 100 idle steps, of 35 each, began again at every 1 % of ||F||."""
    with np.errstate(all="ignore"):
        result = ims.root(lambda x: np.arctan(x) + 2, np.random.default_rng(20).uniform(0.1, 0.9, 20))
    assert not result.success
    assert result.counts.residuals <= 3500
