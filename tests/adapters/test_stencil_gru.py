"""What holds for the stencil GRU alone; what every layer must do is in test_layer.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve.adapters import gru_parameters, implicit_gru, stencil_gru, stencil_gru_parameters
from tests.adapters.layers import gates

GATES = ("W", "U", "b", "Wz", "Uz", "bz", "Wr", "Ur", "br")


def draw(rng, offsets=(-1, 1), B=3, T=6, k=4, d=2, scale=1.0):
    params = stencil_gru_parameters(d, k, offsets=offsets, scale=scale, rng=rng)
    return params, rng.standard_normal((B, T, d)), rng.uniform(-1, 1, (B, T, k))


def as_stencil(params, order="pn"):
    """Parameters of an implicit GRU for the offsets (-1, 1), or another order."""
    stacked = {kind + "s": np.stack([params[kind + side] for side in order]) for kind in "WUb"}
    return {name: params[name] for name in GATES} | stacked


# Identities


@pytest.mark.parametrize("scale", [0.3, 3.0, 1e4])
@pytest.mark.parametrize(("offsets", "order"), [((-1, 1), "pn"), ((1, -1), "np")])
def test_nearest_neighbours_are_the_implicit_gru(offsets, order, scale, rng):
    params, x = gru_parameters(2, 4, scale=scale, rng=rng), rng.standard_normal((3, 6, 2))
    H, v = rng.uniform(-1, 1, (2, 3, 6, 4))
    edges = {name: rng.uniform(-1, 1, (3, 4)) for name in ("hs", "he")}
    gru = implicit_gru(params, x, lengths=[6, 1, 4], **edges)
    layer = stencil_gru(as_stencil(params, order), x, offsets=offsets, lengths=[6, 1, 4], **edges)
    close = {"rtol": 1e-12, "atol": 1e-13}
    np.testing.assert_allclose(layer.residual(H), gru.residual(H), **close)
    J, K = layer.linearize(H)[1], gru.linearize(H)[1]
    np.testing.assert_allclose(J.matvec(v), K.matvec(v), **close | {"atol": 1e-13 * scale})
    np.testing.assert_allclose(J.rmatvec(v), K.rmatvec(v), **close | {"atol": 1e-13 * scale})
    mine, theirs = layer.parameter_vjp(H, v), gru.parameter_vjp(H, v)
    for name, value in (as_stencil(theirs, order) | {name: theirs[name] for name in (*edges, "inputs")}).items():
        np.testing.assert_allclose(mine[name], value, **close | {"atol": 1e-12 * scale})
    np.testing.assert_allclose(layer.initial_guess("one-step", None), gru.initial_guess("one-step", None), **close)


@pytest.mark.parametrize("offset", [-1, 1, -2])
def test_with_one_neighbour_it_is_the_ordinary_gru(offset, rng):
    params, x, _ = draw(rng, (offset,), T=5)
    depth = abs(offset)
    edge = rng.uniform(-1, 1, (depth, 4))
    layer = stencil_gru(params, x, offsets=[offset], **({"hs": edge} if offset < 0 else {"he": edge}))
    H = layer.substitute()
    expected = np.zeros_like(H)
    for b in range(3):
        states = list(edge[::-1])  # the oldest first
        order = range(5) if offset < 0 else range(4, -1, -1)
        for t in order:
            states.append(gates(params, states[-depth], x[b, t]))
            expected[b, t] = states[-1]
    np.testing.assert_allclose(H, expected, atol=1e-14)


def test_the_order_of_the_offsets_goes_with_that_of_the_weights(rng):
    params, x, H = draw(rng, (-3, 1, 2))
    edges = {"hs": rng.standard_normal((3, 4)), "he": rng.standard_normal((2, 4))}
    order = [2, 0, 1]
    other = params | {name: params[name][order] for name in ("Ws", "Us", "bs")}
    ours = stencil_gru(params, x, offsets=(-3, 1, 2), **edges)
    theirs = stencil_gru(other, x, offsets=(2, -3, 1), **edges)
    np.testing.assert_allclose(ours.residual(H), theirs.residual(H), atol=1e-14)
    mine, others = ours.parameter_vjp(H, H), theirs.parameter_vjp(H, H)
    np.testing.assert_allclose(mine["Us"][order], others["Us"], atol=1e-13)
    np.testing.assert_allclose(mine["hs"], others["hs"], atol=1e-13)


@given(st.integers(0, 2**32 - 1), st.sampled_from([(-1, 1), (-2, 1, 3), (2,)]), st.sampled_from([0.1, 3.0, 1e3]))
def test_the_box_is_invariant(seed, offsets, scale):
    rng = np.random.default_rng(seed)
    params, x, H = draw(rng, offsets, scale=scale)
    bound = rng.uniform(0.5, 3)
    lower, upper = max(0, -min(offsets)), max(0, *offsets)
    edges = {"hs": bound * rng.uniform(-1, 1, (lower, 4)), "he": bound * rng.uniform(-1, 1, (upper, 4))}
    H = bound * H
    F = H - stencil_gru(params, x, offsets=offsets, **edges).residual(H)
    assert np.abs(F).max() <= max(1.0, bound) * (1 + 1e-15)


# Arguments
