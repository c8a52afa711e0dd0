"""Checks for users: they pass what is right, and fail what is wrong, whatever its scale."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve import LinearOperator, aslinearoperator
from implicitsolve._namespace import to_host
from implicitsolve.testing import dense, dot_test

SCALES = [1e-300, 1e-150, 1.0, 1e150, 1e300]


def matrix(seed: int, shape: tuple[int, ...], is_complex: bool) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if is_complex else 0)


shapes = st.sampled_from([(1, 1), (3, 3), (2, 5), (5, 2), (4, 3, 3), (2, 2, 3, 4)])


# ------------------------------------------------------------------------------------------------------------- dot test


@given(seed=st.integers(0, 2**20), shape=shapes, is_complex=st.booleans())
def test_dot_test_passes_what_is_right(seed, shape, is_complex):
    assert dot_test(matrix(seed, shape, is_complex)) < 1e-14


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("is_complex", [False, True])
def test_dot_test_fails_a_wrong_adjoint_at_any_scale(scale, is_complex):
    M = matrix(1, (4, 4), is_complex) * scale
    assert dot_test(M) < 1e-14
    for wrong in (M, M.conj().T * 1.01, M.T if is_complex else -M.T):
        A = LinearOperator(lambda v: M @ v, lambda w, wrong=wrong: wrong @ w, in_shape=4, dtype=M.dtype)
        assert dot_test(A) > 1e-4


def test_dot_test_sees_an_adjoint_that_is_not_conjugated_only_with_complex_vectors():
    M = matrix(2, (3, 3), True)
    declared_real = LinearOperator(lambda v: M @ v, lambda w: M.T @ w, in_shape=3)
    assert dot_test(declared_real, like=np.zeros(1, complex)) > 1e-3


def test_dot_test_of_the_zero_operator():
    assert dot_test(np.zeros((3, 3))) == 0
    assert dot_test(LinearOperator(lambda v: 0 * v, lambda w: w, in_shape=3)) > 1e-3


def test_dot_test_in_other_libraries_and_dtypes(xp, any_dtype):
    M = xp.asarray(matrix(3, (3, 3), xp.isdtype(any_dtype, "complex floating")), dtype=any_dtype)
    tolerance = 1e-5 if xp.finfo(any_dtype).bits == 32 else 1e-13
    assert dot_test(M, like=M) < tolerance
    wrong = LinearOperator(lambda v: xp.matmul(M, v), lambda w: 2 * w, in_shape=3, dtype=any_dtype)
    assert dot_test(wrong, like=M) > 1e-3


def test_dot_test_takes_states_sparse_matrices_and_integers():
    shape = LinearOperator(lambda v: v.T, lambda w: w.T, in_shape=(2, 3), out_shape=(3, 2))
    for A in (shape, sp.csr_array(matrix(4, (3, 5), False)), np.eye(3, dtype=int)):
        assert dot_test(A) < 1e-14


def test_dot_test_is_repeatable_and_takes_random_numbers():
    M = matrix(5, (6, 6), False)
    assert dot_test(M) == dot_test(M)
    rng = np.random.default_rng(1)
    assert dot_test(M, rng=rng) < 1e-14
    assert rng.bit_generator.state != np.random.default_rng(1).bit_generator.state


def test_dot_test_needs_an_adjoint():
    with pytest.raises(TypeError, match="rmatvec"):
        dot_test(LinearOperator(lambda v: v, in_shape=3))


def test_nan_is_not_a_pass():
    assert not dot_test(np.full((2, 2), np.nan)) < 1e-6


# ---------------------------------------------------------------------------------------------------------------- dense


@given(seed=st.integers(0, 2**20), is_complex=st.booleans(), shape=st.tuples(st.integers(0, 4), st.integers(0, 4)))
def test_dense_is_the_matrix(seed, is_complex, shape):
    M = matrix(seed, shape, is_complex)
    for form in (M, aslinearoperator(M), sp.csr_array(M) if M.size else M):
        D = dense(form)
        assert D.dtype == M.dtype
        np.testing.assert_array_equal(D, M)
    np.testing.assert_array_equal(dense(aslinearoperator(M).H), M.conj().T)


def test_dense_of_states_integers_and_other_libraries(xp):
    transpose = LinearOperator(lambda v: v.T, in_shape=(2, 3), out_shape=(3, 2))
    expected = np.eye(6).reshape(2, 3, 6).transpose(1, 0, 2).reshape(6, 6)
    np.testing.assert_array_equal(dense(transpose), expected)
    np.testing.assert_array_equal(dense(np.asarray([[1, 2], [3, 4]])), [[1, 2], [3, 4]])
    M = xp.asarray([[1.0, 2.0], [3.0, 4.0]], dtype=xp.float32)
    D = dense(M, like=M)
    assert isinstance(D, np.ndarray)
    np.testing.assert_array_equal(D, to_host(M))


def test_dense_is_for_one_operator():
    with pytest.raises(ValueError, match="batch"):
        dense(np.zeros((2, 3, 3)))
