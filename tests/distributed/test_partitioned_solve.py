"""Solves by PartitionedLU: answers, messages, mistakes, and its place in the solvers."""

from __future__ import annotations

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import BlockBandedMatrix, BlockLU, LinearStop, Status, distributed, linear_solve
from implicitsolve.distributed import Counted, DistributedArray, PartitionedLU, Serial, threads
from tests.distributed.matrices import PLAIN, matrix, on_ranks, piece, solved, split_matrix


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
            inverse._factored.factors.solve(piece(comm, b[None, :, :, None], 1, counts))
            comm.reset()
            inverse._factored.factors.solve(piece(comm, b[None, :, :, None], 1, counts))
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
