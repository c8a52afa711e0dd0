"""Full Jacobians whose columns repeat by shifts: few columns make a preconditioner."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve.linearize._shifts import toeplitz_blocks

T = 120


@given(st.integers(1, 4), st.integers(3, 12), st.integers(0, 2**32 - 1))
def test_kernels_make_toeplitz_blocks(fields, length, seed):
    rng = np.random.default_rng(seed)
    kernels = rng.random((fields, fields, 2 * length - 1))  # of columns and rows
    blocks = [
        [scipy.linalg.toeplitz(kernel[length - 1 :], kernel[length - 1 :: -1]) for kernel in kernels[:, row]]
        for row in range(fields)
    ]
    np.testing.assert_array_equal(toeplitz_blocks(kernels), np.block(blocks))


def paths(fields, rng):
    """Paths in time, each of which depends on the past and the future of all, and F in them."""
    past, future = rng.uniform(0.9, 0.97, (2, fields, fields))
    size, lag = 10.0 ** rng.uniform(-1, 1, (fields, fields)), np.arange(T)
    responses = np.block(
        [
            [size[i, j] * scipy.linalg.toeplitz(past[i, j] ** lag, -(future[i, j] ** lag)) for j in range(fields)]
            for i in range(fields)
        ]
    )
    shock = np.tile(0.1 * 0.8**lag, fields)
    return lambda x: responses @ (x + x**2) - shock


@pytest.mark.parametrize("fields", [1, 2, 3])
def test_paths_in_time_take_few_evaluations(fields, rng):
    residual, x0 = paths(fields, rng), np.zeros(fields * T)
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
