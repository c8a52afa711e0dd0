# pyright: basic
"""Whole recurrences, in chunks that run side by side: of networks without gates, of GRUs, and affine ones."""

from __future__ import annotations

import math
from itertools import pairwise

import cupy
import numpy as np

from implicitsolve.adapters import kernels
from implicitsolve.adapters.kernels import Plan
from implicitsolve.backends.cupy._module import WARP, dense, is_real, launch, launch_each, limits, matrix, strides

THREAD_BLOCKS = 2048  # about sixteen warps for each multiprocessor of the largest devices
LEAST_CHUNK = 128  # steps of a chunk: below, a launch takes longer
SHORTEST_AFFINE = 32  # steps of a chunk without matrices
REGISTERS = 96  # of 32 bits, for the weights of a lane
DEEPEST = 16  # steps that a state may have to wait
FIRST_CHECK = 3  # sweeps before the host tests for the first time; a transfer takes longer than an idle sweep
RNN_RULES, GRU_RULES = ("tanh", "logistic", "relu", "identity", "push", "pull"), ("value", "push", "pull")
SHOWN = {"value": 1, "push": 1, "pull": 3}  # rows besides the states that a GRU's lanes show each other


class Layout:
    """Layout of states of k numbers in a block, for products with some matrices and a depth of states."""

    def __init__(self, k, matrices, depth, shown, itemsize):
        width = 1 << (k - 1).bit_length() if k <= WARP else -(-k // WARP) * WARP
        threads, slots = max(width, WARP), 1 << depth.bit_length()
        in_registers = k <= WARP and matrices * k * itemsize <= 4 * REGISTERS
        self.groups = threads // width
        self.shared = itemsize * ((slots + shown) * threads + (0 if in_registers else matrices * k * k))
        self.constants = {
            "K": k,
            "WIDTH": width,
            "THREADS": threads,
            "DEPTH": depth,
            "SLOTS": slots,
            "SHOWN": shown,
            "IN_REGISTERS": int(in_registers),
        }

    @property
    def fits(self):
        return self.shared <= limits()[1] and self.constants["DEPTH"] <= DEEPEST

    def chunk(self, plan):
        """Steps of a chunk: as few as give every multiprocessor enough to do, a multiple of those that are unrolled."""
        blocks = max(1, THREAD_BLOCKS * WARP // self.constants["THREADS"])
        steps = max(LEAST_CHUNK, -(-int(plan.lengths.sum()) // (blocks * self.groups)))
        return -(-steps // 8) * 8


def run(rule, weights, x, begin, lags, plan, given=None):
    """See `kernels.rnn`."""
    layout = Layout(begin.shape[-1], len(lags), max(lags), 0, begin.itemsize)
    if not layout.fits or any(lag >= following for lag, following in pairwise(lags)):
        return kernels.rnn.reference.run(rule, weights, x, begin, lags, plan, given)
    constants = {"RULE": RNN_RULES.index(rule), "LAGS": sum(1 << (lag - 1) for lag in lags), "MATRICES": len(lags)}
    arguments = (*_with_strides(weights), *_with_strides(x[0]), *_with_strides(x[-1]))
    return _sweeps("recurrence_rnn", layout, arguments, begin, plan, given, **constants)


def run_gru(rule, gates, U, x, begin, lags, plan, given=None):
    """See `kernels.gru_recurrence`."""
    layout = Layout(begin.shape[-1], 3, lags[0], SHOWN[rule], begin.itemsize)
    if not layout.fits:
        return kernels.gru_recurrence.reference(rule, gates, U, x, begin, lags, plan, given)
    row, column = begin.shape[-1], 1
    steps = (row, column) if rule == "pull" else (column, row)
    stack = x[-1][-3:] if rule == "value" else x[-1][-5:]
    x_strides = (stack[0], *_with_strides(stack)[2:]) if rule == "value" else _with_strides(x[0])
    arguments = (cupy.ascontiguousarray(gates), cupy.ascontiguousarray(U), *steps, *x_strides, *_with_strides(stack))
    return _sweeps("recurrence_gru", layout, arguments, begin, plan, given, RULE=GRU_RULES.index(rule))


def _with_strides(x):
    """An array as a kernel's arguments, with its strides in numbers."""
    return x, *strides(x)


def _sweeps(name, layout, arguments, begin, plan, given, **constants):
    """Sweep until no chunk has work left: at most as many sweeps as chunks, and one sweep where states are given."""
    (runs, depth, k), chunk = begin.shape, layout.chunk(plan)
    chunks = -(-int(plan.lengths.max()) // chunk)
    if given is None:
        out = given = (cupy.empty if plan.is_full else cupy.zeros)((plan.rows, k), begin.dtype)
        most = chunks
    else:
        given, most = cupy.ascontiguousarray(given), 1
        out = cupy.empty_like(given) if plan.is_full else given.copy()
    ends = cupy.empty((2, runs, chunks, depth, k), begin.dtype)
    moved = (cupy.zeros if most > 1 else cupy.empty)(1 + 2 * runs * chunks, np.int32)
    planned = (*_with_strides(begin), _table(plan), runs, chunks, chunk)
    grid, look = -(-runs * chunks // layout.groups), FIRST_CHECK
    constants |= layout.constants | {"RESIDUAL": int(out is not given)}
    for sweep in range(1, most + 1):
        given_now = *arguments, *planned, sweep, ends, moved, given, out
        launch(f"{name}.cu", name, grid, constants["THREADS"], given_now, layout.shared, **constants)
        if sweep == look < most:
            if int(moved[0]) < sweep:
                break
            look = 2 * look + 1
    return out


def _table(plan):
    """The plan on the present device, where it stays."""
    device = cupy.cuda.runtime.getDevice()
    if device not in plan.kept:
        rows = plan.lengths, plan.sources, plan.targets, plan.ways
        plan.kept[device] = cupy.asarray(np.stack(rows).astype(np.int64))
    return plan.kept[device]


def _supports(like, *, size):
    """Real numbers, and weights that fit into a block's memory."""
    return is_real(like) and Layout(size, 3, 1, SHOWN["pull"], like.itemsize).fits


def run_affine(rule, x, begin, lags, plan):
    """Implements `kernels.affine_recurrence`: three launches, none of more sequential steps than about sqrt(T).

    Chunks run side by side, first to find how each depends on its start, then again from the starts found so. Runs
    that occupy the device with one thread for each channel take one launch.
    """
    k, runs, longest = x[1].shape[-1], len(plan.lengths), int(plan.lengths.max())
    chunk = max(SHORTEST_AFFINE, math.isqrt(longest), -(-longest * runs * k // (THREAD_BLOCKS * WARP)))
    begin = ends = cupy.ascontiguousarray(begin)
    if chunk < longest:
        within = plan.kept.setdefault(("chunk", chunk), _of_chunks(plan, chunk))
        rows, size = within.rows, begin.shape[-1]
        e, P = (cupy.empty(shape, begin.dtype) for shape in ((rows, size), ((size // k) ** 2, rows, k)))
        _launch_affine(rule, x, begin, begin, plan, chunk, e, P)
        ends = cupy.empty((rows, size), begin.dtype)
        _launch_affine("push", (e, P), begin, begin, within, rows, ends)
    out = (cupy.empty if plan.is_full else cupy.zeros)((plan.rows, begin.shape[-1]), begin.dtype)
    _launch_affine(rule, x, begin, ends, plan, min(chunk, longest), out)
    return out


def _of_chunks(plan, chunk):
    """Chunk after chunk of each run."""
    lengths = -(-plan.lengths // chunk)
    first = np.arange(len(lengths)) * int(lengths.max())
    return Plan(lengths, first, first, np.ones_like(first), len(lengths) * int(lengths.max()))


def _launch_affine(rule, x, begin, ends, plan, chunk, out, products=None):
    b, D = (dense(part) for part in x)
    k, runs = D.shape[-1], len(plan.lengths)
    chunks = -(-int(plan.lengths.max()) // chunk)
    count = runs * chunks * k
    inputs = (b, strides(b)[0], D, *strides(D)[:2])
    ways = {"PARTS": out.shape[-1] // k, "PULL": int(rule == "pull"), "ENDS": int(products is not None)}
    outputs = out, out if products is None else products
    inputs = count, k, *inputs, begin, ends, _table(plan), runs, chunks, chunk
    launch_each("affine.cu", "affine", count, (*inputs, *outputs), **ways)


def take_rows(x, source, none):
    found = cupy.empty((len(source), x.shape[1]), x.dtype)
    x, _, step = matrix(x)
    _launch("take_rows", found, (x, step, source, none, found))
    return found


def clear_rows(x, empty):
    """Implements `kernels.clear_rows`; in place, unless the array has gaps."""
    x = cupy.ascontiguousarray(x)
    _launch("clear_rows", x, (len(empty), empty, x))
    return x


def _launch(function, found, arguments):
    """Launch a thread for each number of a result."""
    launch_each("rows.cu", function, found.size, (found.size, found.shape[-1], *arguments))


kernels.gru_recurrence.implement("cupy", run_gru, _supports)
kernels.take_rows.implement("cupy", take_rows, is_real)
kernels.clear_rows.implement("cupy", clear_rows, is_real)
kernels.affine_recurrence.implement("cupy", run_affine, is_real)
