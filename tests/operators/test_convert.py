"""Conversion of arrays, sparse matrices and other libraries' operators, there and back."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla

from implicitsolve import LinearOperator, aslinearoperator
from implicitsolve._arrays.host import to_host

DTYPES = [np.float32, np.float64, np.complex64, np.complex128]


def matrix(rng: np.random.Generator, shape: tuple[int, ...], dtype: type = np.float64) -> np.ndarray:
    """Small integers: products are exact."""
    values = rng.integers(-3, 4, shape).astype(np.float64)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.integers(-3, 4, shape)
    return values.astype(dtype)


def dense_of(A: LinearOperator) -> np.ndarray:
    return A.matmat(np.eye(A.shape[1]))


FORMS = {
    "array": lambda M: M,
    "list": lambda M: M.tolist(),
    "matrix": lambda M: M.view(np.matrix),
    "fortran": np.asfortranarray,
    "strided": lambda M: np.repeat(M, 2, axis=1)[:, ::2],
    "csr_array": sp.csr_array,
    "csc_array": sp.csc_array,
    "coo_array": sp.coo_array,
    "dia_array": sp.dia_array,
    "bsr_array": sp.bsr_array,
    "lil_array": sp.lil_array,
    "dok_array": sp.dok_array,
    "csr_matrix": sp.csr_matrix,
    "csc_matrix": sp.csc_matrix,
    "scipy operator": spla.aslinearoperator,
    "ours": aslinearoperator,
    "there and back": lambda M: aslinearoperator(M).to_scipy(),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_form_of_a_matrix_is_the_matrix(rng, form, dtype):
    M = matrix(rng, (3, 5), dtype)
    A = aslinearoperator(form(M))
    assert isinstance(A, LinearOperator)
    assert A.shape == (3, 5)
    assert np.dtype(A.dtype).kind == np.dtype(dtype).kind
    v, w = matrix(rng, (5,), dtype), matrix(rng, (3,), dtype)
    np.testing.assert_array_equal(A @ v, M @ v)
    np.testing.assert_array_equal(A.rmatvec(w), M.conj().T @ w)
    np.testing.assert_array_equal(A.T @ w, M.T @ w)
    np.testing.assert_array_equal(dense_of(A), M)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_an_integer_matrix_keeps_its_values(form):
    M = np.asarray([[2, 0], [1, -3]])
    np.testing.assert_array_equal(dense_of(aslinearoperator(form(M))), M)


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)], ids=str)
def test_arrays_with_a_batch_of_any_library_and_dtype(xp, any_dtype, rng, batch):
    kind = np.complex128 if xp.isdtype(any_dtype, "complex floating") else np.float64
    M, v = matrix(rng, (*batch, 3, 3), kind), matrix(rng, (*batch, 3), kind)
    A = aslinearoperator(xp.asarray(M, dtype=any_dtype))
    assert A.batch_shape == batch
    assert A.dtype == any_dtype
    given = xp.asarray(v, dtype=any_dtype)
    product = A @ given
    assert product.dtype == any_dtype
    np.testing.assert_array_equal(to_host(product), (M @ v[..., None])[..., 0])
    np.testing.assert_array_equal(to_host(A.H @ given), (M.conj().swapaxes(-1, -2) @ v[..., None])[..., 0])
    if batch:
        part = A.take(np.asarray([3, 0]))
        rows = to_host(given).reshape(-1, 3)[[3, 0]]
        expected = (M.reshape(-1, 3, 3)[[3, 0]] @ rows[..., None])[..., 0]
        np.testing.assert_array_equal(to_host(part @ xp.asarray(rows)), expected)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_nothing_is_copied(dtype):
    M = np.ones((400, 400), dtype)
    S = sp.csr_array(M)
    for form in (M, S):
        tracemalloc.start()
        A = aslinearoperator(form)
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert held < M.nbytes / 10
        np.testing.assert_array_equal(A.rmatvec(np.ones(400, dtype)), np.full(400, 400.0))


def test_an_operator_of_scipy_without_an_adjoint_multiplies(rng):
    M = matrix(rng, (3, 3))
    A = aslinearoperator(spla.LinearOperator((3, 3), matvec=lambda v: M @ v))
    np.testing.assert_array_equal(A @ np.ones(3), M @ np.ones(3))


def test_anything_with_shape_and_matvec_is_an_operator(rng):
    M = matrix(rng, (2, 3))

    class Foreign:
        shape = (2, 3)

        def matvec(self, v):
            return M @ v

    A = aslinearoperator(Foreign())
    np.testing.assert_array_equal(A @ np.ones(3), M @ np.ones(3))
    with pytest.raises(TypeError, match="without `rmatvec`"):
        A.rmatvec(np.ones(2))


@pytest.mark.parametrize("batch", [(), (2,), (2, 2)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_to_scipy_is_the_block_diagonal_matrix(rng, batch, dtype):
    M = matrix(rng, (*batch, 3, 2), dtype)
    whole = aslinearoperator(M).to_scipy()
    assert isinstance(whole, spla.LinearOperator)
    expected = sp.block_diag(list(M.reshape(-1, 3, 2))).toarray()
    assert whole.shape == expected.shape
    assert whole.dtype == dtype
    np.testing.assert_array_equal(whole @ np.eye(expected.shape[1]), expected)
    np.testing.assert_array_equal(whole.H @ np.eye(expected.shape[0]), expected.conj().T)
    np.testing.assert_array_equal(whole.T @ np.eye(expected.shape[0]), expected.T)


def test_states_become_flat_vectors(rng):
    A = LinearOperator(lambda v: v.T * 2, lambda w: w.T * 2, in_shape=(2, 3), out_shape=(3, 2))
    v = rng.standard_normal(6)
    np.testing.assert_array_equal(A.to_scipy() @ v, 2 * v.reshape(2, 3).T.reshape(-1))


def test_an_operator_with_a_dtype_of_another_library_converts(xp):
    A = LinearOperator(lambda v: 2 * v, in_shape=3, dtype=xp.float32)
    whole = A.to_scipy()
    assert whole.dtype == np.float32
    np.testing.assert_array_equal(whole @ np.ones(3, np.float32), np.full(3, 2.0))


def test_without_an_adjoint_scipy_gets_the_same_refusal():
    whole = LinearOperator(lambda v: v, in_shape=2).to_scipy()
    with pytest.raises((TypeError, NotImplementedError)):
        whole.rmatvec(np.ones(2))


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (None, TypeError, ["`A`", "NoneType"]),
        (lambda v: v, TypeError, ["`A`", "function"]),
        ("jacobi", TypeError, ["`A`", "str"]),
        (3.0, TypeError, ["`A`", "float"]),
        (np.ones(3), ValueError, ["`A`", "two axes", "(3,)"]),
        (np.eye(2, dtype=object), TypeError, ["`A`", "object"]),
        (np.asarray([["a"]]), TypeError, ["`A`", "<U1"]),
        ([[1.0], [1.0, 2.0]], (TypeError, ValueError), ["`A`"]),
    ],
    ids=["None", "function", "name", "number", "vector", "objects", "strings", "ragged"],
)
def test_what_is_no_matrix_is_named(given, error, words):
    with pytest.raises(error) as caught:
        aslinearoperator(given)
    for word in words:
        assert word in str(caught.value)
