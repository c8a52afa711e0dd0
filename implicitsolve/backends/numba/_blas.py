# pyright: basic
"""Calls of SciPy's BLAS and LAPACK from compiled loops, and what factors of NumPy systems share.

The addresses of the routines are arguments: compiled code that knew them could not be kept on disk. Everything a
routine reads is passed by address, also letters and sizes, which therefore lie in small arrays.
"""

from __future__ import annotations

from typing import Any, ClassVar

import llvmlite.ir as ir
import numpy as np
from numba.core import cgutils, types
from numba.extending import get_cython_function_address

from implicitsolve._typing import HostArray
from implicitsolve.backends.numba._elimination import copy_block, largest_in_block
from implicitsolve.backends.numba._jit import ZERO, _intrinsic, inner, kernel, share
from implicitsolve.kernels import StoredFactors


def usable(x: HostArray) -> HostArray:
    """Return x in C order, aligned and writeable: one type to compile for. A copy only where it is not so already."""
    if type(x) is np.ndarray and x.flags.carray:
        return x
    return np.require(x, requirements=["C", "A", "W"])


class Batch(StoredFactors):
    """Factors of a batch of NumPy systems, which solve in place."""

    def solve(self, b: HostArray, adjoint: bool = False) -> HostArray:
        """Return A^-1 b or A^-H b for b (B, T, k, K)."""
        x = np.array(b, order="C")
        self.solve_in_place(x, adjoint)
        return x

    def solve_in_place(self, x: HostArray, adjoint: bool = False) -> None:
        """Overwrite x (B, T, k, K), in C order, with A^-1 x or A^-H x."""
        if x.size:
            self._solve(x, adjoint)

    def _solve(self, x: HostArray, adjoint: bool) -> None:
        """Solve for one column after the other."""
        B, T, k, K = x.shape
        if K == 1:
            self._solve_column(x.reshape((B, T * k)), adjoint)
            return
        columns = np.ascontiguousarray(np.moveaxis(x, 3, 0))
        for column in columns.reshape((K, B, T * k)):
            self._solve_column(column, adjoint)
        x[...] = np.moveaxis(columns, 0, 3)

    def _solve_column(self, x: HostArray, adjoint: bool) -> None:
        """Overwrite x (B, T k), in C order."""
        raise NotImplementedError


PREFIX = {"f": "s", "d": "d", "F": "c", "D": "z"}
ROUTINES = (("lapack", "getrf"), ("lapack", "getrs"), ("blas", "trsm"), ("blas", "gemm"), ("blas", "gemv"))
GETRF, GETRS, TRSM, GEMM, GEMV = range(len(ROUTINES))
ONE, SIZE, COLUMNS, INFO = range(4)  # places among the integers


def calls_of(dtype: Any, k: int, K: int) -> tuple[Any, ...]:
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


@inner
def factor(calls, D, pivots):
    """LU of the transpose of a block D, in C order, in place; False where a pivot is zero."""
    k = address(calls[2]) + 4 * SIZE
    call(calls[0][GETRF], (k, k, D, k, pivots, address(calls[2]) + 4 * INFO))
    return calls[2][INFO] == 0


@inner
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


@inner
def exchange(x, i, p):
    """Exchange two rows."""
    if i != p:
        for j in range(x.shape[1]):
            x[i, j], x[p, j] = x[p, j], x[i, j]


@inner
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


# Block LU with large blocks, pivoting inside the diagonal ones, without Python between the calls.
#
# ``A = L U`` with the eliminated diagonal blocks D_t and what is left below them in L, and ``D_t^-1 A[t, t + c]`` in U,
# whose diagonal is 1. Of a block tridiagonal matrix the blocks below the diagonal stay as they are.


class LargeBlockFactors(Batch):
    """Block LU in place, and the pivots inside the diagonal blocks.

    Without Python between the calls a solve by `BlockNewton` takes 0.5 of the time for k = 20 to 32, 0.65 for k = 64.
    With k = 16 it factorizes in 0.9 of the time of the compiled loops, which take twice as long to compile.
    """

    axes: ClassVar[dict[str, int]] = {"F": 0, "pivots": 0}
    F: HostArray
    pivots: HostArray
    lower: int

    @classmethod
    def factor(cls, blocks: HostArray, lower: int, overwrite: bool) -> LargeBlockFactors:
        """Factor blocks (B, T, m, k, k) in C order."""
        B, T, m, k = blocks.shape[:4]
        F = blocks if overwrite else np.empty_like(blocks)
        pivots = np.empty((B, T, k), np.int32)
        singular, growth = np.full(B, -1), np.ones(B)

        def run(part: slice) -> None:
            calls = calls_of(F.dtype, k, k)
            _factor(blocks[part], F[part], pivots[part], lower, overwrite, calls, singular[part], growth[part])

        if blocks.size:
            share(run, B, 2.0 * B * T * k**3 * (lower + 1) * m)
        return cls(singular, growth, F=F, pivots=pivots, lower=lower)

    def _solve(self, x: HostArray, adjoint: bool) -> None:
        B, _, k, K = x.shape
        conjugate = adjoint and x.dtype.kind == "c"  # A^H x = b is A^T conj(x) = conj(b)
        if conjugate:
            np.conj(x, out=x)

        def run(part: slice) -> None:
            calls = calls_of(x.dtype, k, K)
            loop: Any = _solve_transpose if adjoint else _solve
            loop(self.F[part], self.pivots[part], self.lower, calls, self.singular[part], x[part])

        share(run, B, 2.0 * self.F.size * K)
        if conjugate:
            np.conj(x, out=x)


@kernel
def _factor(A, F, pivots, lower, in_place, calls, singular, growth):
    """Factor A (B, T, m, k, k) into F, which is A if `in_place`; each row is copied when it is needed first."""
    B, T, m, k = A.shape[:4]
    step = k * k * F.itemsize  # bytes of a block
    for b in range(B):
        scale, top, entered = 0.0, 0.0, ZERO
        for t in range(T):
            while entered < min(t + lower + 1, T):
                for j in range(max(0, lower - entered), min(m, T + lower - entered)):
                    if not in_place:
                        copy_block(A[b], F[b], entered, j, k)
                    scale = max(scale, largest_in_block(F[b], entered, j, k))
                entered += 1
            row = address(F[b, t])
            entries = 0.0
            for i in range(min(lower, T - 1 - t) + 1):
                entries = max(entries, largest_in_block(F[b], t + i, lower - i, k))
            regular = factor(calls, row + lower * step, address(pivots[b, t]))
            for r in range(k):
                regular = regular and np.isfinite(F[b, t, lower, r, r])
            if not regular:
                singular[b], growth[b] = t, np.inf
                break
            multiplier = 1.0
            for c in range(1, min(m - 1 - lower, T - 1 - t) + 1):
                D, C = row + lower * step, row + (lower + c) * step
                divide(calls, D, address(pivots[b, t]), pivots[b, t], C, F[b, t, lower + c], False)
                multiplier = max(multiplier, largest_in_block(F[b], t, lower + c, k))
                for i in range(1, min(lower, T - 1 - t) + 1):
                    below = address(F[b, t + i])
                    subtract_product(calls, below + (lower - i) * step, C, below + (lower - i + c) * step, False)
            top = max(top, entries * multiplier)
        if singular[b] < 0:
            growth[b] = top / scale


@kernel
def _solve(F, pivots, lower, calls, singular, x):
    """Overwrite x (B, T, k, K) with the solutions; NaN for singular systems."""
    B, T, m, k = F.shape[:4]
    step = k * k * F.itemsize
    for b in range(B):
        if singular[b] >= 0:
            x[b] = np.nan
            continue
        for t in range(T):
            row, X = address(F[b, t]), address(x[b, t])
            for i in range(1, min(lower, t) + 1):
                subtract_product(calls, row + (lower - i) * step, address(x[b, t - i]), X, False)
            divide(calls, row + lower * step, address(pivots[b, t]), pivots[b, t], X, x[b, t], False)
        for t in range(T - 2, -1, -1):
            row, X = address(F[b, t]), address(x[b, t])
            for c in range(1, min(m - 1 - lower, T - 1 - t) + 1):
                subtract_product(calls, row + (lower + c) * step, address(x[b, t + c]), X, False)


@kernel
def _solve_transpose(F, pivots, lower, calls, singular, x):
    """The same for the transposed matrices."""
    B, T, m, k = F.shape[:4]
    step = k * k * F.itemsize
    for b in range(B):
        if singular[b] >= 0:
            x[b] = np.nan
            continue
        for t in range(T - 1):
            row, X = address(F[b, t]), address(x[b, t])
            for c in range(1, min(m - 1 - lower, T - 1 - t) + 1):
                subtract_product(calls, row + (lower + c) * step, X, address(x[b, t + c]), True)
        for t in range(T - 1, -1, -1):
            row, X = address(F[b, t]), address(x[b, t])
            divide(calls, row + lower * step, address(pivots[b, t]), pivots[b, t], X, x[b, t], True)
            for i in range(1, min(lower, t) + 1):
                subtract_product(calls, row + (lower - i) * step, X, address(x[b, t - i]), True)
