"""How every kernel here is compiled (without the GIL, IEEE arithmetic, cached on disk), and shared out over threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llvmlite.ir as ir
import numba
from numba.core import config
from numba.extending import intrinsic

from implicitsolve._typing import Array
from implicitsolve.backends.numba import _cache

STATIC = 8  # block sizes up to this one are compiled for their size; measured: no gain above


def supports(like: Array, **sizes: Any) -> bool:
    """Which arrays compiled kernels take."""
    return like.dtype.char in "fdFD" and like.dtype.isnative


def supports_real(like: Array, **sizes: Any) -> bool:
    """The same for kernels of real numbers."""
    return like.dtype.char in "fd" and like.dtype.isnative


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` for the types it is called with, and keep the machine code on disk."""
    return _cache.compiled(function, nogil=True, error_model="numpy")


def inner(function: Callable[..., Any]) -> Any:
    """Compile `function` for calls from kernels only: its machine code becomes part of theirs."""
    njit: Any = numba.njit  # its stubs lack the last two options
    return njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)


def _intrinsic(function: Callable[..., Any]) -> Any:
    """Numba's decorator, whose result takes one argument less than `function`."""
    return intrinsic(function)


def static_size(k: int) -> tuple[int, ...]:
    """Block size as the length of a tuple, known at compile time; () is a size known only at run time."""
    return (0,) * k if k <= STATIC else ()


@_intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` for three numbers of one type, in one instruction where the processor has it."""

    def fused(builder: Any, x: Any, y: Any, z: Any) -> Any:
        signature = ir.FunctionType(x.type, [x.type] * 3)
        return builder.call(builder.module.declare_intrinsic("llvm.fmuladd", [x.type], signature), [x, y, z])

    def real(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return fused(builder, *values)

    def complex_(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        x, y, z = (context.make_complex(builder, a, value=value) for value in values)
        out = context.make_complex(builder, a)
        out.real = fused(builder, builder.fneg(x.imag), y.imag, fused(builder, x.real, y.real, z.real))
        out.imag = fused(builder, x.imag, y.real, fused(builder, x.real, y.imag, z.imag))
        return out._getvalue()

    return a(a, a, a), complex_ if isinstance(a, numba.types.Complex) else real


@inner
def magnitude(x: Any) -> Any:
    """|Re x| + |Im x|: what LAPACK compares pivots by, and cheaper than the modulus."""
    return abs(x.real) + abs(x.imag)


@_intrinsic
def borrowed(typing_context: Any, array: Any) -> Any:
    """The same array without a reference count, for arguments of a kernel: the caller keeps them.

    Never for an array that the kernel itself made: it would be freed after its last use under its own name.

    Counts are atomic, and every call and every row of an array changes one. Threads that share an array would wait for
    each other: measured 20 % of a Newton solve on one thread, and all that the second thread gains.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        out = context.make_array(array)(context, builder, value=values[0])
        out.meminfo = ir.Constant(out.meminfo.type, None)
        out.parent = ir.Constant(out.parent.type, None)
        return out._getvalue()

    return array(array), generate


@_intrinsic
def row_pointer(typing_context: Any, array: Any, row: Any) -> Any:
    """C pointer to a row of a C-contiguous matrix, without the view and the checks of ``array[row].ctypes``."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        matrix = context.make_array(array)(context, builder, value=values[0])
        columns = builder.extract_value(matrix.shape, 1)
        return builder.gep(matrix.data, [builder.mul(values[1], columns)])

    return numba.types.CPointer(array.dtype)(array, numba.types.intp), generate


LEAST = 2_000_000  # operations below which starting threads costs more than they save


def share(function: Callable[[slice], Any], items: int, operations: float, pieces: int = 1) -> None:
    """Call ``function(slice)`` for slices that make up ``range(items)``: on one thread unless it is much work.

    Each thread gets `pieces` slices, more than one where the cost of items may vary widely. Results do not depend on
    the number of threads, since no item depends on another. NUMBA_NUM_THREADS limits them.
    """
    threads = min(getattr(config, "NUMBA_NUM_THREADS", 1), items) if operations >= LEAST else 1
    if threads <= 1:
        function(slice(0, items))
        return
    count = min(items, threads * pieces)
    edges = [items * i // count for i in range(count + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(function, map(slice, edges[:-1], edges[1:])))
