"""What the user's functions return, checked: arrays, blocks, and matrices or operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

from implicitsolve._arrays.namespace import (
    array_namespace,
    as_host_numbers,
    as_inexact,
    check_tensor,
    is_array,
    is_complex,
    is_subclass,
    library,
    numpy_namespace,
)
from implicitsolve._typing import Array, Namespace
from implicitsolve.operators import BlockBandedMatrix, LinearOperator, aslinearoperator
from implicitsolve.operators._convert import as_inverse
from implicitsolve.operators._wrappers import guard
from implicitsolve.structure import BlockBanded


def checked_array(value: Any, name: str, xp: Namespace, dtype: Any, shape: tuple[int, ...]) -> Array:
    """What `name` returned as an array of this library and dtype, if it has this shape or is flat."""
    if value is None:
        raise TypeError(f"`{name}` returned None; it must return an array of shape {shape}")
    if xp is numpy_namespace:
        value = on_host(value, name, dtype)
    kind = type(value)
    if not is_array(value) or is_subclass(value) or value.dtype == object:
        value = as_inexact(value if isinstance(value, np.ma.MaskedArray) else as_host_numbers(value, name), name)
    check_tensor(value, name)
    if array_namespace(value) is not xp:
        raise TypeError(f"`{name}` must return arrays of the library of x0, got some of {library(value)}: convert them")
    value = value if value.dtype == dtype else _as_dtype(value, name, xp, dtype)
    size = math.prod(shape)
    if value.shape != shape and value.shape != (size,) and not (size == math.prod(value.shape) == 1):
        got = f"{value.shape}" if issubclass(kind, np.ndarray) else f"a {kind.__name__} of shape {value.shape}"
        few = ": root needs as many equations as unknowns; see also scipy.optimize.least_squares" * (name == "residual")
        way = ": flatten it by np.ravel" if size == math.prod(value.shape) else few
        raise ValueError(f"`{name}` must return an array of shape {shape}, got {got}{way}")
    return value


def to_shape(F: Any, shape: tuple[int, ...]) -> Any:
    """F in the shape of x, if it has as many entries."""
    F = np.asarray(F) if isinstance(F, np.matrix) else F
    own = getattr(F, "shape", shape)
    return F if own == shape or math.prod(own) != math.prod(shape) else F.reshape(shape)


def _as_dtype(value: Array, name: str, xp: Namespace, dtype: Any) -> Array:
    if not xp.isdtype(value.dtype, ("integral", "real floating", "complex floating")):
        raise TypeError(f"`{name}` must return numbers, got dtype {value.dtype}")
    if is_complex(value) and not xp.isdtype(dtype, "complex floating"):
        raise TypeError(f"`{name}` returned complex numbers for a real x0: pass a complex x0 to solve in complex")
    return xp.astype(value, dtype)


def on_host(value: Any, name: str, dtype: Any) -> Any:
    """`value` as a NumPy array where it is one of JAX, and of the precision of `dtype`, that of x0."""
    if type(value).__module__.partition(".")[0] != "jaxlib":
        return value
    value = np.asarray(value)
    if value.dtype.kind in "fc" and np.finfo(value.dtype).eps > np.finfo(dtype).eps:
        raise TypeError(
            f"`{name}` returned an array of JAX of dtype {value.dtype} for x0 of dtype {dtype}: call "
            "jax.config.update('jax_enable_x64', True), or pass a float32 x0"
        )
    return value


def plain_matrix(J: Any, name: str) -> Any:
    """`J` as a NumPy array where it is a matrix of another kind: np.matrix, lists, of pandas, SymPy, or a number."""
    is_list = isinstance(J, list | tuple) and not any(map(scipy.sparse.issparse, J))
    is_other = isinstance(J, np.matrix) or (isinstance(J, np.ndarray) and J.dtype == object)
    if is_list or is_other or not (is_array(J) or scipy.sparse.issparse(J) or hasattr(J, "matvec")):
        is_numbers = is_list or hasattr(J, "__array__") or hasattr(J, "tolist")
        J = as_inexact(as_host_numbers(J, name), name) if is_numbers else J
    is_number = isinstance(J, np.ndarray | float | complex) and np.ndim(J) < 2 and np.size(J) == 1
    return np.reshape(J, (1, 1)) if is_number else J


def checked_blocks(blocks: Any, structure: BlockBanded, batch_shape: tuple[int, ...], size: int) -> BlockBandedMatrix:
    """What `blocks` returned as a matrix of systems of this `size`."""
    if not is_array(blocks):
        raise TypeError(f"`blocks` must return an array, got {type(blocks).__name__}")
    k = structure.block_size
    expected = (*batch_shape, structure.length(size), structure.width, k, k)
    if tuple(blocks.shape) != expected:
        raise ValueError(f"`blocks` must return an array of shape {expected}, got {tuple(blocks.shape)}")
    return BlockBandedMatrix(blocks, lower=structure.lower, upper=structure.upper, periodic=structure.periodic)


def checked_jacobian(J: Any, name: str, batch_shape: tuple[int, ...], size: int) -> LinearOperator:
    """A Jacobian that `name` returned as an operator of this batch shape, on systems of this `size`."""
    if isinstance(J, list | tuple) and any(map(scipy.sparse.issparse, J)):
        one = "one array or LinearOperator for all systems," if batch_shape else "one matrix or LinearOperator"
        shape, kind = (*batch_shape, size, size), type(J).__name__
        raise TypeError(f"`{name}` must return {one} of shape {shape}, got a {kind} of {len(J)} sparse matrices")
    operator = aslinearoperator(J, name)
    rows = math.prod(batch_shape)
    if operator.batch_shape != batch_shape and not (rows == 1 and not operator.batch_shape):
        raise ValueError(f"`{name}` must return an operator with batch shape {batch_shape}, got {operator.batch_shape}")
    if operator.shape != (size, size):
        raise ValueError(f"`{name}` must return a Jacobian of shape {(size, size)}, got {operator.shape}")
    return operator


def checked_inverse(M: Any, name: str, batch_shape: tuple[int, ...], event_shape: tuple[int, ...]) -> LinearOperator:
    """An approximate inverse for one system, or for the whole batch, as an operator on (B, N)."""
    size = math.prod(event_shape)
    operator = as_inverse(M, name, event_shape, batch_shape)
    if operator.shape != (size, size):
        raise ValueError(f"`{name}` must have shape {(size, size)}, got {operator.shape}")
    if operator.batch_shape == batch_shape and batch_shape:
        return guard(operator, name)
    if operator.batch_shape:
        raise ValueError(f"`{name}` must have batch shape {batch_shape} or none, got {operator.batch_shape}")
    return guard(_repeat(operator, math.prod(batch_shape)), name)


def _repeat(A: LinearOperator, size: int) -> LinearOperator:
    """One operator for each system of a batch."""

    def on_rows(product: Callable[[Array], Array]) -> Callable[[Array], Array]:
        return lambda v: array_namespace(v).stack([product(v[i, ...]) for i in range(v.shape[0])])

    return LinearOperator(
        on_rows(A.matvec),
        None if A._rmatvec is None else on_rows(A.rmatvec),
        in_shape=A.shape[1],
        batch_shape=(size,),
        dtype=A.dtype,
        take=lambda indices: _repeat(A, len(indices)),
    )


def no_product(v: Array) -> Array:
    """Raise: stands for J v where neither `jvp` nor F(x) is known."""
    raise TypeError("this Jacobian was built for adjoint products only")
