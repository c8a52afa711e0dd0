"""Approximate fixed points and their two gradients."""

import numpy as np
import pytest
import scipy.sparse

import implicitsolve as ims
from implicitsolve.adapters import approximate_fixed_point, elman
from tests.adapters.layers import make
from tests.adapters.test_elman import LENGTHS, backpropagate, close, draw, loop

NAMES = ["implicit_gru", "stencil_gru-wide", "implicit_rnn", "implicit_lstm", "elman"]


@pytest.mark.parametrize("rho", [6, 9])
@pytest.mark.parametrize("activation", ["tanh", "logistic", "relu"])
def test_enough_iterations_are_the_network_and_backpropagation(rho, activation, rng):
    params, x, h0 = draw(rng)
    network = elman(params, x, activation=activation, lengths=LENGTHS, h0=h0)
    found = approximate_fixed_point(network, rho)
    assert found.rho == rho
    close(found.x, network.substitute(), 1e-15)
    close(found.x, loop(params, x, h0, LENGTHS, activation), 1e-15)
    w = rng.standard_normal(found.x.shape)
    w[1, 1:] = w[2, 4:] = 0.0
    gradients = found.pull_back(w).gradients
    expected = backpropagate(params, x, h0, LENGTHS, w, activation)
    assert gradients.keys() == expected.keys()
    for name, value in expected.items():
        close(gradients[name], value, 1e-13)


@pytest.mark.parametrize("rho", [1, 2, 4])
def test_a_memory_of_so_many_positions(rho, rng):
    """The network restarted from the zero state rho steps back, or from h_0 where that is nearer."""
    params, x, h0 = draw(rng, T=7)
    found = approximate_fixed_point(elman(params, x, h0=h0), rho).x
    for t in range(7):
        begin = max(0, t + 1 - rho)
        start = h0 if t + 1 <= rho else np.zeros_like(h0)
        restarted = loop(params, x[:, begin : t + 1], start, [t + 1 - begin] * 3)
        close(found[:, t], restarted[:, -1], 1e-15)


@pytest.mark.parametrize("rho", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_the_iterations_written_out(name, rho, rng):
    case = make(name, scale=0.5)
    found = approximate_fixed_point(case.layer(), rho)
    w, direction = rng.standard_normal(found.x.shape), {k: rng.standard_normal(v.shape) for k, v in case.P.items()}
    moved = {key: value + 1e-30j * direction[key] for key, value in case.P.items()}

    def slope(x, times):  # by a complex step
        for _ in range(times):
            x = x - case.adapter.residual(moved, x, case.lengths)
        return (w * x).sum().imag / 1e-30

    for propagation, start, times in (("full", found.iterates[0], rho), ("skipped", found.iterates[-2], 1)):
        result = found.pull_back(w, propagation=propagation)
        assert result.propagation == propagation
        assert result.gradients.keys() == case.P.keys()
        total = sum((result.gradients[key] * direction[key]).sum() for key in direction)
        assert total == pytest.approx(slope(start, times), rel=1e-10)


def affine(kind="linearize", parameter="b"):
    """x = A x + b for one system; A as a matrix of the whole system, or products with it."""
    A, b = np.asarray([[0.5, 0.25], [0.0, -0.5]]), np.asarray([1.0, 2.0])
    J = np.eye(2) - A
    ways = {
        "linearize": {"linearize": lambda x: (J @ x - b, J)},
        "sparse": {"linearize": lambda x: (J @ x - b, scipy.sparse.csr_array(J))},
        "vjp": {"vjp": lambda x, w: J.T @ w},
        "none": {},
    }
    problem = ims.Problem(
        lambda x: J @ x - b,
        parameters={parameter: b},
        parameter_vjp=lambda x, w: {parameter: -w},
        fixed_point=True,
        name="affine",
        **ways[kind],
    )
    return problem, A, b


@pytest.mark.parametrize("kind", ["linearize", "sparse", "vjp"])
def test_an_affine_problem(kind):
    problem, A, b = affine(kind)
    start, w = np.asarray([3.0, -1.0]), np.asarray([1.0, -2.0])
    found = approximate_fixed_point(problem, 3, x0=start)
    np.testing.assert_allclose(found.x, b + A @ (b + A @ (b + A @ start)), rtol=1e-15)
    np.testing.assert_allclose(found.pull_back(w).gradients["b"], (np.eye(2) + A + A @ A).T @ w, rtol=1e-15)
    np.testing.assert_allclose(found.pull_back(w, propagation="skipped").gradients["b"], w, rtol=1e-15)
    np.testing.assert_array_equal(start, [3.0, -1.0])


def test_functions_that_change_their_arguments_do_no_harm():
    clean = affine("vjp")[0]
    buffer = np.empty(2)

    def residual(x):
        buffer[...] = clean.residual(x)
        x[...] = np.nan
        return buffer

    def spoiling(function):
        def called(x, w):
            value = function(x, w)
            x[...] = w[...] = np.nan
            return value

        return called

    problem = ims.Problem(
        residual,
        vjp=spoiling(clean.vjp),
        parameters=clean.parameters,
        parameter_vjp=spoiling(lambda x, w: {"b": -w.copy()}),
        fixed_point=True,
    )
    start, w = np.asarray([3.0, -1.0]), np.asarray([1.0, -2.0])
    found, expected = (approximate_fixed_point(p, 4, x0=start) for p in (problem, clean))
    np.testing.assert_array_equal(found.x, expected.x)
    np.testing.assert_array_equal(found.pull_back(w).gradients["b"], expected.pull_back(w).gradients["b"])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"problem": np.cos}, TypeError, "`problem` must be a Problem, got ufunc"),
        ({"problem": ims.Problem(np.cos)}, ValueError, "`problem` must be one of a fixed point"),
        ({"rho": 0}, ValueError, "`rho` must be at least 1, got 0"),
        ({"rho": 2.0}, TypeError, "`rho` must be an integer, got float"),
        ({"x0": [1.0, 2.0]}, TypeError, "`x0` must be an array, got list"),
        ({"x0": None}, TypeError, "`x0` is needed, since `problem` has no initial guess"),
    ],
)
def test_mistakes_are_named(changes, error, message):
    arguments = {"problem": affine()[0], "rho": 2, "x0": np.zeros(2)} | changes
    with pytest.raises(error, match=f"approximate_fixed_point: {message}"):
        approximate_fixed_point(**arguments)


@pytest.mark.parametrize(
    ("cotangent", "error", "message"),
    [
        ([1.0, 2.0], TypeError, "`cotangent` must be an array, got list"),
        (np.zeros(3), ValueError, r"`cotangent` must have shape \(2,\), got \(3,\)"),
        (np.zeros(2, np.float32), TypeError, "`cotangent` must have the dtype of x, float64, got float32"),
    ],
)
def test_cotangents_are_checked(cotangent, error, message):
    found = approximate_fixed_point(affine()[0], 2, x0=np.zeros(2))
    with pytest.raises(error, match=f"pull_back: {message}"):
        found.pull_back(cotangent)


def test_what_a_gradient_needs():
    found = approximate_fixed_point(affine("none")[0], 2, x0=np.zeros(2))
    np.testing.assert_array_equal(found.pull_back(np.ones(2), propagation="skipped").gradients["b"], 1.0)
    with pytest.raises(TypeError, match="pull_back: the problem needs `linearize` or `vjp` for propagation='full'"):
        found.pull_back(np.ones(2))
    with pytest.raises(ValueError, match="`propagation` must be one of 'full', 'skipped', got 'half'"):
        found.pull_back(np.ones(2), propagation="half")
    bare = approximate_fixed_point(ims.Problem(lambda x: x - 1.0, fixed_point=True), 2, x0=np.zeros(2))
    with pytest.raises(TypeError, match="the problem needs `parameter_vjp`"):
        bare.pull_back(np.ones(2))
