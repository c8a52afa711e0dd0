"""How a residual gets its parameters, and what it is with other values of them."""

from dataclasses import replace

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve._parameters import Parametrized

a = 2.0


def by_name(x, a, b=1.0):
    return a * x - b


def by_mapping(x, values):
    return values["a"] * x - values["b"]


def around(x):
    return a * x - 1.0


def inside():
    a = 2.0
    return lambda x: a * x - 1.0


@pytest.mark.parametrize("F", [by_name, by_mapping])
def test_F_is_called_with_its_parameters(F):
    problem = ims.Problem(F, parameters={"a": 2.0, "b": 1.0})
    assert np.allclose(ims.root(problem, np.zeros(2)).x, 0.5)
    assert np.allclose(ims.root(replace(problem, parameters={"a": 4.0, "b": 1.0}), np.zeros(2)).x, 0.25)
    assert problem.residual.at({"a": 8.0})(1.0) == 7.0


@pytest.mark.parametrize("F", [around, inside()])
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
