from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from implicitsolve import BlockBandedMatrix, BlockLU, Status
from implicitsolve.distributed import PartitionedLU
from tests.distributed.matrices import PLAIN, matrix, on_ranks, piece, solved, split_matrix


def tridiagonal(T, before, own, after, periodic=False):
    blocks = np.broadcast_to(np.array([before, own, after], dtype=float)[:, None, None], (T, 3, 1, 1))
    return BlockBandedMatrix(blocks, lower=1, upper=1, periodic=periodic)


def scaled_residual(A, x, b, adjoint=False):
    """||b - A x|| over eps ||A|| ||x||, the largest of a batch, in the maximum norm."""
    dense = A.todense()
    dense = dense.conj().swapaxes(-1, -2) if adjoint else dense
    vectors = (*dense.shape[:-1], 1)
    r = np.abs(b.reshape(vectors) - dense @ x.reshape(vectors)).max(axis=(-2, -1))
    size = np.abs(dense).sum(axis=-1).max(axis=-1) * np.abs(x.reshape(vectors)).max(axis=(-2, -1))
    return float(np.max(r / size)) / np.finfo(A.blocks.dtype).eps


class TestProperties:
    @given(data=st.data())
    def test_solves_as_dense_matrices_do(self, data):
        lower, upper = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
        least = max(lower, upper, 1)
        counts = data.draw(st.lists(st.integers(least, least + 3), min_size=1, max_size=8))
        T, k = sum(counts), data.draw(st.integers(1, 3))
        periodic = data.draw(st.booleans()) and lower + upper + 1 <= T
        batch = data.draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
        dtype = data.draw(st.sampled_from([np.float64, np.complex128, np.float32]))
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
        dominance = 4.0 if 0 in (lower, upper) else data.draw(st.sampled_from([0.0, 4.0]))
        limit = data.draw(st.sampled_from([1.0, 1e3]))  # 1: mixtures wherever they are better
        A = matrix(
            rng, *batch, T, lower + upper + 1, k, k, lower=lower, dominance=dominance, dtype=dtype, periodic=periodic
        )
        b = rng.normal(size=(*batch, T, k)).astype(dtype)
        for adjoint in (False, True):
            x, inverse = solved(A, b, counts, PartitionedLU(refine=0, growth_limit=limit), adjoint)
            assert x.dtype == dtype
            assert (np.asarray(inverse.status) == Status.CONVERGED).all()
            assert scaled_residual(A, x, b, adjoint) <= 4 * np.max(inverse.growth)

    @given(
        counts=st.lists(st.integers(2, 6), min_size=2, max_size=4),
        k=st.integers(1, 3),
        periodic=st.booleans(),
        seed=st.integers(0, 2**32 - 1),
    )
    def test_refined_solves_are_as_accurate_as_an_elimination_from_end_to_end(self, counts, k, periodic, seed):
        rng = np.random.default_rng(seed)
        A = matrix(rng, 2, sum(counts), 3, k, k, periodic=periodic)
        b = rng.normal(size=(2, sum(counts), k))
        for adjoint in (False, True):
            x, inverse = solved(A, b, counts, PartitionedLU(), adjoint)
            assert scaled_residual(A, x, b, adjoint) <= 8 or np.max(inverse.growth) > 1e6


class TestFactor:
    @pytest.mark.parametrize("periodic", [False, True])
    def test_one_rank_is_block_lu(self, periodic, rng):
        A = matrix(rng, 2, 7, 4, 2, 2, lower=2, periodic=periodic)
        b = rng.normal(size=(2, 7, 2))
        x, inverse = solved(A, b, (7,))
        alone = BlockLU().factor(A)
        np.testing.assert_array_equal(x, alone.solve(b))
        np.testing.assert_array_equal(inverse.growth, alone.growth)

    def test_a_matrix_of_numpy_arrays_is_one_ranks(self, rng):
        A = matrix(rng, 7, 3, 2, 2)
        b = rng.normal(size=(7, 2))
        np.testing.assert_array_equal(PLAIN.factor(A).solve(b), BlockLU().factor(A).solve(b))

    def test_block_lu_on_split_arrays_is_this(self, rng):
        A, b = matrix(rng, 9, 3, 2, 2), rng.normal(size=(9, 2))
        x, _ = solved(A, b, (5, 4), BlockLU())
        np.testing.assert_array_equal(x, solved(A, b, (5, 4), PartitionedLU(refine=0, growth_limit=16.0))[0])

    def test_a_system_does_not_depend_on_its_neighbours_in_the_batch(self, rng):
        A, b = matrix(rng, 4, 30, 3, 2, 2), rng.normal(size=(4, 30, 2))
        A.blocks[1] = tridiagonal(30, -1.0, 0.0, 1.0).blocks * np.asarray([[0.0, 1.0], [1.0, 0.0]])  # needs mixtures
        x, inverse = solved(A, b, (15, 15))
        for i in range(4):
            one = BlockBandedMatrix(A.blocks[i], lower=1, upper=1)
            np.testing.assert_array_equal(solved(one, b[i], (15, 15))[0], x[i])
        assert inverse.status.shape == inverse.growth.shape == inverse.singular_block.shape == (4,)

    def test_takes_some_systems(self, rng):
        A, x = matrix(rng, 2, 3, 10, 3, 2, 2, dominance=4.0), rng.normal(size=(2, 3, 10, 2))
        A.blocks[0, 2, :, 1] = 0.0
        A.blocks[1, 1, 4] = 0.0
        b = (A @ x).reshape(6, 10, 2)
        places = np.asarray([4, 2, 2, 0])

        def program(comm):
            inverse = PartitionedLU().factor(split_matrix(comm, A, (3, 3, 4)))
            some = inverse.take(places)
            y, z = (f(piece(comm, b[places], 1, (3, 3, 4))).gathered() for f in (some.solve, some.solve_adjoint))
            return inverse, some, y, z

        inverse, some, y, z = on_ranks((3, 3, 4), program)[0]
        assert inverse.status.tolist() == [[1, 1, 1], [1, Status.SINGULAR, 1]]
        assert some.status.tolist() == [Status.SINGULAR, 1, 1, 1]
        assert some.singular_block.tolist()[1:] == [-1, -1, -1]
        assert np.isnan(y[0]).all()
        np.testing.assert_allclose(y[1:], x.reshape(6, 10, 2)[places[1:]], atol=1e-9)
        assert scaled_residual(A.take(places[1:]), z[1:], b[places[1:]], adjoint=True) < 8

    def test_the_interfaces_factors_are_the_same_on_every_rank_and_the_own_ones_are_not(self, rng):
        A = matrix(rng, 40, 3, 2, 2)

        def program(comm):
            inverse = PLAIN.factor(split_matrix(comm, A, (31, 9)))
            return inverse.nbytes, inverse._factored.factors.between.nbytes

        (first, interfaces), (second, again) = on_ranks((31, 9), program)
        assert interfaces == again
        assert (
            second < first < 31 * 4 * (3 + 2) * 8 + 31 * 2 * 8 + interfaces
        )  # T k^2 (3 + 2 of one interface) and pivots


class TestSingular:
    def test_a_singular_matrix_has_a_status_and_a_place(self, rng):
        A = matrix(rng, 2, 9, 3, 2, 2, dominance=4.0)
        A.blocks[0, 6] = 0.0
        x, inverse = solved(A, rng.normal(size=(2, 9, 2)), (4, 5))
        assert inverse.status.tolist() == [Status.SINGULAR, Status.CONVERGED]
        assert inverse.singular_block.tolist() == [6, -1]
        assert inverse.growth[0] == np.inf
        assert np.isnan(x[0]).all()
        assert np.isfinite(x[1]).all()

    def test_a_matrix_that_is_singular_at_an_interface_alone(self):
        blocks = np.zeros((6, 3, 1, 1))
        blocks[:, 1] = 1.0
        blocks[2, 2] = blocks[3, 0] = 1.0  # equations 2 and 3 are the same
        x, inverse = solved(BlockBandedMatrix(blocks, lower=1, upper=1), np.ones((6, 1)), (3, 3))
        assert inverse.status is Status.SINGULAR
        assert inverse.singular_block == 3
        assert np.isnan(x).all()

    def test_a_singular_system_has_no_solution_on_any_rank(self, rng):
        A = matrix(rng, 2, 6, 1, 2, 2, lower=0, dominance=4.0)  # no rank depends on another
        A.blocks[1, 4] = 0.0
        x, inverse = solved(A, np.ones((2, 6, 2)), (3, 3))
        assert inverse.singular_block.tolist() == [-1, 4]
        assert np.isfinite(x[0]).all()
        assert np.isnan(x[1]).all()

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_entries_that_are_not_finite(self, bad, rng):
        A = matrix(rng, 2, 9, 3, 2, 2, dominance=4.0)
        A.blocks[1, 7, 1, 0, 1] = bad
        x, inverse = solved(A, np.ones((2, 9, 2)), (3, 3, 3))
        assert inverse.status.tolist() == [Status.CONVERGED, Status.SINGULAR]
        assert np.isfinite(x[0]).all()
        assert np.isnan(x[1]).all()

    @pytest.mark.parametrize("counts", [(5, 5), (3, 3, 3, 3), (1, 1, 1, 1, 1, 1), (4, 5, 1)])
    def test_rows_of_one_rank_may_be_singular_where_the_matrix_is_not(self, counts, rng):
        A, b = tridiagonal(sum(counts), -1.0, 0.0, 1.0), rng.normal(size=(sum(counts), 1))
        for adjoint in (False, True):
            x, inverse = solved(A, b, counts, adjoint=adjoint)
            assert inverse.status is Status.CONVERGED
            assert inverse.growth < 100
            assert scaled_residual(A, x, b, adjoint) < 8

    def test_rows_of_one_rank_may_be_nearly_singular(self, rng):
        # its own matrix has the eigenvalue 0 of a vibrating string, but for rounding
        A, b = tridiagonal(404, -1.0, 2 * np.cos(np.pi / 102), -1.0), rng.normal(size=(404, 1))
        x, inverse = solved(A, b, (101, 101, 101, 101))
        assert inverse.growth < 1000
        assert scaled_residual(A, x, b) < 8
        assert solved(A, b, (101, 101, 101, 101), PartitionedLU(refine=0, growth_limit=1e30))[1].growth > 1e8

    def test_growing_and_decaying_solutions(self, rng):
        # u' = -u, v' = v by the box scheme, with v given at the left end and u at the right one
        T, half = 400, 0.25
        blocks = np.zeros((T, 3, 2, 2))
        blocks[1:, 0, 0, 1], blocks[1:, 1, 0, 1], blocks[0, 1, 0, 1] = -1 + half, 1 + half, 1.0
        blocks[:-1, 1, 1, 0], blocks[:-1, 2, 1, 0], blocks[-1, 1, 1, 0] = -1 - half, 1 - half, 1.0
        A, b = BlockBandedMatrix(blocks, lower=1, upper=1), rng.normal(size=(T, 2))
        x, inverse = solved(A, b, (100, 100, 100, 100))
        assert inverse.growth < 1000
        assert scaled_residual(A, x, b) < 8

    def test_a_circle_with_one_sided_couplings_may_not_be_cut(self):
        shift = BlockBandedMatrix(np.tile([1.0, 0.0], (7, 1))[..., None, None], lower=1, upper=0, periodic=True)
        x, inverse = solved(shift, np.ones((7, 1)), (4, 3))
        assert inverse.status is Status.SINGULAR  # as the docstring says
        assert np.isnan(x).all()


class TestInterfaces:
    """The system of what the ranks exchange."""

    @pytest.mark.parametrize("periodic", [False, True])
    def test_many_ranks(self, periodic, rng):
        counts = (2,) * 66
        A, b = matrix(rng, 132, 3, 2, 2, periodic=periodic, dominance=1.0), rng.normal(size=(132, 2))
        for adjoint in (False, True):
            x, inverse = solved(A, b, counts, adjoint=adjoint)
            assert scaled_residual(A, x, b, adjoint) <= 4 * inverse.growth

    def test_a_batch_with_mixtures_and_a_singular_system(self, rng):
        counts, T = (3,) * 7, 21
        A, x = matrix(rng, 4, T, 3, 1, 1, dominance=4.0), rng.normal(size=(4, T, 1))
        A.blocks[1] = tridiagonal(T, -1.0, 0.0, 1.0).blocks
        A.blocks[1, 0, 1] = 1.0
        A.blocks[2, 13] = 0.0
        places = np.asarray([2, 3, 1])
        b = (A @ x)[places]

        def program(comm):
            inverse = PLAIN.factor(split_matrix(comm, A, counts))
            some = inverse.take(places)
            return inverse, [solve(piece(comm, b, 1, counts)).gathered() for solve in (some.solve, some.solve_adjoint)]

        inverse, (y, z) = on_ranks(counts, program)[3]
        assert inverse._factored.factors.subdomain.mixed.tolist() == [False, True, False, False]
        assert inverse.status.tolist() == [1, 1, Status.SINGULAR, 1]
        assert inverse.singular_block.tolist() == [-1, -1, 13, -1]
        assert np.isnan(y[0]).all()
        assert np.isnan(z[0]).all()
        assert scaled_residual(A.take(places[1:]), y[1:], b[1:]) < 16
        assert scaled_residual(A.take(places[1:]), z[1:], b[1:], adjoint=True) < 16

    @pytest.mark.parametrize(("first", "place"), [(2, 3), (5, 6), (8, 9)])
    def test_interfaces_that_are_singular_alone(self, first, place):
        blocks = np.zeros((12, 3, 1, 1))
        blocks[:, 1] = 1.0
        blocks[first, 2] = blocks[first + 1, 0] = 1.0  # two equal equations, one on either side of an interface
        x, inverse = solved(BlockBandedMatrix(blocks, lower=1, upper=1), np.ones((12, 1)), (3, 3, 3, 3))
        assert inverse.status is Status.SINGULAR
        assert inverse.singular_block == place
        assert np.isnan(x).all()
