"""Newton directions: what solves J s = -F to the forcing term, also in single precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol, Self

import numpy as np

from implicitsolve._namespace import array_namespace, from_host, gather, is_complex, norm2
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.globalize._line_search import Correction
from implicitsolve.krylov import KrylovMethod, KrylovOutcome
from implicitsolve.operators import LinearOperator

LEAST_ETA = 1e-5  # smallest relative tolerance with float32 products
POOR_STEP = 0.5  # reduction of ||F|| that an accurate direction ought to bring: Newton's is quadratic near a root
ACCURATE = 1e-3  # relative linear residual below which a better direction would not help a failed line search
LEAST_KRYLOV = 20  # iterations of a step, however few evaluations are left for a system without progress
RETRIES = 3  # more accurate directions that are tried at one point before its line search has failed


class LinearSolver(Protocol):
    """Solves one linear system after another, for each system of a batch."""

    @property
    def grew(self) -> Any:
        """Systems for which the next solve has more vectors, and may succeed where the last one failed."""
        ...

    @property
    def correction(self) -> Correction | None:
        """Approximation of J^-1 from the solves so far, as ``F -> J^-1 F``."""
        ...

    def direction(
        self, J: LinearOperator, F: Array, norms: HostArray, eta: HostArray, M: Any, limit: HostArray | None = None
    ) -> KrylovOutcome:
        """Return s with ||F + J s|| <= eta ||F||, where ||F|| are `norms`, or the best within `limit` iterations."""
        ...

    def take(self, rows: Indices) -> Self:
        """Return the method of some systems."""
        ...

    def concat(self, other: Self, systems: int) -> Self:
        """Return the method of these systems and of others, which are at their start."""
        ...


class FixedMethod:
    """Solves with the Krylov method that the user chose; nothing is kept between solves."""

    correction: Correction | None = None
    grew: Any = False

    def __init__(self, krylov: KrylovMethod, max_iterations: int) -> None:
        self.krylov, self.max_iterations = krylov, max_iterations

    def direction(
        self, J: LinearOperator, F: Array, norms: HostArray, eta: HostArray, M: Any, limit: HostArray | None = None
    ) -> KrylovOutcome:
        """Newton direction, by no more iterations than the largest `limit`."""
        most = self.max_iterations if limit is None else min(self.max_iterations, int(limit.max()))
        return self.krylov.solve(J, -F, target=eta * norms, max_iterations=most, M=M, confirm=False)

    def take(self, rows: Indices) -> FixedMethod:
        """Return the method of some systems."""
        return self

    def concat(self, other: FixedMethod, systems: int) -> FixedMethod:
        """Return the method of these systems and of others."""
        return self


class SinglePrecision:
    """Another linear method in float32, for right-hand sides of length 1; directions come back in F's own dtype.

    A Jacobian that has no float32 products, or is complex, is solved with in its own precision.
    """

    def __init__(self, linear: LinearSolver) -> None:
        self.linear = linear
        self.is_single = True

    @property
    def grew(self) -> Any:
        """Whether the next solve has more vectors."""
        return self.linear.grew

    @property
    def correction(self) -> Correction | None:
        """The method's approximation of J^-1, for vectors in double precision."""
        inner = self.linear.correction
        if inner is None:
            return None

        def correct(F: Array) -> Array:
            if not self.is_single:
                return inner(F)
            unit, norms = normalized(F, norm2(F))
            return restored(inner(unit), norms, F)

        return correct

    def direction(
        self, J: LinearOperator, F: Array, norms: HostArray, eta: HostArray, M: Any, limit: HostArray | None = None
    ) -> KrylovOutcome:
        """Newton direction, no more accurate than float32 can make it."""
        xp = array_namespace(F)
        single = J if is_complex(F) else J.astype(xp.float32)
        self.is_single = single.dtype != F.dtype
        if not self.is_single:
            return self.linear.direction(J, F, norms, eta, M, limit)
        unit, norms = normalized(F, norms)
        eta = np.maximum(eta, LEAST_ETA)
        outcome = self.linear.direction(single, unit, norm2(unit), eta, _rounded(M, F), limit)
        return replace(outcome, x=restored(outcome.x, norms, F), residual_norm=outcome.residual_norm * norms)

    def take(self, rows: Indices) -> SinglePrecision:
        """Return the method of some systems."""
        return self._around(self.linear.take(rows))

    def concat(self, other: SinglePrecision, systems: int) -> SinglePrecision:
        """Return the method of these systems and of others."""
        return self._around(self.linear.concat(other.linear, systems))

    def _around(self, linear: LinearSolver) -> SinglePrecision:
        method = SinglePrecision(linear)
        method.is_single = self.is_single
        return method


def normalized(F: Array, norms: HostArray) -> tuple[Array, HostArray]:
    """Rows, whose norms are known, of length 1 in float32, and what they were divided by."""
    norms = np.where((norms > 0) & np.isfinite(norms), norms, 1.0)
    xp = array_namespace(F)
    return xp.astype(F / from_host(norms, F)[:, None], xp.float32), norms


def restored(x: Array, norms: HostArray, like: Array) -> Array:
    """Solutions for rows that were divided by `norms`, in the precision of `like`."""
    return array_namespace(like).astype(x, like.dtype) * from_host(norms, like)[:, None]


def _rounded(M: Any, like: Array) -> LinearOperator | None:
    """An operator as one on float32 vectors."""
    xp = array_namespace(like)
    if M is None or M.dtype == xp.float32:
        return M
    return LinearOperator(
        lambda v: xp.astype(M.matvec(xp.astype(v, like.dtype)), xp.float32),
        in_shape=like.shape[1],
        batch_shape=(like.shape[0],),
        dtype=xp.float32,
        take=lambda indices: _rounded(M.take(indices), gather(like, indices)),  # type: ignore[arg-type, return-value]
    )
