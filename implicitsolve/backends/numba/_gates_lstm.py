# pyright: basic
"""The elementwise work of the implicit LSTM, each piece in one pass: what `kernels._gates_lstm` defines."""

from __future__ import annotations

import numpy as np

from implicitsolve.adapters import kernels
from implicitsolve.backends.numba._gates import side_by_side, switch
from implicitsolve.backends.numba._gates_loops import fused, near, of_neighbours, supports
from implicitsolve.backends.numba._gates_numbers import fma, gate, tanh


def _mixed(s, states):
    p, q = states
    return fma(s, p - q, q)


@fused
def mix(products, x, h, c):
    s, slope_a, slope_c = switch(products[0] + x[0], products[1] + x[1])
    return _mixed(s, h), _mixed(s, c), [s, slope_a, slope_c, h[0] - h[1], c[0] - c[1]]


@fused
def state(y, x, chat):
    i, f, o = (gate(y[j] + x[j]) for j in range(3))
    g = tanh(y[3] + x[3])
    c = fma(i, g, f * chat)
    tanh_c = tanh(c)
    by_gates = [(i - 1.0) * i * g, (f - 1.0) * f * chat, (o - 1.0) * o * tanh_c, i * (1.0 - g * g)]
    return o * tanh_c, c, [f, o * (1.0 - tanh_c * tanh_c), *by_gates]


@fused
def push_mix(products, dh, dc, factors):
    s, slope_a, slope_c, difference_h, difference_c = (factors[i] for i in range(5))
    ds = fma(slope_a, products[0], slope_c * products[1])
    return fma(difference_h, ds, _mixed(s, dh)), fma(difference_c, ds, _mixed(s, dc))


@fused
def push_state(dchat, y, factors):
    dc = factors[0] * dchat
    for j in (0, 1, 3):
        dc = fma(factors[2 + j], y[j], dc)
    return fma(factors[1], dc, factors[4] * y[2]), dc


@fused
def pull_state(wh, wc, factors):
    c = fma(factors[1], wh, wc)
    return [factors[2] * c, factors[3] * c, factors[4] * wh, factors[5] * c], factors[0] * c


@fused
def pull_mix(hhat, chat, factors):
    s = fma(hhat, factors[3], chat * factors[4])
    return s * factors[1], s * factors[2]


@fused
def share(products, hhat, chat, factors):
    own_h, own_c = factors[0] * hhat, factors[0] * chat
    return products[0] + own_h, own_c, products[1] + (hhat - own_h), chat - own_c


@fused
def gather(products, h, c, weights):
    own_h, own_c = ([weight * part for weight, part in zip(weights, parts)] for parts in (h, c))
    return products[0] + own_h[0] + products[1] + (h[1] - own_h[1]), own_c[0] + (c[1] - own_c[1])


class LSTM:
    """Implements `kernels.lstm`."""

    @staticmethod
    def mix(products, x, states, factors=None, distances=None):
        (hhat, chat), neighbours = _of_neighbours(products, states, distances, x[0])
        mix((hhat, chat) if factors is None else (hhat, chat, factors), (neighbours[0], x, *neighbours[1:]))
        return hhat, chat

    @staticmethod
    def state(y, x, chat, factors=None):
        found, h, c = _state(chat)
        state((h, c) if factors is None else (h, c, factors), (y, x, chat))
        return found

    @staticmethod
    def push_mix(products, dstates, factors, distances=None):
        results, neighbours = _of_neighbours(products, dstates, distances, factors[0])
        push_mix(results, (*neighbours, factors))
        return results

    @staticmethod
    def push_state(y, dchat, factors):
        found, dh, dc = _state(dchat)
        push_state((dh, dc), (dchat, y, factors))
        return found

    @staticmethod
    def pull_state(w, factors):
        chat = np.empty(factors.shape[1:], w.dtype)
        arguments = side_by_side(4, chat)
        pull_state((arguments, chat), (*_halves(w), factors))
        return arguments, chat

    @staticmethod
    def pull_mix(hhat, chat, factors):
        arguments = np.empty_like(hhat), np.empty_like(hhat)
        pull_mix(arguments, (hhat, chat, factors))
        return arguments

    @staticmethod
    def share(products, hhat, chat, factors):
        p, hp, cp = _state(hhat)
        q, hq, cq = _state(hhat)
        share((hp, cp, hq, cq), (tuple(products), hhat, chat, factors))
        return p, q

    @staticmethod
    def gather(products, hhat, chat, factors, distances, length):
        found = np.empty((len(hhat), length, 2 * hhat.shape[-1]), hhat.dtype)
        h, c = _halves(found)
        parts = tuple(products), (hhat, hhat), (chat, chat), (factors[0], factors[0])
        gather((h, c), tuple(near(part, [-d for d in distances]) for part in parts))
        return found


def _of_neighbours(products, states, distances, like):
    """Where hhat and chat go, and the products, h and c of both neighbours as arguments of a loop."""
    hhat, arguments = of_neighbours(products, distances, like.shape)
    chat = products[1] if distances is None else np.empty(like.shape, like.dtype)
    return (hhat, chat), (arguments, *(near(parts, distances) for parts in zip(*map(_halves, states))))


def _halves(state):
    k = state.shape[-1] // 2
    return state[..., :k], state[..., k:]


def _state(like):
    """A new state (n, 2 k), and views of its halves."""
    state = np.empty((*like.shape[:-1], 2 * like.shape[-1]), like.dtype)
    return state, *_halves(state)


kernels.lstm.implement("numba", LSTM, supports)
