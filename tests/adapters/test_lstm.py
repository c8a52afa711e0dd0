"""What holds for the implicit LSTM alone; what every layer must do is in test_layer.py."""

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


def test_boundary_states_may_be_given_in_part(rng):
    params, x, edges = draw(rng)
    H = rng.uniform(-1, 1, (3, 5, 8))
    zero = np.zeros(4)
    layer = implicit_lstm(params, x, cs=edges["cs"], he=edges["he"][0])
    full = implicit_lstm(params, x, hs=zero, cs=edges["cs"], he=edges["he"][0], ce=zero)
    np.testing.assert_array_equal(layer.residual(H), full.residual(H))
    shapes = {name: gradient.shape for name, gradient in layer.parameter_vjp(H, H).items() if name in EDGES}
    assert shapes == {"hs": (4,), "cs": (3, 4), "he": (4,), "ce": (4,)}
