"""One product for arguments of every shape: states, flat vectors, vectors behind leading axes, and columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from implicitsolve._namespace import array_namespace, is_array
from implicitsolve._typing import Array

Matvec: TypeAlias = Callable[[Array], Array]
Shape: TypeAlias = tuple[int, ...]


def multiply(product: Matvec, v: Array, batch_shape: Shape, expected: Shape, returned: Shape, name: str) -> Array:
    """The product with v, whose systems have the shape that is expected or are flat; then so is the result."""
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
    """The products with the columns of a matrix (*batch_shape, rows, K), as columns."""
    columns = columns if is_array(columns) else np.asarray(columns)
    xp = array_namespace(columns)
    if columns.ndim != len(batch_shape) + 2 or columns.shape[-2] != rows:
        expected = (*batch_shape, rows, "K")
        raise ValueError(f"LinearOperator: the columns must have shape {expected}, got {columns.shape}")
    if not columns.shape[-1]:
        return xp.zeros((*batch_shape, returned, 0), dtype=columns.dtype)
    return xp.stack([product(columns[..., i]) for i in range(columns.shape[-1])], axis=-1)


def _by_lead(product: Matvec, v: Array, lead: Shape, full: Shape, out_shape: Shape) -> Array:
    """Loop over leading axes that the operator does not know."""
    xp = array_namespace(v)
    rows = xp.reshape(v, (math.prod(lead), *full))
    if not rows.shape[0]:
        return xp.zeros(lead + out_shape, dtype=v.dtype)
    out = xp.stack([product(rows[i, ...]) for i in range(rows.shape[0])])
    return xp.reshape(out, lead + out_shape)
