"""Conversions fill every place of the storage, also those outside the matrix."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve import BlockBanded, BlockBandedMatrix


@given(
    T=st.integers(1, 6),
    lower=st.integers(0, 2),
    upper=st.integers(0, 2),
    k=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
@pytest.mark.parametrize("convert", ["dense", "sparse"])
def test_blocks_outside_the_matrix_are_zero_and_the_others_where_they_belong(convert, T, lower, upper, k, seed):
    rng = np.random.default_rng(seed)
    expected = np.zeros((T, lower + upper + 1, k, k))
    dense = np.zeros((T * k, T * k))
    for t in range(T):
        for j in range(lower + upper + 1):
            column = t + j - lower
            if 0 <= column < T:
                expected[t, j] = dense[t * k : t * k + k, column * k : column * k + k] = rng.normal(size=(k, k))
    structure = BlockBanded(lower, upper, k)
    if convert == "dense":
        A = BlockBandedMatrix.from_dense(dense, structure)
    else:
        A = BlockBandedMatrix.from_sparse(scipy.sparse.csr_array(dense), structure)
    np.testing.assert_array_equal(A.blocks, expected)
    np.testing.assert_array_equal(A.todense(), dense)
    for form in ("bsr", "csr", "csc"):
        np.testing.assert_array_equal(A.tosparse(form).toarray(), dense)
