"""What every Krylov method takes and returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from implicitsolve._namespace import array_namespace, gather, norm2, scatter
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.operators import LinearOperator

# Relative reduction of the residual below which a cycle, or a call, counts as idle: a digit would take 2300 of them.
IDLE = 1e-3


@dataclass(frozen=True)
class KrylovOutcome:
    """Result of a Krylov solve on arrays (B, N).

    Attributes
    ----------
    x : Array (B, N)
        Solution.
    residual_norm : ndarray (B,)
        2-norm of b - A x: measured by a product with `confirm`, else from the recurrence.
    status : ndarray (B,) of int
        `Status` codes.
    iterations : ndarray (B,) of int
        Krylov iterations of each system.
    """

    x: Array
    residual_norm: HostArray
    status: HostArray
    iterations: HostArray


class ApproximateInverse(Protocol):
    """An approximate inverse: its products, and the restriction to some systems of the batch."""

    def matvec(self, v: Array) -> Array: ...
    def take(self, indices: Indices) -> ApproximateInverse: ...


class LinearMethod(Protocol):
    """Frozen settings of a linear solver, and what they declare about it as class attributes.

    Attributes
    ----------
    kind : {"krylov", "direct"}
        Which method the settings have: `solve`, as a `KrylovMethod`, or `factor`, as a `DirectMethod`.
    may_transform : bool
        Whether an equivalent system may be solved instead: preconditioned by the approximate inverse that A offers, or
        reduced by even-odd elimination.
    partitioned : bool
        Whether it takes arrays that are partitioned across ranks.
    """

    kind: ClassVar[str]
    may_transform: ClassVar[bool]
    partitioned: ClassVar[bool]


class KrylovMethod(LinearMethod, Protocol):
    """Frozen settings of an iterative method that needs products with A alone."""

    def solve(
        self,
        A: LinearOperator,
        b: Array,
        *,
        target: HostArray,
        max_iterations: int,
        M: Any = None,
        x0: Array | None = None,
        confirm: bool = True,
        polish: bool = False,
    ) -> KrylovOutcome:
        """Solve A x = b on arrays (B, N) until ||b - A x||_2 <= target for each system.

        With `confirm`, convergence is claimed only after a product at the returned x has shown it. `polish` permits a
        last correction M r that costs no product and is not confirmed; methods that have none ignore it.
        """
        ...


def start(A: LinearOperator, b: Array, x0: Array | None) -> tuple[Array, Array, HostArray]:
    """Return x, r = b - A x and ||r||; no product when x0 is None. Where b is zero, x = 0 whatever x0 is."""
    xp = array_namespace(b)
    if x0 is None:
        return xp.zeros_like(b), b, norm2(b)
    x = xp.where(xp.any(b != 0, axis=1, keepdims=True), x0, xp.zeros_like(b))
    r = b - A.matvec(x)
    return x, r, norm2(r)


def part_of(x: Array, rows: Indices) -> Array:
    """Some rows of x, or x itself."""
    return x if rows.size == x.shape[0] else gather(x, rows)


def updated(x: Array, rows: Indices, where: HostArray, values: Array) -> Array:
    """Return x with the values of some rows replaced `where` true; x is not written to, since it may be b itself."""
    if where.all() and rows.size == x.shape[0]:
        return values
    x, kept = array_namespace(x).asarray(x, copy=True), np.flatnonzero(where)
    if kept.size:
        scatter(x, rows[kept], part_of(values, kept))
    return x
