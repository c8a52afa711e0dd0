"""The namespace of distributed arrays: those functions of the array API standard that the solvers call.

Elementwise functions are NumPy's ufuncs, which `DistributedArray.__array_ufunc__` applies to the local parts.
Reductions over the split axis and products that contract it end with one collective. What would have to move numbers
between ranks raises a TypeError, and so does every name that is missing here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from implicitsolve._arrays.namespace import numpy_namespace
from implicitsolve._typing import HostArray
from implicitsolve.distributed._array import DistributedArray, aligned, elementwise, is_operand, replicate, run_of
from implicitsolve.distributed._layout import completed, repartitioned

__array_api_version__ = "2023.12"

float32, float64, complex64, complex128 = np.float32, np.float64, np.complex64, np.complex128
finfo, isdtype = numpy_namespace.finfo, numpy_namespace.isdtype


class MissingFunctionError(TypeError, AttributeError):
    """A function that distributed arrays do not have; an AttributeError too, for `hasattr`."""


def __getattr__(name: str) -> Any:
    """NumPy's ufunc of that name; anything else is not available."""
    function = getattr(numpy_namespace, name, None)
    if isinstance(function, np.ufunc) and function.signature is None:
        return function
    raise MissingFunctionError(
        f"`{name}` is not available for DistributedArrays, which have what the solvers call: write functions of one "
        "rank's part, on NumPy arrays, for distributed.problem, or use `x.local`"
    )


def check_not_split(name: str, x: DistributedArray, axis: int) -> None:
    """Raise if a function would need entries of other ranks."""
    if x.axis is not None and axis % x.ndim == x.axis:
        raise TypeError(
            f"{name}: axis {x.axis} of {x!r} is partitioned across ranks, and this needs numbers of other ranks"
        )


# Types


def asarray(x: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> DistributedArray:
    """Return x, or a copy; anything but a distributed array is taken as what all ranks hold."""
    if not isinstance(x, DistributedArray):
        return replicate(np.array(x, dtype=dtype, copy=copy))
    return x.like(np.array(x.local, dtype=dtype, copy=copy))


def astype(x: DistributedArray, dtype: Any, /, *, copy: bool = True, device: Any = None) -> DistributedArray:
    """Return x in another type; x itself if that is allowed and changes nothing."""
    return x if x.dtype == dtype and not copy else x.like(x.local.astype(dtype, copy=True))


def result_type(*operands: Any) -> Any:
    """Return the common type."""
    return numpy_namespace.result_type(*(x.local if isinstance(x, DistributedArray) else x for x in operands))


def zeros_like(x: DistributedArray, /, *, dtype: Any = None, device: Any = None) -> DistributedArray:
    """Return zeros, split as x."""
    return x.like(np.zeros_like(x.local, dtype=dtype))


def empty_like(x: DistributedArray, /, *, dtype: Any = None, device: Any = None) -> DistributedArray:
    """Return an uninitialized array, split as x."""
    return x.like(np.empty_like(x.local, dtype=dtype))


def ones_like(x: DistributedArray, /, *, dtype: Any = None, device: Any = None) -> DistributedArray:
    """Return ones, split as x."""
    return x.like(np.ones_like(x.local, dtype=dtype))


def eye(n: int, /, *, dtype: Any = None, device: Any = None) -> DistributedArray:
    """Return an identity matrix that all ranks hold."""
    return replicate(np.eye(n, dtype=dtype))


# Elementwise functions that are not ufuncs


def where(condition: Any, x: Any, y: Any, /) -> DistributedArray:
    """Return entries of x where the condition holds, else of y."""
    return elementwise(numpy_namespace.where, condition, x, y)


def real(x: DistributedArray, /) -> DistributedArray:
    """Return real parts."""
    return x.like(np.real(x.local))


def imag(x: DistributedArray, /) -> DistributedArray:
    """Return imaginary parts."""
    return x.like(np.imag(x.local))


# Shapes


def reshape(x: DistributedArray, /, shape: tuple[int, ...], *, copy: bool | None = None) -> DistributedArray:
    """Return x in another shape, in which the split axis is found by `repartitioned`."""
    new = completed(x.size, tuple(int(length) for length in shape))
    if x.axis is None or x.comm is None:
        return replicate(np.reshape(x.local, new))
    old = x.shape
    axis, counts = (x.axis, x.counts) if new == old else repartitioned(old, x.axis, x.counts, new)
    local = np.reshape(x.local, (*new[:axis], counts[x.comm.rank], *new[axis + 1 :]))
    return DistributedArray(local.copy() if copy else local, axis, x.comm, counts)


def permute_dims(x: DistributedArray, /, axes: tuple[int, ...]) -> DistributedArray:
    """Return a view with the axes in another order."""
    places = [axis % x.ndim for axis in axes]
    axis = None if x.axis is None else places.index(x.axis)
    return DistributedArray(np.transpose(x.local, places), axis, x.comm, x.counts)


def matrix_transpose(x: DistributedArray, /) -> DistributedArray:
    """Return a view of the transposes of a stack of matrices."""
    if x.ndim < 2:
        raise ValueError(f"matrix_transpose: the array must have at least 2 axes, got {x.ndim}")
    return permute_dims(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def broadcast_to(x: DistributedArray, /, shape: tuple[int, ...]) -> DistributedArray:
    """Return a view of another shape, in which the split axis has the same length."""
    if x.axis is None:
        return replicate(np.broadcast_to(x.local, shape))
    axis = len(shape) - x.ndim + x.axis
    if shape[axis] != x.shape[x.axis]:
        raise ValueError(f"broadcast_to: axis {x.axis} of {x!r} is split, and cannot get the length {shape[axis]}")
    local = np.broadcast_to(x.local, (*shape[:axis], x.local.shape[x.axis], *shape[axis + 1 :]))
    return DistributedArray(local, axis, x.comm, x.counts)


def concat(arrays: Sequence[DistributedArray], /, *, axis: int = 0) -> DistributedArray:
    """Join arrays along an axis that is not split; if some are split, replicated ones are cut to this rank's run."""
    for x in arrays:
        check_not_split("concat", x, axis)
    split = next((x for x in arrays if x.axis is not None), None)
    if split is None or split.axis is None or split.comm is None:
        return replicate(np.concatenate([x.local for x in arrays], axis=axis))
    firsts = [x[tuple(slice(0, 1 if i == axis % x.ndim else None) for i in range(x.ndim))] for x in arrays]
    aligned(firsts)  # raises unless all are partitioned alike
    run = split.axis - split.ndim, split.start, split.local.shape[split.axis]
    local = np.concatenate([x.local if x.axis is not None else run_of(x.local, *run) for x in arrays], axis=axis)
    return split.like(local)


def stack(arrays: Sequence[DistributedArray], /, *, axis: int = 0) -> DistributedArray:
    """Join arrays of one shape along a new axis."""
    place = axis % (arrays[0].ndim + 1)
    parts, split_axis, comm, counts = aligned(arrays)
    local = np.stack(parts, axis=place)
    if split_axis is None:
        return replicate(local)
    old = arrays[0].ndim + split_axis
    return DistributedArray(local, old + (place <= old), comm, counts)


def take(x: DistributedArray, indices: Any, /, *, axis: int = -1) -> DistributedArray:
    """Return entries along an axis that is not split, as a copy."""
    check_not_split("take", x, axis)
    places = indices.__array__() if isinstance(indices, DistributedArray) else np.asarray(indices)
    return x.like(np.take(x.local, places, axis=axis))


# Reductions


def sum(x: DistributedArray, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> DistributedArray:
    """Return sums."""
    return _reduced(lambda local, **over: numpy_namespace.sum(local, dtype=dtype, **over), "sum", x, axis, keepdims)


def max(x: DistributedArray, /, *, axis: Any = None, keepdims: bool = False) -> DistributedArray:
    """Return maxima; NaN where there is one."""
    least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min  # of a rank without entries
    return _reduced(lambda local, **over: np.max(local, initial=least, **over), "max", x, axis, keepdims)


def any(x: DistributedArray, /, *, axis: Any = None, keepdims: bool = False) -> DistributedArray:
    """Return whether an entry is true."""
    bits = x.like(np.not_equal(x.local, 0).astype(np.uint8))
    return elementwise(np.equal, max(bits, axis=axis, keepdims=keepdims), 1)


def all(x: DistributedArray, /, *, axis: Any = None, keepdims: bool = False) -> DistributedArray:
    """Return whether each entry is true."""
    bits = x.like(np.equal(x.local, 0).astype(np.uint8))
    return elementwise(np.equal, max(bits, axis=axis, keepdims=keepdims), 0)


def _reduced(
    function: Callable[..., Any], operation: Any, x: DistributedArray, axis: Any, keepdims: bool
) -> DistributedArray:
    """Reduce over one axis, several, or all; `operation` ("sum" or "max") combines the ranks' results."""
    axes = range(x.ndim) if axis is None else (axis if isinstance(axis, tuple) else (axis,))
    places = tuple(sorted(place % x.ndim for place in axes))
    local = np.asarray(function(x.local, axis=places, keepdims=keepdims))
    if x.axis is None or x.comm is None:
        return replicate(local)
    if x.axis in places:
        return replicate(x.comm.allreduce(local, operation))
    kept = x.axis if keepdims else x.axis - len([place for place in places if place < x.axis])
    return DistributedArray(local, kept, x.comm, x.counts)


# Products


def matmul(a: Any, b: Any, /) -> DistributedArray:
    """Return products of stacks of matrices; one collective if the axis that is summed over is split."""
    if not (is_operand(a) and is_operand(b)):
        raise TypeError(f"matmul: expected DistributedArrays, got {type(a).__name__} and {type(b).__name__}")
    at_a, at_b = (None if x.axis is None else x.axis - x.ndim for x in (a, b))
    if at_a == -1 or at_b == -2:
        return _contracted(a, b)
    if at_a == -2 or at_b == -1:
        if at_a is not None and at_b is not None:
            raise ValueError(f"matmul: only one of the matrices may be split, got {a!r} and {b!r}")
        axis, split = (-2, a) if at_a == -2 else (-1, b)
        local = np.matmul(a.local, b.local)
        return DistributedArray(local, local.ndim + axis, split.comm, split.counts)
    return elementwise(np.matmul, a, b)  # replicated matrices, or stacks that are partitioned alike


def _contracted(a: DistributedArray, b: DistributedArray) -> DistributedArray:
    """A product whose inner axis is split."""
    parts, axis, comm, _ = aligned((matrix_transpose(a), b))
    if axis != -2 or comm is None:
        raise ValueError(f"matmul: the inner axis must be partitioned alike, got {a!r} and {b!r}")
    return replicate(comm.allreduce(np.matmul(np.swapaxes(parts[0], -1, -2), parts[1]), "sum"))


def vecdot(a: DistributedArray, b: DistributedArray, /) -> DistributedArray:
    """Return sums of conj(a) b over the last axis; one collective if that is split."""
    parts, axis, comm, counts = aligned((a, b))
    local: HostArray = np.asarray(numpy_namespace.vecdot(*parts))
    if axis == -1 and comm is not None:
        return replicate(comm.allreduce(local, "sum"))
    return DistributedArray(local, None if axis is None else local.ndim + 1 + axis, comm, counts)


def solve(a: DistributedArray, b: DistributedArray, /) -> DistributedArray:
    """Solve systems of a stack, each of which one rank holds as a whole."""
    for x in (a, b):
        if x.axis is not None and x.axis >= x.ndim - 2:
            raise TypeError(f"solve: every rank must hold whole matrices, got {x!r}")
    return elementwise(numpy_namespace.linalg.solve, a, b)


linalg = SimpleNamespace(solve=solve)

DistributedArray.namespace = sys.modules[__name__]
