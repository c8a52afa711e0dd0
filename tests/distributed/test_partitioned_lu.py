from __future__ import annotations

import contextlib
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import implicitsolve as ims
from implicitsolve import BlockBandedMatrix, BlockLU, LinearStop, Status, distributed, linear_solve
from implicitsolve.distributed import Counted, DistributedArray, PartitionedLU, Serial, _exchange, threads

PLAIN = PartitionedLU(refine=0)


def piece(comm, array, axis, counts):
    """This rank's part of an array that all know."""
    ends = np.cumsum(counts)
    part = np.take(array, range(ends[comm.rank] - counts[comm.rank], ends[comm.rank]), axis=axis)
    return DistributedArray(part, axis, comm, tuple(counts))


def split_matrix(comm, A, counts):
    blocks = piece(comm, A.blocks, A.blocks.ndim - 4, counts)
    return BlockBandedMatrix(blocks, lower=A.lower, upper=A.upper, periodic=A.periodic)


def on_ranks(counts, function):
    """What ``function(comm)`` returns on all ranks."""
    return threads(len(counts), function)


def solved(A, b, counts, method=PLAIN, adjoint=False):
    """The solution of A x = b for b (*batch, T, k) on ranks, and the factorization of the first rank."""

    def program(comm):
        inverse = method.factor(split_matrix(comm, A, counts))
        right = piece(comm, b, b.ndim - 2, counts)
        x = inverse.solve_adjoint(right) if adjoint else inverse.solve(right)
        return x.gathered(), inverse

    results = on_ranks(counts, program)
    for x, inverse in results[1:]:
        np.testing.assert_array_equal(x, results[0][0])
        for name in ("status", "growth", "singular_block"):
            np.testing.assert_array_equal(getattr(inverse, name), getattr(results[0][1], name))
    return results[0]


def matrix(rng, *shape, lower=1, dominance=0.0, dtype=np.float64, periodic=False):
    """A random matrix of blocks of shape (*batch, T, width, k, k)."""
    blocks = rng.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        blocks = blocks + 1j * rng.normal(size=shape)
    blocks = blocks.astype(dtype)
    blocks[..., lower, :, :] += (dominance * shape[-1] ** 0.5 * np.eye(shape[-1])).astype(dtype)
    return BlockBandedMatrix(blocks, lower=lower, upper=shape[-3] - 1 - lower, periodic=periodic)


def tridiagonal(T, before, own, after, periodic=False):
    blocks = np.broadcast_to(np.array([before, own, after], dtype=float)[:, None, None], (T, 3, 1, 1))
    return BlockBandedMatrix(blocks, lower=1, upper=1, periodic=periodic)


def in_groups(factor):
    """Solve for the interfaces in so many groups, times the square root of the ranks; None: by every rank for all."""
    settings = {} if factor is None else {"MOST_TOGETHER": 1, "GROUPS": factor}
    return mock.patch.multiple(_exchange, **settings) if settings else contextlib.nullcontext()


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
        groups = data.draw(st.sampled_from([None, 0.9, 1.6])) if len(counts) > 2 else None
        A = matrix(
            rng, *batch, T, lower + upper + 1, k, k, lower=lower, dominance=dominance, dtype=dtype, periodic=periodic
        )
        b = rng.normal(size=(*batch, T, k)).astype(dtype)
        for adjoint in (False, True):
            with in_groups(groups):
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
            return inverse.nbytes, inverse._inverse.factors.between.nbytes

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


class TestGroups:
    """More ranks than are together find what they take as given in groups first."""

    @pytest.mark.parametrize("periodic", [False, True])
    def test_many_ranks_are_in_groups(self, periodic, rng):
        counts = (2,) * 66
        A, b = matrix(rng, 132, 3, 2, 2, periodic=periodic, dominance=1.0), rng.normal(size=(132, 2))
        for adjoint in (False, True):
            x, inverse = solved(A, b, counts, adjoint=adjoint)
            assert isinstance(inverse._inverse.factors.between, _exchange.InGroups)
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

        with in_groups(0.9):
            inverse, (y, z) = on_ranks(counts, program)[3]
        assert inverse._inverse.factors.subdomain.kind.tolist() == [0, 1, 0, 0]
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
        with in_groups(0.9):  # two groups of two ranks
            x, inverse = solved(BlockBandedMatrix(blocks, lower=1, upper=1), np.ones((12, 1)), (3, 3, 3, 3))
        assert inverse.status is Status.SINGULAR
        assert inverse.singular_block == place
        assert np.isnan(x).all()

    def test_messages(self, rng):
        counts = (3,) * 7  # in groups of 3, 2 and 2
        A, b = matrix(rng, 21, 3, 2, 2, dominance=6.0), rng.normal(size=(21, 2))

        def program(comm):
            comm = Counted(comm)
            inverse = PLAIN.factor(split_matrix(comm, A, counts))
            factoring = dict(comm.calls)
            comm.reset()
            inverse.solve(piece(comm, b, 0, counts))
            return comm.rank, factoring, dict(comm.calls), dict(comm.bytes)

        with in_groups(0.9):
            for rank, factoring, solving, size in on_ranks(counts, program):
                assert factoring == {"allgather": 2, "exchange": 2}
                assert solving == {"allgather": 2}
                assert size == {"allgather": 8 * 4 * (2 if rank in (0, 3, 5) else 1)}  # again for the whole group


class TestSolve:
    def test_vectors_may_be_flat_and_columns_many(self, rng):
        A, X = matrix(rng, 3, 8, 3, 2, 2, dominance=4.0), rng.normal(size=(3, 16, 5))
        B, H = A.matmat(X), A.rmatmat(X)

        def program(comm):
            inverse = PartitionedLU().factor(split_matrix(comm, A, (3, 5)))
            flat = [
                inverse.matvec(piece(comm, B[..., 0], 1, (6, 10))),
                inverse.negative(piece(comm, B[..., 0], 1, (6, 10))),
            ]
            columns = [inverse.matmat(piece(comm, B, 1, (6, 10))), inverse.rmatmat(piece(comm, H, 1, (6, 10)))]
            return [x.gathered() for x in flat + columns]

        x, negative, columns, adjoint = on_ranks((3, 5), program)[0]
        np.testing.assert_allclose(x, X[..., 0], atol=1e-13)
        np.testing.assert_allclose(negative, -X[..., 0], atol=1e-13)
        np.testing.assert_allclose(columns, X, atol=1e-13)
        np.testing.assert_allclose(adjoint, X, atol=1e-13)

    def test_complex_right_hand_sides_of_a_real_matrix(self, rng):
        A, x = matrix(rng, 8, 3, 2, 2, dominance=4.0), rng.normal(size=(8, 2)) + 1j * rng.normal(size=(8, 2))
        np.testing.assert_allclose(solved(A, A @ x, (5, 3))[0], x, atol=1e-13)
        np.testing.assert_allclose(solved(A, A.H @ x, (5, 3), adjoint=True)[0], x, atol=1e-13)

    @pytest.mark.parametrize(("of_A", "of_b"), [("float32", "float64"), ("float64", "float32"), ("float32", "float32")])
    def test_precisions(self, of_A, of_b, rng):
        A = matrix(rng, 8, 3, 2, 2, dominance=4.0, dtype=of_A)
        x, inverse = solved(A, np.ones((8, 2), of_b), (5, 3))
        assert inverse.dtype == of_A
        assert x.dtype == np.result_type(of_A, of_b)

    def test_a_replicated_right_hand_side(self, rng):
        A, b = matrix(rng, 8, 3, 2, 2, dominance=4.0), rng.normal(size=(8, 2))

        def program(comm):
            return PLAIN.factor(split_matrix(comm, A, (5, 3))).solve(DistributedArray(b, None, None)).gathered()

        np.testing.assert_allclose(on_ranks((5, 3), program)[1], BlockLU().factor(A).solve(b), atol=1e-13)

    def test_changes_nothing_that_it_is_given(self, rng):
        A, b = matrix(rng, 12, 3, 2, 2), rng.normal(size=(12, 2))
        A.blocks[:, 1] = 0.0
        blocks, right = A.blocks.copy(), b.copy()
        solved(A, b, (5, 7))
        solved(A, b, (5, 7), adjoint=True)
        np.testing.assert_array_equal(A.blocks, blocks)
        np.testing.assert_array_equal(b, right)


class TestMessages:
    """What is sent is what the docstring and the scaling model say."""

    @pytest.mark.parametrize(("lower", "upper", "k"), [(1, 1, 2), (2, 1, 3), (1, 0, 2)])
    def test_of_a_factorization_and_a_solve(self, lower, upper, k, rng):
        counts, m = (4, 5, 3), (lower + upper) * k
        A = matrix(rng, 12, lower + upper + 1, k, k, lower=lower, dominance=6.0)
        b = rng.normal(size=(12, k))

        def program(comm):
            comm = Counted(comm)
            inverse = PartitionedLU().factor(split_matrix(comm, A, counts))
            factoring = dict(comm.messages), dict(comm.bytes)
            inverse._inverse.factors.solve(piece(comm, b[None, :, :, None], 1, counts))
            comm.reset()
            inverse._inverse.factors.solve(piece(comm, b[None, :, :, None], 1, counts))
            plain = dict(comm.calls), dict(comm.bytes)
            comm.reset()
            for solve in (inverse.solve, inverse.solve_adjoint):
                solve(piece(comm, b, 0, counts))
            return factoring, plain, dict(comm.calls)

        for factoring, plain, refined in on_ranks(counts, program):
            assert factoring == ({"allgather": 1}, {"allgather": 8 * m * m + 24})
            assert plain == ({"allgather": 1}, {"allgather": 8 * m})
            assert refined == {"allgather": 4, "exchange": 2}

    def test_blocks_that_do_not_depend_on_each_other_need_none(self, rng):
        A = matrix(rng, 5, 1, 2, 2, lower=0, dominance=4.0)

        def program(comm):
            comm = Counted(comm)
            inverse = PLAIN.factor(split_matrix(comm, A, (2, 3)))
            comm.reset()
            x = inverse.solve(piece(comm, np.ones((5, 2)), 0, (2, 3)))
            return sum(comm.calls.values()), x.gathered()

        for calls, x in on_ranks((2, 3), program):
            assert calls == 0
            np.testing.assert_array_equal(x, BlockLU().factor(A).solve(np.ones((5, 2))))


class TestMistakes:
    def test_settings(self):
        with pytest.raises(ValueError, match="PartitionedLU: `pivoting` must be one of"):
            PartitionedLU(pivoting="rows")
        with pytest.raises(ValueError, match="PartitionedLU: `growth_limit` must be at least 1"):
            PartitionedLU(growth_limit=0.5)

    def test_no_block_banded_matrix(self):
        with pytest.raises(TypeError, match=r"PartitionedLU\.factor: `A` must be a BlockBandedMatrix, got ndarray"):
            PartitionedLU().factor(np.eye(3))

    def test_too_few_block_rows(self, rng):
        A = matrix(rng, 5, 4, 1, 1, lower=2)
        with pytest.raises(ValueError, match=r"at least max\(lower, upper\) = 2 block rows, got \(4, 1\)"):
            on_ranks((4, 1), lambda comm: PartitionedLU().factor(split_matrix(comm, A, (4, 1))))

    def test_blocks_split_along_another_axis(self):
        blocks = DistributedArray(np.ones((2, 5, 3, 1, 1)), 0, Serial(), (2,))
        with pytest.raises(ValueError, match="must be split along T, their axis 1, got axis 0"):
            PartitionedLU().factor(BlockBandedMatrix(blocks, lower=1, upper=1))

    def test_a_right_hand_side_split_elsewhere(self, rng):
        A = matrix(rng, 8, 3, 2, 2)

        def program(comm):
            return PLAIN.factor(split_matrix(comm, A, (5, 3))).solve(piece(comm, np.ones((8, 2)), 0, (4, 4)))

        with pytest.raises(ValueError, match=r"split as the matrix is, \(5, 3\) along its blocks, got \(4, 4\)"):
            on_ranks((5, 3), program)


class TestInSolvers:
    def test_linear_solve(self, rng):
        A, x = matrix(rng, 2, 12, 3, 2, 2, dominance=4.0), rng.normal(size=(2, 12, 2))
        b = A @ x

        def program(comm):
            split = split_matrix(comm, A, (5, 7)), piece(comm, b, 1, (5, 7))
            direct = linear_solve(*split, method=PartitionedLU(), stop=LinearStop(rtol=1e-12))
            krylov = linear_solve(*split, M=PLAIN, stop=LinearStop(rtol=1e-12))
            return [(found.x.gathered(), found.status, found.iterations) for found in (direct, krylov)]

        for solution, status, iterations in on_ranks((5, 7), program)[0]:
            np.testing.assert_allclose(solution, x, atol=1e-11)
            assert (status == Status.CONVERGED).all()
            assert (iterations == 1).all()

    @pytest.mark.parametrize("ranks", [1, 2, 4])
    @pytest.mark.parametrize("periodic", [False, True])
    @pytest.mark.parametrize(
        "method",
        [
            ims.BlockNewton(factor=PartitionedLU()),
            ims.BlockNewton(factor=PartitionedLU(), reuse="none"),
            ims.BlockNewton(),
            ims.NewtonKrylov(preconditioner=PartitionedLU(refine=0)),
        ],
        ids=["broyden", "newton", "block-lu", "preconditioner"],
    )
    def test_roots_and_their_gradients(self, method, periodic, ranks):
        def residual(part, x):  # two species that diffuse, react and are fed
            ends = (1 - part.before, 1 - part.after)
            x = np.pad(x, (ends, (0, 0)))
            u, v = x[1:-1, 0], x[1:-1, 1]
            change = 0.4 * (x[2:] - 2 * x[1:-1] + x[:-2])
            return x[1:-1] - change - np.stack([0.3 * np.sin(v) + 1, 0.2 * u * v + 0.1 * u], axis=1)

        def program(comm):
            problem = distributed.problem(
                comm,
                residual,
                length=13,
                block_size=2,
                periodic=periodic,
                parameters={"theta": np.ones(1)},
                parameter_vjp=lambda part, x, w: {"theta": -w.sum(keepdims=True).reshape(1)},
            )
            x0 = distributed.split(comm, np.zeros((13, 2)), axis=0)
            result = ims.root(problem, x0, method=method, stop=ims.NonlinearStop(atol=1e-12, rtol=0.0))
            ones = distributed.split(comm, np.ones((13, 2)), axis=0)
            back = ims.pull_back(problem, result, ones, method=PartitionedLU(), stop=LinearStop(rtol=1e-10))
            return result.x.gathered(), result.status, back.status, back.gradients["theta"]

        x, status, back, gradient = threads(ranks, program)[0]
        serial, _, _, expected = threads(1, program)[0]
        assert status is Status.CONVERGED
        assert back is Status.CONVERGED
        np.testing.assert_allclose(x, serial, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(gradient, expected, rtol=1e-8)
