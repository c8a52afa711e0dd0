"""A copy of a user's function in which `np` and `math` accept traced values.

`np.zeros`, `np.array` and similar functions return plain arrays, which cannot hold traced values. The copy has the same
code, but its global names `np` and `math` refer to modules in which these functions return traced arrays. The functions
that it calls by name are copied too. The user's own functions and modules are not changed.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import math
import types
from collections.abc import Callable

import numpy as np
from array_api_compat import numpy as array_api

from implicitsolve._typing import CallersArray
from implicitsolve.tracing._array import Traced, fill, unwrap
from implicitsolve.tracing._functions import as_value, cast, has_tracer

LIBRARIES = frozenset(["numpy", "scipy", "jax", "jaxlib", "array_api_compat", "implicitsolve", "builtins", "numba"])
MADE = ("empty", "zeros", "ones", "full")
IN_MATH = {"pow": "power", "fabs": "abs", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2"}
IN_MATH |= {"asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh", "dist": "dist"}


class Module(types.ModuleType):
    """A module some of whose functions are others."""

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
        other = getattr(np, IN_MATH.get(name, name), None)
        return other(*args) if other is not None and any(isinstance(part, Traced) for part in args) else plain(*args)

    return function


MATH = Module(math, {name: _of_math(name) for name in dir(math) if callable(getattr(math, name)) and name[0] != "_"})
REPLACED: dict[int, CallersArray] = {id(np): NUMPY, id(math): MATH}
REPLACED |= {id(getattr(np, name)): other for name, other in OTHERS.items() if hasattr(np, name)}
REPLACED |= {id(getattr(math, name)): getattr(MATH, name) for name in dir(math) if name in vars(MATH)}


def traceable(function: CallersArray, made: dict[int, CallersArray] | None = None) -> CallersArray:
    """The function with these names in it, and in the functions that it calls by name."""
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
