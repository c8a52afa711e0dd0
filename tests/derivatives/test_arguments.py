"""Mistakes in the arguments of `pull_back` and `push_forward`, and which gradients are asked for."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse.linalg as spla

from implicitsolve import Problem, pull_back, push_forward, root
from tests.derivatives.layer import Layer


def test_wrong_arguments_raise_and_are_named():
    layer = Layer()
    problem, solution = layer.solved()
    plain = Problem(layer.residual, jvp=layer.jvp)
    with pytest.raises(TypeError, match="`vjp`"):
        pull_back(plain, solution, layer.cotangent)
    with pytest.raises(TypeError, match="`parameter_jvp`"):
        push_forward(plain, solution, {})
    with pytest.raises(TypeError, match="`parameter_vjp`"):
        pull_back(Problem(layer.residual, vjp=layer.vjp, parameters=layer.parameters), solution, layer.cotangent)
    with pytest.raises(ValueError, match=r"pull_back: `cotangent`.*\(7,\).*\(3,\)"):
        pull_back(problem, solution, np.ones(3))
    with pytest.raises(TypeError, match="`cotangent`"):
        pull_back(problem, solution, "ones")
    with pytest.raises(TypeError, match="`cotangent`"):
        pull_back(problem, solution, 1j * np.ones(7))
    with pytest.raises(ValueError, match=r"`tangents`.*'d'"):
        push_forward(problem, solution, {"d": np.ones(7)})
    with pytest.raises(TypeError, match="`result`"):
        pull_back(problem, "x", layer.cotangent)
    with pytest.raises(TypeError, match="`method`"):
        pull_back(problem, solution, layer.cotangent, method="gmres")
    with pytest.raises((TypeError, ValueError), match="`stop`"):
        pull_back(problem, solution, layer.cotangent, stop=1e-6)
    with pytest.raises(ValueError, match="`M`"):
        pull_back(problem, solution, layer.cotangent, M=np.eye(3))
    with pytest.raises(ValueError, match="pull_back: `x0`"):
        pull_back(problem, solution, layer.cotangent, x0=np.ones(3))
    with pytest.raises(TypeError, match="Problem"):
        pull_back(layer.residual, solution, layer.cotangent)


def differentiate(layer, problem, solution, name):
    """In the direction that uses the function of that name."""
    if name in ("jvp", "parameter_jvp"):
        return push_forward(problem, solution, layer.tangents)
    return pull_back(problem, solution, layer.cotangent)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("vjp", lambda x, w: None, TypeError),
        ("vjp", lambda x, w: w[:3], ValueError),
        ("vjp", lambda x, w: 1j * w, TypeError),
        ("parameter_vjp", lambda x, w: None, TypeError),
        ("parameter_vjp", lambda x, w: [w], TypeError),
        ("parameter_vjp", lambda x, w: {"A": w}, (TypeError, ValueError)),
        ("parameter_jvp", lambda x, t: None, TypeError),
        ("parameter_jvp", lambda x, t: x[:3], ValueError),
        ("jac", lambda x: spla.LinearOperator((7, 7), matvec=lambda v: v), TypeError),
    ],
    ids=range(9),
)
def test_wrong_values_are_named(name, value, error):
    layer = Layer()
    _, solution = layer.solved()
    functions = {
        "jvp": layer.jvp,
        "vjp": layer.vjp,
        "parameter_vjp": layer.parameter_vjp,
        "parameter_jvp": layer.parameter_jvp,
        name: value,
    }
    problem = Problem(layer.residual, parameters=layer.parameters, **functions)
    match = "rmatvec|adjoint" if name == "jac" else f"`{name}`"
    with pytest.raises(error, match=match):
        differentiate(layer, problem, solution, name)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, StopIteration])
@pytest.mark.parametrize("name", ["vjp", "parameter_vjp", "jvp", "parameter_jvp"])
def test_exceptions_pass_unchanged(kind, name):
    layer, error = Layer(), kind("boom")

    def bomb(*_):
        raise error

    _, solution = layer.solved()
    functions = {n: getattr(layer, n) for n in ("jvp", "vjp", "parameter_vjp", "parameter_jvp")} | {name: bomb}
    problem = Problem(layer.residual, parameters=layer.parameters, **functions)
    with pytest.raises(kind) as caught:
        differentiate(layer, problem, solution, name)
    assert caught.value is error


@pytest.mark.parametrize("is_told", [False, True])
def test_only_the_gradients_that_are_wanted(is_told):
    layer = Layer(batch=(3,))
    problem, solution = layer.solved()
    asked = []

    def parameter_vjp(x, w, wrt=None):
        asked.append(wrt)
        gradients = layer.parameter_vjp(x, w)
        return gradients if wrt is None else {name: gradients[name] for name in wrt}

    expected = pull_back(problem, solution, layer.cotangent).gradients
    if is_told:
        problem = replace(problem, parameter_vjp=parameter_vjp)
    for wrt in (["A"], ("b", "c"), {"b": 1}, ()):
        result = pull_back(problem, solution, layer.cotangent, wrt=wrt)
        assert result.gradients.keys() == set(wrt)
        for name in wrt:
            np.testing.assert_array_equal(result.gradients[name], expected[name])
    assert asked == ([{"A"}, {"b", "c"}, {"b"}] if is_told else [])  # nobody is asked for nothing
    assert pull_back(problem, solution, layer.cotangent).gradients.keys() == expected.keys()


def test_without_gradients_no_parameter_vjp_is_needed():
    layer = Layer()
    problem, solution = layer.solved()
    problem = replace(problem, parameter_vjp=None)
    assert pull_back(problem, solution, layer.cotangent, wrt=()).gradients == {}
    for wrt in (None, ["A"]):
        with pytest.raises(TypeError, match="`parameter_vjp`"):
            pull_back(problem, solution, layer.cotangent, wrt=wrt)


def test_wrong_names_are_named():
    layer = Layer()
    problem, solution = layer.solved()
    with pytest.raises(ValueError, match=r"`wrt` must name parameters of the problem, got \['X'\]"):
        pull_back(problem, solution, layer.cotangent, wrt=["A", "X"])
    for wrt in ("A", 3, [3]):
        with pytest.raises(TypeError, match="`wrt` must be a collection of names"):
            pull_back(problem, solution, layer.cotangent, wrt=wrt)


@pytest.mark.parametrize("c", np.linspace(0.5, 3, 20))
def test_differences_at_roots_were_as_long_as_those_of_float32(c):
    problem = Problem(
        lambda x: x + 0.3 * x**2 - c, parameters={"c": c}, parameter_jvp=lambda x, t: -t["c"], structure="none"
    )
    result = root(problem, np.zeros(1))
    tangent = push_forward(problem, result, {"c": np.ones(1)}).tangent
    np.testing.assert_allclose(tangent, 1 / (1 + 0.6 * result.x), rtol=1e-6)


def test_tangents_without_names_were_not_called_so():
    with pytest.raises(TypeError, match="`tangents` must map names to arrays, got list"):
        push_forward(Problem(lambda x: x, parameter_jvp=lambda x, tangents: x), np.ones(1), [np.ones(1)])
