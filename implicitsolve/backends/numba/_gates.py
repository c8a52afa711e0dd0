# pyright: basic
"""The formulas of `adapters.kernels` in loops, each in one pass, and recurrences of networks without gates."""

from __future__ import annotations

from functools import cache

import numpy as np

from implicitsolve.adapters import kernels
from implicitsolve.adapters.kernels import _recurrence as reference
from implicitsolve.adapters.kernels._formulas import Number, OnArrays
from implicitsolve.adapters.kernels._gates import GRU, LSTM, Mixture, halves
from implicitsolve.backends.numba import _gates_loops as numbers
from implicitsolve.backends.numba._gates_loops import Loop, exp, loop, supports, where
from implicitsolve.backends.numba._jit import kernel, share


class Functions:
    """The functions in formulas, on single numbers."""

    exp, tanh, where, one, fma, gate = exp, numbers.tanh, where, numbers.one, numbers.fma, numbers.gate
    stack = list

    @staticmethod
    def switch(a, c):
        """As for arrays, by two exponentials: of the terms exp(m), exp(m - a) and exp(m - c) one is 1."""
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
        return s, lambda: (scale * of_a * s, scale * of_c * (s - 1.0))


@cache
def loop_of(formula):
    def body(*arguments):
        *found, last = formula(Functions, *arguments)
        return *found, last() if callable(last) else last

    return Loop(body, f"{formula.__module__}.{formula.__name__}")


class InLoops(OnArrays):
    """Formulas on NumPy arrays, whose results are in the places given."""

    @staticmethod
    def run(formula, places, arguments):
        loop_of(formula)(places, arguments)
        return places

    @staticmethod
    def fill(formula, places, arguments, factors):
        loop_of(formula)(places if factors is None else (*places, factors), arguments)
        return places

    @staticmethod
    def join(parts: Number):
        return parts[0].base

    @staticmethod
    def new(like):
        return np.empty_like(like)

    @staticmethod
    def stack(count, like):
        """A stack of matrices whose rows are adjacent in memory, so that one product takes them all."""
        return np.moveaxis(np.empty((*like.shape[:-1], count, like.shape[-1]), like.dtype), -2, 0)

    @staticmethod
    def state(like):
        return halves(np.empty((*like.shape[:-1], 2 * like.shape[-1]), like.dtype))


# Networks without gates

ALONE = 2**18  # m k^2 of a product that OpenBLAS leaves to the thread that calls it


@cache
def entry(name):
    """The loop over all steps, for the name of a rule's loop."""

    @kernel
    def run(lags, runs, weights, x, other, carried, y, out):
        (lengths, sources, targets, ways), depth = runs, carried.shape[0]
        m = len(lengths)
        for t in range(lengths[0]):
            while lengths[m - 1] <= t:
                m -= 1
            np.dot(carried[(t - lags[0]) % depth][:m], weights[0], y[:m])
            for j in range(1, len(lags)):
                y[:m] += np.dot(carried[(t - lags[j]) % depth][:m], weights[j])
            following = carried[t % depth]
            for i in range(m):
                row, target = sources[i] + t * ways[i], targets[i] + t * ways[i]
                results = out[target : target + 1], following[i : i + 1]
                loop(name, results, (y[i : i + 1], x[row : row + 1], other[row : row + 1]))

    return run


def run(rule, weights, x, begin, lags, plan):
    """See `kernels.rnn`; the runs are shared out over threads, unless BLAS itself has work for several."""
    (runs, _, k), dtype = begin.shape, begin.dtype
    compiled, weights, order = entry(rule), np.ascontiguousarray(weights), plan.longest_first
    out = (np.empty if plan.is_full else np.zeros)((plan.rows, k), dtype)

    def some(part):
        own = order[part]
        carried = np.empty((begin.shape[1], len(own), k), dtype)
        carried[...] = begin[own, ::-1].transpose(1, 0, 2)
        rows = plan.lengths[own], plan.sources[own], plan.targets[own], plan.ways[own]
        compiled(np.asarray(lags), rows, weights, x[0], x[-1], carried, np.empty_like(carried[0]), out)

    operations = 2.0 * len(lags) * float(plan.lengths.sum()) * k**2
    share(some, runs, operations if runs * k**2 <= 2 * ALONE else 0.0)
    return out


class RNN(reference.RNN):
    """Implements `kernels.rnn`; compiled, `push` would be as fast as the reference."""

    def run(self, rule, weights, x, begin, lags, plan, given=None):
        if given is not None:  # steps are independent: layers compute them all at once
            return super().run(rule, weights, x, begin, lags, plan, given)
        return run(loop_of(reference.STEP_RULES[rule]).name, weights, x, begin, lags, plan)


kernels.mixture.implement("numba", Mixture(InLoops), supports)
kernels.gru.implement("numba", GRU(InLoops), supports)
kernels.lstm.implement("numba", LSTM(InLoops), supports)
kernels.rnn.implement("numba", RNN(InLoops), supports)
