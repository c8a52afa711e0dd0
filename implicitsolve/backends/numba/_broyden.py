"""Compiled `rank_one` and `broyden_direction`: one pass over memory for each update in place of three."""

# pyright: basic

from __future__ import annotations

import numpy as np

from implicitsolve import kernels
from implicitsolve.backends.numba._jit import summing_kernel, supports


def rank_one(z, w, amount, following):
    """Add ``amount * w`` to z in place, and return ``following^H z``; see `implicitsolve.kernels`."""
    if following is None:
        _add(z, w, amount)
        return None
    products = np.empty_like(amount)
    _add_and_multiply(z, w, amount, following, products)
    return products


@summing_kernel
def _add(z, w, amount):
    for b in range(z.shape[0]):
        a = amount[b, 0]
        for i in range(z.shape[1]):
            z[b, i] += a * w[b, i]


@summing_kernel
def _add_and_multiply(z, w, amount, following, products):
    for b in range(z.shape[0]):
        a = amount[b, 0]
        total = a * 0
        for i in range(z.shape[1]):
            new = z[b, i] + a * w[b, i]
            z[b, i] = new
            total += np.conj(following[b, i]) * new
        products[b, 0] = total


@summing_kernel
def broyden_direction(S, count, squares, x, new_x):
    """See `implicitsolve.kernels`."""
    z = S[count]
    real = x.dtype.type
    growth = 1.0
    if count > 0:
        total = real(0)
        for i in range(x.size):
            total += S[0, i] * z[i]
        for j in range(1, count):
            gain, total = real(total / squares[j - 1]), real(0)
            w = S[j]
            for i in range(x.size):
                new = z[i] + gain * w[i]
                z[i] = new
                total += w[i] * new
        growth = 1 / (1 - total / squares[count - 1])
    factor = real(growth if np.isfinite(growth) else 1.0)
    total = real(0)
    for i in range(x.size):
        new = z[i] * factor
        z[i] = new
        new_x[i] = x[i] + new
        total += new * new
    squares[count] = total


kernels.broyden_direction.implement("numba", broyden_direction, supports)
kernels.rank_one.implement("numba", rank_one, supports)
