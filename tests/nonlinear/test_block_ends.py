"""How a solve by BlockNewton ends: singular Jacobians, numbers that are not finite, limits, exceptions."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import BlockBanded, BlockNewton, NonlinearStop, Problem, Status, root
from tests.nonlinear.chains import DIAGONAL, PROBLEMS, TRIDIAGONAL, every_mode, run


def status(F, x0, structure=DIAGONAL, method="block-newton", stop=None, **functions):
    return run(F, np.asarray(x0, dtype=float), structure, method, stop, **functions)


@every_mode
def test_singular_jacobians(reuse):
    method = BlockNewton(reuse=reuse)
    zero_column = status(
        lambda x: np.stack([x[..., 0] ** 2 - 2, x[..., 0]], -1), np.ones((4, 2)), BlockBanded(1, 1, 2), method
    )
    assert zero_column.status is Status.SINGULAR
    constant = status(lambda x: 0 * x + 1, np.ones(4), TRIDIAGONAL, method)
    assert constant.status is Status.SINGULAR
    exact = status(lambda x: x**2 + 1, np.zeros(4), DIAGONAL, method, jac=lambda x: np.diag(2 * x))
    assert exact.status is Status.SINGULAR
    for result in (zero_column, constant, exact):
        assert np.isfinite(result.x).all()
        assert result.iterations == 0
        assert result.counts.residuals < 60


def test_not_finite_wherever_a_step_goes():
    def F(x):
        return np.where(np.abs(x - 1) < 1e-3, x, np.nan)

    result = root(
        Problem(F, structure=DIAGONAL, jac=lambda x: np.eye(3)),
        np.ones(3),
        method=BlockNewton(line_search=ims.Backtracking(max_trials=2)),
    )
    assert result.status is Status.NONFINITE
    np.testing.assert_array_equal(result.x, 1.0)


def test_a_minimum_that_is_no_root():
    """x^2 + 1 has none; the search ends with a status, soon."""
    result = status(lambda x: x**2 + 1, np.full(4, 0.3))
    assert result.status in (Status.LINE_SEARCH_FAILED, Status.STAGNATED, Status.SINGULAR)
    assert result.residual_norm < 1.1
    assert result.counts.residuals < 250


def test_a_wrong_jacobian_fails_the_line_search():
    result = status(lambda x: x - 2, np.ones(4), jac=lambda x: -np.eye(4))
    assert result.status is Status.LINE_SEARCH_FAILED
    np.testing.assert_array_equal(result.x, 1.0)


@every_mode
@pytest.mark.parametrize("name", ["bratu", "brusselator", "burgers"])
def test_tolerances_below_rounding_error_end_soon(name, reuse):
    F, x0, structure = PROBLEMS[name]
    result = run(F, x0, structure, BlockNewton(reuse=reuse), NonlinearStop(rtol=1e-18))
    assert result.status is Status.STAGNATED, result.message
    assert result.residual_norm < 1e-11 * result.initial_norm
    reached = run(F, x0, structure, BlockNewton(reuse=reuse))
    # At most 20 steps without progress, each with an assembly if nothing is reused, and as many with a little of it.
    assert result.counts.residuals < reached.counts.residuals + (320 if reuse == "none" else 160)


def test_the_domain_of_the_residual_ends_near_the_root():
    def F(x):
        with np.errstate(invalid="ignore"):
            return np.sqrt(1 - x) - 1e-3

    result = root(Problem(F, structure=DIAGONAL), np.full(5, 0.5), method="block-newton")
    assert result.success, result.message
    np.testing.assert_allclose(result.x, 1 - 1e-6, atol=1e-8)
