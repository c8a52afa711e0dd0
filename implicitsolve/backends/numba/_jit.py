"""How every kernel here is compiled (without the GIL, IEEE arithmetic), and shared out over threads.

Numba keeps machine code on disk by the file of each kernel and the time of its last change. It does not notice changes
of functions that were compiled in from another file: after those, remove the cache.
"""

from __future__ import annotations

import functools
import itertools
import operator
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeAlias

import llvmlite.ir as ir
import numba
import numpy as np
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from implicitsolve._typing import Array

Code: TypeAlias = Any
"""Contexts, builders, types and values of Numba and LLVM, which declare no types."""
STATIC = 8  # block sizes up to this one are compiled for their size; measured: no gain above
ZERO = np.int64(0)  # not a literal: Numba would compile a callee of its own for it


def supports(like: Array, **sizes: Code) -> bool:
    return like.dtype.char in "fdFD" and like.dtype.isnative


def supports_real(like: Array, **sizes: Code) -> bool:
    return like.dtype.char in "fd" and like.dtype.isnative


def kernel(function: Callable[..., Any]) -> Code:
    """Compile `function` for the types it is called with, and keep the machine code on disk."""
    return numba.njit(nogil=True, error_model="numpy", cache=True)(function)


def inner(function: Callable[..., Any], **options: Code) -> Code:
    return numba.njit(nogil=True, error_model="numpy", **options)(function)


def inline(function: Callable[..., Any]) -> Code:
    """Compile `function` into its callers, so that loops with bounds known there unroll: up to 40 % of a block LU."""
    return inner(function, forceinline=True)


_intrinsic: Code = intrinsic  # what it decorates takes one argument less


@_intrinsic
def apart(typing_context: Code) -> Code:
    """Keep the function that calls this from being inlined: LLVM compiles it once and not in each of its callers."""

    def generate(context: Code, builder: Code, signature: Code, values: Code) -> Code:
        for name in ("noinline", "optsize"):
            builder.function.attributes.add(name)
        return context.get_dummy_value()

    return types.void(), generate


def static_size(k: int) -> tuple[int, ...]:
    """Block size as the length of a tuple, known at compile time; () is a size known only at run time."""
    return (0,) * k if k <= STATIC else ()


def llvm(builder: Code, name: str, *values: Code) -> Code:
    """Call LLVM's intrinsic `name` on numbers, or vectors of them, of one type."""
    kind = values[0].type
    is_vector = isinstance(kind, ir.VectorType)
    suffix = f"v{kind.count}{kind.element.intrinsic_name}" if is_vector else kind.intrinsic_name
    function = ir.FunctionType(kind, [kind] * len(values))
    return builder.call(cgutils.get_or_insert_function(builder.module, function, f"llvm.{name}.{suffix}"), values)


@_intrinsic
def fma(typing_context: Code, a: Code, b: Code, c: Code) -> Code:
    """``a * b + c`` for three numbers of one type, or lanes, in one instruction where the processor has it."""

    def fuse(builder: Code, *values: Code) -> Code:
        return llvm(builder, "fmuladd", *values)

    def real(context: Code, builder: Code, signature: Code, values: Code) -> Code:
        return fuse(builder, *values)

    def complex_(context: Code, builder: Code, signature: Code, values: Code) -> Code:
        x, y, z = (context.make_complex(builder, a, value=value) for value in values)
        out = context.make_complex(builder, a)
        out.real = fuse(builder, builder.fneg(x.imag), y.imag, fuse(builder, x.real, y.real, z.real))
        out.imag = fuse(builder, x.imag, y.real, fuse(builder, x.real, y.imag, z.imag))
        return out._getvalue()

    return a(a, a, a), complex_ if isinstance(a, types.Complex) else real


@inner
def magnitude(x: Any) -> Any:
    """|Re x| + |Im x|: what LAPACK compares pivots by, and cheaper than the modulus."""
    return abs(x.real) + abs(x.imag)


LEAST_OPERATIONS = 2_000_000  # operations below which waking threads costs more than they save
_part: threading.local = threading.local()  # of which thread: whether it runs a slice


def share(function: Callable[[slice], Any], items: int, operations: float, pieces: int = 1) -> None:
    """Call ``function(slice)`` for slices that make up ``range(items)``: on one thread unless it is much work.

    Each thread gets `pieces` slices, more than one where the cost of items may vary widely. At most
    NUMBA_NUM_THREADS of them work, the calling one included; what a slice calls uses its thread alone. If several
    slices raise, the first one's exception is raised.
    """
    threads = min(getattr(config, "NUMBA_NUM_THREADS", 1), items) if operations >= LEAST_OPERATIONS else 1
    if threads <= 1 or getattr(_part, "is_running", False):
        function(slice(0, items))
        return

    count = min(items, threads * pieces)
    waiting = enumerate(itertools.pairwise([items * i // count for i in range(count + 1)]))
    errors: list[tuple[int, BaseException]] = []

    def run() -> None:
        _part.is_running = True
        for i, edge in waiting:
            try:
                function(slice(*edge))
            except BaseException as error:  # noqa: BLE001 - the calling thread raises it
                errors.append((i, error))
                break
        _part.is_running = False

    others = [_pool(threads - 1).submit(run) for _ in range(threads - 1)]
    run()
    wait(others)
    if errors:
        raise min(errors, key=operator.itemgetter(0))[1]


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


if hasattr(os, "register_at_fork"):  # threads stay behind in the parent
    os.register_at_fork(after_in_child=_pool.cache_clear)
