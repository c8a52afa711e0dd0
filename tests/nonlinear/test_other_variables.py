"""Unknowns in units of very different sizes."""

import numpy as np
import pytest

import implicitsolve as ims
from tests.helpers.units import flow_with_concentration

POINTS = 60


def solution(seed):
    """In units in which all unknowns are of the order of one."""
    F, _ = flow_with_concentration(POINTS, 1.0, seed)
    return ims.root(F, np.full(2 * POINTS, 0.5)).raise_for_status().x


@pytest.mark.parametrize("unit", [1e6, 1e9, 1e-7])
@pytest.mark.parametrize("seed", range(3))
def test_units_that_x0_shows(unit, seed):
    """They ended STAGNATED: along a product's direction the small unknowns changed by more than F is linear in."""
    F, scale = flow_with_concentration(POINTS, unit, seed)
    result = ims.root(F, 0.5 * scale)
    assert result.success
    np.testing.assert_allclose(result.x / scale, solution(seed), rtol=1e-6)


def test_units_that_a_failed_attempt_shows():
    F, scale = flow_with_concentration(POINTS, 1e6, 0)
    result = ims.root(F, np.zeros(2 * POINTS))
    assert result.success
    assert result.counts.residuals < 400  # 681 before
    np.testing.assert_allclose(result.x / scale, solution(0), rtol=1e-6)


def test_bounds_and_products_follow_the_units():
    F, scale = flow_with_concentration(POINTS, 1e6, 1)
    seen = []
    lower, upper = -scale, 50 * scale

    def bounded(x):
        seen.append(((lower <= x) & (x <= upper)).all())
        return F(x)

    result = ims.root(bounded, 0.5 * scale, bounds=(lower, upper))
    assert all(seen)
    assert result.success
    np.testing.assert_allclose(result.x / scale, solution(1), rtol=1e-6)


def test_a_batch_in_different_units():
    parts = [flow_with_concentration(POINTS, unit, 2) for unit in (1.0, 1e7)]
    x0 = np.array([0.5 * scale for _, scale in parts])

    def problem(rows):
        return ims.Problem(
            lambda x: np.array([parts[row][0](part) for row, part in zip(rows, x, strict=True)]),
            batch_ndim=1,
            take=lambda some: problem(rows[some]),
        )

    result = ims.root(problem(np.arange(2)), x0)
    assert result.success.all()
    np.testing.assert_allclose(result.x / (2 * x0), [solution(2)] * 2, rtol=1e-6)
