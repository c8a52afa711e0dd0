# pyright: basic
"""The whole function of a GRU's position, its derivative and the adjoint of the derivative, each in one launch."""

from __future__ import annotations

from functools import cache, cached_property

import cupy

from implicitsolve.adapters import kernels
from implicitsolve.backends.cupy._gates import elementwise, factor_stack, stack
from implicitsolve.backends.cupy._module import is_real, launch, launch_each, limits, matrix

FILE = "gru_cell.cu"
MOST_THREADS = 512  # threads, of which there is one for each column: more would have too few registers
MOST_SLICES = 4  # of a sum, whose parts are added in shared memory
MOST_WORK = 1 << 27  # rows times squared size: beyond that cuBLAS, which reads weights less often, is faster


def _supports(like, *, size, neighbours):
    return is_real(like) and size <= MOST_THREADS and neighbours <= 2


class GRUCell:
    def __init__(self, weights):
        self.weights, self.neighbours, self.size = weights, len(weights) - 3, weights.shape[-1]
        self.most_rows = MOST_WORK // self.size**2

    @cached_property
    def right_weights(self):
        """The weights as they multiply from the right."""
        return cupy.ascontiguousarray(self.weights.transpose(0, 2, 1))

    def value(self, x, states, factors=None, distances=None):
        return self._value(self.neighbours, x, self.right_weights, states, factors, distances)

    def step(self, x, previous):
        first = self.neighbours - 1
        return self._value(1, x[first:], self.right_weights[first:], (previous,), None, None)

    def _value(self, m, x, weights, states, factors, distances):
        h = cupy.empty(x.shape[1:], x.dtype)
        self._launch("value", m, h, (*_near(states, distances), *stack(x), weights, *factor_stack(factors, x), h))
        return h

    def push(self, factors, dstates, distances=None):
        dh = cupy.empty(factors.shape[1:], factors.dtype)
        self._launch("push", self.neighbours, dh, (*_near(dstates, distances), *stack(factors), self.right_weights, dh))
        return dh

    def pull(self, factors, w):
        m, count = self.neighbours + 3, w.size
        sums = cupy.empty(2 * m * count, w.dtype)
        sent = tuple(self._send(factors, w, sums, 1))
        return sent, sums[: m * count].reshape(m, *w.shape), sums[m * count :].reshape(*w.shape[:-1], -1)

    def pull_back(self, factors, w, distances, length):
        sent = self._send(factors, w, w, 0)
        m, B, T, k = sent.shape
        total = cupy.empty((B, length, k), w.dtype)
        arguments = sent, distances[0], distances[-1], total, B * length, T, length, k
        launch_each(FILE, "gather", total.size, arguments, **_constants(4, m))
        return total

    def gradients(self, inputs, states, factors, sums, joined):
        hhat, reset = self._elementwise("states", 2, (*stack(factors), *matrix(states[0]), *matrix(states[-1])))
        W, b = (joined.T @ inputs).reshape(len(sums), self.size, -1), joined.sum(axis=0).reshape(len(sums), self.size)
        return W, [own.T @ state for own, state in zip(sums, (*states, hhat, hhat, reset))], b

    def diagonals(self, factors):
        return tuple(self._elementwise("diagonals", self.neighbours, (*stack(factors), self.weights)))

    def _elementwise(self, function, count, arguments):
        """A stack of new matrices, from the factors and more."""
        factors = arguments[0]
        found = cupy.empty((count, *factors.shape[1:]), factors.dtype)
        constants = _constants(4, self.neighbours)
        elementwise(FILE, function, factors.shape[1:], (*arguments, found), **constants)
        return found

    def _send(self, factors, w, sums, keeps_sums):
        """Cotangents of the neighbours, in the row of the position that has the neighbour."""
        sent = cupy.empty((self.neighbours, *w.shape), w.dtype)
        arguments = (*matrix(w), *stack(factors), self.weights, sent, sums, keeps_sums)
        self._launch("pull", self.neighbours, w, arguments)
        return sent

    def _launch(self, function, m, like, arguments):
        """Launch a function for every row of an array like `like`."""
        rows = like.size // self.size
        multiprocessors, memory = limits()
        height, threads, shared = _tile(rows > 4 * multiprocessors, self.size, like.itemsize, memory)
        arguments, grid = (*arguments, rows, like.shape[-2], self.size), -(-rows // height)
        launch(FILE, function, grid, threads, arguments, shared, **_constants(height, m))


def _constants(height, neighbours):
    return {"ROWS": height, "M": neighbours, "LARGEST_BLOCK": MOST_THREADS}


@cache
def _tile(is_high, size, itemsize, memory):
    """Rows of a block, its threads (columns, slices of a sum) and its shared memory, at most `memory` bytes."""
    width = -(-size // 32) * 32
    slices = min(MOST_SLICES, MOST_THREADS // width, -(-size // 16))
    of_row = (3 + 2 * slices) * width * itemsize
    height = next(rows for rows in (8, 4, 2) if rows * of_row <= memory and (is_high or rows < 8))
    return height, (width, slices), height * of_row


def _near(states, distances):
    """The first and the last neighbour, whose rows have the same strides, how many there are, and their distances."""
    first, last = matrix(states[0]), matrix(states[-1])
    if first[1:] != last[1:]:
        first, last = (matrix(cupy.ascontiguousarray(state)) for state in states)
    by_first, by_last = (0, 0) if distances is None else (distances[0], distances[-1])
    return first[0], *last, states[0].shape[-2], by_first, by_last


kernels.gru_cell.implement("cupy", GRUCell, _supports)
