"""Arrays of a device that is none: they behave as CuPy's do, refuse what CuPy refuses, and count what would cost time.

The numbers live in NumPy arrays that no code but this package can reach. Each allocation has a guard of NaN on both
sides, which kernels must not touch.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

GUARD, GUARD_BYTE = 64, 0xFE  # bytes
counts: Counter[str] = Counter()  # "to_host", "to_device", "launch", "library" since the last reset
sites: Counter[str] = Counter()  # what was called, by name
peak = {"now": 0, "most": 0}


class ndarray:  # noqa: N801 - CuPy's name
    """A CuPy array, as far as this project uses one."""

    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None, order: str = "C"):
        self._host = _allocate(shape, dtype)

    # What stays on the device

    @property
    def shape(self) -> tuple[int, ...]:
        return self._host.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._host.dtype

    @property
    def ndim(self) -> int:
        return self._host.ndim

    @property
    def size(self) -> int:
        return self._host.size

    @property
    def nbytes(self) -> int:
        return self._host.nbytes

    @property
    def itemsize(self) -> int:
        return self._host.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        return self._host.strides

    @property
    def flags(self) -> Any:
        return self._host.flags

    @property
    def device(self) -> Any:
        from tests.device_double import cuda

        return cuda.Device(0)

    @property
    def data(self) -> Any:
        return Pointer(self._host.ctypes.data)

    @property
    def T(self) -> ndarray:  # noqa: N802
        return wrap(self._host.T)

    @property
    def mT(self) -> ndarray:  # noqa: N802
        return wrap(np.matrix_transpose(self._host))

    @property
    def real(self) -> ndarray:
        return wrap(self._host.real)

    @property
    def imag(self) -> ndarray:
        return wrap(self._host.imag)

    @property
    def base(self) -> Any:
        return None if self._host.base is None else wrap(self._host.base)

    def __len__(self) -> int:
        return len(self._host)

    def __iter__(self) -> Any:
        return (wrap(self._host[i]) for i in range(len(self._host)))

    def __getitem__(self, key: Any) -> Any:
        return wrap(self._host[_index(key)], is_new=_is_advanced(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        counts["launch"] += 1
        self._host[_index(key)] = unwrap(value)

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise AttributeError(f"the double of cupy.ndarray has no {name!r}: add it, if CuPy has it")

        def method(*arguments: Any, **keywords: Any) -> Any:
            is_view = name in VIEWS
            note(name, is_view)
            with np.errstate(all="ignore"):
                out = getattr(self._host, name)(*unwrap(refused(arguments)), **unwrap(refused(keywords)))
            return wrap(out, is_new=not is_view)

        return method

    def astype(self, dtype: Any, order: str = "K", casting: Any = None, subok: Any = None, copy: bool = True) -> Any:
        if not copy and self.dtype == np.dtype(dtype):
            return self
        note("astype", False)
        with np.errstate(all="ignore"):
            return wrap(self._host.astype(dtype, order=order), is_new=True)

    def view(self, dtype: Any = None) -> ndarray:
        return wrap(self._host.view(dtype) if dtype is not None else self._host.view())

    def copy(self, order: str = "C") -> ndarray:
        note("copy", False)
        return wrap(self._host.copy(order=order), is_new=True)

    # What waits for the device

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> Any:
        """Copy to NumPy."""
        transfer("to_host", "get")
        return self._host.copy(order=order)

    def item(self, *arguments: int) -> Any:
        transfer("to_host", "item")
        return self._host.item(*arguments)

    def tolist(self) -> Any:
        transfer("to_host", "tolist")
        return self._host.tolist()

    def __bool__(self) -> bool:
        transfer("to_host", "bool")
        return bool(self._host)

    def __float__(self) -> float:
        transfer("to_host", "float")
        return float(self._host)

    def __int__(self) -> int:
        transfer("to_host", "int")
        return int(self._host)

    def __index__(self) -> int:
        transfer("to_host", "index")
        return self._host.__index__()

    def __complex__(self) -> complex:
        transfer("to_host", "complex")
        return complex(self._host)

    def __repr__(self) -> str:
        return f"device {self._host!r}"

    # What is refused

    def __array__(self, *arguments: Any, **keywords: Any) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array "
            "explicitly."
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        if method != "__call__":
            return NotImplemented
        note(ufunc.__name__, False)
        out = keywords.pop("out", None)
        if out is not None:
            keywords["out"] = unwrap(out)
        with np.errstate(all="ignore"):
            result = ufunc(*unwrap(refused(inputs)), **keywords)
        return out[0] if out is not None else wrap(result, is_new=True)

    def __dlpack__(self, **keywords: Any) -> Any:
        raise TypeError("the double's memory is not a device's: nobody may read it")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


class Pointer:
    """An address."""

    def __init__(self, ptr: int):
        self.ptr = ptr


VIEWS = {"reshape", "transpose", "swapaxes", "ravel", "squeeze", "diagonal"}
METHODS = VIEWS | {
    *("sum", "prod", "max", "min", "mean", "any", "all", "argmax", "argmin", "cumsum", "dot", "fill", "take"),
    *("conj", "conjugate", "clip", "round", "repeat", "flatten", "nonzero", "sort", "argsort", "trace", "std", "var"),
}


def _binary(name: str) -> Any:
    def operation(self: ndarray, other: Any) -> Any:
        if isinstance(other, np.ndarray):
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        if not isinstance(other, (ndarray, int, float, complex, bool, np.generic)):
            return NotImplemented
        note(name, False)
        with np.errstate(all="ignore"):
            result = getattr(self._host, name)(unwrap(other))
        if result is NotImplemented:
            return result
        return self if name.startswith("__i") and name != "__invert__" else wrap(result, is_new=True)

    return operation


def _unary(name: str) -> Any:
    def operation(self: ndarray) -> Any:
        note(name, False)
        with np.errstate(all="ignore"):
            return wrap(getattr(self._host, name)(), is_new=True)

    return operation


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"):
    for _prefix in ("", "r", "i"):
        setattr(ndarray, f"__{_prefix}{_name}__", _binary(f"__{_prefix}{_name}__"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(ndarray, f"__{_name}__", _binary(f"__{_name}__"))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(ndarray, f"__{_name}__", _unary(f"__{_name}__"))


def note(name: str, is_view: bool) -> None:
    """Count what a device would be asked to do."""
    if not is_view:
        counts["launch"] += 1
        sites[name] += 1


def transfer(kind: str, name: str) -> None:
    """Count what the host would wait for; a stream that is being captured forbids it."""
    counts[kind] += 1
    sites[f"{kind}: {name}"] += 1


def _allocate(shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """Memory that holds NaN, between guards of other bytes: what is read there is large and wrong."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.full(size + 2 * GUARD, GUARD_BYTE, np.uint8)
    raw[GUARD : GUARD + size] = 0xFF
    return raw[GUARD : GUARD + size].view(dtype).reshape(shape)


def guards_hold(x: np.ndarray[Any, Any]) -> bool:
    """Whether nobody wrote beyond the ends of an allocation."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x.dtype != np.uint8 or bool((x[:GUARD] == GUARD_BYTE).all() and (x[-GUARD:] == GUARD_BYTE).all())


def wrap(result: Any, is_new: bool = False) -> Any:
    """What NumPy returned, as arrays of the device; new ones get memory of their own, with guards."""
    if isinstance(result, tuple):
        made = [wrap(part, is_new) for part in result]
        return type(result)(*made) if hasattr(result, "_fields") else tuple(made)
    if isinstance(result, list):
        return [wrap(part, is_new) for part in result]
    if not isinstance(result, (np.ndarray, np.generic)):
        return result
    result = np.asarray(result)
    array = ndarray.__new__(ndarray)
    if is_new and result.size:
        array._host = _allocate(result.shape, result.dtype)
        array._host[...] = result
        if result.ndim > 1 and result.flags.f_contiguous and not result.flags.c_contiguous:
            array._host = result  # its order is kept
    else:
        array._host = result
    return array


def unwrap(value: Any) -> Any:
    """What NumPy computes with."""
    if isinstance(value, ndarray):
        return value._host
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)(unwrap(part) for part in value)
    if isinstance(value, dict):
        return {name: unwrap(part) for name, part in value.items()}
    return value


def refused(value: Any) -> Any:
    """The same, unless it holds a NumPy array: CuPy's functions take none."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    for part in parts:
        if isinstance(part, np.ndarray):
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        refused(part)
    return value


def _index(key: Any) -> Any:
    """A key for NumPy. CuPy would take NumPy's arrays, by a transfer, and wait for boolean ones."""
    parts = key if isinstance(key, tuple) else (key,)
    found = []
    for part in parts:
        if isinstance(part, ndarray):
            if part.dtype == bool:
                transfer("to_host", "boolean index")
            counts["launch"] += 1
            found.append(part._host)
        else:
            if isinstance(part, (np.ndarray, list)):
                transfer("to_device", "index")
                counts["launch"] += 1
            found.append(part)
    return tuple(found) if isinstance(key, tuple) else found[0]


def _is_advanced(key: Any) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return any(isinstance(part, (ndarray, np.ndarray, list)) for part in parts)
