# pyright: basic
"""The elementwise work of networks without gates, each function one launch: what `kernels._gates_rnn` defines."""

from __future__ import annotations

import cupy

from implicitsolve.adapters import kernels
from implicitsolve.adapters.kernels import ACTIVATIONS
from implicitsolve.backends.cupy._gates import MOST, elementwise, factor_stack, matrix, neighbours, places
from implicitsolve.backends.cupy._module import is_real
from implicitsolve.backends.cupy._recurrence import run

NUMBERS = {name: number for number, name in enumerate(ACTIVATIONS)}  # as the sources have them


class RNN:
    """Implements `kernels.rnn`; the reference adds more than `MOST` products."""

    takes_sequences = True

    @staticmethod
    def value(activation, products, x, factors=None, distances=None):
        if len(products) > MOST:
            return kernels.rnn.reference.value(activation, products, x, factors, distances)
        h = cupy.empty(x.shape, x.dtype)
        near = *neighbours(products), *places(products, distances)
        _rnn("value", h, (*near, *matrix(x), *factor_stack(factors, x), NUMBERS[activation], h), len(products))
        return h

    @staticmethod
    def push(products, factors, distances=None):
        if len(products) > MOST:
            return kernels.rnn.reference.push(products, factors, distances)
        dh = cupy.empty(factors.shape[1:], factors.dtype)
        near = *neighbours(products), *places(products, distances)
        _rnn("push", dh, (*near, *matrix(factors[0]), dh), len(products))
        return dh

    @staticmethod
    def gather(products, distances, length):
        if len(products) > MOST:
            return kernels.rnn.reference.gather(products, distances, length)
        total = cupy.empty((len(products[0]), length, products[0].shape[-1]), products[0].dtype)
        near = *neighbours(products), *places(products, [-distance for distance in distances])
        _rnn("gather", total, (*near, total), len(products))
        return total

    run = staticmethod(run)


def _rnn(function, found, arguments, m):
    elementwise("gates_rnn.cu", f"rnn_{function}", found.shape, arguments, M=m)


kernels.rnn.implement("cupy", RNN, is_real)
