"""Gates of sequences whose neighbours come in their own places, against the same gates of rows."""

from __future__ import annotations

import numpy as np
import pytest

from implicitsolve.adapters import kernels

B, K = 2, 37
PLACES = [(4, 4, (-1, 1)), (4, 3, (-1, 0)), (3, 4, (0, 1)), (3, 3, (-1, 0)), (1, 1, (-1, 1)), (5, 5, (-2, 3))]


@pytest.fixture
def select():
    """Select the reference of a kernel by the kernel's name; compiled kernels take rows alone."""
    return lambda name: getattr(kernels, name).reference


@pytest.fixture(params=PLACES, ids=str)
def places(request):
    """T, T' of the neighbours, and their distances."""
    return request.param


def copies(*arrays):
    return [array.copy() for array in arrays]


def rows(array):
    """(..., B, T, k) as (..., B T, k)."""
    return array.reshape(*array.shape[:-3], -1, array.shape[-1])


def here(part, distance, T):
    """What stands at [b, t + distance], or zeros, as rows."""
    found = np.zeros((B, T, part.shape[-1]))
    for t in range(T):
        if 0 <= t + distance < part.shape[1]:
            found[:, t] = part[:, t + distance]
    return rows(found)


def there(sent, distance, T):
    """What positions send to their neighbours at a distance, in the places of these."""
    found = np.zeros((B, T, sent.shape[-1]))
    for t, row in enumerate(np.moveaxis(sent, 1, 0)):
        if 0 <= t + distance < T:
            found[:, t + distance] = row
    return found


def close(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one.reshape(other.shape), other, rtol=0, atol=1e-14)


def test_mixture(select, places, rng):
    T, other, distances = places
    mixture, x = select("mixture"), rng.normal(size=(2, B, T, K))
    products, states = rng.normal(size=(2, 2, B, other, K))
    near = [[here(part, d, T) for part, d in zip(parts, distances)] for parts in (products, states)]
    factors, expected = np.full((3, B, T, K), np.nan), np.full((3, B * T, K), np.nan)
    value = mixture.value(copies(*near[0]), rows(x), near[1], expected)
    close([mixture.value(copies(*products), x, states, None, distances)], [value])
    close([mixture.value(copies(*products), x, states, factors, distances), factors], [value, expected])
    pushed = mixture.push(copies(*near[0]), near[1], expected)
    close([mixture.push(copies(*products), states, factors, distances)], [pushed])

    products, hhat = rng.normal(size=(2, B, T, K)), rng.normal(size=(B, T, K))
    shares = mixture.share(copies(*map(rows, products)), rows(hhat), expected)
    total = sum(there(share.reshape(B, T, K), d, other) for share, d in zip(shares, distances))
    close([mixture.gather(copies(*products), hhat, factors, distances, other)], [total])


def test_lstm(select, places, rng):
    T, other, distances = places
    lstm, x = select("lstm"), rng.normal(size=(2, B, T, K))
    products, states = rng.normal(size=(2, B, other, K)), rng.normal(size=(2, B, other, 2 * K))
    near = [[here(part, d, T) for part, d in zip(parts, distances)] for parts in (products, states)]
    factors, expected = np.full((5, B, T, K), np.nan), np.full((5, B * T, K), np.nan)
    mixed = lstm.mix(copies(*near[0]), rows(x), near[1], expected)
    close(lstm.mix(copies(*products), x, states, None, distances), mixed)
    close([*lstm.mix(copies(*products), x, states, factors, distances), factors], [*mixed, expected])
    pushed = lstm.push_mix(copies(*near[0]), near[1], expected)
    close(lstm.push_mix(copies(*products), states, factors, distances), pushed)

    products, (hhat, chat) = rng.normal(size=(2, B, T, K)), rng.normal(size=(2, B, T, K))
    shares = lstm.share(copies(*map(rows, products)), rows(hhat), rows(chat), expected)
    total = sum(there(share.reshape(B, T, 2 * K), d, other) for share, d in zip(shares, distances))
    close([lstm.gather(copies(*products), hhat, chat, factors, distances, other)], [total])


def test_other_gates_of_sequences(select, rng):
    gru, lstm = select("gru"), select("lstm")
    y, x = rng.normal(size=(2, 4, B, 3, K))
    h, w, product = rng.normal(size=(3, B, 3, K))
    wide, found = rng.normal(size=(B, 3, 2 * K)), []
    for form in (lambda array: array, rows):
        factors, gating = form(np.zeros((5, B, 3, K))), form(np.zeros((6, B, 3, K)))
        of = lambda array: form(array).copy()  # noqa: B023, E731
        keep, reset = gru.reset(of(y[:2]), of(x[:2]), of(h), factors)
        found.append([keep, reset.copy(), gru.blend(of(product), of(x[2]), keep, of(h), factors), factors])
        dy = of(y[:2])
        found[-1] += [gru.push_reset(dy, of(h), factors).copy(), gru.push_blend(of(w), dy, of(h), factors)]
        found[-1] += [gru.pull_blend(of(w), factors), *gru.pull_reset(of(product), of(w), factors)]
        found[-1] += [lstm.state(of(y), of(x), of(h), gating), gating, lstm.push_state(of(y), of(h), gating)]
        found[-1] += [*lstm.pull_state(of(wide), gating)]
    close(found[0], found[1])


@pytest.mark.parametrize("m", [1, 2])
def test_rnn(select, places, m, rng):
    T, other, distances = places
    rnn, x, distances = select("rnn"), rng.normal(size=(B, T, K)), distances[:m]
    products = rng.normal(size=(m, B, other, K))
    near = [here(part, d, T) for part, d in zip(products, distances)]
    factors, expected = np.full((1, B, T, K), np.nan), np.full((1, B * T, K), np.nan)
    value = rnn.value("tanh", copies(*near), rows(x), expected)
    close([rnn.value("tanh", copies(*products), x, factors, distances), factors], [value, expected])
    close([rnn.push(copies(*products), factors, distances)], [rnn.push(copies(*near), expected)])
    sent = rng.normal(size=(m, B, T, K))
    total = sum(there(part, d, other) for part, d in zip(sent, distances))
    close([rnn.gather(copies(*sent), distances, other)], [total])
