# pyright: basic
"""Recurrent networks without gates, compiled: the elementwise work, and whole recurrences."""

from __future__ import annotations

from functools import cache

import numpy as np

from implicitsolve.adapters import kernels
from implicitsolve.adapters.kernels import _recurrence as reference
from implicitsolve.backends.numba._gates import InLoops, loop_of
from implicitsolve.backends.numba._gates_loops import loop, supports
from implicitsolve.backends.numba._jit import kernel, share

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
        return run(loop_of(reference.RULES[rule]).name, weights, x, begin, lags, plan)


kernels.rnn.implement("numba", RNN(InLoops), supports)
