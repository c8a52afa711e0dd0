"""What holds for all settings and results alike: they never change, take names, and have the documented defaults."""

import inspect
import re
from ast import literal_eval
from dataclasses import MISSING, FrozenInstanceError, fields, is_dataclass

import pytest

import implicitsolve as ims
from implicitsolve.nonlinear import Auto

NAMES = [getattr(ims, name) for name in ims.__all__] + [
    getattr(ims.precondition, name) for name in ims.precondition.__all__
]
VALUES = [value for value in [*NAMES, Auto] if is_dataclass(value)]
# What has an obvious order of arguments, as a structure and a problem have.
BY_POSITION = {"BlockBanded": ["lower", "upper", "block_size"], "Grid": ["shape"], "Problem": ["residual"]}


def documented_defaults(cls):
    """Defaults that the docstring's list of parameters gives as a number, a string or a truth value."""
    for name, text in re.findall(r"^(\w+) : .*\n((?: {4}.*\n?|\n)+)", inspect.getdoc(cls), flags=re.MULTILINE):
        stated = re.search(r'Default:? (-?\d[\w.-]*\w|-?\d|"\w+"|True|False)', " ".join(text.split()))
        if stated:
            yield name, literal_eval(stated[1])


def actual_default(cls, name):
    return {field.name: field.default for field in fields(cls)}[name]


DEFAULTS = [
    (cls, name, stated)
    for cls in VALUES
    for name, stated in documented_defaults(cls)
    if actual_default(cls, name) not in (None, MISSING)  # the text says what None stands for
]


@pytest.mark.parametrize("cls", VALUES)
def test_nothing_changes_after_construction(cls):
    value = object.__new__(cls)
    with pytest.raises(FrozenInstanceError):
        value.anything = 1


@pytest.mark.parametrize("cls", [cls for cls in VALUES if ".diagnostics." not in cls.__module__])
def test_fields_are_given_by_name(cls):
    assert [field.name for field in fields(cls) if not field.kw_only] == BY_POSITION.get(cls.__name__, [])


def test_a_problem_is_its_residual_until_more_is_said():
    problem = ims.Problem(abs)
    said = {field.name: getattr(problem, field.name) for field in fields(problem)}
    assert said.pop("residual") is abs
    assert said.pop("name") == ""
    assert said.pop("batch_ndim") == 0
    assert said.pop("rejects") == ()
    assert (said.pop("blocks_cost"), said.pop("blocks_exact")) == (1, True)
    assert said.pop("pure") is said.pop("fixed_point") is False
    assert set(said.values()) == {None}


@pytest.mark.parametrize(("cls", "name", "default"), DEFAULTS)
def test_the_default_is_the_documented_one(cls, name, default):
    actual = actual_default(cls, name)
    assert actual == default
    assert isinstance(actual, bool) == isinstance(default, bool)


def test_defaults_are_found():
    assert len(DEFAULTS) > 30
