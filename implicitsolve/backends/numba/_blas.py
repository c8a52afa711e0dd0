# pyright: basic
"""Calls of SciPy's BLAS and LAPACK from compiled loops, and what factors of NumPy systems share.

The addresses of the routines are arguments: compiled code that contains them could not be kept on disk. Everything a
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
from implicitsolve.backends.numba._views import View, larger, smaller, view
from implicitsolve.kernels import StoredFactors


def usable(x: HostArray) -> HostArray:
    """Return x in C order, aligned and writeable: one type to compile for. A copy only where it is not so already."""
    if type(x) is np.ndarray and x.flags.carray:
        return x
    return np.require(x, requirements=["C", "A", "W"])


class Batch(StoredFactors):
    """Factors of a batch of NumPy systems, which solve in place."""

    def solve(self, b: HostArray, adjoint: bool = False) -> HostArray:
        x = np.array(b, order="C")
        self.solve_in_place(x, adjoint)
        return x

    def solve_in_place(self, x: HostArray, adjoint: bool = False) -> None:
        """Overwrite x (B, T, k, K), in C order, with A^-1 x or A^-H x; NaN for singular systems."""
        is_singular = self.singular >= 0
        if is_singular.any():
            good = np.flatnonzero(~is_singular)
            x[good], x[is_singular] = self.take(good).solve(x[good], adjoint), np.nan
        elif x.size:
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


def calls_of(dtype, k: int, K: int) -> tuple[Any, ...]:
    """What the routines need for blocks of k unknowns and K right-hand sides; each thread has its own."""
    prefix = PREFIX[np.dtype(dtype).char]
    addresses = [get_cython_function_address(f"scipy.linalg.cython_{part}", prefix + name) for part, name in ROUTINES]
    return (
        np.asarray(addresses, np.int64),
        np.frombuffer(b"RLUNT", np.uint8).copy(),
        np.asarray([1, k, K, 0], np.int32),
        np.asarray([[1], [-1]], dtype),
    )


@_intrinsic
def address(typing_context, array):
    def generate(context, builder, signature, values):
        is_view = isinstance(array, View)
        data = (
            builder.extract_value(values[0], 0)
            if is_view
            else context.make_array(array)(context, builder, values[0]).data
        )
        return builder.ptrtoint(data, ir.IntType(64))

    return types.int64(array), generate


@_intrinsic
def call(typing_context, routine, arguments):
    """Call the routine at an address with a tuple of addresses."""

    def generate(context, builder, signature, values):
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
    call(calls[0][GETRF], (k, k, address(D), k, address(pivots), address(calls[2]) + 4 * INFO))
    return calls[2][INFO] == 0


@inner
def divide(calls, block, pivots, x, adjoint):
    """Overwrite x (k, K) with D^-1 x, or D^-T x, for a block in which `factor` left D and its pivots."""
    letters, one, D, X = address(calls[1]), address(calls[2]), address(block), address(x)
    R, L, U, N, T = letters, letters + 1, letters + 2, letters + 3, letters + 4
    k, K, info, unit = one + 4 * SIZE, one + 4 * COLUMNS, one + 4 * INFO, address(calls[3])
    trsm = calls[0][TRSM]
    if calls[2][COLUMNS] == 1:
        call(calls[0][GETRS], (N if adjoint else T, k, one, D, k, address(pivots), X, k, info))
    elif adjoint:
        for i in range(x.shape[0]):
            exchange(x, i, pivots[i] - 1)
        call(trsm, (R, L, T, U, K, k, unit, D, k, X, K))
        call(trsm, (R, U, T, N, K, k, unit, D, k, X, K))
    else:
        call(trsm, (R, U, N, N, K, k, unit, D, k, X, K))
        call(trsm, (R, L, N, U, K, k, unit, D, k, X, K))
        for i in range(x.shape[0] - 1, -1, -1):
            exchange(x, i, pivots[i] - 1)


@inner
def exchange(x, i, p):
    if i != p:
        for j in range(x.shape[1]):
            x[i, j], x[p, j] = x[p, j], x[i, j]


@inner
def subtract_product(calls, block, y, x, adjoint):
    """``x -= A y``, or ``A^T y``, for x and y (k, K) and a block A; all in C order."""
    letters, one, unit = address(calls[1]), address(calls[2]), address(calls[3][0])
    A, Y, X = address(block), address(y), address(x)
    N, T = letters + 3, letters + 4
    k, K, minus = one + 4 * SIZE, one + 4 * COLUMNS, address(calls[3][1])
    if calls[2][COLUMNS] == 1:
        call(calls[0][GEMV], (N if adjoint else T, k, k, minus, A, k, Y, one, unit, X, one))
    else:
        call(calls[0][GEMM], (N, T if adjoint else N, K, k, k, minus, Y, K, A, k, unit, X, K))


@inner
def views(calls):
    return view(calls[0]), view(calls[1]), view(calls[2]), view(calls[3])


# Block LU with large blocks, pivoting inside the diagonal ones, without Python between the calls.
#
# ``A = L U`` with the eliminated diagonal blocks D_t and what is left below them in L, and ``D_t^-1 A[t, t + c]`` in U,
# whose diagonal is 1. Of a block tridiagonal matrix the blocks below the diagonal stay as they are.


class LargeBlockFactors(Batch):
    """Block LU in place, and the pivots inside the blocks: half of LAPACK's time for k = 20 to 32, 0.65 for k = 64."""

    axes: ClassVar[dict[str, int]] = {"F": 0, "pivots": 0}

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
            loop(self.F[part], self.pivots[part], self.lower, calls, x[part])

        share(run, B, 2.0 * self.F.size * K)
        if conjugate:
            np.conj(x, out=x)


@kernel
def _factor(A, F, pivots, lower, in_place, calls, singular, growth):
    """Factor A (B, T, m, k, k) into F, which is A if `in_place`; each row is copied when it is needed first."""
    A, F, pivots, calls, singular, growth = view(A), view(F), view(pivots), views(calls), view(singular), view(growth)
    B, T, m, k = A.shape[:4]
    for b in range(B):
        scale, top, entered = 0.0, 0.0, ZERO
        for t in range(T):
            row = F[b, t]
            while entered < smaller(t + lower + 1, T):
                for j in range(larger(0, lower - entered), smaller(m, T + lower - entered)):
                    if not in_place:
                        copy_block(A[b], F[b], entered, j, k)
                    scale = larger(scale, largest_in_block(F[b], entered, j, k))
                entered += 1
            entries = 0.0
            for i in range(smaller(lower, T - 1 - t) + 1):
                entries = larger(entries, largest_in_block(F[b], t + i, lower - i, k))
            regular = factor(calls, row[lower], pivots[b, t])
            for r in range(k):
                regular = regular and np.isfinite(row[lower, r, r])
            if not regular:
                singular[b], growth[b] = t, np.inf
                break
            multiplier = 1.0
            for c in range(1, smaller(m - 1 - lower, T - 1 - t) + 1):
                divide(calls, row[lower], pivots[b, t], row[lower + c], False)
                multiplier = larger(multiplier, largest_in_block(F[b], t, lower + c, k))
                for i in range(1, smaller(lower, T - 1 - t) + 1):
                    below = F[b, t + i]
                    subtract_product(calls, below[lower - i], row[lower + c], below[lower - i + c], False)
            top = larger(top, entries * multiplier)
        if singular[b] < 0:
            growth[b] = top / scale


@kernel
def _solve(F, pivots, lower, calls, x):
    """Overwrite x (B, T, k, K) with the solutions."""
    F, pivots, calls, x = view(F), view(pivots), views(calls), view(x)
    T, m = F.shape[1:3]
    for b in range(F.shape[0]):
        for t in range(T):
            for i in range(1, smaller(lower, t) + 1):
                subtract_product(calls, F[b, t, lower - i], x[b, t - i], x[b, t], False)
            divide(calls, F[b, t, lower], pivots[b, t], x[b, t], False)
        for t in range(T - 2, -1, -1):
            for c in range(1, smaller(m - 1 - lower, T - 1 - t) + 1):
                subtract_product(calls, F[b, t, lower + c], x[b, t + c], x[b, t], False)


@kernel
def _solve_transpose(F, pivots, lower, calls, x):
    """Overwrite x with the solutions for the transposed matrices."""
    F, pivots, calls, x = view(F), view(pivots), views(calls), view(x)
    T, m = F.shape[1:3]
    for b in range(F.shape[0]):
        for t in range(T - 1):
            for c in range(1, smaller(m - 1 - lower, T - 1 - t) + 1):
                subtract_product(calls, F[b, t, lower + c], x[b, t], x[b, t + c], True)
        for t in range(T - 1, -1, -1):
            divide(calls, F[b, t, lower], pivots[b, t], x[b, t], True)
            for i in range(1, smaller(lower, t) + 1):
                subtract_product(calls, F[b, t, lower - i], x[b, t], x[b, t - i], True)
