"""The elementwise work of recurrent layers on a GPU: every function against the reference."""

import numpy as np
import pytest

from implicitsolve.adapters import kernels
from tests.backends.cupy.close import close

pytestmark = pytest.mark.gpu

SHAPES = [(1, 1), (3, 37), (2, 64), (1, 1, 5), (2, 3, 37)]  # rows alone, and sequences
SIZES = {"random": 1.0, "large": 1e3, "zero": 0.0}  # of the arguments of gates
PLACES = [(4, 4, (-1, 1)), (4, 3, (-1, 0)), (3, 4, (0, 1)), (1, 1, (-1, 1)), (3, 3, (-5, 2)), (1, 3, (2, -1))]
FACTORS = object()  # in place of those that a function writes


class Numbers:
    """Random arrays for both libraries: the same numbers, on the device perhaps with gaps between them."""

    def __init__(self, device, char, rng, size=1.0, form="packed"):
        self.device, self.char, self.rng, self.size, self.form = device, char, rng, size, form

    def arguments(self, *shape):
        """Of gates: of either sign and of this size, some of them zero."""
        signs = self.rng.choice([-1.0, 0.0, 1.0], shape) if self.size >= 1e3 else self.rng.standard_normal(shape)
        return (self.size * signs).astype(self.char)

    def states(self, *shape):
        """Some of them huge, if arguments are."""
        scale = np.where(self.rng.random(shape) < 0.1, self.size**2, 1.0) if self.size >= 1e3 else 1.0
        return (scale * self.rng.standard_normal(shape)).astype(self.char)

    def place(self, x):
        """On the device."""
        if isinstance(x, (list, tuple)) and any(isinstance(part, np.ndarray) for part in x):
            return type(x)(self.place(part) for part in x)
        if not isinstance(x, np.ndarray):
            return x
        *rows, n, k = x.shape
        if self.form == "packed":
            return self.device.asarray(x.copy())
        wide = self.device.zeros((*rows, n, k + 3) if self.form == "wide" else (*rows, k, n), dtype=x.dtype)
        view = wide[..., 1 : k + 1] if self.form == "wide" else wide.mT
        view[...] = self.device.asarray(x.copy())
        return view


def check(numbers, name, function, *arguments, factors=None):
    """Call a function of both implementations; `factors` is the shape of those that it writes."""
    kernel = getattr(kernels, name)
    compiled = kernel.select(numbers.device.zeros(1, dtype=numbers.char), "cupy", size=1)
    results = []
    for implementation, place in ((kernel.reference, _copied), (compiled, numbers.place)):
        own = [place(argument) for argument in arguments]
        if factors is not None:
            position = next(i for i, argument in enumerate(arguments) if argument is FACTORS)
            made = numbers.device if implementation is compiled else np
            own[position] = made.full(factors, np.nan, dtype=numbers.char)
        with np.errstate(all="ignore"):
            results.append([getattr(implementation, function)(*own)])
        if factors is not None:
            results[-1].append(own[position])
    close(results[1], results[0])


def _copied(x):
    if isinstance(x, (list, tuple)) and any(isinstance(part, np.ndarray) for part in x):
        return type(x)(_copied(part) for part in x)
    return x.copy() if isinstance(x, np.ndarray) else x


@pytest.fixture(params="fd")
def char(request):
    """Precision."""
    return request.param


@pytest.fixture(params=["packed", "wide", "transposed"])
def numbers(request, device, char, rng):
    """Random numbers, in arrays with and without gaps."""
    return Numbers(device, char, rng, form=request.param)


@pytest.fixture(params=SIZES)
def any_numbers(request, device, char, rng):
    """Random numbers, with arguments of gates far out."""
    return Numbers(device, char, rng, SIZES[request.param])


@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_mixture(any_numbers, m):
    for shape in SHAPES:
        _mixture(any_numbers, m, shape)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_mixture_of_arrays_with_gaps(numbers, m):
    _mixture(numbers, m, (2, 3, 37))
    _mixture(numbers, m, (3, 37))


def test_the_reference_mixes_more_neighbours(device):
    x = device.zeros(1)
    assert kernels.mixture.select(x, size=5, neighbours=4) is not kernels.mixture.reference
    assert kernels.mixture.select(x, size=5, neighbours=5) is kernels.mixture.reference


def _mixture(numbers, m, shape):
    products, x = [numbers.arguments(*shape) for _ in range(m)], numbers.arguments(m, *shape)
    states, factors = tuple(numbers.states(*shape) for _ in range(m)), (2 * m - 1, *shape)
    check(numbers, "mixture", "value", products, x, states)
    check(numbers, "mixture", "value", products, x, states, FACTORS, factors=factors)
    kept = numbers.states(*factors)
    check(numbers, "mixture", "push", products, states, kept)
    check(numbers, "mixture", "pull", products[0], states[0], kept)
    check(numbers, "mixture", "share", products, states[0], kept)


def test_gru(any_numbers):
    for shape in SHAPES:
        _gru(any_numbers, shape)


def test_gru_of_arrays_with_gaps(numbers):
    _gru(numbers, (2, 3, 37))
    _gru(numbers, (3, 37))


def _gru(numbers, shape):
    gates, x = numbers.arguments(2, *shape), numbers.arguments(2, *shape)
    y, w, hhat = numbers.arguments(*shape), numbers.states(*shape), numbers.states(*shape)
    keep, kept = numbers.rng.random(shape).astype(numbers.char), numbers.states(5, *shape)
    for out in ((), (FACTORS,)):
        factors = (5, *shape) if out else None
        check(numbers, "gru", "reset", gates, x, hhat, *out, factors=factors)
        check(numbers, "gru", "blend", y, x[0], keep, hhat, *out, factors=factors)
    check(numbers, "gru", "push_reset", gates, w, kept)
    check(numbers, "gru", "push_blend", y, gates, w, kept)
    check(numbers, "gru", "pull_blend", w, kept)
    check(numbers, "gru", "pull_reset", y, w, kept)


def test_lstm(any_numbers):
    for shape in SHAPES:
        _lstm(any_numbers, shape)


def test_lstm_of_arrays_with_gaps(numbers):
    _lstm(numbers, (2, 3, 37))
    _lstm(numbers, (3, 37))


def _lstm(numbers, shape):
    wide = (*shape[:-1], 2 * shape[-1])
    products, x = [numbers.arguments(*shape) for _ in range(2)], numbers.arguments(4, *shape)
    states = tuple(numbers.states(*wide) for _ in range(2))
    y, chat, hhat = numbers.arguments(4, *shape), numbers.states(*shape), numbers.states(*shape)
    for out in ((), (FACTORS,)):
        check(numbers, "lstm", "value", products, x[:2], states, *out, factors=(5, *shape) if out else None)
        check(numbers, "lstm", "state", y, x, chat, *out, factors=(6, *shape) if out else None)
    mixing, gating = numbers.states(5, *shape), numbers.states(6, *shape)
    check(numbers, "lstm", "push", products, states, mixing)
    check(numbers, "lstm", "push_state", y, chat, gating)
    check(numbers, "lstm", "pull_state", states[0], gating)
    check(numbers, "lstm", "pull_mix", hhat, chat, mixing)
    check(numbers, "lstm", "share", products, hhat, chat, mixing)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5])
def test_rnn(any_numbers, m):
    for shape in SHAPES:
        _rnn(any_numbers, m, shape)


def test_rnn_of_arrays_with_gaps(numbers):
    _rnn(numbers, 2, (2, 3, 37))


def _rnn(numbers, m, shape):
    products, x = [numbers.arguments(*shape) for _ in range(m)], numbers.arguments(*shape)
    for activation in kernels.ACTIVATIONS:
        check(numbers, "rnn", "value", activation, products, x)
        check(numbers, "rnn", "value", activation, products, x, FACTORS, factors=(1, *shape))
    check(numbers, "rnn", "push", products, numbers.states(1, *shape))


@pytest.mark.parametrize("places", PLACES, ids=str)
def test_neighbours_in_their_own_places(numbers, places):
    T, other, distances = places
    B, k, own = 2, 5, (2, T, 5)
    products, states = ([numbers.states(B, other, k) for _ in range(2)] for _ in range(2))
    wide, sent = [numbers.states(B, other, 2 * k) for _ in range(2)], [numbers.states(*own) for _ in range(2)]
    x, hhat, chat = numbers.states(2, *own), numbers.states(*own), numbers.states(*own)
    for kernel, function, near in (("mixture", "value", states), ("lstm", "value", wide)):
        check(numbers, kernel, function, products, x, near, None, distances)
        count = 3 if kernel == "mixture" else 5
        check(numbers, kernel, function, products, x, near, FACTORS, distances, factors=(count, *own))
    mixing = numbers.states(5, *own)
    check(numbers, "mixture", "push", products, states, mixing[:3], distances)
    check(numbers, "mixture", "gather", sent, hhat, mixing[:3], distances, other)
    check(numbers, "lstm", "push", products, wide, mixing, distances)
    check(numbers, "lstm", "gather", sent, hhat, chat, mixing, distances, other)
    check(numbers, "rnn", "value", "tanh", products, x[0], FACTORS, distances, factors=(1, *own))
    check(numbers, "rnn", "push", products, mixing[:1], distances)
    check(numbers, "rnn", "gather", sent, distances, other)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(device, bad):
    """A solver sees it, and backs off; and no entry but its own is touched."""
    h = np.ones((3, 5))
    h[1, 2] = bad
    for m in (2, 3):
        x = device.zeros((m, 3, 5))
        states = [device.asarray(h * (-1) ** j) for j in range(m)]
        found = kernels.mixture.select(x, size=5).value([x[0, ...]] * m, x, states)
        np.testing.assert_array_equal(np.isfinite(found.get()), np.isfinite(h))
    _, reset = kernels.gru.select(x, size=5).reset(x[:2, ...] + 0.0, x[:2, ...], device.asarray(h))
    np.testing.assert_array_equal(np.isfinite(reset.get()), np.isfinite(h))
    found = kernels.rnn.select(x, size=5).value("identity", [device.asarray(h)], x[0, ...])
    np.testing.assert_array_equal(found.get(), h)


@pytest.mark.parametrize("m", [2, 3])
def test_arguments_that_are_no_numbers_give_none(device, m):
    a = np.zeros((3, 5))
    a[1, 2] = np.nan
    x = device.zeros((4, 3, 5))
    states = [device.asarray(np.full((3, 5), float(j))) for j in range(m)]
    products = [device.asarray(a), *(x[j, ...] for j in range(1, m))]
    found = [kernels.mixture.select(x, size=5).value(products, x[:m, ...], states)]
    found += [kernels.rnn.select(x, size=5).value(phi, products[:1], x[0, ...]) for phi in kernels.ACTIVATIONS]
    for value in found:
        np.testing.assert_array_equal(np.isnan(value.get()), np.isnan(a))
