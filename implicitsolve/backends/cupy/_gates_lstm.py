# pyright: basic
"""The elementwise work of the implicit LSTM, each function one launch: what `kernels._gates_lstm` defines."""

from __future__ import annotations

import cupy

from implicitsolve.adapters import kernels
from implicitsolve.backends.cupy._gates import (
    elementwise,
    kept,
    matrix,
    neighbours,
    places,
    side_by_side,
    stack,
    supports,
)


class LSTM:
    """Implements `kernels.lstm`."""

    @staticmethod
    def mix(products, x, states, factors=None, distances=None):
        hats = cupy.empty((2, *x.shape[1:]), x.dtype)
        near = *neighbours(products), *stack(x), *neighbours(states), *places(products, distances)
        _lstm("mix", hats.shape[1:], (*near, *kept(factors, x), hats))
        return hats[0], hats[1]

    @staticmethod
    def state(y, x, chat, factors=None):
        state = _states((), chat)
        _lstm("state", chat.shape, (*stack(y), *stack(x), *matrix(chat), *kept(factors, x), state))
        return state

    @staticmethod
    def push_mix(products, dstates, factors, distances=None):
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


kernels.lstm.implement("cupy", LSTM, supports)
