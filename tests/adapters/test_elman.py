"""What holds for the Elman network alone; what every layer must do is in test_layer.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve.adapters import elman, elman_parameters
from tests.adapters.layers import ACTIVATIONS

SLOPES = {"tanh": lambda h: 1 - h**2, "logistic": lambda h: h * (1 - h), "relu": lambda h: 1.0 * (h > 0)}
LENGTHS = [6, 1, 4]


def draw(rng, B=3, T=6, k=4, d=2, scale=0.8, bias=True):
    params = elman_parameters(d, k, scale=scale, rng=rng, bias=bias)
    return params, rng.standard_normal((B, T, d)), rng.standard_normal((B, k))


def loop(params, x, h0, lengths, activation="tanh"):
    """The network, one position after the other."""
    states = np.zeros((*x.shape[:2], h0.shape[-1]))
    for b, n in enumerate(lengths):
        h = h0[b]
        for t in range(n):
            h = ACTIVATIONS[activation](params["W"] @ h + params["V"] @ x[b, t] + params.get("b", 0))
            states[b, t] = h
    return states


def backpropagate(params, x, h0, lengths, w, activation="tanh"):
    """Backpropagation through time for the cotangents w of all states."""
    states = loop(params, x, h0, lengths, activation)
    gradients = {name: np.zeros_like(value) for name, value in (params | {"inputs": x, "h0": h0}).items()}
    for b, n in enumerate(lengths):
        g = np.zeros(h0.shape[-1])
        for t in range(n - 1, -1, -1):
            previous = states[b, t - 1] if t else h0[b]
            u = SLOPES[activation](states[b, t]) * (w[b, t] + g)
            gradients["W"] += np.outer(u, previous)
            gradients["V"] += np.outer(u, x[b, t])
            gradients["inputs"][b, t] = params["V"].T @ u
            if "b" in params:
                gradients["b"] += u
            g = params["W"].T @ u
        gradients["h0"][b] = g
    return gradients


def close(actual, expected, tolerance=1e-13):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", SLOPES)
def test_it_is_the_loop_and_its_backpropagation(activation, bias, rng):
    params, x, h0 = draw(rng, bias=bias)
    network = elman(params, x, activation=activation, lengths=LENGTHS, h0=h0)
    H = loop(params, x, h0, LENGTHS, activation)
    close(network.substitute(), H, 1e-15)
    close(network.residual(H), 0 * H, 1e-15)
    result = ims.root(network, 0 * H)
    assert result.success.all()
    close(result.x, H, 1e-5)

    w = rng.standard_normal(H.shape)
    w[1, 1:] = w[2, 4:] = np.nan  # padding
    expected = backpropagate(params, x, h0, LENGTHS, np.nan_to_num(w), activation)
    gradients = ims.pull_back(network, H, np.nan_to_num(w), stop=ims.LinearStop(rtol=1e-14)).gradients
    assert list(gradients) == [*params, "inputs", "h0"]
    for name, value in expected.items():
        close(gradients[name], value, 1e-12)


def test_n_iterations_make_the_first_n_states_exact(rng):
    params, x, h0 = draw(rng, T=8)
    network = elman(params, x, h0=h0)
    exact, H = network.substitute(), rng.standard_normal((3, 8, 4))
    for n in range(1, 9):
        H = H - network.residual(H)
        close(H[:, :n], exact[:, :n], 1e-14)
        assert n == 8 or np.abs(H[:, n] - exact[:, n]).max() > 1e-6


def test_a_declared_structure(rng):
    params, x, h0 = draw(rng)
    network = elman(params, x, lengths=LENGTHS, h0=h0)
    assert network.structure == ims.BlockBanded(1, 0, 4)
    assert network.fixed_point
    assert network.halves is None
    H = rng.standard_normal((3, 6, 4))
    blocks = network.blocks(H)
    assert blocks.shape == (3, 6, 2, 4, 4)
    np.testing.assert_array_equal(blocks[:, :, 1], np.broadcast_to(np.eye(4), (3, 6, 4, 4)))


def test_long_sequences_in_single_precision(rng):
    params, x, h0 = draw(rng, B=2, T=500, scale=0.4)
    cast = {name: value.astype(np.float32) for name, value in params.items()}
    network = elman(cast, x.astype(np.float32), h0=h0.astype(np.float32))
    H = network.substitute()
    assert H.dtype == np.float32
    np.testing.assert_allclose(H, loop(params, x, h0, [500, 500]), atol=1e-4)


# Arguments


def wrong(**changes):
    """Arguments of elman with something changed: a parameter, or a keyword."""
    rng = np.random.default_rng(0)
    params = elman_parameters(2, 3, rng=rng)
    arguments: dict[str, Any] = {"inputs": rng.standard_normal((4, 5, 2))}
    for name, value in changes.items():
        (params if name in (*params, "U") else arguments)[name] = value
    if "drop" in arguments:
        del params[arguments.pop("drop")]
    return {"params": params} | arguments


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"drop": "V"}, ValueError, "`params` lacks V; expected W, V, b"),
        ({"U": np.zeros((3, 3))}, ValueError, "`params` has unknown U"),
        ({"params": None}, TypeError, "`params` must be a mapping of names to arrays, got NoneType"),
        ({"W": np.zeros(())}, ValueError, r"`W` must have shape \(k, k\) with k at least 1, got \(\)"),
        ({"W": np.zeros((3, 0))}, ValueError, r"`W` must have shape \(k, k\) with k at least 1, got \(3, 0\)"),
        ({"W": np.zeros((2, 3))}, ValueError, r"`W` must have shape \(3, 3\), got \(2, 3\)"),
        ({"b": None}, TypeError, "`b` must be an array, got NoneType"),
        ({"V": np.zeros((3, 2), np.float32)}, TypeError, "`V` must have the dtype of the inputs, float64"),
        ({"inputs": np.zeros((4, 0, 2))}, ValueError, r"none of them 0, got \(4, 0, 2\)"),
        ({"inputs": [[1.0]]}, TypeError, "`inputs` must be an array, got list"),
        ({"lengths": [1, 2, 3, 0]}, ValueError, "`lengths` must be from 1 to T = 5, got 0 for sequence 3"),
        ({"h0": np.zeros((3, 3))}, ValueError, r"`h0` must have shape \(4, 3\), got \(3, 3\)"),
        ({"activation": "softmax"}, ValueError, "`activation` must be one of 'tanh', 'logistic', 'relu'"),
    ],
)
def test_mistakes_are_named(changes, error, message):
    with pytest.raises(error, match=f"elman: .*{message}"):
        elman(**wrong(**changes))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"d": 0}, ValueError, "`d` must be at least 1, got 0"),
        ({"k": 2.0}, TypeError, "`k` must be an integer, got float"),
        ({"scale": -1.0}, ValueError, "`scale` must be finite and not negative, got -1.0"),
        ({"rng": 0}, TypeError, r"`rng` must be a numpy.random.Generator, got int"),
        ({"dtype": "int32"}, TypeError, "`dtype` must be float32 or float64, got int32"),
    ],
)
def test_mistakes_in_parameters_are_named(changes, error, message):
    arguments = {"d": 2, "k": 3, "rng": np.random.default_rng(0)} | changes
    with pytest.raises(error, match=f"elman_parameters: {message}"):
        elman_parameters(**arguments)


def test_parameters_are_uniform_and_the_same_in_both_precisions():
    one, other = (elman_parameters(5, 20, rng=np.random.default_rng(3), dtype=t) for t in ("f4", "f8"))
    assert set(one) == {"W", "V", "b"}
    assert set(elman_parameters(2, 2, bias=False, rng=np.random.default_rng(0))) == {"W", "V"}
    for name, value in other.items():
        assert one[name].dtype == np.float32
        np.testing.assert_array_equal(one[name], value.astype(np.float32))
    assert 0.049 < np.abs(other["W"]).max() <= 0.05


@pytest.mark.parametrize("bias", ["no", None, 1.0, np.ones(2)])
def test_a_bias_must_be_true_or_false(bias, rng):
    with pytest.raises(TypeError, match="elman_parameters: `bias` must be True or False"):
        elman_parameters(2, 3, bias=bias, rng=rng)
