# pyright: basic
# Numba infers the types of kernels.
"""Calls of SciPy's BLAS and LAPACK from compiled loops.

The addresses of the routines are arguments: compiled code that knew them could not be kept on disk. Everything a
routine reads is passed by address, also letters and sizes, which therefore lie in small arrays.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba.core import cgutils, types
from numba.extending import get_cython_function_address

from implicitsolve.backends.numba._jit import _intrinsic, kernel

PREFIX = {"f": "s", "d": "d", "F": "c", "D": "z"}
ROUTINES = (("lapack", "getrf"), ("lapack", "getrs"), ("blas", "trsm"), ("blas", "gemm"), ("blas", "gemv"))
GETRF, GETRS, TRSM, GEMM, GEMV = range(len(ROUTINES))
ONE, SIZE, COLUMNS, INFO = range(4)  # places among the integers


def calls(dtype: Any, k: int, K: int) -> tuple[Any, ...]:
    """What the routines need for blocks of k unknowns and K right-hand sides; each thread has its own."""
    prefix = PREFIX[np.dtype(dtype).char]
    addresses = [get_cython_function_address(f"scipy.linalg.cython_{part}", prefix + name) for part, name in ROUTINES]
    return (
        np.asarray(addresses, np.int64),
        np.frombuffer(b"RLUNT", np.uint8).copy(),
        np.asarray([1, k, K, 0], np.int32),
        np.asarray([1, -1], dtype),
    )


@_intrinsic
def address(typing_context: Any, array: Any) -> Any:
    """Address of the first number of an array."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.ptrtoint(context.make_array(array)(context, builder, value=values[0]).data, ir.IntType(64))

    return types.int64(array), generate


@_intrinsic
def call(typing_context: Any, routine: Any, arguments: Any) -> Any:
    """Call the routine at an address with a tuple of addresses."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        function = ir.FunctionType(ir.VoidType(), [pointer] * len(arguments)).as_pointer()
        places = [builder.inttoptr(value, pointer) for value in cgutils.unpack_tuple(builder, values[1])]
        builder.call(builder.inttoptr(values[0], function), places)
        return context.get_dummy_value()

    return types.void(routine, arguments), generate


@kernel
def factor(calls, D, pivots):
    """LU of the transpose of a block D, in C order, in place; False where a pivot is zero."""
    k = address(calls[2]) + 4 * SIZE
    call(calls[0][GETRF], (k, k, D, k, pivots, address(calls[2]) + 4 * INFO))
    return calls[2][INFO] == 0


@kernel
def divide(calls, D, pivots, moves, X, x, adjoint):
    """Overwrite x (k, K), at the address X, with D^-1 x, or D^-T x, for what `factor` left at D and `pivots`.

    `moves` are the pivots as an array.
    """
    letters, one = address(calls[1]), address(calls[2])
    R, L, U, N, T = letters, letters + 1, letters + 2, letters + 3, letters + 4
    k, K, info, unit = one + 4 * SIZE, one + 4 * COLUMNS, one + 4 * INFO, address(calls[3])
    trsm = calls[0][TRSM]
    if calls[2][COLUMNS] == 1:
        call(calls[0][GETRS], (N if adjoint else T, k, one, D, k, pivots, X, k, info))
    elif adjoint:
        for i in range(len(moves)):
            exchange(x, i, moves[i] - 1)
        call(trsm, (R, L, T, U, K, k, unit, D, k, X, K))
        call(trsm, (R, U, T, N, K, k, unit, D, k, X, K))
    else:
        call(trsm, (R, U, N, N, K, k, unit, D, k, X, K))
        call(trsm, (R, L, N, U, K, k, unit, D, k, X, K))
        for i in range(len(moves) - 1, -1, -1):
            exchange(x, i, moves[i] - 1)


@kernel
def exchange(x, i, p):
    """Exchange two rows."""
    if i != p:
        for j in range(x.shape[1]):
            x[i, j], x[p, j] = x[p, j], x[i, j]


@kernel
def subtract_product(calls, A, Y, X, adjoint):
    """``x -= A y``, or ``A^T y``, for x and y (k, K); all in C order, given by their addresses."""
    letters, one, unit = address(calls[1]), address(calls[2]), address(calls[3])
    N, T = letters + 3, letters + 4
    k, K = one + 4 * SIZE, one + 4 * COLUMNS
    minus = unit + calls[3].itemsize
    if calls[2][COLUMNS] == 1:
        call(calls[0][GEMV], (N if adjoint else T, k, k, minus, A, k, Y, one, unit, X, one))
    else:
        call(calls[0][GEMM], (N, T if adjoint else N, K, k, k, minus, Y, K, A, k, unit, X, K))
