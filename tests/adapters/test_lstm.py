"""What holds for the implicit LSTM alone; what every layer must do is in test_layer.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve.adapters import implicit_lstm, lstm_parameters
from tests.adapters.layers import sigma

EDGES = ("hs", "cs", "he", "ce")
STOP = ims.NonlinearStop(atol=1e-13, rtol=0.0)


def draw(rng, B=3, T=5, k=4, d=2, scale=0.7):
    params = lstm_parameters(d, k, scale=scale, rng=rng)
    edges = {name: rng.uniform(-1, 1, (B, k)) for name in EDGES}
    return params, rng.standard_normal((B, T, d)), edges


def ordinary(P, x, h, c, order):
    """The ordinary LSTM along one sequence."""
    states = np.zeros((len(x), 2 * len(h)))
    for t in order:
        i, f, o, g = (P["W" + gate] @ x[t] + P["U" + gate] @ h + P["b" + gate] for gate in "ifog")
        c = sigma(f) * c + sigma(i) * np.tanh(g)
        h = sigma(o) * np.tanh(c)
        states[t] = [*h, *c]
    return states


def one_sided(params, side):
    """With a switch that is shut: s = 1 for the previous position, 0 for the next."""
    closed = {"n" if side == "p" else "p": -1e3, side: 1e3}
    return params | {"b" + which: np.full_like(params["bp"], value) for which, value in closed.items()}


@pytest.mark.parametrize("side", ["p", "n"])
def test_with_the_switch_shut_it_is_the_ordinary_lstm(side, rng):
    params, x, edges = draw(rng)
    lengths = [5, 1, 3]
    layer = implicit_lstm(one_sided(params, side), x, lengths=lengths, **edges)
    result = ims.root(layer, stop=STOP)
    assert result.success.all()
    for b, n in enumerate(lengths):
        h, c, order = {
            "p": (edges["hs"][b], edges["cs"][b], range(n)),
            "n": (edges["he"][b], edges["ce"][b], range(n - 1, -1, -1)),
        }[side]
        np.testing.assert_allclose(result.x[b, :n], ordinary(params, x[b, :n], h, c, order), atol=1e-13)


def test_gradients_are_those_of_the_ordinary_lstm(rng):
    """With s = 1, by differences of the ordinary LSTM's own loop."""
    params, x, edges = draw(rng)
    shut = one_sided(params, "p")
    layer = implicit_lstm(shut, x, **edges)
    result = ims.root(layer, stop=STOP)
    w = rng.standard_normal(result.x.shape)
    gradients = ims.pull_back(layer, result, w, stop=ims.LinearStop(rtol=1e-13)).gradients
    direction = {name: rng.standard_normal(value.shape) for name, value in params.items() if name[1] in "ifog"}

    def loss(step):
        P = shut | {name: shut[name] + step * value for name, value in direction.items()}
        states = [ordinary(P, x[b], edges["hs"][b], edges["cs"][b], range(5)) for b in range(3)]
        return (w * np.stack(states)).sum()

    h = 1e-3
    differences = [loss(i * h) - loss(-i * h) for i in (1, 2, 3)]
    slope = (45 * differences[0] - 9 * differences[1] + differences[2]) / (60 * h)
    assert slope == pytest.approx(sum((gradients[name] * value).sum() for name, value in direction.items()), rel=1e-9)
    assert not gradients["he"].any()
    assert not gradients["ce"].any()


def test_time_reversed(rng):
    params, x, edges = draw(rng)
    H = rng.uniform(-1, 1, (3, 5, 8))
    swap = {"p": "n", "n": "p"}
    other = {name[0] + swap.get(name[1], name[1]): value for name, value in params.items()}
    mirrored = {name[0] + {"s": "e", "e": "s"}[name[1]]: value for name, value in edges.items()}
    ours = implicit_lstm(params, x, **edges).residual(H)
    theirs = implicit_lstm(other, x[:, ::-1], **mirrored).residual(H[:, ::-1])
    np.testing.assert_allclose(ours, theirs[:, ::-1], atol=1e-14)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.1, 1.0, 3.0]))
def test_the_box_is_invariant(seed, scale):
    rng = np.random.default_rng(seed)
    params, x, edges = draw(rng, scale=scale)
    bound_h = max(1.0, np.abs(edges["hs"]).max(), np.abs(edges["he"]).max())
    reach = {  # largest arguments of the gates
        gate: np.abs(x @ params["W" + gate].T).max()
        + bound_h * np.abs(params["U" + gate]).sum(axis=1).max()
        + np.abs(params["b" + gate]).max()
        for gate in "if"
    }
    bound_c = max(sigma(reach["i"]) / sigma(-reach["f"]), np.abs(edges["cs"]).max(), np.abs(edges["ce"]).max())
    H = np.concatenate([bound_h * rng.uniform(-1, 1, (3, 5, 4)), bound_c * rng.choice([-1, 1], (3, 5, 4))], axis=2)
    F = H - implicit_lstm(params, x, **edges).residual(H)
    assert np.abs(F[..., :4]).max() <= 1.0
    assert np.abs(F[..., 4:]).max() <= bound_c * (1 + 1e-15)


@pytest.mark.parametrize("size", [1e2, 1e8])
def test_saturated(size, dtype, xp, rng):
    params, x, edges = draw(rng, scale=size)
    cast = {name: xp.asarray(value, dtype=dtype) for name, value in params.items()}
    given_edges = {name: xp.asarray(1e6 * value, dtype=dtype) for name, value in edges.items()}
    layer = implicit_lstm(cast, xp.asarray(x, dtype=dtype), **given_edges)
    H = xp.asarray(1e3 * rng.uniform(-1, 1, (3, 5, 8)), dtype=dtype)
    F, J = layer.linearize(H)
    for value in (F, J.matvec(H), J.rmatvec(H), layer.blocks(H), *layer.parameter_vjp(H, H).values()):
        assert value.dtype == dtype
        assert bool(xp.all(xp.isfinite(value)))


def test_solves_in_single_precision(rng):
    params, x, _ = draw(rng, scale=0.3)
    exact = ims.root(implicit_lstm(params, x), method="newton-krylov", stop=STOP).x
    single = {name: value.astype(np.float32) for name, value in params.items()}
    result = ims.root(implicit_lstm(single, x.astype(np.float32)), method="newton-krylov")
    assert result.success.all()
    assert result.x.dtype == np.float32
    np.testing.assert_allclose(result.x, exact, atol=1e-4)


# Arguments


def wrong(**changes):
    """Arguments of implicit_lstm with something changed: a parameter, or a keyword."""
    rng = np.random.default_rng(0)
    params = lstm_parameters(2, 3, rng=rng)
    arguments: dict[str, Any] = {"inputs": rng.standard_normal((4, 5, 2))}
    for name, value in changes.items():
        (params if name in params or name == "Wx" else arguments)[name] = value
    if "drop" in arguments:
        del params[arguments.pop("drop")]
    return {"params": params} | arguments


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"drop": "Uf"}, ValueError, "`params` lacks Uf; expected Wi, Ui, bi, Wf"),
        ({"Wx": np.zeros((3, 2))}, ValueError, "`params` has unknown Wx"),
        ({"bi": np.zeros(())}, ValueError, r"`bi` must have shape \(k,\) with k at least 1, got \(\)"),
        ({"bi": np.zeros((2, 3))}, ValueError, r"`bi` must have shape \(3,\), got \(2, 3\)"),
        ({"Ug": np.zeros((3, 6))}, ValueError, r"`Ug` must have shape \(3, 3\), got \(3, 6\)"),
        ({"Wo": np.zeros((3, 2), np.float32)}, TypeError, "`Wo` must have the dtype of the inputs, float64"),
        ({"inputs": np.zeros((4, 0, 2))}, ValueError, r"none of them 0, got \(4, 0, 2\)"),
        ({"lengths": [1, 2, 3, 0]}, ValueError, "`lengths` must be from 1 to T = 5, got 0 for sequence 3"),
        ({"cs": np.zeros(6)}, ValueError, r"`cs` must have shape \(3,\), got \(6,\)"),
        ({"ce": np.zeros((3, 3))}, ValueError, r"`ce` must have shape \(4, 3\), got \(3, 3\)"),
        ({"he": 0.0}, TypeError, "`he` must be an array, got float"),
    ],
)
def test_mistakes_are_named(changes, error, message):
    with pytest.raises(error, match=f"implicit_lstm: .*{message}"):
        implicit_lstm(**wrong(**changes))


def test_boundary_states_may_be_given_in_part(rng):
    params, x, edges = draw(rng)
    H = rng.uniform(-1, 1, (3, 5, 8))
    zero = np.zeros(4)
    layer = implicit_lstm(params, x, cs=edges["cs"], he=edges["he"][0])
    full = implicit_lstm(params, x, hs=zero, cs=edges["cs"], he=edges["he"][0], ce=zero)
    np.testing.assert_array_equal(layer.residual(H), full.residual(H))
    shapes = {name: gradient.shape for name, gradient in layer.parameter_vjp(H, H).items() if name in EDGES}
    assert shapes == {"hs": (4,), "cs": (3, 4), "he": (4,), "ce": (4,)}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"d": 0}, ValueError, "`d` must be at least 1, got 0"),
        ({"k": "3"}, TypeError, "`k` must be an integer, got str"),
        ({"scale": np.nan}, ValueError, "`scale` must be finite and not negative, got nan"),
        ({"rng": 0}, TypeError, r"`rng` must be a numpy.random.Generator, got int"),
        ({"dtype": "int32"}, TypeError, "`dtype` must be float32 or float64, got int32"),
    ],
)
def test_mistakes_in_parameters_are_named(changes, error, message):
    arguments = {"d": 2, "k": 3, "rng": np.random.default_rng(0)} | changes
    with pytest.raises(error, match=f"lstm_parameters: {message}"):
        lstm_parameters(**arguments)


def test_parameters_are_uniform_and_the_same_in_both_precisions():
    one, other = (lstm_parameters(5, 20, scale=0.3, rng=np.random.default_rng(3), dtype=t) for t in ("f4", "f8"))
    assert sorted(one) == sorted(kind + which for kind in "WUb" for which in "ifogpn")
    for name, value in other.items():
        assert one[name].dtype == np.float32
        np.testing.assert_array_equal(one[name], value.astype(np.float32))
    assert 0.29 < np.abs(other["Uf"]).max() <= 0.3
