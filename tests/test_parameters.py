"""How a residual gets its parameters, and what it is with other values of them."""

from dataclasses import replace

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve._parameters import Parametrized

a = 2.0


def inside():
    a = 2.0
    return lambda x: a * x - 1.0


@pytest.mark.parametrize("F", [lambda x, a, b=1: a * x - b, lambda x, p: p["a"] * x - p["b"]], ids=["named", "mapping"])
def test_F_is_called_with_its_parameters(F):
    problem = ims.Problem(F, parameters={"a": 2.0, "b": 1.0})
    assert np.allclose(ims.root(problem, np.zeros(2)).x, 0.5)
    assert np.allclose(ims.root(replace(problem, parameters={"a": 4.0, "b": 1.0}), np.zeros(2)).x, 0.25)
    assert problem.residual.at({"a": 8.0})(1.0) == 7.0


@pytest.mark.parametrize("F", [lambda x: a * x - 1.0, inside()], ids=["global", "inside"])
def test_variables_around_F_are_read_by_their_names(F):
    residual = ims.Problem(F, parameters={"a": 2.0}).residual
    assert residual(1.0) == 1.0
    assert residual.at({"a": 4.0})(1.0) == 3.0
    assert residual(1.0) == 1.0


def test_an_array_is_the_second_argument():
    problem = ims.Problem(lambda x, theta: x - theta, parameters=np.ones(3))
    assert list(problem.parameters) == ["theta"]
    assert np.allclose(ims.root(problem, np.zeros(3)).x, 1.0)


def test_F_that_knows_nothing_of_its_parameters_is_left_as_it_is():
    problem = ims.Problem(np.cos, parameters={"a": 2.0})
    assert not isinstance(problem.residual, Parametrized)
    with pytest.raises(TypeError, match="mapping"):
        ims.Problem(lambda x: x, parameters=2.0)


STATE, SIX = {"u": np.ones((2, 3)), "w": {"p": 1.0, "q": [0.5, 2.0]}}, np.arange(1.0, 7).reshape(2, 3)


def of_parts(s, a):
    w = {"p": s["w"]["p"] - s["u"].sum(), "q": np.log(s["w"]["q"]) - [0.0, 1.0]}
    return {"w": w, "u": s["u"] ** 2 - a}


@pytest.mark.parametrize("F", [of_parts, lambda s: of_parts(s, SIX)], ids=["argument", "read"])
@pytest.mark.parametrize("derivatives", [None, "trace"])
def test_a_state_may_be_a_dict_of_arrays(F, derivatives):
    pytest.importorskip("jax") if derivatives else None
    given = {"bounds": ({"w": {"q": 0.0}}, None), "x_scale": {"u": 2.0}, "derivatives": derivatives}
    result = ims.root(F, STATE, parameters={"a" if F is of_parts else "SIX": SIX}, **given)
    np.testing.assert_allclose(result.parts["u"] ** 2, SIX)
    np.testing.assert_allclose(result.parts["w"]["q"], np.exp([0, 1]))
    (gradient,) = ims.pull_back(result, {"u": np.ones((2, 3))}).gradients.values()
    np.testing.assert_allclose(gradient, 0.5 / np.sqrt(SIX))
    assert result.problem.names[6:] == ("w[p][0]", "w[q][0]", "w[q][1]")
    assert ims.root(F, previous=result, parameters={"a": SIX}).parts.keys() == STATE.keys()


@pytest.mark.parametrize(("F", "given"), [
    (lambda s: {"u": s["u"]}, {}), (lambda s: s | {"v": 1.0}, {}), (lambda s: None, {}), (lambda s: [1.0], {}),
    (lambda s: s | {"u": [1]}, {}), (lambda s: s, {"bounds": ({"v": 0}, None)}), (lambda s: s, {"x_scale": {"u": [1]}}),
], ids=range(7))  # fmt: skip
def test_dicts_of_other_parts_are_refused(F, given):
    with pytest.raises(TypeError, match=r"must be a dict of the shapes of x0, {'u'.*, got"):
        ims.root(F, STATE, **given)
