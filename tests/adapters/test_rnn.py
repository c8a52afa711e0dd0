"""What holds for the implicit RNN alone; what every layer must do is in test_layer.py."""

from __future__ import annotations

from typing import Any

import array_api_strict
import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve.adapters import elman, implicit_rnn, rnn_parameters

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


# Identities


def test_without_later_neighbours_it_is_the_elman_network(rng):
    params, x, H = draw(rng, upper=0)
    h0 = rng.standard_normal((3, 4))
    ours = implicit_rnn(params, x, lengths=[6, 1, 4], hs=h0[:, None, :])
    other = elman({"W": params["P"][0], "V": params["V"], "b": params["b"]}, x, lengths=[6, 1, 4], h0=h0)
    np.testing.assert_array_equal(ours.residual(H), other.residual(H))
    np.testing.assert_array_equal(ours.substitute(), other.substitute())
    mine, theirs = ours.parameter_vjp(H, H), other.parameter_vjp(H, H)
    np.testing.assert_array_equal(mine["P"][0], theirs["W"])
    np.testing.assert_array_equal(mine["hs"][:, 0], theirs["h0"])
    assert mine["N"].shape == (0, 4, 4)
    assert mine["he"].shape == (0, 4)


def test_a_stencil_may_be_wider_than_it_needs_to_be(rng):
    params, x, H = draw(rng)
    edges = {name: rng.standard_normal((3, 4)) for name in ("hs", "he")}
    none = np.zeros((2, 4, 4))
    wide = params | {"P": np.concatenate([params["P"], none]), "N": np.concatenate([params["N"], none[:1]])}
    given = {"hs": edges["hs"], "he": edges["he"][:2]}
    narrow = implicit_rnn(params, x, hs=edges["hs"][:1], he=edges["he"][:1])
    np.testing.assert_allclose(implicit_rnn(wide, x, **given).residual(H), narrow.residual(H), atol=1e-15)


@pytest.mark.parametrize(("lower", "upper"), [(1, 1), (2, 1), (0, 3)])
def test_time_reversed(lower, upper, rng):
    params, x, H = draw(rng, lower, upper)
    hs, he = rng.standard_normal((lower, 4)), rng.standard_normal((upper, 4))
    other = params | {"P": params["N"], "N": params["P"]}
    ours = implicit_rnn(params, x, hs=hs, he=he).residual(H)
    theirs = implicit_rnn(other, x[:, ::-1], hs=he, he=hs).residual(H[:, ::-1])
    np.testing.assert_allclose(ours, theirs[:, ::-1], atol=1e-15)


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


# Activations


@pytest.mark.parametrize("size", [1e2, 1e10])
@pytest.mark.parametrize("activation", ["tanh", "logistic"])
def test_saturated(activation, size, dtype, xp, rng):
    params, x, H = draw(rng)
    params = {name: xp.asarray(size * value, dtype=dtype) for name, value in params.items()}
    layer = implicit_rnn(params, xp.asarray(x, dtype=dtype), activation=activation)
    H = xp.asarray(H, dtype=dtype)
    F, J = layer.linearize(H)
    for value in (F, J.matvec(H), J.rmatvec(H), *layer.parameter_vjp(H, H).values()):
        assert value.dtype == dtype
        assert bool(xp.all(xp.isfinite(value)))


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


# Arguments


def wrong(**changes):
    """Arguments of implicit_rnn with something changed: a parameter, or a keyword."""
    rng = np.random.default_rng(0)
    params = rnn_parameters(2, 3, lower=2, upper=1, rng=rng)
    arguments: dict[str, Any] = {"inputs": rng.standard_normal((4, 5, 2))}
    for name, value in changes.items():
        (params if name in (*params, "W") else arguments)[name] = value
    if "drop" in arguments:
        del params[arguments.pop("drop")]
    return {"params": params} | arguments


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"drop": "N"}, ValueError, "`params` lacks N; expected P, N, V, b"),
        ({"W": np.zeros((3, 3))}, ValueError, "`params` has unknown W"),
        ({"params": [1]}, TypeError, "`params` must be a mapping of names to arrays, got list"),
        ({"b": np.zeros(())}, ValueError, r"`b` must have shape \(k,\) with k at least 1, got \(\)"),
        ({"b": np.zeros(0)}, ValueError, r"`b` must have shape \(k,\) with k at least 1, got \(0,\)"),
        ({"b": np.zeros((1, 3))}, ValueError, r"`b` must have shape \(3,\), got \(1, 3\)"),
        ({"P": np.zeros((3, 3))}, ValueError, r"`P` must have shape \(n, k, k\), got \(3, 3\)"),
        ({"N": np.zeros((2, 3, 4))}, ValueError, r"`N` must have shape \(2, 3, 3\), got \(2, 3, 4\)"),
        ({"P": np.zeros((0, 3, 3)), "N": np.zeros((0, 3, 3))}, ValueError, "`lower` or `upper` must be at least 1"),
        ({"V": np.zeros((3, 2), np.float32)}, TypeError, "`V` must have the dtype of the inputs, float64, got float32"),
        ({"P": [[[1.0]]]}, TypeError, "`P` must be an array, got list"),
        ({"P": array_api_strict.zeros((1, 3, 3))}, TypeError, "`P` must be an array of the library of the inputs"),
        ({"inputs": np.zeros((4, 0, 2))}, ValueError, r"none of them 0, got \(4, 0, 2\)"),
        ({"inputs": np.zeros((4, 5, 2), int)}, TypeError, "`inputs` must have dtype float32 or float64, got int64"),
        ({"lengths": [1, 0, 3, 4]}, ValueError, "`lengths` must be from 1 to T = 5, got 0 for sequence 1"),
        ({"lengths": [1, 2]}, ValueError, r"`lengths` must have shape \(4,\)"),
        ({"hs": np.zeros((1, 3))}, ValueError, r"`hs` must have shape \(2, 3\), got \(1, 3\)"),
        ({"hs": np.zeros((3, 2, 3))}, ValueError, r"`hs` must have shape \(4, 2, 3\), got \(3, 2, 3\)"),
        ({"he": np.zeros(4)}, ValueError, r"`he` must have shape .*, got \(4,\)"),
        ({"he": 0.0}, TypeError, "`he` must be an array, got float"),
        (
            {"activation": "sine"},
            ValueError,
            "`activation` must be one of 'tanh', 'logistic', 'relu', 'identity', got 'sine'",
        ),
        ({"activation": ["tanh"]}, ValueError, "`activation` must be one of 'tanh', 'logistic', 'relu'"),
    ],
)
def test_mistakes_are_named(changes, error, message):
    with pytest.raises(error, match=f"implicit_rnn: .*{message}"):
        implicit_rnn(**wrong(**changes))


def test_shapes_of_boundary_states():
    arguments, x = wrong(), np.zeros((4, 5, 3))
    one = np.linspace(-1, 1, 3)
    two = np.stack([one, one[::-1]])
    expected = implicit_rnn(**arguments, hs=two, he=one).residual(x)
    for he in (one[None], np.tile(one, (4, 1)), np.tile(one, (4, 1, 1))):
        layer = implicit_rnn(**arguments, hs=np.tile(two, (4, 1, 1)), he=he)
        np.testing.assert_array_equal(layer.residual(x), expected)
        assert layer.parameter_vjp(x, x)["he"].shape == he.shape


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"d": 0}, ValueError, "`d` must be at least 1, got 0"),
        ({"k": 2.0}, TypeError, "`k` must be an integer, got float"),
        ({"lower": -1}, ValueError, "`lower` must be at least"),
        ({"upper": 1.5}, TypeError, "`upper` must be an integer, got float"),
        ({"lower": 0, "upper": 0}, ValueError, "`lower` or `upper` must be at least 1, got 0 for both"),
        ({"scale": np.inf}, ValueError, "`scale` must be finite and not negative, got inf"),
        ({"rng": None}, TypeError, r"`rng` must be a numpy.random.Generator, got NoneType"),
        ({"dtype": "int32"}, TypeError, "`dtype` must be float32 or float64, got int32"),
    ],
)
def test_mistakes_in_parameters_are_named(changes, error, message):
    arguments = {"d": 2, "k": 3, "rng": np.random.default_rng(0)} | changes
    with pytest.raises(error, match=f"rnn_parameters: {message}"):
        rnn_parameters(**arguments)


def test_parameters_are_uniform_and_the_same_in_both_precisions():
    one, other = (
        rnn_parameters(5, 20, lower=2, upper=0, scale=0.3, rng=np.random.default_rng(3), dtype=t) for t in ("f4", "f8")
    )
    assert {name: value.shape for name, value in one.items()} == {
        "P": (2, 20, 20),
        "N": (0, 20, 20),
        "V": (20, 5),
        "b": (20,),
    }
    for name, value in other.items():
        assert one[name].dtype == np.float32
        np.testing.assert_array_equal(one[name], value.astype(np.float32))
    assert 0.29 < np.abs(other["P"]).max() <= 0.3
