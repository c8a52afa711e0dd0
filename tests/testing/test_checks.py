"""Checks for users: they pass what is right, and fail what is wrong, whatever its scale."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve import LinearOperator, aslinearoperator
from implicitsolve._arrays.host import to_host
from implicitsolve.testing import dense, dot_test, taylor_test

SCALES = [1e-300, 1e-150, 1.0, 1e150, 1e300]


def matrix(seed: int, shape: tuple[int, ...], is_complex: bool) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if is_complex else 0)


shapes = st.sampled_from([(1, 1), (3, 3), (2, 5), (5, 2), (4, 3, 3), (2, 2, 3, 4)])


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


def test_dot_test_takes_states_sparse_matrices_and_integers():
    shape = LinearOperator(lambda v: v.T, lambda w: w.T, in_shape=(2, 3), out_shape=(3, 2))
    for A in (shape, sp.csr_array(matrix(4, (3, 5), False)), np.eye(3, dtype=int)):
        assert dot_test(A) < 1e-14


def test_dot_test_needs_an_adjoint():
    with pytest.raises(TypeError, match="rmatvec"):
        dot_test(LinearOperator(lambda v: v, in_shape=3))


def test_nan_is_not_a_pass():
    assert not dot_test(np.full((2, 2), np.nan)) < 1e-6


def cubic(factor: float = 1.0, wrong: float = 1.0, **more) -> ims.Problem:
    return ims.Problem(lambda x: factor * x**3, jvp=lambda x, v: 3 * wrong * factor * x**2 * v, **more)


@pytest.mark.parametrize("factor", [1e-150, 1e-6, 1.0, 1e6, 1e150])
@pytest.mark.parametrize("length", [1e-9, 1.0, 1e9])
def test_taylor_test_at_any_scale(rng, factor, length):
    x = length * rng.uniform(1, 2, 5)
    assert taylor_test(cubic(factor), x) == pytest.approx(2, abs=0.1)
    assert taylor_test(cubic(factor, wrong=1.5), x) == pytest.approx(1, abs=0.2)


def test_taylor_test_of_every_kind_of_jacobian(rng):
    x = rng.uniform(1, 2, 4)
    J = lambda x: np.diag(3 * x**2)  # noqa: E731
    wrong = lambda x: np.diag(2 * x**2)  # noqa: E731
    for given_J, order in ((J, 2), (wrong, 1)):
        for given_by in ({"jac": given_J}, {"linearize": lambda x, J=given_J: (x**3, J(x))}):
            assert taylor_test(ims.Problem(lambda x: x**3, **given_by), x) == pytest.approx(order, abs=0.1)


def test_taylor_test_of_an_affine_problem():
    A = np.diag([1.0, 2.0])
    assert taylor_test(ims.Problem(lambda x: A @ x - 1, jvp=lambda x, v: A @ v), np.ones(2)) == np.inf
    assert taylor_test(ims.Problem(lambda x: A @ x - 1, jvp=lambda x, v: 2 * A @ v), np.ones(2)) == pytest.approx(1)


def test_a_product_that_is_not_finite_does_not_pass():
    bad = ims.Problem(lambda x: x**3, jvp=lambda x, v: v * np.nan)
    assert not taylor_test(bad, np.ones(3)) > 1.5


def test_taylor_test_needs_a_product():
    with pytest.raises(TypeError, match="`jvp`, `linearize` or `jac`"):
        taylor_test(lambda x: x**2, np.ones(2))


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
