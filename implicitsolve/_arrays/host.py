"""Between a library, or its device, and the host: short arrays, and rows by host index."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicitsolve._arrays.namespace import array_namespace, device, is_cupy_array, is_numpy_array, real_dtype
from implicitsolve._typing import Array, ArrayT, HostArray, Indices

FEW_ROWS = 4  # rows up to which `clear` writes one by one: a transfer of indices to a device costs a few launches
HELD_VECTORS = 16  # like x that a solve holds at most, about, and frees at its end
LARGEST_FREED = 2**25 - 2**16  # bytes: glibc does not adapt to larger blocks


def index_dtype(largest: int) -> type[np.signedinteger[Any]]:
    """The smaller dtype of indices up to that number."""
    return np.int32 if largest < np.iinfo(np.int32).max else np.int64


def to_host(x: Array) -> HostArray:
    """Copy a short array to NumPy. On a GPU each call is one transfer, and synchronizes with the device."""
    if isinstance(x, np.ndarray):
        return x
    foreign: Any = x
    if is_cupy_array(x):
        return foreign.get()
    return np.asarray(x) if isinstance(x, np.generic) else np.from_dlpack(foreign)


def from_host(values: HostArray, like: Array) -> Array:
    """Bring short host values to the library, device and dtype of `like` (its real dtype for real values)."""
    is_count = values.dtype.kind in "iub"
    if isinstance(like, np.ndarray):
        if is_count or values.dtype == like.dtype:
            return values
        return values.astype(like.dtype if values.dtype.kind == "c" else np.finfo(like.dtype).dtype, copy=False)
    xp = array_namespace(like)
    if is_count:
        return xp.asarray(values, device=device(like))
    dtype = like.dtype
    if values.dtype.kind != "c" and xp.isdtype(dtype, "complex floating"):
        dtype = real_dtype(xp, dtype)
    return xp.asarray(values, dtype=dtype, device=device(like))


def empty_vectors(like: Array, *axes: int) -> Array:
    """Return an uninitialized array (*axes, N) for vectors like those of `like` (..., N)."""
    return array_namespace(like).empty((*axes, like.shape[-1]), dtype=like.dtype, device=device(like))


def zero_vectors(like: Array, *axes: int) -> Array:
    """Return an array (*axes, N) of zeros for vectors like those of `like`."""
    return array_namespace(like).zeros((*axes, like.shape[-1]), dtype=like.dtype, device=device(like))


def gather(x: ArrayT, indices: Indices) -> ArrayT:
    """Return a copy of the rows of `x` at host indices, or at indices from `send_indices`."""
    xp = array_namespace(x)
    if not isinstance(indices, np.ndarray):
        return xp.take(x, indices, axis=0)
    if _is_all(indices, x):
        return xp.asarray(x, copy=True)
    return xp.take(x, from_host(indices, x), axis=0)


def scatter(x: Array, indices: Any, rows: Array) -> None:
    """Write `rows` into `x` at host indices, or at indices from `send_indices`, in place."""
    if isinstance(indices, np.ndarray) and _is_all(indices, x):
        x[...] = rows
    elif takes_indices(x):
        x[indices] = rows
    else:
        for row, index in enumerate(indices):
            x[int(index), ...] = rows[row, ...]


def send_indices(indices: Indices, like: Array) -> Any:
    """Move host indices to the device of `like`, for repeated use in `gather` and `scatter`."""
    return from_host(indices, like) if takes_indices(like) else indices


def takes_indices(x: Array) -> bool:
    """Whether ``x[:, indices] = rows`` works, which the standard does not require."""
    return bool(is_numpy_array(x) or is_cupy_array(x))


def _is_all(indices: Indices, x: Array) -> bool:
    """Whether indices are all rows of a device array in order, so that no transfer is needed."""
    if isinstance(x, np.ndarray):
        return False
    return indices.size == x.shape[0] and bool((indices == np.arange(indices.size)).all())


def merge_rows(where: HostArray, x: ArrayT, y: ArrayT) -> ArrayT:
    """Return rows of x (b, N) where `mask` is True, and of y elsewhere."""
    if not isinstance(x, np.ndarray):
        return array_namespace(x).where(from_host(where, x)[:, None], x, y)
    rows, other = np.flatnonzero(~where), x.copy()
    other[rows] = y[rows]
    return other


def clear(x: Array, where: HostArray) -> None:
    """Write zeros into some rows of `x`, in place; a few of them one by one, without a transfer of indices."""
    rows = np.flatnonzero(where)
    if rows.size > FEW_ROWS and takes_indices(x):
        x[from_host(rows, x)] = 0.0
    else:
        for row in rows.tolist():
            x[row, ...] = 0.0


def keep_heap(x: Array) -> None:
    """Keep the memory that a solve with arrays like `x` frees in the process, for its next arrays and the next solve.

    glibc returns free memory beyond twice the largest block that was ever freed, and the kernel then maps it again page
    by page. A block that is never written to costs nothing and sets that limit: with 10^5 unknowns on a line a solve
    takes 0.7 to 0.9 of the time.
    """
    if isinstance(x, np.ndarray):
        np.empty(min(HELD_VECTORS * x.nbytes, LARGEST_FREED), dtype=np.uint8)


def first_places(ordered: HostArray) -> HostArray:
    """Where each of the ordered numbers stands first."""
    return np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: ordered.size])


def distinct(*parts: HostArray) -> HostArray:
    """All numbers of some arrays, each once, in order: `np.unique` takes three times as long."""
    numbers = np.sort(np.concatenate(parts))
    return numbers[first_places(numbers)]
