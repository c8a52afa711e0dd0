"""A user's operator as a solver needs it: on arrays (B, N), counted, checked, and away from the solver's vectors."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from implicitsolve._namespace import array_namespace, check_tensor, is_array, is_complex
from implicitsolve._typing import Array
from implicitsolve.operators._base import LinearOperator, then


def guarded(
    A: LinearOperator, name: str, count: Callable[[str], None] | None = None, *, copies: bool = True
) -> LinearOperator:
    """Return the square operator `A` on arrays (B, N), with copies handed in and out.

    Parameters
    ----------
    A : LinearOperator
        Square; one system is a batch of one.
    name : str
        What messages call it.
    count : callable, optional
        Called as ``count("jvps")`` or ``count("vjps")`` before each product.
    copies : bool, optional
        Whether products get and return copies. Default True.

    Raises
    ------
    TypeError
        From a product, if it returns no numbers, or complex numbers for a real vector.
    ValueError
        From a product, if it returns another shape.
    """
    flat = A.flat()

    def checked(product: Callable[[Array], Array], kind: str) -> Callable[[Array], Array]:
        def apply(v: Array) -> Array:
            if count is not None:
                count(kind)
            xp = array_namespace(v)
            w = product(xp.asarray(v, copy=True) if copies else v)
            if w is None:
                raise TypeError(f"a product with `{name}` returned None; it must return an array")
            w = w if is_array(w) else xp.asarray(w)
            if not (isinstance(w, np.ndarray) and isinstance(v, np.ndarray)):
                check_tensor(w, name)
                array_namespace(v, w)  # raises where a product comes from another library
            if is_complex(w) and not is_complex(v):
                raise TypeError(f"a product with `{name}` returned complex numbers for a real vector: solve in complex")
            expected = math.prod(v.shape)
            if math.prod(w.shape) != expected:
                raise ValueError(f"a product with `{name}` must return {expected} numbers, got shape {tuple(w.shape)}")
            return xp.astype(xp.reshape(w, v.shape), v.dtype, copy=copies)

        return apply

    return LinearOperator(
        checked(flat.matvec, "jvps"),
        None if flat._rmatvec is None else checked(flat.rmatvec, "vjps"),
        in_shape=flat.in_shape,
        batch_shape=flat.batch_shape,
        dtype=flat.dtype,
        take=lambda indices: guarded(A.take(indices) if A.batch_shape else A, name, count, copies=copies),
        inverse=then(flat._inverse, lambda M: guarded(M, f"the inverse of {name}", copies=copies)),
        cast=None if flat._cast is None else lambda dtype: guarded(flat.astype(dtype), name, count, copies=copies),
    )
