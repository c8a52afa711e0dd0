"""Products of distributed arrays, and linear algebra of stacks of matrices that ranks hold whole."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from implicitsolve._namespace import numpy_namespace
from implicitsolve._typing import HostArray
from implicitsolve.distributed._array import DistributedArray, aligned, elementwise, is_operand
from implicitsolve.distributed._reductions import reduced


def matmul(a: Any, b: Any, /) -> DistributedArray:
    """Product of stacks of matrices; one collective where the axis that is summed over is split."""
    if not (is_operand(a) and is_operand(b)):
        raise TypeError(f"matmul: expected DistributedArrays, got {type(a).__name__} and {type(b).__name__}")
    if a.ndim == 1:
        return matmul(a[None, :], b)[..., 0, :]
    if b.ndim == 1:
        return matmul(a, b[:, None])[..., 0]
    at_a, at_b = (None if x.axis is None else x.axis - x.ndim for x in (a, b))
    if at_a == -1 or at_b == -2:
        return _contracted(a, b)
    if at_a is None and at_b is None:
        return DistributedArray(np.matmul(a.local, b.local), None, None)
    if at_a == -2 or at_b == -1:
        if at_a is not None and at_b is not None:
            raise ValueError(f"matmul: only one of the matrices may be split, got {a!r} and {b!r}")
        axis: int = -2 if at_a == -2 else -1
        split = a if at_a == -2 else b
        local = np.matmul(a.local, b.local)
        return DistributedArray(local, local.ndim + axis, split.comm, split.counts)
    return elementwise(np.matmul, a, b)  # stacks that are split alike


def _contracted(a: DistributedArray, b: DistributedArray) -> DistributedArray:
    """A product whose inner axis is split."""
    parts, axis, comm, _ = aligned((_swapped(a), b))
    if axis != -2:
        raise ValueError(f"matmul: the inner axis must be split alike, got {a!r} and {b!r}")
    local = np.matmul(np.swapaxes(parts[0], -1, -2), parts[1])
    return DistributedArray(comm.allreduce(local, "sum"), None, None)  # type: ignore[union-attr]


def _swapped(x: DistributedArray) -> DistributedArray:
    """A view with the last two axes swapped."""
    axis = x.axis
    if axis is not None and axis >= x.ndim - 2:
        axis = 2 * x.ndim - 3 - axis
    return DistributedArray(np.swapaxes(x.local, -1, -2), axis, x.comm, x.counts)


def matrix_transpose(x: DistributedArray, /) -> DistributedArray:
    """Return a view of the transposes of a stack of matrices."""
    if x.ndim < 2:
        raise ValueError(f"matrix_transpose: the array must have at least 2 axes, got {x.ndim}")
    return _swapped(x)


def vecdot(a: DistributedArray, b: DistributedArray, /, *, axis: int = -1) -> DistributedArray:
    """Sum of conj(a) b over an axis; one collective where that is split."""
    parts, split_axis, comm, counts = aligned((a, b))
    local = np.asarray(numpy_namespace.vecdot(*parts, axis=axis))
    if split_axis is None:
        return DistributedArray(local, None, None)
    ndim = max(a.ndim, b.ndim)
    place, split_place = axis % ndim, ndim + split_axis
    if place == split_place:
        return DistributedArray(comm.allreduce(local, "sum"), None, None)  # type: ignore[union-attr]
    return DistributedArray(local, split_place - (place < split_place), comm, counts)


def tensordot(a: DistributedArray, b: DistributedArray, /, *, axes: Any = 2) -> DistributedArray:
    """Contract axes of arrays that are not split."""
    if a.axis is not None or b.axis is not None:
        raise TypeError("tensordot: the arrays must not be split; `matmul` and `vecdot` contract a split axis")
    return DistributedArray(np.tensordot(a.local, b.local, axes=axes), None, None)


def vector_norm(x: DistributedArray, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> DistributedArray:
    """Euclidean or maximum norm; one collective where a split axis is measured."""
    if ord == 2:
        squares = reduced(lambda local, **where: np.sum(np.abs(local) ** 2, **where), "sum", x, axis, keepdims)
        return elementwise(np.sqrt, squares)
    if ord == math.inf:
        return reduced(np.max, "max", elementwise(np.abs, x), axis, keepdims)
    raise ValueError(f"vector_norm: `ord` must be 2 or inf, got {ord!r}")


def diagonal(x: DistributedArray, /, *, offset: int = 0) -> DistributedArray:
    """Diagonals of a stack of matrices."""
    _check_matrices("diagonal", x)
    local = np.diagonal(x.local, offset=offset, axis1=-2, axis2=-1)
    return DistributedArray(local, x.axis, x.comm, x.counts)


def trace(x: DistributedArray, /, *, offset: int = 0) -> DistributedArray:
    """Sums of the diagonals of a stack of matrices."""
    return reduced(np.sum, "sum", diagonal(x, offset=offset), -1, False)


def solve(a: DistributedArray, b: DistributedArray, /) -> DistributedArray:
    """Solve systems of a stack."""
    for x in (a, b):
        _check_matrices("solve", x)
    return elementwise(numpy_namespace.linalg.solve, a, b)


def inv(x: DistributedArray, /) -> DistributedArray:
    """Inverses of a stack of matrices."""
    return _of_matrices("inv", x)


def det(x: DistributedArray, /) -> DistributedArray:
    """Determinants of a stack of matrices."""
    return _of_matrices("det", x)


def cholesky(x: DistributedArray, /) -> DistributedArray:
    """Lower Cholesky factors of a stack of matrices."""
    return _of_matrices("cholesky", x)


def _of_matrices(name: str, x: DistributedArray) -> DistributedArray:
    _check_matrices(name, x)
    local: HostArray = np.asarray(getattr(np.linalg, name)(x.local))
    return DistributedArray(local, x.axis, x.comm, x.counts)


def _check_matrices(name: str, x: DistributedArray) -> None:
    if x.axis is not None and x.axis >= x.ndim - 2:
        raise TypeError(f"{name}: every rank must hold whole matrices, got {x!r}")
