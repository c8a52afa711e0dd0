# pyright: basic
"""The formulas of `adapters.kernels` in loops, each in one pass: the elementwise work of layers."""

from __future__ import annotations

from functools import cache

import numpy as np

from implicitsolve.adapters import kernels
from implicitsolve.adapters.kernels._formulas import Number, OnArrays
from implicitsolve.adapters.kernels._gates import GRU, LSTM, Mixture, halves
from implicitsolve.backends.numba import _gates_loops as numbers
from implicitsolve.backends.numba._gates_loops import Loop, exp, supports, where


class Functions:
    """The functions in formulas, on single numbers."""

    exp, tanh, where, one, fma, gate = exp, numbers.tanh, where, numbers.one, numbers.fma, numbers.gate
    stack = list

    @staticmethod
    def switch(a, c):
        """As that of arrays, by two exponentials: of the terms exp(m), exp(m - a) and exp(m - c) one is 1."""
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


kernels.mixture.implement("numba", Mixture(InLoops), supports)
kernels.gru.implement("numba", GRU(InLoops), supports)
kernels.lstm.implement("numba", LSTM(InLoops), supports)
