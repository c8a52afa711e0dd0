"""What holds for the stencil GRU alone; what every layer must do is in test_layer.py."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve.adapters import gru_parameters, implicit_gru, stencil_gru, stencil_gru_parameters

GATES = ("W", "U", "b", "Wz", "Uz", "bz", "Wr", "Ur", "br")


def draw(rng, offsets=(-1, 1), B=3, T=6, k=4, d=2, scale=1.0):
    params = stencil_gru_parameters(d, k, offsets=offsets, scale=scale, rng=rng)
    return params, rng.standard_normal((B, T, d)), rng.uniform(-1, 1, (B, T, k))


def as_stencil(params):
    """Parameters of an implicit GRU for the offsets (1, -1)."""
    stacked = {kind + "s": np.stack([params[kind + side] for side in "np"]) for kind in "WUb"}
    return {name: params[name] for name in GATES} | stacked


@pytest.mark.parametrize("scale", [0.3, 1e4])
def test_nearest_neighbours_are_the_implicit_gru(scale, rng):
    params, x = gru_parameters(2, 4, scale=scale, rng=rng), rng.standard_normal((3, 6, 2))
    H, v = rng.uniform(-1, 1, (2, 3, 6, 4))
    edges = {name: rng.uniform(-1, 1, (3, 4)) for name in ("hs", "he")}
    gru = implicit_gru(params, x, lengths=[6, 1, 4], **edges)
    layer = stencil_gru(as_stencil(params), x, offsets=(1, -1), lengths=[6, 1, 4], **edges)
    close = {"rtol": 1e-12, "atol": 1e-13 * scale}
    J, K = layer.linearize(H)[1], gru.linearize(H)[1]
    for mine, theirs in (
        (layer.residual(H), gru.residual(H)),
        (J.matvec(v), K.matvec(v)),
        (J.rmatvec(v), K.rmatvec(v)),
    ):
        np.testing.assert_allclose(mine, theirs, **close)
    mine, theirs = layer.parameter_vjp(H, v), gru.parameter_vjp(H, v)
    for name, value in (as_stencil(theirs) | {name: theirs[name] for name in (*edges, "inputs")}).items():
        np.testing.assert_allclose(mine[name], value, rtol=1e-12, atol=1e-12 * scale)


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
