"""Norms of the rows of arrays, on the host."""

from __future__ import annotations

import math

import numpy as np

from implicitsolve._arrays.host import from_host, to_host
from implicitsolve._arrays.namespace import array_namespace, is_complex, is_safe, numpy_namespace, safe_range
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels._vectors import vectors

SHORT_ROW = 256  # entries; norm_max of rows of 16 takes a quarter of the time by one flat reduction


def norm_max(x: Array) -> HostArray:
    """Largest magnitude of each row of x (B, N), on the host; NaN where the row holds one."""
    if x.shape[1] == 0:
        return np.zeros(x.shape[0])
    if _is_row(x):
        return np.maximum.reduce(np.abs(x), axis=1).astype(np.float64, copy=False)
    if not isinstance(x, np.ndarray):
        return Norms(x).largest(0)
    if x.shape[1] == 1:
        return np.abs(x[:, 0]).astype(np.float64, copy=False)
    if is_complex(x):
        largest = np.max(np.abs(x), axis=1)
    elif x.shape[1] <= SHORT_ROW:
        magnitudes = np.abs(x, order="C").reshape(-1)
        largest = np.maximum.reduceat(magnitudes, np.arange(0, magnitudes.size, x.shape[1])) if len(x) else x[:, 0]
    else:  # no temporary array of magnitudes
        largest = np.maximum(np.max(x, axis=1), -np.min(x, axis=1))
    return largest.astype(np.float64) + 0.0  # -0.0 becomes 0.0


def norm2(x: Array) -> HostArray:
    """Euclidean norm of each row of x (B, N), on the host, without overflow or underflow of the squares."""
    if not isinstance(x, np.ndarray):
        return Norms(x).two(0)
    with np.errstate(all="ignore"):
        if _is_row(x):
            size = math.sqrt(x[0].dot(x[0]))
            low, high = safe_range(numpy_namespace, x.dtype)
            if low < size < high or (size == 0 and not x[0].any()):
                return np.asarray([size])
        elif x.shape[1] == 1:
            return norm_max(x)
        plain = np.sqrt(_squares(x))
        return plain if is_safe(plain, numpy_namespace, x.dtype).all() else _scaled_norm2(x, norm_max(x))


def _scaled_norm2(x: Array, scale: HostArray) -> HostArray:
    """The norms of rows whose largest magnitudes are `scale`."""
    usable = (scale > 0) & np.isfinite(scale)
    exponent = np.where(usable, np.frexp(scale)[1] - 1, 0)
    divisor = np.ldexp(1.0, np.maximum(exponent, -1000))  # exact; complex numbers over a subnormal one are NaN
    scaled = x / from_host(divisor, x)[:, None]
    return np.where(usable, divisor * np.sqrt(_squares(scaled)), scale)


class Norms:
    """Norms of the rows of arrays (B, N), on the host; from a device the first request transfers all of them."""

    def __init__(self, *arrays: Array, numbers: HostArray | None = None) -> None:
        self.arrays = arrays
        self._numbers = numbers  # what `_measurements` returns

    def two(self, i: int) -> HostArray:
        """Euclidean norms of the rows of the i-th array; see `norm2`."""
        x = self.arrays[i]
        if isinstance(x, np.ndarray):
            return norm2(x)
        with np.errstate(all="ignore"):
            plain, largest = np.sqrt(self._measurements()[:, 2 * i]), self.largest(i)
            usable = (largest > 0) & np.isfinite(largest)
            is_certain = ~usable | is_safe(plain, array_namespace(x), x.dtype)
            return np.where(usable, plain, largest) if is_certain.all() else _scaled_norm2(x, largest)

    def largest(self, i: int, rows: slice | Indices = slice(None)) -> HostArray:
        """Largest magnitudes of the rows, or some of them, of the i-th array; see `norm_max`."""
        x = self.arrays[i]
        return norm_max(x[rows]) if isinstance(x, np.ndarray) else self._measurements()[rows, 2 * i + 1].copy()

    def _measurements(self) -> HostArray:
        """Sums of squares and largest magnitudes of each array's rows, (B, 2 * arrays)."""
        if self._numbers is None:
            x = max(self.arrays, key=lambda x: x.shape[1])
            if 0 in x.shape:
                self._numbers = np.zeros((x.shape[0], 2 * len(self.arrays)))
            else:
                with np.errstate(all="ignore"):
                    work = vectors.select(x, size=x.shape[1])
                    self._numbers = to_host(work.measure(self.arrays)).astype(np.float64)
        return self._numbers


def _is_row(x: Array) -> bool:
    """Whether `x` is one row of real NumPy numbers: for one small system the number of calls is what costs."""
    return type(x) is np.ndarray and x.shape[0] == 1 and x.dtype.char in "fd"


def _squares(x: Array) -> HostArray:
    """Sum of the squared magnitudes of each row, on the host."""
    xp = array_namespace(x)
    squares = xp.vecdot(x, x)
    return to_host(xp.real(squares) if is_complex(x) else squares).astype(np.float64)
