"""The elementwise work of recurrent layers: every implementation against its definition, in complex arithmetic."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from implicitsolve._arrays.host import to_host
from implicitsolve.adapters import kernels

N, K = 3, 37  # positions, and numbers of each: no multiple of a vector's length
STEP = 1e-30j
LIKE = np.empty(0)


@pytest.fixture(params=["reference", "numba"])
def select(request):
    """Select an implementation of a kernel by the kernel's name."""
    if request.param == "numba":
        pytest.importorskip("numba")
    return lambda name, like=LIKE: getattr(kernels, name).select(like, request.param, size=K)


def sigma(a):
    return 1 / (1 + np.exp(-a))


def close(actual, expected, tolerance=1e-14):
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max()))


def inner(*pairs):
    return sum(float((x * y).sum()) for x, y in pairs)


def copies(*arrays):
    return [array.copy() for array in arrays]


# The mixture


def mixed(a, h):
    weights = sigma(a)
    return (weights * h).sum(axis=0) / weights.sum(axis=0)


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.slow), 2, 3, pytest.param(4, marks=pytest.mark.slow)])
def m(request):
    return request.param


def test_mixture_and_its_products(select, m, rng):
    mixture = select("mixture")
    y, x, h, dy, dh = rng.normal(size=(5, m, N, K))
    expected = mixed(y + x, h)
    close(mixture.value(copies(*y), x, tuple(h)), expected)
    factors = np.full((2 * m - 1, N, K), np.nan)
    close(mixture.value(copies(*y), x, tuple(h), factors), expected)
    weights = sigma(y + x) / sigma(y + x).sum(axis=0)
    np.testing.assert_allclose(factors[: m - 1], weights[:-1], rtol=1e-13)
    push = mixture.push(copies(*dy), tuple(dh), factors)
    close(push, mixed(y + x + STEP * dy, h + STEP * dh).imag / STEP.imag)

    w, known = rng.normal(size=(2, N, K))
    hhat, arguments = mixture.pull(w.copy(), known.copy(), factors)
    close(hhat, w + known)
    products = rng.normal(size=(m, N, K))
    cotangents = mixture.share(copies(*products), hhat, factors)
    found = inner(*zip(arguments, dy), *zip(np.asarray(cotangents) - products, dh))
    assert found == pytest.approx(inner((w + known, push)), rel=1e-12)


VALUES = [-1e6, -1003.0, -1000.0, -95.0, -2.0, 0.0, 3.0, 90.0, 1000.0, 1e6]


@pytest.mark.parametrize("neighbours", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_switch_at_any_size(select, neighbours, dtype, xp):
    like = xp.empty(0, dtype=dtype)
    if not isinstance(like, np.ndarray) and select("mixture") is not kernels.mixture.reference:
        pytest.skip("compiled for NumPy arrays")
    a = np.asarray(list(product(VALUES, repeat=neighbours))).T[:, None, :]
    logs = -np.logaddexp(0, -a)
    logs -= logs.max(axis=0)
    weights = np.exp(logs - np.logaddexp.reduce(logs, axis=0))
    h = np.zeros_like(a)
    h[0] = 1.0  # so that hhat is s_1
    slopes = weights * np.exp(-np.logaddexp(0, a)) * (h - weights[0])
    slopes[0] = weights[0] * weights[1:].sum(axis=0) * np.exp(-np.logaddexp(0, a[0]))
    cast = lambda values: [xp.asarray(value, dtype=dtype) for value in values]  # noqa: E731
    factors = xp.full((2 * neighbours - 1, 1, a.shape[2]), xp.nan, dtype=dtype)
    with np.errstate(over="ignore"):
        hhat = select("mixture", like).value(cast(a), xp.zeros(a.shape, dtype=dtype), cast(h), factors)
    eps = 64 * float(xp.finfo(dtype).eps)
    tolerance = {"rtol": eps, "atol": float(xp.finfo(dtype).smallest_normal)}
    np.testing.assert_allclose(to_host(hhat), weights[0], **tolerance)
    np.testing.assert_allclose(to_host(factors)[: neighbours - 1], weights[:-1], **tolerance)
    np.testing.assert_allclose(to_host(factors)[neighbours - 1 :], slopes, rtol=eps, atol=eps)


def test_one_neighbour_has_all_the_weight(select):
    a = np.asarray([VALUES])
    h, factors = np.arange(10.0)[None], np.full((1, *a.shape), np.nan)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(select("mixture").value([a], np.zeros((1, 1, 10)), (h,), factors), h)
    np.testing.assert_array_equal(factors, 0)


# Gated recurrent units


def gru_gates(y):
    return 1 / (1 + np.exp(y))


def gru_value(gates, hhat, y):
    candidate = np.tanh(y)
    return candidate + gates[0] * (hhat - candidate)


def test_gru_and_its_products(select, rng):
    gru = select("gru")
    y, x, dy = rng.normal(size=(3, 2, N, K))
    hhat, product, x_u, dhhat, dproduct = rng.normal(size=(5, N, K))
    gates = gru_gates(y + x)
    for factors in (None, np.full((5, N, K), np.nan)):
        keep, reset = gru.reset(y.copy(), x, hhat, factors)
        close(keep, gates[0])
        close(reset, gates[1] * hhat)
        close(gru.blend(product.copy(), x_u, keep, hhat, factors), gru_value(gates, hhat, product + x_u))
    moved = gru_gates(y + x + STEP * dy), hhat + STEP * dhhat
    dreset = gru.push_reset(dy.copy(), dhhat, factors)
    close(dreset, (moved[0][1] * moved[1]).imag / STEP.imag)
    dh = gru.push_blend(dproduct.copy(), dy, dhhat, factors)
    close(dh, gru_value(*moved, product + x_u + STEP * dproduct).imag / STEP.imag)

    w, wreset = rng.normal(size=(2, N, K))  # of h, and of the reset state
    candidate = gru.pull_blend(w, factors)
    hhat_bar, gates_bar = gru.pull_reset(wreset.copy(), w, factors)
    found = inner((candidate, dproduct), (hhat_bar, dhhat), (gates_bar, dy))
    assert found == pytest.approx(inner((w, dh), (wreset, dreset)), rel=1e-12)


# Long short-term memory


def lstm_mixed(a, h):
    s = sigma(a[0]) / (sigma(a[0]) + sigma(a[1]))
    s = np.concatenate([s, s], axis=1)
    return s * h[0] + (1 - s) * h[1]


def lstm_state(y, chat):
    i, f, o = gru_gates(y[:3])
    c = f * chat + i * np.tanh(y[3])
    return np.concatenate([o * np.tanh(c), c], axis=1)


def test_lstm_and_its_products(select, rng):
    lstm = select("lstm")
    a, x, da = rng.normal(size=(3, 2, N, K))
    y, x_y, dy = rng.normal(size=(3, 4, N, K))
    states, dstates = rng.normal(size=(2, 2, N, 2 * K))
    both = lstm_mixed(a + x, states)
    for mixing, gating in ((None, None), np.split(np.full((11, N, K), np.nan), [5])):
        hhat, chat = lstm.mix(copies(*a), x, tuple(states), mixing)
        close(np.concatenate([hhat, chat], axis=1), both)
        close(lstm.state(y.copy(), x_y, chat, gating), lstm_state(y + x_y, both[:, K:]))
    dboth = lstm_mixed(a + x + STEP * da, states + STEP * dstates).imag / STEP.imag
    dhhat, dchat = lstm.push_mix(copies(*da), tuple(dstates), mixing)
    close(np.concatenate([dhhat, dchat], axis=1), dboth)
    dstate = lstm.push_state(dy.copy(), dchat, gating)
    close(dstate, lstm_state(y + x_y + STEP * dy, both[:, K:] + STEP * dboth[:, K:]).imag / STEP.imag)

    w = rng.normal(size=(N, 2 * K))
    arguments, chat_bar = lstm.pull_state(w, gating)
    assert inner((arguments, dy), (chat_bar, dchat)) == pytest.approx(inner((w, dstate)), rel=1e-12)
    hhat_bar = rng.normal(size=(N, K))
    switch = lstm.pull_mix(hhat_bar, chat_bar, mixing)
    products = rng.normal(size=(2, N, K))
    cotangents = np.asarray(lstm.share(copies(*products), hhat_bar, chat_bar, mixing))
    cotangents[:, :, :K] -= products
    found = inner(*zip(switch, da), (cotangents, dstates))
    assert found == pytest.approx(inner((hhat_bar, dhhat), (chat_bar, dchat)), rel=1e-12)


# Without gates

FUNCTIONS: dict[str, Any] = {
    "tanh": np.tanh,
    "logistic": sigma,
    "relu": lambda a: np.where(a.real > 0, a, 0 * a),
    "identity": lambda a: a,
}


@pytest.mark.parametrize("activation", FUNCTIONS)
@pytest.mark.parametrize("neighbours", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_rnn_and_its_products(select, activation, neighbours, rng):
    rnn, phi = select("rnn"), FUNCTIONS[activation]
    y, dy = rng.normal(size=(2, neighbours, N, K))
    x = rng.normal(size=(N, K))
    for factors in (None, np.full((1, N, K), np.nan)):
        close(rnn.value(activation, copies(*y), x, factors), phi(y.sum(axis=0) + x))
    moved = y.sum(axis=0) + x + STEP * dy.sum(axis=0)
    close(rnn.push(copies(*dy), factors), phi(moved).imag / STEP.imag)


# Far out


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
@pytest.mark.parametrize("size", [50.0, 1e3, 1e6, 1e30])
def test_saturated_gates_give_numbers(select, size, dtype, rng):
    """Of every function of values, and no overflow behind it: the layers compute without warnings of it."""
    signs = rng.choice([-1.0, 0.0, 1.0], size=(10, N, K)) * size
    a, x = signs.astype(dtype), np.zeros((4, N, K), dtype)
    state = np.concatenate([x[0], x[1] + 0.5], axis=1)
    factors = np.full((11, N, K), np.nan, dtype)
    one = x[0] + 1
    with np.errstate(over="ignore"):
        found = [select("mixture").value(copies(*a[:count]), x, (one,) * count) for count in (1, 2, 3)]
        found.append(select("mixture").value(copies(*a[:3]), x, (one, x[0], -one), factors[:5]))
        found += select("gru").reset(a[:2].copy(), x[:2], one, factors[5:])
        found.append(select("gru").blend(a[2].copy(), x[0], found[-2], one, factors[5:10]))
        assert np.isfinite(factors[:10]).all()
        found += select("lstm").mix(copies(*a[:2]), x, (state, -state), factors[:5])
        found.append(select("lstm").state(a[2:6].copy(), x, one, factors[5:]))
        found += [select("rnn").value(name, copies(*a[:1]), x[0], factors[:1]) for name in ("tanh", "logistic")]
    assert all(np.isfinite(value).all() for value in (*found, factors))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(select, bad):
    """A solver sees it, and backs off; and no entry but its own is touched."""
    h = np.ones((N, K))
    h[1, 5] = bad
    x = np.zeros((2, N, K))
    with np.errstate(invalid="ignore", over="ignore"):
        gates, reset = select("gru").reset(x.copy(), x, h)
        mixed = select("mixture").value(copies(x[0], x[1]), x, (h, -h))
        blended = select("gru").blend(x[0].copy(), x[0], gates, h)
    for value in (reset, mixed, blended):
        np.testing.assert_array_equal(np.isfinite(value), np.isfinite(h))
