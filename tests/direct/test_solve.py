"""`solve_factored`: a direct solve that measures its residual, refines while that helps, and says how it ended."""

import numpy as np
import pytest

from implicitsolve import BlockBandedMatrix, BlockLU, CyclicReduction, LinearOperator, LinearStop, Status
from implicitsolve.direct._factorization import MOST_REFINEMENTS, solve_factored
from implicitsolve.kernels._norms import norm2


def matrix(rng, *batch, T=8, k=2, dtype=np.float64, xp=np):
    blocks = rng.normal(size=(*batch, T, 3, k, k)) + (
        1j * rng.normal(size=(*batch, T, 3, k, k)) if np.dtype(dtype).kind == "c" else 0
    )
    blocks[..., 1, :, :] += 6 * np.eye(k)
    return BlockBandedMatrix(xp.asarray(blocks.astype(dtype)), lower=1, upper=1)


def inexact(A, size):
    """Factors of a matrix that is not quite A."""
    return BlockLU().factor(BlockBandedMatrix(A.blocks * (1 + size), lower=1, upper=1))


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("method", [BlockLU(), BlockLU(refine=2), CyclicReduction()], ids=repr)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_a_good_factorization_needs_one_solve(method, adjoint, dtype, rng):
    A = matrix(rng, 3, dtype=dtype)
    b = rng.normal(size=(3, 16)).astype(dtype)
    outcome = solve_factored(A.flat(), method.factor(A), b, LinearStop(), adjoint=adjoint)
    np.testing.assert_array_equal(outcome.status, Status.CONVERGED)
    np.testing.assert_array_equal(outcome.iterations, 1)
    assert outcome.x.dtype == dtype
    dense = A.todense()
    dense = np.conj(np.swapaxes(dense, -1, -2)) if adjoint else dense
    expected = np.linalg.solve(dense, b[..., None])[..., 0]
    np.testing.assert_allclose(outcome.x, expected, atol=100 * np.finfo(dtype).eps)
    r = b - np.matmul(dense, outcome.x[..., None])[..., 0]
    np.testing.assert_allclose(outcome.residual_norm, norm2(r), atol=100 * np.finfo(dtype).eps)


@pytest.mark.parametrize("adjoint", [False, True])
def test_factors_that_are_not_exact_are_refined(adjoint, rng):
    """Each step gains a factor 100: the error of the factors."""
    A = matrix(rng, 2)
    b = rng.normal(size=(2, 16))
    for rtol, solves in ((1e-1, 1), (1e-3, 2), (1e-5, 3), (1e-7, 4)):
        outcome = solve_factored(A.flat(), inexact(A, 1e-2), b, LinearStop(rtol=rtol), adjoint=adjoint)
        np.testing.assert_array_equal(outcome.status, Status.CONVERGED)
        np.testing.assert_array_equal(outcome.iterations, solves)
        assert (outcome.residual_norm <= rtol * norm2(b)).all()


def test_refinement_has_a_limit(rng):
    A = matrix(rng, 1)
    b = rng.normal(size=(1, 16))
    outcome = solve_factored(A.flat(), inexact(A, 0.1), b, LinearStop(rtol=1e-14))
    assert outcome.status[0] == Status.STAGNATED
    assert outcome.iterations[0] == 1 + MOST_REFINEMENTS
    assert outcome.residual_norm[0] <= 1e-5 * norm2(b)[0]
    r = b - A.flat().matvec(outcome.x)
    assert outcome.residual_norm[0] == norm2(r)[0]


def test_refinement_that_makes_it_worse_is_undone(rng):
    """Factors of A / 4: a step of refinement multiplies the residual by -3."""
    A = matrix(rng, 1)
    b = rng.normal(size=(1, 16))
    wrong = BlockLU().factor(BlockBandedMatrix(A.blocks / 4, lower=1, upper=1))
    outcome = solve_factored(A.flat(), wrong, b, LinearStop())
    assert outcome.status[0] == Status.STAGNATED
    np.testing.assert_allclose(outcome.x, wrong.flat().matvec(b))
    assert outcome.residual_norm[0] == pytest.approx(3 * norm2(b)[0])


def test_each_system_has_its_own_status(rng):
    A = matrix(rng, 4)
    A.blocks[1] = 0.0
    A.blocks[2, 3] = np.nan
    b = rng.normal(size=(4, 16))
    b[3] = 0.0
    outcome = solve_factored(A.flat(), BlockLU().factor(A), b, LinearStop())
    np.testing.assert_array_equal(
        outcome.status, [Status.CONVERGED, Status.SINGULAR, Status.SINGULAR, Status.CONVERGED]
    )
    alone = solve_factored(
        A.take(np.asarray([0])).flat(), BlockLU().factor(A.take(np.asarray([0]))), b[:1], LinearStop()
    )
    np.testing.assert_allclose(alone.x[0], outcome.x[0], rtol=1e-13)
    np.testing.assert_array_equal(outcome.x[3], 0.0)


def test_a_system_that_is_exact_is_not_touched_by_its_neighbour_s_refinement(rng):
    A = matrix(rng, 2)
    b = rng.normal(size=(2, 16))
    blocks = A.blocks * np.asarray([1.0, 1.01]).reshape(2, 1, 1, 1, 1)
    outcome = solve_factored(
        A.flat(), BlockLU().factor(BlockBandedMatrix(blocks, lower=1, upper=1)), b, LinearStop(rtol=1e-9)
    )
    np.testing.assert_array_equal(outcome.status, Status.CONVERGED)
    assert outcome.iterations[0] == 1
    assert outcome.iterations[1] > 1
    np.testing.assert_array_equal(outcome.x[0], BlockLU().factor(A).flat().matvec(b)[0])


def test_products_are_those_of_the_operator(rng):
    """The residual is measured with the operator that is given, not with the matrix that was factored."""
    A = matrix(rng, 2)
    calls = [0]

    def product(v):
        calls[0] += 1
        return A.flat().matvec(v)

    operator = LinearOperator(product, in_shape=16, batch_shape=(2,), dtype=np.float64)
    outcome = solve_factored(operator, BlockLU().factor(A), rng.normal(size=(2, 16)), LinearStop())
    assert (outcome.status == Status.CONVERGED).all()
    assert calls[0] == 1
