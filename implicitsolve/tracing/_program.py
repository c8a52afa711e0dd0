"""The program that a function written in NumPy is: F, its products and its derivatives by parameters."""

from __future__ import annotations

import builtins
import functools
import inspect
import math
import traceback
import types
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from types import FunctionType

import jax
import jax.numpy as jnp
import numpy as np
from array_api_compat import numpy as array_api

from implicitsolve._parameters import Parametrized
from implicitsolve._typing import CallersArray, HostArray, Residual
from implicitsolve.problem import Problem
from implicitsolve.tracing._array import Traced, fill, unwrap, wrap
from implicitsolve.tracing._flat import FlatProgram
from implicitsolve.tracing._functions import UntraceableError, as_value, budget, cast, has_tracer, is_tracer


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
    def __init__(self, residual: Residual, x: HostArray, parameters: Mapping[str, HostArray]) -> None:
        own: CallersArray = residual
        is_bound = isinstance(residual, Parametrized)
        plain = traceable(own.function if is_bound else residual)
        bound = Parametrized(plain, own.values, own.form) if is_bound else None
        with budget():
            F = partial(_evaluate, lambda x, given: plain(x) if bound is None else bound.at(given)(x))
            self.flat: FlatProgram = FlatProgram(F, x, dict(parameters))
        function = self.flat.function
        super().__init__(lambda x, parameters: function(x, *jax.tree.leaves(parameters))[0], x, parameters)
        self._parameters = parameters

    @cached_property
    def by_parameters(self) -> Derivative:
        return Derivative(lambda parameters, x: self.function(x, parameters), self._parameters, self._at)


def _evaluate(
    function: Callable[[CallersArray, CallersArray], CallersArray], x: CallersArray, parameters: CallersArray
) -> CallersArray:
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


LIBRARIES = frozenset(["numpy", "scipy", "jax", "jaxlib", "array_api_compat", "implicitsolve", "builtins", "numba"])
MADE = ("empty", "zeros", "ones", "full")


class Module(types.ModuleType):
    def __init__(self, module: CallersArray, others: dict[str, Callable[..., CallersArray]]) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(others)
        self._module = module

    def __getattr__(self, name: str) -> CallersArray:
        return getattr(self._module, name)


def _converting(function: Callable[..., CallersArray], copies: bool) -> Callable[..., CallersArray]:
    """np.array and similar functions, which may get traced values."""

    @functools.wraps(function)
    def convert(
        obj: CallersArray, dtype: CallersArray = None, *args: CallersArray, **keywords: CallersArray
    ) -> CallersArray:
        if isinstance(obj, Traced):
            return obj.astype(np.dtype(dtype or obj.dtype), copy=keywords.get("copy", copies))
        values = unwrap(obj) if isinstance(obj, list | tuple) else obj
        if not has_tracer(values):
            return function(values, dtype, *args, **keywords)
        value = as_value(values)
        return Traced(value if dtype is None else cast(value, np.dtype(dtype)))

    return convert


OTHERS: dict[str, Callable[..., CallersArray]] = {name: functools.partial(fill, getattr(np, name)) for name in MADE}
OTHERS |= {name: _converting(getattr(np, name), name == "array") for name in ("array", "asarray", "asanyarray")}
OTHERS |= {"ascontiguousarray": OTHERS["asarray"], "asfarray": OTHERS["asarray"]}
NUMPY = Module(np, OTHERS)
Traced.namespace = Module(array_api, OTHERS)


def _of_math(name: str) -> Callable[..., CallersArray]:
    plain = getattr(math, name)

    def function(*args: CallersArray) -> CallersArray:
        other = getattr(np, name, None)
        return other(*args) if other is not None and any(isinstance(part, Traced) for part in args) else plain(*args)

    return function


MATH = Module(math, {name: _of_math(name) for name in dir(math) if callable(getattr(math, name)) and name[0] != "_"})
REPLACED: dict[int, CallersArray] = {id(np): NUMPY, id(math): MATH}
REPLACED |= {id(getattr(np, name)): other for name, other in OTHERS.items() if hasattr(np, name)}
REPLACED |= {id(getattr(math, name)): getattr(MATH, name) for name in dir(math) if name in vars(MATH)}


def traceable(function: CallersArray, made: dict[int, CallersArray] | None = None) -> CallersArray:
    """A copy of a user's function in which `np` and `math` accept traced values, and of those that it calls by name.

    `np.zeros`, `np.array` and similar functions return plain arrays, which cannot hold traced values: in the copy they
    return arrays that can.
    """
    made = {} if made is None else made
    if id(function) in REPLACED:
        return REPLACED[id(function)]
    if id(function) in made:
        return made[id(function)]
    if isinstance(function, functools.partial):
        return functools.partial(traceable(function.func, made), *function.args, **function.keywords)
    if isinstance(function, types.MethodType):
        return types.MethodType(traceable(function.__func__, made), function.__self__)
    if isinstance(function, types.FunctionType):
        return _rebuilt(function, made) if _is_users(function) else function
    call = inspect.getattr_static(type(function), "__call__", None)
    if isinstance(call, types.FunctionType) and not isinstance(function, type) and _is_users(call):
        return types.MethodType(traceable(call, made), function)
    return function


def _is_users(function: types.FunctionType) -> bool:
    return (function.__module__ or "").split(".")[0] not in LIBRARIES


def _rebuilt(function: types.FunctionType, made: dict[int, CallersArray]) -> CallersArray:
    names = dict(function.__globals__)
    cells = tuple(types.CellType() for _ in function.__closure__ or ())
    other = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
    for name in ("__kwdefaults__", "__module__", "__qualname__"):
        setattr(other, name, getattr(function, name))
    made[id(function)] = other
    for name in _read_names(function.__code__) & names.keys():
        names[name] = _meaning(names[name], made)
    for cell, old in zip(cells, function.__closure__ or ()):
        try:
            cell.cell_contents = _meaning(old.cell_contents, made)
        except ValueError:  # an empty one
            continue
    return other


def _meaning(value: CallersArray, made: dict[int, CallersArray]) -> CallersArray:
    """What a name stands for: buffers of floating-point numbers may be filled with traced values too."""
    if type(value) is np.ndarray and value.dtype.kind in "fc" and value.flags.writeable:
        return Traced(value, np.empty_like(value))
    is_copied = callable(value) or isinstance(value, types.ModuleType)
    return value if isinstance(value, type) or value is builtins or not is_copied else traceable(value, made)


def _read_names(code: types.CodeType) -> set[str]:
    inner = (_read_names(part) for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*inner)
