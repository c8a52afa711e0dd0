"""Copies of functions and objects that accept traced values even in calls that bypass NumPy's dispatch.

In the copy `np.zeros`, `np.array` and similar functions return arrays that can hold traced values.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import math
import sys
import types
from collections.abc import Callable
from types import FunctionType

import numpy as np
from array_api_compat import numpy as array_api

from implicitsolve._typing import CallersArray
from implicitsolve.tracing._array import Traced, fill, unwrap
from implicitsolve.tracing._functions import LARGEST_FUNCTION, as_value, cast, has_tracer

Function = Callable[..., CallersArray]
Made = dict[int, CallersArray]

LIBRARIES = frozenset(["numpy", "scipy", "jax", "jaxlib", "array_api_compat", "implicitsolve", "builtins", "numba"])


class Module(types.ModuleType):
    def __init__(self, module: CallersArray, others: dict[str, CallersArray]) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(others)
        self._module = module

    def __getattr__(self, name: str) -> CallersArray:
        return getattr(self._module, name)


def _is_traced(part: CallersArray) -> bool:
    return isinstance(part, Traced) or (isinstance(part, list | tuple) and any(map(_is_traced, part)))


def _or(plain: Function, own: Function) -> Function:
    """A function that calls another one for traced arguments."""

    @functools.wraps(plain, updated=())
    def function(*args: CallersArray, **keywords: CallersArray) -> CallersArray:
        return (own if _is_traced([*args, *keywords.values()]) else plain)(*args, **keywords)

    return function


def _converting(function: Function, copies: bool) -> Function:
    """np.array and similar functions, which may get traced values."""

    @functools.wraps(function)
    def convert(
        obj: CallersArray, dtype: CallersArray = None, *args: CallersArray, **keywords: CallersArray
    ) -> CallersArray:
        if isinstance(obj, Traced):
            return obj.astype(np.dtype(dtype or obj.dtype), copy=keywords.get("copy", copies))
        values = unwrap(obj) if isinstance(obj, list | tuple) else obj
        if has_tracer(values):
            value = as_value(values)
            return Traced(value if dtype is None else cast(value, np.dtype(dtype)))
        made = function(values, dtype, *args, **keywords)
        return Traced(made, np.empty_like(made)) if made.dtype.kind in "biufc" else made

    return convert


class Joined:
    """np.r_ and np.c_."""

    def __init__(self, join: Function) -> None:
        self._join = join

    def __getitem__(self, key: CallersArray) -> CallersArray:
        parts = key if isinstance(key, tuple) else (key,)
        return self._join([np.atleast_1d(part if _is_traced(part) else np.r_[part]) for part in parts])


MADE = ["empty", "zeros", "ones", "full"]
OTHERS: dict[str, CallersArray] = {name: functools.partial(fill, getattr(np, name)) for name in MADE}
OTHERS |= {name: _converting(getattr(np, name), name == "array") for name in ("array", "asarray", "asanyarray")}
OTHERS["vectorize"] = lambda function, *_, **__: _or(np.vectorize(function), function)
OTHERS |= {"r_": Joined(np.concatenate), "c_": Joined(np.column_stack), "ascontiguousarray": OTHERS["asarray"]}
Traced.namespace = Module(array_api, OTHERS)
BUILTINS: dict[str, Function] = {
    "isinstance": lambda part, kinds: isinstance(part.layout if isinstance(part, Traced) else part, kinds),
    "max": _or(max, lambda *args: functools.reduce(np.maximum, args) if len(args) > 1 else np.max(*args)),
    "min": _or(min, lambda *args: functools.reduce(np.minimum, args) if len(args) > 1 else np.min(*args)),
}
OF_MATH = {name: _or(getattr(math, name), getattr(np, name)) for name in dir(math) if callable(getattr(np, name, None))}
REPLACED: dict[int, CallersArray] = {}


for _module, _others in ((np, OTHERS), (math, OF_MATH)):
    REPLACED |= {id(getattr(_module, name)): other for name, other in _others.items() if hasattr(_module, name)}
    REPLACED[id(_module)] = Module(_module, _others)


def traceable(function: CallersArray, made: Made | None = None) -> CallersArray:
    """A copy of a user's function, and of those that it calls by name, that accepts traced values."""
    made = {} if made is None else made
    if id(function) in REPLACED:
        return REPLACED[id(function)]
    if id(function) in made:
        return made[id(function)]
    if isinstance(function, functools.partial):
        args, keywords = _meaning((function.args, function.keywords), made)
        return functools.partial(traceable(function.func, made), *args, **keywords)
    if isinstance(function, types.MethodType):
        return types.MethodType(traceable(function.__func__, made), _meaning(function.__self__, made))
    if isinstance(function, np.vectorize):
        return OTHERS["vectorize"](traceable(function.pyfunc, made))
    if isinstance(function, FunctionType):
        return _rebuilt(function, made) if _is_users(function) else function
    return _copy_of(function, made) if _is_object(function) else function


def _is_users(part: CallersArray) -> bool:
    return (part.__module__ or "").split(".")[0] not in LIBRARIES


def _is_object(part: CallersArray) -> bool:
    """Whether it is an object of a class of the user's own, with nothing but attributes."""
    kind, root = type(part), type(part).__module__.split(".")[0]
    is_installed = "site-packages" in str(getattr(sys.modules.get(root), "__file__", ""))
    if is_installed or root in sys.stdlib_module_names or not _is_users(kind) or type(kind) is not type:
        return False
    own = {name for base in kind.__mro__[:-1] for name in vars(base)}
    return hasattr(part, "__dict__") and own.isdisjoint(["__new__", "__slots__", "__init_subclass__"])


def _copy_of(thing: CallersArray, made: Made) -> CallersArray:
    """An object with the same attributes and methods; what is stored in the copy does not change the user's object."""
    other: CallersArray = object.__new__(_class_of_copy(type(thing), made))
    made[id(thing)] = other
    other.__dict__.update({name: _meaning(value, made) for name, value in vars(thing).items()})
    return other


def _class_of_copy(kind: type, made: Made) -> type:
    """A class derived from one, and from copies of its bases, so that `super()` finds the copies' methods."""
    if id(kind) in made:
        return made[id(kind)]
    bases = (_class_of_copy(base, made) for base in kind.__bases__ if base is not object)
    other = made[id(kind)] = type(kind.__name__, (kind, *bases), {"__del__": lambda self: None})
    for name, part in vars(kind).items():
        if isinstance(part, FunctionType) and name != "__del__":
            setattr(other, name, traceable(part, made))
        elif isinstance(part, staticmethod | classmethod | property):
            function = part.fget if isinstance(part, property) else part.__func__
            setattr(other, name, type(part)(traceable(function, made)))
    return other


def _rebuilt(function: FunctionType, made: Made) -> CallersArray:
    own, code = function.__globals__, function.__code__
    names = BUILTINS | own
    cells = tuple(types.CellType() for _ in function.__closure__ or ())
    other = made[id(function)] = FunctionType(code, names, function.__name__, None, cells)
    functools.update_wrapper(other, function, updated=())
    other.__defaults__, other.__kwdefaults__ = _meaning((function.__defaults__, function.__kwdefaults__), made)
    names.update({name: _meaning(own[name], made) for name in _read_names(code) & own.keys()})
    for cell, old in zip(cells, function.__closure__ or ()):
        with contextlib.suppress(ValueError):  # of an empty one
            cell.cell_contents = _meaning(old.cell_contents, made)
    return other


def _meaning(value: CallersArray, made: Made) -> CallersArray:
    """What a name stands for: buffers of floating-point numbers may be filled with traced values too."""
    if type(value) is np.ndarray and value.dtype.kind in "fc" and value.flags.writeable:
        return Traced(value, np.empty_like(value))
    if type(value) in (list, tuple) and len(value) <= LARGEST_FUNCTION:
        return type(value)([_meaning(part, made) for part in value])
    if type(value) is dict and len(value) <= LARGEST_FUNCTION:
        return {name: _meaning(part, made) for name, part in value.items()}
    is_copied = callable(value) or isinstance(value, types.ModuleType) or _is_object(value)
    return value if isinstance(value, type) or value is builtins or not is_copied else traceable(value, made)


def _read_names(code: types.CodeType) -> set[str]:
    inner = (_read_names(part) for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*inner)
