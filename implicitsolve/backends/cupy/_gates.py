# pyright: basic
"""The elementwise work of layers, each function one launch: what `kernels._gates` and `kernels._recurrence` define."""

from __future__ import annotations

from math import prod

import cupy

from implicitsolve.adapters import kernels
from implicitsolve.adapters.kernels import ACTIVATIONS
from implicitsolve.backends.cupy._module import dense, is_real, launch_each, matrix
from implicitsolve.backends.cupy._recurrence import run

MOST_NEIGHBOURS = 4  # neighbours
NO_NEIGHBOURS = (0,) * MOST_NEIGHBOURS  # distances to neighbours that there are not


def elementwise(file, function, shape, arguments, **constants):
    """Launch a kernel with a thread for each number in rows (n, k), or (B, T, k)."""
    count = prod(shape)
    launch_each(file, function, count, (count, shape[-2], shape[-1], *arguments), **constants)


def stack(x):
    """A stack of them, with its own stride."""
    x = dense(x)
    size, (own, *steps, _) = x.itemsize, x.strides
    return x, own // size, steps[0] // size if len(steps) > 1 else 0, steps[-1] // size


def factor_stack(factors, other):
    """A stack that factors are written to, and whether there is one; any other array if not."""
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
    return *parts, *[first] * (MOST_NEIGHBOURS - len(parts)), *steps


def places(parts, distances):
    """Positions of the neighbours' sequences, and the distances to them; all zero where they are rows."""
    distances = distances or (0,) * len(parts)
    return parts[0].shape[-2], *distances, *NO_NEIGHBOURS[len(distances) :]


def side_by_side(count, like):
    """A new stack of arrays whose rows are adjacent in memory, so that one product takes them all."""
    *rows, k = like.shape
    return cupy.moveaxis(cupy.empty((*rows, count, k), like.dtype), -2, 0)


class Mixture:
    """Implements `kernels.mixture` for at most `MOST_NEIGHBOURS` neighbours."""

    takes_sequences = True

    @staticmethod
    def value(products, x, states, factors=None, distances=None):
        hhat = cupy.empty(x.shape[1:], x.dtype)
        near = *neighbours(products), *stack(x), *neighbours(states), *places(products, distances)
        _mix("value", hhat.shape, (*near, *factor_stack(factors, x), hhat), len(products))
        return hhat

    @staticmethod
    def push(products, dstates, factors, distances=None):
        dhhat = cupy.empty(factors.shape[1:], factors.dtype)
        near = *neighbours(products), *neighbours(dstates), *places(products, distances)
        _mix("push", dhhat.shape, (*near, *stack(factors), dhhat), len(products))
        return dhhat

    @staticmethod
    def pull(y, hhat, factors):
        m = len(factors) // 2 + 1
        arguments, own = cupy.empty((m, *y.shape), y.dtype), matrix(y)
        _mix("pull", y.shape, (*own, *matrix(hhat), *stack(factors), arguments), m)
        return own[0], tuple(arguments)

    @staticmethod
    def share(products, hhat, factors):
        cotangents = cupy.empty((len(products), *hhat.shape), hhat.dtype)
        near = *neighbours(products), *places(products, None)
        _mix("share", hhat.shape, (*near, *matrix(hhat), *stack(factors), cotangents), len(products))
        return tuple(cotangents)

    @staticmethod
    def gather(products, hhat, factors, distances, length):
        total = cupy.empty((len(hhat), length, hhat.shape[-1]), hhat.dtype)
        near = *neighbours(products), *places(products, [-distance for distance in distances])
        _mix("gather", total.shape, (*near, *matrix(hhat), *stack(factors), total), len(products))
        return total


class GRU:
    @staticmethod
    def reset(y, x, hhat, factors=None):
        product, gates = cupy.empty(hhat.shape, hhat.dtype), stack(y)
        _gru("reset", hhat.shape, (*gates, *stack(x), *matrix(hhat), *factor_stack(factors, x), product))
        return (gates[0] if factors is None else factors)[0], product

    @staticmethod
    def blend(y, x, keep, hhat, factors=None):
        h = matrix(y)
        _gru("blend", y.shape, (*h, *matrix(x), *matrix(keep), *matrix(hhat), *factor_stack(factors, x)))
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


def _mixes(like, *, neighbours=2, **sizes):
    return is_real(like) and neighbours <= MOST_NEIGHBOURS


def _mix(function, shape, arguments, m):
    elementwise("gates_mixture.cu", f"mixture_{function}", shape, arguments, M=m)


def _gru(function, shape, arguments):
    elementwise("gates_gru.cu", f"gru_{function}", shape, arguments)


class LSTM:
    takes_sequences = True

    @staticmethod
    def value(products, x, states, factors=None, distances=None):
        hats = cupy.empty((2, *x.shape[1:]), x.dtype)
        near = *neighbours(products), *stack(x), *neighbours(states), *places(products, distances)
        _lstm("mix", hats.shape[1:], (*near, *factor_stack(factors, x), hats))
        return hats[0], hats[1]

    @staticmethod
    def state(y, x, chat, factors=None):
        state = _states((), chat)
        _lstm("state", chat.shape, (*stack(y), *stack(x), *matrix(chat), *factor_stack(factors, x), state))
        return state

    @staticmethod
    def push(products, dstates, factors, distances=None):
        hats = cupy.empty((2, *factors.shape[1:]), factors.dtype)
        near = *neighbours(products), *neighbours(dstates), *places(products, distances)
        _lstm("push_mix", hats.shape[1:], (*near, *stack(factors), hats))
        return hats[0], hats[1]

    @staticmethod
    def push_state(y, dchat, factors):
        dstate = _states((), dchat)
        _lstm("push_state", dchat.shape, (*stack(y), *matrix(dchat), *stack(factors), dstate))
        return dstate

    @staticmethod
    def pull_state(w, factors):
        chat = cupy.empty(factors.shape[1:], w.dtype)
        arguments = side_by_side(4, chat)
        _lstm("pull_state", chat.shape, (*matrix(w), *stack(factors), arguments, chat))
        return arguments, chat

    @staticmethod
    def pull_mix(hhat, chat, factors):
        arguments = cupy.empty((2, *hhat.shape), hhat.dtype)
        _lstm("pull_mix", hhat.shape, (*matrix(hhat), *matrix(chat), *stack(factors), arguments))
        return arguments[0], arguments[1]

    @staticmethod
    def share(products, hhat, chat, factors):
        states = _states((2,), hhat)
        near = *neighbours(products), *places(products, None)
        _lstm("share", hhat.shape, (*near, *matrix(hhat), *matrix(chat), *stack(factors), states))
        return states[0], states[1]

    @staticmethod
    def gather(products, hhat, chat, factors, distances, length):
        shape = len(hhat), length, hhat.shape[-1]
        states = cupy.empty((*shape[:2], 2 * shape[2]), hhat.dtype)
        near = *neighbours(products), *places(products, [-distance for distance in distances])
        _lstm("gather", shape, (*near, *matrix(hhat), *matrix(chat), *stack(factors), states))
        return states


def _lstm(function, shape, arguments):
    elementwise("gates_lstm.cu", f"lstm_{function}", shape, arguments)


def _states(stacks, like):
    """New states (n, 2 k) for the numbers (n, k) of one half."""
    return cupy.empty((*stacks, *like.shape[:-1], 2 * like.shape[-1]), like.dtype)


CODES = {name: number for number, name in enumerate(ACTIVATIONS)}  # as the sources have them


class RNN:
    """Implements `kernels.rnn`; the reference adds more than `MOST_NEIGHBOURS` products."""

    takes_sequences = True

    @staticmethod
    def value(activation, products, x, factors=None, distances=None):
        if len(products) > MOST_NEIGHBOURS:
            return kernels.rnn.reference.value(activation, products, x, factors, distances)
        h = cupy.empty(x.shape, x.dtype)
        near = *neighbours(products), *places(products, distances)
        _rnn("value", h, (*near, *matrix(x), *factor_stack(factors, x), CODES[activation], h), len(products))
        return h

    @staticmethod
    def push(products, factors, distances=None):
        if len(products) > MOST_NEIGHBOURS:
            return kernels.rnn.reference.push(products, factors, distances)
        dh = cupy.empty(factors.shape[1:], factors.dtype)
        near = *neighbours(products), *places(products, distances)
        _rnn("push", dh, (*near, *matrix(factors[0]), dh), len(products))
        return dh

    @staticmethod
    def gather(products, distances, length):
        if len(products) > MOST_NEIGHBOURS:
            return kernels.rnn.reference.gather(products, distances, length)
        total = cupy.empty((len(products[0]), length, products[0].shape[-1]), products[0].dtype)
        near = *neighbours(products), *places(products, [-distance for distance in distances])
        _rnn("gather", total, (*near, total), len(products))
        return total

    run = staticmethod(run)


def _rnn(function, found, arguments, m):
    elementwise("gates_rnn.cu", f"rnn_{function}", found.shape, arguments, M=m)


kernels.mixture.implement("cupy", Mixture, _mixes)
kernels.gru.implement("cupy", GRU, is_real)
kernels.lstm.implement("cupy", LSTM, is_real)
kernels.rnn.implement("cupy", RNN, is_real)
