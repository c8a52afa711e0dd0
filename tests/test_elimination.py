"""Even-odd elimination against the dense Schur complement, and `root` with and without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve.elimination import merge, split
from implicitsolve.status import Status
from tests.adapters.layers import ADAPTERS, Case, make

NEAREST = [name for name, adapter in ADAPTERS.items() if adapter.offsets == (-1, 1)]
SIZES = {
    "T1": {"T": 1, "lengths": None},
    "T2": {"T": 2, "lengths": None},
    "T3": {"T": 3, "lengths": None},
    "even": {"T": 6, "lengths": None},
    "odd": {"T": 5, "lengths": None},
    "ragged": {"T": 5, "lengths": (4, 1, 5)},
    "ragged even": {"T": 6, "lengths": (2, 3, 1)},
}
ATOL = 1e-11
TIGHT = ims.NonlinearStop(atol=ATOL, rtol=0.0)


def host(x) -> np.ndarray:
    return x.get() if hasattr(x, "get") else np.asarray(x)


def close(actual, expected, tolerance=1e-12):
    actual, expected = host(actual), host(expected)
    assert actual.shape == expected.shape
    bound = tolerance * max(1.0, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=bound)


def case_of(name: str, size: str, **kwargs: Any) -> Case:
    return make(name, **(SIZES[size] | {"scale": 0.8} | kwargs))


@pytest.fixture(params=NEAREST)
def name(request) -> str:
    return request.param


@pytest.fixture(params=SIZES)
def case(request, name) -> Case:
    return case_of(name, request.param)


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
    return replace(case, H=ims.expand(layer, kept)), kept


# The problem in half the unknowns


def test_residual_is_that_of_the_kept_blocks(case):
    layer = case.layer()
    case, kept = on_expanded(case, layer)
    F, half = case.residual(), ims.even_odd(layer)
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
    J = ims.even_odd(layer).linearize(kept)[1]
    v, w = rng.standard_normal((2, *kept.shape))
    close(J.matvec(v).ravel(), S @ v.ravel())
    close(J.rmatvec(w).ravel(), S.T @ w.ravel())
    single = J.astype(np.float32)
    assert single.dtype == single.matvec(v.astype(np.float32)).dtype == np.float32
    close(single.matvec(v.astype(np.float32)).ravel(), S @ v.ravel(), 1e-5)
    close(single.rmatvec(w.astype(np.float32)).ravel(), S.T @ w.ravel(), 1e-5)


def test_parameter_products_are_those_of_the_eliminated_function(case, rng):
    layer = case.layer()
    half = ims.even_odd(layer)
    kept = case.H[:, 1::2]
    w = rng.standard_normal(kept.shape)
    tangents = {name: rng.standard_normal(value.shape) for name, value in case.P.items()}
    step = 1e-6

    def moved(sign):
        changed = {name: case.P[name] + sign * step * tangents[name] for name in case.P}
        return ims.even_odd(case.layer(**changed)).residual(kept)

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
    J = ims.even_odd(case.layer()).linearize(kept)[1]
    close(J.matvec(np.ones_like(kept)).ravel(), S.sum(axis=1))


def test_the_inverse_on_offer_has_the_blocks_diagonals(name):
    """Against the dense matrix of couplings' diagonals, solved by NumPy."""
    for size in SIZES:
        case = case_of(name, size, scale=0.4)
        layer = case.layer()
        kept = case.H[:, 1::2]
        half = ims.even_odd(layer)
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
    half = ims.even_odd(ims.adapters.implicit_rnn(params, rng.standard_normal((2, T, 2))))
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
    half, other = ims.even_odd(layer), ims.even_odd(ours)
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
        (ims.expand(ours, e), ims.expand(layer, kept)),
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
    half, kept = ims.even_odd(case.layer()), case.H[:, 1::2]
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
            close(one.approximate_inverse().matvec(v[indices]), M.matvec(v)[indices])
            close(one.astype(np.float32).matvec(v[indices].astype(np.float32)), J.matvec(v)[indices], 1e-5)


def test_one_sequence_alone(name, rng):
    for T in (1, 2, 5, 6):
        case = case_of(name, "T1", B=1, T=T)
        params = {key: case.P[key] for key in case.weights}
        edges = {key: case.P[key][0] for key in case.adapter.boundaries(1)}
        alone = case.adapter.build(params, case.P["inputs"][0], **edges, **case.adapter.options)
        half = ims.even_odd(alone)
        assert (half.batch_ndim, half.take) == (0, None)
        kept = case.H[0, 1::2]
        S, _ = schur(on_expanded(case, case.layer())[0])
        v = rng.standard_normal(kept.shape)
        J = half.linearize(kept)[1]
        close(J.matvec(v).ravel(), S @ v.ravel())
        close(J.rmatvec(v).ravel(), S.T @ v.ravel())
        assert ims.expand(alone, kept).shape == case.H[0].shape
        result, full = (
            ims.root(one, method="newton-krylov", stop=TIGHT) for one in (alone, replace(alone, halves=None))
        )
        assert result.status is Status.CONVERGED
        assert isinstance(result.residual_norm, float)
        close(result.x, full.x, 1e-9)
        assert result.fun.shape == case.H[0].shape


# Blocks of states


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


def test_expand_round_trip(case):
    layer = case.layer()
    kept = case.H[:, 1::2]
    before = kept.copy()
    x = ims.expand(layer, kept)
    np.testing.assert_array_equal(x[:, 1::2], kept)
    np.testing.assert_array_equal(ims.expand(layer, x[:, 1::2]), x)
    x += 1.0
    np.testing.assert_array_equal(kept, before)
    assert x.shape == case.H.shape


def test_only_problems_with_halves_are_halved():
    layer = make("elman").layer()
    for function in (lambda problem: ims.even_odd(problem), lambda problem: ims.expand(problem, np.zeros((2, 4)))):
        with pytest.raises(TypeError, match="`problem` must be a Problem, got function"):
            function(lambda x: x)
        with pytest.raises(ValueError, match="'elman' must have `halves`"):
            function(layer)
    assert ims.even_odd(make().layer()).halves is None
    with pytest.raises(ValueError, match="must have `halves`"):
        ims.even_odd(ims.even_odd(make().layer()))
    with pytest.raises(TypeError, match="`halves` must be a Halves"):
        ims.Problem(lambda x: x, halves=(1, 2))  # type: ignore[arg-type]


def test_a_state_of_the_wrong_size_is_refused():
    half = ims.even_odd(make(T=4, lengths=None).layer())
    with pytest.raises(ValueError, match="`other` must have shape"):
        half.residual(np.zeros((3, 3, 3)))


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


def test_a_batch_of_two_axes(rng):
    """Systems (2, 3) of a user, made of a layer's six."""
    layer = make("implicit_gru", B=6, T=5, lengths=(5, 1, 4, 2, 5, 3)).layer()
    assert layer.halves is not None

    class Coupling:
        def __init__(self, coupling, batch):
            self.coupling, self.batch = coupling, batch

        def __getattr__(self, key):
            function = getattr(self.coupling, key)
            match key:
                case "take":
                    return lambda indices: function(indices)
                case "astype":
                    return lambda dtype: Coupling(function(dtype), self.batch)
                case "diagonals":
                    return lambda: tuple(self.out(part) for part in function())
            return lambda v: self.out(function(v.reshape(6, *v.shape[2:])))

        def out(self, x):
            return x.reshape(*self.batch, *x.shape[1:])

    def half(one):
        def linearize(other):
            value, coupling = one.linearize(other.reshape(6, *other.shape[2:]))
            return value.reshape(2, 3, *value.shape[1:]), Coupling(coupling, (2, 3))

        return ims.Half(apply=lambda other: linearize(other)[0], linearize=linearize)

    problem = ims.Problem(
        lambda x: layer.residual(x.reshape(6, 5, 3)).reshape(x.shape),
        batch_ndim=2,
        fixed_point=True,
        halves=ims.Halves(eliminated=half(layer.halves.eliminated), kept=half(layer.halves.kept)),
        parameters=layer.parameters,
        parameter_vjp=lambda x, w: layer.parameter_vjp(x.reshape(6, 5, 3), w.reshape(6, 5, 3)),
    )
    expected = ims.root(layer, np.zeros((6, 5, 3)), method="newton-krylov", stop=TIGHT)
    for method in (ims.NewtonKrylov(), ims.NewtonKrylov(products="float32"), ims.Homotopy()):
        result = ims.root(problem, np.zeros((2, 3, 5, 3)), method=method, stop=TIGHT)
        assert result.success.shape == (2, 3)
        assert result.success.all()
        close(result.x.reshape(6, 5, 3), expected.x, 1e-9)
    cotangent = rng.standard_normal((2, 3, 5, 3))
    exact = ims.LinearStop(rtol=1e-12)
    back = ims.pull_back(problem, result.x, cotangent, stop=exact)
    close(
        back.adjoint.reshape(6, 5, 3),
        ims.pull_back(layer, result.x.reshape(6, 5, 3), cotangent.reshape(6, 5, 3), stop=exact).adjoint,
        1e-9,
    )


# `root` with and without


METHODS = {
    "auto": "auto",
    "newton-krylov": "newton-krylov",
    "block-newton": ims.BlockNewton(),
    "bicgstab": ims.NewtonKrylov(krylov=ims.BiCGSTAB()),
    "gmres": ims.NewtonKrylov(krylov=ims.GMRES(), max_krylov=40),
    "float32": ims.NewtonKrylov(products="float32"),
    "homotopy": ims.Homotopy(),
}
ELIMINATES = [key for key in METHODS if key != "block-newton"]


def check_result(layer: ims.Problem, result: ims.NonlinearResult, atol: float = ATOL) -> None:
    """What every result must say of itself."""
    assert result.x.shape == result.fun.shape
    assert result.x.dtype == result.fun.dtype
    fresh = layer.residual(result.x)
    np.testing.assert_allclose(result.fun, fresh, rtol=0, atol=32 * np.finfo(fresh.dtype).eps)
    B = result.x.shape[0]
    np.testing.assert_array_equal(result.residual_norm, np.abs(result.fun).reshape(B, -1).max(axis=1, initial=0.0))
    np.testing.assert_array_equal(result.success, result.residual_norm <= atol)
    for values in (result.status, result.iterations, result.krylov_iterations, result.initial_norm):
        assert values.shape == (B,)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("key", METHODS)
def test_root_with_and_without_halves(key, size):
    turn = list(METHODS).index(key) + list(SIZES).index(size)  # so that every layer has its turn
    method, case = METHODS[key], case_of(NEAREST[turn % len(NEAREST)], size)
    layer = case.layer()
    result = ims.root(layer, method=method, stop=TIGHT)
    full = ims.root(replace(layer, halves=None), method=method, stop=TIGHT)
    np.testing.assert_array_equal(result.status, full.status)
    assert result.success.all()
    close(result.x, full.x, 1e-9)
    assert (result.x[~np.broadcast_to(case.valid, result.x.shape)] == 0).all()
    check_result(layer, result)


@pytest.mark.parametrize("key", ELIMINATES)
def test_root_in_every_library(key, xp, dtype):
    for size in ("T1", "ragged"):
        case = case_of("implicit_gru", size)
        stop = ims.NonlinearStop(atol=100 * float(xp.finfo(dtype).eps), rtol=0.0)
        layer = case.layer(xp, dtype)
        result = ims.root(layer, method=METHODS[key], stop=stop)
        assert result.success.all()
        assert result.x.dtype == result.fun.dtype == dtype
        assert tuple(result.fun.shape) == case.H.shape
        full = ims.root(
            replace(case.layer(), halves=None), method="newton-krylov", stop=ims.NonlinearStop(atol=1e-14, rtol=0.0)
        )
        close(result.x, full.x, 1e4 * float(xp.finfo(dtype).eps))


@given(
    st.integers(0, 2**32 - 1), st.sampled_from(NEAREST), st.integers(1, 7), st.integers(1, 3), st.booleans(), st.data()
)
def test_root_of_any_layer(seed, name, T, B, is_ragged, data):
    lengths = data.draw(st.lists(st.integers(1, T), min_size=B, max_size=B)) if is_ragged else None
    case = make(name, seed=seed, B=B, T=T, k=2, lengths=lengths, scale=0.6)
    layer = case.layer()
    result = ims.root(layer, method="newton-krylov", stop=TIGHT)
    full = ims.root(replace(layer, halves=None), method="newton-krylov", stop=TIGHT)
    assert result.success.all()
    check_result(layer, result)
    if full.success.all():
        close(result.x, full.x, 1e-8)


def test_the_start_is_what_is_kept_of_it(rng):
    case = case_of("implicit_gru", "odd")
    layer = case.layer()
    x0 = rng.uniform(-1, 1, case.H.shape)
    before = x0.copy()
    result = ims.root(layer, x0, stop=TIGHT)
    np.testing.assert_array_equal(x0, before)
    x0[:, ::2] = np.nan
    again = ims.root(layer, x0, stop=TIGHT)
    np.testing.assert_array_equal(result.x, again.x)
    x0[1, 1] = np.nan  # of the second system
    hurt = ims.root(layer, x0, stop=TIGHT)
    assert hurt.status.tolist() == [Status.CONVERGED, Status.NONFINITE, Status.CONVERGED]
    np.testing.assert_array_equal(hurt.x[[0, 2]], result.x[[0, 2]])
    assert not np.isfinite(hurt.residual_norm[1])
    assert hurt.x.shape == hurt.fun.shape == case.H.shape


@pytest.mark.parametrize("size", ["T1", "T2", "odd", "ragged"])
@pytest.mark.parametrize("key", ["newton-krylov", "float32", "homotopy"])
@pytest.mark.parametrize("t", [0, 1])
def test_inputs_that_are_not_finite_are_told_and_stay_in_their_sequence(size, key, t):
    """The only block of a sequence of one position is eliminated: there is no residual that could tell."""
    case = case_of("implicit_gru", size)
    clean = ims.root(case.layer(), method=METHODS[key], stop=TIGHT)
    if t >= case.lengths[1]:
        return
    case.P["inputs"][1, t] = np.nan
    layer, start = case.layer(), np.zeros(case.H.shape)
    result = ims.root(layer, start, method=METHODS[key], stop=TIGHT)
    assert result.status.tolist() == [Status.CONVERGED, Status.NONFINITE, Status.CONVERGED]
    assert not np.isfinite(result.residual_norm[1])
    assert not np.isfinite(result.fun[1]).all()
    close(result.x[[0, 2]], clean.x[[0, 2]], 1e-9)


def test_a_batch_is_its_sequences():
    case = case_of("implicit_gru", "ragged")
    layer = case.layer()
    result = ims.root(layer, method="newton-krylov", stop=TIGHT)
    for b in range(3):
        alone = ims.root(layer.take(np.asarray([b])), method="newton-krylov", stop=TIGHT)
        close(alone.x[0], result.x[b], 1e-12)
        for name in ("status", "iterations", "krylov_iterations"):
            assert getattr(alone, name)[0] == getattr(result, name)[b]


def test_what_has_converged_at_the_start_takes_no_step():
    layer = case_of("implicit_gru", "odd").layer()
    solved = ims.root(layer, stop=TIGHT)
    again = ims.root(layer, solved.x, stop=ims.NonlinearStop(atol=1e-9, rtol=0.0))
    assert again.success.all()
    assert (again.iterations == 0).all()
    check_result(layer, again, 1e-9)


@pytest.mark.parametrize("limit", [0, 1])
def test_a_system_that_did_not_converge_says_so(limit):
    layer = case_of("implicit_gru", "odd", scale=2.0).layer()
    stop = ims.NonlinearStop(atol=1e-14, rtol=0.0, max_iterations=limit)
    result = ims.root(layer, method="newton-krylov", stop=stop)
    assert (result.status == Status.ITERATION_LIMIT).all()
    assert (result.iterations <= limit).all()
    check_result(layer, result, 1e-14)


# Norms and monitors


def test_the_two_norm_is_that_of_all_blocks():
    layer = case_of("implicit_gru", "ragged").layer()
    result = ims.root(layer, stop=replace(TIGHT, norm="2"))
    norms = np.linalg.norm(layer.residual(result.x).reshape(3, -1), axis=1)
    np.testing.assert_allclose(result.residual_norm, norms, atol=1e-15)
    assert result.success.all()


@pytest.mark.parametrize("size", ["T1", "odd", "ragged even"])
def test_norms_of_the_caller_see_whole_states(size):
    case = case_of("implicit_gru", size)
    layer, seen = case.layer(), []

    def norm(F):
        seen.append(F.copy())
        F[...] = 0.0  # of the copy
        return float(np.abs(seen[-1]).sum())

    result = ims.root(layer, method="newton-krylov", stop=replace(TIGHT, norm=norm))
    assert all(F.shape == case.H.shape[1:] for F in seen)
    assert result.success.all()
    np.testing.assert_allclose(result.residual_norm, np.abs(layer.residual(result.x)).sum(axis=(1, 2)), atol=1e-14)
    weights = np.arange(case.H.shape[1])[:, None]  # which blocks they are
    weighted = ims.root(layer, stop=replace(TIGHT, norm=lambda F: float(np.abs(weights * F).max(initial=0.0))))
    assert weighted.success.all()


@pytest.mark.parametrize("size", ["T1", "T2", "odd", "ragged"])
def test_monitors_see_whole_states(size):
    case = case_of("implicit_gru", size)
    layer, seen = case.layer(), []
    result = ims.root(layer, method="newton-krylov", stop=TIGHT, monitor=lambda *what: seen.append(what))
    silent = ims.root(layer, method="newton-krylov", stop=TIGHT)
    np.testing.assert_array_equal(result.x, silent.x)
    assert len(seen) == len(result.steps) == len(silent.steps)
    if size == "T1":
        return
    assert [step.iteration for step, _, _ in seen] == list(range(len(seen)))
    for step, x, F in seen:
        assert x.shape == F.shape == case.H.shape
        np.testing.assert_allclose(F, layer.residual(x), rtol=0, atol=1e-14)
        np.testing.assert_array_equal(step.residual_norm, np.abs(F[step.systems]).max(axis=(1, 2)))
        x[...] = F[...] = np.nan  # copies


def test_a_monitor_of_one_sequence():
    case = case_of("implicit_gru", "odd", B=1)
    params = {key: case.P[key] for key in case.weights}
    alone = ims.adapters.implicit_gru(params, case.P["inputs"][0])
    shapes = []
    ims.root(alone, method="newton-krylov", monitor=lambda step, x, F: shapes.append((x.shape, F.shape)))
    assert set(shapes) == {((5, 3), (5, 3))}


# Counts


class Counted:
    """A problem whose functions count their calls; every product with a coupling is a half of one."""

    def __init__(self, problem: ims.Problem) -> None:
        self.calls = dict.fromkeys(("apply", "linearize", "push", "pull", "residual", "whole"), 0)
        halves = problem.halves
        assert halves is not None
        self.problem = replace(
            problem,
            residual=self._counting(problem.residual, "residual"),
            linearize=self._counting(problem.linearize, "whole"),
            jvp=None,
            vjp=None,
            blocks=None,
            take=None,
            halves=ims.Halves(eliminated=self._half(halves.eliminated), kept=self._half(halves.kept)),
        )

    def _counting(self, function: Any, name: str) -> Any:
        def counted(*arguments):
            self.calls[name] += 1
            return function(*arguments)

        return counted

    def _half(self, half: ims.Half) -> ims.Half:
        def linearize(other):
            self.calls["linearize"] += 1
            value, coupling = half.linearize(other)
            return value, _CountedCoupling(self, coupling)

        return ims.Half(apply=self._counting(half.apply, "apply"), linearize=linearize)


class _CountedCoupling:
    def __init__(self, owner: Counted, coupling: ims.Coupling) -> None:
        self.owner, self.coupling = owner, coupling

    def matvec(self, v):
        self.owner.calls["push"] += 1
        return self.coupling.matvec(v)

    def rmatvec(self, w):
        self.owner.calls["pull"] += 1
        return self.coupling.rmatvec(w)

    def take(self, indices):
        return _CountedCoupling(self.owner, self.coupling.take(indices))

    def diagonals(self):
        return self.coupling.diagonals()

    def astype(self, dtype):
        return _CountedCoupling(self.owner, self.coupling.astype(dtype))


@pytest.mark.parametrize("key", ELIMINATES)
def test_counts_are_those_of_the_calls(key):
    counted = Counted(case_of("implicit_gru", "odd", scale=1.5).layer())
    result = ims.root(counted.problem, method=METHODS[key], stop=TIGHT)
    assert result.success.all()
    calls, counts = counted.calls, result.counts
    assert calls["residual"] == calls["whole"] == 0
    assert calls["push"] == 2 * counts.jvps
    assert calls["pull"] == 2 * counts.vjps == 0
    assert calls["linearize"] == 2 * counts.linearizations
    halves = calls["apply"] + calls["linearize"]
    assert halves == 2 * counts.residuals - 1  # to expand the solution is half a residual
    assert result.steps[-1].counts.residuals == counts.residuals - 1


def test_a_batch_without_take_is_solved_as_one_with(name):
    layer = case_of(name, "ragged").layer()
    result, other = (ims.root(one, method="newton-krylov", stop=TIGHT) for one in (layer, replace(layer, take=None)))
    close(other.x, result.x, 1e-12)
    np.testing.assert_array_equal(other.status, result.status)
    np.testing.assert_array_equal(other.iterations, result.iterations)


def test_elimination_saves_products():
    layer = make("implicit_gru", B=4, T=12, k=8, lengths=None, scale=0.5).layer()
    method = ims.NewtonKrylov()
    whole = ims.root(replace(layer, halves=None), method=method, stop=TIGHT)
    half = ims.root(layer, method=method, stop=TIGHT)
    assert half.counts.residuals + half.counts.jvps < 0.7 * (whole.counts.residuals + whole.counts.jvps)


# Who eliminates


def test_methods_that_were_made_for_all_blocks_get_them():
    layer = make(T=5, lengths=None).layer()
    shapes = []

    def M(x, F):
        shapes.append(x.shape)
        return ims.LinearOperator(lambda v: v, in_shape=x.shape[1:], batch_shape=x.shape[:1])

    for method in (
        ims.NewtonKrylov(preconditioner=M),
        ims.NewtonKrylov(preconditioner=ims.BlockLU()),
        ims.NewtonKrylov(krylov=ims.TruncatedInverse(), line_search=ims.FullStep()),
        ims.BlockNewton(),
    ):
        result = ims.root(layer, method=method, stop=ims.NonlinearStop(atol=1e-8, rtol=0.0))
        assert result.success.all()
    assert set(shapes) == {(3, 5, 3)}


def test_a_user_of_halves_needs_no_adapter():
    """x_t = cos(x_(t-1) + x_(t+1)) / 2, with zeros beyond the ends, and nothing but the two halves."""

    class Sum:
        def __init__(self, slope, matrix):
            self.slope, self.matrix = slope, matrix

        def matvec(self, v):
            return self.slope * (self.matrix @ v)

        def rmatvec(self, w):
            return self.matrix.T @ (self.slope * w)

        def diagonals(self):
            previous = np.tril(self.matrix, -1 if self.matrix.shape[0] > self.matrix.shape[1] else 0)
            return self.slope * previous.sum(axis=1)[:, None], self.slope * (self.matrix - previous).sum(axis=1)[
                :, None
            ]

        def take(self, indices):
            raise AssertionError("one system has no parts")

        def astype(self, dtype):
            return Sum(self.slope.astype(dtype), self.matrix.astype(dtype))

    T = 9
    neighbours = np.eye(T, k=1) + np.eye(T, k=-1)

    def half(own, others):
        matrix = neighbours[np.ix_(own, others)]

        def linearize(other):
            return np.cos(matrix @ other) / 2, Sum(-np.sin(matrix @ other) / 2, matrix)

        return ims.Half(apply=lambda other: linearize(other)[0], linearize=linearize)

    even, odd = np.arange(0, T, 2), np.arange(1, T, 2)
    problem = ims.Problem(
        lambda x: x - np.cos(neighbours @ x) / 2,
        fixed_point=True,
        halves=ims.Halves(eliminated=half(even, odd), kept=half(odd, even)),
    )
    x0 = np.zeros((T, 1))
    for method in ("auto", ims.NewtonKrylov(products="float32"), ims.Homotopy()):
        result = ims.root(problem, x0, method=method, stop=TIGHT)
        full = ims.root(replace(problem, halves=None), x0, method=method, stop=TIGHT)
        assert result.success
        assert full.success
        close(result.x, full.x, 1e-10)
        assert np.abs(problem.residual(result.x)).max() <= 2 * ATOL
    assert ims.even_odd(problem).structure is None
    assert ims.even_odd(problem).parameter_jvp is ims.even_odd(problem).initial_guess is None
