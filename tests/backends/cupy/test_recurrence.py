"""Recurrences on a device, in chunks, against the references and against themselves in one piece."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import adapters
from implicitsolve.adapters import kernels
from implicitsolve.adapters.kernels import Plan

pytestmark = pytest.mark.gpu

PIECES = 10**6  # longer than any run
RAGGED = (37, 20, 41, 1)
RNN = [
    *(("tanh", k, (1,), dtype) for k, dtype in ((1, "float64"), (5, "float64"), (16, "float32"), (40, "float64"))),
    *((rule, 5, (1, 3), "float64") for rule in ("logistic", "relu", "identity")),
    *((rule, 5, (1, 2), "float64") for rule in ("push", "pull")),
]
GRU = [
    *((rule, 5, (3,), "float64") for rule in ("value", "push", "pull")),
    *(("value", k, (1,), dtype) for k, dtype in ((1, "float64"), (16, "float32"))),
    ("pull", 32, (1,), "float64"),
]


@pytest.fixture
def chunks(device, monkeypatch):
    """A function that sets the length of chunks: at first 8."""
    from implicitsolve.backends.cupy import _recurrence

    def cut(length):
        monkeypatch.setattr(_recurrence, "LEAST_CHUNK", length)
        monkeypatch.setattr(_recurrence, "THREAD_BLOCKS", 10**6)

    cut(8)
    return cut


def plan_of(lengths, rng) -> Plan:
    """Runs of these lengths in both directions, with gaps between their rows."""
    lengths, ways = np.asarray(lengths), rng.permutation(np.resize([1, -1], len(lengths)))
    begins = np.cumsum(lengths + 2) - lengths - 2 + np.where(ways > 0, 0, lengths - 1)
    return Plan(lengths, begins + 1, begins, ways, int((lengths + 2).sum()))


def rnn_case(rule, k, lags, dtype, rng, *, lengths=RAGGED, scale=0.5):
    """Arguments of `kernels.rnn.run`."""
    plan = plan_of(lengths, rng)
    shapes = (len(lags), k, k), (plan.rows + 1, k), (plan.rows + 1, k), (len(lengths), max(lags), k)
    W, x, f, begin = (rng.normal(size=shape).astype(dtype) for shape in shapes)
    W *= scale / k**0.5
    return rule, W, (x, f) if rule in ("push", "pull") else (x,), begin, lags, plan


def gru_case(rule, k, lags, dtype, rng, *, lengths=RAGGED, scale=0.5):
    """Arguments of `kernels.gru_recurrence`."""
    plan = plan_of(lengths, rng)
    shapes = (2, k, k), (k, k), (6, plan.rows + 1, k), (plan.rows + 1, k), (len(lengths), *lags, k)
    gates, U, stack, x, begin = (rng.normal(size=shape).astype(dtype) for shape in shapes)
    gates *= scale / k**0.5
    U *= scale / k**0.5
    stack *= scale
    return rule, gates, U, (stack[:4],) if rule == "value" else (x, stack), begin, lags, plan


def on_device(device, argument):
    """Arrays in the arguments on the device."""
    if isinstance(argument, Plan) or not isinstance(argument, np.ndarray | tuple):
        return argument
    return tuple(on_device(device, a) for a in argument) if isinstance(argument, tuple) else device.asarray(argument)


def run(device, arguments, given=None):
    """What the device's kernel makes of NumPy's arrays, as such."""
    arguments = tuple(argument if argument is arguments[-2] else on_device(device, argument) for argument in arguments)
    given = on_device(device, given)
    if len(arguments) == 6:
        return kernels.rnn.select(arguments[1], "cupy", size=40).run(*arguments, given).get()
    return kernels.gru_recurrence.select(arguments[1], "cupy", size=40)(*arguments, given).get()


def reference(arguments, given=None):
    function = kernels.rnn.reference.run if len(arguments) == 6 else kernels.gru_recurrence.reference
    return function(*arguments, given)


def same_bits(a, b):
    np.testing.assert_array_equal(a.view(f"i{a.itemsize}"), b.view(f"i{b.itemsize}"))


def close(a, b, tolerance=64):
    assert a.dtype == b.dtype
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.finfo(b.dtype).eps * max(1, np.abs(b).max()))


@pytest.mark.parametrize("settings", [(rnn_case, *s) for s in RNN] + [(gru_case, *s) for s in GRU])
def test_chunks_make_no_difference(device, chunks, settings, rng):
    make, *settings = settings
    arguments = make(*settings, rng)
    found = run(device, arguments)
    close(found, reference(arguments))
    for length in (16, PIECES):
        chunks(length)
        same_bits(run(device, arguments), found)


def unsteady(scale):
    """A network that is driven weakly; chaotic at scale 3, about the spectral radius of its weights."""
    rng = np.random.default_rng(2)
    rule, W, (x,), *others = rnn_case("tanh", 16, (1,), "float32", rng, lengths=(120, 90), scale=scale)
    return rule, W, (0.1 * x,), *others


def test_chaos_takes_a_sweep_for_each_chunk(device, chunks):
    rule, W, x, begin, lags, plan = arguments = unsteady(3.0)
    found = run(device, arguments)
    chunks(PIECES)
    same_bits(run(device, arguments), found)
    away = run(device, (rule, W, x, begin * np.float32(1 + 1e-6), lags, plan)) - found
    assert np.abs(away).max() > 0.1  # the start is felt at the end


@pytest.mark.parametrize(("scale", "sweeps", "looks"), [(0.1, 3, 1), (3.0, 15, 2)])
def test_sweeps(device, double, chunks, scale, sweeps, looks):
    run(device, unsteady(scale))
    assert double.sites["recurrence_rnn"] == sweeps  # there are 15 chunks
    assert double.counts["to_host"] == looks + 1  # and the result


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("settings", [*((rnn_case, *RNN[i]) for i in (5, 7, 8)), (gru_case, *GRU[0])])
def test_what_is_not_finite_spreads_as_in_the_reference(device, chunks, settings, bad, rng):
    make, *settings = settings
    arguments = make(*settings, rng)
    plan = arguments[-1]
    arguments[-4][0][..., plan.sources[0] + 9 * plan.ways[0], :] = bad
    found = run(device, arguments)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(reference(arguments)))
    chunks(PIECES)
    same_bits(run(device, arguments), found)


@pytest.mark.parametrize("settings", [(rnn_case, *RNN[1]), (rnn_case, *RNN[4]), (gru_case, *GRU[0])])
def test_residuals_of_given_states(device, chunks, settings, rng):
    make, *settings = settings
    arguments = make(*settings, rng)
    h = reference(arguments)
    given = h + rng.normal(size=h.shape)
    close(run(device, arguments, given), reference(arguments, given))
    plan, found = arguments[-1], run(device, arguments)
    again = run(device, arguments, found)
    rows = np.concatenate([t + w * np.arange(n) for n, t, w in zip(plan.lengths, plan.targets, plan.ways)])
    assert np.abs(again[rows]).max() <= 4 * np.finfo(float).eps  # next to nothing: the same arithmetic
    given[plan.targets[2] + 9 * plan.ways[2], 1] = np.nan
    wrong = np.isnan(run(device, arguments, given))
    np.testing.assert_array_equal(wrong, np.isnan(reference(arguments, given)))
    assert 0 < wrong.sum() <= (1 + len(arguments[-2])) * h.shape[1]


def test_arrays_may_be_views(device, chunks, rng):
    rule, W, x, begin, lags, plan = rnn_case("push", 5, (1, 2), "float64", rng)
    wide = tuple(device.asarray(np.repeat(part, 2, axis=1))[:, ::2] for part in x)
    turned = device.asarray(np.ascontiguousarray(W.transpose(2, 0, 1))).transpose(1, 2, 0)
    kernel = kernels.rnn.select(turned, "cupy", size=5)
    found = kernel.run(rule, turned, wide, device.asarray(begin[..., ::-1].copy())[..., ::-1], lags, plan)
    close(found.get(), reference((rule, W, x, begin, lags, plan)))


@pytest.mark.parametrize("lags", [(3, 1), (20,)])
def test_what_no_kernel_does_the_reference_does(device, lags, rng):
    arguments = rnn_case("tanh", 3, lags, "float64", rng, lengths=(7, 4))
    close(run(device, arguments), reference(arguments))


@pytest.mark.parametrize("char", "fd")
@pytest.mark.parametrize("rule", ["push", "pull"])
@pytest.mark.parametrize(("parts", "k"), [(1, 1), (1, 37), (2, 3), (2, 40)])
def test_affine_recurrences(device, double, monkeypatch, char, rule, parts, k, rng):
    from implicitsolve.backends.cupy import _recurrence

    plan = plan_of(RAGGED, rng)
    shapes = (plan.rows + 1, parts * k), (parts**2 + 3, plan.rows + 1, k), (len(RAGGED), 1, parts * k)
    b, D, begin = (rng.normal(size=shape).astype(char) for shape in shapes)
    D *= 0.9
    expected = kernels.affine_recurrence.reference(rule, (b, D), begin, (1,), plan)
    wide = device.asarray(np.repeat(b, 2, axis=0))[::2], device.asarray(np.repeat(D, 2, axis=1))[:, ::2]
    function = kernels.affine_recurrence.select(wide[1], "cupy", size=k)
    for shortest, launches in ((32, 3), (5, 3), (PIECES, 1)):
        monkeypatch.setattr(_recurrence, "SHORTEST_AFFINE", shortest)
        double.reset()
        found = function(rule, wide, device.asarray(begin), (1,), plan).get()
        close(found, expected, 2000)
        assert double.sites["affine"] == launches


def layers(make, params, inputs, device, **options):
    """A layer on NumPy's arrays and on the device's."""
    on = {name: device.asarray(value) for name, value in params.items()}
    there = {name: device.asarray(value) if isinstance(value, np.ndarray) else value for name, value in options.items()}
    return make(params, inputs, **options), make(on, device.asarray(inputs), **there)


LAYERS = {
    "diagonal gru": ("diagonal_gru", {}, {"h0": (5,)}),
    "diagonal lstm": ("diagonal_lstm", {}, {"c0": (5,)}),
    "elman": ("elman", {"scale": 0.3}, {"h0": (5,)}),
    "rnn": ("implicit_rnn", {"lower": 0, "upper": 2, "scale": 0.3}, {"he": (2, 5)}),
    "gru": ("stencil_gru", {"offsets": (-1,)}, {"hs": (1, 5)}),
    "gru backwards": ("stencil_gru", {"offsets": (3,)}, {}),
}


def drawn(name, rng):
    """An adapter, its parameters, and its other arguments."""
    adapter, sizes, edges = LAYERS[name]
    draw = getattr(adapters, f"{adapter.removeprefix('implicit_')}_parameters")
    options = {key: rng.normal(size=shape) for key, shape in edges.items()}
    options |= {key: value for key, value in sizes.items() if key == "offsets"}
    return getattr(adapters, adapter), draw(3, 5, rng=rng, **{"scale": 0.5} | sizes), options


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("lengths", [None, (21, 30, 1)])
def test_layers(device, chunks, name, lengths, rng):
    make, params, options = drawn(name, rng)
    on_host, there = layers(make, params, rng.normal(size=(3, 30, 3)), device, lengths=lengths, **options)
    expected, found = ims.root(on_host), ims.root(there)
    assert found.success.all()
    close(found.x.get(), expected.x)
    inverse, other = (p.linearize(r.x)[1].approximate_inverse() for p, r in ((on_host, expected), (there, found)))
    H = rng.normal(size=expected.x.shape)
    close(there.residual(device.asarray(H)).get(), on_host.residual(H))
    b = rng.normal(size=expected.x.shape)
    w = rng.normal(size=b.shape)
    forth, back = other.matvec(device.asarray(b)).get(), other.rmatvec(device.asarray(w)).get()
    close(forth, inverse.matvec(b), 500)
    close(back, inverse.rmatvec(w), 500)
    assert abs((w * forth).sum() - (back * b).sum()) <= 1e-12 * np.abs(w * forth).sum()


@pytest.mark.parametrize("name", ["elman", "gru"])
def test_a_solve_asks_the_device_but_few_times(device, double, name, rng):
    make, params, options = drawn(name, rng)
    options = {key: value for key, value in options.items() if key == "offsets"}
    there = layers(make, params, rng.normal(size=(4, 200, 3)), device, **options)[1]
    double.reset()
    assert ims.root(there).success.all()
    assert double.counts["to_host"] <= 2  # the norms of F at the start and at the end
    assert double.counts["to_device"] <= 1
    assert double.sites[f"recurrence_{'rnn' if name == 'elman' else 'gru'}"] == 4  # two sweeps and two residuals
    assert double.counts["launch"] <= 12


@pytest.mark.parametrize("name", ["diagonal gru", "diagonal lstm"])
def test_all_positions_at_once(device, double, name, rng):
    make, params, options = drawn(name, rng)
    on_host, there = layers(make, params, rng.normal(size=(3, 200, 3)), device, lengths=(200, 1, 77), **options)
    double.reset()
    result = ims.root(there, method="causal-newton", stop=ims.NonlinearStop(atol=1e-12))
    steps = int(result.iterations.max())
    assert result.success.all()
    assert double.counts["to_host"] <= 2 * steps + 2
    assert double.sites["affine"] == 3 * steps
    assert double.counts["launch"] < 200 + 100 * steps  # and not so many for each of the positions
    close(result.x.get(), on_host.substitute(), 10000)


@pytest.mark.parametrize("lengths", [None, (21, 30, 1)])
def test_both_directions_of_a_guess_run_at_once(device, double, lengths, rng):
    gru = adapters.stencil_gru_parameters(3, 5, offsets=(-1, 1), rng=rng, scale=0.5)
    rnn = adapters.rnn_parameters(3, 5, lower=2, upper=1, rng=rng, scale=0.3)
    for make, params, options in (adapters.stencil_gru, gru, {"offsets": (-1, 1)}), (adapters.implicit_rnn, rnn, {}):
        pair = layers(make, params, rng.normal(size=(3, 30, 3)), device, lengths=lengths, **options)
        double.reset()
        on_host, there = (adapters.initial_guess(layer, "one-step") for layer in pair)
        assert double.counts["launch"] < 20  # of 30 steps
        close(there.get(), on_host)
