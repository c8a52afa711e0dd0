"""What holds for the implicit RNN alone; what every layer must do is in test_layer.py."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve.adapters import implicit_rnn, rnn_parameters

STOP = ims.NonlinearStop(atol=1e-13, rtol=0.0)
SLOPES = {"tanh": 1.0, "logistic": 0.25, "relu": 1.0, "identity": 1.0}


def draw(rng, lower=1, upper=1, B=3, T=6, k=4, d=2, scale=1.0):
    params = rnn_parameters(d, k, lower=lower, upper=upper, scale=scale, rng=rng)
    return params, rng.standard_normal((B, T, d)), rng.uniform(-1, 1, (B, T, k))


def contracted(params, bound, activation):
    """The same with recurrent weights whose row sums, times the largest slope, are `bound`."""
    weights = np.concatenate([params["P"], params["N"]])
    factor = bound / (SLOPES[activation] * np.abs(weights).sum(axis=(0, 2)).max())
    return params | {name: factor * params[name] for name in "PN"}


@pytest.mark.parametrize("activation", SLOPES)
@pytest.mark.parametrize(("lower", "upper"), [(1, 1), (2, 3)])
def test_contraction(activation, lower, upper, rng):
    params, x, H = draw(rng, lower, upper)
    layer = implicit_rnn(contracted(params, 0.8, activation), x, activation=activation)
    other = rng.uniform(-1, 1, H.shape)
    F, G = H - layer.residual(H), other - layer.residual(other)
    assert np.abs(F - G).max() <= 0.8 * np.abs(H - other).max()
    found = [ims.root(layer, start, stop=STOP) for start in (H, other)]
    assert all(result.success.all() for result in found)
    np.testing.assert_allclose(found[0].x, found[1].x, atol=1e-12)


@pytest.mark.parametrize(("activation", "low"), [("tanh", -1.0), ("logistic", 0.0)])
def test_the_box_is_invariant(activation, low, rng):
    params, x, H = draw(rng, 2, 1, scale=20.0)
    layer = implicit_rnn(params, x, activation=activation, hs=np.full((2, 4), 50.0))
    F = H - layer.residual(H)
    assert low <= F.min()
    assert F.max() <= 1.0 + 1e-15


def test_values_of_activations():
    y = np.asarray([[-1e6, -800.0, -1.0, 0.0, 1.0, 800.0, 1e6]])
    k = y.shape[1]
    params = {"P": np.zeros((1, k, k)), "N": np.zeros((0, k, k)), "V": np.eye(k), "b": np.zeros(k)}
    expected = {
        "tanh": np.tanh(y),
        "logistic": [[0, 0, 1 / (1 + np.e), 0.5, np.e / (1 + np.e), 1, 1]],
        "relu": np.maximum(y, 0),
        "identity": y,
    }
    slopes = {
        "tanh": 1 / np.cosh(np.clip(y, -300, 300)) ** 2,
        "logistic": 0.25 / np.cosh(np.clip(y / 2, -300, 300)) ** 2,
        "relu": y > 0,
        "identity": np.ones_like(y),
    }
    for activation, values in expected.items():
        layer = implicit_rnn(params, y, activation=activation)
        np.testing.assert_allclose(-layer.residual(0 * y), values, rtol=1e-15)
        np.testing.assert_allclose(-layer.parameter_vjp(0 * y, np.ones_like(y))["b"], slopes[activation][0], atol=1e-16)


def test_shapes_of_boundary_states():
    params = rnn_parameters(2, 3, lower=2, upper=1, rng=np.random.default_rng(0))
    arguments, x = (params, np.ones((4, 5, 2))), np.zeros((4, 5, 3))
    one = np.linspace(-1, 1, 3)
    two = np.stack([one, one[::-1]])
    expected = implicit_rnn(*arguments, hs=two, he=one).residual(x)
    for he in (one[None], np.tile(one, (4, 1)), np.tile(one, (4, 1, 1))):
        layer = implicit_rnn(*arguments, hs=np.tile(two, (4, 1, 1)), he=he)
        np.testing.assert_array_equal(layer.residual(x), expected)
        assert layer.parameter_vjp(x, x)["he"].shape == he.shape
