"""Conversion of matrices and of other libraries' operators."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from implicitsolve._arrays.host import gather
from implicitsolve._arrays.namespace import array_namespace, as_inexact, is_array, is_complex
from implicitsolve._typing import Array, Indices
from implicitsolve.operators._base import LinearOperator


def aslinearoperator(A: Any, name: str = "A") -> LinearOperator:
    """Return `A` as a `LinearOperator`.

    Parameters
    ----------
    A : LinearOperator, array, sparse matrix or other operator
        A `LinearOperator` is returned unchanged. An array has shape ``(..., N, N)``: leading axes are a batch. Sparse
        matrices and operators of SciPy or CuPy (anything with `shape` and `matvec`) are wrapped.
    name : str, optional
        Its name in messages. Default "A".

    Returns
    -------
    LinearOperator
        Shares `A`; nothing is copied.

    Raises
    ------
    TypeError
        If `A` is none of these.

    Examples
    --------
    >>> from implicitsolve import aslinearoperator
    >>> aslinearoperator(np.diag([1.0, 2.0])) @ np.ones(2)
    array([1., 2.])
    """
    if isinstance(A, LinearOperator):
        return A
    if scipy.sparse.issparse(A) or is_cupy_sparse(A):
        transpose = A.T
        return LinearOperator(
            lambda v: A @ v,
            lambda w: _adjoint(lambda u: transpose @ u, A, w),
            in_shape=A.shape[1],
            out_shape=A.shape[0],
            dtype=A.dtype,
        )
    if isinstance(A, np.matrix):
        A = np.asarray(A)
    if is_array(A) or isinstance(A, list | tuple):
        return _from_array(as_inexact(A, name), name)
    if hasattr(A, "matvec") and hasattr(A, "shape"):
        dtype = np.dtype(np.float64) if getattr(A, "dtype", None) is None else A.dtype
        rmatvec = getattr(A, "rmatvec", None)

        def adjoint(w: Array) -> Array:
            try:
                return rmatvec(w)  # type: ignore[misc]
            except NotImplementedError as error:  # SciPy's operators have the method even when they lack the product
                raise TypeError(f"`{name}` offers no adjoint product: give it `rmatvec`") from error

        return LinearOperator(
            A.matvec, None if rmatvec is None else adjoint, in_shape=A.shape[1], out_shape=A.shape[0], dtype=dtype
        )
    more = ", or settings such as precondition.ILU()" if name == "preconditioner" else ""
    raise TypeError(f"`{name}` must be a LinearOperator, an array or a sparse matrix{more}, got {type(A).__name__}")


def is_cupy_sparse(A: Any) -> bool:
    return type(A).__module__.startswith("cupyx.scipy.sparse")


def as_inverse(M: Any, name: str, in_shape: tuple[int, ...], batch_shape: tuple[int, ...] = ()) -> LinearOperator:
    """A caller's approximate inverse, in any accepted form, as an operator.

    Beside what `aslinearoperator` takes: factors (`scipy.sparse.linalg.splu`, anything with `solve` and `shape`) and
    the bound method itself, both for one flat system; a multigrid hierarchy (`aspreconditioner`, as pyamg's); and a
    function r -> z on arrays ``batch_shape + in_shape``.
    """
    if hasattr(M, "matvec"):
        return aslinearoperator(M, name)
    if hasattr(M, "aspreconditioner"):
        return aslinearoperator(M.aspreconditioner(), name)
    if isinstance(M, scipy.sparse.linalg.SuperLU):
        return LinearOperator(M.solve, lambda w: M.solve(w, "H"), in_shape=M.shape[0])
    if hasattr(M, "solve") and hasattr(M, "shape"):
        return LinearOperator(M.solve, in_shape=M.shape[0])
    if not callable(M):
        return aslinearoperator(M, name)
    if isinstance(M, type) or not maps_residual(M):
        raise TypeError(f"`{name}` must be a function r -> z of one argument, an operator or a matrix, got {M!r}")
    if _signature(M) is None:  # compiled, such as splu(A).solve: it takes flat vectors alone
        return LinearOperator(M, in_shape=math.prod(in_shape))
    return LinearOperator(M, in_shape=in_shape, batch_shape=batch_shape)


def maps_residual(function: Callable[..., Any]) -> bool:
    """Whether a function is r -> z: it requires one argument, or is compiled without a signature."""
    signature = _signature(function)
    if signature is None:
        return True
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    parts = signature.parameters.values()
    return sum(part.kind in kinds and part.default is part.empty for part in parts) == 1


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _from_array(A: Array, name: str) -> LinearOperator:
    if A.ndim < 2:
        raise ValueError(f"`{name}` must have at least two axes, got shape {tuple(A.shape)}")
    xp = array_namespace(A)
    transpose = xp.matrix_transpose(A)

    def product(matrix: Array, v: Array) -> Array:
        with np.errstate(all="ignore"):  # entries that are not finite are the solver's to report
            return array_namespace(matrix, v).matmul(matrix, v[..., None])[..., 0]

    def take(indices: Indices) -> LinearOperator:
        return _from_array(gather(xp.reshape(A, (-1, *A.shape[-2:])), indices), name)

    return LinearOperator(
        lambda v: product(A, v),
        lambda w: _adjoint(lambda u: product(transpose, u), A, w),
        in_shape=A.shape[-1],
        out_shape=A.shape[-2],
        batch_shape=tuple(A.shape[:-2]),
        dtype=A.dtype,
        take=take if A.ndim > 2 else None,
    )


def _adjoint(transposed: Callable[[Array], Array], A: Any, w: Array) -> Array:
    """A^H w = conj(A^T conj(w)): no second copy of A."""
    if "complex" not in str(A.dtype):
        return transposed(w)
    xp = array_namespace(w)
    return xp.conj(transposed(xp.conj(w) if is_complex(w) else w))
