"""An array that stands for values that depend on the unknowns, in a function written in NumPy.

NumPy passes its functions to it (`__array_ufunc__`, `__array_function__`). Shapes, dtypes, and relations of views
come from NumPy itself: each array has a `layout`, an array of NumPy without meaningful numbers, on which the same
indexing or reshaping is done. A view reads from its parent, and a write goes through to it. An array that no unknown
has entered yet holds numbers, and NumPy computes with them.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import scipy.sparse

from implicitsolve._typing import CallersArray, HostArray
from implicitsolve.tracing._entries import ASK_WHERE, WRITES, Selected, is_basic, is_mask, replace_entries, spread_over
from implicitsolve.tracing._functions import (
    UPDATE_NAMES,
    UntraceableError,
    Value,
    apply_function,
    apply_ufunc,
    as_value,
    cast,
    has_tracer,
    is_tracer,
    once,
    times_sparse,
)

ARRAY_METHODS = """all any argmax argmin argsort choose clip compress conj conjugate cumprod cumsum diagonal dot max
mean min nonzero prod put ravel repeat round searchsorted squeeze std sum swapaxes take trace var"""
PROPERTIES = "device dtype flags itemsize nbytes ndim shape size strides"
VIEWS = """array_split atleast_1d atleast_2d atleast_3d broadcast_to diag diagonal dsplit expand_dims flip fliplr flipud
hsplit imag matrix_transpose moveaxis permute_dims ravel real reshape rollaxis rot90 split squeeze swapaxes transpose
vsplit"""
OF_LAYOUTS = "broadcast_shapes can_cast common_type iscomplexobj isrealobj ndim result_type shape size"
FINITE: dict[np.ufunc, bool] = {np.isfinite: True, np.isnan: False, np.isinf: False}
FILLED = "empty_like full_like ones_like zeros_like"


class Traced(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of NumPy whose numbers are known only when the traced program runs."""

    __array_priority__ = 1e6
    namespace: ClassVar[object] = np  # what `array_namespace` gives for such an array

    def __init__(self, value: Value, layout: Value = None, assumed: bool | None = None) -> None:
        self._value: Value = value
        self.layout: Value = np.empty(value.shape, value.dtype) if layout is None else layout
        self._parent: Traced | None = None
        self._version, self._seen = 0, -1
        self._read: Callable[[Value], Value] = operator.pos
        self._places: CallersArray = None
        self.assumed: bool | None = assumed  # what all entries of a mask are where F is finite

    @classmethod
    def part(cls, parent: Traced, layout: HostArray, read: Callable[[Value], Value], places: CallersArray) -> Traced:
        """A view: `read` takes its value from the parent; `places` is a key, or a function that selects positions."""
        made = cls(None, layout)
        made._parent, made._read, made._places = parent, read, places
        return made

    @property
    def value(self) -> Value:
        if self._parent is None:
            return self._value
        if self._seen != self._root._version:
            self._value, self._seen = self._read(self._parent.value), self._root._version
        return self._value

    @property
    def _root(self) -> Traced:
        return self if self._parent is None else self._parent._root

    def numbers(self, problem: str) -> HostArray:
        if is_tracer(self.value):
            raise UntraceableError(problem)
        return np.asarray(self.value)

    def store(self, value: Value) -> None:
        value = cast(value, self.dtype)
        if self._parent is None:
            self._value = (spread_over if is_tracer(value) else np.broadcast_to)(value, self.shape)
            self._version += 1
        else:
            self._parent.store(replace_entries(self._parent.value, self._places, value))

    T = property(lambda self: np.transpose(self))
    mT = property(lambda self: np.matrix_transpose(self))
    real = property(lambda self: np.real(self), lambda self, value: np.real(self).__setitem__(..., value))
    imag = property(lambda self: np.imag(self), lambda self, value: np.imag(self).__setitem__(..., value))

    def __bool__(self) -> bool:
        if is_tracer(self.value) and self.assumed is not None:
            return self.assumed
        return bool(self.numbers("Python branches on a value that depends on the unknowns: use np.where"))

    def __len__(self) -> int:
        return len(self.layout)

    def __getitem__(self, key: CallersArray) -> CallersArray:
        key = key_of(key)
        if is_basic(key):
            layout = self.layout[key]
            is_view = isinstance(layout, np.ndarray)
            read = partial(_entries, key, repr(key))
            return Traced.part(self, layout, read, key) if is_view else Traced(read(self.value), layout)
        if is_mask(key):
            return Selected.of(self, key)
        return wrap((jnp.asarray if has_tracer(key) else operator.pos)(self.value)[key])

    def __setitem__(self, key: CallersArray, value: CallersArray) -> None:
        if not self.layout.flags.writeable:
            raise ValueError("assignment destination is read-only")
        key = key_of(key)
        if isinstance(value, Traced) and value._parent is self and is_basic(key) and value._places == key:
            return  # the end of `a[key] += b`, which has written already
        if isinstance(value, Selected):
            if key is not value.mask:
                raise UntraceableError("entries under one mask are assigned under another: use np.where")
            value = value.whole
        self.store(replace_entries(self.value, key, cast(as_value(unwrap(value)), self.dtype)))

    def __iter__(self) -> Iterator[CallersArray]:
        return (self[i] for i in range(len(self)))

    def __array__(self, dtype: CallersArray = None, copy: CallersArray = None) -> HostArray:
        """The numbers, if they are known; SciPy's sparse matrices get an object, and defer products to this array."""
        if not is_tracer(self.value):
            return np.array(self.value, dtype)
        caller = sys._getframe(1)
        if caller.f_globals.get("__name__") != "scipy.sparse._base" and caller.f_code.co_name != "multiply":
            raise UntraceableError(_plain_array(caller))
        held = np.empty((), object)
        held[()] = self
        return held

    def __hash__(self) -> int:
        raise TypeError("unhashable type: a value that depends on the unknowns")

    def item(self, *index: CallersArray) -> CallersArray:
        return self.numbers("item() of a value that depends on the unknowns: leave it out").item(*index)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: CallersArray, **keywords: CallersArray
    ) -> CallersArray:
        if any(isinstance(part, Selected) for part in inputs):
            return NotImplemented
        (out,), where = keywords.pop("out", (None,)), unwrap(keywords.pop("where", True))
        if isinstance(out, Traced) and not isinstance(out.layout, np.ndarray):
            out = None  # `a += b` replaces a number of NumPy's
        values, keywords = unwrap(inputs), unwrap(keywords)
        if method == "at":
            return _update_at(ufunc, inputs[0], key_of(inputs[1]), *values[2:])
        matrix = next((part for part in inputs if scipy.sparse.issparse(part)), None)
        if matrix is not None:
            result = times_sparse(ufunc, matrix, *inputs)
        elif has_tracer(values):
            result = apply_ufunc(ufunc, method, values, keywords)
        else:
            result = getattr(ufunc, method)(*values, **keywords)
        if out is None and where is not True:
            raise UntraceableError("`where=` without `out=` leaves entries undefined: use np.where")
        return wrap(result, FINITE.get(ufunc)) if out is None else _store(out, result, where)

    def __array_function__(
        self, function: CallersArray, types: object, args: CallersArray, keywords: CallersArray
    ) -> CallersArray:
        name = function.__name__
        if name in OF_LAYOUTS.split():
            return function(*unwrap(args, "layout"), **unwrap(keywords, "layout"))
        if name in WRITES:
            return WRITES[name](*args, **keywords)
        if name in FILLED.split():
            return fill(function, *args, **keywords)
        if name in VIEWS.split() and isinstance(args[0] if args else None, Traced):
            return _view(function, *args, **keywords)
        out = keywords.pop("out", None)
        values, given = unwrap(args), unwrap(keywords)
        is_traced = has_tracer([values, given])
        result = apply_function(function, values, given) if is_traced else function(*values, **given)
        assumed = getattr(args[0], "assumed", None) if name in ("all", "any") and args else None
        return wrap(result, assumed) if out is None else _store(out, result, True)

    def __array_namespace__(self, api_version: str | None = None) -> object:
        return self.namespace

    def __getattr__(self, name: str) -> CallersArray:
        if name in ARRAY_METHODS.split():
            return partial(getattr(np, name), self)
        if name in PROPERTIES.split():
            return getattr(self.layout, name)
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.numbers(f"the attribute `{name}` of an array that depends on the unknowns").copy(), name)

    def reshape(self, *shape: CallersArray, order: CallersArray = "C") -> CallersArray:
        return np.reshape(self, shape[0] if len(shape) == 1 else shape, order=order)

    def transpose(self, *axes: CallersArray) -> CallersArray:
        return np.transpose(self, (axes[0] if len(axes) == 1 else axes) if axes else None)

    def astype(self, dtype: CallersArray, copy: bool = True, **_: CallersArray) -> CallersArray:
        return self if not copy and self.dtype == dtype else wrap(cast(self.value, np.dtype(dtype)))

    def copy(self, order: CallersArray = "C") -> CallersArray:
        return Traced(self.value, np.empty_like(self.layout, order=order))

    def flatten(self, order: CallersArray = "C") -> CallersArray:
        return np.ravel(self, order).copy()

    def fill(self, value: CallersArray) -> None:
        self[...] = value

    def sort(self, axis: int = -1) -> None:
        self[...] = np.sort(self, axis)

    @property
    def flat(self) -> CallersArray:
        line = operator.methodcaller("reshape", -1)
        return Traced.part(self, np.empty(self.size, self.dtype), line, line)

    @flat.setter
    def flat(self, value: CallersArray) -> None:
        self.flat[...] = value


for _name, _convert, _problem in (
    ("float", float, "float() of a value that depends on the unknowns: leave it out"),
    ("complex", complex, "complex() of a value that depends on the unknowns: leave it out"),
    ("int", int, "int() of a value that depends on the unknowns"),
    ("index", operator.index, "a value that depends on the unknowns is an index"),
):
    setattr(Traced, f"__{_name}__", lambda self, to=_convert, problem=_problem: to(self.numbers(problem)))


def key_of(key: CallersArray) -> CallersArray:
    """A key with the values of traced arrays, and arrays in place of lists."""
    if isinstance(key, list):
        return np.asarray(unwrap(key), dtype=None if key else int)
    if isinstance(key, tuple):
        return tuple(key_of(part) for part in key)
    if isinstance(key, slice):
        return slice(*(None if part is None else operator.index(part) for part in (key.start, key.stop, key.step)))
    return key.value if isinstance(key, Traced) else key


def unwrap(part: CallersArray, kept: str = "value") -> CallersArray:
    """Arguments with the values, or the layouts, of traced arrays in their place."""
    if isinstance(part, Traced):
        return getattr(part, kept)
    if isinstance(part, Selected):
        raise UntraceableError(ASK_WHERE)
    if isinstance(part, list | tuple):
        parts = [unwrap(item, kept) for item in part]
        return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)
    return {name: unwrap(item, kept) for name, item in part.items()} if isinstance(part, dict) else part


def wrap(result: CallersArray, assumed: bool | None = None) -> CallersArray:
    """Results as traced arrays; those without axes are numbers to NumPy."""
    if isinstance(result, list | tuple):
        parts = [wrap(item) for item in result]
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
    if not (is_tracer(result) or isinstance(result, np.ndarray | np.generic)):
        return result
    layout = np.empty(result.shape, result.dtype)
    return Traced(result, layout if result.ndim else layout[()], assumed)


def _plain_array(frame: CallersArray) -> str:
    name = ""
    while (module := frame.f_globals.get("__name__", "")).split(".")[0] in ("scipy", "numpy"):
        name, frame = f"{module.split('._')[0]}.{frame.f_code.co_name}", frame.f_back
    where = f"{name}, which computes with plain NumPy arrays" if name else "a plain NumPy array"
    way = "" if name else ": make it inside F, by np.zeros_like(x) or np.zeros"
    return f"values that depend on the unknowns enter {where}{way}"


def _entries(key: CallersArray, name: str, value: Value) -> Value:
    return once(lambda: value[key], name, value)


def _store(out: CallersArray, result: Value, where: Value) -> CallersArray:
    out = out[0] if isinstance(out, tuple) else out
    if not isinstance(out, Traced):
        raise UntraceableError("`out=` is a plain NumPy array: make it inside F, by np.zeros_like(x) or np.empty")
    if not np.can_cast(result.dtype, out.dtype, "same_kind"):
        raise TypeError(f"Cannot cast ufunc output from {result.dtype} to {out.dtype}")
    out.store(result if where is True else jnp.where(where, result, out.value))
    return out


def _update_at(ufunc: np.ufunc, array: CallersArray, key: CallersArray, *value: Value) -> None:
    if not isinstance(array, Traced) or ufunc.__name__ not in UPDATE_NAMES:
        raise UntraceableError(f"np.{ufunc.__name__}.at on a plain array, or of a kind that is not known")
    array.store(getattr(jnp.asarray(array.value).at[key], UPDATE_NAMES[ufunc.__name__])(*map(as_value, value)))


def fill(function: CallersArray, *args: CallersArray, **keywords: CallersArray) -> Traced:
    """What np.zeros, np.full_like and similar functions give, which may be filled with traced values later."""
    first = unwrap(args[:1], "layout" if function.__name__ in FILLED.split() else "value")
    args, keywords = (*first, *unwrap(args[1:])), unwrap(keywords)
    keywords.pop("device", None)
    known = [np.zeros(part.shape, part.dtype) if is_tracer(part) else part for part in (*args, *keywords.values())]
    made = function(*known[: len(args)], **dict(zip(keywords, known[len(args) :])))
    if function.__name__.startswith("empty"):
        made.fill(0)
    array = Traced(made, np.empty_like(made))
    for value in filter(is_tracer, (*args, *keywords.values())):
        array[...] = wrap(value)
    return array


def _view(function: CallersArray, array: Traced, *args: CallersArray, **keywords: CallersArray) -> CallersArray:
    args, keywords = unwrap(args), unwrap(keywords)
    layout = function(array.layout, *args, **keywords)
    is_part = function.__name__ in ("real", "imag") and array.dtype.kind == "c"

    def of(value: Value) -> CallersArray:
        inside = (value, *args)
        return apply_function(function, inside, keywords) if is_tracer(value) else function(*inside, **keywords)

    def part_of(layout: HostArray, read: Callable[[Value], Value], places: CallersArray) -> Traced:
        if np.may_share_memory(layout, array.layout):
            return Traced.part(array, layout, read, _refuse if is_part else places)
        return Traced(read(array.value), layout)

    def places(indices: HostArray) -> CallersArray:
        return function(indices, *args, **keywords)

    if not isinstance(layout, list | tuple):
        return part_of(layout, of, places)

    def component(function: Callable[..., CallersArray], i: int) -> Callable[[CallersArray], CallersArray]:
        return lambda value: function(value)[i]

    return type(layout)(part_of(part, component(of, i), component(places, i)) for i, part in enumerate(layout))


def _refuse(_: HostArray) -> CallersArray:
    raise UntraceableError("the real or imaginary part of an array is assigned: add the parts in its place")
