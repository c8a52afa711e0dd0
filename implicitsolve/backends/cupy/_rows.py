# pyright: basic
"""Rows of a matrix in another order, and without some of them: what `kernels._rows` defines, in one launch each."""

from __future__ import annotations

import cupy

from implicitsolve.adapters import kernels
from implicitsolve.backends.cupy._gates_arrays import THREADS, matrix, supports
from implicitsolve.backends.cupy._module import launch


def take_rows(x, source, none):
    """Implements `kernels.take_rows`."""
    found = cupy.empty((len(source), x.shape[1]), x.dtype)
    x, _, step = matrix(x)
    _launch("take_rows", found, (x, step, source, none, found))
    return found


def clear_rows(x, empty):
    """Implements `kernels.clear_rows`; in place, unless the array has gaps."""
    x = cupy.ascontiguousarray(x)
    _launch("clear_rows", x, (len(empty), empty, x))
    return x


def _launch(function, found, arguments):
    """For each number of a result."""
    sizes = found.size, found.shape[-1]
    launch("rows.cu", function, found.dtype.char, (-(-found.size // THREADS),), (THREADS,), sizes + arguments)


kernels.take_rows.implement("cupy", take_rows, supports)
kernels.clear_rows.implement("cupy", clear_rows, supports)
