"""A residual that depends on parameters, copies of it with other values, and one whose state is a dict of arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from numbers import Number
from types import CellType, FunctionType

import numpy as np

from implicitsolve._arrays.namespace import as_inexact
from implicitsolve._typing import CallersArray, HostArray, Residual

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


def as_parametrized(residual: CallersArray) -> Parametrized:
    return residual if isinstance(residual, Parametrized) else Parametrized(residual, {}, "keywords")


def bind_parameters(function: Residual, parameters: CallersArray) -> tuple[Residual, Values]:
    """F with its parameters, and these by name; F as it is where it neither takes nor reads them.

    An array or a number is the function's second argument, and has its name.
    """
    function = as_parametrized(function).function
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


class NamedArrays:
    """A dict of arrays, or of further dicts, and the vector of all their entries."""

    def __init__(self, x0: Mapping[str, CallersArray]) -> None:
        found = {name: as_inexact(part, f"x0: {name}") for name, part in _leaves(x0)}
        if not found or not all(isinstance(part, np.ndarray) for part in found.values()):
            raise TypeError(f"`x0` must hold NumPy arrays, got {x0!r}")
        self._like, self._shapes = x0, {name: part.shape for name, part in found.items()}
        self.sizes: dict[str, int] = {name: part.size for name, part in found.items()}
        self.x0: HostArray = np.concatenate([np.ravel(part) for part in found.values()])

    def split(self, x: CallersArray) -> dict[str, CallersArray]:
        """The parts of a vector: views of it, in dicts like x0."""
        pieces = zip(np.split(x, np.cumsum([*self.sizes.values()])[:-1]), self._shapes.values(), strict=True)

        def build(tree: Mapping[str, CallersArray]) -> dict[str, CallersArray]:
            return {k: build(v) if isinstance(v, Mapping) else np.reshape(*next(pieces)) for k, v in tree.items()}

        return build(self._like)

    def join(self, what: str, values: CallersArray, rest: float | None = None) -> CallersArray:
        """The vector of a dict like x0; with `rest`, a number is a whole part, and `rest` one that is missing."""
        if not isinstance(values, Mapping) and (rest is not None or getattr(values, "shape", None) == self.x0.shape):
            return values
        given = dict(_leaves(values)) if isinstance(values, Mapping) else {}
        shapes: dict[str, CallersArray] = {name: np.shape(value) for name, value in given.items()}
        if rest is not None:
            given = dict.fromkeys(self._shapes, rest) | given
            shapes = self._shapes | {name: shape or self._shapes.get(name) for name, shape in shapes.items()}
        if shapes != self._shapes:
            got = f"{self._shapes}, got {shapes or type(values).__name__}"
            raise TypeError(f"`{what}` must be a dict of the shapes of x0, {got}")
        return np.concatenate([np.ravel(np.broadcast_to(given[name], shape)) for name, shape in self._shapes.items()])

    def of_vector(self, residual: Residual) -> Parametrized:
        """A residual of parts, which returns parts, as one of the vector."""
        own = as_parametrized(residual)
        form, function = own.form, own.function
        if form == "names":
            form, function = "argument", lambda x, values: own.at(values)(x)

        @wraps(function)
        def F(x: CallersArray, *args: CallersArray, **keywords: CallersArray) -> CallersArray:
            return self.join("residual", function(self.split(x), *args, **keywords))

        return Parametrized(F, own.values, form)


def _leaves(tree: CallersArray, outer: str = "") -> Iterator[tuple[str, CallersArray]]:
    for key, part in tree.items():
        name = f"{outer}[{key}]" if outer else str(key)
        yield from _leaves(part, name) if isinstance(part, Mapping) else [(name, part)]
