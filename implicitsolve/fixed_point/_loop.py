"""What fixed-point iterations share: one residual a step, the way back from a bad one, and cheap inverses of J."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import Norms, array_namespace, from_host, gather, scatter
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.monitor import Monitor
from implicitsolve.newton._line_search import Searched
from implicitsolve.newton._loop import CONVERGED, RUNNING, NewtonLoop, Solution
from implicitsolve.newton._pieces import Pieces
from implicitsolve.operators import LinearOperator
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop, check_number

FALLS = 10  # bad steps in a row, each with half the damping of the one before, after which a system has failed


class Settings(Protocol):
    """What the loop reads of a method's settings."""

    @property
    def damping(self) -> float: ...
    @property
    def growth(self) -> float: ...
    @property
    def patience(self) -> int: ...
    @property
    def preconditioned(self) -> bool: ...


class FixedPointLoop(NewtonLoop):
    """A loop whose steps are ``-damping M F(x)`` plus what a method knows better; each costs one residual.

    A step after which F is not finite, or larger than `growth` times its smallest norm so far, is not taken: the system
    goes back to that point, forgets what it has learnt, and goes on with half the damping, which recovers step by step.

    M is what J offers as its approximate inverse, else I. It is built anew when the method asks for that, until a step
    was bad: from then on M is I for that system.
    """

    STEPS = 500  # limit where the caller set none
    NEW_BEST = 0.5  # steps are cheap, and rarely each better than the one before
    JOINS = True
    PER_SYSTEM = (*NewtonLoop.PER_SYSTEM, "damping", "falls", "age", "least", "is_trusted")

    def __init__(
        self,
        method: Settings,
        evaluator: Evaluator,
        solution: Solution,
        stop: NonlinearStop,
        monitor: Monitor,
        rows: Indices | None = None,
    ) -> None:
        self.PATIENCE = method.patience
        self.preconditioned = method.preconditioned and evaluator.problem.linearize is not None
        self.inverse = Pieces()
        self.newest: LinearOperator | None = None
        super().__init__(method, evaluator, solution, stop, monitor, rows)
        size = self.rows.size
        self.damping, self.falls = np.full(size, float(method.damping)), np.zeros(size, dtype=int)
        self.age = np.zeros(size, dtype=int)  # steps since the start, or the last way back
        self.least, self.best_point = self.norms, (self.x, self.F)
        self.is_trusted = np.ones(size, dtype=bool)  # M
        self._renew(self.is_trusted)

    # What a method adds

    def _proposal(self) -> Array:
        """The step to try."""
        raise NotImplementedError

    def _trial(self) -> tuple[Array, Array]:
        """That step, and where it leads."""
        step = self._proposal()
        return step, self.x + step

    def _measured(self, F: Array, step: Array, x: Array, *, may_foresee: bool) -> Norms:
        """Norms of what a step has brought; a method may foresee that it will be taken, if M stays what it is."""
        return Norms(F, step, x)

    def _learn(self, step: Array, old_F: Array, lost: HostArray) -> None:
        """See the step that was tried, from where F was `old_F`; forget the past of systems whose step was `lost`."""
        raise NotImplementedError

    def _is_due(self) -> HostArray:
        """Systems whose M is built anew at the next point."""
        return np.zeros(self.age.size, dtype=bool)

    # Steps

    def _first_residual(self) -> Array:
        return self._evaluate(self.x, self.preconditioned)

    def _evaluate(self, x: Array, is_due: bool) -> Array:
        """F(x), and M there if it is due."""
        if not is_due:
            return self.evaluator.residual(x)
        F, J = self.evaluator.trial(x)
        self.newest = None if J is None else J.approximate_inverse()
        self.preconditioned = self.newest is not None
        return F

    def _image_step(self, F: Array) -> Array:
        """M F."""
        with np.errstate(all="ignore"):
            return self.inverse.matvec(F) if self.inverse.parts else F

    def _step(self, iteration: int, is_last: HostArray) -> None:
        due = self._is_due() & self.is_trusted & self.preconditioned
        with np.errstate(all="ignore"):
            step, x = self._trial()
        F, old_F = self._evaluate(x, bool(due.any())), self.F
        with np.errstate(all="ignore"):
            measured = self._measured(F, step, x, may_foresee=not due.any())
        norms = measured.two(0)
        finite = np.isfinite(norms)
        with np.errstate(over="ignore"):
            lost = ~(finite & (norms <= self.method.growth * self.least))
        found = Searched(x, F, norms, np.where(lost, 0.0, self.damping), ~lost, finite, None, measured)
        self._go_back(found, lost)
        moved, is_still = self._move(found, step)
        self.falls = np.where(lost, self.falls + 1, 0)
        self.age = np.where(lost, 0, self.age + 1)
        self.damping = np.where(lost, 0.5 * self.damping, np.minimum(2 * self.damping, self.method.damping))
        self._renew(due & ~lost)
        with np.errstate(all="ignore"):
            self._learn(step, old_F, lost)
        self._remember(lost)
        self._judge(found, moved, is_still, is_last, self._failed(finite))
        self._end_at_best()
        self._report(iteration, step_length=found.length)

    def _go_back(self, found: Searched, lost: HostArray) -> None:
        """Put the best point in the place of bad ones; M may be what was bad."""
        rows = np.flatnonzero(lost)
        if rows.size:
            x, F = self.best_point
            scatter(found.x, rows, gather(x, rows))
            scatter(found.F, rows, gather(F, rows))
            found.norms[rows], found.measured = self.least[rows], None
            self.is_trusted[rows] = False
            self.inverse.drop(rows)

    def _renew(self, due: HostArray) -> None:
        """Take over the newest M for some systems."""
        M, rows = self.newest, np.flatnonzero(due)
        if M is not None and rows.size:
            self.inverse.replace(rows, M if rows.size == due.size else M.take(rows))
        self.newest = None

    def _remember(self, lost: HostArray) -> None:
        """Keep the point with the smallest ||F||; the last one, where F need only be finite."""
        is_better = ~lost & ((self.norms < self.least) | (self.method.growth == np.inf))
        if is_better.all():
            self.best_point, self.least = (self.x, self.F), self.norms
        elif is_better.any():
            xp, mask = array_namespace(self.x), from_host(is_better, self.x)[:, None]
            x, F = self.best_point
            self.best_point = xp.where(mask, self.x, x), xp.where(mask, self.F, F)
            self.least = np.where(is_better, self.norms, self.least)

    def _failed(self, finite: HostArray) -> HostArray:
        """Status of systems that no way back has helped."""
        failed = np.full(finite.size, RUNNING)
        failed[self.falls >= FALLS] = Status.STAGNATED
        failed[(self.falls >= FALLS) & ~finite] = Status.NONFINITE
        return failed

    def _end_at_best(self) -> None:
        """Put systems that have failed at the best of their points."""
        is_worse = (self.code != RUNNING) & (self.code != CONVERGED) & (self.least < self.norms)
        if is_worse.any():
            xp, mask = array_namespace(self.x), from_host(is_worse, self.x)[:, None]
            x, F = self.best_point
            self.x, self.F = xp.where(mask, x, self.x), xp.where(mask, F, self.F)
            self.norms = np.where(is_worse, self.least, self.norms)
            self.measure = self.stop.measure(self.F, self.whole.event_shape)

    def _keep(self, keep: Indices) -> None:
        self.inverse = self.inverse.take(keep)
        self.best_point = gather(self.best_point[0], keep), gather(self.best_point[1], keep)

    def _join(self, other: Any) -> None:
        for rows, inverse in other.inverse.parts:
            self.inverse.replace(self.rows.size + rows, inverse)
        x, F = (array_namespace(self.x).concat(pair, axis=0) for pair in zip(self.best_point, other.best_point))
        self.best_point = x, F


def scaled(damping: HostArray, step: Array) -> Array:
    """``damping * step`` for each system."""
    return step if (damping == 1.0).all() else from_host(damping, step)[:, None] * step


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


def check_flag(owner: str, name: str, value: bool) -> None:
    """Raise unless `value` is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{owner}: `{name}` must be True or False, got {type(value).__name__}")
