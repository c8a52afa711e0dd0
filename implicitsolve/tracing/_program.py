"""The program that a function written in NumPy is: F, its products and its derivatives by parameters."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from types import FunctionType

import jax
import jax.numpy as jnp
import numpy as np

from implicitsolve._parameters import Parametrized
from implicitsolve._typing import CallersArray, HostArray, Residual
from implicitsolve.problem import Problem
from implicitsolve.tracing._array import Traced, unwrap, wrap
from implicitsolve.tracing._flat import FlatProgram
from implicitsolve.tracing._functions import UntraceableError, as_value, budget, cast, is_tracer
from implicitsolve.tracing._names import LIBRARIES, traceable

MOST_OPERATIONS = 2000  # of a function: they take some seconds


class Derivative:
    """F(a, b) and its derivative by a: one program gives F and what depends on a and b alone, others the products."""

    def __init__(self, F: Callable[..., CallersArray], a: CallersArray, b: CallersArray) -> None:
        self.function: Callable[..., CallersArray] = F
        self._at = a
        self._ahead: FlatProgram = FlatProgram(lambda a, b: jax.linearize(lambda a: F(a, b), a), a, b)
        self._value, self._linear = self._ahead.outcome

    @cached_property
    def _along(self) -> FlatProgram:
        return FlatProgram(lambda linear, v: linear(v), self._linear, self._at)

    @cached_property
    def _back(self) -> FlatProgram:
        return FlatProgram(lambda linear, w: jax.linear_transpose(linear, self._at)(w)[0], self._linear, self._value)

    def linearize(self, a: CallersArray, b: CallersArray) -> list[HostArray]:
        """F, and what the products take."""
        return self._ahead(*jax.tree.leaves((a, b)))

    def along(self, known: list[HostArray], V: CallersArray) -> HostArray:
        """J v for each v along the first axis of V."""
        return np.stack([self._along(*known, *v)[0] for v in zip(*jax.tree.leaves(V), strict=True)])

    def back(self, known: list[HostArray], w: HostArray) -> CallersArray:
        """J^H w."""
        found = self._back(*known, np.conj(w))
        return jax.tree.unflatten(jax.tree.structure(self._at), map(np.conj, found))

    def jvp(self, a: CallersArray, v: CallersArray, b: CallersArray) -> tuple[HostArray, HostArray]:
        """F and J v."""
        value, *known = self.linearize(a, b)
        return value, self.along(known, jax.tree.map(lambda part: np.asarray(part)[None], v))[0]


class Program(Derivative):
    """F(x, parameters) and its derivative by x."""

    def __init__(self, residual: Residual, x: HostArray, parameters: Mapping[str, HostArray]) -> None:
        with budget(MOST_OPERATIONS):
            self.flat: FlatProgram = FlatProgram(partial(_evaluate, _with_names(residual)), x, dict(parameters))
        function = self.flat.function
        super().__init__(lambda x, parameters: function(x, *jax.tree.leaves(parameters))[0], x, parameters)
        self._parameters = parameters

    @cached_property
    def by_parameters(self) -> Derivative:
        """F(parameters, x) and its derivative by the parameters."""
        return Derivative(lambda parameters, x: self.function(x, parameters), self._parameters, self._at)


def _with_names(residual: Residual) -> Callable[[CallersArray, CallersArray], CallersArray]:
    """F(x, parameters) whose names stand for what can be traced."""
    if not isinstance(residual, Parametrized):
        function = traceable(residual)
        return lambda x, parameters: function(x)
    bound = Parametrized(traceable(residual.function), residual.values, residual.form)
    return lambda x, parameters: bound.at(parameters)(x)


def _evaluate(
    function: Callable[[CallersArray, CallersArray], CallersArray], x: CallersArray, parameters: CallersArray
) -> CallersArray:
    """F of tracers, in the shape and dtype of x."""
    F = as_value(unwrap(function(Traced(x), {name: wrap(value) for name, value in parameters.items()})))
    if F is None or (not is_tracer(F) and np.asarray(F).dtype.kind not in "biufc"):
        raise UntraceableError(f"F returned {type(F).__name__}")
    F = jnp.asarray(F)
    if F.size != x.size or np.issubdtype(F.dtype, np.complexfloating) > np.issubdtype(x.dtype, np.complexfloating):
        raise UntraceableError(f"F returned {F.dtype} of shape {F.shape} for {x.dtype} of shape {x.shape}")
    return cast(F, x.dtype).reshape(x.shape)


def explanation(error: Exception) -> str:
    """Why a function was not traced, and at which of the user's lines."""
    message = str(error).splitlines()[0] if str(error) else type(error).__name__
    if not isinstance(error, UntraceableError):
        message = f"{type(error).__name__}: {message}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not (bool(LIBRARIES & set(Path(frame.filename).parts)) or frame.filename.startswith("<__array_function__"))
    ]
    if not frames:
        return message
    last = frames[-1]
    line = f": {last.line}" if last.line else ""
    return f"{message} ({Path(last.filename).name}, line {last.lineno}, in {last.name}{line})"


def numeric(parameters: Mapping[str, CallersArray] | None) -> dict[str, HostArray]:
    """Parameters that are real or complex numbers, or arrays of these."""
    found: dict[str, HostArray] = {}
    for name, value in (parameters or {}).items():
        if isinstance(value, int | float | complex) and not isinstance(value, bool):
            found[name] = np.asarray(value, complex if isinstance(value, complex) else float)
        elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "fc":
            found[name] = np.asarray(value)
    return found


def key_of(problem: Problem, x: CallersArray, parameters: Mapping[str, HostArray]) -> object:
    """What a trace depends on, but for what the comparison finds; None where that cannot be looked up."""
    function = problem.residual
    form = ""
    if isinstance(function, Parametrized):
        form, function = function.form, function.function
    shapes = tuple((name, value.shape, value.dtype) for name, value in parameters.items())
    same: object = function
    if isinstance(function, FunctionType):
        inside = zip(function.__code__.co_freevars, function.__closure__ or ())
        cells = tuple(_identity(cell) for name, cell in inside if form != "names" or name not in parameters)
        same = (function.__code__, id(function.__globals__), cells, _identity(function.__defaults__))
    try:
        hash(same)
    except TypeError:
        return None
    return same, form, x.shape, x.dtype, problem.batch_ndim, shapes


def _identity(part: CallersArray) -> object:
    """A number or a text itself, else where it is."""
    try:
        value = part.cell_contents if hasattr(part, "cell_contents") else part
    except ValueError:  # an empty cell
        return None
    if isinstance(value, tuple):
        return tuple(map(_identity, value))
    return value if isinstance(value, int | float | complex | str | bytes | None) else id(value)
