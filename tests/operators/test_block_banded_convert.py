"""Conversions of BlockBandedMatrix: dense, sparse and band storage, there and back."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve._namespace import to_host
from implicitsolve.operators import BlockBandedMatrix
from implicitsolve.structure import BlockBanded
from tests.operators.block_banded import LIBRARIES, SEEDS, Case, cases, integers


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


@given(cases(periodic=False), LIBRARIES)
def test_band_storage_and_back(case, xp):
    M, n = case.dense, case.dense.shape[-1]
    ab, (kl, ku) = case.matrix(xp).to_banded()
    s = case.structure
    assert (kl, ku) == ((s.lower + 1) * s.block_size - 1, (s.upper + 1) * s.block_size - 1)
    assert ab.shape == (*M.shape[:-2], kl + ku + 1, n)
    band = to_host(ab)
    for j in range(n):
        for i in range(max(0, j - ku), min(n, j + kl + 1)):
            np.testing.assert_array_equal(band[..., ku + i - j, j], M[..., i, j])
    back = BlockBandedMatrix.from_banded((kl, ku), ab, s)
    np.testing.assert_array_equal(to_host(back.todense()), M, strict=True)


@given(st.integers(0, 3), st.integers(0, 3), st.integers(1, 3), st.integers(1, 8), SEEDS, LIBRARIES)
def test_any_band_of_lapack_is_read(kl, ku, k, length, seed, xp):
    n = length * k
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
    wide = BlockBanded(-(-kl // k), -(-ku // k), k)
    np.testing.assert_array_equal(to_host(BlockBandedMatrix.from_banded((kl, ku), xp.asarray(ab), wide).todense()), M)


def test_lapack_solves_what_to_banded_gives(rng):
    case = Case(rng.standard_normal((7, 4, 3, 3)), BlockBanded(1, 2, 3))
    ab, l_and_u = case.matrix().to_banded()
    b = rng.standard_normal(21)
    np.testing.assert_allclose(case.dense @ scipy.linalg.solve_banded(l_and_u, ab, b), b, rtol=1e-9, atol=1e-9)
    assert ab.flags.f_contiguous


@pytest.mark.parametrize(
    "read",
    [
        lambda M, s, **drop: BlockBandedMatrix.from_dense(M, s, **drop),
        lambda M, s, **drop: BlockBandedMatrix.from_sparse(sp.csr_array(M), s, **drop),
        lambda M, s, **drop: BlockBandedMatrix.from_banded(*band_of(M), s, **drop),
    ],
    ids=["dense", "sparse", "banded"],
)
def test_entries_outside_the_structure_are_an_error_or_left_out(read):
    inside = BlockBandedMatrix(np.ones((5, 3, 2, 2)), lower=1, upper=1).todense()
    M = inside.copy()
    M[0, 7] = 1.0
    with pytest.raises(ValueError, match="outside BlockBanded"):
        read(M, BlockBanded(1, 1, 2))
    np.testing.assert_array_equal(read(M, BlockBanded(1, 1, 2), drop=True).todense(), inside)
    np.testing.assert_array_equal(read(M, BlockBanded(1, 3, 2)).todense(), M)


def band_of(M: np.ndarray) -> tuple[tuple[int, int], np.ndarray]:
    n = M.shape[0]
    ab = np.zeros((2 * n - 1, n))
    for i in range(n):
        for j in range(n):
            ab[n - 1 + i - j, j] = M[i, j]
    return (n - 1, n - 1), ab


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
        A = BlockBandedMatrix.from_sparse(sp.csr_array(dense), structure)
    np.testing.assert_array_equal(A.blocks, expected)
    np.testing.assert_array_equal(A.todense(), dense)
    for form in ("bsr", "csr", "csc"):
        np.testing.assert_array_equal(A.to_sparse(form).toarray(), dense)
