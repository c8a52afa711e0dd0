"""Array libraries: the namespace of an array, its dtypes, norms on the host, and rows by index.

No other module depends on the library of an array.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace as _array_namespace
from array_api_compat import device, is_array_api_obj, is_numpy_array, is_torch_array
from array_api_compat import is_cupy_array as is_cupy_array
from array_api_compat import numpy as _numpy

from implicitsolve._typing import Array, HostArray, Indices, Namespace

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
    """The namespace of arrays of different types."""
    libraries = sorted({library(x) for x in arrays if is_array(x)})
    if len(libraries) > 1:
        raise TypeError(f"arrays must be of one library, got some of {' and '.join(libraries)}: convert them first")
    return _array_namespace(*arrays)


def library(x: Array) -> str:
    """Return the name of an array's library."""
    return _array_namespace(x).__name__.removeprefix("array_api_compat.").partition("._")[0]


def is_array(x: object) -> bool:
    """Whether `x` is an array of a library that follows the array API standard."""
    return isinstance(x, np.ndarray) or bool(is_array_api_obj(x))


@dataclass(frozen=True, kw_only=True)
class ArrayTraits:
    """What a class of arrays offers to the solvers beyond the array API standard; `declare_arrays` registers it."""

    kernels: tuple[str, ...] = ()  # backends with kernels for these arrays, best first
    is_partitioned: bool = False  # whether an axis may be partitioned across ranks: then no rank can address all of it
    empty_vectors: Callable[[Any, tuple[int, ...]], Any] | None = None  # (like, axes): uninitialized (*axes, N)
    # In place of those of `operators`, for block-banded matrices of such blocks:
    band_products: Callable[[Any, int, bool], Any] | None = None
    band_transposed: Callable[..., Any] | None = None
    block_lu: Callable[[Any], Any] | None = None  # (settings): the direct method in place of `BlockLU` with these


PLAIN = ArrayTraits()
_traits: dict[type, ArrayTraits] = {}


def declare_arrays(kind: type, traits: ArrayTraits) -> None:
    """Register what a class of arrays offers."""
    _traits[kind] = traits


def traits_of(x: Array) -> ArrayTraits:
    """What the class of an array offers beyond the standard."""
    return _traits.get(type(x), PLAIN)


def check_whole(owner: str, x: Array, instead: str) -> None:
    """Raise if an array may be partitioned across ranks; `instead` names what accepts such arrays."""
    if traits_of(x).is_partitioned:
        raise TypeError(f"{owner} does not accept arrays partitioned across ranks: use {instead}")


def empty_vectors(like: Array, *axes: int) -> Array:
    """Return an uninitialized array (*axes, N) for vectors like those of `like` (..., N)."""
    own = traits_of(like).empty_vectors
    if own is not None:
        return own(like, axes)
    return array_namespace(like).empty((*axes, like.shape[-1]), dtype=like.dtype, device=device(like))


def zero_vectors(like: Array, *axes: int) -> Array:
    """Return the same, filled with zeros."""
    if traits_of(like).empty_vectors is None:
        return array_namespace(like).zeros((*axes, like.shape[-1]), dtype=like.dtype, device=device(like))
    vectors = empty_vectors(like, *axes)
    vectors[...] = 0.0
    return vectors


def copied(x: Array) -> Array:
    """Return a copy of an array."""
    return x.copy() if type(x) is np.ndarray else array_namespace(x).asarray(x, copy=True)


def to_host(x: Array) -> HostArray:
    """Copy a short array to NumPy. On a GPU each call is one transfer, and synchronizes with the device."""
    if isinstance(x, np.ndarray):
        return x
    if is_cupy_array(x):
        return x.get()
    return np.asarray(x) if isinstance(x, np.generic) else np.from_dlpack(x)


def from_host(values: HostArray, like: Array) -> Array:
    """Bring short host values to the library, device and dtype of `like` (its real dtype for real values)."""
    is_count = values.dtype.kind in "iub"
    if isinstance(like, np.ndarray):
        if is_count or values.dtype == like.dtype:
            return values
        return values.astype(like.dtype if values.dtype.kind == "c" else np.finfo(like.dtype).dtype, copy=False)
    xp = array_namespace(like)
    if is_count:
        return xp.asarray(values, device=device(like))
    dtype = like.dtype
    if values.dtype.kind != "c" and xp.isdtype(dtype, "complex floating"):
        dtype = real_dtype(xp, dtype)
    return xp.asarray(values, dtype=dtype, device=device(like))


def real_dtype(xp: Namespace, dtype: Any) -> Any:
    """Real dtype of the same precision as `dtype`."""
    real = xp.finfo(dtype).dtype
    return getattr(xp, real) if isinstance(real, str) else real  # torch gives its name


def host_dtype(dtype: Any) -> np.dtype[Any]:
    """Return NumPy's dtype of the same name."""
    try:
        return np.dtype(dtype)
    except TypeError:
        return np.dtype(str(dtype).rsplit(".", maxsplit=1)[-1])


@lru_cache(maxsize=32)
def eps(xp: Namespace, dtype: Any) -> float:
    """Rounding unit of `dtype`: the distance from 1 to the next larger number."""
    return float(xp.finfo(dtype).eps)


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
    if not is_array(x) or isinstance(x, np.matrix):
        try:
            x = np.asarray(x)
        except ValueError as error:
            raise ValueError(f"`{name}` must be an array or nested lists of one shape: {error}") from None
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
    raise TypeError(f"`{name}` must hold real or complex numbers, got dtype {x.dtype}")


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


FEW_ROWS = 4  # rows up to which `clear` writes one by one: a transfer of indices to a device costs a few launches
SHORT_ROW = 256  # entries; norm_max of rows of 16 takes a quarter of the time by one flat reduction


def norm_max(x: Array) -> HostArray:
    """Largest magnitude of each row of x (B, N), on the host; NaN where the row holds one."""
    if x.shape[1] == 0:
        return np.zeros(x.shape[0])
    if _is_row(x):
        return np.maximum.reduce(np.abs(x), axis=1).astype(np.float64, copy=False)
    if not isinstance(x, np.ndarray):
        return Norms(x).largest(0)
    if x.shape[1] == 1:
        return np.abs(x[:, 0]).astype(np.float64, copy=False)
    if is_complex(x):
        largest = np.max(np.abs(x), axis=1)
    elif x.shape[1] <= SHORT_ROW:
        magnitudes = np.abs(x, order="C").reshape(-1)
        largest = np.maximum.reduceat(magnitudes, np.arange(0, magnitudes.size, x.shape[1])) if len(x) else x[:, 0]
    else:  # no temporary array of magnitudes
        largest = np.maximum(np.max(x, axis=1), -np.min(x, axis=1))
    return largest.astype(np.float64) + 0.0  # -0.0 becomes 0.0


def norm2(x: Array) -> HostArray:
    """Euclidean norm of each row of x (B, N), on the host, without overflow or underflow of the squares.

    A row whose sum of squares leaves the safe range is scaled by a power of two near its largest entry and summed
    again.
    """
    if not isinstance(x, np.ndarray):
        return Norms(x).two(0)
    with np.errstate(all="ignore"):
        if _is_row(x):
            size = math.sqrt(x[0].dot(x[0]))
            low, high = safe_range(numpy_namespace, x.dtype)
            if low < size < high or (size == 0 and not x[0].any()):
                return np.asarray([size])
        elif x.shape[1] == 1:
            return norm_max(x)
        plain = np.sqrt(_squares(x))
        return plain if is_safe(plain, numpy_namespace, x.dtype).all() else _scaled_norm2(x, norm_max(x))


def _scaled_norm2(x: Array, scale: HostArray) -> HostArray:
    """The norms of rows whose largest magnitudes are `scale`."""
    usable = (scale > 0) & np.isfinite(scale)
    divisor = np.ldexp(1.0, np.where(usable, np.frexp(scale)[1] - 1, 0))  # a power of two: the division is exact
    scaled = x / from_host(divisor, x)[:, None]
    return np.where(usable, divisor * np.sqrt(_squares(scaled)), scale)


class Norms:
    """Norms of the rows of arrays (B, N), on the host.

    On a device all of them are computed and transferred together when the first one is needed; for NumPy arrays each
    is computed when needed.
    """

    kernel: ClassVar[Any]  # `kernels.vectors`, set there: the kernels import this module

    def __init__(self, *arrays: Array, numbers: HostArray | None = None) -> None:
        self.arrays = arrays
        self._numbers = numbers  # what `_measured` returns

    def two(self, i: int) -> HostArray:
        """Euclidean norms of the rows of the i-th array; see `norm2`."""
        x = self.arrays[i]
        if isinstance(x, np.ndarray):
            return norm2(x)
        with np.errstate(all="ignore"):
            plain, largest = np.sqrt(self._measured()[:, 2 * i]), self.largest(i)
            usable = (largest > 0) & np.isfinite(largest)
            is_certain = ~usable | is_safe(plain, array_namespace(x), x.dtype)
            return np.where(usable, plain, largest) if is_certain.all() else _scaled_norm2(x, largest)

    def largest(self, i: int, rows: slice | Indices = slice(None)) -> HostArray:
        """Largest magnitudes of the rows, or some of them, of the i-th array; see `norm_max`."""
        x = self.arrays[i]
        return norm_max(x[rows]) if isinstance(x, np.ndarray) else self._measured()[rows, 2 * i + 1].copy()

    def _measured(self) -> HostArray:
        """Sums of squares and largest magnitudes of each array's rows, (B, 2 * arrays)."""
        if self._numbers is None:
            x = max(self.arrays, key=lambda x: x.shape[1])
            if 0 in x.shape:
                self._numbers = np.zeros((x.shape[0], 2 * len(self.arrays)))
            else:
                with np.errstate(all="ignore"):
                    work = self.kernel.select(x, size=x.shape[1])
                    self._numbers = to_host(work.measure(self.arrays)).astype(np.float64)
        return self._numbers


def _is_row(x: Array) -> bool:
    """Whether `x` is one row of real NumPy numbers: for one small system the number of calls is what costs."""
    return type(x) is np.ndarray and x.shape[0] == 1 and x.dtype.char in "fd"


def _squares(x: Array) -> HostArray:
    """Sum of the squared magnitudes of each row, on the host."""
    xp = array_namespace(x)
    squares = xp.vecdot(x, x)
    return to_host(xp.real(squares) if is_complex(x) else squares).astype(np.float64)


def is_complex(x: Array) -> bool:
    """Whether `x` has a complex dtype."""
    if isinstance(x.dtype, np.dtype):
        return x.dtype.kind == "c"
    return bool(array_namespace(x).isdtype(x.dtype, "complex floating"))


def is_safe(norms: HostArray, xp: Namespace, dtype: Any) -> HostArray:
    """Where a norm from a plain sum of squares is accurate: no square overflows or underflows."""
    low, high = safe_range(xp, dtype)
    return (norms > low) & (norms < high)


@lru_cache(maxsize=32)
def safe_range(xp: Namespace, dtype: Any) -> tuple[float, float]:
    """Return the norms between which squares neither overflow nor underflow."""
    info = xp.finfo(dtype)
    low = math.sqrt(float(info.smallest_normal)) / float(info.eps)
    return low, math.sqrt(float(info.max)) * float(info.eps)


def near_reciprocals(size: Array) -> Array:
    """Powers of 2, which round nothing, nearest to 1 / size; 1 where that is 0 (an empty row of a singular matrix)."""
    xp = array_namespace(size)
    mantissa, exponents = xp.frexp(size)
    return xp.ldexp(mantissa**0, -exponents)


def gather(x: Array, indices: Indices) -> Array:
    """Return a copy of the rows of `x` at host indices, or at indices from `sent`."""
    xp = array_namespace(x)
    if not isinstance(indices, np.ndarray):
        return xp.take(x, indices, axis=0)
    if _is_all(indices, x):
        return xp.asarray(x, copy=True)
    return xp.take(x, from_host(indices, x), axis=0)


def sent(indices: Indices, like: Array) -> Any:
    """Move host indices to the device of `like`, for repeated use in `gather` and `scatter`."""
    return from_host(indices, like) if takes_indices(like) else indices


def _is_all(indices: Indices, x: Array) -> bool:
    """Whether indices are all rows of a device array in order, so that no transfer is needed."""
    if isinstance(x, np.ndarray):
        return False
    return indices.size == x.shape[0] and bool((indices == np.arange(indices.size)).all())


def takes_indices(x: Array) -> bool:
    """Whether ``x[:, indices] = rows`` works, which the standard does not require."""
    return bool(is_numpy_array(x) or is_cupy_array(x))


def scatter(x: Array, indices: Any, rows: Array) -> None:
    """Write `rows` into `x` at host indices, or at indices from `sent`, in place."""
    if isinstance(indices, np.ndarray) and _is_all(indices, x):
        x[...] = rows
    elif takes_indices(x):
        x[indices] = rows
    else:
        for row, index in enumerate(indices):
            x[int(index), ...] = rows[row, ...]


def merged(where: HostArray, x: Array, y: Array) -> Array:
    """Return rows of x (b, N) where that holds, and of y elsewhere."""
    if not isinstance(x, np.ndarray):
        return array_namespace(x).where(from_host(where, x)[:, None], x, y)
    rows, other = np.flatnonzero(~where), x.copy()
    other[rows] = y[rows]
    return other


def clear(x: Array, where: HostArray) -> None:
    """Write zeros into some rows of `x`, in place; a few of them one by one, without a transfer of indices."""
    rows = np.flatnonzero(where)
    if rows.size > FEW_ROWS and takes_indices(x):
        x[from_host(rows, x)] = 0.0
    else:
        for row in rows.tolist():
            x[row, ...] = 0.0
