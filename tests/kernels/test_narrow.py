"""Block tridiagonal systems with triangular outer blocks, which are factored as scalar bands."""

import numpy as np
import pytest

from implicitsolve import BlockBandedMatrix, BlockLU
from implicitsolve.kernels import narrow_lu

pytest.importorskip("numba")
narrow_lu.load("numba")
compiled = narrow_lu.implementations["numba"][0]


def narrow(rng, B, T, k, dtype=np.float64, diagonal=6.0):
    blocks = rng.normal(size=(B, T, 3, k, k))
    if np.dtype(dtype).kind == "c":
        blocks = blocks + 1j * rng.normal(size=blocks.shape)
    blocks[:, :, 0], blocks[:, :, 2] = np.triu(blocks[:, :, 0]), np.tril(blocks[:, :, 2])
    blocks[:, :, 1] += diagonal * k**0.5 * np.eye(k)
    blocks[:, 0, 0] = blocks[:, -1, 2] = np.nan  # never read
    return blocks.astype(dtype)


SIZES = [(5, 4, np.float64), (2, 3, np.complex128)]
MORE = [(T, k, t) for T, k in [(2, 3), (5, 4), (3, 8), (4, 11)] for t in [np.float32, np.float64, np.complex128]]
MORE = [pytest.param(*size, marks=pytest.mark.slow) for size in MORE if size not in SIZES]


@pytest.mark.parametrize(("T", "k", "dtype"), [*SIZES, *MORE])
def test_solves(T, k, dtype, rng):
    blocks = narrow(rng, 2, T, k, dtype)
    before = blocks.copy()
    places, factors = compiled(blocks, 16.0)
    np.testing.assert_array_equal(blocks, before)
    assert places.tolist() == [0, 1]
    assert (factors.growth < 4).all()
    A = BlockBandedMatrix(blocks, lower=1, upper=1).todense()
    for K in (1, 3):
        b = rng.normal(size=(2, T, k, K)).astype(dtype)
        for M, adjoint in ((A, False), (A.conj().swapaxes(1, 2), True)):
            x = factors.solve(b, adjoint)
            expected = np.linalg.solve(M, b.reshape(2, T * k, K)).reshape(b.shape)
            np.testing.assert_allclose(x, expected, rtol=0, atol=100 * np.finfo(dtype).eps * np.abs(expected).max())


def test_only_narrow_systems_without_growth_are_factored(rng):
    blocks = narrow(rng, 6, 5, 4)
    blocks[1, 3, 0, 2, 1] = 1e-3  # below the triangle
    blocks[2, 1, 2, 0, 3] = 1e-3  # in a corner that is seen at once
    blocks[3, 2, 1, 0, 0] = 1e-9  # a pivot that makes entries grow
    blocks[3, 2, 0] = blocks[3, 1, 2] = 0
    blocks[4, 2, 1] = 0
    blocks[4, 2, 0] = 0  # singular
    places, factors = compiled(blocks, 16.0)
    assert places.tolist() == [0, 5]
    b = rng.normal(size=(6, 5, 4, 1))
    alone = compiled(blocks[[5]], 16.0)[1]
    np.testing.assert_array_equal(factors.solve(b[[0, 5]])[1], alone.solve(b[[5]])[0])
    np.testing.assert_array_equal(factors.take(np.asarray([1])).solve(b[[5]]), alone.solve(b[[5]]))


def test_none_at_all(rng):
    for blocks in (
        rng.normal(size=(2, 5, 3, 4, 4)),
        narrow(rng, 2, 1, 4),
        np.zeros((2, 5, 3, 4, 4)),
        narrow(rng, 0, 5, 4),
    ):
        places, factors = compiled(blocks, 16.0)
        assert places.size == 0
        assert factors is None


def test_block_lu_solves_each_system_as_alone(rng):
    blocks = narrow(rng, 4, 6, 4)
    blocks[1] = rng.normal(size=blocks.shape[1:])
    blocks[2, 2, 1, 0, 0] = 0.0  # interchanges are needed
    blocks[3, 4] = 0.0  # singular
    A = BlockBandedMatrix(blocks, lower=1, upper=1)
    inverse = BlockLU().factor(A)
    b = rng.normal(size=(4, 6, 4))
    x = inverse.solve(b)
    for i in range(3):
        one = BlockBandedMatrix(blocks[i], lower=1, upper=1)
        np.testing.assert_array_equal(x[i], BlockLU().factor(one).solve(b[i]))
        np.testing.assert_allclose((one @ x[i]), b[i], atol=1e-9)
        np.testing.assert_allclose(inverse.take(np.asarray([i])).solve(b[[i]])[0], x[i], rtol=1e-12)
    assert inverse.status.tolist() == [1, 1, 1, 9]
    assert np.isnan(x[3]).all()
