"""The gallery of sparse problems: pure, finite, and of the shape of its unknowns."""

import numpy as np
import pytest
from scipy.optimize import fsolve

from benchmarks.sparse_problems import sparse_gallery
from benchmarks.sparse_problems.awkward import awkward_problems
from benchmarks.sparse_problems.coupled import coupled_problems
from benchmarks.sparse_problems.networks import ieee14


@pytest.mark.parametrize("problem", [*sparse_gallery("quick"), *awkward_problems(12), *coupled_problems()], ids=str)
def test_residuals_are_pure_and_finite(problem):
    x = problem.x0.copy()
    first = problem.residual(x)
    assert first.shape == x.shape
    assert np.isfinite(first).all()
    assert np.array_equal(x, problem.x0)
    assert np.array_equal(first, problem.residual(x))
    assert 0 < problem.tolerance() < np.abs(first).max()


def test_published_power_flow():
    # Voltages of the solved case as the archive of the University of Washington prints them.
    problem = ieee14()
    x, _, found, _ = fsolve(lambda x: problem.residual(x.reshape(2, 14)).ravel(), problem.x0.ravel(), full_output=True)
    angle, volts = x.reshape(2, 14)
    assert found == 1
    assert np.allclose(volts[[3, 4, 8, 13]], [1.019, 1.020, 1.056, 1.036], atol=2e-3)
    assert np.allclose(np.degrees(angle[[3, 4, 8, 13]]), [-10.33, -8.78, -14.94, -16.04], atol=0.05)
