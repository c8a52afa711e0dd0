# pyright: basic
"""Arrays as arguments of the kernels in ``cuda/gates*.cu``: pointers, strides, and what stands at neighbours."""

from __future__ import annotations

from math import prod

import cupy

from implicitsolve.backends.cupy._module import dense, launch

MOST = 4  # neighbours
THREADS = 128  # small layers still reach many multiprocessors
NOWHERE = (0,) * MOST  # distances to neighbours that there are not


def supports(like, **facts):
    """Real numbers, as many in a row as there may be."""
    return isinstance(like, cupy.ndarray) and like.dtype.char in "fd"


def elementwise(file, function, shape, arguments, **constants):
    """Launch a kernel for each number of rows (n, k), or (B, T, k); the first argument is an array."""
    count = prod(shape)
    sizes = count, shape[-2], shape[-1]
    grid, char = (-(-count // THREADS),), arguments[0].dtype.char
    launch(file, function, char, grid, (THREADS,), sizes + arguments, **constants)


def matrix(x):
    """An array of rows: pointer, and the strides of sequences and of positions, in numbers."""
    x = dense(x)
    size, (*steps, _) = x.itemsize, x.strides
    return x, steps[0] // size if len(steps) > 1 else 0, steps[-1] // size


def stack(x):
    """A stack of them, with its own stride."""
    x = dense(x)
    size, (own, *steps, _) = x.itemsize, x.strides
    return x, own // size, steps[0] // size if len(steps) > 1 else 0, steps[-1] // size


def kept(factors, other):
    """A stack that factors are written to, and whether there is one; any other array in its place, if not."""
    if factors is None:
        return other, 0, 0, 0, 0
    if dense(factors) is not factors:
        raise ValueError("`factors` must have contiguous rows")
    return *stack(factors), 1


def neighbours(parts):
    """Arrays of rows with the same strides, as many as kernels take."""
    strides = parts[0].strides
    if any(part.strides != strides or dense(part) is not part for part in parts):
        parts = [part.copy() for part in parts]
    first, *steps = matrix(parts[0])
    return *parts, *[first] * (MOST - len(parts)), *steps


def places(parts, distances):
    """Positions of the neighbours' sequences, and the distances to them; all zero where they are rows."""
    distances = distances or (0,) * len(parts)
    return parts[0].shape[-2], *distances, *NOWHERE[len(distances) :]


def side_by_side(count, like):
    """A new stack of arrays whose rows stand side by side in memory, so that one product takes them all."""
    *rows, k = like.shape
    return cupy.moveaxis(cupy.empty((*rows, count, k), like.dtype), -2, 0)
