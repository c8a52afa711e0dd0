"""The small least-squares problem against numpy.linalg.lstsq, column by column."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve.krylov._arnoldi import Hessenberg

NEGLIGIBLE = 64 * np.finfo(float).eps


def hessenberg(seed: int, size: int, m: int, is_complex: bool) -> tuple[np.ndarray, np.ndarray]:
    """Random upper Hessenberg matrices (size, m+1, m) with a real positive subdiagonal, and right-hand sides beta."""
    rng = np.random.default_rng(seed)
    H = rng.standard_normal((size, m + 1, m)) + (1j * rng.standard_normal((size, m + 1, m)) if is_complex else 0)
    H = np.triu(H, -1)
    H[:, np.arange(1, m + 1), np.arange(m)] = rng.uniform(0.1, 1, (size, m))
    return H, rng.uniform(0.5, 2, size)


def filled(H: np.ndarray, beta: np.ndarray) -> Hessenberg:
    small = Hessenberg(beta, H.shape[2], H.dtype)
    for j in range(H.shape[2]):
        small.append(H[:, : j + 1, j], H[:, j + 1, j].real, NEGLIGIBLE)
    return small


def rest(small: Hessenberg, columns: np.ndarray) -> np.ndarray:
    return small.residual_coordinates(small.solve(columns))


def minimum(H: np.ndarray, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """Minimizer of ||beta e_1 - H y|| and what remains."""
    right = np.zeros(H.shape[0], H.dtype)
    right[0] = beta
    y = np.linalg.lstsq(H, right, rcond=None)[0]
    return y, right - H @ y


CASES = {"seed": st.integers(0, 2**20), "size": st.integers(1, 3), "m": st.integers(1, 6), "is_complex": st.booleans()}


@given(**CASES)
def test_every_column_gives_the_least_squares_residual(seed, size, m, is_complex):
    H, beta = hessenberg(seed, size, m, is_complex)
    small = Hessenberg(beta, m, H.dtype)
    before = beta
    for j in range(m):
        norms, is_void = small.append(H[:, : j + 1, j], H[:, j + 1, j].real, NEGLIGIBLE)
        expected = [np.linalg.norm(minimum(H[i, : j + 2, : j + 1], beta[i])[1]) for i in range(size)]
        np.testing.assert_allclose(norms, expected, rtol=1e-10, atol=1e-13)
        assert not is_void.any()
        assert (norms <= before * (1 + 1e-14)).all()
        before = norms
    np.testing.assert_array_equal(small.H, H)


@given(**CASES)
def test_each_system_may_use_its_own_number_of_columns(seed, size, m, is_complex):
    H, beta = hessenberg(seed, size, m, is_complex)
    small = filled(H, beta)
    columns = np.random.default_rng(seed).integers(0, m + 1, size)
    y = small.solve(columns)
    left = small.residual_coordinates(y)
    assert y.shape == (size, m)
    assert left.shape == (size, m + 1)
    for i, k in enumerate(columns):
        expected_y, expected_rest = minimum(H[i, : k + 1, :k], beta[i])
        np.testing.assert_allclose(y[i, :k], expected_y, rtol=1e-9, atol=1e-11)
        assert (y[i, k:] == 0).all()
        np.testing.assert_allclose(left[i, : k + 1], expected_rest, atol=1e-12)


@given(**CASES)
def test_a_part_is_the_same_problem(seed, size, m, is_complex):
    H, beta = hessenberg(seed, size + 2, m, is_complex)
    indices = np.asarray([size + 1, 0])
    part, alone = filled(H, beta).take(indices), filled(H[indices], beta[indices])
    columns = np.full(2, m)
    np.testing.assert_array_equal(part.solve(columns), alone.solve(columns))
    np.testing.assert_array_equal(rest(part, columns), rest(alone, columns))


@given(**CASES, power=st.integers(-400, 400))
def test_powers_of_two_change_nothing_but_the_exponent(seed, size, m, is_complex, power):
    H, beta = hessenberg(seed, size, m, is_complex)
    small, scaled = filled(H, beta), filled(H * 2.0**power, beta)
    columns = np.full(size, m)
    np.testing.assert_array_equal(rest(scaled, columns), rest(small, columns))
    np.testing.assert_array_equal(scaled.solve(columns) * 2.0**power, small.solve(columns))


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_a_column_inside_the_span_of_the_others_is_void_and_changes_nothing(dtype):
    H, beta = hessenberg(3, 2, 3, dtype is np.complex128)
    small, shorter = Hessenberg(beta, 3, dtype), filled(H[:, :3, :2], beta)
    for j in range(2):
        norms, _ = small.append(H[:, : j + 1, j], H[:, j + 1, j].real, NEGLIGIBLE)
    combination = H[:, :3, 0] * 2 - H[:, :3, 1]  # e.g. a singular operator
    after, is_void = small.append(combination, np.zeros(2), NEGLIGIBLE)
    assert is_void.all()
    np.testing.assert_array_equal(after, norms)
    columns = np.full(2, 2)
    np.testing.assert_array_equal(small.solve(columns)[:, :2], shorter.solve(columns))
    np.testing.assert_allclose(rest(small, columns)[:, :3], rest(shorter, columns))
    assert (rest(small, columns)[:, 3] == 0).all()


def test_the_zero_matrix():
    small = Hessenberg(np.ones(1), 2, np.float64)
    norms, is_void = small.append(np.zeros((1, 1)), np.zeros(1), NEGLIGIBLE)
    assert norms.tolist() == [1.0]
    assert is_void.tolist() == [True]
    assert small.solve(np.zeros(1, int)).tolist() == [[0.0]]
    np.testing.assert_array_equal(small.residual_coordinates(np.zeros((1, 1))), [[1.0, 0.0]])
