"""LinearOperator: products, algebra and batches against dense matrices, which are the definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import array_api_strict
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve import LinearOperator
from implicitsolve._arrays.host import to_host
from implicitsolve._arrays.namespace import array_namespace

# Small integers make every sum and product exact in float32 and float64 alike: equality needs no tolerance.
INTEGERS = (-3, 4)


def integers(rng: np.random.Generator, shape: tuple[int, ...], is_complex: bool = False) -> np.ndarray:
    values = rng.integers(*INTEGERS, shape).astype(np.float64)
    return values + 1j * rng.integers(*INTEGERS, shape) if is_complex else values


def times(matrices: np.ndarray, in_shape: tuple[int, ...], out_shape: tuple[int, ...]) -> Callable:
    """Product of a stack of matrices with states (batch, *in_shape), in whatever library the state is of."""
    batch = matrices.shape[:-2]

    def product(v):
        flat = to_host(v).reshape(*batch, matrices.shape[-1], 1)
        out = (matrices @ flat)[..., 0].reshape(batch + out_shape)
        return array_namespace(v).asarray(out.astype(np.result_type(to_host(v).dtype, np.float32)))

    return product


def operator(
    matrices: np.ndarray,
    in_shape: tuple[int, ...] | None = None,
    out_shape: tuple[int, ...] | None = None,
    *,
    adjoint: bool = True,
    take: bool = False,
) -> LinearOperator:
    in_shape = matrices.shape[-1:] if in_shape is None else in_shape
    out_shape = matrices.shape[-2:-1] if out_shape is None else out_shape
    adjoints = matrices.conj().swapaxes(-1, -2)

    def taken(indices):
        rows = matrices.reshape(-1, *matrices.shape[-2:])[indices]
        return operator(rows, in_shape, out_shape, adjoint=adjoint, take=True)

    return LinearOperator(
        times(matrices, in_shape, out_shape),
        times(adjoints, out_shape, in_shape) if adjoint else None,
        in_shape=in_shape,
        out_shape=out_shape,
        batch_shape=matrices.shape[:-2],
        dtype=matrices.dtype,
        take=taken if take else None,
    )


BATCHES = [(), (3,), (2, 3)]
EVENTS = [((4,), (4,)), ((2, 3), (5,)), ((3,), (2, 2)), ((), ()), ((2, 2), (2, 2))]


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize(("in_shape", "out_shape"), EVENTS, ids=str)
def test_products_take_states_flat_arrays_and_leading_axes(xp, rng, batch, in_shape, out_shape):
    rows, columns = int(np.prod(out_shape)), int(np.prod(in_shape))
    matrices = integers(rng, (*batch, rows, columns))
    A = operator(matrices, in_shape, out_shape)
    assert A.shape == (rows, columns)
    assert A.ndim == 2
    sides = ((A.matvec, matrices, in_shape, out_shape), (A.rmatvec, matrices.swapaxes(-1, -2), out_shape, in_shape))
    for product, dense, given_shape, back_shape in sides:
        v = integers(rng, (2, 5, *batch, int(np.prod(given_shape))))
        expected = (dense @ v[..., None])[..., 0]
        flat = product(xp.asarray(v))
        state = product(xp.asarray(v.reshape(2, 5, *batch, *given_shape)))
        assert state.shape == (2, 5, *batch, *back_shape)
        assert flat.shape == (state.shape if len(given_shape) == 1 else expected.shape)  # one axis: flat is the state
        np.testing.assert_array_equal(to_host(flat).reshape(expected.shape), expected)
        np.testing.assert_array_equal(to_host(state).reshape(expected.shape), expected)
        np.testing.assert_array_equal(to_host(product(xp.asarray(v[0, 0]))), to_host(flat)[0, 0])


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_columns(xp, any_dtype, rng, batch):
    is_complex = xp.isdtype(any_dtype, "complex floating")
    matrices = integers(rng, (*batch, 3, 4), is_complex)
    A = operator(matrices)
    V, W = integers(rng, (*batch, 4, 5), is_complex), integers(rng, (*batch, 3, 2), is_complex)
    given = xp.asarray(V, dtype=any_dtype)
    np.testing.assert_array_equal(to_host(A.matmat(given)), matrices @ V)
    np.testing.assert_array_equal(to_host(A @ given), matrices @ V)
    adjoint = matrices.conj().swapaxes(-1, -2)
    np.testing.assert_array_equal(to_host(A.rmatmat(xp.asarray(W, dtype=any_dtype))), adjoint @ W)
    np.testing.assert_array_equal(A.matmat(V.tolist()), matrices @ V)
    assert isinstance(A.matmat(given), type(given))


@pytest.mark.parametrize(
    ("product", "shape", "expected"),
    [
        ("matvec", (0, 4), (0, 3)),
        ("rmatvec", (2, 0, 3), (2, 0, 4)),
        ("matmat", (4, 0), (3, 0)),
        ("rmatmat", (3, 0), (4, 0)),
    ],
)
def test_empty_axes_give_empty_results(rng, product, shape, expected):
    assert getattr(operator(integers(rng, (3, 4))), product)(np.zeros(shape)).shape == expected


@dataclass(frozen=True)
class Term:
    """An expression of operators beside the same expression of matrices."""

    operator: LinearOperator
    dense: np.ndarray

    def map(self, function: Callable) -> Term:
        return Term(function(self.operator), function(self.dense))


def adjoint_of(A):
    return A.H if isinstance(A, LinearOperator) else A.conj().swapaxes(-1, -2)


def transpose_of(A):
    return A.T if isinstance(A, LinearOperator) else A.swapaxes(-1, -2)


FACTORS = st.sampled_from([2, -1, 0.5, 1j, 1 - 2j, np.float64(2), np.float32(-3), np.complex128(2j), np.int64(2)])
SCALAR_ARRAYS = st.sampled_from([np.asarray(2.0), np.asarray(1 + 1j)])


def terms(leaves: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
    def grow(inner: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
        return st.one_of(
            st.builds(lambda a, b: Term(a.operator + b.operator, a.dense + b.dense), inner, inner),
            st.builds(lambda a, b: Term(a.operator - b.operator, a.dense - b.dense), inner, inner),
            st.builds(lambda a, b: Term(a.operator @ b.operator, a.dense @ b.dense), inner, inner),
            st.builds(lambda a, s: a.map(lambda A: s * A), inner, FACTORS),
            st.builds(lambda a, s: a.map(lambda A: A * s), inner, st.one_of(FACTORS, SCALAR_ARRAYS)),
            st.builds(lambda a: a.map(lambda A: A / 2), inner),
            st.builds(lambda a: a.map(lambda A: -A), inner),
            st.builds(lambda a: a.map(adjoint_of), inner),
            st.builds(lambda a: a.map(transpose_of), inner),
        )

    return st.recursive(leaves, grow, max_leaves=5)


@st.composite
def expressions(draw: st.DrawFn, batches: tuple[tuple[int, ...], ...] = ((), (3,), (2, 2))) -> Term:
    batch, n = draw(st.sampled_from(batches)), draw(st.integers(1, 3))
    seed = st.integers(0, 2**20)

    def leaf(seed: int, is_complex: bool, take: bool) -> Term:
        M = integers(np.random.default_rng(seed), (*batch, n, n), is_complex)
        return Term(operator(M, take=take and bool(batch)), M)

    return draw(terms(st.builds(leaf, seed, st.booleans(), st.booleans())))


def vectors(term: Term, seed: int, shape: tuple[int, ...] | None = None) -> np.ndarray:
    shape = (*term.dense.shape[:-2], term.dense.shape[-1]) if shape is None else shape
    return integers(np.random.default_rng(seed), shape, True)


@given(term=expressions(), seed=st.integers(0, 2**20))
def test_algebra_equals_dense_algebra(term, seed):
    v = vectors(term, seed)
    for A, M in ((term.operator, term.dense), (term.operator.H, adjoint_of(term.dense))):
        np.testing.assert_array_equal(A @ v, (M @ v[..., None])[..., 0])
    np.testing.assert_array_equal(term.operator.T @ v, (transpose_of(term.dense) @ v[..., None])[..., 0])
    np.testing.assert_array_equal(term.operator.rmatvec(v), (adjoint_of(term.dense) @ v[..., None])[..., 0])
    np.testing.assert_array_equal(term.operator.H.H @ v, term.operator @ v)


@given(
    term=expressions(((4,), (2, 3))),
    seed=st.integers(0, 2**20),
    picks=st.lists(st.integers(0, 3), min_size=1, unique=True),
)
def test_take_picks_systems_of_any_expression(term, seed, picks):
    indices = np.asarray(picks)
    n = term.dense.shape[-1]
    part, dense = term.operator.take(indices), term.dense.reshape(-1, n, n)[indices]
    assert part.batch_shape == (len(picks),)
    v = vectors(term, seed, (len(picks), n))
    np.testing.assert_array_equal(part @ v, (dense @ v[..., None])[..., 0])
    np.testing.assert_array_equal(part.rmatvec(v), (adjoint_of(dense) @ v[..., None])[..., 0])
    np.testing.assert_array_equal(part.take(np.asarray([0])) @ v[:1], (dense[:1] @ v[:1, :, None])[..., 0])
    turned = term.operator.H.take(indices)
    np.testing.assert_array_equal(turned @ v, (adjoint_of(dense) @ v[..., None])[..., 0])


@given(term=expressions(), seed=st.integers(0, 2**20))
def test_dtype_says_what_products_of_real_vectors_are(term, seed):
    v = vectors(term, seed).real
    is_complex = np.iscomplexobj(term.dense)
    assert np.dtype(term.operator.dtype).kind == ("c" if is_complex else "f")
    if not is_complex:
        assert not np.iscomplexobj(term.operator @ v)


def test_arrays_and_sparse_matrices_are_operands(rng):
    M, N = integers(rng, (3, 3)), integers(rng, (3, 3))
    A = operator(M)
    for other in (N, sp.csr_array(N), spla.aslinearoperator(N), operator(N)):
        v = integers(rng, (3,))
        np.testing.assert_array_equal((A + other) @ v, (M + N) @ v)
        np.testing.assert_array_equal((A - other) @ v, (M - N) @ v)
    for other in (sp.csr_array(N), spla.aslinearoperator(N), operator(N)):
        np.testing.assert_array_equal((A @ other) @ v, M @ N @ v)
    np.testing.assert_array_equal((N + A) @ v, (N + M) @ v)
    np.testing.assert_array_equal((N - A) @ v, (N - M) @ v)
    np.testing.assert_array_equal(A @ N, M @ N)
    np.testing.assert_array_equal(v @ A, v @ M)


def test_a_vector_from_the_left_is_not_conjugated(rng):
    M, v = integers(rng, (2, 3), True), integers(rng, (2,), True)
    np.testing.assert_array_equal(v @ operator(M), v @ M)


def test_algebra_of_operators_between_different_spaces(rng):
    A, B = integers(rng, (2, 3)), integers(rng, (3, 4))
    product = operator(A, (3,), (2,)) @ operator(B, (2, 2), (3,))
    assert (product.in_shape, product.out_shape, product.shape) == ((2, 2), (2,), (2, 4))
    v = integers(rng, (2, 2))
    np.testing.assert_array_equal(product @ v, A @ B @ v.ravel())
    w = integers(rng, (2,))
    np.testing.assert_array_equal(product.H @ w, (B.T @ A.T @ w).reshape(2, 2))


@pytest.mark.parametrize("factor", [2, 0.5, np.float32(2), np.float64(0.5), np.int64(3)], ids=repr)
def test_a_factor_keeps_float32(xp, factor):
    A = LinearOperator(lambda v: v, lambda v: v, in_shape=3, dtype=xp.float32)
    scaled = factor * A
    product = scaled @ xp.ones(3, dtype=xp.float32)
    assert product.dtype == scaled.dtype == xp.float32
    np.testing.assert_array_equal(to_host(product), np.full(3, factor, np.float32))


def test_a_complex_factor_keeps_the_precision():
    for real, expected in ((np.float32, np.complex64), (np.float64, np.complex128)):
        A = LinearOperator(lambda v: v, in_shape=3, dtype=np.dtype(real))
        assert (1j * A).dtype == expected
        assert ((1j * A) @ np.ones(3, real)).dtype == expected


def test_a_strict_operator_adds_to_one_without_a_dtype():
    A = LinearOperator(lambda v: 2.0 * v, in_shape=2, dtype=array_api_strict.float64)
    B = LinearOperator(lambda v: v, in_shape=2)
    np.testing.assert_array_equal(to_host((A + B) @ array_api_strict.ones(2)), [3.0, 3.0])


@pytest.mark.parametrize("adjoints", [(True, False), (False, True)])
def test_an_expression_has_an_adjoint_only_where_all_its_parts_have(rng, adjoints):
    parts = [operator(integers(rng, (2, 2)), adjoint=has) for has in adjoints]
    for expression in (parts[0] + parts[1], parts[0] @ parts[1], parts[0] - 2 * parts[1]):
        expression @ np.ones(2)
        with pytest.raises(TypeError, match="without `rmatvec`"):
            expression.rmatvec(np.ones(2))
        for side in ("H", "T"):
            with pytest.raises(TypeError, match="without `rmatvec`"):
                getattr(expression, side)


def test_some_systems_of_one_number_each():
    slopes = np.asarray([2.0, 3.0, 4.0, 5.0])
    A = LinearOperator(lambda v: slopes * v, in_shape=(), batch_shape=(4,)).take(np.asarray([3, 1]))
    np.testing.assert_array_equal(A.matvec(np.asarray([1.0, 2.0])), [5.0, 6.0])


def test_a_take_of_the_user_is_called_with_the_indices_and_nothing_else_is_multiplied(rng):
    M = integers(rng, (5, 3, 3))
    asked, multiplied = [], []

    def take(indices):
        asked.append(indices)
        return operator(M[indices], take=True)

    def matvec(v):
        multiplied.append(v.shape)
        return (M @ v[..., None])[..., 0]

    A = LinearOperator(matvec, in_shape=3, batch_shape=(5,), take=take)
    np.testing.assert_array_equal(A.take(np.asarray([4, 1])) @ np.ones((2, 3)), M[[4, 1]] @ np.ones(3))
    assert [indices.tolist() for indices in asked] == [[4, 1]]
    assert multiplied == []


def test_repeated_systems_need_a_take_of_their_own(rng):
    M, v, indices = integers(rng, (4, 2, 2)), integers(rng, (3, 2)), np.asarray([3, 0, 3])
    part = operator(M, take=True).take(indices)
    np.testing.assert_array_equal(part @ v, (M[indices] @ v[..., None])[..., 0])
    with pytest.raises(ValueError, match="no index may repeat"):
        operator(M).take(indices)
    with pytest.raises(ValueError, match="no batch"):
        operator(np.eye(3)).take(np.asarray([0]))


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("take", [True, False])
def test_flat_is_the_same_operator_on_rows(xp, rng, batch, take):
    M = integers(rng, (*batch, 4, 6))
    A = operator(M, (2, 3), (4,), take=take and bool(batch))
    flat, size = A.flat(), int(np.prod(batch))
    assert (flat.batch_shape, flat.in_shape, flat.out_shape) == ((size,), (6,), (4,))
    rows = M.reshape(-1, 4, 6)
    v, w = integers(rng, (size, 6)), integers(rng, (size, 4))
    np.testing.assert_array_equal(to_host(flat @ xp.asarray(v)), (rows @ v[..., None])[..., 0])
    np.testing.assert_array_equal(to_host(flat.rmatvec(xp.asarray(w))), (rows.swapaxes(1, 2) @ w[..., None])[..., 0])
    last = flat.take(np.asarray([size - 1]))
    np.testing.assert_array_equal(to_host(last @ xp.asarray(v[-1:])), (rows[-1:] @ v[-1:, :, None])[..., 0])
    assert flat.flat() is flat


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"matvec": 3}, TypeError, ["matvec", "callable", "int"]),
        ({"rmatvec": "H"}, TypeError, ["rmatvec", "callable", "str"]),
        ({"take": [0]}, TypeError, ["take", "callable", "list"]),
        ({"in_shape": -1}, ValueError, ["in_shape", "non-negative", "-1"]),
        ({"in_shape": (2, -1)}, ValueError, ["in_shape", "non-negative", "-1"]),
        ({"out_shape": ("3",)}, ValueError, ["out_shape", "integers", "3"]),
        ({"in_shape": 2.0}, (TypeError, ValueError), ["in_shape", "integer", "2.0"]),
        ({"batch_shape": (1.5,)}, ValueError, ["batch_shape", "integers", "1.5"]),
        ({"dtype": "floaty"}, TypeError, ["dtype", "floaty"]),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named_at_once(arguments, error, words):
    with pytest.raises(error) as caught:
        LinearOperator(**{"matvec": lambda v: v, "in_shape": 3, **arguments})
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("product", ["matvec", "rmatvec", "matmat", "rmatmat"])
def test_a_wrong_shape_is_named_with_what_was_expected(product):
    A = operator(np.zeros((2, 3, 3)))
    with pytest.raises(ValueError, match="LinearOperator") as caught:
        getattr(A, product)(np.zeros((2, 4)))
    assert "(2, 4)" in str(caught.value)
    assert "(2, 3" in str(caught.value)


def test_operators_that_do_not_fit_each_other():
    A, B, C = (operator(np.zeros(shape)) for shape in ((3, 3), (4, 4), (2, 3, 3)))
    for combine, words in (
        (lambda: A + B, ["in_shape", "(3,)", "(4,)"]),
        (lambda: A - C, ["batch_shape", "()", "(2,)"]),
        (lambda: A @ B, ["in_shape", "(3,)", "(4,)"]),
        (lambda: A @ C, ["batch_shape", "()", "(2,)"]),
    ):
        with pytest.raises(ValueError, match="LinearOperator") as caught:
            combine()
        for word in words:
            assert word in str(caught.value)


NONSENSE = {
    "A + 1": lambda A: A + 1,
    "1 - A": lambda A: 1 - A,
    "A * array": lambda A: A * np.ones(3),
    "array * A": lambda A: np.ones(3) * A,
    "A * str": lambda A: A * "x",
    "A * None": lambda A: A * None,
    "A / A": lambda A: A / A,
    "1 / A": lambda A: 1 / A,
    "A * A": lambda A: A * A,
    "A @ str": lambda A: A @ "x",
    "A @ None": lambda A: A @ None,
}


@pytest.mark.parametrize("combine", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_a_type_error(combine):
    with pytest.raises(TypeError):
        combine(operator(np.eye(3)))


def test_repr_says_shape_batch_and_dtype():
    assert repr(operator(np.zeros((2, 3, 4)))) == "<LinearOperator 3x4, batch_shape=(2,), dtype=float64>"
    assert repr(operator(np.zeros((3, 4), np.complex64))) == "<LinearOperator 3x4, dtype=complex64>"
