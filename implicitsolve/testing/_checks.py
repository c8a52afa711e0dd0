"""Checks of a user's own operators, and random vectors for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicitsolve._namespace import from_host, host_dtype, is_complex, to_host
from implicitsolve._typing import Array
from implicitsolve.operators import LinearOperator, aslinearoperator


def dot_test(A: Any, *, like: Array | None = None, rng: np.random.Generator | None = None) -> float:
    """Mismatch of the adjoint identity ``<w, A v> = <A^H w, v>`` for random v and w.

    Parameters
    ----------
    A : LinearOperator, array or sparse matrix
        Operator with adjoint products.
    like : Array, optional
        Tells library, device and dtype of the vectors. Default: NumPy, of the operator's dtype.
    rng : numpy.random.Generator, optional
        Source of the vectors. Default: seed 0.

    Returns
    -------
    float
        ``|<w, A v> - <A^H w, v>| / (||w|| ||A v||)``, a small multiple of the unit roundoff if A and A^H agree.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.testing import dot_test
    >>> bool(dot_test(np.array([[1.0, 2.0], [3.0, 4.0]])) < 1e-14)
    True
    """
    A = aslinearoperator(A)
    rng = np.random.default_rng(0) if rng is None else rng
    like = np.zeros(1, dtype=np.result_type(host_dtype(A.dtype), np.float32)) if like is None else like
    v = normal(rng, A.batch_shape + A.in_shape, like)
    w = normal(rng, A.batch_shape + A.out_shape, like)
    Av, Aw = to_host(A.matvec(v)).reshape(-1), to_host(A.rmatvec(w)).reshape(-1)
    size = max(np.abs(Av).max(initial=0.0), np.abs(Aw).max(initial=0.0)) or 1.0
    Av, Aw = Av / size, Aw / size
    left, right = np.vdot(to_host(w).reshape(-1), Av), np.vdot(Aw, to_host(v).reshape(-1))
    scale = np.linalg.norm(to_host(w)) * np.linalg.norm(Av)
    return float(abs(left - right) / scale) if scale > 0 else float(abs(left - right))


def normal(rng: np.random.Generator, shape: tuple[int, ...], like: Array) -> Array:
    """Standard normal numbers in the dtype and library of `like`, complex where it is."""
    values = rng.standard_normal(shape)
    return from_host(values + 1j * rng.standard_normal(shape) if is_complex(like) else values, like)


def random_like(rng: np.random.Generator, x: Array) -> Array:
    """Random numbers in the shape, dtype and library of x, of the mean size of its entries (1 if all are zero)."""
    host = np.abs(to_host(x))
    largest = float(host.max(initial=0.0))
    size = largest * float(np.sqrt(np.square(host / (largest or 1.0)).sum() / max(1, host.size)))
    return normal(rng, tuple(x.shape), x) * (size or 1.0)


def dense(A: LinearOperator | Any, *, like: Array | None = None) -> Any:
    """Return the matrix of one operator (no batch) as a NumPy array, column by column: for small tests only.

    Parameters
    ----------
    A : LinearOperator, array or sparse matrix
        Operator without batch axes.
    like : Array, optional
        Tells library, device and dtype of the vectors. Default: NumPy, of the operator's dtype.

    Returns
    -------
    ndarray
        Of the operator's shape.

    Raises
    ------
    ValueError
        If the operator has batch axes.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.testing import dense
    >>> dense(np.eye(2))
    array([[1., 0.],
           [0., 1.]])
    """
    A = aslinearoperator(A)
    if A.batch_shape:
        raise ValueError(f"dense: the operator has batch axes {A.batch_shape}; take one system")
    if like is None:
        like = np.zeros(1, dtype=np.result_type(host_dtype(A.dtype), np.float32))
    matrix = to_host(A.matmat(from_host(np.eye(A.shape[1]), like)))
    return matrix.astype(host_dtype(like.dtype), copy=False)
