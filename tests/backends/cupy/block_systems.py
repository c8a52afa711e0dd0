"""Block-banded systems, and what the factors of every direct kernel on a device have to hold."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve import BlockBandedMatrix, BlockLU
from implicitsolve._arrays.host import to_host
from implicitsolve.kernels import block_lu, cyclic_reduction
from tests.helpers import direct
from tests.helpers.direct import random_blocks


@dataclass(frozen=True)
class Case:
    """One kernel, and the sizes of its matrices."""

    kernel: str
    k: int
    T: int
    lower: int = 1
    upper: int = 1
    dtype: str = "float64"

    def blocks(self, rng, B, diagonal=4.0):
        """Random blocks (B, T, m, k, k) with a dominant diagonal, NaN outside the matrix."""
        return random_blocks(rng, (B, self.T, self.lower, self.upper, self.k), self.dtype, diagonal)

    def blocks_to_exchange(self, rng, B):
        """Blocks for which rows must change places inside each diagonal block, and need not beyond it."""
        blocks, k = self.blocks(rng, B, diagonal=0.0), self.k
        blocks[:, :, 1] = 0.1 * blocks[:, :, 1] + 4 * k**0.5 * np.eye(k)[np.roll(np.arange(k), 1)]
        blocks[:, :, 1, range(k), range(k)] = 0
        return blocks

    def columns(self, rng, B, K):
        """Random right-hand sides (B, T, k, K)."""
        return rng.normal(size=(B, self.T, self.k, K)).astype(self.dtype)

    def factor(self, device, blocks, backend="cupy") -> Any:
        """Factor NumPy's blocks on the device, or by the reference on the host."""
        given = device.asarray(blocks) if backend == "cupy" else blocks
        case = {"length": self.T, "block_size": self.k, "lower": self.lower, "upper": self.upper, "backend": backend}
        bands = (self.lower, self.upper)
        if self.kernel == "cyclic":
            return cyclic_reduction.select(given, **case)(given)
        return block_lu.select(given, pivoting=self.kernel, **case)(given, *bands, pivoting=self.kernel)


def solved(device, factors, b, adjoint=False):
    """Solution on the host."""
    return to_host(factors.solve(device.asarray(b), adjoint))


def scaled_residuals(case, blocks, x, b, adjoint):
    """Those of `direct`, in float64."""
    A = BlockBandedMatrix(blocks.astype(float), lower=case.lower, upper=case.upper).todense()
    return direct.scaled_residuals(A.swapaxes(1, 2) if adjoint else A, x.astype(float), b.astype(float), case.dtype)


def check(device, case, factors, blocks, b, bound=30.0):
    """Solutions, and those of the adjoint, against the dense matrices."""
    before = b.copy()
    for adjoint in (False, True):
        x = factors.solve(device.asarray(b), adjoint)
        assert (x.shape, x.dtype) == (b.shape, b.dtype)
        assert (scaled_residuals(case, blocks, to_host(x), b, adjoint) < bound).all()
    np.testing.assert_array_equal(b, before)
    assert factors.nbytes > 0


class Contract:
    """Tests of factors; a fixture `case` says of which kernel and sizes."""

    def test_solves_and_leaves_its_arguments_alone(self, device, case, rng):
        for B, K in ((1, 1), (3, 3)):
            blocks = case.blocks(rng, B)
            given = device.asarray(blocks)
            factors = case.factor(device, blocks)
            np.testing.assert_array_equal(to_host(given), blocks)
            assert factors.singular.tolist() == [-1] * B
            assert isinstance(factors.growth, np.ndarray)
            check(device, case, factors, blocks, case.columns(rng, B, K))

    def test_growth_is_the_references(self, device, case, rng):
        blocks = case.blocks(rng, 3, diagonal=1.0)
        growth = case.factor(device, blocks).growth
        reference = case.factor(device, blocks, "reference").growth
        assert (growth >= 1 - 1e-6).all()
        assert (growth < 6 * reference).all()
        assert (growth > reference / 6).all()

    def test_residuals_stay_below_the_growth(self, device, case, rng):
        blocks = case.blocks(rng, 4, diagonal=0.0)
        b = case.columns(rng, 4, 1)
        factors = case.factor(device, blocks)
        for adjoint in (False, True):
            residuals = scaled_residuals(case, blocks, solved(device, factors, b, adjoint), b, adjoint)
            assert (residuals < 4 * factors.growth).all()

    def test_graded_rows(self, device, case, rng):
        scale = np.logspace(-8, 8, case.T)[:, None, None, None]
        blocks = (case.blocks(rng, 2).astype(float) * scale).astype(case.dtype)
        b = (case.columns(rng, 2, 1).astype(float) * scale[..., 0]).astype(case.dtype)
        x = solved(device, case.factor(device, blocks), b)
        A = BlockBandedMatrix((blocks / scale).astype(float), lower=case.lower, upper=case.upper).todense()
        expected = np.linalg.solve(A, (b / scale[..., 0]).reshape(2, -1, 1)).reshape(x.shape)
        np.testing.assert_allclose(x, expected, atol=1e3 * np.finfo(case.dtype).eps * np.abs(expected).max())

    def test_bad_systems_are_named_and_leave_their_neighbours_alone(self, device, case, rng):
        blocks, b = case.blocks(rng, 4), case.columns(rng, 4, 2)
        good = solved(device, case.factor(device, blocks), b)
        place = case.T // 2
        blocks[1, place] = np.where(np.isnan(blocks[1, place]), np.nan, 0)  # a row of zeros
        blocks[2, -1, case.lower, 0, 0] = np.nan
        factors = case.factor(device, blocks)
        assert factors.singular[[0, 3]].tolist() == [-1, -1]
        assert factors.singular[1] == place or case.kernel == "band"  # which moves the row of zeros on
        assert (factors.singular[[1, 2]] >= 0).all()
        assert np.isposinf(factors.growth[[1, 2]]).all()
        for adjoint in (False, True):
            x = solved(device, factors, b, adjoint)
            assert np.isnan(x[[1, 2]]).all()
            assert np.isfinite(x[[0, 3]]).all()
        np.testing.assert_array_equal(solved(device, factors, b)[[0, 3]], good[[0, 3]])

    def test_the_first_of_several_singular_blocks_is_named(self, device, case, rng):
        blocks = case.blocks(rng, 1)
        for place in (1, case.T - 1):
            blocks[0, place] = np.where(np.isnan(blocks[0, place]), np.nan, 0)
        assert case.factor(device, blocks).singular[0] == (case.T - 2 if case.kernel == "band" else 1)

    def test_take(self, device, case, rng):
        blocks, b = case.blocks(rng, 4), case.columns(rng, 4, 2)
        blocks[3, 0, case.lower] = blocks[3, 0, -1] = 0
        factors = case.factor(device, blocks)
        chosen = np.asarray([3, 0])
        part = factors.take(chosen)
        np.testing.assert_array_equal(part.growth, factors.growth[chosen])
        np.testing.assert_array_equal(part.singular, factors.singular[chosen])
        for adjoint in (False, True):
            np.testing.assert_array_equal(
                solved(device, part, b[chosen], adjoint), solved(device, factors, b, adjoint)[chosen]
            )
        assert factors.take(np.asarray([], dtype=int)).solve(device.asarray(b[:0])).shape == b[:0].shape

    def test_a_system_alone_has_the_numbers_that_it_has_in_a_batch(self, device, case, rng):
        B = 37 if case.k == 1 else 5
        blocks, b = case.blocks(rng, B, diagonal=1.0), case.columns(rng, B, 2)
        x = solved(device, case.factor(device, blocks), b)
        for i in (0, B - 1):
            alone = case.factor(device, blocks[i : i + 1])
            np.testing.assert_array_equal(solved(device, alone, b[i : i + 1]), x[i : i + 1])
            np.testing.assert_array_equal(solved(device, alone, b[i : i + 1, ..., :1]), x[i : i + 1, ..., :1])

    def test_scaling_by_a_power_of_two_changes_no_bit(self, device, case, rng):
        blocks, b = case.blocks(rng, 2, diagonal=1.0), case.columns(rng, 2, 1)
        x = solved(device, case.factor(device, blocks), b)
        scaled = case.factor(device, blocks * np.asarray(2.0**20, case.dtype))
        np.testing.assert_array_equal(solved(device, scaled, b) * np.asarray(2.0**20, case.dtype), x)

    def test_blocks_and_right_hand_sides_need_not_be_contiguous(self, device, case, rng):
        blocks, b = case.blocks(rng, 2), case.columns(rng, 2, 3)
        x = solved(device, case.factor(device, blocks), b)
        wide = device.asarray(np.concatenate([blocks, blocks], axis=2))[:, :, : blocks.shape[2]]
        columns = device.asarray(np.repeat(b, 2, axis=3))[..., ::2]
        function = cyclic_reduction if case.kernel == "cyclic" else block_lu
        kernel = function.implementations["cupy"][0]
        bands = () if case.kernel == "cyclic" else (case.lower, case.upper)
        pivoting = {"pivoting": case.kernel} if function is block_lu else {}
        np.testing.assert_array_equal(to_host(kernel(wide, *bands, **pivoting).solve(columns)), x)

    def test_no_systems_and_no_columns(self, device, case):
        for B, K in ((0, 1), (2, 0)):
            blocks = np.zeros((B, case.T, case.lower + case.upper + 1, case.k, case.k), case.dtype)
            blocks[:, :, case.lower] = np.eye(case.k)
            factors = case.factor(device, blocks)
            assert factors.singular.shape == factors.growth.shape == (B,)
            b = np.zeros((B, case.T, case.k, K), case.dtype)
            assert factors.solve(device.asarray(b)).shape == b.shape

    def test_one_transfer_to_factor_none_to_solve(self, device, case, double, rng):
        blocks, b = device.asarray(case.blocks(rng, 2)), device.asarray(case.columns(rng, 2, 2))
        double.reset()
        factors = case.factor(device, blocks)
        assert double.counts["to_host"] == 1
        double.reset()
        factors.solve(b)
        factors.solve(b, True)
        assert double.counts["to_host"] == double.counts["to_device"] == 0


def check_the_way_over_the_band(device, rng, method, k, t):
    """A diagonal block t that is singular by itself, not with its neighbours; returns the matrix, b and the inverse."""
    blocks, b = random_blocks(rng, (3, 6, 1, 1, k), "float64"), rng.normal(size=(3, 6, k))
    blocks[1, t, 1, 0] = blocks[1, t, 1, 1]
    A, host = BlockBandedMatrix(device.asarray(blocks), lower=1, upper=1), BlockBandedMatrix(blocks, lower=1, upper=1)
    assert method(pivoting="block").factor(A).singular_block.tolist() == [-1, t, -1]
    inverse = method().factor(A)
    assert inverse.singular_block.tolist() == [-1, -1, -1]
    expected = BlockLU(backend="reference").factor(host).solve(b)
    np.testing.assert_allclose(to_host(inverse.solve(device.asarray(b))), expected, atol=1e-10)
    return A, b, inverse
