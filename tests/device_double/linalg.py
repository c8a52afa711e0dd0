"""`cupy.linalg`: cuSOLVER and cuBLAS report nothing, so that a singular matrix gives infinities and NaN, no error.

Their matrices are ordered by columns, and so are the results.
"""

from typing import Any

import numpy as np
from scipy.linalg import lapack

from tests.device_double.account import note
from tests.device_double.arrays import adopt, empty, ndarray, wrap

LinAlgError = np.linalg.LinAlgError


def _checked(*arrays: Any) -> np.dtype[Any]:
    """Common dtype of stacks of matrices."""
    for x in arrays:
        if not isinstance(x, ndarray):
            raise LinAlgError("cupy.linalg only supports cupy.ndarray")
        if x.dtype == np.float16:
            raise TypeError("float16 is unsupported in linalg")
    a = arrays[0]
    if a.ndim < 2:
        raise LinAlgError(f"{a.ndim}-dimensional array given. Array must be at least two-dimensional")
    return np.result_type(*(x.dtype if x.dtype.kind in "fc" else float for x in arrays))


def _square(a: Any) -> None:
    if a.shape[-2] != a.shape[-1]:
        raise LinAlgError("Last 2 dimensions of the array must be square")


def by_columns(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """New memory for a stack of matrices, each ordered by columns."""
    return empty((*shape[:-2], shape[-1], shape[-2]), dtype).swapaxes(-1, -2)


def _factored(a: np.ndarray[Any, Any], dtype: Any) -> tuple[Any, ...]:
    """LU with row interchanges, carried on where a pivot is zero."""
    (getrf,) = lapack.get_lapack_funcs(("getrf",), dtype=dtype)
    return getrf(a)


def solve(a: Any, b: Any) -> ndarray:
    dtype = _checked(a, b)
    _square(a)
    if b.ndim == 0:
        raise ValueError("b must have at least one dimension")
    if b.ndim == 1 and a.shape[-1] != b.size:
        raise ValueError("a must have (..., M, M) shape and b must have (M,) for one-dimensional b")
    if b.ndim > 1 and a.shape[:-1] != b.shape[:-1]:
        raise ValueError("a must have (..., M, M) shape and b must have (..., M, K) for multidimensional b")
    note("solve")
    A, x = a._host, np.broadcast_to(b._host, a.shape[:-1]) if b.ndim == 1 else b._host
    made = empty(x.shape, dtype) if x.ndim < A.ndim else by_columns(x.shape, dtype)
    (getrs,) = lapack.get_lapack_funcs(("getrs",), dtype=dtype)
    for i in np.ndindex(A.shape[:-2]) if made.size else ():
        lu, places, _ = _factored(A[i], dtype)
        made[i] = getrs(lu, places, x[i])[0]
    return adopt(made)


def inv(a: Any) -> ndarray:
    """A singular one of a stack is left as the memory was, which may hold anything: here ones."""
    dtype = _checked(a)
    _square(a)
    if a.ndim == 2:
        return solve(a, wrap(np.eye(len(a), dtype=dtype)))
    note("inv")
    made = empty(a.shape, dtype)
    (getri,) = lapack.get_lapack_funcs(("getri",), dtype=dtype)
    for i in np.ndindex(a.shape[:-2]) if a.size else ():
        lu, places, info = _factored(a._host[i], dtype)
        made[i] = getri(lu, places)[0] if info == 0 else 1.0
    return adopt(made)


def slogdet(a: Any) -> tuple[ndarray, ndarray]:
    dtype = _checked(a)
    _square(a)
    note("slogdet")
    sign, logarithm = np.ones(a.shape[:-2], dtype), np.zeros(a.shape[:-2], dtype.char.lower())
    with np.errstate(all="ignore"):
        for i in np.ndindex(a.shape[:-2]) if a.size else ():
            lu, places, info = _factored(a._host[i], dtype)
            diagonal = np.diagonal(lu)
            turns = np.prod(diagonal / np.abs(diagonal)) if dtype.kind == "c" else (-1) ** np.sum(diagonal < 0)
            sign[i] = 0 if info > 0 else turns * (-1) ** np.sum(places != np.arange(len(places)))
            logarithm[i] = -np.inf if info > 0 else np.sum(np.log(np.abs(diagonal)))
    return wrap(sign), wrap(logarithm)


def det(a: Any) -> ndarray:
    sign, logarithm = slogdet(a)
    return sign * wrap(np.exp(logarithm._host))


def qr(a: Any, mode: str = "reduced") -> Any:
    if mode not in ("reduced", "complete", "r", "raw"):
        raise ValueError(f"Unrecognized mode {mode!r}")
    if mode == "raw":
        raise NotImplementedError("the double has no raw QR")
    dtype = _checked(a)
    note("qr")
    found = np.linalg.qr(a._host.astype(dtype), mode)
    if mode == "r":
        return wrap(found)
    parts = [by_columns(part.shape, dtype) for part in found]
    for made, part in zip(parts, found):
        made[...] = part
    return tuple(adopt(made) for made in parts)


def _by_numpy(name: str) -> Any:
    """What is done by NumPy."""
    function = getattr(np.linalg, name)

    def by_numpy(*arguments: Any, **keywords: Any) -> Any:
        _checked(*(x for x in arguments if isinstance(x, ndarray)))
        note(name)
        with np.errstate(all="ignore"):
            return wrap(function(*(x._host if isinstance(x, ndarray) else x for x in arguments), **keywords))

    return by_numpy


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> ndarray:
    note("norm")
    with np.errstate(all="ignore"):
        return wrap(np.linalg.norm(x._host, ord, axis, keepdims))


svd, cholesky, eigh, eigvalsh, pinv, lstsq, matrix_rank, matrix_power, cond = map(
    _by_numpy, ["svd", "cholesky", "eigh", "eigvalsh", "pinv", "lstsq", "matrix_rank", "matrix_power", "cond"]
)
__all__ = [
    *("LinAlgError", "cholesky", "cond", "det", "eigh", "eigvalsh", "inv", "lstsq", "matrix_power", "matrix_rank"),
    *("norm", "pinv", "qr", "slogdet", "solve", "svd"),
]
