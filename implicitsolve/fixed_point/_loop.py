"""What fixed-point iterations share: one residual a step, the way back from a bad one, and cheap inverses of J."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import array_namespace, from_host, gather, norm2, scatter
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.monitor import Monitor
from implicitsolve.newton._line_search import Searched
from implicitsolve.newton._loop import NewtonLoop, Solution
from implicitsolve.newton._pieces import Pieces
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop, check_number

STEPS = 500  # limit where the caller set none: a step costs one residual
FALLS = 10  # bad steps in a row, each half as long as the one before, after which a system has failed


class FixedPointLoop(NewtonLoop):
    """A loop whose steps are ``x <- x - damping M F(x)`` plus what a method knows better; each costs one residual.

    A step after which F is not finite, or larger than `growth` times its smallest norm so far, is not taken: the system
    goes back to that point, forgets what it has learnt, and goes on with half the damping, which recovers step by step.

    M is what J itself offers as its approximate inverse (`LinearOperator.approximate_inverse`), else I. It is renewed
    when the method asks for that (`_is_due`).
    """

    STEPS = STEPS
    JOINS = True
    PER_SYSTEM = (*NewtonLoop.PER_SYSTEM, "damping", "falls", "least", "age")

    def __init__(
        self,
        method: Any,
        evaluator: Evaluator,
        solution: Solution,
        stop: NonlinearStop,
        monitor: Monitor,
        rows: Indices | None = None,
        *,
        growth: float,
        preconditions: bool,
    ) -> None:
        self.method, self.growth = method, growth
        self.preconditions = preconditions and evaluator.problem.linearize is not None
        self.inverse = Pieces()
        self.found_inverse: Any = None
        super().__init__(evaluator, solution, stop, monitor, rows)
        size = self.rows.size
        self.damping, self.falls = np.full(size, float(method.damping)), np.zeros(size, dtype=int)
        self.age = np.zeros(size, dtype=int)  # steps since the start, or since the last way back
        self.least, self.best_point = self.norms.copy(), (self.x, self.F)
        self._renew(np.ones(size, dtype=bool))

    # What a method adds

    def _proposal(self) -> Array:
        """The step to try."""
        raise NotImplementedError

    def _learn(self, step: Array, old_F: Array, lost: HostArray) -> None:
        """See the step that was tried, from where F was `old_F` to the present x; where it was `lost`, forget."""
        raise NotImplementedError

    def _is_due(self) -> HostArray:
        """Systems whose M is built anew at the next iterate."""
        return np.zeros(self.age.size, dtype=bool)

    # Steps

    def _first_residual(self) -> Array:
        return self._evaluate(self.x, self.preconditions)

    def _evaluate(self, x: Array, is_due: bool) -> Array:
        """F(x), and J's approximate inverse where that is asked for."""
        self.found_inverse = None
        if not is_due:
            return self.evaluator.residual(x)
        F, J = self.evaluator.trial(x)
        self.found_inverse = None if J is None else J.approximate_inverse()
        self.preconditions = self.found_inverse is not None
        return F

    def _step(self, iteration: int, is_last: HostArray) -> None:
        due = self._is_due() & self.preconditions
        with np.errstate(all="ignore"):
            step = self._proposal()
            x = self.x + step
        F = self._evaluate(x, bool(due.any()))
        norms, old_F = norm2(F), self.F
        finite = np.isfinite(norms)
        with np.errstate(over="ignore"):
            lost = ~(finite & (norms <= self.growth * self.least))
        found = Searched(x, F, norms, np.where(lost, 0.0, self.damping), ~lost, finite, None)
        self._go_back(found, lost)
        moved, is_still = self._move(found, step)
        self._count(lost)
        self._renew(due & ~lost)
        with np.errstate(all="ignore"):
            self._learn(step, old_F, lost)
        self._remember(lost)
        self._judge(found, moved, is_still, is_last, self._failed(finite))
        self._end_at_best()
        self._report(iteration, step_length=found.length)

    def _go_back(self, found: Searched, lost: HostArray) -> None:
        """Put the best point in the place of bad ones."""
        rows = np.flatnonzero(lost)
        if rows.size:
            x, F = self.best_point
            scatter(found.x, rows, gather(x, rows))
            scatter(found.F, rows, gather(F, rows))
            found.norms[rows] = self.least[rows]

    def _count(self, lost: HostArray) -> None:
        """Keep account of bad steps, and of the damping that they ask for."""
        self.falls = np.where(lost, self.falls + 1, 0)
        self.age = np.where(lost, 0, self.age + 1)
        self.damping = np.where(lost, 0.5 * self.damping, np.minimum(2 * self.damping, self.method.damping))
        self.inverse.drop(np.flatnonzero(lost))  # it may be what was bad

    def _renew(self, due: HostArray) -> None:
        """Take over M at the present x, for some systems."""
        M, rows = self.found_inverse, np.flatnonzero(due)
        if M is not None and rows.size:
            self.inverse.replace(rows, M if rows.size == due.size else M.take(rows))
        self.found_inverse = None

    def _remember(self, lost: HostArray) -> None:
        """Keep the point with the smallest ||F||, or the last one where steps need only be finite."""
        is_better = ~lost & ((self.norms < self.least) | (self.growth == np.inf))
        if is_better.all():
            self.best_point, self.least = (self.x, self.F), self.norms.copy()
        elif is_better.any():
            mask = from_host(is_better, self.x)[:, None]
            xp = array_namespace(self.x)
            old = self.best_point
            self.best_point = xp.where(mask, self.x, old[0]), xp.where(mask, self.F, old[1])
            self.least = np.where(is_better, self.norms, self.least)

    def _failed(self, finite: HostArray) -> HostArray:
        """Status of systems that no way back has helped."""
        failed = np.full(finite.size, int(Status.RUNNING))
        failed[self.falls >= FALLS] = Status.STAGNATED
        failed[(self.falls >= FALLS) & ~finite] = Status.NONFINITE
        return failed

    def _end_at_best(self) -> None:
        """Return systems that have failed to the best of their points."""
        is_worse = (self.code != Status.RUNNING) & (self.code != Status.CONVERGED) & (self.least < self.norms)
        if is_worse.any():
            xp, mask = array_namespace(self.x), from_host(is_worse, self.x)[:, None]
            x, F = self.best_point
            self.x, self.F = xp.where(mask, x, self.x), xp.where(mask, F, self.F)
            self.norms = np.where(is_worse, self.least, self.norms)
            self.measure = self.stop.measure(self.F, self.whole.event_shape)

    def _keep(self, keep: Indices) -> None:
        self.inverse = self.inverse.take(keep)
        self.best_point = gather(self.best_point[0], keep), gather(self.best_point[1], keep)

    def _join(self, other: NewtonLoop) -> None:
        assert isinstance(other, FixedPointLoop)
        for rows, inverse in other.inverse.parts:
            self.inverse.replace(self.rows.size + rows, inverse)
        xp = array_namespace(self.x)
        x, F = (xp.concat(pair, axis=0) for pair in zip(self.best_point, other.best_point, strict=True))
        self.best_point = x, F

    def _image(self) -> Array:
        """x - damping M F(x)."""
        with np.errstate(all="ignore"):
            P = self.inverse.matvec(self.F) if self.inverse.parts else self.F
            if not (self.damping == 1.0).all():
                P = from_host(self.damping, P)[:, None] * P
            return self.x - P


def check_damping(owner: str, damping: float) -> None:
    """Raise unless a damping factor is positive and finite."""
    check_number(owner, "damping", damping)
    if not 0 < damping < np.inf:
        raise ValueError(f"{owner}: `damping` must be positive and finite, got {damping}")


def check_growth(owner: str, growth: float) -> None:
    """Raise unless a growth factor is at least 1."""
    check_number(owner, "growth", growth)
    if not growth >= 1:
        raise ValueError(f"{owner}: `growth` must be at least 1, got {growth}")

