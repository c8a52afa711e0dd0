"""Even-odd elimination against the dense Schur complement."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve.elimination._even_odd import merge, split
from tests.adapters.layers import Case, make
from tests.elimination.layers import SIZES, TIGHT, case_of
from tests.helpers.compare import close


def schur(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """J without its eliminated blocks, dense, for the batch as one matrix; and the states (B, T, size)'s kept ones."""
    J = case.jacobian()
    is_kept = np.zeros(case.H.shape, dtype=bool)
    is_kept[:, 1::2] = True
    kept = is_kept.ravel()
    e, o = np.flatnonzero(~kept), np.flatnonzero(kept)
    return J[np.ix_(o, o)] - J[np.ix_(o, e)] @ np.linalg.solve(J[np.ix_(e, e)], J[np.ix_(e, o)]), kept


def on_expanded(case: Case, layer: ims.Problem) -> tuple[Case, Any]:
    """The case at a state whose eliminated blocks satisfy their equations, and that state's kept blocks."""
    kept = case.H[:, 1::2]
    return replace(case, H=ims.elimination.expand(layer, kept)), kept


def test_residual_is_that_of_the_kept_blocks(case):
    layer = case.layer()
    case, kept = on_expanded(case, layer)
    F, half = case.residual(), ims.elimination.even_odd(layer)
    close(half.residual(kept), F[:, 1::2])
    close(half.linearize(kept)[0], F[:, 1::2])
    close(F[:, ::2], 0 * F[:, ::2])
    assert half.fixed_point
    assert half.batch_ndim == 1
    assert layer.name in half.name


def test_products_are_those_of_the_schur_complement(case, rng):
    layer = case.layer()
    case, kept = on_expanded(case, layer)
    S, _ = schur(case)
    half = ims.elimination.even_odd(layer)
    J = half.linearize(kept)[1]
    for one, part in zip(half.blocks(kept), np.split(S, len(kept)), strict=True):
        rows = np.split(part, len(kept), axis=1)
        close(sum(rows), ims.testing.dense(ims.BlockBandedMatrix(one, lower=1, upper=1)))
    v, w = rng.standard_normal((2, *kept.shape))
    close(J.matvec(v).ravel(), S @ v.ravel())
    close(J.rmatvec(w).ravel(), S.T @ w.ravel())
    single = J.astype(np.float32)
    assert single.dtype == single.matvec(v.astype(np.float32)).dtype == np.float32
    close(single.matvec(v.astype(np.float32)).ravel(), S @ v.ravel(), 1e-5)
    close(single.rmatvec(w.astype(np.float32)).ravel(), S.T @ w.ravel(), 1e-5)


def test_parameter_products_are_those_of_the_eliminated_function(case, rng):
    layer = case.layer()
    half = ims.elimination.even_odd(layer)
    kept = case.H[:, 1::2]
    w = rng.standard_normal(kept.shape)
    tangents = {name: rng.standard_normal(value.shape) for name, value in case.P.items()}
    step = 1e-6

    def moved(sign):
        changed = {name: case.P[name] + sign * step * tangents[name] for name in case.P}
        return ims.elimination.even_odd(case.layer(**changed)).residual(kept)

    change = half.parameter_jvp(kept, tangents)
    close(change, (moved(1) - moved(-1)) / (2 * step), 1e-8)
    gradients = half.parameter_vjp(kept, w)
    assert gradients.keys() == half.parameters.keys() == layer.parameters.keys()
    assert all(gradients[name].shape == value.shape for name, value in case.P.items())
    total = sum(np.sum(gradients[name] * tangents[name]) for name in tangents)
    assert total == pytest.approx(np.sum(w * change), rel=1e-11, abs=1e-11)
    one = {"inputs": tangents["inputs"]}
    none = {name: np.zeros_like(value) for name, value in tangents.items()}
    close(half.parameter_jvp(kept, one), half.parameter_jvp(kept, none | one))


def test_eigenvalues_are_squared(name):
    case = case_of(name, "odd", B=1)
    case, kept = on_expanded(case, case.layer())
    mu = 1 - np.linalg.eigvals(case.jacobian())
    S, _ = schur(case)
    squared = 1 - np.linalg.eigvals(S)
    for one in squared:  # each is the square of some mu, and -mu is an eigenvalue where mu is
        assert np.abs(mu**2 - one).min() < 1e-6
    largest = np.abs(mu).max()
    assert np.abs(squared).max() == pytest.approx(largest**2, rel=1e-6)
    J = ims.elimination.even_odd(case.layer()).linearize(kept)[1]
    close(J.matvec(np.ones_like(kept)).ravel(), S.sum(axis=1))


def test_the_inverse_on_offer_has_the_blocks_diagonals(name):
    """Against the dense matrix of couplings' diagonals, solved by NumPy."""
    for size in SIZES:
        case = case_of(name, size, scale=0.4)
        layer = case.layer()
        layer = replace(layer, halves=replace(layer.halves, nearly_diagonal=True))
        kept = case.H[:, 1::2]
        half = ims.elimination.even_odd(layer)
        eliminated, first = layer.halves.eliminated.linearize(kept)
        _, second = layer.halves.kept.linearize(eliminated)
        B, n, k = kept.shape
        E, K = np.zeros((B, k, eliminated.shape[1], n)), np.zeros((B, k, n, eliminated.shape[1]))
        for matrix, (previous, following), shift in ((E, first.diagonals(), -1), (K, second.diagonals(), 0)):
            rows, columns = matrix.shape[-2:]
            for t in range(rows):
                for diagonal, column in ((previous, t + shift), (following, t + shift + 1)):
                    if 0 <= column < columns:
                        matrix[:, :, t, column] = diagonal[:, t, :]
                    else:
                        assert (diagonal[:, t, :] == 0).all()
        approximate = np.eye(n) - K @ E  # (B, k, n, n)
        M = half.linearize(kept)[1].approximate_inverse()
        assert (M.in_shape, M.batch_shape) == ((n, k), (B,))
        b = np.random.default_rng(0).standard_normal(kept.shape)
        x = M.matvec(b)
        close(np.einsum("bkts,bsk->btk", approximate, x), b, 1e-10)
        adjoint = M.rmatvec(b)
        close(np.einsum("bkst,bsk->btk", approximate, adjoint), b, 1e-10)


def test_the_inverse_of_independent_units_is_exact(rng):
    """With diagonal weights the couplings' blocks are diagonal."""
    k, T = 3, 7
    params = {n: np.asarray(v) for n, v in ims.adapters.rnn_parameters(2, k, lower=1, upper=1, rng=rng).items()}
    for weights in ("P", "N"):
        params[weights] = np.diag(rng.uniform(-0.4, 0.4, k))[None]
    half = ims.elimination.even_odd(ims.adapters.implicit_rnn(params, rng.standard_normal((2, T, 2))))
    e = rng.uniform(-1, 1, (2, T // 2, k))
    J = half.linearize(e)[1]
    b = rng.standard_normal(e.shape)
    close(J.matvec(J.approximate_inverse().matvec(b)), b)
    close(J.rmatvec(J.approximate_inverse().rmatvec(b)), b)
    result = ims.root(half, method="newton-krylov", stop=TIGHT)
    assert result.success.all()
    assert (result.krylov_iterations <= result.iterations).all()


def test_everything_in_every_library(xp, dtype, rng):
    case = case_of("implicit_gru", "ragged")
    tolerance = 256 * float(xp.finfo(dtype).eps)
    layer, ours = case.layer(), case.layer(xp, dtype)
    half, other = ims.elimination.even_odd(layer), ims.elimination.even_odd(ours)
    kept, w = rng.uniform(-1, 1, (2, 3, 2, 3))
    e, u = xp.asarray(kept, dtype=dtype), xp.asarray(w, dtype=dtype)
    tangents = {name: rng.standard_normal(value.shape) for name, value in case.P.items()}
    theirs = {name: xp.asarray(value, dtype=dtype) for name, value in tangents.items()}
    J, Jx = half.linearize(kept)[1], other.linearize(e)[1]
    taken = np.asarray([2, 0])
    pairs = [
        (other.residual(e), half.residual(kept)),
        (Jx.matvec(u), J.matvec(w)),
        (Jx.rmatvec(u), J.rmatvec(w)),
        (Jx.approximate_inverse().matvec(u), J.approximate_inverse().matvec(w)),
        (Jx.approximate_inverse().rmatvec(u), J.approximate_inverse().rmatvec(w)),
        (other.parameter_jvp(e, theirs), half.parameter_jvp(kept, tangents)),
        (ims.elimination.expand(ours, e), ims.elimination.expand(layer, kept)),
        (other.take(taken).residual(xp.take(e, xp.asarray(taken), axis=0)), half.take(taken).residual(kept[taken])),
        (other.initial_guess("one-step", None), half.initial_guess("one-step", None)),
    ]
    expected = half.parameter_vjp(kept, w)
    pairs += [(value, expected[name]) for name, value in other.parameter_vjp(e, u).items()]
    for actual, value in pairs:
        assert actual.dtype == dtype
        close(actual, value, tolerance)


def test_take_is_the_half_of_some_sequences(name, rng):
    case = case_of(name, "ragged")
    half, kept = ims.elimination.even_odd(case.layer()), case.H[:, 1::2]
    v = rng.standard_normal(kept.shape)
    F, J = half.linearize(kept)
    M = J.approximate_inverse()
    for indices in (np.asarray([2, 0]), np.asarray([1]), np.asarray([1, 1, 2])):
        part = half.take(indices)
        Fi, Ji = part.linearize(kept[indices])
        close(Fi, F[indices])
        for one in (Ji, J.take(indices)):
            close(one.matvec(v[indices]), J.matvec(v)[indices])
            close(one.rmatvec(v[indices]), J.rmatvec(v)[indices])
            if M is not None:  # an RNN's diagonals are a small part of its weights
                close(one.approximate_inverse().matvec(v[indices]), M.matvec(v)[indices])
            close(one.astype(np.float32).matvec(v[indices].astype(np.float32)), J.matvec(v)[indices], 1e-5)


@given(st.data())
def test_split_and_merge_are_inverse(data):
    axis = data.draw(st.integers(0, 2))
    shape = [data.draw(st.integers(0, 5)) for _ in range(axis)] + [data.draw(st.integers(0, 7)), 2]
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    eliminated, kept = split(x, axis)
    np.testing.assert_array_equal(eliminated, np.take(x, range(0, shape[axis], 2), axis))
    np.testing.assert_array_equal(kept, np.take(x, range(1, shape[axis], 2), axis))
    again = merge(eliminated, kept, axis)
    np.testing.assert_array_equal(again, x)
    assert again.dtype == x.dtype
    assert not np.shares_memory(again, x)


def test_only_problems_with_halves_are_halved():
    layer = make("elman").layer()
    for function in (
        lambda problem: ims.elimination.even_odd(problem),
        lambda problem: ims.elimination.expand(problem, np.zeros((2, 4))),
    ):
        with pytest.raises(TypeError, match="`problem` must be a Problem, got function"):
            function(lambda x: x)
        with pytest.raises(ValueError, match="'elman' must have `halves`"):
            function(layer)
    assert ims.elimination.even_odd(make().layer()).halves is None
    with pytest.raises(ValueError, match="must have `halves`"):
        ims.elimination.even_odd(ims.elimination.even_odd(make().layer()))
    with pytest.raises(TypeError, match="`halves` must be a Halves"):
        ims.Problem(lambda x: x, halves=(1, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(3, 4, 3), (3, 6, 3), (3, 3, 3), (3, 7, 3), (2, 5, 3), (3, 5, 2), (5, 3), (3, 15)])
@pytest.mark.parametrize("method", ["newton-krylov", "auto", "block-newton"])
def test_a_start_of_the_wrong_shape_is_refused(shape, method):
    """One block too few or too many leaves the number of kept blocks as it is."""
    layer = make(T=5, lengths=None).layer()
    with pytest.raises(ValueError, match=r"must|shape"):
        ims.root(layer, np.zeros(shape), method=method)
    even = make(T=4, lengths=None).layer()
    with pytest.raises(ValueError, match=r"must|shape"):
        ims.root(even, np.zeros((3, 5, 3)), method=method)
