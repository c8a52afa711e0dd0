"""Every implementation against the dense matrix, and against the reference."""

import numpy as np
import pytest

from implicitsolve._arrays.host import to_host
from implicitsolve._arrays.namespace import host_dtype
from implicitsolve.kernels import block_lu, cyclic_reduction
from tests.helpers.direct import normal, random_blocks

block_lu.load("numba")


def implementations(kernel):
    compiled = [pytest.param(f, id=name) for name, (f, _) in kernel.implementations.items() if name != "cupy"]
    return [pytest.param(kernel.reference, id="reference"), *compiled]


KERNELS = [
    *[pytest.param("block", p.values[0], id=f"block-{p.id}") for p in implementations(block_lu)],
    *[pytest.param("band", p.values[0], id=f"band-{p.id}") for p in implementations(block_lu)],
    *[pytest.param(None, p.values[0], id=f"cyclic-{p.id}") for p in implementations(cyclic_reduction)],
]


@pytest.mark.parametrize(("pivoting", "factor"), KERNELS)
class TestFactors:
    def factor_of(self, factor, pivoting, blocks):
        return factor(blocks) if pivoting is None else factor(blocks, 1, 1, pivoting=pivoting)

    def test_take(self, factor, pivoting, rng):
        blocks, b = random_blocks(rng, (4, 5, 1, 1, 2)), rng.normal(size=(4, 5, 2, 2))
        factors = self.factor_of(factor, pivoting, blocks)
        chosen = np.asarray([2, 0])
        part = factors.take(chosen)
        np.testing.assert_array_equal(part.solve(b[chosen]), factors.solve(b)[chosen])
        np.testing.assert_array_equal(part.growth, factors.growth[chosen])
        np.testing.assert_array_equal(part.singular, [-1, -1])

    def test_no_systems_no_blocks_no_columns(self, factor, pivoting):
        for B, T, K in ((0, 3, 1), (2, 3, 0), (0, 0, 1)):
            blocks = np.zeros((B, T, 3, 2, 2))
            blocks[:, :, 1] = np.eye(2)
            factors = self.factor_of(factor, pivoting, blocks)
            assert factors.singular.shape == factors.growth.shape == (B,)
            assert factors.solve(np.zeros((B, T, 2, K))).shape == (B, T, 2, K)


@pytest.mark.parametrize("pivoting", ["block", "band"])
def test_implementations_find_the_same_singular_block(pivoting, rng):
    blocks = random_blocks(rng, (1, 6, 1, 1, 3))
    blocks[0, 3, 1, :, 2] = blocks[0, 2, 2, :, 2] = blocks[0, 4, 0, :, 2] = 0  # a zero column of block column 3
    for function in [block_lu.reference, *(f for name, (f, _) in block_lu.implementations.items() if name != "cupy")]:
        assert function(blocks, 1, 1, pivoting=pivoting).singular.tolist() == [3]


@pytest.mark.parametrize("pivoting", ["block", "band"])
def test_references_work_on_any_array_library(pivoting, xp, any_dtype, rng):
    host = random_blocks(rng, (2, 5, 1, 2, 2), host_dtype(any_dtype))
    b = normal(rng, (2, 5, 2, 2), host.dtype)
    factors = block_lu.reference(xp.asarray(host), 1, 2, pivoting=pivoting)
    x = factors.solve(xp.asarray(b))
    assert x.dtype == any_dtype
    expected = block_lu.reference(host, 1, 2, pivoting=pivoting).solve(b)
    np.testing.assert_allclose(to_host(x), expected, atol=1e3 * np.finfo(host.dtype).eps)
    assert (factors.take(np.asarray([1])).singular == -1).all()


@pytest.mark.parametrize("adjoint", [False, True])
def test_reduction_works_on_any_array_library(adjoint, xp, rng):
    host, b = random_blocks(rng, (2, 6, 1, 1, 2), np.complex128), normal(rng, (2, 6, 2, 2), np.complex128)
    x = cyclic_reduction.reference(xp.asarray(host)).solve(xp.asarray(b), adjoint)
    np.testing.assert_allclose(to_host(x), block_lu.reference(host, 1, 1).solve(b, adjoint), atol=1e-13)
