"""The functions of the array API standard on distributed arrays: what ``x.__array_namespace__()`` returns.

Elementwise functions and those that leave the split axis alone work on the local parts. Reductions over it and products
that contract it end with one collective. What would have to move numbers between ranks raises a TypeError.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from implicitsolve._namespace import numpy_namespace
from implicitsolve._typing import HostArray
from implicitsolve.distributed import _extensions, _linalg
from implicitsolve.distributed._array import DistributedArray, aligned, elementwise, replicated, run_of
from implicitsolve.distributed._reductions import reduced
from implicitsolve.distributed._reshape import completed, moved

__array_api_version__ = "2023.12"

e, inf, nan, newaxis, pi = np.e, np.inf, np.nan, None, np.pi

TYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "complex64", "complex128"),
)
ELEMENTWISE = (
    *("abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_invert"),
    *("bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "ceil", "conj", "copysign"),
    *("cos", "cosh", "divide", "equal", "exp", "expm1", "floor", "floor_divide", "greater", "greater_equal", "hypot"),
    *("imag", "isfinite", "isinf", "isnan", "less", "less_equal", "log", "log1p", "log2", "log10", "logaddexp"),
    *("logical_and", "logical_not", "logical_or", "logical_xor", "maximum", "minimum", "multiply", "negative"),
    *("nextafter", "not_equal", "positive", "pow", "real", "remainder", "round", "sign", "signbit", "sin", "sinh"),
    *("sqrt", "square", "subtract", "tan", "tanh", "trunc", "where"),
)
ALONG_AN_AXIS = ("argsort", "cumulative_sum", "flip", "roll", "sort")
OVER_AN_AXIS = ("argmax", "argmin", "std", "var")
MADE = ("arange", "empty", "eye", "full", "linspace", "ones", "zeros")
MADE_LIKE = ("empty_like", "full_like", "ones_like", "zeros_like")

finfo, iinfo, isdtype, can_cast = (
    numpy_namespace.finfo,
    numpy_namespace.iinfo,
    numpy_namespace.isdtype,
    numpy_namespace.can_cast,
)


implicitsolve, linalg = _extensions, _linalg  # the first is what `_namespace.extension` looks for
matmul, matrix_transpose = _linalg.matmul, _linalg.matrix_transpose
tensordot, vecdot = _linalg.tensordot, _linalg.vecdot


def _elementwise(name: str) -> Any:
    function = getattr(numpy_namespace, name)

    def apply(*operands: Any) -> DistributedArray:
        return elementwise(function, *operands)

    return _named(apply, name)


def _along(name: str) -> Any:
    function = getattr(numpy_namespace, name)
    usual = -1 if name in ("argsort", "sort") else None

    def apply(x: DistributedArray, /, *args: Any, axis: int | None = usual, **options: Any) -> DistributedArray:
        check_whole(name, x, axis)
        return _like(x, function(x.local, *args, axis=axis, **options))

    return _named(apply, name)


def _over(name: str) -> Any:
    function = getattr(numpy_namespace, name)

    def apply(x: DistributedArray, /, *, axis: Any = None, keepdims: bool = False, **options: Any) -> DistributedArray:
        def of_local(local: HostArray, axis: tuple[int, ...], keepdims: bool) -> HostArray:
            places = None if len(axis) == local.ndim else axis[0] if len(axis) == 1 else axis
            return function(local, axis=places, keepdims=keepdims, **options)

        for place in axis if isinstance(axis, tuple) else (axis,):
            check_whole(name, x, place)
        return reduced(of_local, name, x, axis, keepdims)

    return _named(apply, name)


def _made(name: str) -> Any:
    function = getattr(numpy_namespace, name)

    def make(*args: Any, device: Any = None, **options: Any) -> DistributedArray:
        return replicated(function(*args, **options))

    return _named(make, name)


def _made_like(name: str) -> Any:
    function = getattr(numpy_namespace, name)

    def make(x: DistributedArray, /, *args: Any, device: Any = None, **options: Any) -> DistributedArray:
        return _like(x, function(x.local, *args, **options))

    return _named(make, name)


def _named(function: Any, name: str) -> Any:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"As the standard's `{name}`."
    return function


globals().update({name: np.dtype(name).type for name in TYPES})
globals().update({name: _elementwise(name) for name in ELEMENTWISE})
globals().update({name: _along(name) for name in ALONG_AN_AXIS})
globals().update({name: _over(name) for name in OVER_AN_AXIS})
globals().update({name: _made(name) for name in MADE})
globals().update({name: _made_like(name) for name in MADE_LIKE})


def _like(x: DistributedArray, local: Any) -> DistributedArray:
    """An array whose axes, from the first one up to the split one, are those of x."""
    return DistributedArray(np.asarray(local), x.axis, x.comm, x.counts)


def check_whole(name: str, x: DistributedArray, axis: int | None) -> None:
    """Raise where a function would need the numbers of other ranks."""
    if x.axis is not None and (axis is None or axis % x.ndim == x.axis):
        raise TypeError(f"{name}: axis {x.axis} of {x!r} is split over ranks, and this needs numbers of other ranks")


# Types


def asarray(x: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> DistributedArray:
    """Return x, or a copy; anything but a distributed array is taken as what all ranks hold."""
    if not isinstance(x, DistributedArray):
        return replicated(np.array(x, dtype=dtype, copy=copy))
    return _like(x, np.array(x.local, dtype=dtype, copy=copy))


def astype(x: DistributedArray, dtype: Any, /, *, copy: bool = True, device: Any = None) -> DistributedArray:
    """Return x in another type; x itself where that is allowed and changes nothing."""
    return x if x.dtype == dtype and not copy else _like(x, x.local.astype(dtype, copy=True))


def result_type(*operands: Any) -> Any:
    """Return the common type."""
    return numpy_namespace.result_type(*(x.local if isinstance(x, DistributedArray) else x for x in operands))


def clip(x: DistributedArray, /, min: Any = None, max: Any = None) -> DistributedArray:
    """Return x within bounds."""
    x = x if min is None else elementwise(np.maximum, x, min)
    return x if max is None else elementwise(np.minimum, x, max)


# Shapes


def reshape(x: DistributedArray, /, shape: tuple[int, ...], *, copy: bool | None = None) -> DistributedArray:
    """Factor the axes anew; the split one goes along, see `moved`."""
    new = completed(x.size, tuple(int(length) for length in shape))
    if x.axis is None or x.comm is None:
        return replicated(np.reshape(x.local, new))
    old = x.shape
    axis, counts = (x.axis, x.counts) if new == old else moved(old, x.axis, x.counts, new)
    local = np.reshape(x.local, (*new[:axis], counts[x.comm.rank], *new[axis + 1 :]))
    return DistributedArray(local.copy() if copy else local, axis, x.comm, counts)


def permute_dims(x: DistributedArray, /, axes: tuple[int, ...]) -> DistributedArray:
    """Return a view whose axes are those of x in another order."""
    places = [axis % x.ndim for axis in axes]
    axis = None if x.axis is None else places.index(x.axis)
    return DistributedArray(np.transpose(x.local, places), axis, x.comm, x.counts)


def moveaxis(x: DistributedArray, source: int, destination: int, /) -> DistributedArray:
    """Return a view with one axis at another place."""
    order = [axis for axis in range(x.ndim) if axis != source % x.ndim]
    order.insert(destination % x.ndim, source % x.ndim)
    return permute_dims(x, tuple(order))


def expand_dims(x: DistributedArray, /, *, axis: int = 0) -> DistributedArray:
    """Return a view with an axis of length 1 more."""
    place = axis % (x.ndim + 1)
    return x[(*(slice(None),) * place, None)]


def squeeze(x: DistributedArray, /, axis: int | tuple[int, ...]) -> DistributedArray:
    """Return a view without some axes of length 1."""
    places = {place % x.ndim for place in (axis if isinstance(axis, tuple) else (axis,))}
    for place in places:
        if x.shape[place] != 1:
            raise ValueError(f"squeeze: `axis` must name axes of length 1, got {axis} of shape {x.shape}")
        check_whole("squeeze", x, place)
    return x[tuple(0 if place in places else slice(None) for place in range(x.ndim))]


def broadcast_to(x: DistributedArray, /, shape: tuple[int, ...]) -> DistributedArray:
    """Return a view of another shape; of the split axis, the same length."""
    if x.axis is None:
        return replicated(np.broadcast_to(x.local, shape))
    axis = len(shape) - x.ndim + x.axis
    if shape[axis] != x.shape[x.axis]:
        raise ValueError(f"broadcast_to: axis {x.axis} of {x!r} is split, and cannot get the length {shape[axis]}")
    local = np.broadcast_to(x.local, (*shape[:axis], x.local.shape[x.axis], *shape[axis + 1 :]))
    return DistributedArray(local, axis, x.comm, x.counts)


def broadcast_arrays(*arrays: DistributedArray) -> list[DistributedArray]:
    """Return views of one shape."""
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    return [broadcast_to(x, shape) for x in arrays]


def concat(arrays: Sequence[DistributedArray], /, *, axis: int | None = 0) -> DistributedArray:
    """Join arrays along an axis that is not split."""
    for x in arrays:
        check_whole("concat", x, axis)
    if axis is None:
        return replicated(np.concatenate([x.local for x in arrays], axis=None))
    parts, split_axis, comm, counts = _side_by_side(arrays, axis)
    local = np.concatenate(parts, axis=axis)
    if split_axis is not None and axis % local.ndim == local.ndim + split_axis:
        raise TypeError(f"concat: axis {axis} is split over ranks in one of the arrays, and not in another")
    return DistributedArray(local, None if split_axis is None else local.ndim + split_axis, comm, counts)


def _side_by_side(arrays: Sequence[DistributedArray], axis: int) -> tuple[list[HostArray], int | None, Any, Any]:
    """The local parts of arrays that may have different lengths along `axis`."""
    _, split_axis, comm, counts = aligned([x[_first(x, axis)] for x in arrays])
    if split_axis is None or comm is None:
        return [x.local for x in arrays], None, comm, counts
    own = counts.starts[comm.rank], counts[comm.rank]
    runs = [x.local if x.axis is not None else run_of(x.local, split_axis, *own) for x in arrays]
    return runs, split_axis, comm, counts


def _first(x: DistributedArray, axis: int) -> tuple[slice, ...]:
    """An index of the first entry along an axis, which stays."""
    return tuple(slice(0, 1) if place == axis % x.ndim and place != x.axis else slice(None) for place in range(x.ndim))


def stack(arrays: Sequence[DistributedArray], /, *, axis: int = 0) -> DistributedArray:
    """Join arrays of one shape along a new axis."""
    place = axis % (arrays[0].ndim + 1)
    parts, split_axis, comm, counts = aligned(arrays)
    local = np.stack(parts, axis=place)
    if split_axis is None:
        return replicated(local)
    old = arrays[0].ndim + split_axis
    return DistributedArray(local, old + (place <= old), comm, counts)


def unstack(x: DistributedArray, /, *, axis: int = 0) -> tuple[DistributedArray, ...]:
    """Return the parts along an axis that is not split."""
    check_whole("unstack", x, axis)
    place = axis % x.ndim
    return tuple(x[(*(slice(None),) * place, i)] for i in range(x.shape[place]))


def take(x: DistributedArray, indices: Any, /, *, axis: int = -1) -> DistributedArray:
    """Return some places of an axis that is not split, as a copy."""
    check_whole("take", x, axis)
    places = indices.__array__() if isinstance(indices, DistributedArray) else np.asarray(indices)
    return _like(x, np.take(x.local, places, axis=axis))


def tril(x: DistributedArray, /, *, k: int = 0) -> DistributedArray:
    """Return lower triangles of matrices that are not split."""
    return _triangle("tril", x, k)


def triu(x: DistributedArray, /, *, k: int = 0) -> DistributedArray:
    """Return upper triangles of matrices that are not split."""
    return _triangle("triu", x, k)


def _triangle(name: str, x: DistributedArray, k: int) -> DistributedArray:
    for axis in (-2, -1):
        check_whole(name, x, axis)
    return _like(x, getattr(np, name)(x.local, k=k))


# Reductions


def sum(x: DistributedArray, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> DistributedArray:
    """Sum."""
    return reduced(lambda local, **where: numpy_namespace.sum(local, dtype=dtype, **where), "sum", x, axis, keepdims)


def mean(x: DistributedArray, /, *, axis: Any = None, keepdims: bool = False) -> DistributedArray:
    """Arithmetic mean."""
    total = sum(x, axis=axis, keepdims=keepdims)
    return elementwise(np.divide, total, x.size / total.size if x.size else math.nan)


def max(x: DistributedArray, /, *, axis: Any = None, keepdims: bool = False) -> DistributedArray:
    """Maximum; NaN where there is one."""
    return reduced(np.max, "max", x, axis, keepdims)


def min(x: DistributedArray, /, *, axis: Any = None, keepdims: bool = False) -> DistributedArray:
    """Minimum; NaN where there is one."""
    return reduced(np.min, "min", x, axis, keepdims)


def any(x: DistributedArray, /, *, axis: Any = None, keepdims: bool = False) -> DistributedArray:
    """Whether one is true."""
    return reduced(np.any, "max", x, axis, keepdims)


def all(x: DistributedArray, /, *, axis: Any = None, keepdims: bool = False) -> DistributedArray:
    """Whether each is true."""
    return reduced(np.all, "min", x, axis, keepdims)


def prod(x: DistributedArray, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> DistributedArray:
    """Product."""
    return reduced(lambda local, **where: numpy_namespace.prod(local, dtype=dtype, **where), "prod", x, axis, keepdims)


def count_nonzero(x: DistributedArray, /, *, axis: Any = None, keepdims: bool = False) -> DistributedArray:
    """How many are not zero."""
    return sum(elementwise(np.not_equal, x, 0), axis=axis, keepdims=keepdims)


DistributedArray.namespace = sys.modules[__name__]
