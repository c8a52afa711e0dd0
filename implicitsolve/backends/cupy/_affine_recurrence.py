# pyright: basic
"""`affine_recurrence` as a scan: chunks side by side, what each makes of its start, and all again from their starts."""

from __future__ import annotations

import math

import cupy
import numpy as np

from implicitsolve.adapters import kernels
from implicitsolve.adapters.kernels import Plan
from implicitsolve.backends.cupy._module import THREADS, WARP, dense, is_real, launch, strides
from implicitsolve.backends.cupy._recurrence import BLOCKS, _table

SHORTEST = 32  # steps of a chunk


def run(rule, x, begin, lags, plan):
    """Implements `kernels.affine_recurrence`: three launches, none of more sequential steps than about sqrt(T).

    Runs that already occupy the device with one thread for each channel are done in one launch.
    """
    k, runs, longest = x[1].shape[-1], len(plan.lengths), int(plan.lengths.max())
    chunk = max(SHORTEST, math.isqrt(longest), -(-longest * runs * k // (BLOCKS * WARP)))
    begin = ends = cupy.ascontiguousarray(begin)
    if chunk < longest:
        within = plan.kept.setdefault(("chunk", chunk), _of_chunks(plan, chunk))
        rows, size = within.rows, begin.shape[-1]
        e, P = (cupy.empty(shape, begin.dtype) for shape in ((rows, size), ((size // k) ** 2, rows, k)))
        _launch(rule, x, begin, begin, plan, chunk, e, P)
        ends = cupy.empty((rows, size), begin.dtype)
        _launch("push", (e, P), begin, begin, within, rows, ends)
    out = (cupy.empty if plan.is_full else cupy.zeros)((plan.rows, begin.shape[-1]), begin.dtype)
    _launch(rule, x, begin, ends, plan, min(chunk, longest), out)
    return out


def _of_chunks(plan, chunk):
    """Chunk after chunk of each run."""
    lengths = -(-plan.lengths // chunk)
    first = np.arange(len(lengths)) * int(lengths.max())
    return Plan(lengths, first, first, np.ones_like(first), len(lengths) * int(lengths.max()))


def _launch(rule, x, begin, ends, plan, chunk, out, products=None):
    b, D = (dense(part) for part in x)
    k, runs = D.shape[-1], len(plan.lengths)
    chunks = -(-int(plan.lengths.max()) // chunk)
    count = runs * chunks * k
    inputs = (b, strides(b)[0], D, *strides(D)[:2])
    launch(
        "affine.cu",
        "affine",
        out.dtype.char,
        (-(-count // THREADS),),
        (THREADS,),
        (count, k, *inputs, begin, ends, _table(plan), runs, chunks, chunk, out, out if products is None else products),
        PARTS=out.shape[-1] // k,
        PULL=int(rule == "pull"),
        ENDS=int(products is not None),
    )


kernels.affine_recurrence.implement("cupy", run, is_real)
