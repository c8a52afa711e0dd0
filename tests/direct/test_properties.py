"""Direct solves against the dense matrix, over sizes, bands, dtypes, and matrices that are hard in several ways."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, example, given

import implicitsolve as ims
from implicitsolve import BlockBandedMatrix, BlockLU, CyclicReduction, Status
from tests.helpers.direct import normal, scaled_residuals

pytestmark = pytest.mark.rounding

METHODS = [
    BlockLU(backend="lapack"),
    BlockLU(pivoting="band", backend="lapack"),
    BlockLU(backend="reference"),
    BlockLU(pivoting="band", backend="reference"),
    CyclicReduction(backend="reference"),
]
COMPILED = [
    BlockLU(backend="numba"),
    BlockLU(pivoting="band", backend="numba"),
]
KINDS = ["random", "dominant", "graded rows", "graded blocks", "tiny diagonal", "singular diagonal", "nearly singular"]
BOUND = 30


@st.composite
def matrices(draw, kinds=KINDS, dtypes="fdFD", sizes=(1, 1, 2, 3, 5, 25)):
    T, lower, upper = draw(st.integers(1, 8)), draw(st.integers(0, 3)), draw(st.integers(0, 3))
    k, B = draw(st.sampled_from(sizes)), draw(st.sampled_from([1, 3]))
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    periodic = draw(st.booleans()) and lower + upper + 1 <= T
    kind, rng = draw(st.sampled_from(kinds)), np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = (B, T, lower + upper + 1, k, k)
    blocks = rng.normal(size=shape) + (1j * rng.normal(size=shape) if dtype.kind == "c" else 0)
    digits = 4 if dtype.char in "fF" else 14  # the solutions of a triangular matrix must not overflow
    diagonal = blocks[:, :, lower]
    if kind == "dominant":
        diagonal += 4 * (lower + upper + 1) * k**0.5 * np.eye(k)
    elif kind == "graded rows":
        blocks *= 10.0 ** rng.integers(-digits // 2, digits // 2, size=(B, T, 1, k, 1))
    elif kind == "graded blocks":
        blocks *= 10.0 ** (-digits * np.arange(T) / T)[:, None, None, None]
    elif kind == "tiny diagonal":
        diagonal *= 10.0**-digits
    elif kind == "singular diagonal":
        diagonal[:, :: 2 if T > 1 else 1] *= 0
    elif kind == "nearly singular":
        diagonal[..., -1] = diagonal[..., 0] + 10.0 ** (2 - digits) * diagonal[..., -1] * (k > 1)
    if not periodic:
        column = np.arange(T)[:, None] + np.arange(lower + upper + 1) - lower
        blocks[:, (column < 0) | (column >= T)] = np.nan  # is ignored
    return BlockBandedMatrix(blocks.astype(dtype), lower=lower, upper=upper, periodic=periodic), rng


def dense_solutions(A, b):
    """LAPACK's dense solutions; NaN where it finds a zero pivot."""
    x = np.full_like(b, np.nan)
    for i in range(len(A)):
        try:
            with np.errstate(all="ignore"):
                x[i] = np.linalg.solve(A[i], b[i])
        except np.linalg.LinAlgError:
            continue
    return x


def columns(rng, A, K):
    return normal(rng, (*A.batch_shape, A.shape[0], K), A.dtype)


def short(method):
    return f"{type(method).__name__}-{method.pivoting}-{method.backend}"


@pytest.mark.parametrize("method", METHODS, ids=short)
@given(st.data())
def test_as_accurate_as_the_dense_solve(method, data):
    check_accuracy(method, *data.draw(matrices()), data)


@pytest.mark.parametrize("method", COMPILED, ids=short)
@given(st.data())
def test_as_accurate_as_the_dense_solve_compiled(method, data):
    pytest.importorskip("numba")
    check_accuracy(method, *data.draw(matrices(dtypes="d", sizes=(1, 3))), data)  # each more has to be compiled


@given(st.data())
def test_as_accurate_as_the_dense_solve_with_large_blocks(data):
    check_accuracy(BlockLU(), *data.draw(matrices(dtypes="d", sizes=(25,))), data)


@given(st.data())
def test_substitution_does_not_care_how_ill_conditioned_a_triangular_matrix_is(data):
    T, k, lower = data.draw(st.integers(2, 8)), data.draw(st.sampled_from([1, 3, 25])), data.draw(st.integers(1, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    blocks = rng.normal(size=(T, lower + 1, k, k))
    for A in (
        BlockBandedMatrix(blocks, lower=lower, upper=0),
        BlockBandedMatrix(blocks[:, ::-1] * 1e-7, lower=0, upper=lower),
    ):
        A.diagonal[...] = np.eye(k) * 10.0 ** rng.integers(-12, 0, size=(T, 1, 1))
        x = BlockLU(backend="lapack").factor(A).solve(A @ np.ones((T, k)))
        r = np.abs(A @ x - A @ np.ones((T, k)))
        assert (r <= 100 * np.finfo(float).eps * (BlockBandedMatrix(np.abs(A.blocks), **A_bands(A)) @ np.abs(x))).all()


@given(st.integers(1, 8), st.sampled_from([1, 3]), st.integers(1, 3), st.booleans(), st.integers(0, 2**32))
@example(T=3, k=1, reach=1, is_lower=True, seed=0)
def test_cyclic_reduction_substitutes_in_a_triangular_matrix_with_a_tiny_diagonal(T, k, reach, is_lower, seed):
    """By orthogonal elimination, as in a full band, the last pivot was rounded to zero, and x was NaN."""
    rng = np.random.default_rng(seed)
    lower, upper = (reach, 0) if is_lower else (0, reach)
    A = BlockBandedMatrix(rng.normal(size=(T, reach + 1, k, k)), lower=lower, upper=upper)
    A.diagonal[...] *= 1e-15
    b, inverse = rng.normal(size=(1, T * k, 1)), CyclicReduction(backend="reference").factor(A)
    dense = A.todense()[None]
    for M, x in ((dense, inverse.matmat(b[0])), (dense.swapaxes(1, 2), inverse.rmatmat(b[0]))):
        assert scaled_residuals(M, x[None], b).max() < BOUND


def A_bands(A):
    return {"lower": A.lower, "upper": A.upper}


def check_accuracy(method, A, rng, data):
    b = columns(rng, A, data.draw(st.sampled_from([1, 3])))
    inverse, dense = method.factor(A), A.todense()
    for M, x in ((dense, inverse.matmat(b)), (dense.conj().swapaxes(1, 2), inverse.rmatmat(b))):
        assert x.dtype == b.dtype
        expected = dense_solutions(M, b)
        is_far_from_overflow = np.abs(expected).max(axis=(1, 2)) < np.finfo(b.dtype).max ** 0.5
        lapack_has_it = is_far_from_overflow & (scaled_residuals(M, expected, b) < BOUND)
        ours = scaled_residuals(M, x, b)
        assert (ours < BOUND)[lapack_has_it].all(), (ours, inverse.growth, inverse.status)


@pytest.mark.parametrize("method", METHODS, ids=short)
@given(st.data())
def test_the_adjoint_is_the_adjoint(method, data):
    A, rng = data.draw(matrices(kinds=["dominant"]))
    inverse = method.factor(A)
    b, c = columns(rng, A, 1)[..., 0], columns(rng, A, 1)[..., 0]
    left, right = np.vecdot(inverse.rmatvec(c), b), np.vecdot(c, inverse.matvec(b))
    np.testing.assert_allclose(left, right, atol=1e3 * np.finfo(A.dtype).eps)


@pytest.mark.parametrize("method", METHODS, ids=short)
@given(st.data())
def test_scaling_by_a_power_of_two_changes_no_bit(method, data):
    A, rng = data.draw(matrices(kinds=["random", "dominant"]))
    b, exponent = columns(rng, A, 1)[..., 0], data.draw(st.sampled_from([-20, 3, 20]))
    inverse, scaled = method.factor(A), method.factor(A * 2.0**exponent)
    np.testing.assert_array_equal(scaled.growth, inverse.growth)
    np.testing.assert_array_equal(scaled.solve(b) * A.dtype.type(2.0**exponent), inverse.solve(b))


@pytest.mark.parametrize("method", METHODS, ids=short)
@given(st.data())
def test_a_singular_neighbour_changes_nothing(method, data):
    A, rng = data.draw(matrices(kinds=["random", "dominant"]))
    assume(len(A.blocks) > 1)
    b, broken = columns(rng, A, 1)[..., 0], A.blocks.copy()
    broken[1, :, :, 0] = 0
    alone, beside = (
        method.factor(A),
        method.factor(BlockBandedMatrix(broken, lower=A.lower, upper=A.upper, periodic=A.periodic)),
    )
    others = [0, 2]
    assert beside.status[1] == Status.SINGULAR
    assert beside.singular_block[1] >= 0
    assert np.isnan(beside.solve(b)[1]).all()
    np.testing.assert_array_equal(beside.status[others], Status.CONVERGED)
    assert (
        scaled_residuals(A.todense()[others], beside.solve(b)[others][..., None], b[others][..., None]) < BOUND
    ).all()
    np.testing.assert_array_equal(np.isfinite(alone.growth), True)


@given(st.data())
def test_refinement_repairs_what_growth_spoiled(data):
    A, rng = data.draw(matrices(kinds=["random"], dtypes="d"))
    b, dense = columns(rng, A, 1), A.todense()
    settings = {"growth_limit": 1e6, "pivoting": "auto", "backend": "reference"}
    assume((np.linalg.cond(dense) < 1e6).all())
    x = ims.BlockLU(refine=2, **settings).factor(A).matmat(b)
    assert (scaled_residuals(dense, x, b) < BOUND).all()
