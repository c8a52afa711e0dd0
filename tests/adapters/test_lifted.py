"""Lifted nets, in every form of A and B, against their formula in complex arithmetic."""

import array_api_strict
import numpy as np
import pytest
import scipy.sparse

import implicitsolve as ims
from implicitsolve.adapters import initial_guess, lifted_net
from implicitsolve.testing import dot_test, structure_test, taylor_test
from tests.adapters.lifted import (
    ACTIVATIONS,
    BATCH,
    FORMS,
    PHI,
    TIGHT,
    G,
    K,
    N,
    P,
    T,
    banded,
    close,
    dense,
    make,
    stored,
)
from tests.helpers.compare import jacobian


@pytest.fixture
def case(rng):
    return make(rng)


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


@pytest.fixture(params=ACTIVATIONS)
def activation(request):
    return request.param


def test_residual_is_the_formula_in_every_form_and_activation(case, form, activation):
    parts, x = case
    net = lifted_net(form(parts["A"]), scipy.sparse.csr_array(parts["B"]), parts["inputs"], activation=activation)
    close(net.residual(x), x - G(parts, x, PHI[activation]))
    assert net.fixed_point


def test_products_are_those_of_the_dense_jacobian(case, form, activation, rng):
    parts, x = case
    net = lifted_net(form(parts["A"]), parts["B"], parts["inputs"], activation=activation)
    J = jacobian(lambda x: x - G(parts, x, PHI[activation]), x)
    v, w = rng.standard_normal((2, *x.shape))
    value, operator = net.linearize(x)
    close(value, net.residual(x))
    for actual in (net.jvp(x, v), operator.matvec(v)):
        close(actual.ravel(), J @ v.ravel())
    for actual in (net.vjp(x, w), operator.rmatvec(w)):
        close(actual.ravel(), J.T @ w.ravel())
    assert dot_test(operator) < 1e-14


@pytest.mark.parametrize("name", ["A", "B", "inputs"])
def test_parameter_products_are_those_of_the_dense_derivative(case, form, activation, name, rng):
    parts, x = case
    net = lifted_net(form(parts["A"]), scipy.sparse.coo_array(parts["B"]), parts["inputs"], activation=activation)
    phi = PHI[activation]
    D = jacobian(lambda value: x - G(parts | {name: value}, x, phi), parts[name])
    w = rng.standard_normal(x.shape)
    gradient = net.parameter_vjp(x, w)[name]
    own = net.parameters[name]
    assert type(gradient) is type(own)
    close(gradient, np.where(stored(own), (D.T @ w.ravel()).reshape(own.shape), 0))

    direction = np.where(dense(own) != 0, rng.standard_normal(own.shape), 0)
    shaped = {"A": form, "B": scipy.sparse.csr_array, "inputs": np.asarray}[name](direction)
    close(net.parameter_jvp(x, {name: shaped}).ravel(), D @ direction.ravel())


def test_gradients_have_the_pattern_of_the_parameters_even_where_it_holds_zeros(case):
    parts, x = case
    A = scipy.sparse.csr_array(parts["A"])
    A.data[::3] = 0.0
    net = lifted_net(A, parts["B"], parts["inputs"])
    own, gradient = net.parameters["A"], net.parameter_vjp(x, x)["A"]
    assert own.nnz == A.nnz == gradient.nnz
    np.testing.assert_array_equal(own.indices, gradient.indices)
    assert np.count_nonzero(gradient.data) == A.nnz


def test_blocks_are_those_of_the_jacobian(case, activation):
    parts, x = case
    net = lifted_net(banded(parts["A"]), parts["B"], parts["inputs"], activation=activation)
    assert net.structure == ims.BlockBanded(1, 1, K)
    J = ims.BlockBandedMatrix(net.blocks(x), lower=1, upper=1)
    for b in range(BATCH):
        single = jacobian(lambda y, b=b: y - G(parts | {"inputs": parts["inputs"][b]}, y, PHI[activation]), x[b])
        close(J.todense()[b], single)
    assert structure_test(net, x)


def test_blocks_outside_and_a_circle(rng):
    blocks = rng.uniform(-0.3, 0.3, (T, 3, K, K))
    blocks[0, 0], blocks[-1, -1] = np.nan, 7.0  # outside: whatever they hold
    A = ims.BlockBandedMatrix(blocks, lower=1, upper=1)
    B, u, x = rng.standard_normal((N, P)), rng.standard_normal(P), rng.standard_normal(N)
    net = lifted_net(A, B, u)
    assert np.isfinite(net.blocks(x)).all()
    gradient = net.parameter_vjp(x, x)["A"]
    assert not gradient.blocks[0, 0].any()
    assert not gradient.blocks[-1, -1].any()

    circle = ims.BlockBandedMatrix(rng.uniform(-0.3, 0.3, (T, 3, K, K)), lower=1, upper=1, periodic=True)
    net = lifted_net(circle, B, u)
    parts = {"A": circle.todense(), "B": B, "inputs": u}
    close(net.residual(x), x - G(parts, x, np.tanh))
    D = jacobian(lambda A: x - G(parts | {"A": A}, x, np.tanh), parts["A"])
    is_stored = parts["A"] != 0
    close(net.parameter_vjp(x, x)["A"], np.where(is_stored, (D.T @ x).reshape(N, N), 0))
    result = ims.root(net, stop=ims.NonlinearStop(atol=1e-13, rtol=0.0))
    assert result.success
    assert net.substitute is None


def test_some_systems_of_a_batch(case, form):
    parts, x = case
    net = lifted_net(form(parts["A"]), parts["B"], parts["inputs"])
    kept = np.array([2, 0])
    part = net.take(kept)
    close(part.residual(x[kept]), net.residual(x)[kept])
    close(net.linearize(x)[1].take(kept).matvec(x[kept]), net.jvp(x, x)[kept])
    np.testing.assert_array_equal(part.parameters["inputs"], parts["inputs"][kept])


def test_far_out_every_activation_has_its_limit(activation):
    net = lifted_net(np.zeros((2, 2)), np.array([[1e300], [-1e300]]), np.array([1e300]), activation=activation)
    x = net.substitute()
    bounded = {"tanh": [1, -1], "logistic": [1, 0], "relu": [np.inf, 0], "identity": [np.inf, -np.inf]}
    np.testing.assert_array_equal(x, bounded[activation])


@pytest.mark.parametrize("name", ["dense", "csr", "bsr", "banded"])
def test_solution_and_gradients(case, name, rng):
    parts, _ = case
    net = lifted_net(FORMS[name](parts["A"]), parts["B"], parts["inputs"])
    stop = ims.NonlinearStop(atol=1e-13, rtol=0.0)
    result = ims.root(net, stop=stop)
    assert result.success.all()
    g = rng.standard_normal(result.x.shape)
    found = ims.pull_back(net, result, g, stop=TIGHT)

    def loss(changed):
        A, B, u = (changed.get(key, parts[key]) for key in ("A", "B", "inputs"))
        return float(np.sum(g * ims.root(lifted_net(A, B, u), result.x, stop=stop).x))

    for key, gradient in found.gradients.items():
        direction = np.where(dense(net.parameters[key]) != 0, rng.standard_normal(parts[key].shape), 0)
        h = 1e-5
        slope = (loss({key: parts[key] + h * direction}) - loss({key: parts[key] - h * direction})) / (2 * h)
        assert np.sum(dense(gradient) * direction) == pytest.approx(slope, rel=1e-7)
        forward = ims.push_forward(net, result, {key: net.parameters[key]}, stop=TIGHT).tangent
        assert np.sum(g * forward) == pytest.approx(np.sum(dense(gradient) * dense(net.parameters[key])), rel=1e-10)
    assert taylor_test(net, result.x) == pytest.approx(2, abs=0.1)


def test_initial_guesses(case, rng):
    parts, _ = case
    net = lifted_net(parts["A"], parts["B"], parts["inputs"])
    np.testing.assert_array_equal(net.initial_guess("default", None), np.zeros((BATCH, N)))
    close(initial_guess(net), np.tanh(parts["inputs"] @ parts["B"].T))
    random = initial_guess(net, "random", rng)
    assert random.shape == (BATCH, N)
    assert np.abs(random).max() <= 1
    with pytest.raises(ValueError, match="`kind`"):
        initial_guess(net, "warm")
    with pytest.raises(TypeError, match="`rng`"):
        initial_guess(net, "random")


def test_nothing_is_shared_or_changed(case, form):
    parts, x = case
    arguments = [form(parts["A"]), scipy.sparse.csr_array(parts["B"]), parts["inputs"].copy()]
    before = [dense(argument).copy() for argument in arguments]
    net = lifted_net(*arguments)
    value = net.residual(x)
    state = x.copy()
    net.linearize(x)[1].rmatvec(x)
    net.parameter_vjp(x, x)
    initial_guess(net)[...] = 7.0
    np.testing.assert_array_equal(x, state)
    for argument, old in zip(arguments, before):
        np.testing.assert_array_equal(dense(argument), old)
    for argument in arguments:
        entries = getattr(argument, "blocks", getattr(argument, "data", argument))
        if isinstance(entries, np.ndarray) and entries.dtype == np.float64:
            entries[...] = 9.0
    arguments[2][...] = 9.0
    np.testing.assert_array_equal(net.residual(x), value)


def test_duplicates_are_summed():
    A = scipy.sparse.csr_array((np.array([1.0, 2.0]), np.array([1, 1]), np.array([0, 2, 2])), shape=(2, 2))
    net = lifted_net(A, np.zeros((2, 1)), np.ones(1), activation="identity")
    np.testing.assert_array_equal(net.residual(np.array([0.0, 1.0])), [-3.0, 1.0])
    assert A.nnz == 2
    assert net.parameters["A"].nnz == 1


A, B, U = np.zeros((3, 3)), np.zeros((3, 2)), np.zeros((4, 2))
STRICT = array_api_strict.asarray(U)
BATCHED = ims.BlockBandedMatrix(np.zeros((2, 3, 1, 1, 1)), lower=0, upper=0)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((A, B, [[1.0, 2.0]]), {}, TypeError, "`inputs` must be an array, got list"),
        ((A, B, np.zeros((1, 4, 2))), {}, ValueError, r"`inputs` must have shape \(B, p\) or \(p,\)"),
        ((A, B, np.zeros((0, 2))), {}, ValueError, r"`inputs` must have shape .* got \(0, 2\)"),
        ((A, B, U.astype(int)), {}, TypeError, "`inputs` must have dtype float32 or float64"),
        ((A, B, U.astype(np.float32)), {}, TypeError, "`A` must have the dtype of the inputs"),
        ((A[:2], B, U), {}, ValueError, r"`A` must be square, got shape \(2, 3\)"),
        ((A[None], B, U), {}, ValueError, r"`A` must have shape \(m, n\)"),
        ((BATCHED, B, U), {}, ValueError, "`A` must be one matrix"),
        ((A.tolist(), B, U), {}, TypeError, "`A` must be an array, got list"),
        ((A, B.T, U), {}, ValueError, r"`B` must have shape \(3, 2\), none of them 0, got \(2, 3\)"),
        ((A, scipy.sparse.csr_array(B.T), U), {}, ValueError, "`B` must have shape"),
        ((A, scipy.sparse.csr_array(B.astype(np.float32)), U), {}, TypeError, "`B` must have the dtype of the inputs"),
        ((A, B, STRICT), {}, TypeError, "`A` must be an array of the library of the inputs"),
        ((scipy.sparse.csr_array(A), B, STRICT), {}, TypeError, "`A` must not be sparse"),
        ((A, B, U), {"activation": "sine"}, ValueError, "`activation` must be one of 'tanh'"),
    ],
)
def test_a_wrong_argument_is_named(arguments, options, error, message):
    with pytest.raises(error, match=f"lifted_net: {message}"):
        lifted_net(*arguments, **options)


def test_a_wrong_state_or_tangent_is_named(case):
    parts, x = case
    net = lifted_net(parts["A"], parts["B"], parts["inputs"])
    with pytest.raises(ValueError, match="`x` must have shape"):
        net.residual(x[:, 1:])
    with pytest.raises(ValueError, match="unknown W"):
        net.parameter_jvp(x, {"W": x})
    with pytest.raises(ValueError, match="`A` must have shape"):
        net.parameter_jvp(x, {"A": parts["B"]})
