"""What holds for the Elman network alone; what every layer must do is in test_layer.py."""

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
