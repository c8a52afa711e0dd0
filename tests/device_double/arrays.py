"""Arrays of a device that is none: they behave as CuPy's do, refuse what CuPy refuses, and count what would cost time.

The numbers live in NumPy arrays that no code but this package can reach. Each allocation has a guard on both sides,
which kernels must not touch.
"""

from __future__ import annotations

import sys
from functools import reduce
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.device_double import cuda
from tests.device_double.account import Memory, allocate, counts, memory_of, note, peak, sites, transfer, transfers

__all__ = ["adopt", "counts", "ndarray", "peak", "shared", "sites", "transfers", "unwrap", "wrap"]


class ndarray:  # noqa: N801 - CuPy's name
    """A CuPy array, as far as this project uses one."""

    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None, order: str = "C"):
        if memptr is not None or strides is not None:
            raise NotImplementedError("the double makes no views of pointers")
        self._host = empty(shape, dtype, order)

    # What stays on the device

    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    nbytes = property(lambda self: self._host.nbytes)
    itemsize = property(lambda self: self._host.itemsize)
    strides = property(lambda self: self._host.strides)
    device = property(lambda self: cuda.Device(0))
    T = property(lambda self: wrap(self._host.T))
    mT = property(lambda self: wrap(np.matrix_transpose(self._host)))
    real = property(lambda self: wrap(self._host.real) if self.dtype.kind == "c" else self)
    imag = property(lambda self: wrap(self._host.imag))

    @property
    def flags(self) -> Flags:
        flags = self._host.flags
        return Flags(c_contiguous=flags.c_contiguous, f_contiguous=flags.f_contiguous, owndata=self.base is None)

    @property
    def data(self) -> SimpleNamespace:
        return SimpleNamespace(ptr=self._host.ctypes.data, device=self.device, device_id=0)

    @property
    def base(self) -> Any:
        memory = memory_of(self._host)
        return None if memory is None or self.nbytes == memory.size_of_array else wrap(self._host.base)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        strides = None if self.flags.c_contiguous else self.strides
        return {"shape": self.shape, "typestr": self.dtype.str, "strides": strides, "data": (self.data.ptr, False)}

    def __len__(self) -> int:
        return len(self._host)

    def __iter__(self) -> Any:
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        key, _ = _index(self, key)
        return wrap(self._host[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        key, is_advanced = _index(self, key)
        note("setitem")
        if not isinstance(value, ndarray):
            if is_advanced:
                transfer("to_device", "setitem", np.asarray(value).nbytes)
            elif isinstance(value, np.ndarray) and value.ndim:
                raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
            elif isinstance(value, (list, tuple)):
                raise TypeError(f"Unsupported type {type(value)}")
        with np.errstate(all="ignore"):
            self._host[key] = unwrap(value)

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise AttributeError(f"the double of cupy.ndarray has no {name!r}: add it, if CuPy has it")
        function = getattr(sys.modules["cupy"], name)
        return lambda *arguments, **keywords: function(self, *arguments, **keywords)

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> ndarray:
        return wrap(self._host.reshape(*shape, order=order))

    def transpose(self, *axes: Any) -> ndarray:
        return wrap(self._host.transpose(*axes))

    def flatten(self, order: str = "C") -> ndarray:
        note("flatten")
        return wrap(self._host.flatten(order))

    def fill(self, value: Any) -> None:
        self[...] = value

    def sort(self, axis: int = -1, kind: Any = None) -> None:
        note("sort")
        self._host.sort(axis)

    def conj(self) -> ndarray:
        return sys.modules["cupy"].conj(self) if self.dtype.kind == "c" else self

    conjugate = conj

    def clip(self, min: Any = None, max: Any = None, out: Any = None) -> ndarray:
        return sys.modules["cupy"].clip(self, min, max, out=out)

    def astype(
        self, dtype: Any, order: str = "K", casting: Any = None, subok: Any = None, copy: bool = True
    ) -> ndarray:
        is_kept = order in "KA" or self._host.flags[f"{order}_CONTIGUOUS"]
        if not copy and is_kept and self.dtype == np.dtype(dtype):
            return self
        note("astype")
        made = empty_like(self._host, dtype, order)
        with np.errstate(all="ignore"):
            made[...] = self._host.astype(dtype)
        return adopt(made)

    def copy(self, order: str = "C") -> ndarray:
        return self.astype(self.dtype, order)

    def view(self, dtype: Any = None, type: Any = None) -> ndarray:
        return wrap(self._host.view() if dtype is None else self._host.view(dtype))

    # What waits for the device

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> Any:
        """Copy to NumPy."""
        transfer("to_host", "get", self.nbytes)
        if out is None:
            return self._host.copy(order=order)
        if out.dtype != self.dtype or out.shape != self.shape:
            raise ValueError("`out` must have the array's dtype and shape")
        out[...] = self._host
        return out

    def set(self, arr: Any, stream: Any = None) -> None:
        if arr.dtype != self.dtype or arr.shape != self.shape:
            raise ValueError("an array of the same dtype and shape can be set")
        transfer("to_device", "set", self.nbytes)
        self._host[...] = arr

    def _scalar(self, name: str) -> Any:
        transfer("to_host", name, self.nbytes)
        return self._host

    def item(self) -> Any:
        if self.size != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        return self._scalar("item").item()

    def tolist(self) -> Any:
        return self._scalar("tolist").tolist()

    def __bool__(self) -> bool:
        return bool(self._scalar("bool"))

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __int__(self) -> int:
        return int(self._scalar("int"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __repr__(self) -> str:
        return repr(self._scalar("repr"))

    def __format__(self, format_spec: str) -> str:
        return format(self._scalar("format"), format_spec)

    def __copy__(self) -> ndarray:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> ndarray:
        return self.copy()

    def __reduce__(self) -> Any:
        return sys.modules["cupy"].array, (self.get(),)

    # What NumPy's functions do with it, and what is refused

    def __array__(self, *arguments: Any, **keywords: Any) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array "
            "explicitly."
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        function = getattr(sys.modules["cupy"], ufunc.__name__, None)
        out = keywords.pop("out", ())
        if method != "__call__" or function is None:
            return NotImplemented
        if not all(isinstance(x, (ndarray, np.ndarray)) or type(x) in SCALARS for x in (*inputs, *out)):
            return NotImplemented
        if ufunc.__name__ in COMPARISONS.values():
            inputs = tuple(x.item() if isinstance(x, np.ndarray) and x.ndim == 0 else x for x in inputs)
        return function(*inputs, **keywords, **({"out": out[0]} if out else {}))

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        try:
            module = reduce(getattr, function.__module__.split(".")[1:], sys.modules["cupy"])
            found = getattr(module, function.__name__)
        except AttributeError:
            return NotImplemented
        if found is function or not all(issubclass(t, (ndarray, np.ndarray)) for t in types):
            return NotImplemented
        return found(*arguments, **keywords)

    def __dlpack__(self, **keywords: Any) -> Any:
        raise BufferError("the double's memory is not a device's: nobody may read it")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


class Flags:
    """CuPy knows these three, as attributes and as keys, and cannot tell what may be written."""

    def __init__(self, **flags: bool):
        self.__dict__.update(flags)

    def __getitem__(self, name: str) -> bool:
        return self.__dict__[name.lower()]


BY_FUNCTIONS = """
    swapaxes ravel squeeze diagonal sum prod max min mean any all argmax argmin cumsum cumprod dot take round
    repeat nonzero argsort trace std var put ptp searchsorted
"""
METHODS = set(BY_FUNCTIONS.split())
SCALARS = {int, float, complex, bool, *(np.dtype(char).type for char in "?bBhHiIlLqQefdFD")}
BINARY = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "true_divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "power",
    "matmul": "matmul",
    "lshift": "left_shift",
    "rshift": "right_shift",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "divmod": "divmod",
}
COMPARISONS = {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}
UNARY = {"neg": "negative", "abs": "absolute", "invert": "invert"}


def _binary(name: str) -> tuple[Any, Any, Any]:
    """The operator, the reflected one, and the one in place."""
    ufunc = getattr(np, name)

    def operate(a: Any, b: Any, other: Any) -> Any:
        if isinstance(other, ndarray):
            return getattr(sys.modules["cupy"], name)(a, b)
        if _leaves_it_to(other):
            return NotImplemented
        return ufunc(a, b)  # CuPy asks NumPy, who asks all arguments

    def in_place(self: ndarray, other: Any) -> Any:
        return getattr(sys.modules["cupy"], name)(self, other, out=self)

    return lambda self, other: operate(self, other, other), lambda self, other: operate(other, self, other), in_place


def _leaves_it_to(other: Any) -> bool:
    """Whether the other operand's operator is to decide."""
    if hasattr(other, "__array_ufunc__"):
        return other.__array_ufunc__ is None
    return getattr(other, "__array_priority__", 0) > ndarray.__array_priority__


def _unary(name: str) -> Any:
    return lambda self: getattr(sys.modules["cupy"], name)(self)


for _name, _ufunc in BINARY.items():
    for _prefix, _operation in zip(("", "r", "i"), _binary(_ufunc)):
        if (_prefix, _name) not in {("i", "matmul"), ("i", "divmod")}:  # Python falls back to a = a @ b
            setattr(ndarray, f"__{_prefix}{_name}__", _operation)
for _name, _ufunc in COMPARISONS.items():
    setattr(ndarray, f"__{_name}__", _binary(_ufunc)[0])
for _name, _ufunc in UNARY.items():
    setattr(ndarray, f"__{_name}__", _unary(_ufunc))
ndarray.__pos__ = lambda self: self  # type: ignore[attr-defined]


def empty(shape: Any, dtype: Any, order: str = "C") -> np.ndarray[Any, Any]:
    """New memory in the order of rows or columns."""
    shape = tuple(shape) if np.iterable(shape) else (shape,)
    return allocate(shape[::-1], dtype).T if order == "F" else allocate(shape, dtype)


def empty_like(x: np.ndarray[Any, Any], dtype: Any, order: str) -> np.ndarray[Any, Any]:
    """New memory; order "K" keeps the order of the axes."""
    if order == "K":
        axes = sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis]))
        return allocate([x.shape[axis] for axis in axes], dtype).transpose(np.argsort(axes))
    return empty(x.shape, dtype, "F" if order == "F" or (order == "A" and x.flags.fnc) else "C")


def adopt(host: np.ndarray[Any, Any]) -> ndarray:
    """An array of the device in this very memory."""
    made = ndarray.__new__(ndarray)
    made.__dict__["_host"] = host
    return made


def shared(host: np.ndarray[Any, Any]) -> ndarray:
    """An array of the device on the memory of another library: for tests of what crosses without a copy."""
    return adopt(host.view(Memory).view(np.ndarray))


def wrap(result: Any) -> Any:
    """What NumPy returned, as arrays of the device; what is no view of its memory gets some, ordered by rows."""
    if isinstance(result, tuple):
        made = [wrap(part) for part in result]
        return type(result)(*made) if hasattr(result, "_fields") else tuple(made)
    if isinstance(result, list):
        return [wrap(part) for part in result]
    if not isinstance(result, (np.ndarray, np.generic)):
        return result
    host = np.asarray(result)
    if memory_of(host) is None:
        host = allocate(host.shape, host.dtype)
        host[...] = result
    return adopt(host)


def unwrap(value: Any) -> Any:
    """What NumPy computes with."""
    if isinstance(value, ndarray):
        return value._host
    if type(value) in (tuple, list):
        return type(value)(unwrap(part) for part in value)
    return value


def _index(x: ndarray, key: Any) -> tuple[Any, bool]:
    """A key for NumPy, and whether it holds arrays. Integers beyond the end begin anew, as CuPy's do."""
    parts = list(key) if isinstance(key, tuple) else [key]
    found: list[Any] = []
    is_advanced = False
    for i, part in enumerate(parts):
        if isinstance(part, (list, tuple, np.ndarray, bool, np.bool_)):
            part = sys.modules["cupy"].asarray(part)  # a transfer
            parts[i] = part.astype(np.int32) if part.size == 0 and part.dtype.kind == "f" else part
    taken = sum(_axes_of(part) for part in parts)
    axis = 0
    for part in parts:
        if isinstance(part, ndarray):
            is_advanced = True
            counts["launch"] += 1
            if part.dtype == bool:
                transfer("to_host", "boolean index", 4)  # how many are true
            elif part.dtype.kind in "iu" and x.shape[axis]:
                part = adopt(part._host % x.shape[axis])
        axis += x.ndim - taken if part is Ellipsis else _axes_of(part)
        found.append(unwrap(part))
    if not any(part is Ellipsis for part in parts):
        found.append(...)  # so that a number is a view, too
    return tuple(found), is_advanced


def _axes_of(part: Any) -> int:
    """Axes that a part of a key is about."""
    if part is None or part is Ellipsis:
        return 0
    return part.ndim if isinstance(part, ndarray) and part.dtype == bool else 1
