"""SparseMatrix: products, adjoint products and conversion are those of the dense matrix."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.structure._sparse import Sparse


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 12),
    batch=st.sampled_from([(), (1,), (3,), (2, 2)]),
    is_complex=st.booleans(),
)
def test_products(seed, n, batch, is_complex):
    random = np.random.default_rng(seed)
    structure = Sparse(random.random((n, n)) < 0.4)
    data = random.normal(size=(*batch, structure.nnz)) + (1j * random.normal() if is_complex else 0.0)
    A = SparseMatrix(data, structure)
    dense = A.todense()
    v = random.normal(size=(*batch, n))
    assert np.allclose(A @ v, np.einsum("...ij,...j->...i", dense, v))
    assert np.allclose(A.rmatvec(v), np.einsum("...ji,...j->...i", dense.conj(), v))
    assert np.allclose(A.H.matvec(v), A.rmatvec(v))
    columns = random.normal(size=(*batch, n, 3))
    assert np.allclose(A.matmat(columns), dense @ columns)
    assert np.allclose(A.diagonal(), np.diagonal(dense, axis1=-2, axis2=-1))
    if batch:
        assert np.allclose(A.take(np.array([0])).todense(), dense.reshape(-1, n, n)[:1])


def test_from_scipy_adds_duplicates():
    A = scipy.sparse.coo_array(([1.0, 2.0, 4.0], ([0, 0, 1], [0, 0, 1])), (2, 2))
    ours = SparseMatrix.from_scipy(A)
    assert ours.data.tolist() == [3.0, 4.0]
    assert np.array_equal(ours.to_sparse().toarray(), A.toarray())


def test_wrong_number_of_entries():
    with pytest.raises(ValueError, match=r"shape \(\.\.\., 2\)"):
        SparseMatrix(np.ones(3), Sparse(np.eye(2)))


def test_entries_in_strides_could_not_be_factorized():
    J = np.stack([c * np.eye(100) - np.roll(np.eye(100), 1, axis=0) - np.roll(np.eye(100), 7, axis=0) for c in (4, 5)])
    problem = ims.Problem(
        lambda x: np.einsum("bij,bj->bi", J, x) - 1.0, jac=lambda x: J, batch_ndim=1, structure=ims.Sparse(J[0] != 0)
    )
    result = ims.root(problem, np.zeros((2, 100)), method="sparse-newton")
    np.testing.assert_allclose(result.x, np.linalg.solve(J, np.ones((2, 100, 1)))[..., 0])
