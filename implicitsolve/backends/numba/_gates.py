# pyright: basic
"""The elementwise work of gated layers, each piece in one pass: what `kernels._gates` defines."""

from __future__ import annotations

from functools import reduce

import numpy as np

from implicitsolve.adapters import kernels
from implicitsolve.adapters.kernels import _gates as reference
from implicitsolve.backends.numba._gates_loops import Loop, exp, fma, gate, supports, tanh, where


def switch(a, c):
    """s = sigma(a) / (sigma(a) + sigma(c)), ds/da and ds/dc.

    By two exponentials: of the terms exp(m), exp(m - a) and exp(m - c), m = min(a, c, 0), one is 1.
    """
    is_first = a < c
    least, most = where(is_first, a, c), where(is_first, c, a)
    is_below = least < 0.0
    one = exp(where(is_below, least, -least))
    of_most = exp(where(is_below, least, 0.0) - most)
    of_zero, of_least = where(is_below, one, 1.0), where(is_below, 1.0, one)
    of_a, of_c = where(is_first, of_least, of_most), where(is_first, of_most, of_least)
    s = of_zero + of_c
    scale = 1.0 / (s + (of_zero + of_a))
    s = s * scale
    return s, scale * of_a * s, scale * of_c * (s - 1.0)


def shares(arguments):
    """s_j = sigma(a_j) / sum_l sigma(a_l), and 1 - sigma(a_j)."""
    m = reduce(lambda a, b: where(a < b, b, a), arguments)
    m = where(m < 0.0, m, 0.0)
    of_zero, of_each = exp(m), [exp(m - a) for a in arguments]
    sigmas = [1.0 / (of_zero + one) for one in of_each]
    scale = 1.0 / sum(sigmas[1:], sigmas[0])
    return [sigma * scale for sigma in sigmas], [sigma * one for sigma, one in zip(sigmas, of_each)]


def _weigh(weights, states):
    total = weights[0] * states[0]
    for weight, h in zip(weights[1:], states[1:]):
        total = fma(weight, h, total)
    return total


@Loop
def mix(products, x, states):
    arguments = [product + x[j] for j, product in enumerate(products)]
    if len(states) == 2:
        p, q = states
        s, slope_p, slope_q = switch(*arguments)
        return fma(s, p - q, q), [s, slope_p * (p - q), slope_q * (p - q)]
    weights, tails = shares(arguments)
    hhat = _weigh(weights, states)
    return hhat, weights[:-1] + [s * tail * (h - hhat) for s, tail, h in zip(weights, tails, states)]


@Loop
def push_mix(products, dstates, factors):
    m, last = len(products), dstates[-1]
    total = last
    for j, product in enumerate(products):
        total = fma(product, factors[m - 1 + j], total)
    for j, dh in enumerate(dstates[:-1]):
        total = fma(factors[j], dh - last, total)
    return (total,)


@Loop
def pull_mix(arguments, y, hhat, factors):
    m, hhat = len(arguments), y + hhat
    return hhat, [factors[m - 1 + j] * hhat for j in range(m)]


@Loop
def share(products, hhat, factors):
    own = [factors[j] * hhat for j in range(len(products) - 1)]
    rest = reduce(lambda left, one: left - one, own, hhat)
    return ([product + one for product, one in zip(products, [*own, rest])],)


def side_by_side(count, like):
    """A new stack of matrices whose rows are adjacent in memory, so that one product takes them all."""
    return np.moveaxis(np.empty((*like.shape[:-1], count, like.shape[-1]), like.dtype), -2, 0)


class Mixture(reference.Mixture):
    """Implements `kernels.mixture`."""

    @staticmethod
    def value(products, x, states, factors=None, distances=None):
        hhat = products[0]
        mix((hhat,) if factors is None else (hhat, factors), (tuple(products), x, tuple(states)))
        return hhat

    @staticmethod
    def push(products, dstates, factors, distances=None):
        push_mix((products[0],), (tuple(products), tuple(dstates), factors))
        return products[0]

    @staticmethod
    def pull(y, hhat, factors):
        arguments = tuple(np.empty_like(hhat) for _ in range(factors.shape[0] // 2 + 1))
        pull_mix((y, arguments), (arguments, y, hhat, factors))
        return y, arguments

    @staticmethod
    def share(products, hhat, factors):
        products = tuple(products)
        share((products,), (products, hhat, factors))
        return products


# Gated recurrent units


@Loop
def reset(y, x, hhat):
    keep, r = gate(y[0] + x[0]), gate(y[1] + x[1])
    product = r * hhat
    return keep, product, [keep, r, None, (r - 1.0) * product]


@Loop
def blend(y, x, keep, hhat):
    candidate = tanh(y + x)
    h, z = fma(keep, hhat - candidate, candidate), 1.0 - keep
    return h, [None, None, z * (candidate - h), None, fma(-z, candidate * candidate, z)]


@Loop
def push_reset(dhhat, y, factors):
    return (fma(factors[1], dhhat, factors[3] * y[1]),)


@Loop
def push_blend(y, gates, dhhat, factors):
    return (fma(factors[0], dhhat, fma(factors[4], y, factors[2] * gates[0])),)


@Loop
def pull_blend(w, factors):
    return (factors[4] * w,)


@Loop
def pull_reset(y, w, factors):
    return fma(factors[0], w, factors[1] * y), [factors[2] * w, factors[3] * y]


class GRU(reference.GRU):
    """Implements `kernels.gru`."""

    @staticmethod
    def reset(y, x, hhat, factors=None):
        results = (y[0], y[1]) if factors is None else (y[0], y[1], factors)
        reset(results, (y, x, hhat))
        return results[:2]

    @staticmethod
    def blend(y, x, keep, hhat, factors=None):
        blend((y,) if factors is None else (y, factors), (y, x, keep, hhat))
        return y

    @staticmethod
    def push_reset(y, dhhat, factors):
        push_reset((y[1],), (dhhat, y, factors))
        return y[1]

    @staticmethod
    def push_blend(y, gates, dhhat, factors):
        push_blend((y,), (y, gates, dhhat, factors))
        return y

    @staticmethod
    def pull_blend(w, factors):
        candidate = np.empty_like(w)
        pull_blend((candidate,), (w, factors))
        return candidate

    @staticmethod
    def pull_reset(y, w, factors):
        arguments = side_by_side(2, y)
        pull_reset((y, arguments), (y, w, factors))
        return y, arguments


# Long short-term memory


def _mix(s, states):
    p, q = states
    return fma(s, p - q, q)


@Loop
def mix_states(products, x, h, c):
    s, slope_a, slope_c = switch(products[0] + x[0], products[1] + x[1])
    return _mix(s, h), _mix(s, c), [s, slope_a, slope_c, h[0] - h[1], c[0] - c[1]]


@Loop
def state(y, x, chat):
    i, f, o = (gate(y[j] + x[j]) for j in range(3))
    g = tanh(y[3] + x[3])
    c = fma(i, g, f * chat)
    tanh_c = tanh(c)
    by_gates = [(i - 1.0) * i * g, (f - 1.0) * f * chat, (o - 1.0) * o * tanh_c, i * (1.0 - g * g)]
    return o * tanh_c, c, [f, o * (1.0 - tanh_c * tanh_c), *by_gates]


@Loop
def push_mix_states(products, dh, dc, factors):
    s, slope_a, slope_c, difference_h, difference_c = (factors[i] for i in range(5))
    ds = fma(slope_a, products[0], slope_c * products[1])
    return fma(difference_h, ds, _mix(s, dh)), fma(difference_c, ds, _mix(s, dc))


@Loop
def push_state(dchat, y, factors):
    dc = factors[0] * dchat
    for j in (0, 1, 3):
        dc = fma(factors[2 + j], y[j], dc)
    return fma(factors[1], dc, factors[4] * y[2]), dc


@Loop
def pull_state(wh, wc, factors):
    c = fma(factors[1], wh, wc)
    return [factors[2] * c, factors[3] * c, factors[4] * wh, factors[5] * c], factors[0] * c


@Loop
def pull_mix_states(hhat, chat, factors):
    s = fma(hhat, factors[3], chat * factors[4])
    return s * factors[1], s * factors[2]


@Loop
def share_states(products, hhat, chat, factors):
    own_h, own_c = factors[0] * hhat, factors[0] * chat
    return products[0] + own_h, own_c, products[1] + (hhat - own_h), chat - own_c


class LSTM(reference.LSTM):
    """Implements `kernels.lstm`."""

    @staticmethod
    def value(products, x, states, factors=None, distances=None):
        products = tuple(products)
        mix_states(products if factors is None else (*products, factors), (products, x, *_each_half(states)))
        return products

    @staticmethod
    def state(y, x, chat, factors=None):
        found, h, c = _state(chat)
        state((h, c) if factors is None else (h, c, factors), (y, x, chat))
        return found

    @staticmethod
    def push(products, dstates, factors, distances=None):
        products = tuple(products)
        push_mix_states(products, (products, *_each_half(dstates), factors))
        return products

    @staticmethod
    def push_state(y, dchat, factors):
        found, dh, dc = _state(dchat)
        push_state((dh, dc), (dchat, y, factors))
        return found

    @staticmethod
    def pull_state(w, factors):
        chat = np.empty(factors.shape[1:], w.dtype)
        arguments = side_by_side(4, chat)
        pull_state((arguments, chat), (*reference.halves(w), factors))
        return arguments, chat

    @staticmethod
    def pull_mix(hhat, chat, factors):
        arguments = np.empty_like(hhat), np.empty_like(hhat)
        pull_mix_states(arguments, (hhat, chat, factors))
        return arguments

    @staticmethod
    def share(products, hhat, chat, factors):
        p, hp, cp = _state(hhat)
        q, hq, cq = _state(hhat)
        share_states((hp, cp, hq, cq), (tuple(products), hhat, chat, factors))
        return p, q


def _each_half(states):
    """h and c of both neighbours, as arguments of a loop."""
    return zip(*map(reference.halves, states))


def _state(like):
    """A new state (n, 2 k), and views of its halves."""
    state = np.empty((*like.shape[:-1], 2 * like.shape[-1]), like.dtype)
    return state, *reference.halves(state)


kernels.mixture.implement("numba", Mixture, supports)
kernels.gru.implement("numba", GRU, supports)
kernels.lstm.implement("numba", LSTM, supports)
