"""Every implementation against the dense matrix, and against the reference."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from implicitsolve import BlockBandedMatrix
from implicitsolve._arrays.host import to_host
from implicitsolve._arrays.namespace import host_dtype
from implicitsolve.kernels import block_lu, cyclic_reduction

block_lu.load("numba")
DTYPES = [np.float32, np.float64, np.complex64, np.complex128]
SHAPES = [(1, 0, 0), (1, 1, 1), (2, 1, 1), (5, 1, 1), (9, 1, 1), (6, 2, 1), (6, 1, 2), (7, 3, 3), (4, 0, 2), (4, 2, 0)]


def implementations(kernel):
    compiled = [pytest.param(f, id=name) for name, (f, _) in kernel.implementations.items() if name != "cupy"]
    return [pytest.param(kernel.reference, id="reference"), *compiled]


def dtypes_of(factor):
    """Compiling takes seconds for each dtype and block size; the backend's own tests have more."""
    return [np.float64] if "numba" in factor.__module__ else DTYPES


def random_blocks(rng, B, T, m, k, dtype, lower, diagonal=4.0):
    blocks = rng.normal(size=(B, T, m, k, k)) + (1j * rng.normal(size=(B, T, m, k, k)) if is_complex(dtype) else 0)
    blocks[:, :, lower] += diagonal * k**0.5 * np.eye(k)
    column = np.arange(T)[:, None] + np.arange(m) - lower
    blocks[:, (column < 0) | (column >= T)] = np.nan  # never read
    return blocks.astype(dtype)


def random_columns(rng, B, T, k, K, dtype):
    b = rng.normal(size=(B, T, k, K)) + (1j * rng.normal(size=(B, T, k, K)) if is_complex(dtype) else 0)
    return b.astype(dtype)


def is_complex(dtype):
    return np.dtype(dtype).kind == "c"


def scaled_residual(A, x, b):
    """max|b - A x| / ((||A||_inf max|x| + max|b|) eps) of systems (B, N, N), (B, N, K): the largest."""
    axes = (1, 2)
    bound = np.abs(A).sum(axis=2).max(axis=1) * np.abs(x).max(axis=axes) + np.abs(b).max(axis=axes)
    return (np.abs(b - A @ x).max(axis=axes) / (bound * np.finfo(A.dtype).eps)).max()


def check(factors, blocks, lower, upper, b, bound=30):
    A = BlockBandedMatrix(blocks, lower=lower, upper=upper).todense()
    B, T, k, K = b.shape
    for adjoint in (False, True):
        before = b.copy()
        x = factors.solve(b, adjoint)
        assert (x.shape, x.dtype) == (b.shape, b.dtype)
        np.testing.assert_array_equal(b, before)
        M = A.conj().swapaxes(1, 2) if adjoint else A
        assert scaled_residual(M, x.reshape(B, T * k, K), b.reshape(B, T * k, K)) < bound
    assert factors.nbytes > 0


@pytest.mark.parametrize("pivoting", ["block", "band"])
@pytest.mark.parametrize("factor", implementations(block_lu))
def test_block_lu_solves(factor, pivoting, rng):
    for dtype, (T, lower, upper), k in itertools.product(dtypes_of(factor), SHAPES, (1, 3)):
        blocks = random_blocks(rng, 2, T, lower + upper + 1, k, dtype, lower)[:, :, max(lower - T + 1, 0) :]
        lower, upper = min(lower, T - 1), min(upper, T - 1)
        blocks = np.ascontiguousarray(blocks[:, :, : lower + upper + 1])
        before = blocks.copy()
        factors = factor(blocks, lower, upper, pivoting=pivoting)
        np.testing.assert_array_equal(blocks, before)
        assert (factors.singular == -1).all()
        assert (factors.growth < 16).all()
        check(factors, blocks, lower, upper, random_columns(rng, 2, T, k, 3, dtype))
        check(factors, blocks, lower, upper, random_columns(rng, 2, T, k, 1, dtype))


@pytest.mark.parametrize("pivoting", ["block", "band"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_lapack_on_large_blocks(pivoting, dtype, rng):
    factor, _ = block_lu.implementations["lapack"]
    for T, lower, upper, K in ((5, 1, 1, 1), (6, 2, 1, 4), (6, 1, 2, 2), (3, 0, 0, 1)):
        blocks = random_blocks(rng, 2, T, lower + upper + 1, 24, dtype, lower, diagonal=2.0)
        factors = factor(blocks, lower, upper, pivoting=pivoting)
        check(factors, blocks, lower, upper, random_columns(rng, 2, T, 24, K, dtype))


@pytest.mark.parametrize("factor", implementations(cyclic_reduction))
def test_cyclic_reduction_solves(factor, rng):
    for dtype, T, k in itertools.product(dtypes_of(factor), (1, 2, 3, 4, 7, 8, 16, 17), (1, 3)):
        blocks = random_blocks(rng, 2, T, 3, k, dtype, 1)
        factors = factor(blocks)
        check(factors, blocks, 1, 1, random_columns(rng, 2, T, k, 2, dtype))


KERNELS = [
    *[pytest.param("block", p.values[0], id=f"block-{p.id}") for p in implementations(block_lu)],
    *[pytest.param("band", p.values[0], id=f"band-{p.id}") for p in implementations(block_lu)],
    *[pytest.param(None, p.values[0], id=f"cyclic-{p.id}") for p in implementations(cyclic_reduction)],
]


@pytest.mark.parametrize(("pivoting", "factor"), KERNELS)
class TestFactors:
    def factor_of(self, factor, pivoting, blocks):
        return factor(blocks) if pivoting is None else factor(blocks, 1, 1, pivoting=pivoting)

    def test_one_bad_system_is_named_and_leaves_its_neighbours_alone(self, factor, pivoting, rng):
        blocks = random_blocks(rng, 4, 6, 3, 2, np.float64, 1)
        b = random_columns(rng, 4, 6, 2, 1, np.float64)
        good = self.factor_of(factor, pivoting, blocks).solve(b)
        blocks[1, 3, :, 0] = 0  # a zero row
        blocks[2, 4, 1, 1, 1] = np.nan
        factors = self.factor_of(factor, pivoting, blocks)
        assert factors.singular[0] == factors.singular[3] == -1
        assert 0 <= factors.singular[1] < 6
        assert 0 <= factors.singular[2] < 6
        assert not np.isfinite(factors.growth[[1, 2]]).any()
        for adjoint in (False, True):
            x = factors.solve(b, adjoint)
            assert np.isnan(x[[1, 2]]).all()
            assert np.isfinite(x[[0, 3]]).all()
        np.testing.assert_array_equal(factors.solve(b)[[0, 3]], good[[0, 3]])

    def test_take(self, factor, pivoting, rng):
        blocks = random_blocks(rng, 4, 5, 3, 2, np.float64, 1)
        b = random_columns(rng, 4, 5, 2, 2, np.float64)
        factors = self.factor_of(factor, pivoting, blocks)
        chosen = np.asarray([2, 0])
        part = factors.take(chosen)
        np.testing.assert_array_equal(part.solve(b[chosen]), factors.solve(b)[chosen])
        np.testing.assert_array_equal(part.growth, factors.growth[chosen])
        np.testing.assert_array_equal(part.singular, [-1, -1])

    def test_scaling_by_a_power_of_two_changes_no_bit(self, factor, pivoting, rng):
        blocks = random_blocks(rng, 2, 6, 3, 2, np.float64, 1, diagonal=0.0)
        b = random_columns(rng, 2, 6, 2, 1, np.float64)
        x = self.factor_of(factor, pivoting, blocks).solve(b)
        scaled = self.factor_of(factor, pivoting, blocks * 2.0**40)
        np.testing.assert_array_equal(scaled.solve(b) * 2.0**40, x)

    def test_no_systems_no_blocks_no_columns(self, factor, pivoting):
        for B, T, K in ((0, 3, 1), (2, 3, 0), (0, 0, 1)):
            blocks = np.zeros((B, T, 3, 2, 2))
            blocks[:, :, 1] = np.eye(2)
            factors = self.factor_of(factor, pivoting, blocks)
            assert factors.singular.shape == factors.growth.shape == (B,)
            assert factors.solve(np.zeros((B, T, 2, K))).shape == (B, T, 2, K)


@pytest.mark.parametrize("pivoting", ["block", "band"])
def test_implementations_find_the_same_singular_block(pivoting, rng):
    blocks = random_blocks(rng, 1, 6, 3, 3, np.float64, 1)
    blocks[0, 3, 1, :, 2] = blocks[0, 2, 2, :, 2] = blocks[0, 4, 0, :, 2] = 0  # a zero column of block column 3
    for function in [block_lu.reference, *(f for name, (f, _) in block_lu.implementations.items() if name != "cupy")]:
        assert function(blocks, 1, 1, pivoting=pivoting).singular.tolist() == [3]


@pytest.mark.parametrize("pivoting", ["block", "band"])
def test_references_work_on_any_array_library(pivoting, xp, any_dtype, rng):
    host = random_blocks(rng, 2, 5, 4, 2, host_dtype(any_dtype), 1)
    b = random_columns(rng, 2, 5, 2, 2, host.dtype)
    factors = block_lu.reference(xp.asarray(host), 1, 2, pivoting=pivoting)
    x = factors.solve(xp.asarray(b))
    assert x.dtype == any_dtype
    expected = block_lu.reference(host, 1, 2, pivoting=pivoting).solve(b)
    np.testing.assert_allclose(to_host(x), expected, atol=1e3 * np.finfo(host.dtype).eps)
    assert (factors.take(np.asarray([1])).singular == -1).all()


@pytest.mark.parametrize("adjoint", [False, True])
def test_reduction_works_on_any_array_library(adjoint, xp, rng):
    host, b = random_blocks(rng, 2, 6, 3, 2, np.complex128, 1), random_columns(rng, 2, 6, 2, 2, np.complex128)
    x = cyclic_reduction.reference(xp.asarray(host)).solve(xp.asarray(b), adjoint)
    np.testing.assert_allclose(to_host(x), block_lu.reference(host, 1, 1).solve(b, adjoint), atol=1e-13)
