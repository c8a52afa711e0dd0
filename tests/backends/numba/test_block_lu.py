"""Large blocks in compiled loops, and what `BlockLU` does where pivoting inside the blocks is not enough."""

import numpy as np
import pytest

pytest.importorskip("numba")

from implicitsolve import BlockBandedMatrix, BlockLU, Status
from implicitsolve.backends.numba import _jit
from implicitsolve.backends.numba._block_lu import BandFactors
from implicitsolve.kernels import _contract, _lapack, block_lu
from tests.helpers.direct import normal, random_blocks, scaled_residuals

SLOW = [pytest.param(dtype, marks=pytest.mark.slow) for dtype in (np.float32, np.complex128)]
BANDS = [(1, 1), (2, 1), (1, 2), (3, 2)]
BOUND = 30


def random_matrix(rng, B, T, k, dtype=np.float64, lower=1, upper=1, diagonal=2.0):
    blocks = random_blocks(rng, (B, T, lower, upper, k), dtype, diagonal * (lower + upper + 1))
    return BlockBandedMatrix(blocks, lower=lower, upper=upper)


def factored(A, **settings):
    factor, _ = block_lu.implementations["numba"]
    return factor(A.blocks, A.lower, A.upper, pivoting="block", **settings)


def check(inverse, A, rng):
    dense = A.todense()
    for M, solve in ((dense, inverse.matmat), (dense.conj().swapaxes(1, 2), inverse.rmatmat)):
        for K in (1, 3, 40):
            b = normal(rng, (len(dense), A.shape[0], K), A.dtype)
            before = b.copy()
            x = solve(b)
            assert x.dtype == A.dtype
            np.testing.assert_array_equal(b, before)
            assert scaled_residuals(M, x, b).max() < BOUND


@pytest.mark.parametrize("k", [20, 24, 32])
@pytest.mark.parametrize("dtype", [np.float64, np.complex64, *SLOW])
def test_solves_for_vectors_columns_and_the_adjoint(dtype, k, rng):
    for lower, upper in BANDS:
        for T in (2 + max(lower, upper), 7):
            A = random_matrix(rng, 2, T, k, dtype, lower, upper)
            before = A.blocks.copy()
            inverse = BlockLU(pivoting="block").factor(A)
            assert isinstance(inverse._factored.factors, BandFactors)
            assert (inverse.growth < 4).all()
            check(inverse, A, rng)
            np.testing.assert_array_equal(A.blocks, before)


def test_same_as_lapack(rng):
    A = random_matrix(rng, 2, 6, 24)
    ours, theirs = factored(A), _lapack.block_lu(A.blocks, 1, 1)
    b = rng.normal(size=(2, 6, 24, 2))
    np.testing.assert_allclose(ours.solve(b), theirs.solve(b), rtol=1e-10)


@pytest.mark.parametrize("kind", ["graded rows", "graded blocks", "tiny diagonal", "singular diagonal", "random"])
@pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.complex64, marks=pytest.mark.slow)])
def test_hard_matrices_are_pivoted_over_the_band(kind, dtype, rng):
    digits = 12 if dtype is np.float64 else 4
    A = random_matrix(rng, 3, 6, 24, dtype, diagonal=0.0)
    if kind == "graded rows":
        A.blocks[...] *= (10.0 ** rng.integers(-digits // 2, digits // 2, size=(3, 6, 1, 24, 1))).astype(dtype)
    elif kind == "graded blocks":
        A.blocks[...] *= (10.0 ** (-digits * np.arange(6) / 6)).astype(dtype)[:, None, None, None]
    elif kind == "tiny diagonal":
        A.diagonal[...] *= dtype(10.0**-digits)
    elif kind == "singular diagonal":
        A.diagonal[1, ::2] = 0
    inverse = BlockLU().factor(A)
    assert (inverse.status == Status.CONVERGED).all()
    assert (inverse.growth <= BlockLU().growth_limit).all()
    check(inverse, A, rng)


def test_only_the_system_with_a_singular_block_is_factored_again(rng):
    A = random_matrix(rng, 3, 6, 24)
    expected = factored(A).solve(np.ones((3, 6, 24, 1)))[..., 0]
    A.diagonal[1, 2] = 0
    assert factored(A).singular.tolist() == [-1, -1, -1]  # what comes from its neighbours makes it regular
    A.diagonal[1, 0] = 0
    factors = factored(A)
    assert factors.singular.tolist() == [-1, 0, -1]
    assert np.isinf(factors.growth[1])
    for adjoint in (False, True):
        x = factors.solve(np.ones((3, 6, 24, 2)), adjoint)
        assert np.isnan(x[1]).all()
        assert np.isfinite(x[[0, 2]]).all()
    x = BlockLU().factor(A).solve(np.ones((3, 6, 24)))
    np.testing.assert_array_equal(x[[0, 2]], expected[[0, 2]])
    np.testing.assert_allclose((A @ x)[1], 1.0, atol=1e-10)


@pytest.mark.parametrize(("place", "value"), [((0, 1), np.nan), ((3, 0), np.inf), ((5, 1), np.inf), ((2, 2), np.nan)])
def test_nan_and_infinity_end_in_nan(place, value, rng):
    A = random_matrix(rng, 2, 6, 24)
    A.blocks[(1, *place, 5, 7)] = value
    inverse = BlockLU().factor(A)
    assert inverse.status.tolist() == [Status.CONVERGED, Status.SINGULAR]
    x = inverse.solve(np.ones((2, 6, 24)))
    assert np.isfinite(x[0]).all()
    assert np.isnan(x[1]).all()


@pytest.mark.parametrize("K", [1, 5])
@pytest.mark.parametrize("k", [24, 32])
def test_a_batch_changes_no_bit(k, K, rng, monkeypatch):
    A, b = random_matrix(rng, 3, 7, k), rng.normal(size=(3, 7 * k, K))
    inverse = BlockLU().factor(A)
    together, backwards = inverse.matmat(b), inverse.rmatmat(b)
    monkeypatch.setattr(_jit, "LEAST_OPERATIONS", 0)
    monkeypatch.setattr(_jit.config, "NUMBA_NUM_THREADS", 3)
    np.testing.assert_array_equal(BlockLU().factor(A).matmat(b), together)
    for i in range(3):
        alone = BlockLU().factor(BlockBandedMatrix(A.blocks[i], lower=1, upper=1))
        assert alone.growth == inverse.growth[i]
        np.testing.assert_array_equal(alone.matmat(b[i]), together[i])
        np.testing.assert_array_equal(alone.rmatmat(b[i]), backwards[i])


@pytest.mark.parametrize("scale", [2.0**-300, 2.0**300])
def test_powers_of_two_change_no_bit(scale, rng):
    A, b = random_matrix(rng, 2, 5, 24, diagonal=0.5), rng.normal(size=(2, 5, 24, 1))
    plain, scaled = factored(A), factored(A * scale)
    np.testing.assert_array_equal(scaled.growth, plain.growth)
    np.testing.assert_array_equal(scaled.solve(b) * scale, plain.solve(b))


def test_in_place(rng):
    A = random_matrix(rng, 2, 6, 24)
    expected = factored(A).solve(np.ones((2, 6, 24, 1)))
    factors = factored(A, overwrite=True)
    assert np.shares_memory(factors.F, A.blocks)
    assert factors.nbytes == A.blocks.nbytes + 2 * 6 * 25 * 4
    np.testing.assert_array_equal(factors.solve(np.ones((2, 6, 24, 1))), expected)


@pytest.mark.parametrize("shape", [(0, 5, 3, 24, 24), (2, 0, 3, 24, 24)])
def test_nothing_to_solve(shape):
    factors = factored(BlockBandedMatrix(np.zeros(shape), lower=1, upper=1))
    assert factors.solve(np.zeros((*shape[:2], 24, 1))).shape == (*shape[:2], 24, 1)


@pytest.mark.parametrize(
    ("T", "k", "pivoting", "with_numba", "without"),
    [
        (15, 1, "block", "reference", "reference"),
        (16, 1, "block", "numba", "reference"),
        (1, 24, "band", "numba", "lapack"),
        (65, 1, "band", "numba", "lapack"),
        (5, 23, "band", "numba", "reference"),
        (5, 32, "block", "numba", "lapack"),
        (5, 32, "band", "numba", "lapack"),
    ],
)
def test_the_sizes_of_one_system_choose_the_backend(T, k, pivoting, with_numba, without, monkeypatch):
    block_lu.load("numba")
    choices = {name: function for name, (function, _) in block_lu.implementations.items()}
    choices["reference"] = block_lu.reference
    facts = {"length": T, "block_size": k, "lower": 1, "upper": 1, "pivoting": pivoting}
    assert block_lu.select(np.ones(1), **facts) is choices[with_numba]
    monkeypatch.setattr(_contract, "is_installed", lambda backend: False)
    assert block_lu.select(np.ones(1), **facts) is choices[without]


def test_each_system_is_solved_as_alone(rng):
    blocks = random_matrix(rng, 4, 6, 4).blocks
    blocks[0, :, 0], blocks[0, :, 2] = np.triu(blocks[0, :, 0]), np.tril(blocks[0, :, 2])
    blocks[2, 2, 1, 0, 0] = 0.0  # interchanges are needed
    blocks[3, 4] = 0.0  # singular
    inverse = BlockLU().factor(BlockBandedMatrix(blocks, lower=1, upper=1))
    b = rng.normal(size=(4, 6, 4))
    x = inverse.solve(b)
    for i in range(3):
        one = BlockBandedMatrix(blocks[i], lower=1, upper=1)
        np.testing.assert_array_equal(x[i], BlockLU().factor(one).solve(b[i]))
        np.testing.assert_allclose((one @ x[i]), b[i], atol=1e-9)
        np.testing.assert_allclose(inverse.take(np.asarray([i])).solve(b[[i]])[0], x[i], rtol=1e-12)
    assert inverse.status.tolist() == [1, 1, 1, 9]
    assert np.isnan(x[3]).all()
