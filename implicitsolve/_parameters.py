"""A residual that depends on parameters, and copies of it with other values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from numbers import Number
from types import CellType, FunctionType

from implicitsolve._typing import CallersArray, Residual

Values = Mapping[str, CallersArray]
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Parametrized:
    """F(x) for given values of its parameters.

    `form` says how the function gets them: "keywords", F(x, a=..., b=...); "argument", F(x, values); "names", where
    F(x) reads variables of these names from around it.
    """

    def __init__(self, function: Callable[..., CallersArray], values: Values, form: str) -> None:
        self.function, self.values, self.form = function, values, form

    def __call__(self, x: CallersArray) -> CallersArray:
        return self.at(self.values)(x) if self.form != "names" else self.function(x)

    def at(self, values: Values) -> Residual:
        """F as a function of x with other values of some parameters."""
        values, function = {**self.values, **values}, self.function
        if self.form == "keywords":
            return lambda x: function(x, **values)
        if self.form == "argument":
            return lambda x: function(x, values)
        return with_names(function, values)


def bind_parameters(function: Residual, parameters: CallersArray) -> tuple[Residual, Values]:
    """F with its parameters, and these by name; F as it is where it neither takes nor reads them.

    An array or a number is the function's second argument, and has its name.
    """
    function = function.function if isinstance(function, Parametrized) else function
    try:
        arguments = list(inspect.signature(function).parameters.values())[1:]
    except (TypeError, ValueError):
        arguments = []
    if not isinstance(parameters, Mapping):
        named = next((part.name for part in arguments if part.kind in NAMED), None)
        if named is None:
            got = type(parameters).__name__
            raise TypeError(f"Problem: `parameters` must be a mapping, or F must be F(x, parameters), got {got}")
        parameters = {named: parameters}
    _check_values(parameters)
    if parameters and set(parameters) <= {part.name for part in arguments if part.kind in NAMED}:
        return Parametrized(function, parameters, "keywords"), parameters
    if arguments and arguments[0].kind in POSITIONAL and arguments[0].default is inspect.Parameter.empty:
        return Parametrized(function, parameters, "argument"), parameters
    if parameters and isinstance(function, FunctionType) and set(parameters) <= names_around(function):
        return Parametrized(function, parameters, "names"), parameters
    return function, parameters


def _check_values(parameters: Values) -> None:
    for name, value in parameters.items():
        if not (hasattr(value, "shape") or isinstance(value, Number | list | tuple | str)):
            raise TypeError(f"Problem: `parameters` must be arrays or numbers, got {type(value).__name__} for {name!r}")


def names_around(function: FunctionType) -> set[str]:
    code = function.__code__
    return {*code.co_freevars, *(name for name in code.co_names if name in function.__globals__)}


def with_names(function: CallersArray, values: Values) -> Residual:
    """The function with other values of variables that it reads from around it."""
    free, cells = function.__code__.co_freevars, function.__closure__ or ()
    closure = tuple(CellType(values[name]) if name in values else cell for name, cell in zip(free, cells, strict=True))
    other = FunctionType(function.__code__, {**function.__globals__, **values}, function.__name__, None, closure)
    other.__defaults__, other.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return other
