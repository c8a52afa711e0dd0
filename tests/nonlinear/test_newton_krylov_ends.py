"""How a solve of one system by NewtonKrylov ends."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import NewtonKrylov, NonlinearStop, Problem, Status, root


def ends(F, x0, *, jvp=None, method=None, **stop):
    result = root(
        Problem(F, jvp=jvp), np.asarray(x0, dtype=float), method=method or NewtonKrylov(), stop=NonlinearStop(**stop)
    )
    fresh = F(result.x.copy())
    np.testing.assert_array_equal(result.fun, fresh)
    norm = np.max(np.abs(fresh))
    assert np.isnan(norm) or result.residual_norm == norm
    assert result.success == (result.status == Status.CONVERGED)
    return result


def test_iteration_limit():
    result = ends(lambda x: x**3 - 8, [5.0], max_iterations=2)
    assert (result.status, result.iterations) == (Status.ITERATION_LIMIT, 2)
    result = ends(lambda x: x**3 - 8, [5.0], max_iterations=0)
    assert (result.status, result.iterations, result.counts.residuals) == (Status.ITERATION_LIMIT, 0, 1)


def test_residual_that_is_not_finite():
    assert ends(lambda x: x * np.nan, [1.0]).status == Status.NONFINITE
    result = ends(lambda x: np.where(x == 1.0, x, np.nan), [1.0])  # finite at the start only
    assert result.status == Status.NONFINITE
    assert np.array_equal(result.x, [1.0])


def test_singular_jacobian():
    constant = ends(lambda x: 0 * x + 1, [1.0, 2.0])
    assert constant.status in (Status.SINGULAR, Status.LINEAR_SOLVE_FAILED)
    assert ends(lambda x: 0 * x + 1, [1.0, 2.0], jvp=lambda x, v: 0 * v).status == Status.SINGULAR
    inconsistent = ends(lambda x: np.stack([x[0] + x[1] - 1, x[0] + x[1] - 2]), [0.0, 0.0])
    assert not inconsistent.success
    consistent = ends(lambda x: np.stack([x[0] + x[1] - 1, 2 * (x[0] + x[1]) - 2]), [0.0, 0.0])
    assert consistent.success


@pytest.mark.parametrize("x0", [0.5, 1.0, -3.0, 1e-8, 1e8])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_no_root(x0, n):
    result = ends(lambda x: x**2 + 1, np.full(n, x0), rtol=0.0, atol=1e-8)
    assert result.status in (Status.STAGNATED, Status.LINE_SEARCH_FAILED, Status.LINEAR_SOLVE_FAILED, Status.SINGULAR)
    assert result.residual_norm <= result.initial_norm
    assert result.counts.residuals < 2000
    assert result.message
    with pytest.raises(ims.NoConvergence) as caught:
        result.raise_for_status()
    assert caught.value.result is result


def test_tolerance_below_rounding_stagnates():
    result = ends(lambda x: 1e8 * (x**2 - 2 + 0.1 * x[::-1]), [1.0, 2.0], rtol=0.0, atol=1e-12)
    assert result.status in (Status.CONVERGED, Status.STAGNATED, Status.LINE_SEARCH_FAILED)
    assert result.residual_norm < 1e-6


def test_wrong_jvp_is_reported():
    result = ends(lambda x: x**3 - 8, [3.0, 4.0], jvp=lambda x, v: -3 * x**2 * v)
    assert not result.success
    assert "taylor_test" in result.message or "Jacobian" in result.message


def test_steps_back_off_from_a_boundary_of_the_domain():
    """log x - 5 from 1: the first Newton step of 1/x-like functions overshoots into x < 0, where F is NaN."""

    def F(x):
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.log(x) + 3

    assert ends(F, [2.0, 5.0, 1.0]).success


def test_without_line_search_divergence_ends():
    result = ends(np.arctan, [3.0], method=NewtonKrylov(line_search=ims.FullStep()))
    assert not result.success
    assert result.counts.residuals < 1000


def test_second_attempt_improves_or_keeps():
    once = ends(lambda x: x**2 + 1 + 0.1 * x[::-1], [0.3, -0.7], method=NewtonKrylov(retry=False))
    twice = ends(lambda x: x**2 + 1 + 0.1 * x[::-1], [0.3, -0.7])
    assert twice.residual_norm <= once.residual_norm
    assert twice.iterations >= once.iterations


@pytest.mark.parametrize("limit", [5, 30, 100])
def test_attempts_share_the_limit(limit):
    result = ends(lambda x: x**2 + 1 + 0.1 * x[::-1], [0.3, -0.7, 0.2, 1.0], max_iterations=limit)
    assert result.iterations <= limit


@pytest.mark.parametrize("N", [61, 100, 400])
def test_a_shift_of_which_gmres_learns_nothing_before_its_last_vector_is_solved(N):
    shift = ims.Problem(lambda x: np.roll(x, 1) - np.eye(N)[0], jvp=lambda x, v: np.roll(v, 1))
    result = ims.root(shift, np.zeros(N), method="newton-krylov")
    assert result.success
    assert result.counts.jvps <= 60 + 120 + 240 + 400 + 10  # the space doubles


def test_a_space_that_cannot_become_the_whole_one_does_not_grow_in_vain():
    shift = ims.Problem(lambda x: np.roll(x, 1) - np.eye(500)[0], jvp=lambda x, v: np.roll(v, 1))
    result = ims.root(shift, np.zeros(500), method="newton-krylov")
    assert result.status is Status.LINEAR_SOLVE_FAILED
    assert result.counts.jvps <= 70
