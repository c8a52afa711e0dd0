"""The library of an array: its namespace of functions, its dtypes, and what a caller may pass as an array.

No other module depends on the library of an array.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, TypeGuard

import numpy as np
from array_api_compat import array_namespace as _array_namespace
from array_api_compat import device as device
from array_api_compat import is_array_api_obj
from array_api_compat import is_cupy_array as is_cupy_array
from array_api_compat import is_numpy_array as is_numpy_array
from array_api_compat import is_torch_array as is_torch_array
from array_api_compat import numpy as _numpy

from implicitsolve._typing import Array, ArrayT, HostArray, Namespace

numpy_namespace: Namespace = _numpy
_known: dict[type, Namespace] = {}


def array_namespace(*arrays: Array) -> Namespace:
    """Return the namespace of the arrays' common library; different libraries raise a TypeError."""
    for x in arrays:
        if (kind := type(x)) is not np.ndarray:
            if any(type(y) is not kind for y in arrays):
                return _common_namespace(arrays)
            if kind not in _known:
                _known[kind] = _array_namespace(x)
            return _known[kind]
    return _numpy


def _common_namespace(arrays: tuple[Array, ...]) -> Namespace:
    libraries = sorted({library(x) for x in arrays if is_array(x)})
    if len(libraries) > 1:
        raise TypeError(f"arrays must be of one library, got some of {' and '.join(libraries)}: convert them first")
    return _array_namespace(*arrays)


def library(x: Array) -> str:
    return _array_namespace(x).__name__.removeprefix("array_api_compat.").partition("._")[0]


def is_array(x: object) -> TypeGuard[Array]:
    """Whether `x` is an array of a library that follows the array API standard."""
    return isinstance(x, np.ndarray) or bool(is_array_api_obj(x))


def is_subclass(x: object) -> bool:
    """Whether `x` is a NumPy array with a meaning of its own, such as a matrix, a file, or a unit."""
    return isinstance(x, np.ndarray) and type(x) is not np.ndarray


def is_complex(x: Array) -> bool:
    if isinstance(x.dtype, np.dtype):
        return x.dtype.kind == "c"
    return bool(array_namespace(x).isdtype(x.dtype, "complex floating"))


def real_dtype(xp: Namespace, dtype: Any) -> Any:
    """Real dtype of the same precision as `dtype`."""
    real = xp.finfo(dtype).dtype
    return getattr(xp, real) if isinstance(real, str) else real  # torch gives its name


def host_dtype(dtype: Any) -> np.dtype[Any]:
    try:
        return np.dtype(dtype)
    except TypeError:
        return np.dtype(str(dtype).rsplit(".", maxsplit=1)[-1])


@lru_cache(maxsize=32)
def eps(xp: Namespace, dtype: Any) -> float:
    """Rounding unit of `dtype`: the distance from 1 to the next larger number."""
    return float(xp.finfo(dtype).eps)


@lru_cache(maxsize=32)
def smallest_normal(xp: Namespace, dtype: Any) -> float:
    """The smallest number of `dtype` that has all its digits."""
    return float(xp.finfo(dtype).smallest_normal)


@lru_cache(maxsize=32)
def safe_range(xp: Namespace, dtype: Any) -> tuple[float, float]:
    """Return the norms between which squares neither overflow nor underflow."""
    info = xp.finfo(dtype)
    low = math.sqrt(float(info.smallest_normal)) / float(info.eps)
    return low, math.sqrt(float(info.max)) * float(info.eps)


def is_safe(norms: HostArray, xp: Namespace, dtype: Any) -> HostArray:
    """Where a norm from a plain sum of squares is accurate: no square overflows or underflows."""
    low, high = safe_range(xp, dtype)
    return (norms > low) & (norms < high)


def quotient(x: ArrayT, size: ArrayT) -> ArrayT:
    """Return x / size for a positive size, which may be subnormal: quotients of complex numbers would be NaN."""
    if is_complex(x):
        xp = array_namespace(x)
        tiny = 2.0**20 * float(xp.finfo(x.dtype).smallest_normal)
        factor = 1.0 + 2.0**60 * xp.astype(size < tiny, size.dtype)
        x, size = x * factor, size * factor
    return x / size


def copy_array(x: Any) -> Any:
    return x.copy() if type(x) is np.ndarray else array_namespace(x).asarray(x, copy=True)


def near_reciprocals(size: ArrayT, xp: Any = None) -> ArrayT:
    """Powers of 2, which round nothing, nearest to 1 / size; 1 where that is 0 (an empty row of a singular matrix)."""
    xp = array_namespace(size) if xp is None else xp
    mantissa, exponents = xp.frexp(size)
    return xp.ldexp(mantissa**0, -xp.maximum(exponents, math.frexp(smallest_normal(xp, size.dtype))[1]))


FOREIGN = {"dask": "x.compute(), a NumPy array", "sparse": "x.todense(), a NumPy array"}  # lazy, or without storage
FOREIGN |= dict.fromkeys(("jax", "jaxlib"), "np.asarray(x), or use implicitsolve.jax.root")  # immutable


def as_inexact(x: Any, name: str) -> Array:
    """Return `x` as a floating-point array of its own library; lists, pandas and xarray become NumPy, integers float64.

    Anything but numbers, and tensors of torch that are sparse, not on the CPU, or require grad, raise a TypeError.
    """
    if type(x) is np.ndarray and x.dtype.char in "fdFD":
        return x
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"`{name}` must not be a masked array: fill it first")
    module = type(x).__module__.partition(".")[0]
    if module in FOREIGN:
        raise TypeError(f"`{name}` must not be an array of {module}: pass {FOREIGN[module]}")
    if not is_array(x) or is_subclass(x):
        x = _host_array(x, name)
    check_tensor(x, name)
    xp = array_namespace(x)
    try:
        is_floating = xp.isdtype(x.dtype, ("real floating", "complex floating"))
        is_whole = xp.isdtype(x.dtype, ("integral", "bool"))
    except TypeError:
        is_floating = is_whole = False
    if is_whole:
        return xp.astype(x, xp.float64)
    if is_floating:
        return xp.astype(x, xp.float32) if xp.finfo(x.dtype).bits == 16 else x
    kinds = " and ".join(sorted(set(_kinds(x))))
    got = f"{'objects of ' if x.ndim else ''}{kinds}" if kinds else f"dtype {x.dtype}"
    raise TypeError(f"`{name}` must hold real or complex numbers, got {got}{_remedy(x)}")


LAMBDIFY = "turn the expressions into a function by sympy.lambdify"
REMEDIES: dict[str, str] = {
    **dict.fromkeys(("Add", "Mul", "Pow", "Symbol"), LAMBDIFY),
    "dict": "pass it to root as x0, and F gets and returns one like it; or concatenate its arrays to one vector",
    **dict.fromkeys(("generator", "map", "dict_values"), "make it a list by list(...)"),
    **dict.fromkeys(("coo", "csc", "csr", "dia"), "make it an array by .toarray()"),
}


def _kinds(x: Array) -> list[str]:
    """The types of the objects in an array of NumPy's."""
    return [type(v).__name__ for v in np.asarray(x).flat] if x.dtype == object else []


def _remedy(x: Array) -> str:
    if x.dtype.names:
        return ": pass a dict of its fields"
    numbers, other = "solves are in float64: pass np.array(x, dtype=float)", "pass an array, or a list of numbers"
    is_number = x.dtype == object and all(hasattr(v, "__float__") for v in np.asarray(x).flat)
    kinds = [kind.removesuffix("_matrix").removesuffix("_array") for kind in _kinds(x)]
    return ": " + next((REMEDIES[k] for k in kinds if k in REMEDIES), numbers if is_number else other)


def _host_array(x: object, name: str) -> HostArray:
    try:
        return np.asarray(x)
    except ValueError as error:
        way = "; arrays of several shapes: concatenate them to one vector and take them apart in F"
        raise ValueError(f"`{name}` must be an array or nested lists of one shape: {error}{way}") from None


def as_host_numbers(value: object, name: str) -> HostArray:
    """What a user's function returned as an array, from numbers of pandas, mpmath, SymPy, decimal."""
    is_other = not hasattr(value, "__array__") and hasattr(value, "tolist")  # a matrix of mpmath
    x = _host_array(value.tolist() if is_other else value, name)  # type: ignore[attr-defined]
    for kind in (float, complex) if x.dtype == object else ():
        try:
            return np.asarray([kind(number) for number in x.flat]).reshape(x.shape)
        except (TypeError, ValueError):
            continue
    return x


def check_tensor(x: Array, name: str) -> None:
    """Raise if `x` is a tensor of torch that is sparse, not on the CPU, or requires grad."""
    if not is_torch_array(x):
        return
    if str(x.layout) != "torch.strided":
        raise TypeError(f"`{name}` must be a dense tensor, got layout {x.layout}")
    if x.device.type != "cpu":
        raise TypeError(
            f"`{name}` must be on the CPU as a tensor of torch, got one on {x.device}: implicitsolve.torch takes CUDA "
            f"tensors, and so do all functions as CuPy arrays, cupy.from_dlpack(tensor)"
        )
    if x.requires_grad:
        raise TypeError(
            f"`{name}` must not require grad, which would be lost here: use implicitsolve.torch, whose roots "
            f"have gradients, or detach it"
        )
