"""The inexact Newton direction: J s = -F, solved as accurately as the forcing term asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._namespace import array_namespace, norm2
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.krylov._arnoldi import arnoldi_cycle
from implicitsolve.krylov._base import KrylovMethod, KrylovOutcome, classify
from implicitsolve.newton._recycle import RecycledSpace, SpaceCollector
from implicitsolve.operators import LinearOperator

MEMORY = 2**27  # entries of all bases together that a growing space may take: 1 GiB in float64


@dataclass(frozen=True, kw_only=True)
class FixedMethod:
    """Solves with the Krylov method that the user chose."""

    krylov: KrylovMethod
    max_iterations: int

    def direction(self, J: LinearOperator, F: Array, norms: HostArray, eta: HostArray, M: Any) -> KrylovOutcome:
        """Newton direction."""
        return self.krylov.solve(
            J, -F, target=eta * norms, max_iterations=self.max_iterations, M=M, confirm=False
        )


class GrowingSpace:
    """GMRES in one cycle, whose space doubles when it was too small, and whose past serves as preconditioner.

    Parameters
    ----------
    size : int
        Krylov vectors of the first solves.
    recycle : int
        Most pairs (direction, image) kept from earlier Newton steps; 0 for none.
    """

    def __init__(self, size: int, largest: int, recycle: int) -> None:
        self.size, self.largest, self.recycle = size, largest, recycle
        self.space: RecycledSpace | None = None

    def direction(self, J: LinearOperator, F: Array, norms: HostArray, eta: HostArray, M: Any) -> KrylovOutcome:
        """Newton direction."""
        xp = array_namespace(F)
        rows, length = F.shape
        largest = int(min(self.largest, length, max(self.size, MEMORY // max(1, rows * length))))
        target = eta * norms
        collector = SpaceCollector(F, min(self.recycle, largest)) if self.recycle else None
        if self.space is not None:
            self.space.base = M
        cycle = arnoldi_cycle(
            J,
            -F,
            norms,
            target=target,
            columns=min(self.size, largest),
            M=M if self.space is None else self.space,
            on_finish=collector,
        )
        if (cycle.norm > target).any():
            self.size = min(2 * self.size, self.largest)
        if collector is not None:
            self.space = collector.merge(self.space, M)
        status = classify(cycle.norm, target, cycle.broken, cycle.nonfinite)
        return KrylovOutcome(cycle.dx, cycle.norm, status, cycle.columns)

    def take(self, indices: Indices) -> None:
        """Forget systems that have finished."""
        if self.space is not None:
            self.space = self.space.take(indices)
