"""What every adapter's problem must do, against the layers written out position by position."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve.adapters import initial_guess
from tests.adapters.cases import CAUSAL, LENGTHS, NAMES, SMOOTH, case_of
from tests.adapters.layers import Case, derivative, gates, make
from tests.helpers.compare import close


@pytest.fixture(params=LENGTHS)
def lengths(request):
    return LENGTHS[request.param]


@pytest.fixture(params=NAMES)
def name(request) -> str:
    return request.param


@pytest.fixture
def case(name, lengths) -> Case:
    return case_of(name, lengths=lengths)


def solved(case: Case, **changed: Any) -> tuple[ims.Problem, Any]:
    layer = case.layer(**changed)
    result = ims.root(layer, method="newton-krylov", stop=ims.NonlinearStop(atol=1e-14, rtol=0.0))
    assert result.success.all()
    return layer, result


def directional(case: Case, P: dict[str, Any], tangents: dict[str, Any]) -> np.ndarray:
    """Derivative of the residual written out, by a complex step."""
    moved = P | {name: P[name] + 1e-30j * value for name, value in tangents.items()}
    return case.adapter.residual(moved, case.H, case.lengths).imag / 1e-30


@pytest.mark.parametrize("at", ["random", "solution"])
def test_products_are_those_of_the_dense_jacobian(case, at, rng):
    if at == "solution":
        case.H = solved(case)[1].x
    J, layer = case.jacobian(), case.layer()
    v, w = rng.standard_normal((2, *case.H.shape))
    F, operator = layer.linearize(case.H)
    close(F, case.residual())
    for actual in (layer.jvp(case.H, v), operator.matvec(v), v - derivative(layer, case.H).matvec(v)):
        close(actual.ravel(), J @ v.ravel())
    for actual in (layer.vjp(case.H, w), operator.rmatvec(w), w - derivative(layer, case.H).rmatvec(w)):
        close(actual.ravel(), J.T @ w.ravel())


def test_blocks_and_structure_are_those_of_the_dense_jacobian(case):
    layer = case.layer()
    band = layer.structure
    B, T, size = case.H.shape
    assert (band.lower, band.upper, band.block_size) == (
        max(0, -min(case.adapter.offsets)),
        max(0, *case.adapter.offsets),
        size,
    )
    matrix = ims.BlockBandedMatrix(layer.blocks(case.H), lower=band.lower, upper=band.upper)
    dense = case.jacobian().reshape(B, T * size, B, T * size)
    for b in range(B):
        close(matrix.todense()[b], dense[b, :, b])


@pytest.mark.parametrize("boundary", ["system", "shared", "zero"])
def test_parameter_products_are_those_of_the_formula(name, lengths, boundary, rng):
    case = case_of(name, lengths=lengths, boundary=boundary)
    layer = case.layer()
    close(layer.residual(case.H), case.residual(), 64 * np.finfo(float).eps)
    tangents = {name: rng.standard_normal(value.shape) for name, value in case.P.items()}
    w = rng.standard_normal(case.H.shape)
    gradients = layer.parameter_vjp(case.H, w)
    assert list(gradients) == list(layer.parameters)
    assert gradients.keys() == tangents.keys()
    for name, tangent in tangents.items():
        expected = directional(case, case.P, {name: tangent})
        close(layer.parameter_jvp(case.H, {name: tangent}), expected)
        assert gradients[name].shape == tangent.shape
        assert (gradients[name] * tangent).sum() == pytest.approx((w * expected).sum(), rel=1e-11, abs=1e-11)
    close(layer.parameter_jvp(case.H, tangents), directional(case, case.P, tangents))


def test_without_boundary_states_they_are_zero(name):
    case = case_of(name, boundary="zero")
    params = {weight: case.P[weight] for weight in case.weights}
    layer = case.adapter.build(params, case.P["inputs"], lengths=case.lengths, **case.adapter.options)
    np.testing.assert_array_equal(layer.residual(case.H), case.layer().residual(case.H))
    for edge, shape in case.adapter.boundaries(3).items():
        assert layer.parameters[edge].shape == layer.parameter_vjp(case.H, case.H)[edge].shape == shape


def same_product(left, right):
    """Whether two sums of products agree, given the terms of each and the size of what the terms themselves cancel."""
    size = max(1.0, *(np.abs(terms).sum() for terms in (left, right)))
    return abs(left.sum() - right.sum()) <= 1e-13 * size


@st.composite
def cases(draw) -> Case:
    B, T, k, d = (draw(st.integers(1, high)) for high in (4, 6, 4, 3))
    lengths = draw(st.none() | st.lists(st.integers(1, T), min_size=B, max_size=B))
    boundary, scale = draw(st.sampled_from(["zero", "shared", "system"])), draw(st.sampled_from([0.1, 2.0, 30.0]))
    return make(draw(st.sampled_from(NAMES)), draw(st.integers(0, 2**32 - 1)), B, T, k, d, lengths, scale, boundary)


@given(cases(), st.integers(0, 2**32 - 1))
def test_properties_adjoint_identities(case, seed):
    rng, layer = np.random.default_rng(seed), case.layer()
    v, w = rng.standard_normal((2, *case.H.shape))
    J = layer.linearize(case.H)[1]
    assert same_product(w * J.matvec(v), J.rmatvec(w) * v)
    tangents = {name: rng.standard_normal(value.shape) for name, value in case.P.items()}
    gradients = layer.parameter_vjp(case.H, w)
    terms = np.concatenate([(tangents[name] * gradients[name]).ravel() for name in tangents])
    assert same_product(w * layer.parameter_jvp(case.H, tangents), terms)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize(("scale", "dtype"), [(1e2, np.float64), (1e8, np.float32)])
def test_large_weights_give_numbers_and_no_warning(name, scale, dtype, rng):
    case = case_of(name, scale=scale)
    layer, H = case.layer(np, dtype), (1e3 * case.H).astype(dtype)
    F, J = layer.linearize(H)
    w = rng.standard_normal(case.H.shape).astype(dtype)
    values = [F, J.matvec(w), J.rmatvec(w), layer.blocks(H), initial_guess(layer), *layer.parameter_vjp(H, w).values()]
    for value in values:
        assert value.dtype == dtype
        assert np.isfinite(value).all()
    if (inverse := J.approximate_inverse()) is not None:
        inverse.matvec(w)
        inverse.rmatvec(w)


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("scale", [0.7, 3.0])
def test_substitution_is_the_solution(name, scale, lengths):
    case = case_of(name, scale=scale, lengths=lengths)
    layer = case.layer()
    case.H = layer.substitute()
    assert (case.H[~case.valid[:, :, 0]] == 0).all()
    close(case.residual(), 0 * case.H, 1e-14 * max(1.0, np.abs(case.H).max()))
    close(layer.take(np.asarray([2, 2, 0])).substitute(), case.H[[2, 2, 0]], 1e-13)


@pytest.mark.parametrize("garbage", [1e300, np.inf, np.nan])
def test_padding_is_inert(name, garbage, rng):
    case = case_of(name)
    v = rng.standard_normal(case.H.shape)
    H, dH = (np.where(case.valid, x, garbage) for x in (case.H, v))
    clean, layer = case.layer(), case.layer(inputs=np.where(case.valid, case.P["inputs"], garbage))
    (F, J), (F0, J0) = layer.linearize(H), clean.linearize(case.H)
    pairs = [
        (layer.residual(H), clean.residual(case.H), H),
        (F, F0, H),
        (J.matvec(dH), J0.matvec(v), dH),
        (J.rmatvec(dH), J0.rmatvec(v), dH),
        (initial_guess(layer), initial_guess(clean), 0 * v),
    ]
    if layer.substitute is not None:
        pairs.append((layer.substitute(), clean.substitute(), 0 * v))
    for actual, expected, padding in pairs:
        np.testing.assert_array_equal(actual, np.where(case.valid, expected, padding))
    np.testing.assert_array_equal(layer.blocks(H), clean.blocks(case.H))
    expected = clean.parameter_vjp(case.H, v)
    assert (expected["inputs"][~case.valid[:, :, 0]] == 0).all()
    for name, gradient in layer.parameter_vjp(H, dH).items():
        np.testing.assert_array_equal(gradient, expected[name])
    tangents = {name: np.ones_like(value) for name, value in case.P.items()}
    moved = layer.parameter_jvp(H, tangents | {"inputs": np.where(case.valid, tangents["inputs"], garbage)})
    np.testing.assert_array_equal(moved, clean.parameter_jvp(case.H, tangents))
    assert (moved[~case.valid[:, :, 0]] == 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_hopeless_neighbour_does_no_harm(case, bad, rng):
    v, layer, rest = rng.standard_normal(case.H.shape), case.layer(), [0, 2]
    H, w = case.H.copy(), v.copy()
    H[1::2] = w[1::2] = bad
    J, J0 = layer.linearize(H)[1], layer.linearize(case.H)[1]
    np.testing.assert_array_equal(layer.residual(H)[rest], layer.residual(case.H)[rest])
    np.testing.assert_array_equal(J.matvec(w)[rest], J0.matvec(v)[rest])
    np.testing.assert_array_equal(J.rmatvec(w)[rest], J0.rmatvec(v)[rest])
    np.testing.assert_array_equal(J.rmatvec(v)[rest], J0.rmatvec(v)[rest])
    gradients, expected = layer.parameter_vjp(H, w), layer.parameter_vjp(case.H, v)
    for name in ("inputs", *case.adapter.boundaries(3)):
        np.testing.assert_array_equal(gradients[name][rest], expected[name][rest])


def test_a_batch_is_its_sequences(case, rng):
    v, layer = rng.standard_normal(case.H.shape), case.layer()
    params = {weight: case.P[weight] for weight in case.weights}
    F, J = layer.linearize(case.H)
    gradients = layer.parameter_vjp(case.H, v)
    total = {weight: np.zeros_like(case.P[weight]) for weight in case.weights}
    for b, n in enumerate(case.lengths):
        edges = {edge: case.P[edge][b] for edge in case.adapter.boundaries(3)}
        alone = case.adapter.build(params, case.P["inputs"][b, :n], **edges, **case.adapter.options)
        assert alone.batch_ndim == 0
        assert alone.take is None
        own = b, slice(None, n)
        Fb, Jb = alone.linearize(case.H[own])
        close(Fb, F[own])
        close(Jb.matvec(v[own]), J.matvec(v)[own])
        close(Jb.rmatvec(v[own]), J.rmatvec(v)[own])
        close(alone.blocks(case.H[own]), layer.blocks(case.H)[own])
        close(initial_guess(alone), initial_guess(layer)[own])
        if alone.substitute is not None:
            close(alone.substitute(), layer.substitute()[own])
        single = alone.parameter_vjp(case.H[own], v[own])
        close(single["inputs"], gradients["inputs"][own])
        for edge in edges:
            close(single[edge], gradients[edge][b])
        for weight in case.weights:
            total[weight] += single[weight]
    for weight in case.weights:
        close(gradients[weight], total[weight], 1e-11)


def test_take_is_the_problem_of_some_sequences(case, rng):
    layer, indices = case.layer(), np.asarray([3, 0, 0, 1])
    v = rng.standard_normal(case.H.shape)
    F, J = layer.linearize(case.H)
    part, H = layer.take(indices), case.H[indices]
    assert part.structure == layer.structure
    close(part.residual(H), F[indices])
    for operator in (part.linearize(H)[1], J.take(indices)):
        assert operator.batch_shape == (4,)
        close(operator.matvec(v[indices]), J.matvec(v)[indices])
        close(operator.rmatvec(v[indices]), J.rmatvec(v)[indices])
    gradients, expected = part.parameter_vjp(H, v[indices]), layer.parameter_vjp(case.H, v)
    for name in ("inputs", *case.adapter.boundaries(3)):
        close(gradients[name], expected[name][indices])
    close(initial_guess(part), initial_guess(layer)[indices])
    again = part.take(np.arange(4)[::-1])
    close(again.residual(H[::-1]), F[indices[::-1]])


def test_nothing_passed_is_changed_kept_or_handed_out(case):
    H = case.H.copy()
    for array in (*case.P.values(), H):
        array.flags.writeable = False
    layer = case.layer()

    def everything():
        F, J = layer.linearize(H)
        arrays = [F, J.matvec(H), J.rmatvec(H), layer.residual(H), layer.blocks(H), *layer.parameter_vjp(H, H).values()]
        arrays += [layer.parameter_jvp(H, case.P), *derivative(layer, H).diagonals(), initial_guess(layer)]
        return arrays + ([layer.substitute()] if layer.substitute is not None else [])

    first = everything()
    copies = [array.copy() for array in first]
    for array in first:
        array.fill(np.nan)  # a caller may do with these what he likes
    for expected, again in zip(copies, everything()):
        np.testing.assert_array_equal(again, expected)
    for i, array in enumerate(first):
        assert not any(np.shares_memory(array, other) for other in first[:i])
    for array in case.P.values():
        array.flags.writeable = True
        array.fill(np.nan)
    np.testing.assert_array_equal(layer.residual(H), copies[3])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(layer)).residual(H), copies[3])


STEPS = {
    "implicit_gru": gates,
    "stencil_gru": gates,
    "stencil_gru-wide": gates,
    "stencil_gru-causal": gates,
}


@pytest.mark.parametrize("name", STEPS)
def test_one_step_guess_is_the_ordinary_recurrence(name):
    case = case_of(name)
    actual, P = initial_guess(case.layer(), "one-step"), case.P
    expected = np.zeros_like(case.H)
    for b, n in enumerate(case.lengths):
        own = {edge: P[edge][b] for edge in case.adapter.boundaries(3)}
        before, after = case.adapter.edges(own)
        forward = {1 - j: state for j, state in enumerate(before, start=1)}
        backward = {n + j: state for j, state in enumerate(after, start=1)}
        for t in range(1, n + 1):
            if before:
                forward[t] = STEPS[name](P, forward[t - 1], P["inputs"][b, t - 1])
            if after:
                backward[n + 1 - t] = STEPS[name](P, backward[n + 2 - t], P["inputs"][b, n - t])
        for t in range(1, n + 1):
            near = [(forward if offset < 0 else backward)[t + offset] for offset in case.adapter.offsets]
            expected[b, t - 1] = case.adapter.value(P, P["inputs"][b, t - 1], near)
    close(actual, expected)


@pytest.mark.parametrize("kind", ["zeros", "one-step", "random"])
def test_guesses_have_the_shape_of_the_state(case, kind, rng):
    guess = initial_guess(case.layer(), kind, rng)
    assert guess.shape == case.H.shape
    assert (guess[~case.valid[:, :, 0]] == 0).all()
    assert (np.abs(guess) <= 1).all() or kind == "one-step"


@pytest.mark.parametrize("shape", ["(k,)", "(1, k)", "(B, k)", "(B, 1, k)"])
def test_stacks_of_one_state_with_and_without_their_axis(shape, rng):
    case = case_of("stencil_gru")
    shape = {"(k,)": (3,), "(1, k)": (1, 3), "(B, k)": (4, 3), "(B, 1, k)": (4, 1, 3)}[shape]
    hs = rng.uniform(-1, 1, shape)
    as_written = hs.reshape(shape[0], 1, 3) if shape[0] == 4 else np.broadcast_to(hs.reshape(1, 1, 3), (4, 1, 3))
    expected = case.adapter.residual(case.P | {"hs": as_written}, case.H, case.lengths)
    layer = case.layer(hs=hs)
    close(layer.residual(case.H), expected)
    assert layer.parameter_vjp(case.H, case.H)["hs"].shape == shape
    close(layer.take(np.asarray([1, 2])).residual(case.H[1:3]), expected[1:3])


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_are_those_of_the_solution(name, rng):
    case = case_of(name)
    layer, result = solved(case)
    case.H = result.x
    assert (result.x[~case.valid[:, :, 0]] == 0).all()
    close(case.residual(), 0 * case.H, 1e-13)
    cotangent = rng.standard_normal(result.x.shape)
    found = ims.pull_back(layer, result, cotangent, method=ims.GMRES(), stop=ims.LinearStop(rtol=1e-12)).gradients
    lam = np.linalg.solve(case.jacobian().T, cotangent.ravel()).reshape(cotangent.shape)
    for name, value in case.P.items():
        tangent = rng.standard_normal(value.shape)
        expected = -(lam * directional(case, case.P, {name: tangent})).sum()
        assert (found[name] * tangent).sum() == pytest.approx(expected, rel=1e-9, abs=1e-9)
