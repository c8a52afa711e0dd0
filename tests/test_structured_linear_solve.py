"""`linear_solve` of block-banded matrices: direct methods, refinement, statuses, and preconditioners by settings."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import BlockBandedMatrix, BlockLU, CyclicReduction, LinearStop, Status, linear_solve, precondition
from implicitsolve.precondition._parts import build_inverse

METHODS = [BlockLU(), BlockLU(pivoting="band"), BlockLU(refine=1), CyclicReduction()]
every_method = pytest.mark.parametrize("method", METHODS, ids=repr)


def matrix(rng, *batch, T=8, lower=1, upper=1, k=2, periodic=False, dtype=np.float64, xp=np, size=6.0):
    shape = (*batch, T, lower + upper + 1, k, k)
    blocks = rng.normal(size=shape) + (1j * rng.normal(size=shape) if np.dtype(dtype).kind == "c" else 0)
    blocks[..., lower, :, :] += size * np.eye(k)
    return BlockBandedMatrix(xp.asarray(blocks.astype(dtype)), lower=lower, upper=upper, periodic=periodic)


def solved(A, b, **options):
    result = linear_solve(A, b, **options)
    r = b - A.matvec(result.x)
    norms = np.linalg.norm(r.reshape(*A.batch_shape, A.shape[0]), axis=-1)
    np.testing.assert_allclose(result.residual_norm, norms, atol=1e-12 * np.abs(b).max(initial=1))
    return result


@every_method
@pytest.mark.parametrize("batch", [(), (3,), (2, 2), (0,)], ids=str)
@pytest.mark.parametrize("periodic", [False, True])
def test_solutions_are_those_of_the_dense_matrix(method, batch, periodic, rng):
    A = matrix(rng, *batch, periodic=periodic)
    b = rng.normal(size=(*batch, 8, 2))
    result = solved(A, b, method=method)
    assert np.all(result.success)
    assert result.x.shape == b.shape
    assert np.shape(result.status) == np.shape(result.iterations) == batch
    expected = np.linalg.solve(A.todense(), b.reshape(*batch, 16, 1)).reshape(b.shape)
    np.testing.assert_allclose(result.x, expected, atol=1e-12)
    flat = solved(A, b.reshape(*batch, 16), method=method)
    np.testing.assert_array_equal(flat.x.reshape(b.shape), result.x)


@every_method
@pytest.mark.parametrize(("lower", "upper"), [(0, 0), (2, 0), (0, 2), (3, 1), (5, 6)])
@pytest.mark.parametrize("T", [1, 2, 5])
def test_bands(method, lower, upper, T, rng):
    A = matrix(rng, T=T, lower=lower, upper=upper)
    b = rng.normal(size=(T, 2))
    result = solved(A, b, method=method)
    assert result.status is Status.CONVERGED
    np.testing.assert_allclose(result.x.reshape(-1), np.linalg.solve(A.todense(), b.reshape(-1)), atol=1e-11)


@every_method
def test_mixed_dtypes(method, rng):
    A = matrix(rng)
    z = rng.normal(size=(8, 2)) + 1j * rng.normal(size=(8, 2))
    np.testing.assert_allclose(linear_solve(A, A @ z, method=method).x, z, atol=1e-12)
    C = matrix(rng, dtype=np.complex128)
    real = rng.normal(size=(8, 2))
    result = linear_solve(C, real, method=method)
    assert result.x.dtype == np.complex128
    np.testing.assert_allclose(C @ result.x, real, atol=1e-12)
    whole = linear_solve(A, np.ones((8, 2), dtype=int), method=method)
    np.testing.assert_allclose(A @ whole.x, 1.0, atol=1e-12)


def test_a_single_precision_matrix_and_a_double_right_hand_side(rng):
    """Refinement in the precision of b: the factors are single, the residual is not."""
    A = matrix(rng, dtype=np.float32)
    b = rng.normal(size=(8, 2))
    result = linear_solve(A, b, method=BlockLU(), stop=LinearStop(rtol=1e-13))
    assert result.success, result.message
    dense = A.todense().astype(np.float64)
    np.testing.assert_allclose(result.x.reshape(-1), np.linalg.solve(dense, b.reshape(-1)), atol=1e-11)
    assert result.iterations > 1


@every_method
def test_singular_systems_are_named_and_their_neighbours_are_solved(method, rng):
    A = matrix(rng, 3)
    A.blocks[1] = 0.0
    b = rng.normal(size=(3, 8, 2))
    result = linear_solve(A, b, method=method)
    np.testing.assert_array_equal(result.status, [Status.CONVERGED, Status.SINGULAR, Status.CONVERGED])
    assert "SINGULAR" in result.message
    with pytest.raises(ims.NoConvergence):
        result.raise_for_status()
    np.testing.assert_allclose(A.take(np.asarray([0, 2])) @ result.x[[0, 2]], b[[0, 2]], atol=1e-12)
    single = linear_solve(A.take(np.asarray([1])), b[[1]], method=method)
    assert single.status[0] == Status.SINGULAR


@every_method
def test_a_singular_diagonal_block_of_a_regular_matrix(method):
    """Zeros on the diagonal: rows are exchanged across blocks."""
    blocks = np.zeros((6, 3, 1, 1))
    blocks[:, 0] = blocks[:, 2] = 1.0
    A = BlockBandedMatrix(blocks, lower=1, upper=1)
    b = np.arange(1.0, 7)
    result = linear_solve(A, b, method=method)
    assert result.success
    np.testing.assert_allclose(A @ result.x, b, atol=1e-13)


def test_tolerances_that_rounding_does_not_allow(rng):
    A = matrix(rng, T=50)
    result = linear_solve(A, rng.normal(size=(50, 2)), method=BlockLU(), stop=LinearStop(rtol=0.0))
    assert result.status is Status.STAGNATED
    assert result.residual_norm < 1e-13
    assert np.isfinite(result.x).all()


SETTINGS = [
    BlockLU(),
    CyclicReduction(),
    precondition.BlockJacobi(),
    precondition.BlockGaussSeidel(),
    precondition.BlockILU(),
    precondition.Neumann(),
]


@pytest.mark.parametrize("M", SETTINGS, ids=repr)
@pytest.mark.parametrize("method", [ims.GMRES(), ims.BiCGSTAB(), None], ids=repr)
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)], ids=str)
def test_preconditioners_by_settings(M, method, batch, rng):
    A = matrix(rng, *batch)
    b = rng.normal(size=(*batch, 8, 2))
    result = solved(A, b, method=method, M=M)
    assert np.all(result.success)
    built = solved(A, b, method=method, M=build_inverse(M, A))
    np.testing.assert_array_equal(result.x, built.x)


@every_method
def test_what_a_direct_method_does_not_take(method, rng):
    A, b = matrix(rng), np.ones((8, 2))
    with pytest.raises(ValueError, match="`M` must be None for a direct method"):
        linear_solve(A, b, method=method, M=BlockLU())
    with pytest.raises(ValueError, match="`x0` must be None for a direct method"):
        linear_solve(A, b, method=method, x0=b)
    with pytest.raises(TypeError, match="SparseLU: `A` must be a sparse matrix, got BlockBandedMatrix"):
        linear_solve(matrix(rng), np.ones((8, 2)), method=ims.SparseLU())
    with pytest.raises(TypeError, match="direct method needs a BlockBandedMatrix"):
        linear_solve(np.eye(16), b.reshape(-1), method=method)
    with pytest.raises(ValueError, match="`b` must have shape"):
        linear_solve(A, np.ones(15), method=method)


def test_settings_need_a_block_banded_matrix():
    for M in (BlockLU(), precondition.BlockJacobi()):
        with pytest.raises(TypeError, match="BlockBandedMatrix"):
            linear_solve(np.eye(4), np.ones(4), M=M)


@pytest.mark.parametrize("wrong", [BlockLU, "lu", 3])
def test_methods_are_settings(wrong, rng):
    with pytest.raises(TypeError, match="`method`"):
        linear_solve(matrix(rng), np.ones((8, 2)), method=wrong)
