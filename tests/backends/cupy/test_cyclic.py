"""Cyclic reduction on a device: small blocks, and large ones."""

import numpy as np
import pytest

from implicitsolve import CyclicReduction
from implicitsolve._arrays.host import to_host
from tests.backends.cupy.block_systems import Case, Contract, check, check_the_way_over_the_band

pytestmark = pytest.mark.gpu

CASES = {
    "lanes-1": Case("cyclic", k=1, T=37),
    "lanes-3": Case("cyclic", k=3, T=9, dtype="float32"),
    "lanes-9": Case("cyclic", k=9, T=6),
    "large-22": Case("cyclic", k=22, T=6),
    "large-40": Case("cyclic", k=40, T=5, dtype="float32"),
}


class TestFactors(Contract):
    @pytest.fixture(params=CASES.values(), ids=CASES.keys())
    def case(self, request):
        return request.param


@pytest.mark.parametrize("T", [1, 2, 3, 4, 7, 8, 33, 70])
def test_lengths(T, device, rng):
    case = Case("cyclic", 3, T)
    blocks = case.blocks(rng, 3)
    check(device, case, case.factor(device, blocks), blocks, case.columns(rng, 3, 2))


@pytest.mark.parametrize("T", [1, 2, 3, 9])
def test_lengths_with_large_blocks(T, device, rng):
    case = Case("cyclic", 22, T)
    blocks = case.blocks(rng, 2)
    check(device, case, case.factor(device, blocks), blocks, case.columns(rng, 2, 9))


@pytest.mark.parametrize("k", [3, 22, 40])
def test_rows_are_exchanged_inside_a_block(k, device, rng):
    case = Case("cyclic", k, 5)
    blocks = case.blocks_to_exchange(rng, 2)
    factors = case.factor(device, blocks)
    assert (factors.growth < 8).all()
    check(device, case, factors, blocks, case.columns(rng, 2, 2))


@pytest.mark.parametrize("k", [3, 22])
def test_a_singular_block_is_taken_over_the_band_by_default(k, device, rng):
    check_the_way_over_the_band(device, rng, CyclicReduction, k, 3)


@pytest.mark.parametrize(("k", "T"), [(22, 3), (5, 65), (1, 1025)])
def test_block_lu_reduces_large_blocks_and_long_chains(k, T, device, double, rng):
    case = Case("block", k, T)
    blocks, b = device.asarray(case.blocks(rng, 1)), device.asarray(case.columns(rng, 1, 1))
    double.reset()
    factors = case.factor(device, blocks)
    assert double.sites["cyclic_found"] == 1
    np.testing.assert_array_equal(
        to_host(factors.solve(b)), to_host(Case("cyclic", k, T).factor(device, to_host(blocks)).solve(b))
    )


def test_each_level_is_one_launch(device, double, rng):
    launches = []
    for T in (16, 64, 256):
        case = Case("cyclic", 1, T)
        blocks, b = device.asarray(case.blocks(rng, 1)), device.asarray(case.columns(rng, 1, 1))
        double.reset()
        factors = case.factor(device, blocks)
        factoring = double.counts["launch"]
        factors.solve(b)
        launches.append((factoring, double.counts["launch"] - factoring))
    assert launches == [(4, 2), (5, 4), (7, 8)]


def test_each_level_of_large_blocks_is_five_launches(device, double, rng):
    for T, levels in ((3, 2), (9, 4)):
        case = Case("cyclic", 22, T)
        blocks, b = device.asarray(case.blocks(rng, 1)), device.asarray(case.columns(rng, 1, 1))
        double.reset()
        factors = case.factor(device, blocks)
        assert double.counts["launch"] <= 5 * (levels + 1) + 2
        double.reset()
        factors.solve(b)
        assert double.counts["launch"] <= 4 * levels + 2
