"""Problem: what is needed, what is checked, what it is."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import Problem

FUNCTIONS = ["jvp", "vjp", "jac", "linearize", "parameter_jvp", "parameter_vjp", "take", "initial_guess"]


def residual(x):
    return x**2 - 2


def test_a_residual_is_enough():
    problem = Problem(residual)
    assert problem.residual is residual
    assert problem.batch_ndim == 0
    for name in [*FUNCTIONS, "parameters", "structure"]:
        assert getattr(problem, name) is None
    assert ims.root(problem, 1.0).success


@pytest.mark.parametrize("value", [3, "F", None, np.ones(3)], ids=["int", "str", "None", "array"])
def test_a_residual_must_be_callable(value):
    with pytest.raises(TypeError, match=rf"Problem: `residual` must be callable, got {type(value).__name__}"):
        Problem(value)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_other_function_must_be_callable_or_none(name):
    Problem(residual, **{name: None})
    Problem(residual, **{name: residual})
    with pytest.raises(TypeError, match=rf"Problem: `{name}` must be callable or None, got ndarray"):
        Problem(residual, **{name: np.eye(2)})


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (-1, ValueError, "at least 0, got -1"),
        (1.0, TypeError, "integer, got float"),
        (True, TypeError, "integer, got bool"),
    ],
    ids=["negative", "float", "bool"],
)
def test_batch_ndim_must_be_a_count(value, error, words):
    with pytest.raises(error, match=rf"Problem: `batch_ndim` must be.*{words}"):
        Problem(residual, batch_ndim=value)


def test_a_structure_is_refused_until_there_is_one():
    with pytest.raises(NotImplementedError, match="`structure`"):
        Problem(residual, structure="banded")


@pytest.mark.parametrize("value", [3, [1.0], "W"], ids=["int", "list", "str"])
def test_parameters_must_be_a_mapping(value):
    with pytest.raises(
        TypeError, match=rf"Problem: `parameters` must be a mapping or None, got {type(value).__name__}"
    ):
        Problem(residual, parameters=value)


def test_all_but_the_residual_go_by_name():
    with pytest.raises(TypeError, match="positional"):
        Problem(residual, residual)
    with pytest.raises(TypeError, match="jacobian"):
        Problem(residual, jacobian=residual)


def test_a_problem_is_frozen_and_can_be_changed_by_copy():
    problem = Problem(residual, name="squares")
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.name = "cubes"
    other = dataclasses.replace(problem, batch_ndim=1)
    assert (other.name, other.batch_ndim, problem.batch_ndim) == ("squares", 1, 0)


def test_repr_does_not_print_the_parameters():
    problem = Problem(residual, parameters={"W": np.ones((100, 100))}, name="squares")
    assert "squares" in repr(problem)
    assert len(repr(problem)) < 1000


def test_the_problem_s_own_start_is_asked_for_when_none_is_given():
    asked = []
    problem = Problem(residual, initial_guess=lambda kind, rng: (asked.append((kind, rng)), np.ones(2))[1])
    assert ims.root(problem).x == pytest.approx([2**0.5] * 2)
    assert asked == [("default", None)]
