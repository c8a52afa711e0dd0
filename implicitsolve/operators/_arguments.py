"""Arguments of operators: vectors of every shape, shapes, dtypes and scalar factors."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np

from implicitsolve._arrays.namespace import array_namespace, host_dtype, is_array, is_complex
from implicitsolve._typing import Array, CallersArray, DType

Matvec: TypeAlias = Callable[[CallersArray], CallersArray]
Shape: TypeAlias = tuple[int, ...]
T = TypeVar("T")


def multiply(product: Matvec, v: Array, batch_shape: Shape, expected: Shape, returned: Shape, name: str) -> Array:
    """The product with v, whose systems have the expected shape or are flat; a flat v gives a flat result."""
    v = v if is_array(v) else np.asarray(v)
    full = batch_shape + expected
    if v.shape == full:
        return product(v)
    xp = array_namespace(v)
    flat = (*batch_shape, math.prod(expected))
    if v.shape == flat:
        return xp.reshape(product(xp.reshape(v, full)), (*batch_shape, math.prod(returned)))
    for tail, ending in ((full, returned), (flat, (math.prod(returned),))):
        lead = v.ndim - len(tail)
        if lead > 0 and v.shape[lead:] == tail:
            return _by_lead(product, v, v.shape[:lead], full, batch_shape + ending)
    shapes = " or ".join(str(shape) for shape in dict.fromkeys((full, flat)))
    raise ValueError(f"LinearOperator.{name}: the argument must have shape {shapes}, got {tuple(v.shape)}")


def multiply_columns(product: Matvec, columns: Array, batch_shape: Shape, rows: int, returned: int) -> Array:
    columns = checked_columns("LinearOperator", columns, batch_shape, rows)
    xp = array_namespace(columns)
    if not columns.shape[-1]:
        return xp.zeros((*batch_shape, returned, 0), dtype=columns.dtype)
    return xp.stack([product(columns[..., i]) for i in range(columns.shape[-1])], axis=-1)


def multiply_stacked(owner: str, A: Any, product: Matvec, columns: Any) -> Array:
    """The products with all columns (*batch_shape, N, K) at once, by one product with a state of last axis K."""
    columns = checked_columns(owner, columns, A.batch_shape, A.shape[1])
    xp = array_namespace(columns)
    stacked = xp.reshape(columns, (*A.batch_shape, *A.in_shape, columns.shape[-1]))
    return xp.reshape(product(stacked), columns.shape)


def checked_columns(owner: str, columns: Any, batch_shape: Shape, rows: int) -> Array:
    columns = columns if is_array(columns) else np.asarray(columns)
    if columns.ndim != len(batch_shape) + 2 or tuple(columns.shape[:-1]) != (*batch_shape, rows):
        expected = (*batch_shape, rows, "K")
        raise ValueError(f"{owner}: the columns must have shape {expected}, got {tuple(columns.shape)}")
    return columns


def _by_lead(product: Matvec, v: Array, lead: Shape, full: Shape, out_shape: Shape) -> Array:
    xp = array_namespace(v)
    rows = xp.reshape(v, (math.prod(lead), *full))
    if not rows.shape[0]:
        return xp.zeros(lead + out_shape, dtype=v.dtype)
    out = xp.stack([product(rows[i, ...]) for i in range(rows.shape[0])])
    return xp.reshape(out, lead + out_shape)


def checked_shape(shape: Any, name: str) -> tuple[int, ...]:
    lengths = (shape,) if isinstance(shape, int | np.integer) else shape
    try:
        checked = tuple(map(operator.index, lengths)) if isinstance(lengths, list | tuple) else (-1,)
    except TypeError:
        checked = (-1,)
    if min(checked, default=0) < 0:
        raise ValueError(f"LinearOperator: `{name}` must be a tuple of non-negative integers, got {shape!r}")
    return checked


def conj(x: Array) -> Array:
    return array_namespace(x).conj(x) if is_complex(x) else x


def common_dtype(a: Any, b: Any) -> Any:
    return a if type(a) is type(b) and a == b else np.result_type(host_dtype(a), host_dtype(b))


def checked_dtype(dtype: DType) -> Any:
    """NumPy's form of a NumPy dtype; the dtypes of other libraries are returned unchanged."""
    try:
        own = host_dtype(dtype)
        return own if isinstance(dtype, str | type | np.dtype) else dtype
    except (TypeError, ValueError):
        raise TypeError(f"LinearOperator: `dtype` must be a data type, got {dtype!r}") from None


def as_number(factor: Any) -> complex | float:
    """Return a scalar as a Python number, which widens no dtype."""
    if isinstance(factor, int) and not isinstance(factor, bool):
        return factor
    if isinstance(factor, float | complex):  # NumPy's scalars among them
        return complex(factor) if isinstance(factor, complex) else float(factor)
    scalar: Any = factor
    if is_array(scalar) and scalar.ndim == 0:
        return complex(scalar) if "complex" in str(scalar.dtype) else float(scalar)
    raise TypeError(f"LinearOperator: a factor must be a number, got {type(factor).__name__}")


def then(make: Callable[..., T] | None, change: Callable[[T], T]) -> Callable[..., T] | None:
    """`make` followed by `change`; None if `make` is None."""
    return None if make is None else lambda *arguments: change(make(*arguments))
