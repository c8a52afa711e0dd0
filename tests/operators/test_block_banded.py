"""BlockBandedMatrix against dense matrices, which are the definition."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given
from hypothesis import strategies as st

from implicitsolve import GMRES, LinearOperator, aslinearoperator, linear_solve
from implicitsolve._arrays.host import to_host
from implicitsolve.operators import BlockBandedMatrix
from implicitsolve.structure import BlockBanded
from tests.operators.block_banded import COMPLEX, LIBRARIES, REALS, SEEDS, Case, cases, integers, with_garbage


@given(cases(), LIBRARIES, SEEDS, st.booleans(), st.integers(0, 5))
def test_products_are_those_of_the_dense_matrix(case, xp, seed, is_complex, columns):
    A, M = case.matrix(xp), case.dense
    batch, n = case.blocks.shape[:-4], M.shape[-1]
    real = "float32" if case.blocks.dtype in (np.float32, np.complex64) else "float64"
    kind = np.result_type(real, np.complex64).name if is_complex else real
    v, V = integers(seed, (*batch, n), kind), integers(seed, (*batch, n, columns), kind)
    adjoint = M.conj().swapaxes(-1, -2)
    assert (A.shape, A.batch_shape, A.dtype) == ((n, n), batch, A.blocks.dtype)
    np.testing.assert_array_equal(to_host(A.diagonal), case.blocks[..., case.structure.lower, :, :])
    for product, many, dense in ((A.matvec, A.matmat, M), (A.rmatvec, A.rmatmat, adjoint)):
        expected = (dense @ v[..., None])[..., 0]
        flat = product(xp.asarray(v))
        np.testing.assert_array_equal(to_host(flat), expected, strict=True)
        state = product(xp.asarray(v.reshape(*batch, *A.in_shape)))
        np.testing.assert_array_equal(to_host(state), expected.reshape(*batch, *A.in_shape), strict=True)
        np.testing.assert_array_equal(to_host(many(xp.asarray(V))), dense @ V, strict=True)


@example(lower=4, upper=4, periodic=False, batch=(), k=1, seed=6)  # zeros alone
@given(st.integers(4, 12), st.integers(4, 12), st.booleans(), st.sampled_from([(), (3,)]), st.integers(1, 2), SEEDS)
def test_wide_bands_with_gaps(lower, upper, periodic, batch, k, seed):
    structure = BlockBanded(lower, upper, k, periodic=periodic)
    blocks = integers(seed, (*batch, structure.width + seed % 5, structure.width, k, k))
    blocks *= (np.random.default_rng(seed).random(structure.width) < 0.3)[:, None, None]
    case = Case(with_garbage(blocks, structure, 0.0), structure)
    v = integers(seed, (*batch, case.dense.shape[-1]))
    np.testing.assert_array_equal(case.matrix() @ v, (case.dense @ v[..., None])[..., 0])
    adjoint = case.dense.swapaxes(-1, -2)
    np.testing.assert_array_equal(case.matrix().rmatvec(v), (adjoint @ v[..., None])[..., 0])


def test_a_product_sees_only_its_own_blocks(xp):
    """NaN in one block, or in one unknown, reaches the rows that depend on it and no others."""
    ones = np.ones((6, 3, 2, 2))
    for k_columns in (1, 5):
        broken = ones.copy()
        broken[3, 2] = np.nan  # A[3, 4]
        A = BlockBandedMatrix(xp.asarray(broken), lower=1, upper=1)
        out = to_host(A.matmat(xp.ones((12, k_columns), dtype=xp.float64))).reshape(6, -1)
        assert np.isnan(out).all(axis=1).tolist() == [t == 3 for t in range(6)]
        x = np.ones((12, k_columns))
        x[6] = np.nan  # in block 3
        out = to_host(BlockBandedMatrix(xp.asarray(ones), lower=1, upper=1).matmat(xp.asarray(x))).reshape(6, -1)
        assert np.isnan(out).any(axis=1).tolist() == [t in (2, 3, 4) for t in range(6)]


def test_nothing_keeps_a_dropped_matrix_alive():
    gc.disable()
    try:
        A = BlockBandedMatrix(np.ones((6, 3, 2, 2)), lower=1, upper=1)
        A @ np.ones(12), A.rmatvec(np.ones(12))
        dropped = weakref.ref(A)
        del A
        assert dropped() is None
    finally:
        gc.enable()


@given(cases(), LIBRARIES)
def test_adjoint_and_transpose_are_block_banded(case, xp):
    A, M = case.matrix(xp), case.dense
    for turned, dense in ((A.H, M.conj().swapaxes(-1, -2)), (A.T, M.swapaxes(-1, -2)), (A.H.H, M)):
        assert isinstance(turned, BlockBandedMatrix)
        np.testing.assert_array_equal(to_host(turned.todense()), dense, strict=True)
    assert (A.H.lower, A.H.upper) == (A.upper, A.lower)


@given(cases(), LIBRARIES, st.sampled_from([2, -1, 0.5, 1j, 1 - 2j, np.float64(2), np.float32(-3), np.complex128(2j)]))
def test_scaling(case, xp, factor):
    A, M = case.matrix(xp), case.dense
    factor_of_its_precision = complex(factor) if isinstance(factor, complex) else float(factor)
    for scaled, dense in (
        (factor * A, M * factor_of_its_precision),
        (A * factor, M * factor_of_its_precision),
        (A / 2, M / 2),
        (-A, -M),
    ):
        assert isinstance(scaled, BlockBandedMatrix)
        np.testing.assert_array_equal(to_host(scaled.todense()), dense, strict=True)
        assert scaled.dtype == scaled.blocks.dtype


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Case, Case]:
    first = draw(cases())
    s = first.structure
    most = first.blocks.shape[-4] - 1 if s.periodic else 6
    lower, upper = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    if s.periodic and lower + upper > most:
        lower, upper = s.lower, s.upper
    other = BlockBanded(lower, upper, s.block_size, periodic=s.periodic)
    shape = (*first.blocks.shape[:-3], other.width, s.block_size, s.block_size)
    return first, Case(with_garbage(integers(draw(SEEDS), shape), other, np.nan), other)


@given(pairs(), LIBRARIES, SEEDS)
def test_sums_of_different_bands(pair, xp, seed):
    (A, M), (B, N) = ((case.matrix(xp), case.dense) for case in pair)
    v = integers(seed, (*A.batch_shape, A.shape[1]))
    for total, dense in ((A + B, M + N), (A - B, M - N), (B - A, N - M)):
        union = max(A.lower, B.lower), max(A.upper, B.upper)
        if not A.periodic or sum(union) < A.length:
            assert isinstance(total, BlockBandedMatrix)
            assert (total.lower, total.upper) == union
            np.testing.assert_array_equal(to_host(total.todense()), dense, strict=True)
        np.testing.assert_array_equal(to_host(total @ xp.asarray(v)), (dense @ v[..., None])[..., 0])


def test_a_line_and_a_circle_add_to_an_operator():
    blocks = integers(0, (6, 3, 2, 2))
    line, circle = (Case(blocks, BlockBanded(1, 1, 2, periodic=p)) for p in (False, True))
    v = integers(1, (12,))
    np.testing.assert_array_equal((line.matrix() + circle.matrix()) @ v, (line.dense + circle.dense) @ v)


def test_algebra_with_other_operators():
    case = Case(integers(0, (4, 3, 2, 2)), BlockBanded(1, 1, 2))
    A, M, N, v = case.matrix(), case.dense, integers(1, (8, 8)), integers(2, (8,))
    identity = LinearOperator(lambda v: v, lambda v: v, in_shape=(4, 2))
    np.testing.assert_array_equal((A + identity) @ v, M @ v + v)
    np.testing.assert_array_equal((identity - A) @ v, v - M @ v)
    np.testing.assert_array_equal((A @ A) @ v, M @ M @ v)
    np.testing.assert_array_equal((A @ A).H @ v, M.T @ M.T @ v)
    assert aslinearoperator(A) is A
    with pytest.raises(ValueError, match="in_shape"):
        A + aslinearoperator(N)


def test_sizes_that_do_not_add():
    A = BlockBandedMatrix(np.ones((4, 3, 1, 1)), lower=1, upper=1)
    for blocks in (np.ones((5, 3, 1, 1)), np.ones((2, 3, 2, 2)), np.ones((2, 4, 3, 1, 1))):
        with pytest.raises(ValueError, match="must have one"):
            A + BlockBandedMatrix(blocks, lower=1, upper=1)


@given(cases(batches=((3,), (2, 3))), LIBRARIES, st.lists(st.integers(0, 2), max_size=5))
def test_take(case, xp, picks):
    A, n = case.matrix(xp), case.dense.shape[-1]
    part = A.take(np.asarray(picks, dtype=np.intp))
    assert isinstance(part, BlockBandedMatrix)
    assert (part.structure, part.batch_shape) == (A.structure, (len(picks),))
    np.testing.assert_array_equal(to_host(part.todense()), case.dense.reshape(int(np.prod(A.batch_shape)), n, n)[picks])


@pytest.mark.parametrize("target", [*REALS, *COMPLEX])
def test_astype(xp, target):
    A = BlockBandedMatrix(xp.asarray(integers(0, (4, 3, 2, 2))), lower=1, upper=1)
    turned = A.astype(getattr(xp, target))
    assert turned.dtype == turned.blocks.dtype == getattr(xp, target)
    np.testing.assert_array_equal(to_host(turned.todense()), to_host(A.todense()))
    assert A.astype(A.dtype) is A


def test_a_krylov_solver_takes_it(xp, any_dtype):
    blocks = 0.1 * integers(0, (2, 6, 3, 2, 2))
    blocks[:, :, 1] += np.eye(2)
    A = BlockBandedMatrix(xp.asarray(blocks, dtype=any_dtype), lower=1, upper=1)
    b = xp.ones((2, 6, 2), dtype=any_dtype)
    result = linear_solve(A, b, method=GMRES())
    assert result.success.all()
    assert result.x.dtype == any_dtype
    np.testing.assert_allclose(to_host(A @ result.x), to_host(b), rtol=1e-4)


def test_repr():
    A = BlockBandedMatrix(np.ones((2, 5, 4, 3, 3), np.float32), lower=1, upper=2)
    assert repr(A) == (
        "<BlockBandedMatrix of 5 block rows, block_size=3, lower=1, upper=2, batch_shape=(2,), dtype=float32>"
    )
    assert "periodic" in repr(BlockBandedMatrix(np.ones((5, 3, 1, 1)), lower=1, upper=1, periodic=True))


def test_lists_and_integers_become_float64():
    A = BlockBandedMatrix([[[[2]]], [[[3]]]], lower=0, upper=0)
    assert A.dtype == np.float64
    np.testing.assert_array_equal(A @ [1, 1], [2.0, 3.0])


ONES = np.ones((4, 3, 2, 2))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: BlockBandedMatrix(ONES, lower=1, upper=2), ValueError, ["blocks", "T, 4, k, k", "(4, 3, 2, 2)"]),
        (lambda: BlockBandedMatrix(np.ones((4, 3, 2, 3)), lower=1, upper=1), ValueError, ["blocks", "(4, 3, 2, 3)"]),
        (lambda: BlockBandedMatrix(np.ones((4, 3, 0, 0)), lower=1, upper=1), ValueError, ["blocks", "(4, 3, 0, 0)"]),
        (lambda: BlockBandedMatrix(np.ones((3, 2, 2)), lower=1, upper=1), ValueError, ["blocks", "(3, 2, 2)"]),
        (lambda: BlockBandedMatrix(ONES, lower=-1, upper=3), ValueError, ["lower", "-1"]),
        (lambda: BlockBandedMatrix(ONES, lower=1.0, upper=1), TypeError, ["lower", "float"]),
        (lambda: BlockBandedMatrix(ONES, lower=1, upper="1"), TypeError, ["upper", "str"]),
        (lambda: BlockBandedMatrix(ONES[:2], lower=1, upper=1, periodic=True), ValueError, ["periodic", "3", "2"]),
        (lambda: BlockBandedMatrix(np.array("x"), lower=1, upper=1), TypeError, ["blocks", "numbers"]),
        (lambda: matrix() @ np.ones(7), ValueError, ["(4, 2) or (8,)", "(7,)"]),
        (lambda: matrix().matmat(np.ones((7, 2))), ValueError, ["(8, 'K')", "(7, 2)"]),
        (lambda: matrix().rmatmat(np.ones(8)), ValueError, ["(8, 'K')", "(8,)"]),
        (lambda: matrix().take(np.asarray([0])), ValueError, ["no batch"]),
        (lambda: matrix() * "x", TypeError, ["number", "str"]),
        (lambda: matrix().to_sparse("coo"), ValueError, ["format", "coo"]),
        (lambda: matrix(np.ones((2, 4, 3, 2, 2))).to_sparse(), ValueError, ["one system", "(2,)"]),
        (lambda: BlockBandedMatrix.from_dense(np.ones((3, 4)), BlockBanded(1, 1)), ValueError, ["A", "(3, 4)"]),
        (lambda: BlockBandedMatrix.from_dense(np.ones((3, 3)), BlockBanded(1, 1, 2)), ValueError, ["multiple", "3"]),
        (lambda: BlockBandedMatrix.from_sparse(np.ones((3, 3)), BlockBanded(1, 1)), TypeError, ["A", "ndarray"]),
        (lambda: BlockBandedMatrix.from_sparse(sp.eye_array(3, 4), BlockBanded(1, 1)), ValueError, ["A", "(3, 4)"]),
        (lambda: BlockBandedMatrix.from_banded((1, 1), np.ones((4, 5))), ValueError, ["ab", "3", "(4, 5)"]),
    ],
)
def test_a_wrong_argument_is_named(make, error, words):
    with pytest.raises(error) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def matrix(blocks: np.ndarray = ONES, **settings: bool) -> BlockBandedMatrix:
    return BlockBandedMatrix(blocks, lower=1, upper=1, **settings)


def test_the_input_is_not_changed(xp):
    blocks = with_garbage(integers(0, (4, 3, 2, 2)), BlockBanded(1, 1), 5.0)
    given_blocks = xp.asarray(blocks, copy=True)
    A = BlockBandedMatrix(given_blocks, lower=1, upper=1)
    A @ xp.ones(8, dtype=xp.float64), A.rmatvec(xp.ones(8, dtype=xp.float64)), A.todense()
    np.testing.assert_array_equal(to_host(given_blocks), blocks)


def test_a_matrix_pickles_by_its_blocks(rng):
    A = BlockBandedMatrix(rng.standard_normal((2, 5, 3, 2, 2)), lower=1, upper=1, periodic=True)
    for other in (pickle.loads(pickle.dumps(A)), copy.deepcopy(A)):
        np.testing.assert_array_equal(other.blocks, A.blocks)
        assert (other.structure, other.batch_shape) == (A.structure, A.batch_shape)
        np.testing.assert_array_equal(other @ np.ones((2, 10)), A @ np.ones((2, 10)))
