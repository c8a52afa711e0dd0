"""Conversions of BlockBandedMatrix: dense, sparse and band storage, there and back."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve._arrays.host import to_host
from implicitsolve.operators import BlockBandedMatrix
from implicitsolve.structure import BlockBanded
from tests.operators.block_banded import LIBRARIES, SEEDS, cases, integers


@given(cases(), LIBRARIES)
def test_dense_and_back(case, xp):
    A = case.matrix(xp)
    dense = A.todense()
    np.testing.assert_array_equal(to_host(dense), case.dense, strict=True)
    back = BlockBandedMatrix.from_dense(dense, case.structure)
    np.testing.assert_array_equal(to_host(back.todense()), case.dense, strict=True)


@given(cases(batches=((), (1,))), st.sampled_from(["bsr", "csr", "csc"]))
def test_sparse_and_back(case, format):
    dense = case.dense.reshape(case.dense.shape[-2:])
    sparse = case.matrix().to_sparse(format)
    assert sparse.format == format
    assert sparse.has_sorted_indices
    np.testing.assert_array_equal(sparse.todense(), dense, strict=True)
    for given_matrix in (sparse, sparse.tocoo(), sp.csr_matrix(sparse)):
        back = BlockBandedMatrix.from_sparse(given_matrix, case.structure)
        np.testing.assert_array_equal(back.todense(), dense, strict=True)


def test_duplicates_of_a_sparse_matrix_add_up():
    twice = sp.bsr_array((np.ones((2, 2, 2)), [0, 0], [0, 2]), shape=(2, 2))
    A = BlockBandedMatrix.from_sparse(twice, BlockBanded(0, 0, 2))
    np.testing.assert_array_equal(A.todense(), np.full((2, 2), 2.0))
    assert twice.nnz == 8  # left as it was


def test_a_sparse_matrix_of_integers_becomes_float64():
    assert BlockBandedMatrix.from_sparse(sp.eye_array(4, dtype=int), BlockBanded(1, 0, 2)).dtype == np.float64


@given(st.integers(0, 3), st.integers(0, 3), st.integers(1, 12), SEEDS, LIBRARIES)
def test_any_band_of_lapack_is_read(kl, ku, n, seed, xp):
    ab = integers(seed, (2, kl + ku + 1, n))
    M = np.zeros((2, n, n))
    for i in range(n):
        for j in range(n):
            if -ku <= i - j <= kl:
                M[:, i, j] = ab[:, ku + i - j, j]
    rows = np.arange(-ku, kl + 1)[:, None] + np.arange(n)
    ab = np.where((rows < 0) | (rows >= n), np.nan, ab)  # the unused corners
    scalar = BlockBandedMatrix.from_banded((kl, ku), xp.asarray(ab))
    assert scalar.structure == BlockBanded(kl, ku)
    np.testing.assert_array_equal(to_host(scalar.todense()), M)


@pytest.mark.parametrize(
    "read",
    [
        BlockBandedMatrix.from_dense,
        lambda M, s: BlockBandedMatrix.from_sparse(sp.csr_array(M), s),
    ],
    ids=["dense", "sparse"],
)
def test_entries_outside_the_structure_are_an_error(read):
    inside = BlockBandedMatrix(np.ones((5, 3, 2, 2)), lower=1, upper=1).todense()
    M = inside.copy()
    M[0, 7] = 1.0
    with pytest.raises(ValueError, match="outside BlockBanded"):
        read(M, BlockBanded(1, 1, 2))
    np.testing.assert_array_equal(read(M, BlockBanded(1, 3, 2)).todense(), M)
