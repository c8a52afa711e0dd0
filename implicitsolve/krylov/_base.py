"""What every Krylov method takes and returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from implicitsolve._namespace import array_namespace, gather, norm2, scatter
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.operators import LinearOperator
from implicitsolve.status import Status

IDLE = 1e-3  # relative reduction of the residual under which a cycle, or a call, has achieved nothing


@dataclass(frozen=True)
class KrylovOutcome:
    """End of a Krylov solve on arrays (B, N).

    Attributes
    ----------
    x : Array (B, N)
        Solution.
    residual_norm : ndarray (B,)
        2-norm of b - A x: measured by a product if the method was asked to confirm, else from the recurrence.
    status : ndarray (B,) of int
        `Status` codes.
    iterations : ndarray (B,) of int
        Krylov iterations of each system.
    """

    x: Array
    residual_norm: HostArray
    status: HostArray
    iterations: HostArray


class KrylovMethod(Protocol):
    """Frozen settings with one method.

    With a true attribute `is_unaided` it takes a system as it is: without elimination, or a preconditioner on offer.
    """

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
    ) -> KrylovOutcome:
        """Solve A x = b on arrays (B, N) until ||b - A x||_2 <= target for each system.

        With `confirm`, convergence is claimed only after a product at the returned x has shown it.
        """
        ...


def start(A: LinearOperator, b: Array, x0: Array | None) -> tuple[Array, Array, HostArray]:
    """x, r = b - A x and ||r||; no product when x0 is None. Where b is zero x is too, whatever x0."""
    xp = array_namespace(b)
    if x0 is None:
        return xp.zeros_like(b), b, norm2(b)
    x = xp.where(xp.any(b != 0, axis=1, keepdims=True), x0, xp.zeros_like(b))
    r = b - A.matvec(x)
    return x, r, norm2(r)


def classify(
    norms: HostArray,
    target: HostArray,
    *,
    broken: HostArray,
    nonfinite: HostArray,
    stagnated: HostArray | None = None,
) -> HostArray:
    """Status codes of systems that have ended, by what is known of them."""
    status = np.full(norms.shape, int(Status.ITERATION_LIMIT))
    if stagnated is not None:
        status[stagnated] = Status.STAGNATED
    status[broken] = Status.BREAKDOWN
    status[nonfinite | ~np.isfinite(norms)] = Status.NONFINITE
    status[np.isfinite(norms) & (norms <= target)] = Status.CONVERGED
    return status


def part_of(x: Array, rows: Indices) -> Array:
    """Some rows of x, or x itself."""
    return x if rows.size == x.shape[0] else gather(x, rows)


def updated(x: Array, rows: Indices, where: HostArray, values: Array) -> Array:
    """Return x, which may be the caller's b, with those of some rows replaced `where` that is true."""
    if where.all() and rows.size == x.shape[0]:
        return values
    x, kept = array_namespace(x).asarray(x, copy=True), np.flatnonzero(where)
    if kept.size:
        scatter(x, rows[kept], part_of(values, kept))
    return x
