"""`implicitsolve.jax.layer`: the adapters' states and gradients, under JAX's transformations."""

from importlib import import_module

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import adapters

jax = pytest.importorskip("jax", exc_type=ImportError)
imj = import_module("implicitsolve.jax")
jnp = jax.numpy
check_grads = import_module("jax.test_util").check_grads

STOP, ADJOINT = ims.NonlinearStop(atol=1e-13), ims.LinearStop(rtol=1e-13)
EXACT = {"stop": STOP, "adjoint_stop": ADJOINT}

pytestmark = pytest.mark.usefixtures("compiled_quickly", "precision")


def case(name, T=4, B=2, k=3):
    """Parameters, inputs, boundary states, and what is not differentiated."""
    rng = np.random.default_rng(0)
    sizes = {"stencil_gru": {"offsets": (-2, 1)}, "implicit_rnn": {"lower": 2, "upper": 1}}.get(name, {})
    edges = {
        "implicit_gru": {"hs": (k,), "he": (B, k)},
        "stencil_gru": {"hs": (2, k), "he": (B, k)},
        "implicit_rnn": {"hs": (B, 2, k), "he": (k,)},
        "implicit_lstm": {"cs": (k,), "he": (B, k)},
        "elman": {"h0": (B, k)},
        "diagonal_gru": {"h0": (B, k)},
        "diagonal_lstm": {"h0": (k,), "c0": (B, k)},
        "lifted_net": {},
    }[name]
    fixed = {"offsets": (-2, 1)} if name == "stencil_gru" else {}
    if name == "lifted_net":
        params = {"A": rng.uniform(-0.3, 0.3, (k, k)), "B": rng.standard_normal((k, 2))}
        return params, rng.standard_normal((B, 2)), {}, {"activation": "logistic"}
    draw = getattr(adapters, f"{name.removeprefix('implicit_')}_parameters")
    params = draw(2, k, scale=0.3, rng=rng, **sizes)
    states = {side: rng.standard_normal(shape) for side, shape in edges.items()}
    return params, rng.standard_normal((B, T, 2)), states, {"lengths": np.array([T, T - 2]), **fixed}


SMALL = ["implicit_rnn", "elman", "lifted_net"]
LARGE = ["implicit_gru", "stencil_gru", "implicit_lstm", "diagonal_gru", "diagonal_lstm"]


@pytest.mark.parametrize("name", [*SMALL, *LARGE])
def test_states_and_gradients_are_those_of_the_adapter(name, rng):
    adapter = getattr(adapters, name)
    params, inputs, edges, fixed = case(name)
    is_lifted = name == "lifted_net"
    problem = adapter(**params, inputs=inputs, **fixed) if is_lifted else adapter(params, inputs, **edges, **fixed)
    expected = ims.root(problem, stop=STOP)
    weight = rng.standard_normal(expected.x.shape)

    def loss(params, inputs, edges):
        result = imj.layer(adapter, params, inputs, **edges, **fixed, **EXACT)
        return (weight * result.x).sum(), result

    gradients, result = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(params, inputs, edges)
    np.testing.assert_array_equal(result.x, expected.x)
    np.testing.assert_array_equal(result.status, expected.status)
    np.testing.assert_array_equal(result.residual_norm, expected.residual_norm)
    own = ims.pull_back(problem, expected, weight, stop=ADJOINT).gradients
    for key, gradient in (gradients[0] | {"inputs": gradients[1]} | gradients[2]).items():
        np.testing.assert_allclose(gradient, own[key], atol=1e-11, err_msg=key)


@pytest.mark.parametrize("propagation", ["full", "skipped"])
@pytest.mark.parametrize("name", ["elman", "implicit_rnn", "lifted_net"])
def test_approximate_fixed_points_are_those_of_the_adapter(name, propagation, rng):
    adapter = getattr(adapters, name)
    params, inputs, edges, fixed = case(name)
    is_lifted = name == "lifted_net"
    problem = adapter(**params, inputs=inputs, **fixed) if is_lifted else adapter(params, inputs, **edges, **fixed)
    expected = adapters.approximate_fixed_point(problem, 3)
    weight = rng.standard_normal(expected.x.shape)

    def loss(params, inputs, edges):
        x = imj.approximate_fixed_point(adapter, params, inputs, 3, propagation=propagation, **edges, **fixed)
        return (weight * x).sum(), x

    gradients, x = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(params, inputs, edges)
    np.testing.assert_allclose(x, expected.x, atol=1e-13)
    own = expected.pull_back(weight, propagation=propagation).gradients
    for key, gradient in (gradients[0] | {"inputs": gradients[1]} | gradients[2]).items():
        np.testing.assert_allclose(gradient, own[key], atol=1e-12, err_msg=key)


def test_arguments_of_approximate_fixed_points():
    params, inputs, _, _ = case("elman")
    with pytest.raises(ValueError, match="`rho`"):
        imj.approximate_fixed_point(adapters.elman, params, inputs, 0)
    with pytest.raises(ValueError, match="`propagation`"):
        imj.approximate_fixed_point(adapters.elman, params, inputs, 1, propagation="none")
    with pytest.raises(TypeError, match="`adapter`"):
        imj.approximate_fixed_point(len, params, inputs, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SMALL, *LARGE])
def test_derivatives_to_second_order(name):
    params, inputs, edges, fixed = case(name, T=3, k=2)

    def states(params, inputs, edges):
        return imj.layer(getattr(adapters, name), params, inputs, **edges, **fixed, **EXACT).x

    check_grads(jax.jit(states), (params, inputs, edges), 2)


def test_products_with_a_hessian(rng):
    """By differences of gradients, of the quickest layer to compile that has boundary states."""
    params, inputs, edges, fixed = case("elman", T=3, k=2)

    def loss(point):
        return (imj.layer(adapters.elman, point[0], point[1], **point[2], **fixed, **EXACT).x ** 2).sum()

    point, slope = (params, inputs, edges), jax.jit(jax.grad(loss))
    step = jax.tree.map(lambda value: rng.standard_normal(value.shape), point)
    found = jax.jit(lambda point: jax.jvp(slope, (point,), (step,))[1])(point)
    plus, minus = (slope(jax.tree.map(lambda x, v, h=h: x + h * v, point, step)) for h in (1e-5, -1e-5))
    jax.tree.map(lambda a, b, c: np.testing.assert_allclose(a, (b - c) / 2e-5, atol=1e-7), found, plus, minus)


def test_vmap_is_a_batch():
    params, _, _, _ = case("elman")
    inputs = np.random.default_rng(1).standard_normal((3, 2, 5, 2))
    lengths = np.array([[5, 1, 3], [2, 4, 5]]).T
    h0 = np.ones(3)
    several = {name: np.stack([value, -value]) for name, value in params.items()}

    def states(params, inputs, lengths):
        return imj.layer(adapters.elman, params, inputs, lengths=lengths, h0=h0, **EXACT).x

    def one_by_one(params):
        layers = [adapters.elman(params, u, lengths=n, h0=h0) for u, n in zip(inputs, lengths)]
        return np.stack([layer.substitute() for layer in layers])

    mapped = jax.vmap(states, (None, 0, 0))
    np.testing.assert_allclose(jax.jit(mapped)(params, inputs, lengths), one_by_one(params), atol=1e-12)
    nested = jax.vmap(jax.vmap(states, (None, 0, 0)), (None, 1, 1), 1)(params, inputs[:, :, None], lengths[..., None])
    np.testing.assert_allclose(nested[:, :, 0], one_by_one(params), atol=1e-12)
    both = jax.vmap(mapped, (0, None, None))(several, inputs, lengths)
    for found, key in zip(both, (0, 1), strict=True):
        own = one_by_one({name: value[key] for name, value in several.items()})
        np.testing.assert_allclose(found, own, atol=1e-12)
    each = jax.vmap(jax.grad(lambda *given: (states(*given) ** 2).sum()), (None, 0, 0))(params, inputs, lengths)
    whole = jax.grad(lambda params: (mapped(params, inputs, lengths) ** 2).sum())(params)
    for name, gradient in whole.items():
        np.testing.assert_allclose(each[name].sum(axis=0), gradient, atol=1e-10)


def test_one_sequence_in_single_precision():
    params, inputs, _, _ = case("implicit_gru")
    params = {name: value.astype(np.float32) for name, value in params.items()}
    u = jnp.asarray(inputs[0], jnp.float32)
    result = jax.jit(lambda n: imj.layer(adapters.implicit_gru, params, u, lengths=n))(3)
    assert result.x.shape == (4, 3)
    assert result.x.dtype == result.target.dtype == np.float32
    assert result.success.shape == ()
    assert result.success
    assert not result.x[3].any()


def test_padding_has_no_gradient():
    params, inputs, _, _ = case("elman")
    inputs[1, 2:] = np.nan
    slope = jax.grad(lambda u: imj.layer(adapters.elman, params, u, lengths=[4, 2]).x.sum())(inputs)
    assert np.isfinite(slope).all()
    assert not slope[1, 2:].any()


def test_failures_are_reported_under_jit_and_their_gradients_are_nan():
    params, inputs, _, _ = case("implicit_gru")
    few = {"method": ims.NewtonKrylov(retry=False), "stop": ims.NonlinearStop(atol=1e-12, max_iterations=1)}
    run = jax.jit(lambda inputs: imj.layer(adapters.implicit_gru, params, inputs, **few))
    result = run(30 * inputs)
    assert not result.success.any()
    assert (result.residual_norm > result.target).all()
    none = {"adjoint_method": ims.GMRES(), "adjoint_stop": ims.LinearStop(rtol=1e-12, max_iterations=1)}
    params, inputs, _, _ = case("implicit_rnn")
    for mode in (jax.jacrev, jax.jacfwd):
        slope = mode(lambda a: imj.layer(adapters.implicit_rnn, params, a * inputs, **none).x.sum())(1.0)
        assert np.isnan(slope)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p, u: imj.layer(ims.root, p, u), TypeError, "`adapter` must be one of implicitsolve.adapters"),
        (lambda p, u: imj.layer(adapters.implicit_gru, p, u[..., :1]), ValueError, r"`W\w*` must have shape"),
        (lambda p, u: imj.layer(adapters.implicit_gru, p, u, he=np.ones(4)), ValueError, "`he` must have shape"),
        (lambda p, u: imj.layer(adapters.implicit_gru, p, u, lengths=[5, 1]), ValueError, "`lengths` must be from 1"),
        (lambda p, u: imj.layer(adapters.implicit_gru, p, u.astype(int)), TypeError, "float32 or float64"),
        (lambda p, u: imj.layer(adapters.implicit_gru, p, u, colour=1), TypeError, "colour"),
        (lambda p, u: imj.layer(adapters.implicit_gru, p, u, method="newton"), ValueError, "layer: `method`"),
    ],
)
def test_wrong_arguments_raise_at_once(call, error, message):
    params, inputs, _, _ = case("implicit_gru")
    for run in (call, lambda p, u: jax.jit(lambda: call(p, u))()):
        with pytest.raises(error, match=message):
            run(params, jnp.asarray(inputs))
