"""The compiled kernels against dense solves, and through the declared kernels against their references."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba")

from implicitsolve import kernels
from implicitsolve.backends.numba._jit import STATIC
from tests.helpers.direct import normal, scaled_residuals

# Each dtype and each block size up to STATIC is compiled on its own: seconds each.
SIZES = {"float64": [1, 2, STATIC + 1], "complex64": [2]}
BOUND = 30.0


def dense(blocks, lower):
    """The matrices (B, T k, T k); what lies outside of them becomes NaN in `blocks`."""
    B, T, m, k, _ = blocks.shape
    A = np.zeros((B, T, k, T, k), blocks.dtype)
    for t in range(T):
        for j in range(m):
            if 0 <= t + j - lower < T:
                A[:, t, :, t + j - lower, :] = blocks[:, t, j]
            else:
                blocks[:, t, j] = np.nan
    return A.reshape((B, T * k, T * k))


def check_solves(factors, A, k, rng, growth=1.0):
    B, N = A.shape[:2]
    for K in (1, 3):
        b = normal(rng, (B, N, K), A.dtype)
        for adjoint in (False, True):
            x = factors.solve(b.reshape((B, -1, k, K)), adjoint)
            assert x.dtype == A.dtype
            matrix = A.conj().swapaxes(1, 2) if adjoint else A
            assert scaled_residuals(matrix, x, b).max() < BOUND * growth


def factored(kernel, blocks, *bands, **settings):
    """Through the declared kernel, as the library calls it."""
    _, T, _, k, _ = blocks.shape
    facts = {"length": T, "block_size": k, "lower": bands[0] if bands else 1, "upper": 1}
    if kernel is kernels.block_lu:
        facts["pivoting"] = settings.get("pivoting", "block")
    return kernel.select(blocks, backend="numba", **facts)(blocks, *bands, **settings)


@pytest.mark.parametrize("dtype", SIZES)
@given(
    data=st.data(),
    seed=st.integers(0, 2**32 - 1),
    B=st.integers(1, 3),
    T=st.integers(1, 12),
    lower=st.integers(0, 3),
    upper=st.integers(0, 2),
)
def test_solves_what_a_dense_solve_does_up_to_the_growth(dtype, data, seed, B, T, lower, upper):
    rng, k = np.random.default_rng(seed), data.draw(st.sampled_from(SIZES[dtype]))
    blocks = normal(rng, (B, T, lower + upper + 1, k, k), dtype)
    A = dense(blocks, lower)
    over_the_band = factored(kernels.block_lu, blocks, lower, upper, pivoting="band")
    assert (over_the_band.singular == -1).all()
    check_solves(over_the_band, A, k, rng)
    inside = factored(kernels.block_lu, blocks.copy(), lower, upper, pivoting="block")
    check_solves(inside, A, k, rng, max(1.0, inside.growth.max()))
    in_place = factored(kernels.block_lu, blocks, lower, upper, pivoting="block", overwrite=True)
    b = np.ones((B, T, k, 1), dtype)
    np.testing.assert_array_equal(in_place.solve(b), inside.solve(b))


@pytest.mark.parametrize("k", [1, 2])
def test_same_as_the_reference(k, rng):
    blocks = normal(rng, (2, 9, 3, k, k), "float64")
    blocks[:, :, 1] += 4 * k * np.eye(k)
    ours, reference = factored(kernels.block_lu, blocks, 1, 1), kernels.block_lu.reference(blocks, 1, 1)
    b = rng.standard_normal((2, 9, k, 2))
    for adjoint in (False, True):
        np.testing.assert_allclose(ours.solve(b, adjoint), reference.solve(b, adjoint), rtol=1e-12)
    np.testing.assert_array_equal(ours.singular, reference.singular)
    assert (ours.growth < 2).all()
    assert (reference.growth < 2).all()


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("pivoting", ["block", "band"])
def test_singular_systems_are_named_and_give_nan(k, pivoting, rng):
    blocks = normal(rng, (3, 6, 3, k, k), "float64")
    blocks[:, :, 1] += 4 * k * np.eye(k)
    blocks[1, 3] = 0  # a block row of zeros
    factors = factored(kernels.block_lu, blocks, 1, 1, pivoting=pivoting)
    assert (factors.singular >= 0).tolist() == [False, True, False]
    assert np.isinf(factors.growth[1])
    for K in (1, 2):
        x = factors.solve(np.ones((3, 6, k, K)))
        assert np.isnan(x[1]).all()
        assert np.isfinite(x[[0, 2]]).all()
    taken = factors.take(np.asarray([2, 1]))
    np.testing.assert_array_equal(taken.solve(np.ones((2, 6, k, 1))), factors.solve(np.ones((3, 6, k, 1)))[[2, 1]])


@pytest.mark.parametrize("k", [1, 2])
def test_singular_diagonal_blocks_need_the_band(k, rng):
    blocks = normal(rng, (2, 8, 3, k, k), "float64")
    blocks[0, :, 1] = 0
    A = dense(blocks, 1)
    assert factored(kernels.block_lu, blocks, 1, 1, pivoting="block").singular[0] >= 0
    factors = factored(kernels.block_lu, blocks, 1, 1, pivoting="band")
    assert (factors.singular == -1).all()
    check_solves(factors, A, k, rng)
    check_solves(factors.take(np.asarray([1, 0])), A[::-1], k, rng)


@pytest.mark.parametrize(("place", "value"), [((0, 1), np.nan), ((3, 0), np.inf), ((5, 1), np.nan)])
@pytest.mark.parametrize("k", [1, 2])
def test_nan_and_infinity_end_in_nan(k, place, value, rng):
    blocks = normal(rng, (2, 6, 3, k, k), "float64")
    blocks[:, :, 1] += 4 * k * np.eye(k)
    blocks[(1, *place)] = value
    factors = factored(kernels.block_lu, blocks, 1, 1)
    x = factors.solve(np.ones((2, 6, k, 1)))
    assert np.isfinite(x[0]).all()
    assert factors.singular[1] >= 0
    assert np.isnan(x[1]).all()


@pytest.mark.parametrize("shape", [(0, 5, 3, 2, 2), (2, 0, 3, 2, 2)])
def test_nothing_to_solve(shape):
    factors = factored(kernels.block_lu, np.zeros(shape), 1, 1)
    assert factors.singular.shape == (shape[0],)
    assert factors.solve(np.zeros((*shape[:2], 2, 1))).shape == (*shape[:2], 2, 1)


def test_growth_over_long_chains_is_caught(rng):
    blocks = normal(rng, (1, 1000, 3, 1, 1), "float64")
    blocks[:, :, 1] *= 1e-8
    b = rng.standard_normal((1, 1000, 1, 1))
    assert factored(kernels.block_lu, blocks, 1, 1, pivoting="block").growth[0] > 1e3
    factors = factored(kernels.block_lu, blocks, 1, 1, pivoting="band")
    assert factors.growth[0] < 8
    assert scaled_residuals(dense(blocks, 1), factors.solve(b), b).max() < BOUND


@pytest.mark.parametrize("scale", [2.0**-500, 2.0**500])
@pytest.mark.parametrize("k", [1, 2])
def test_powers_of_two_change_no_decision(scale, k, rng):
    blocks = normal(rng, (2, 7, 3, k, k), "float64")
    b = rng.standard_normal((2, 7, k, 1))
    for pivoting in ("block", "band"):
        plain = factored(kernels.block_lu, blocks, 1, 1, pivoting=pivoting)
        scaled = factored(kernels.block_lu, blocks * scale, 1, 1, pivoting=pivoting)
        np.testing.assert_array_equal(scaled.solve(b) * scale, plain.solve(b))
        np.testing.assert_array_equal(scaled.growth, plain.growth)


def test_inputs_are_not_mutated_and_may_be_read_only(rng):
    blocks = normal(rng, (2, 7, 3, 2, 2), "float64")
    blocks.flags.writeable = False
    b = rng.standard_normal((2, 7, 2, 1))
    b.flags.writeable = False
    before = blocks.copy(), b.copy()
    factored(kernels.block_lu, blocks, 1, 1).solve(b)
    np.testing.assert_array_equal(blocks, before[0])
    np.testing.assert_array_equal(b, before[1])


def test_threads_change_nothing(rng, monkeypatch):
    from implicitsolve.backends.numba import _jit

    blocks = normal(rng, (20, 7, 3, 2, 2), "float64")
    b = rng.standard_normal((20, 7, 2, 1))
    alone = factored(kernels.block_lu, blocks, 1, 1, pivoting="band").solve(b)
    monkeypatch.setattr(_jit, "LEAST_OPERATIONS", 0)
    monkeypatch.setattr(_jit.config, "NUMBA_NUM_THREADS", 3)
    np.testing.assert_array_equal(factored(kernels.block_lu, blocks, 1, 1, pivoting="band").solve(b), alone)


@pytest.mark.parametrize("dtype", ["float32", "complex64", pytest.param("complex128", marks=pytest.mark.slow)])
def test_tridiagonal_dtypes(dtype, rng):
    for T in (1, 2, 3, 8):
        blocks = normal(rng, (2, T, 3, 1, 1), dtype)
        blocks[:, :, 1] += 4
        check_solves(factored(kernels.block_lu, blocks, 1, 1), dense(blocks, 1), 1, rng)


def test_memory_in_place(rng):
    blocks = normal(rng, (1, 50, 3, 2, 2), "float64")
    factors = factored(kernels.block_lu, blocks, 1, 1, overwrite=True)
    assert np.shares_memory(factors.F, blocks)
    assert factors.nbytes == blocks.nbytes + 50 * 4 * 3


@pytest.mark.parametrize("k", [1, 2])
def test_complex_pivots_that_are_zero_raised(k):
    """Numba's division of complex numbers raises ZeroDivisionError, which left `root` instead of a status."""
    for entry, T in ((0.0, 40), (1.0, 40), (0.0, 1)):
        factors = factored(kernels.block_lu, np.full((2, T, 3, k, k), entry, "complex64"), 1, 1)
        assert np.isnan(factors.solve(np.ones((2, T, k, 1), "complex64"))).all()
