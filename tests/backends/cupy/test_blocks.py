"""Block LU along the rows, over the band, and substitution, on a device."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from implicitsolve import BlockLU
from implicitsolve._arrays.host import to_host
from implicitsolve.kernels import block_lu
from tests.backends.cupy.block_systems import (
    Case,
    Contract,
    check,
    check_the_way_over_the_band,
    scaled_residuals,
    solved,
)

pytestmark = pytest.mark.gpu

CASES = {
    "threads-1": Case("block", k=1, T=11),
    "threads-2": Case("block", k=2, T=9, lower=2),
    "threads-3": Case("block", k=3, T=7, upper=2, dtype="float32"),
    "threads-4": Case("block", k=4, T=7),
    "lanes-5": Case("block", k=5, T=7, dtype="float32"),
    "lanes-9": Case("block", k=9, T=5, lower=2, upper=2),
    "band": Case("band", k=1, T=35),
    "upper": Case("block", k=2, T=9, lower=0, upper=2),
    "lower": Case("block", k=5, T=7, lower=1, upper=0),
}


class TestFactors(Contract):
    @pytest.fixture(params=CASES.values(), ids=CASES.keys())
    def case(self, request):
        return request.param


@pytest.mark.parametrize("T", [1, 2, 3, 33, 65])
@pytest.mark.parametrize("k", [1, 4, 5])
def test_lengths(k, T, device, rng):
    for lower, upper in ((1, 1), (0, 2), (1, 0)):
        lower, upper = min(lower, T - 1), min(upper, T - 1)
        case = Case("block", k, T, lower, upper)
        blocks = case.blocks(rng, 2)
        check(device, case, case.factor(device, blocks), blocks, case.columns(rng, 2, 1))


@pytest.mark.parametrize("T", [1, 2, 3, 10, 33, 64, 65])
def test_lengths_over_the_band(T, device, rng):
    case = Case("band", 1, T)
    blocks = case.blocks(rng, 34, diagonal=0.0)
    check(device, case, case.factor(device, blocks), blocks, case.columns(rng, 34, 2))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1), B=st.integers(1, 70), T=st.integers(1, 20), K=st.integers(1, 3))
@pytest.mark.parametrize("pivoting", ["block", "band"])
def test_any_batch(pivoting, seed, B, T, K, device):
    rng, case = np.random.default_rng(seed), Case(pivoting, 1, T)
    blocks, b = case.blocks(rng, B, diagonal=0.0), case.columns(rng, B, K)
    factors = case.factor(device, blocks)
    for adjoint in (False, True):
        residuals = scaled_residuals(case, blocks, solved(device, factors, b, adjoint), b, adjoint)
        assert (residuals <= 4 * factors.growth).all()
    if pivoting == "band":
        assert (factors.growth <= 2 + 1e-6).all()


@pytest.mark.parametrize("k", [2, 3, 4, 5, 9])
def test_rows_are_exchanged_inside_a_block(k, device, rng):
    case = Case("block", k, 5)
    blocks = case.blocks_to_exchange(rng, 2)
    factors = case.factor(device, blocks)
    assert (factors.growth < 8).all()
    check(device, case, factors, blocks, case.columns(rng, 2, 2))


def test_rows_are_exchanged_over_the_band(device, rng):
    case = Case("band", 1, 8)
    blocks = case.blocks(rng, 2)
    blocks[:, :, 1] = 0  # of an even length: regular all the same
    factors = case.factor(device, blocks)
    assert factors.singular.tolist() == [-1, -1]
    check(device, case, factors, blocks, case.columns(rng, 2, 2))
    assert Case("block", 1, 8).factor(device, blocks).singular.tolist() == [0, 0]


def test_a_tiny_pivot_whose_reciprocal_overflows_counts_as_zero(device):
    blocks = np.ones((1, 3, 3, 1, 1), np.float32)
    blocks[0, 1:, 0] = 0
    blocks[0, 0, 1] = 1e-40
    for pivoting in ("block", "band"):
        assert Case(pivoting, 1, 3, dtype="float32").factor(device, blocks).singular.tolist() == [0]


@pytest.mark.parametrize("k", [2, 5])
def test_a_singular_block_is_taken_over_the_band_by_default(k, device, rng):
    A, b, inverse = check_the_way_over_the_band(device, rng, BlockLU, k, 0)
    x = BlockLU(backend="cupy").factor(A).solve(device.asarray(b))
    np.testing.assert_array_equal(to_host(x), to_host(inverse.solve(device.asarray(b))))


def test_what_is_chosen(device):
    like, case = device.zeros(1), {"length": 9, "lower": 1, "upper": 1}
    function = block_lu.select(like, pivoting="block", block_size=3, **case)
    assert function is not block_lu.reference
    assert block_lu.select(like, pivoting="block", block_size=100, **case) is function
    case |= {"lower": 3}
    assert block_lu.select(like, pivoting="block", block_size=100, **case) is block_lu.reference
    complex_like = device.zeros(1, dtype=device.complex64)
    case = {"length": 9, "lower": 1, "upper": 1, "block_size": 3}
    assert block_lu.select(complex_like, pivoting="block", **case) is block_lu.reference
    assert block_lu.select(np.zeros(1), pivoting="block", **case) is not function


@pytest.mark.parametrize("k", [2, 5])
def test_launches_do_not_depend_on_the_length(k, device, double, rng):
    found = set()
    for T in (5, 64):
        case = Case("block", k, T)
        blocks, b = device.asarray(case.blocks(rng, 2)), device.asarray(case.columns(rng, 2, 1))
        double.reset()
        factors = case.factor(device, blocks)
        factoring = double.counts["launch"]
        factors.solve(b)
        found.add((factoring, double.counts["launch"] - factoring))
    assert found == {(1, 1)}
