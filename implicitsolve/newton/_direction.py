"""The inexact Newton direction: J s = -F, solved as accurately as the forcing term asks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from implicitsolve._namespace import array_namespace, from_host, gather, is_complex, norm2
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.krylov import KrylovMethod, KrylovOutcome
from implicitsolve.krylov._arnoldi import arnoldi_cycle
from implicitsolve.krylov._base import classify
from implicitsolve.newton._line_search import Correction
from implicitsolve.newton._recycle import RecycledSpace, SpaceCollector
from implicitsolve.operators import LinearOperator

BASIS_MEMORY = 2**27  # entries that the basis of all systems may take: 1 GiB in float64
RECYCLED_MEMORY = 2**21  # the same for each of U, C, D and their combination: every product reads two of them
LARGEST_SPACE = 400  # vectors; beyond it orthogonalization costs more than it saves
EASY = 8  # iterations up to which a solve gains less by recycling than the recycled vectors cost
LEAST_ETA = 1e-5  # relative accuracy that float32 products can be asked for
SOLVED = 1  # iterations of a solve by a preconditioner that leaves nothing to learn
SMALL = 256  # unknowns up to which they cost nothing to speak of


class FixedMethod:
    """Solves with the Krylov method that the user chose."""

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

    def take(self, indices: Indices) -> None:
        """Forget systems that have finished: nothing is kept between solves."""

    def join(self, other: Any) -> None:
        """Take in systems."""


class GrowingSpace:
    """GMRES in one cycle, whose space doubles when it was too small and whose past serves as preconditioner.

    Parameters
    ----------
    size : int
        Krylov vectors of the first solves.
    recycle : int
        Most pairs (direction, image) kept from earlier Newton steps; 0 for none.
    """

    def __init__(self, size: int, recycle: int, systems: int) -> None:
        self.sizes, self.recycle = np.full(systems, size), recycle
        self.grew = np.zeros(systems, dtype=bool)  # to a size, after the last solve, that may become all of R^N
        self.space: RecycledSpace | None = None

    @property
    def correction(self) -> Correction | None:
        """What the spaces so far know of J^-1."""
        return None if self.space is None else self.space.matvec

    def direction(
        self, J: LinearOperator, F: Array, norms: HostArray, eta: HostArray, M: Any, limit: HostArray | None = None
    ) -> KrylovOutcome:
        """Newton direction, for each system by no more iterations than its `limit`."""
        systems, length = F.shape
        largest = max(20, BASIS_MEMORY // max(1, systems * length))
        if self.space is not None:
            self.space.base = M
        collector = self._collector(F, least=0 if M is None else SOLVED) if self.recycle else None
        target = eta * norms
        sizes = np.minimum(self.sizes, largest)
        if limit is not None:
            sizes = np.minimum(sizes, limit)
        cycle = arnoldi_cycle(
            J,
            -F,
            norms,
            target=target,
            columns=int(sizes.max()),
            limits=sizes,
            M=M if self.space is None else self.space,
            on_finish=collector,
            wants_residual=False,
        )
        lost = np.flatnonzero(cycle.broken & (cycle.norm > target))
        if lost.size and self.space is not None:
            # what was kept may be singular where J has changed beyond recognition: those systems begin afresh
            held = self.space.held.copy()
            held[lost] = False
            self.space = self.space.limited(held)
            again = arnoldi_cycle(
                J.take(lost),
                gather(-F, lost),
                norms[lost],
                target=target[lost],
                columns=int(sizes[lost].max()),
                limits=sizes[lost],
                M=None if M is None else M.take(lost),
                on_finish=None if collector is None else collector.renumbered(lost),
                wants_residual=False,
            )
            cycle.replace(lost, again)
        larger = np.maximum(self.sizes, np.minimum(2 * self.sizes, LARGEST_SPACE))
        sizes = np.where((cycle.norm > target) & (sizes == self.sizes), larger, self.sizes)
        self.grew, self.sizes = (sizes > self.sizes) & (self.sizes < length) & (length <= LARGEST_SPACE), sizes
        if collector is not None:
            self.space = collector.joined(self.space, M)
        status = classify(cycle.norm, target, broken=cycle.broken, nonfinite=cycle.nonfinite)
        return KrylovOutcome(cycle.dx, cycle.norm, status, cycle.columns)

    def _collector(self, F: Array, least: int) -> SpaceCollector:
        systems, length = F.shape
        keep = min(self.recycle, max(20, RECYCLED_MEMORY // max(1, systems * length)))
        has_some = np.zeros(systems, dtype=bool) if self.space is None else self.space.held.any(axis=1)
        return SpaceCollector(F, keep, least=np.where(has_some | (length <= SMALL), least, EASY))

    def take(self, indices: Indices) -> None:
        """Forget systems that have finished."""
        self.sizes = self.sizes[indices]
        if self.space is not None:
            self.space = self.space.take(indices)

    def join(self, other: Any) -> None:
        """Take in systems of which nothing is known yet."""
        self.sizes = np.concatenate([self.sizes, other.sizes])
        if self.space is not None:
            self.space = self.space.extended(other.sizes.size)


class SinglePrecision:
    """Another linear method in float32, for right-hand sides of length 1; directions come back in F's own dtype.

    A Jacobian that has no float32 products, or is complex, is solved with in its own precision.
    """

    def __init__(self, linear: FixedMethod | GrowingSpace) -> None:
        self.linear = linear
        self.is_single = True

    @property
    def grew(self) -> Any:
        """Whether the next solve has more vectors."""
        return self.linear.grew

    @property
    def correction(self) -> Correction | None:
        """What the method knows of J^-1, for vectors in double precision."""
        inner = self.linear.correction
        if inner is None:
            return None

        def correct(F: Array) -> Array:
            if not self.is_single:
                return inner(F)
            unit, norms = _normalized(F, norm2(F))
            return _restored(inner(unit), norms, F)

        return correct

    def direction(
        self, J: LinearOperator, F: Array, norms: HostArray, eta: HostArray, M: Any, limit: HostArray | None = None
    ) -> KrylovOutcome:
        """Newton direction, no more accurate than float32 can make it."""
        xp = array_namespace(F)
        single = J if is_complex(F) else J.astype(xp.float32)
        self.is_single = single.dtype != J.dtype
        if not self.is_single:
            return self.linear.direction(J, F, norms, eta, M, limit)
        unit, norms = _normalized(F, norms)
        eta = np.maximum(eta, LEAST_ETA)
        outcome = self.linear.direction(single, unit, norm2(unit), eta, _rounded(M, F), limit)
        return replace(outcome, x=_restored(outcome.x, norms, F), residual_norm=outcome.residual_norm * norms)

    def take(self, indices: Indices) -> None:
        """Forget systems that have finished."""
        self.linear.take(indices)

    def join(self, other: Any) -> None:
        """Take in systems of which nothing is known yet."""
        self.linear.join(other.linear)


def _normalized(F: Array, norms: HostArray) -> tuple[Array, HostArray]:
    """Rows, whose norms are known, of length 1 in float32, and what they were divided by."""
    norms = np.where((norms > 0) & np.isfinite(norms), norms, 1.0)
    xp = array_namespace(F)
    return xp.astype(F / from_host(norms, F)[:, None], xp.float32), norms


def _restored(x: Array, norms: HostArray, like: Array) -> Array:
    return array_namespace(like).astype(x, like.dtype) * from_host(norms, like)[:, None]


def _rounded(M: Any, like: Array) -> LinearOperator | None:
    """An operator in double precision as one on float32 vectors."""
    if M is None:
        return None
    xp = array_namespace(like)
    return LinearOperator(
        lambda v: xp.astype(M.matvec(xp.astype(v, like.dtype)), xp.float32),
        in_shape=like.shape[1],
        batch_shape=(like.shape[0],),
        dtype=xp.float32,
        take=lambda indices: _rounded(M.take(indices), gather(like, indices)),  # type: ignore[arg-type, return-value]
    )
