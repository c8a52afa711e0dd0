"""The compiled gates: accuracy of their functions, any layout of their arrays, and agreement with the references."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba")

from implicitsolve import adapters
from implicitsolve.adapters import kernels
from implicitsolve.adapters.kernels._formulas import push_reset
from implicitsolve.backends.numba import _gates, _gates_loops
from implicitsolve.backends.numba._gates_loops import Loop
from implicitsolve.kernels import _contract

DTYPES = ["float32", "float64"]
FAMILIES = ["mixture", "gru", "lstm", "rnn"]


functions = Loop(lambda a: (_gates_loops.tanh(a), _gates_loops.gate(-a)), "tanh and logistic")


def tanh_and_logistic(a):
    """The functions of numbers that gates consist of."""
    found = np.empty_like(a), np.empty_like(a)
    functions(found, (a,))
    return found


@pytest.fixture(params=DTYPES)
def dtype(request):
    return np.dtype(request.param)


def compiled(name):
    return getattr(kernels, name).select(np.empty(0), "numba", size=1)


def ulps(actual, expected):
    """Largest error in units in the last place, where the exact result is a normal number."""
    exact = expected.astype(actual.dtype)
    normal = np.abs(exact) > np.finfo(actual.dtype).smallest_normal
    return float((np.abs(actual - expected) / np.spacing(np.abs(exact)))[normal].max())


@pytest.mark.parametrize("bound", [1e-30, 1e-3, 0.4, 1.0, 20.0, 80.0, 700.0])
def test_functions_are_accurate(bound, dtype):
    wide = np.longdouble if dtype == np.float64 else np.float64
    a = np.linspace(-bound, bound, 20001).astype(dtype)[None]
    exact = a.astype(wide)
    tanh, logistic = tanh_and_logistic(a)
    with np.errstate(over="ignore"):
        assert ulps(tanh, np.tanh(exact)) < 3.0
        assert ulps(logistic, 1 / (1 + np.exp(-exact))) < 2.5


def test_functions_keep_what_is_no_number_and_have_limits(dtype):
    a = np.asarray([[np.nan, np.inf, -np.inf, np.finfo(dtype).max, -np.finfo(dtype).max, 0.0]], dtype)
    tanh, logistic = tanh_and_logistic(a)
    np.testing.assert_array_equal(tanh, np.tanh(a))
    np.testing.assert_allclose(logistic, [[np.nan, 1, 0, 1, 0, 0.5]], rtol=0, atol=np.finfo(dtype).smallest_normal)


class Spread:
    """Arrays with gaps between their rows, or between their entries, filled with a mark."""

    def __init__(self, rng, dtype, gap, step):
        self.rng, self.dtype, self.gap, self.step = rng, dtype, gap, step
        self.made = []

    def __call__(self, *shape):
        *front, k = shape
        memory = np.full((*front, k * self.step + self.gap), 7.0, self.dtype)
        array = memory[..., : k * self.step : self.step]
        array[...] = self.rng.normal(size=shape)
        self.made.append((memory, array))
        return array

    def check_gaps(self):
        for memory, array in self.made:
            array[...] = 7.0
            assert (memory == 7.0).all()


def everything(make, n, k, m, select):
    """All functions of all families on new arrays; what they return and write."""
    found = []
    mixture, gru, lstm, rnn = (select(name) for name in FAMILIES)
    x, states, factors = make(m, n, k), tuple(make(n, k) for _ in range(m)), make(2 * m - 1, n, k)
    new = lambda count: tuple(make(n, k) for _ in range(count))  # noqa: E731
    found += [mixture.value(new(m), x, states), mixture.value(new(m), x, states, factors), factors]
    found += [mixture.push(new(m), states, factors), *mixture.share(new(m), make(n, k), factors)]
    hhat, arguments = mixture.pull(make(n, k), make(n, k), factors)
    found += [hhat, *arguments]
    factors, y, hhat, w = make(5, n, k), make(2, n, k), make(n, k), make(n, k)
    gates, reset = gru.reset(y, make(2, n, k), hhat, factors)
    found += [gates.copy(), reset, gru.blend(make(n, k), make(n, k), gates, hhat, factors), factors]
    found += [*gru.reset(make(2, n, k), make(2, n, k), hhat), gru.blend(make(n, k), make(n, k), gates, hhat)]
    y = make(2, n, k)
    found += [gru.push_reset(y, hhat, factors), gru.push_blend(make(n, k), y, hhat, factors)]
    found += [gru.pull_blend(w, factors), *gru.pull_reset(make(n, k), w, factors)]
    states, mixing, gating = (make(n, 2 * k), make(n, 2 * k)), make(5, n, k), make(6, n, k)
    found += [*lstm.value(new(2), make(2, n, k), states), *lstm.value(new(2), make(2, n, k), states, mixing), mixing]
    found += [lstm.state(make(4, n, k), make(4, n, k), hhat), lstm.state(make(4, n, k), make(4, n, k), hhat, gating)]
    found += [gating, *lstm.push(new(2), states, mixing), lstm.push_state(make(4, n, k), hhat, gating)]
    found += [*lstm.pull_state(make(n, 2 * k), gating), *lstm.pull_mix(hhat, w, mixing)]
    found += [*lstm.share(new(2), hhat, w, mixing)]
    for name in ("tanh", "logistic", "relu", "identity"):
        factors = make(1, n, k)
        found += [rnn.value(name, new(m), hhat), rnn.value(name, new(m), hhat, factors), factors]
    found.append(rnn.push(new(m), factors))
    return [np.array(array) for array in found]


@pytest.mark.parametrize(
    ("dtype", "m"), [pytest.param("float32", 2, marks=pytest.mark.slow), ("float64", 2), ("float64", 3)]
)
@given(
    n=st.integers(0, 5),
    k=st.integers(1, 70),
    gap=st.integers(0, 3),
    step=st.sampled_from([1, 1, 1, 2]),
    seed=st.integers(0, 100),
)
def test_any_size_and_layout_agrees_with_the_reference(dtype, m, n, k, gap, step, seed):
    spread = Spread(np.random.default_rng(seed), dtype, gap, step)
    with np.errstate(all="ignore"):
        ours = everything(spread, n, k, m, compiled)
        spread.check_gaps()
        theirs = everything(Spread(np.random.default_rng(seed), dtype, 0, 1), n, k, m, reference)
    tolerance = 64 * np.finfo(dtype).eps
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == dtype
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * np.abs(other).max(initial=1.0))


def reference(name):
    return getattr(kernels, name).reference


def test_a_number_is_the_same_in_any_place(dtype, rng):
    """In a vector, in what is left behind the vectors, alone: so no row depends on those around it."""
    a = rng.normal(size=(3, 53)).astype(dtype)
    whole, _ = tanh_and_logistic(a)
    for i, j in np.ndindex(a.shape):
        one = a[i : i + 1, j : j + 1].copy()
        assert tanh_and_logistic(one)[0][0, 0] == whole[i, j]


def test_layouts_share_their_code(dtype):
    for shape in ((4, 40), (1, 40), (4, 3)):
        w, y, factors = np.ones(shape, dtype), np.ones((2, *shape), dtype), np.ones((5, *shape), dtype)
        compiled("gru").push_reset(y, w, factors)
        compiled("gru").push_reset(y[:, :, ::2], w[:, ::2], factors[:, :, ::2])
    assert [key for key in _gates.loop_of(push_reset).compiled if key[:2] == (dtype.char, 2)] == [(dtype.char, 2, 0, 1)]


def test_threads_may_share_the_kernels(dtype, rng):
    a = rng.normal(size=(40, 100)).astype(dtype)
    expected = np.tanh(a)

    def run(_):
        return tanh_and_logistic(a)[0]

    with ThreadPoolExecutor(4) as pool:
        for value in pool.map(run, range(32)):
            np.testing.assert_allclose(value, expected, rtol=8 * np.finfo(dtype).eps)


@pytest.mark.parametrize("name", FAMILIES)
def test_only_size_and_library_choose(name, monkeypatch):
    kernel = getattr(kernels, name)
    assert kernel.select(np.empty(0), size=31) is kernel.reference
    assert kernel.select(np.empty(0), size=32) is compiled(name)
    assert kernel.select(np.empty(0, ">f8"), size=32) is kernel.reference
    assert kernel.select(np.empty(0, np.longdouble), size=32) is kernel.reference
    strict = pytest.importorskip("array_api_strict")
    assert kernel.select(strict.empty(0), size=32) is kernel.reference
    monkeypatch.setattr(_contract, "is_installed", lambda backend: False)
    assert kernel.select(np.empty(0), size=32) is kernel.reference


LAYERS = {
    "implicit_gru": (adapters.implicit_gru, adapters.gru_parameters, {}),
    "stencil_gru": (adapters.stencil_gru, adapters.stencil_gru_parameters, {"offsets": (-2, -1, 1)}),
    "implicit_lstm": (adapters.implicit_lstm, adapters.lstm_parameters, {}),
    "implicit_rnn": (adapters.implicit_rnn, adapters.rnn_parameters, {}),
    "elman": (adapters.elman, adapters.elman_parameters, {}),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("lengths", [None, [3, 5]])
def test_layers_are_the_same_with_and_without(name, lengths, monkeypatch, rng):
    build, draw, options = LAYERS[name]
    params, inputs = draw(4, 40, scale=0.3, rng=rng, **options), rng.normal(size=(2, 5, 4))
    found = []
    for pays in (True, False):
        for family in FAMILIES:
            monkeypatch.setitem(getattr(kernels, family).pays, "numba", lambda pays=pays, **sizes: pays)
        layer = build(params, inputs, lengths=lengths, **options)
        x = layer.initial_guess("one-step")
        F, J = layer.linearize(x)
        v = np.cos(np.arange(x.size)).reshape(x.shape) * (np.any(x, axis=2, keepdims=True))
        found.append([x, F, layer.residual(x), J.matvec(v), J.rmatvec(v), *layer.parameter_vjp(x, v).values()])
        if layer.halves is not None:
            for half, other in ((layer.halves.eliminated, x[:, 1::2]), (layer.halves.kept, x[:, 0::2])):
                F, coupling = half.linearize(other)
                found[-1] += [F, half.apply(other), coupling.matvec(np.cos(other)), coupling.rmatvec(np.cos(F))]
        found[-1].append(
            layer.parameter_jvp(x, {"inputs": np.sin(inputs)} | {name: 0.5 * W for name, W in params.items()})
        )
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-13 * np.abs(other).max(initial=1.0))
