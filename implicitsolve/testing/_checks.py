"""Checks of a user's own operators and Jacobian products."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicitsolve._arrays.host import from_host, to_host
from implicitsolve._arrays.namespace import as_inexact, eps, host_dtype, is_complex
from implicitsolve._typing import Array, Residual
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.operators import LinearOperator, aslinearoperator
from implicitsolve.problem import Problem
from implicitsolve.stopping import own_generator


def dot_test(A: Any, *, like: Array | None = None, rng: np.random.Generator | None = None) -> float:
    """Mismatch of the adjoint identity ``<w, A v> = <A^H w, v>`` for random v and w.

    Parameters
    ----------
    A : LinearOperator, array or sparse matrix
        Operator with adjoint products.
    like : Array, optional
        Array whose library, device and dtype the vectors take. Default: NumPy, of the operator's dtype.
    rng : numpy.random.Generator, optional
        Source of the vectors. Default: seed 0.

    Returns
    -------
    float
        ``|<w, A v> - <A^H w, v>| / (||w|| ||A v||)``, a small multiple of the unit roundoff if A and A^H agree.

    Examples
    --------
    >>> from implicitsolve.testing import dot_test
    >>> bool(dot_test(np.array([[1.0, 2.0], [3.0, 4.0]])) < 1e-14)
    True
    """
    A = aslinearoperator(A)
    rng = own_generator("dot_test", rng)
    like = _like(A, like)
    v = normal(rng, A.batch_shape + A.in_shape, like)
    w = normal(rng, A.batch_shape + A.out_shape, like)
    Av, Aw = to_host(A.matvec(v)).reshape(-1), to_host(A.rmatvec(w)).reshape(-1)
    size = max(np.abs(Av).max(initial=0.0), np.abs(Aw).max(initial=0.0)) or 1.0
    Av, Aw = Av / size, Aw / size
    left, right = np.vdot(to_host(w).reshape(-1), Av), np.vdot(Aw, to_host(v).reshape(-1))
    scale = np.linalg.norm(to_host(w)) * np.linalg.norm(Av)
    return float(abs(left - right) / scale) if scale > 0 else float(abs(left - right))


def taylor_test(problem: Problem | Residual, x: Array, *, rng: np.random.Generator | None = None) -> float:
    """Order at which ``||F(x + h v) - F(x) - h J(x) v||`` falls with h: 2 if J is the derivative of F.

    Parameters
    ----------
    problem : Problem
        With exact products (`jvp`, `linearize` or `jac`).
    x : array_like
        Where to test; take a point at which F is smooth.
    rng : numpy.random.Generator, optional
        Source of the direction v. Default: seed 0.

    Returns
    -------
    float
        Median order over halvings of h, infinite if the remainder is rounding error throughout (F affine).
        A wrong product gives 1, a product that is not finite NaN.

    Examples
    --------
    >>> from implicitsolve.testing import taylor_test
    >>> good = ims.Problem(lambda x: x**3, jvp=lambda x, v: 3 * x**2 * v)
    >>> bad = ims.Problem(lambda x: x**3, jvp=lambda x, v: 2 * x**2 * v)
    >>> round(taylor_test(good, np.ones(3)), 1), round(taylor_test(bad, np.ones(3)), 1)
    (2.0, 1.0)
    """
    problem = problem if isinstance(problem, Problem) else Problem(problem)
    rng = own_generator("taylor_test", rng)
    x = as_inexact(x, "x")
    evaluator = Evaluator(problem, x)
    if not evaluator.has_exact_products:
        raise TypeError("taylor_test: the problem needs `jvp`, `linearize` or `jac`")
    flat = evaluator.flatten(x)
    F = evaluator.residual(flat)
    v = evaluator.flatten(normal(rng, tuple(x.shape), x))
    v = v * float(norm2(flat).max() or 1.0) / float(norm2(v).max())
    Jv = evaluator.jacobian(flat, F).matvec(v)
    floor = 1e3 * eps(evaluator.xp, x.dtype) * float(norm2(F).max() + norm2(Jv).max())
    steps = [2.0**-k for k in range(4, 14)]
    rest = np.asarray([float(norm2(evaluator.residual(flat + h * v) - F - h * Jv).max()) for h in steps])
    if not (np.isfinite(rest).all() and np.isfinite(floor)):
        return float("nan")
    clear = rest > floor
    orders = np.log2(rest[:-1] / np.where(rest[1:] > 0, rest[1:], 1.0))[clear[:-1] & clear[1:]]
    return float(np.median(orders)) if orders.size else float("inf")


def _like(A: LinearOperator, like: Any) -> Array:
    """The caller's array, or a NumPy array of the operator's dtype."""
    return np.zeros(1, np.result_type(host_dtype(A.dtype), np.float32)) if like is None else as_inexact(like, "like")


def normal(rng: np.random.Generator, shape: tuple[int, ...], like: Array) -> Array:
    """Standard normal numbers in the dtype and library of `like`, complex where it is."""
    values = rng.standard_normal(shape)
    return from_host(values + 1j * rng.standard_normal(shape) if is_complex(like) else values, like)


def random_like(rng: np.random.Generator, x: Array) -> Array:
    """Random numbers in the shape, dtype and library of x, of the mean size of its entries (1 if all are zero)."""
    host = to_host(x).reshape(1, -1)
    size = float(norm2(host)[0]) / max(1, host.size) ** 0.5
    return normal(rng, tuple(x.shape), x) * (size or 1.0)


def dense(A: LinearOperator | Any, *, like: Array | None = None) -> Any:
    """Return the matrix of one operator (no batch) as a NumPy array, column by column: for small tests only.

    Parameters
    ----------
    A : LinearOperator, array or sparse matrix
        Operator without batch axes.
    like : Array, optional
        Array whose library, device and dtype the vectors take. Default: NumPy, of the operator's dtype.

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
    >>> from implicitsolve.testing import dense
    >>> dense(np.eye(2))
    array([[1., 0.],
           [0., 1.]])
    """
    A = aslinearoperator(A)
    if A.batch_shape:
        raise ValueError(f"dense: the operator has batch axes {A.batch_shape}; take one system")
    like = _like(A, like)
    matrix = to_host(A.matmat(from_host(np.eye(A.shape[1]), like)))
    return matrix.astype(host_dtype(like.dtype), copy=False)
