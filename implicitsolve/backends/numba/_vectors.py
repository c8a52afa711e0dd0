"""Compiled `rank_one`: one pass over memory in place of three."""

# pyright: basic

from __future__ import annotations

import numpy as np

from implicitsolve.backends.numba._jit import summing_kernel


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
