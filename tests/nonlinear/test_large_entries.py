"""Full Jacobians whose few large entries precondition Newton-Krylov: fields, and preconditioners that fail."""

import numpy as np
import pytest

import implicitsolve as ims


def laplace(u):
    return np.diff(u, n=2, prepend=0.0, append=0.0, axis=-1)


def reaction(u, v):
    """Two fields, coupled where they are by terms that vanish at zero, and everywhere by their means."""
    return -laplace(u) + u * v**2 + u - 1 + 0.3 * v.mean(), -2 * laplace(v) + v - u**2 + 0.2 * u.mean()


def evaluations(residual, x0, **declared):
    result = ims.root(ims.Problem(residual, **declared), x0.copy())
    assert result.success
    assert np.abs(residual(result.x)).max() <= 1.5e-8 * np.abs(residual(x0)).max()
    return result.counts.residuals


@pytest.mark.parametrize("axis", [0, -1], ids=["stacked", "interleaved"])
def test_couplings_of_fields_that_vanish_at_the_start_were_left_out(axis):
    def residual(w):
        u, v = np.moveaxis(w, axis, 0)
        return np.stack(reaction(u, v), axis)

    x0 = np.zeros((2, 400) if axis == 0 else (400, 2))
    assert ims.detect_structure(residual, x0).how == "full"
    assert evaluations(residual, x0) <= evaluations(residual, x0, structure="none")


def test_a_preconditioner_that_missed_a_field_was_kept_in_further_line_searches():
    def residual(w):
        return np.concatenate(reaction(w[:200], w[200:]))

    x0 = np.zeros(400)
    assert ims.detect_structure(residual, x0).how == "full"
    assert evaluations(residual, x0) <= 2.5 * evaluations(residual, x0, structure="none")


def test_giving_up_a_preconditioner_is_not_reported_as_an_iteration_limit():
    def residual(u):  # J is infinite at the start
        with np.errstate(invalid="ignore"):
            return 2 * np.sqrt(1 - u) + u.mean() - 100 * laplace(u) - np.linspace(0.1, 1, 200)

    result = ims.root(residual, np.ones(200))
    assert result.detection.how == "full"
    assert result.status == ims.Status.LINE_SEARCH_FAILED
