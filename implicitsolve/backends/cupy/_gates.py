# pyright: basic
"""The elementwise work of gated layers, each function one launch: what `kernels._gates` defines."""

from __future__ import annotations

import cupy

from implicitsolve.adapters import kernels
from implicitsolve.backends.cupy._gates_arrays import (
    MOST,
    elementwise,
    kept,
    matrix,
    neighbours,
    places,
    side_by_side,
    stack,
    supports,
)


class Mixture:
    """Implements `kernels.mixture`; the reference mixes more than `MOST` neighbours."""

    @staticmethod
    def value(products, x, states, factors=None, distances=None):
        if len(products) > MOST:
            return kernels.mixture.reference.value(products, x, states, factors, distances)
        hhat = cupy.empty(x.shape[1:], x.dtype)
        near = *neighbours(products), *stack(x), *neighbours(states), *places(products, distances)
        _mix("value", hhat.shape, (*near, *kept(factors, x), hhat), len(products))
        return hhat

    @staticmethod
    def push(products, dstates, factors, distances=None):
        if len(products) > MOST:
            return kernels.mixture.reference.push(products, dstates, factors, distances)
        dhhat = cupy.empty(factors.shape[1:], factors.dtype)
        near = *neighbours(products), *neighbours(dstates), *places(products, distances)
        _mix("push", dhhat.shape, (*near, *stack(factors), dhhat), len(products))
        return dhhat

    @staticmethod
    def pull(y, hhat, factors):
        m = len(factors) // 2 + 1
        if m > MOST:
            return kernels.mixture.reference.pull(y, hhat, factors)
        arguments, own = cupy.empty((m, *y.shape), y.dtype), matrix(y)
        _mix("pull", y.shape, (*own, *matrix(hhat), *stack(factors), arguments), m)
        return own[0], tuple(arguments)

    @staticmethod
    def share(products, hhat, factors):
        m = len(products)
        if m > MOST:
            return kernels.mixture.reference.share(products, hhat, factors)
        cotangents = cupy.empty((m, *hhat.shape), hhat.dtype)
        near = *neighbours(products), *places(products, None)
        _mix("share", hhat.shape, (*near, *matrix(hhat), *stack(factors), cotangents), m)
        return tuple(cotangents)

    @staticmethod
    def gather(products, hhat, factors, distances, length):
        if len(products) > MOST:
            return kernels.mixture.reference.gather(products, hhat, factors, distances, length)
        total = cupy.empty((len(hhat), length, hhat.shape[-1]), hhat.dtype)
        near = *neighbours(products), *places(products, [-distance for distance in distances])
        _mix("gather", total.shape, (*near, *matrix(hhat), *stack(factors), total), len(products))
        return total


class GRU:
    """Implements `kernels.gru`."""

    @staticmethod
    def reset(y, x, hhat, factors=None):
        product, gates = cupy.empty(hhat.shape, hhat.dtype), stack(y)
        _gru("reset", hhat.shape, (*gates, *stack(x), *matrix(hhat), *kept(factors, x), product))
        return (gates[0] if factors is None else factors)[0], product

    @staticmethod
    def blend(y, x, keep, hhat, factors=None):
        h = matrix(y)
        _gru("blend", y.shape, (*h, *matrix(x), *matrix(keep), *matrix(hhat), *kept(factors, x)))
        return h[0]

    @staticmethod
    def push_reset(y, dhhat, factors):
        product = cupy.empty(dhhat.shape, dhhat.dtype)
        _gru("push_reset", dhhat.shape, (*stack(y), *matrix(dhhat), *stack(factors), product))
        return product

    @staticmethod
    def push_blend(y, gates, dhhat, factors):
        dh = matrix(y)
        _gru("push_blend", y.shape, (*dh, *stack(gates), *matrix(dhhat), *stack(factors)))
        return dh[0]

    @staticmethod
    def pull_blend(w, factors):
        candidate = cupy.empty(w.shape, w.dtype)
        _gru("pull_blend", w.shape, (*matrix(w), *stack(factors), candidate))
        return candidate

    @staticmethod
    def pull_reset(y, w, factors):
        arguments, hhat = side_by_side(2, y), matrix(y)
        _gru("pull_reset", y.shape, (*hhat, *matrix(w), *stack(factors), arguments))
        return hhat[0], arguments


def _mix(function, shape, arguments, m):
    elementwise("gates_mixture.cu", f"mixture_{function}", shape, arguments, M=m)


def _gru(function, shape, arguments):
    elementwise("gates_gru.cu", f"gru_{function}", shape, arguments)


kernels.mixture.implement("cupy", Mixture, supports)
kernels.gru.implement("cupy", GRU, supports)
