"""Full Jacobians whose columns repeat by shifts: few columns make a preconditioner."""

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve.linearize._shifts import toeplitz_blocks
from tests.helpers.physical import paths


@given(st.integers(1, 4), st.integers(3, 12), st.integers(0, 2**32 - 1))
def test_kernels_make_toeplitz_blocks(fields, length, seed):
    rng = np.random.default_rng(seed)
    kernels = rng.random((fields, fields, 2 * length - 1))  # of columns and rows
    blocks = [
        [scipy.linalg.toeplitz(kernel[length - 1 :], kernel[length - 1 :: -1]) for kernel in kernels[:, row]]
        for row in range(fields)
    ]
    np.testing.assert_array_equal(toeplitz_blocks(kernels), np.block(blocks))


@pytest.mark.parametrize("fields", [1, 2, 3])
def test_paths_in_time_take_few_evaluations(fields, rng):
    residual, x0 = paths(fields, rng), np.zeros(120 * fields)
    result = ims.root(residual, x0)
    assert result.success
    assert result.detection.how == "shifts"
    assert result.counts.residuals <= 60
    assert result.counts.residuals <= 0.5 * ims.root(residual, x0, method="newton-krylov").counts.residuals
    again = ims.root(residual, 0.99 * result.x, previous=result)
    assert again.success
    assert again.detection.evaluations == 0


def test_other_full_jacobians_cost_two_evaluations_more(rng):
    A = 2 * np.eye(150) + rng.standard_normal((150, 150)) / 150**0.5
    result = ims.root(lambda x: A @ x + 0.1 * x**3 - 1, np.zeros(150))
    assert result.success
    assert result.detection.how == "dense"
    assert result.detection.evaluations <= 4
