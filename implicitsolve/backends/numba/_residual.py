"""The residual of one system as a user writes it: compiled with the values that it refers to now, and in Python.

Numba compiles the values of globals and closures in, once for each function. Here a function is compiled again when
one of them has changed: `Residual` finds machine code by the bytecode and by the values of all names in it.
"""

from __future__ import annotations

import builtins
import cmath
import functools
import hashlib
import importlib
import inspect
import math
from collections.abc import Callable
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from numba import carray, types  # pyright: ignore[reportPrivateImportUsage]
from numba.core.errors import NumbaError
from numba.extending import is_jitted as _is_jitted

from implicitsolve._typing import HostArray
from implicitsolve.backends.numba._lanes import LANES, pointer_to_lanes
from implicitsolve.backends.numba._views import view

importlib.import_module("numba.experimental.function_type")  # registers C functions as arguments
is_jitted: Callable[[Any], bool] = _is_jitted  # whose own type admits functions only
MODULES = (builtins, cmath, math, np)
PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None), type(...))
OWNERS = {id(value): (module.__name__, name) for module in MODULES for name, value in vars(module).items()}
MOST_COMPILED = 64  # residuals


class Residual:
    """A residual in one form: for arrays of a dtype and a number of axes, with parameters or without."""

    def __init__(self, function: Callable[..., Any], dtype: np.dtype[Any], ndim: int, has_parameters: bool) -> None:
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"newton_batch: `residual` must be callable, got {type(function).__name__}")
        plain = getattr(function, "py_func", function)
        arguments, least = len(inspect.signature(plain).parameters), 2 if has_parameters else 1
        if arguments not in (least, least + 1):
            names = "(x, p, out) or (x, p)" if has_parameters else "(x, out) or (x)"
            raise TypeError(f"newton_batch: `residual` must take {names}, got {arguments} arguments")
        self.function, self.form = function, (has_parameters, arguments > least)
        self.dtype, self.ndim = dtype, ndim

    def machine_code(self) -> Compiled:
        """Machine code for the values that the function refers to now: new where one is not known to be the same."""
        try:
            key = describe(self.function), self.form, self.dtype.char, self.ndim
        except TypeError:
            return self._compile()
        if key not in _compiled:
            while len(_compiled) >= MOST_COMPILED:
                _compiled.pop(next(iter(_compiled)), None)
            _compiled[key] = self._compile()
        return _compiled[key]

    def _compile(self) -> Compiled:
        options: dict[str, Any] = getattr(self.function, "targetoptions", {})
        top = _jit(self._copy(_jit), options | {"error_model": "numpy", "parallel": False})
        evaluate = _in_place(top, *self.form)
        return Compiled(
            evaluate if evaluate is top else numba.njit(error_model="numpy")(evaluate), self.dtype, self.ndim
        )

    def _copy(self, made: Callable[[Any, Any], Any]) -> Any:
        return renew(getattr(self.function, "py_func", self.function), made, {})

    @functools.cached_property
    def in_python(self) -> Callable[[Any, Any, Any], None]:
        """The function ``(x, p, out)`` in Python, as are all compiled functions that it calls."""
        return _in_place(self._copy(lambda function, _: function), *self.form)

    def __call__(self, x: HostArray, p: HostArray) -> HostArray:
        """F(x) of one system by Python; NaN where it raises or writes nothing.

        Raises
        ------
        NotImplementedError
            If the function works only when compiled, as where Python's numbers raise and compiled ones are infinite.
        """
        out = np.full_like(x, np.nan)
        try:
            with np.errstate(all="ignore"):
                self.in_python(x.copy(), p.copy(), out)
        except (ArithmeticError, TypeError, NotImplementedError) as error:
            raise NotImplementedError from error
        except Exception:  # noqa: BLE001 - as in compiled code
            out[...] = np.nan
        return out


_compiled: dict[Any, Compiled] = {}


class Compiled:
    """C functions ``(x, p, out, n0, n1, q, running)``, by pointers: NaN in `out` where the residual raised."""

    def __init__(self, evaluate: Any, dtype: np.dtype[Any], ndim: int) -> None:
        self.evaluate, self.ndim = evaluate, ndim
        self.pointer = types.CPointer(numba.from_dtype(dtype))

    @functools.cached_property
    def of_one(self) -> Any:
        """The function for the numbers of one system."""
        return self._one_after_the_other(1)

    @functools.cached_property
    def of_lanes(self) -> Any:
        """The function for all lanes, in the order of `Lanes`, at least for those whose bits are in `running`."""
        try:
            return self._all_at_once()
        except (NumbaError, NotImplementedError, AttributeError):  # what `Lanes` do not: branch on x, or `x *= 2`
            return self._one_after_the_other(LANES)

    @property
    def is_wide(self) -> bool:
        """Whether it is evaluated for all lanes at once."""
        return self.of_lanes.__name__ == "wide"

    def _all_at_once(self) -> Any:
        evaluate, shape_of = self.evaluate, _SHAPES[self.ndim]

        def wide(x: Any, p: Any, out: Any, n0: int, n1: int, q: int, running: int) -> None:
            shape = shape_of(n0, n1)
            try:
                evaluate(
                    carray(pointer_to_lanes(x), shape),
                    carray(pointer_to_lanes(p), (q,)),
                    carray(pointer_to_lanes(out), shape),
                )
            except Exception:  # noqa: BLE001
                carray(out, (n0 * n1 * LANES,))[:] = np.nan

        return self._c_function(wide)

    def _one_after_the_other(self, lanes: int) -> Any:
        evaluate, shape_of = self.evaluate, _SHAPES[self.ndim]

        def narrow(x: Any, p: Any, out: Any, n0: int, n1: int, q: int, running: int) -> None:
            N = n0 * n1
            xs, ps, outs = carray(x, (N, lanes)), carray(p, (q, lanes)), carray(out, (N, lanes))
            own, given, F = np.empty(N, xs.dtype), np.empty(q, xs.dtype), np.empty(N, xs.dtype)
            shape = shape_of(n0, n1)
            # without references to count; the arrays themselves live as long as the loop
            at, into = carray(view(own).data, shape), carray(view(F).data, shape)
            with_p = carray(view(given).data, (q,))
            for lane in range(lanes):
                if running >> lane & 1:
                    for i in range(N):
                        own[i], F[i] = xs[i, lane], np.nan
                    for i in range(q):
                        given[i] = ps[i, lane]
                    try:
                        evaluate(at, with_p, into)
                    except Exception:  # noqa: BLE001 - Numba knows no other; what leaves a C function is printed
                        F[:] = np.nan
                    for i in range(N):
                        outs[i, lane] = F[i]

        return self._c_function(narrow)

    def _c_function(self, function: Callable[..., Any]) -> Any:
        arguments = *[self.pointer] * 3, *[types.intp] * 4
        return numba.cfunc(types.void(*arguments))(function)


_SHAPES: dict[int, Any] = {1: numba.njit(lambda n0, n1: (n0,)), 2: numba.njit(lambda n0, n1: (n0, n1))}


def _in_place(function: Any, has_parameters: bool, writes: bool) -> Callable[[Any, Any, Any], None]:
    """One form, ``(x, p, out)``, of the four that a residual may have."""

    def writing(x: Any, p: Any, out: Any) -> None:
        function(x, out)

    def returning(x: Any, p: Any, out: Any) -> None:
        out[:] = function(x)

    def returning_with_parameters(x: Any, p: Any, out: Any) -> None:
        out[:] = function(x, p)

    if has_parameters:
        return function if writes else returning_with_parameters
    return writing if writes else returning


def _names(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(part) for part in code.co_consts if isinstance(part, CodeType)))


def _references(function: Any) -> dict[str, Any]:
    cells = {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ())}
    scopes = cells, function.__globals__, vars(builtins)
    names = sorted(_names(function.__code__) | set(cells))
    found = ((name, next((scope for scope in scopes if name in scope), None)) for name in names)
    return {name: scope[name] for name, scope in found if scope is not None}


def describe(function: Any, within: tuple[Any, ...] = ()) -> Any:
    """All that the machine code of a function depends on; TypeError where it refers to what is not known here."""
    if function in within:
        return within.index(function)
    within += (function,)
    options = repr(function.targetoptions) if is_jitted(function) else None
    function = getattr(function, "py_func", function)
    values = (*_references(function).items(), function.__defaults__, *(function.__kwdefaults__ or {}).items())
    return (
        options,
        _describe_value(function.__code__, within, frozenset()),
        _describe_value(values, within, _names(function.__code__)),
    )


def _describe_value(value: Any, within: tuple[Any, ...], names: Any) -> Any:
    """A value as text and tuples: a number, an array, code, a compiled function, or what a module has of `names`."""
    if type(value) in PLAIN_TYPES:
        return type(value).__name__, repr(value)
    if type(value) is tuple:
        return tuple(_describe_value(part, within, names) for part in value)
    if isinstance(value, CodeType):
        variables = value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars
        return (
            value.co_code,
            value.co_exceptiontable,
            value.co_argcount,
            variables,
            _describe_value(value.co_consts, (), ()),
        )
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).digest()
        return type(value).__name__, value.dtype.str, value.shape, value.strides, content
    if is_jitted(value):
        return describe(value, within)
    if isinstance(value, ModuleType) and value not in within:
        if value in MODULES:
            return value.__name__
        within += (value,)
        return tuple(
            (name, _describe_value(vars(value)[name], within, names)) for name in sorted(names & set(vars(value)))
        )
    if id(value) not in OWNERS:
        raise TypeError(f"values of {type(value)} may change unseen")
    return OWNERS[id(value)]


def renew(function: Any, made: Callable[[Any, Any], Any], known: dict[Any, Any]) -> Any:
    """A copy of a function in which ``made(copy, options)`` replaces each compiled one that it calls."""
    plain = getattr(function, "py_func", function)
    scope, cells = dict(plain.__globals__), {name: CellType() for name in plain.__code__.co_freevars}
    copy = FunctionType(plain.__code__, scope, plain.__name__, plain.__defaults__, tuple(cells.values()))
    copy.__kwdefaults__ = plain.__kwdefaults__
    found = known[function] = made(copy, function.targetoptions) if is_jitted(function) else copy
    for name, value in _references(plain).items():
        if is_jitted(value):
            value = known[value] if value in known else renew(value, made, known)
        if name in cells:
            cells[name].cell_contents = value
        elif name in scope:
            scope[name] = value
    return found


def _jit(function: Any, options: dict[str, Any]) -> Any:
    return numba.njit(**{name: value for name, value in options.items() if name != "nopython"})(function)
