# pyright: basic
# Numba infers the types of kernels.
"""Block triangular matrices: LU of the diagonal blocks, and substitution that is row-wise backward stable.

The diagonal blocks of all rows are factored as so many systems of one block each; see `_elimination`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from implicitsolve import kernels
from implicitsolve._typing import HostArray
from implicitsolve.backends.numba import _elimination, _substitution
from implicitsolve.backends.numba._factors import Batch, usable
from implicitsolve.backends.numba._jit import fma, kernel, static_size, supports
from implicitsolve.backends.numba._threads import share


def block_substitution(blocks: HostArray, lower: int, upper: int, *, overwrite: bool = False) -> Any:
    """Factor the diagonal blocks of a batch (B, T, lower + upper + 1, k, k); see `implicitsolve.kernels`.

    Memory: k^2 T numbers, and a copy of `blocks` unless `overwrite`.
    """
    A = usable(blocks)
    A = A.copy() if A is blocks and not overwrite else A
    B, T, _, k, _ = A.shape
    D = np.ascontiguousarray(A[:, :, lower]).reshape((B * T, 1, 1, k, k))
    pivots, reach = np.empty((B * T, 1, k), np.int32), np.empty((B * T, 1), np.int32)
    singular, growth = np.full(B * T, -1), np.ones(B * T)

    def run(part: slice) -> None:
        _elimination.factor(
            D[part], D[part], pivots[part], reach[part], 0, static_size(k), singular[part], growth[part]
        )

    if D.size:
        share(run, B * T, 2.0 * D.size * k)
    bad = singular.reshape((B, T)) >= 0
    first = np.where(bad.any(axis=1), bad.argmax(axis=1) if T else 0, -1)
    return _Triangular(
        first,
        np.where(first < 0, 1.0, np.inf),
        A=A,
        D=D.reshape((B, T, 1, k, k)),
        pivots=pivots.reshape((B, T, 1, k)),
        reach=reach.reshape((B, T, 1)),
        lower=lower,
    )


class _Triangular(Batch):
    """A itself and the LU of its diagonal blocks."""

    arrays = ("A", "D", "pivots", "reach")
    A: HostArray
    D: HostArray
    pivots: HostArray
    reach: HostArray
    lower: int

    def _solve(self, x: HostArray, adjoint: bool) -> None:
        B, T, k, K = x.shape
        flat = x.reshape((B, T * k)) if K == 1 else x.reshape((B, T * k, K))
        loop: Any = (
            (_solve_adjoint_many if adjoint else _solve_many) if K > 1 else _solve_adjoint if adjoint else _solve
        )
        settings: tuple[Any, ...] = (self.lower,) if K > 1 else (self.lower, static_size(k))

        def run(part: slice) -> None:
            factors = self.A[part], self.D[part], self.pivots[part], self.reach[part]
            loop(*factors, *settings, self.singular[part], flat[part])

        share(run, B, 2.0 * self.A.size * K)


@kernel
def _solve(A, D, pivots, reach, lower, size, singular, x):
    """Overwrite x (B, T k) with the solutions; NaN for singular systems."""
    T, m = A.shape[1:3]
    k = len(size) if len(size) > 0 else A.shape[3]
    for b in range(x.shape[0]):
        if singular[b] >= 0:
            x[b] = np.nan
            continue
        for i in range(T):
            t = i if m == lower + 1 else T - 1 - i
            for j in range(max(0, lower - t), min(m, T + lower - t)):
                if j != lower:
                    o = (t + j - lower) * k
                    for r in range(k):
                        v = x[b, t * k + r]
                        for c in range(k):
                            v = fma(-A[b, t, j, r, c], x[b, o + c], v)
                        x[b, t * k + r] = v
            _substitution.solve_one(D[b, t : t + 1], pivots[b, t], reach[b, t], 0, size, x[b, t * k : t * k + k])


@kernel
def _solve_adjoint(A, D, pivots, reach, lower, size, singular, x):
    """The same for the adjoint matrices."""
    T, m = A.shape[1:3]
    k = len(size) if len(size) > 0 else A.shape[3]
    for b in range(x.shape[0]):
        if singular[b] >= 0:
            x[b] = np.nan
            continue
        for i in range(T):
            t = T - 1 - i if m == lower + 1 else i
            _substitution.solve_adjoint_one(
                D[b, t : t + 1], pivots[b, t], reach[b, t], 0, size, x[b, t * k : t * k + k]
            )
            for j in range(max(0, lower - t), min(m, T + lower - t)):
                if j != lower:
                    o = (t + j - lower) * k
                    for r in range(k):
                        v = x[b, t * k + r]
                        for c in range(k):
                            x[b, o + c] = fma(-np.conj(A[b, t, j, r, c]), v, x[b, o + c])


@kernel
def _solve_many(A, D, pivots, reach, lower, singular, x):
    """Overwrite x (B, T k, K) with the solutions; NaN for singular systems."""
    T, m, k = A.shape[1:4]
    for b in range(x.shape[0]):
        if singular[b] >= 0:
            x[b] = np.nan
            continue
        for i in range(T):
            t = i if m == lower + 1 else T - 1 - i
            for j in range(max(0, lower - t), min(m, T + lower - t)):
                if j != lower:
                    for r in range(k):
                        _substitution.subtract_row(x[b], t * k + r, A[b, t, j, r], (t + j - lower) * k)
            _substitution.solve_many_one(D[b, t : t + 1], pivots[b, t], reach[b, t], 0, x[b, t * k : t * k + k])


@kernel
def _solve_adjoint_many(A, D, pivots, reach, lower, singular, x):
    """The same for the adjoint matrices."""
    T, m, k = A.shape[1:4]
    for b in range(x.shape[0]):
        if singular[b] >= 0:
            x[b] = np.nan
            continue
        for i in range(T):
            t = T - 1 - i if m == lower + 1 else i
            _substitution.solve_adjoint_many_one(D[b, t : t + 1], pivots[b, t], reach[b, t], 0, x[b, t * k : t * k + k])
            for j in range(max(0, lower - t), min(m, T + lower - t)):
                if j != lower:
                    o = (t + j - lower) * k
                    for r in range(k):
                        for c in range(k):
                            _substitution.subtract(x[b], o + c, np.conj(A[b, t, j, r, c]), t * k + r)


kernels.block_substitution.implement("numba", block_substitution, supports)
