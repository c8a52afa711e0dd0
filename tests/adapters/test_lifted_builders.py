"""Lifted networks against the explicit ones, whose gradients are back-propagated by hand."""

from types import SimpleNamespace
from typing import Any

import array_api_strict
import numpy as np
import pytest
import scipy.sparse

import implicitsolve as ims
from implicitsolve.adapters import (
    lifted_birnn,
    lifted_feedforward,
    lifted_inputs,
    lifted_net,
    lifted_outputs,
    lifted_rnn,
)
from tests.operators.block_banded import cut

BATCH, T, K, D, Q = 3, 5, 4, 3, 2
TIGHT = ims.LinearStop(rtol=1e-14)

ACTIVATIONS = {
    "tanh": (np.tanh, lambda h: 1 - h**2),
    "logistic": (lambda a: 1 / (1 + np.exp(-a)), lambda h: h * (1 - h)),
    "relu": (lambda a: np.maximum(a, 0), lambda h: 1.0 * (h > 0)),
    "identity": (lambda a: a, np.ones_like),
}
FORMATS = ["sparse", "block-banded", "dense"]


@pytest.fixture(params=ACTIVATIONS)
def activation(request):
    return request.param


def close(actual, expected, tolerance=1e-13):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max()))


def feedforward(weights, biases, u, g, activation):
    """Outputs, and the gradients of sum(g * outputs): of the weights, of the biases and of u."""
    phi, slope = ACTIVATIONS[activation]
    states = [u]
    for W, b in zip(weights, biases):
        states.append(phi(states[-1] @ W.T + b))
    gradients, of_biases = [g.T @ states[-1]], []
    dx = g @ weights[-1]
    for W, before, after in zip(weights[-2::-1], states[-2::-1], states[:0:-1]):
        da = dx * slope(after)
        gradients.append(da.T @ before)
        of_biases.append(da.sum(axis=0))
        dx = da @ W
    return states[-1] @ weights[-1].T, gradients[::-1] + of_biases[::-1], dx


def recurrence(W_H, W_I, b, u, h, phi):
    """h_0, ..., h_T, shape (batch, T + 1, k)."""
    states = [h]
    for t in range(u.shape[1]):
        states.append(phi(states[-1] @ W_H.T + u[:, t] @ W_I.T + b))
    return np.stack(states, axis=1)


def through_time(W_H, W_I, u, states, direct, slope):
    """Gradients of W_H, W_I, b, u and h_0, where `direct` (batch, T, k) are those of h_1, ..., h_T by their readers."""
    dW_H, dW_I, db, du = np.zeros_like(W_H), np.zeros_like(W_I), np.zeros(len(W_H)), np.empty_like(u)
    dh = np.zeros_like(states[:, 0])
    for t in range(u.shape[1], 0, -1):
        da = (dh + direct[:, t - 1]) * slope(states[:, t])
        dW_H += da.T @ states[:, t - 1]
        dW_I += da.T @ u[:, t - 1]
        db += da.sum(axis=0)
        du[:, t - 1] = da @ W_I
        dh = da @ W_H
    return dW_H, dW_I, db, du, dh


def start(activation, k):
    return ACTIVATIONS[activation][0](np.zeros((BATCH, k)))


def solved(net, u, activation, g):
    """Outputs and gradients of sum(g * outputs) for the lifted net."""
    problem = lifted_net(net.A, net.B, u, activation=activation)
    x = problem.substitute()
    assert np.abs(problem.residual(x)).max() < 1e-14 * max(1.0, np.abs(x).max())
    cotangent, dC = net.pull_back_outputs(x, g)
    gradients = ims.pull_back(problem, x, cotangent, stop=TIGHT).gradients
    return SimpleNamespace(
        problem=problem,
        x=x,
        outputs=net.outputs(x),
        weights=net.weight_gradients(gradients["A"], gradients["B"], dC),
        inputs=gradients["inputs"],
    )


@pytest.mark.parametrize("sizes", [(3, 4, 4, 4, 2), (3, 5, 2, 4, 1), (2, 3, 2)], ids=["equal", "unequal", "one-layer"])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("is_biased", [False, True])
def test_feedforward(sizes, format, is_biased, activation, rng):
    weights = [rng.uniform(-1, 1, shape) for shape in zip(sizes[1:], sizes)]
    biases = [is_biased * rng.standard_normal(size) for size in sizes[1:-1]]
    given = {"biases": biases if is_biased else None, "format": format}
    if format == "block-banded" and len(set(sizes[1:-1])) > 1:
        with pytest.raises(ValueError, match="block-banded"):
            lifted_feedforward(weights, **given)
        return
    net = lifted_feedforward(weights, **given)
    u, g = rng.standard_normal((BATCH, sizes[0])), rng.standard_normal((BATCH, sizes[-1]))
    actual = solved(net, np.column_stack([u, *[np.ones(BATCH)] * is_biased]), activation, g)
    y, gradients, du = feedforward(weights, biases, u, g, activation)
    close(actual.outputs, y)
    close(actual.inputs[:, : sizes[0]], du)
    names = [f"W_{i}" for i in range(len(weights))] + [f"b_{i}" for i in range(len(biases))]
    assert list(actual.weights) == names[: None if is_biased else len(weights)]
    for found, expected in zip(actual.weights.values(), gradients):
        close(found, expected)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("outputs", "is_biased"), [("last", True), ("all", False)])
@pytest.mark.parametrize("initial", ["zero", "input"])
@pytest.mark.parametrize("T", [1, T])
def test_rnn(format, outputs, is_biased, initial, T, activation, rng):
    weights = rng.uniform(-0.7, 0.7, (K, K)), rng.uniform(-1, 1, (K, D)), rng.uniform(-1, 1, (Q, K))
    b = is_biased * rng.standard_normal(K)
    net = lifted_rnn(*weights, T, b=b if is_biased else None, outputs=outputs, initial=initial, format=format)
    u = rng.standard_normal((BATCH, T, D))
    h0 = rng.uniform(-1, 1, (BATCH, K)) if initial == "input" else start(activation, K)
    g = rng.standard_normal((BATCH, T, Q))
    if outputs == "last":
        g[:, :-1] = 0.0
    packed = lifted_inputs(u, initial=h0 if initial == "input" else None, constant=is_biased)
    actual = solved(net, packed, activation, lifted_inputs(g) if outputs == "all" else g[:, -1])

    W_H, W_I, W_O = weights
    phi, slope = ACTIVATIONS[activation]
    states = recurrence(W_H, W_I, b, u, h0, phi)
    y = states[:, 1:] @ W_O.T
    close(
        lifted_outputs(actual.outputs, T) if outputs == "all" else actual.outputs, y if outputs == "all" else y[:, -1]
    )
    steps = T if initial == "input" else T + 1
    close(lifted_outputs(actual.x, steps), states[:, -steps:])
    dW_H, dW_I, db, du, dh0 = through_time(W_H, W_I, u, states, g @ W_O, slope)
    # with "zero" h_0 = phi(0) is constant, and W_H multiplies it
    packed = lifted_inputs(du, initial=dh0 if initial == "input" else None)
    close(actual.inputs[:, : packed.shape[1]], packed)
    expected = {"W_H": dW_H, "W_I": dW_I, "W_O": np.einsum("btq,btk->qk", g, states[:, 1:])}
    for name, value in (expected | ({"b": db} if is_biased else {})).items():
        close(actual.weights[name], value)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("m", [K, K + 1])
@pytest.mark.parametrize("is_given", [False, True])
def test_birnn(format, m, is_given, activation, rng):
    """With initial states and biases, or without both."""
    shapes = {"W_Hf": (K, K), "W_If": (K, D), "W_Of": (Q, K), "W_Hb": (m, m), "W_Ib": (m, D), "W_Ob": (Q, m)}
    W = {name: rng.uniform(-0.7, 0.7, shape) for name, shape in shapes.items()}
    bf, bb = is_given * rng.standard_normal(K), is_given * rng.standard_normal(m)
    given = {"bf": bf, "bb": bb, "initial": "input"} if is_given else {}
    if format == "block-banded" and m != K:
        with pytest.raises(ValueError, match="block-banded"):
            lifted_birnn(*W.values(), T, format=format, **given)
        return
    net = lifted_birnn(*W.values(), T, format=format, **given)
    u, g = rng.standard_normal((BATCH, T, D)), rng.standard_normal((BATCH, T, Q))
    h, other = (rng.uniform(-1, 1, (BATCH, size)) if is_given else start(activation, size) for size in (K, m))
    initial = np.concatenate([h, other], axis=1) if is_given else None
    actual = solved(net, lifted_inputs(u, initial=initial, constant=is_given), activation, lifted_inputs(g))

    phi, slope = ACTIVATIONS[activation]
    forward = recurrence(W["W_Hf"], W["W_If"], bf, u, h, phi)
    backward = recurrence(W["W_Hb"], W["W_Ib"], bb, u[:, ::-1], other, phi)
    right, left = forward[:, 1:], backward[:, :0:-1]  # both at time t = 1, ..., T
    close(lifted_outputs(actual.outputs, T), right @ W["W_Of"].T + left @ W["W_Ob"].T)
    own = [lifted_inputs(states[:, is_given:]) for states in (forward, backward)]
    close(actual.x, np.concatenate(own, axis=1))

    right_only = through_time(W["W_Hf"], W["W_If"], u, forward, g @ W["W_Of"], slope)
    left_only = through_time(W["W_Hb"], W["W_Ib"], u[:, ::-1], backward, (g @ W["W_Ob"])[:, ::-1], slope)
    of_inputs = [lifted_inputs(right_only[3] + left_only[3][:, ::-1]), *([right_only[4], left_only[4]] * is_given)]
    packed = np.concatenate(of_inputs, axis=1)
    close(actual.inputs[:, : packed.shape[1]], packed)
    of_outputs = (np.einsum("btq,btk->qk", g, states) for states in (right, left))
    expected = (*right_only[:2], next(of_outputs), *left_only[:2], next(of_outputs))
    for name, gradient in zip((*W, *given), (*expected, right_only[2], left_only[2])):
        close(actual.weights[name], gradient)


@pytest.mark.parametrize("format", ["block-banded", "dense"])
def test_another_library(format, rng):
    xp: Any = array_api_strict
    weights = [rng.uniform(-0.7, 0.7, shape) for shape in ((K, K), (K, D), (Q, K))]
    u, g = lifted_inputs(rng.standard_normal((BATCH, T, D))), rng.standard_normal((BATCH, T * Q))
    expected = solved(lifted_rnn(*weights, T, outputs="all"), u, "tanh", g)
    net = lifted_rnn(*map(xp.asarray, weights), T, outputs="all", format=format)
    problem = lifted_net(net.A, net.B, xp.asarray(u))
    x = problem.substitute()
    cotangent, dC = net.pull_back_outputs(x, xp.asarray(g))
    gradients = ims.pull_back(problem, x, cotangent, stop=TIGHT).gradients
    close(np.asarray(net.outputs(x)), expected.outputs)
    for name, value in net.weight_gradients(gradients["A"], gradients["B"], dC).items():
        close(np.asarray(value), expected.weights[name], 1e-12)


@pytest.mark.parametrize("form", ["dense", "csr", "coo", "bsr", "banded"])
def test_weight_gradients_of_any_form(form, rng):
    weights = [rng.uniform(-1, 1, shape) for shape in ((K, K), (K, K), (Q, K))]
    net = lifted_rnn(*weights, T)
    dA, dB, dC = (rng.standard_normal(M.shape) for M in net)
    expected = sum(dA[i * K : (i + 1) * K, (i + 1) * K : (i + 2) * K] for i in range(T))
    forms = {
        "dense": np.asarray,
        "csr": scipy.sparse.csr_array,
        "coo": scipy.sparse.coo_matrix,
        "bsr": lambda A: scipy.sparse.bsr_array(A, blocksize=(K, K)),
        "banded": lambda A: cut(A, ims.BlockBanded(1, 2, K)),
    }
    close(net.weight_gradients(forms[form](dA), dB, dC)["W_H"], expected)
    if form == "banded":  # blocks of another size
        other = ims.BlockBandedMatrix.from_dense(dA, ims.BlockBanded(len(dA) - 1, len(dA) - 1))
        close(net.weight_gradients(other, dB, dC)["W_H"], expected)
    if form == "bsr":  # each block twice
        half = scipy.sparse.bsr_array(0.5 * dA, blocksize=(K, K))
        order, pointers = np.repeat(np.arange(len(half.indices)), 2), 2 * half.indptr
        twice = scipy.sparse.bsr_array((half.data[order], half.indices[order], pointers), shape=dA.shape)
        close(net.weight_gradients(twice, dB, dC)["W_H"], expected)
        assert twice.nnz == 2 * dA.size
    empty = forms[form](np.zeros_like(dA))
    close(net.weight_gradients(empty, dB, dC)["W_H"], np.zeros((K, K)))


def test_inputs_and_outputs_are_inverse(xp, rng):
    u, h0 = xp.asarray(rng.standard_normal((BATCH, T, D))), xp.asarray(rng.standard_normal((BATCH, K)))
    flat = lifted_inputs(u)
    assert bool(xp.all(lifted_outputs(flat, T) == u))
    assert bool(xp.all(lifted_inputs(u[0, ...]) == flat[0, :]))
    assert bool(xp.all(lifted_inputs(u, initial=h0)[:, -K:] == h0))
    assert bool(xp.all(lifted_inputs(u, initial=h0[0, :])[:, -K:] == h0[0, :]))


def test_weights_are_copied(rng):
    weights = [rng.uniform(-1, 1, shape) for shape in ((K, K), (K, D), (Q, K))]
    net = lifted_rnn(*weights, T)
    before = net.A.toarray()
    weights[0][...] = 7.0
    np.testing.assert_array_equal(net.A.toarray(), before)
    assert net.weights["W_H"].max() <= 1


W_H, W_I, W_O = np.zeros((3, 3)), np.zeros((3, 2)), np.zeros((1, 3))
BI = (W_H, W_I, W_O, W_H, W_I, W_O)


@pytest.mark.parametrize(
    ("builder", "arguments", "options", "error", "message"),
    [
        (lifted_feedforward, ([W_H],), {}, ValueError, "`weights` must be a sequence of at least two matrices"),
        (lifted_feedforward, (np.stack([W_H, W_H]),), {}, ValueError, "`weights` must be a sequence"),
        (
            lifted_feedforward,
            ([W_H, W_I],),
            {},
            ValueError,
            r"`weights` must follow each other, .* \(3, 3\) and \(3, 2\)",
        ),
        (lifted_feedforward, ([W_H, W_O.astype(np.float32)],), {}, TypeError, "`W_1` must have the dtype"),
        (lifted_feedforward, ([W_H, W_O[0]],), {}, ValueError, r"`W_1` must be a matrix, not empty, got shape \(3,\)"),
        (lifted_feedforward, ([W_H.astype(int), W_O],), {}, TypeError, "`W_0` must have dtype float32 or float64"),
        (lifted_feedforward, ([W_H, W_O],), {"format": "csr"}, ValueError, "`format` must be one of 'sparse'"),
        (lifted_rnn, (W_H.tolist(), W_I, W_O, 2), {}, TypeError, "`W_H` must be an array, got list"),
        (lifted_rnn, (W_H, W_I, W_O, 0), {}, ValueError, "`T` must be at least 1"),
        (lifted_rnn, (W_H, W_I, W_O, 2.0), {}, TypeError, "`T` must be an integer"),
        (lifted_rnn, (W_H[:2], W_I, W_O, 2), {}, ValueError, "`W_H` must have k = 2 on axis 1"),
        (lifted_rnn, (W_H, W_I[:2], W_O, 2), {}, ValueError, "`W_I` must have k = 3 on axis 0"),
        (lifted_rnn, (W_H, W_I, W_O[:, :2], 2), {}, ValueError, "`W_O` must have k = 3 on axis 1"),
        (lifted_rnn, (W_H, W_I, W_O, 2), {"outputs": "first"}, ValueError, "`outputs` must be one of 'last', 'all'"),
        (lifted_rnn, (W_H, W_I, W_O, 2), {"initial": "one"}, ValueError, "`initial` must be one of 'zero', 'input'"),
        (lifted_rnn, (*map(array_api_strict.asarray, (W_H, W_I, W_O)), 2), {}, TypeError, "`format` must be"),
        (lifted_birnn, (*BI[:4], W_I[:, :1], W_O, 2), {}, ValueError, "`W_Ib` must have 2 on axis 1, as `W_If` has"),
        (lifted_birnn, (*BI[:5], np.zeros((2, 3)), 2), {}, ValueError, "`W_Ob` must have 1 on axis 0, as `W_Of` has"),
        (lifted_birnn, (*BI, -1), {}, ValueError, "`T` must be at least 1"),
        (lifted_rnn, (W_H, W_I, W_O, 2), {"b": np.ones(4)}, ValueError, "`b` must have k = 3 on axis 0"),
        (lifted_rnn, (W_H, W_I, W_O, 2), {"b": W_H}, ValueError, "`b` must be a vector"),
        (lifted_birnn, (*BI, 2), {"bb": np.ones(2)}, ValueError, "`bb` must have 3 on axis 0"),
        (lifted_birnn, (*BI, 2), {"initial": "one"}, ValueError, "`initial` must be one of"),
        (lifted_feedforward, ([W_H] * 3,), {"biases": [W_I]}, ValueError, "`biases` must be a sequence of 2 vectors"),
        (lifted_inputs, ([[1.0]],), {}, TypeError, "`sequences` must be an array"),
        (lifted_inputs, (np.zeros(3),), {}, ValueError, "`sequences` must have shape"),
        (lifted_inputs, (W_I,), {"initial": W_H}, ValueError, r"`initial` must have shape \(k,\), got \(3, 3\)"),
        (lifted_inputs, (np.zeros((2, 3, 1)),), {"initial": W_H}, ValueError, r"`initial` must have shape \(2, k\)"),
        (lifted_outputs, (np.zeros(5), 2), {}, ValueError, r"`values` must have shape \(batch, 2 q\)"),
        (lifted_outputs, ([1.0], 1), {}, TypeError, "`values` must be an array"),
    ],
)
def test_a_wrong_argument_is_named(builder, arguments, options, error, message):
    with pytest.raises(error, match=f"{builder.__name__}: {message}"):
        builder(*arguments, **options)


def test_wrong_arguments_of_the_matrices_are_named():
    net = lifted_rnn(W_H, W_I, W_O, 2)
    x = np.zeros((4, 9))
    with pytest.raises(ValueError, match=r"outputs: `x` must have shape \(batch, 9\) or \(9,\), got \(4, 8\)"):
        net.outputs(x[:, 1:])
    with pytest.raises(TypeError, match="pull_back_outputs: `g` must have the dtype"):
        net.pull_back_outputs(x, np.zeros((4, 1), dtype=np.float32))
    with pytest.raises(ValueError, match=r"`g` must have shape \(4, 1\), got \(1,\)"):
        net.pull_back_outputs(x, np.zeros(1))
    with pytest.raises(ValueError, match=r"`dB` must have the shape of B, \(9, 4\), got \(9, 9\)"):
        net.weight_gradients(net.A, net.A, net.C)
