"""Derivatives by parameters that F takes, without a product written by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims

A, B = np.array([1.0, 2.0, 5.0]), 3.0


def by_name(x, a, b):
    return a * x + x**3 - b


def by_mapping(x, theta):
    return by_name(x, **theta)


def by_array(x, theta):
    return by_name(x, theta[:-1], theta[-1])


def by_number(x, b):
    return by_name(x, A, b)


PROBLEMS = {
    "names": (by_name, {"a": A, "b": B}),
    "a dict": (by_mapping, {"a": A, "b": B}),
    "an array": (by_array, np.append(A, B)),
    "a number": (by_number, B),
}


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("start", [np.ones(3), np.ones((2, 3))], ids=["one", "batch"])
def test_gradients_without_ceremony(name, start):
    F, parameters = PROBLEMS[name]
    problem = ims.Problem(F, parameters=parameters, batch_ndim=start.ndim - 1)
    result = ims.root(problem, start)
    x, slope = result.x, A + 3 * result.x**2
    w = np.linspace(1.0, 2.0, x.size).reshape(x.shape)
    by_a, by_b = -x / slope, 1 / slope
    found = ims.pull_back(problem, result, w).raise_for_status().gradients
    exact = {"a": (w * by_a).reshape(-1, 3).sum(axis=0), "b": (w * by_b).sum()}
    exact["theta"] = np.append(exact["a"], exact["b"])
    for key, value in found.items():
        assert np.shape(value) == np.shape(exact[key])
        np.testing.assert_allclose(value, exact[key], rtol=1e-6)
    for key, value in problem.parameters.items():
        t = ims.push_forward(problem, result, {key: np.ones_like(value)}).raise_for_status().tangent
        expected = {"a": by_a, "b": by_b, "theta": by_a + by_b}[key]
        np.testing.assert_allclose(t, np.broadcast_to(expected, x.shape), rtol=1e-6)


def test_a_sparse_system_and_some_parameters_alone():
    def heat(u, source, rate):
        return np.diff(u, 2, prepend=0.0, append=0.0) - rate * u**3 + source

    problem = ims.Problem(heat, parameters={"source": np.full(60, 0.1), "rate": 0.2})
    result = ims.root(problem, np.zeros(60))
    gradients = ims.pull_back(problem, result, np.ones(60), wrt=["rate"]).gradients
    assert list(gradients) == ["rate"]
    sides = [
        ims.root(replace(problem, parameters={**problem.parameters, "rate": r}), result.x).x for r in (0.201, 0.199)
    ]
    np.testing.assert_allclose(gradients["rate"], (sides[0] - sides[1]).sum() / 2e-3, rtol=1e-3)


def test_products_that_are_given_are_used():
    problem = ims.Problem(
        by_number, parameters=B, parameter_jvp=lambda x, t: 7 + 0 * x, parameter_vjp=lambda x, w: {"b": 5.0}
    )
    result = ims.root(problem, np.ones(3))
    assert ims.pull_back(problem, result, np.ones(3)).gradients == {"b": -5.0}
    np.testing.assert_allclose(
        ims.push_forward(problem, result, {"b": 1.0}).tangent, -7 / (A + 3 * result.x**2), rtol=1e-6
    )


@given(
    c=st.sampled_from([0.0, 1e-6, 1.0, 30.0, -2e3, 7e4, 4e5, -1e7, 1e8]),
    part=st.floats(0.0, 1.0),
    kind=st.sampled_from([float, np.float32]),
    reuses=st.booleans(),
    rounds=st.booleans(),
    along=st.sampled_from([(1.0, 1.0), (0.3, -0.007), (0.0, 2.6)]),
)
def test_properties_of_gradients_where_F_varies_fast_against_its_parameters(c, part, kind, reuses, rounds, along):
    largest = 1e8 if kind is float else 4e5  # float32 numbers are further than 1 apart from 2e7 on
    theta = (np.clip(c, -largest, largest) + np.array([0.3, 1.0])).astype(kind).astype(float)
    value, calls, x = np.zeros(2, kind), [], np.full(2, 0.7, kind)

    def F(z, t):  # zero at x and theta; the same array is returned each time
        calls.append(1)
        t = t.astype(kind) if rounds else t
        value[:] = z**3 - x**3 + z - x - part * (t - theta) - (np.sin(t) - np.sin(theta))
        return value if reuses else value.copy()

    problem = ims.Problem(F, parameters=theta)
    slope, by_theta = 3 * x**2 + 1, part + np.cos(theta)
    limit = 1e-4 if kind is float else 2e-2
    for solve, argument, d in ((ims.pull_back, np.ones(2), 1.0), (ims.push_forward, {"t": np.array(along)}, along)):
        calls.clear()
        found = solve(problem, x, argument)
        assert found.counts.residuals == len(calls)
        derivative = found.gradients["t"] if solve is ims.pull_back else found.tangent
        expected = by_theta / slope * d
        error = np.linalg.norm(derivative - expected) / np.linalg.norm(expected)
        assert not found.success or error <= limit, (found.status, error)
        assert found.success or abs(c) > 1e3


@given(
    large=st.floats(0.0, 5.0),
    decades=st.floats(1.0, 12.0),
    kind=st.sampled_from([float, np.float32]),
    varies=st.booleans(),
)
def test_properties_of_gradients_by_small_parameters_beside_large_ones(large, decades, kind, varies):
    theta = 10.0 ** np.array([large, large - decades])
    scale = theta[1] if varies else 1.0  # F varies over the size of the small parameter itself, or is linear in it

    def F(x, theta):
        small = scale * np.sin(theta[1] / scale) if varies else theta[1]
        return (x * np.array([1.0, 2.0]) - np.array([np.sin(theta[0]), small])).astype(kind)

    problem = ims.Problem(F, parameters=theta, structure=ims.BlockBanded(0, 0))
    result = ims.root(problem, np.ones(2, kind))
    found = ims.pull_back(problem, result, np.ones(2, kind))
    exact = [np.cos(theta[0]), 0.5 * (np.cos(1.0) if varies else 1.0)]
    error = np.linalg.norm(found.gradients["theta"] - exact) / np.linalg.norm(exact)
    assert not found.success or error <= (1e-4 if kind is float else 5e-2), (found.status, error)
    assert found.success or varies or kind is np.float32


@given(shift=st.floats(0.0, 10.0), size=st.floats(-6.0, 1.0), n=st.integers(2, 5), seed=st.integers(0, 2**32 - 1))
def test_properties_of_derivatives_where_the_terms_of_F_cancel(shift, size, n, seed):
    rng = np.random.default_rng(seed)
    A, x = rng.standard_normal((n, n)) / n + 3 * np.eye(n), 10.0**size * rng.standard_normal(n)
    b = A @ x + 10.0**shift
    problem = ims.Problem(lambda x, a: (A @ x + 10.0**shift) - b + a, parameters=0.0, structure=ims.Sparse(A != 0))
    tangent = ims.push_forward(problem, x, {"a": 1.0})  # no ValueError: the pattern is right
    expected = -np.linalg.solve(A, np.ones(n))
    assert not tangent.success or np.linalg.norm(tangent.tangent - expected) <= 3e-3 * np.linalg.norm(expected)


def test_complex_parameters_without_products_are_named():
    problem = ims.Problem(lambda x, theta: x - theta, parameters=np.array([1 + 1j]))
    with pytest.raises(TypeError, match="complex parameter 'theta'"):
        ims.pull_back(problem, np.array([1 + 1j]), np.ones(1, complex))
