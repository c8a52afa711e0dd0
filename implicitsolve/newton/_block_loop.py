"""The steps of `BlockNewton`: directions from a factorized J and its updates, and when J is assembled anew."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicitsolve._assemble import Assembler
from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import Norms, eps, gather, norm2, norm_max, scatter
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.monitor import Monitor
from implicitsolve.newton._broyden import BroydenInverse
from implicitsolve.newton._line_search import SUFFICIENT_DECREASE, Searched
from implicitsolve.newton._loop import HALVED, NewtonLoop, Solution
from implicitsolve.newton._pieces import Pieces
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop

DIGITS = 1.5  # decimal digits of ||F|| that a new Jacobian is expected to bring
KEPT_DECREASE = 0.9  # of ||F||, short of which a step with a kept J is not taken: it may lead astray
OLDEST = 20  # steps after which J is assembled anew in any case: each update costs a vector and two passes over it
ROUNDING = 0.5  # F's change between neighbouring numbers, over F, from which on F is rounding error
FAR = 1e6  # times the change that J predicts between neighbouring numbers: an F above it is no rounding error
GUESSES = 5  # assemblies at most at one point, while the length of differences is a guess
# As integers: an attribute of an enumeration costs a call.
RUNNING, STAGNATED, NONFINITE = int(Status.RUNNING), int(Status.STAGNATED), int(Status.NONFINITE)
LINE_SEARCH_FAILED, SINGULAR = int(Status.LINE_SEARCH_FAILED), int(Status.SINGULAR)


class BlockLoop(NewtonLoop):
    """A Newton loop whose directions come from a factorized J and the updates since."""

    PER_SYSTEM = (*NewtonLoop.PER_SYSTEM, "is_stale", "age", "rate", "is_exhausted")

    def __init__(
        self,
        method: Any,
        evaluator: Evaluator,
        solution: Solution,
        stop: NonlinearStop,
        monitor: Monitor,
        rows: Indices | None = None,
    ) -> None:
        super().__init__(method, evaluator, solution, stop, monitor, rows)
        self.assembler = Assembler(evaluator, method.rdiff, certifies=False)
        self.inverse = Pieces()
        self.updates = BroydenInverse()
        self.first_direction: Array | None = None  # -J^-1 F, where the check of a new J has computed it for all
        size = self.rows.size
        self.is_stale = np.ones(size, dtype=bool)
        self.age = np.zeros(size, dtype=int)  # steps since the last assembly
        self.is_exhausted = np.zeros(size, dtype=bool)  # F(x) is rounding error
        self.rate = np.ones(size)  # ||F|| over ||F|| one step before, of the last step

    def _step(self, iteration: int, is_last: HostArray) -> None:
        fresh = self.is_stale.copy()
        if fresh.any():
            self._factorize(fresh)
        direction, x = self._trial()
        F = self.evaluator.residual(x)
        length = self._take(x, F, Norms(F, direction, x), direction, fresh, is_last)
        self._report(iteration, step_length=length, factorized=fresh)

    def _trial(self) -> tuple[Array, Array]:
        """-J^-1 F with what is kept of J, and where it leads."""
        with np.errstate(all="ignore"):
            direction = self._solved()
            if self.method.reuse == "broyden":
                direction = self.updates.corrected(direction)
            return direction, self.x + direction

    def _take(
        self, x: Array, F: Array, measured: Norms, direction: Array, fresh: HostArray, is_last: HostArray
    ) -> HostArray:
        """Take the whole step to x, or what a search along it finds; return the lengths."""
        previous, norms = self.norms, measured.two(0)
        finite = np.isfinite(norms)
        whole = Searched(x, F, norms, np.ones(fresh.size), finite.copy(), finite, None, measured)
        found = self._search(whole, direction, fresh)
        moved, is_still = self._move(found, direction)
        self._judge(found, moved, is_still & fresh, is_last, self._failed(found, direction, fresh, previous))
        self._age(fresh, found.accepted, previous)
        if not self.is_stale.all():
            self.updates.step(moved, direction, found.length)
        return found.length

    def _failed(self, found: Searched, direction: Array, fresh: HostArray, previous: HostArray) -> HostArray:
        """Status of systems for which even a new J did not help."""
        failed = np.full(fresh.size, RUNNING)
        lost = fresh & ~found.accepted
        if lost.any():
            failed[lost] = np.where(found.finite, LINE_SEARCH_FAILED, NONFINITE)[lost]
            failed[lost & ~np.isfinite(norm_max(direction))] = SINGULAR
            failed[lost & self.is_exhausted] = STAGNATED
        idle = np.flatnonzero(fresh & (found.length == 1.0) & ~(found.norms < HALVED * previous))
        if idle.size:
            failed[idle[self._is_rounding(idle)]] = STAGNATED
        return failed

    def _solved(self) -> Array:
        """-J^-1 F with the factorized J."""
        direction = self.inverse.negative(self.F) if self.first_direction is None else self.first_direction
        self.first_direction = None
        return direction

    def _factorize(self, fresh: HostArray) -> None:
        """Assemble and factorize J of some systems."""
        self.updates.reset(fresh)
        rows = np.flatnonzero(fresh)
        for _ in range(GUESSES):
            if not rows.size:
                break
            part, x, F = self._part(rows)
            assembler = self.assembler
            J = assembler.assemble(part, x, F)
            inverse = self.method.factor.factor(J)
            self.inverse.replace(rows, inverse)
            if assembler.is_certain(part.rows):
                break
            with np.errstate(all="ignore"):
                direction = inverse.negative(F)
            again = assembler.check(part.rows, direction)
            self.first_direction = None if again.any() or rows.size < self.rows.size else direction
            rows = rows[again]

    def _part(self, rows: Indices) -> tuple[Evaluator, Array, Array]:
        """Evaluator, x and F of some of the running systems."""
        if rows.size == self.rows.size:
            return self.evaluator, self.x, self.F
        return self.evaluator.take(rows, self.x), gather(self.x, rows), gather(self.F, rows)

    def _search(self, found: Searched, direction: Array, fresh: HostArray) -> Searched:
        """Take whole steps where they reduce ||F||; search along new directions, and drop old ones, that do not."""
        x, F, norms = self.x, self.F, self.norms
        least = np.where(fresh, 1 - SUFFICIENT_DECREASE, KEPT_DECREASE)
        with np.errstate(invalid="ignore"):
            found.accepted = found.norms <= least * norms
        if found.accepted.all():
            return found
        rejected = np.flatnonzero(~found.accepted)
        rows = rejected[fresh[rejected] & np.isfinite(norm_max(direction))[rejected]]
        rows = rows[~self._is_rounding(rows)] if rows.size else rows
        if rows.size == fresh.size:
            found = self._search_along(rows, direction, found)
            found.jacobian = None
            return found
        whole = found.take(rows)
        scatter(found.x, rejected, gather(x, rejected))
        scatter(found.F, rejected, gather(F, rejected))
        found.norms[rejected], found.length[rejected], found.measured = norms[rejected], 0.0, None
        if rows.size:
            again = self._search_along(rows, gather(direction, rows), whole)
            scatter(found.x, rows, again.x)
            scatter(found.F, rows, again.F)
            for name in ("norms", "length", "accepted", "finite"):
                getattr(found, name)[rows] = getattr(again, name)
        found.jacobian = None
        return found

    def _search_along(self, rows: Indices, direction: Array, whole: Searched) -> Searched:
        """Search along the new directions of some systems, whose whole steps are known."""
        part, x, F = self._part(rows)
        inverse, exact = self.inverse.take(rows), np.zeros(rows.size)
        return self.method.line_search.search(part, x, F, self.norms[rows], direction, exact, inverse.matvec, whole)

    def _is_rounding(self, rows: Indices) -> HostArray:
        """Whether F(x) is no larger than its change between neighbouring floating-point numbers."""
        with np.errstate(invalid="ignore"):
            precision = eps(self.evaluator.xp, self.x.dtype)
            is_far = self.norms[rows] > FAR * precision * self.assembler.sensitivity[self.evaluator.rows[rows]]
        if is_far.all():
            return ~is_far
        part, x, F = self._part(rows)
        xp = part.xp
        sign = xp.asarray(1 - 2 * (np.arange(x.shape[1]) % 2), dtype=x.dtype, device=x.device)
        neighbour = part.residual(x * (1 + eps(xp, x.dtype) * sign), keep=False)
        is_rounding = norm2(neighbour - F) >= ROUNDING * self.norms[rows]
        self.is_exhausted[rows] = is_rounding
        return is_rounding

    def _age(self, fresh: HostArray, accepted: HostArray, previous: HostArray) -> None:
        """Decide which systems need a new J."""
        with np.errstate(all="ignore"):
            rate = np.where(accepted, self.norms / previous, 1.0)
        self.age = np.where(fresh, 1, self.age + 1)
        mean = np.where(self.age > 2, np.sqrt(rate * self.rate), rate)
        slow = ~(mean <= self._slowest())
        self.rate = rate
        self.is_stale = slow | ~accepted | (self.age >= OLDEST)
        if self.method.reuse == "none":
            self.is_stale[:] = True
        self.updates.forget(int(self.age.max()))

    def _slowest(self) -> float:
        """Rate at which a kept J still pays."""
        return 0.1 ** (DIGITS / (self.assembler.cost + 1))

    def _keep(self, keep: Indices) -> None:
        self.inverse = self.inverse.take(keep)
        self.updates.take(keep)
