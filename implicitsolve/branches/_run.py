"""One call of `continuation`: its first point, steps along the branch, what lies between them, and the record of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from implicitsolve._record import Counts, NewtonStep
from implicitsolve._root import root
from implicitsolve._typing import HostArray
from implicitsolve.branches._branch import Branch, SpecialPoint
from implicitsolve.branches._path import Path, Point
from implicitsolve.monitor import Monitor, ends_solve
from implicitsolve.nonlinear._homotopy import ALIGNED
from implicitsolve.result import NonlinearResult
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop

USUAL = 4  # corrections that steps aim at
SHORTEST_STEP = 1e-7  # step that ends the branch
CLOSED = 0.1  # distance from the first point, over the step, up to which the branch may be closed
HINTS = {
    Status.ITERATION_LIMIT: "Continue with `previous`, or raise `max_points`.",
    Status.EVALUATION_LIMIT: "Continue with `previous`, or raise `max_evaluations`.",
    Status.STAGNATED: "F may not be smooth there, or its derivatives wrong; a larger `atol` may help.",
    Status.NONFINITE: "The branch leaves the domain of F: choose a shorter interval.",
}


class Run:
    """One call of `continuation`, from its checked arguments."""

    def __init__(
        self,
        path: Path,
        events: dict[str, Callable[[HostArray, float], float]],
        monitor: Monitor,
        bounds: tuple[float, float],
        stop: float,
        max_points: int,
    ) -> None:
        self.path, self.monitor, self.bounds, self.stop, self.max_points = path, monitor, bounds, stop, max_points
        self.events = {name: self._event(name, function) for name, function in events.items()}
        self.terminal = {name for name, function in events.items() if getattr(function, "terminal", False)}
        self.status, self.reason = Status.RUNNING, ""
        # All that the next step depends on: the last two points, of which the last has its frame, and
        self.points: list[Point] = []
        self.length = self.longest = 0.0  # of the next step, and of any
        self.first = self.first_row = np.zeros(0)  # point to which a closed branch returns, and covector of its tangent
        self.is_given = False  # whether the first direction is, which may not be that of the branch
        # The record
        self.z: list[HostArray] = []
        self.norms: list[tuple[float, float]] = []  # of F, and their targets
        self.eigenvalues: list[HostArray] = []
        self.special: list[SpecialPoint] = []
        self.known = 0  # of these points are from an earlier call
        self.others = Counts()  # calls that the tally has not seen

    def _event(self, name: str, function: Callable[[HostArray, float], float]) -> Callable[[Point], float]:
        def event(point: Point) -> float:
            value: Any = function(*self.path.system.parts(point.z))
            if np.ndim(value) != 0 or np.asarray(value).dtype.kind not in "biuf":
                raise TypeError(f"continuation: event {name!r} of `events` must return a number, got {value!r}")
            return float(value)

        return event

    def end(self, status: Status, reason: str) -> None:
        if self.status == Status.RUNNING:
            self.status, self.reason = status, reason

    def begin(self, z: HostArray, ahead: HostArray | None, step: float, max_step: float) -> None:
        """Solve at the start, fix tolerance and units, and take the first tangent, or the given direction."""
        path, metric = self.path, self.path.metric
        row = metric.parameter_row()
        metric.unit = _rms(z) or 1.0
        point = path.correct(z, row, None).point
        if point is None:
            found = self._solve(z)
            point = path.correct(np.append(found.x, z[-1]), row, None).point
            if point is None:
                status = Status.STAGNATED if found.success else Status(found.status)
                self.end(status, f"no solution at the start: {status.message}")
                return
        is_given = ahead is not None
        if ahead is None:
            if not path.observe(point, row, accurate=True):
                self.end(Status.SINGULAR, "J is singular at the start: pass `direction`")
                return
            tangent: Any = point.tangent
            side = np.sign(tangent[-1]) * np.sign(self.stop - z[-1])
            ahead = side * tangent
            if point.signs is not None:  # those of the row turned round, which need factors
                point.signs = None if point.frame.factors is None else side * point.signs
            metric.unit = max(_rms(point.z), _rms(tangent) * abs(metric.span / tangent[-1])) or 1.0
        point.tangent = np.asarray(ahead) / metric.norm(np.asarray(ahead))
        self.points, self.length, self.longest, self.is_given = [point], step, max_step, is_given
        self.first, self.first_row = point.z, metric.covector(point.tangent)
        self._note(point)

    def _solve(self, z: HostArray) -> NonlinearResult:
        system = self.path.system
        tally = system.tally
        left = None if tally.most is None else max(1, tally.most - tally.evaluations)
        problem = system.family.at(float(z[-1]))
        found = root(problem, system.state(z), stop=NonlinearStop(max_evaluations=left))
        self.others = found.counts
        if tally.most is not None:
            tally.most = max(1, tally.most - found.counts.residuals - found.counts.jvps)
        return found

    def resume(self, branch: Branch) -> None:
        path, state, self.known, self.others = self.path, branch.state, len(branch), branch.counts
        self.z = [np.append(x, lam) for x, lam in zip(branch.x, branch.lam)]
        self.norms = list(zip(branch.residual_norm, branch.target))
        self.eigenvalues = [] if branch.eigenvalues is None else list(branch.eigenvalues)
        self.special = list(branch.special)
        path.metric.unit = float(state["unit"])
        path.system.reach, path.system.is_reach_known = float(state["reach"]), True
        before, last = (Point(z, z, 0.0, 0.0, tangent=along) for z, along in zip(state["z"], state["tangent"]))
        tangent = last.tangent
        last.F = path.system.residual(last.z)
        last.norm = float(np.max(np.abs(last.F), initial=0.0))
        last.target = float(state["target"])
        if not last.norm <= 2 * last.target:
            raise ValueError(
                f"continuation: `previous` must be a branch of this problem, but max|F| is {last.norm:.3g} at its end, "
                f"not {last.target:.3g}"
            )
        path.observe(last, path.metric.covector(before.tangent))
        last.tangent = tangent
        self.points, self.length, self.longest = [before, last], float(state["length"]), float(state["longest"])
        self.first, self.first_row = state["first"], state["first_row"]

    def follow(self) -> None:
        while self.points and self.status == Status.RUNNING:
            if len(self.z) - self.known >= self.max_points:
                self.end(Status.ITERATION_LIMIT, f"there are {len(self.z)} points")
            elif (step := self._step()) is not None:
                self._take(*step)

    def _step(self) -> tuple[Point, float, str] | None:
        """The next point, observed, the length of the step after it, and why the branch ends there, if it does."""
        path, metric, last = self.path, self.path.metric, self.points[-1]
        is_finite = True
        while self.length >= SHORTEST_STEP:
            z, direction, is_end = self._predict()
            row = metric.parameter_row() if is_end else metric.covector(direction)
            made = path.correct(z, row, last.frame)
            point, is_finite = made.point, is_finite and made.is_finite
            if point is not None and self._follows(last, point, is_end):
                self.is_given = False
                longer = min(max(USUAL - made.count, -1), 1)  # twice as long after few corrections, or half as long
                length = min(self.length * 2.0**longer, self.longest)
                if is_end:
                    return point, length, f"the parameter has reached {point.z[-1]:.10g}"
                end = path.correct(self.first, self.first_row, point.frame).point if self._closes(last, point) else None
                if end is not None and path.observe(end, self.first_row, point.tangent):
                    return end, length, "the branch is closed"
                return point, length, ""
            self.length *= 0.5
        reason = "steps have become too short" if is_finite else "F is not finite ahead"
        if len(self.points) == 1 and last.z[-1] in self.bounds:
            reason += ", or the branch leaves its interval at the start"
        self.end(Status.STAGNATED if is_finite else Status.NONFINITE, reason)
        return None

    def _take(self, point: Point, length: float, ending: str) -> None:
        """Record a point and the special ones before it, unless it is on another branch: then the step is halved.

        If an event ends the branch, the point of the event is recorded instead.
        """
        path, metric, last = self.path, self.path.metric, self.points[-1]
        found = path.special(last, point, self.events)
        last.frame = None
        if found is None:
            self.length = 0.5 * metric.norm(point.z - last.z)
            return
        found.sort(key=lambda item: metric.inner(item[1].z - last.z, point.z - last.z))
        shown, index = point, len(self.z) - 1
        for kind, at, known in found:
            x, lam = path.system.parts(at.z)
            self.special.append(SpecialPoint(kind=kind, lam=lam, x=x, residual_norm=at.norm, index=index, **known))
            if kind in self.terminal:
                self.end(Status.CONVERGED, f"event {kind!r} has ended the branch")
                if path.spectrum is not None:
                    path.observe(at, metric.covector(point.tangent), point.tangent)
                shown = at
                break
        self.points, self.length = [last, point], length
        self._note(shown)
        self._rescale(max(metric.unit, _rms(shown.z)))
        if ending:
            self.end(Status.CONVERGED, ending)

    def _predict(self) -> tuple[HostArray, HostArray, bool]:
        """A point ahead, the direction there, and whether it is at the end of the interval."""
        last, metric = self.points[-1], self.path.metric
        t, h = last.tangent, self.length
        curvature = np.zeros_like(t)
        if len(self.points) > 1:
            before = self.points[-2]
            curvature = (t - before.tangent) / metric.norm(last.z - before.z)
        ends = [end for bound in self.bounds if (end := _reach(last.z[-1], t[-1], curvature[-1], h, bound)) is not None]
        is_end = bool(ends)
        h = min(ends, default=h)
        z = last.z + h * t + 0.5 * h * h * curvature
        if is_end:
            z[-1] = min(self.bounds, key=lambda bound: abs(bound - z[-1]))
        direction = t + h * curvature
        return z, direction / metric.norm(direction), is_end

    def _follows(self, last: Point, point: Point, is_end: bool) -> bool:
        """Whether a point lies ahead, between the bounds and on the same branch; it is observed then."""
        (low, high), metric = self.bounds, self.path.metric
        is_ahead = metric.inner(last.tangent, point.z - last.z) > 0
        if not is_ahead or not (is_end or low <= point.z[-1] <= high):
            return False
        is_regular = self.path.observe(point, metric.covector(last.tangent), last.tangent)
        return is_regular and (self.is_given or metric.inner(last.tangent, point.tangent) >= ALIGNED)

    def _closes(self, last: Point, point: Point) -> bool:
        metric, chord = self.path.metric, point.z - last.z
        h = metric.norm(chord)
        part = metric.inner(self.first - last.z, chord) / h**2
        if not 0 < part <= 1 or self.first_row @ last.tangent <= 0:
            return False
        z, _ = self.path.curve(last, point, part)
        return metric.norm(z - self.first) <= CLOSED * h

    def _rescale(self, unit: float) -> None:
        metric = self.path.metric
        if unit != metric.unit:
            metric.unit = unit
            self.length *= metric.norm(self.points[-1].tangent)
            for point in self.points:
                point.tangent = point.tangent / metric.norm(point.tangent)

    def _note(self, point: Point) -> None:
        self.z.append(point.z)
        self.norms.append((point.norm, point.target))
        if point.eigenvalues is not None:
            self.eigenvalues.append(point.eigenvalues)
        system, first = self.path.system, self.z[self.known][-1]
        ahead = abs((self.stop - point.z[-1]) / (self.stop - first)) if self.stop != first else 1.0
        system.is_reach_known = len(self.z) > 1
        step = NewtonStep(
            iteration=len(self.z) - 1,
            systems=np.zeros(1, dtype=int),
            residual_norm=np.array([point.norm]),
            target=np.array([point.target]),
            step_length=np.array([self.length]),
            running=1,
            left=np.array([min(ahead, 1 - (len(self.z) - self.known) / self.max_points)]),
            counts=system.tally.counts(),
        )
        if ends_solve(self.monitor(step, system.state(point.z), system.state(point.F))):
            self.end(Status.STOPPED_BY_MONITOR, "the monitor has ended the branch")

    def _state(self) -> dict[str, Any]:
        metric = self.path.metric
        if len(self.points) < 2:
            return {}
        return {
            "z": np.stack([point.z for point in self.points]),
            "tangent": np.stack([point.tangent for point in self.points]),
            "first": self.first,
            "first_row": self.first_row,
            "bounds": np.array(self.bounds),
            "stop": self.stop,
            "span": metric.span,
            "unit": metric.unit,
            "reach": self.path.system.reach,
            "target": self.points[-1].target,
            "length": self.length,
            "longest": self.longest,
        }

    def branch(self, parameter: str) -> Branch:
        system, count = self.path.system, len(self.z)
        z, norms = np.reshape(self.z, (count, system.size + 1)), np.reshape(self.norms, (count, 2))
        hint = HINTS.get(self.status, "") if count else self.status.hint
        return Branch(
            lam=z[:, -1].copy(),
            x=z[:, :-1].reshape(count, *system.shape),
            residual_norm=norms[:, 0],
            target=norms[:, 1],
            special=tuple(self.special),
            eigenvalues=np.stack(self.eigenvalues) if len(self.eigenvalues) == count > 0 else None,
            status=self.status,
            message=f"{self.status.name}: {self.reason}.{' ' + hint if hint else ''}",
            counts=system.tally.counts() + self.others,
            parameter=parameter,
            state=self._state(),
        )


def _rms(z: HostArray) -> float:
    size = float(np.max(np.abs(z[:-1])))
    return size * float(np.sqrt(np.mean((z[:-1] / size) ** 2))) if size > 0 else 0.0


def _reach(lam: float, slope: float, curvature: float, h: float, bound: float) -> float | None:
    """The first s in (0, h] at which lam + s slope + s^2 curvature / 2 is the bound."""
    distance = bound - lam
    with np.errstate(all="ignore"):
        root = np.sqrt(slope * slope + 2 * curvature * distance)
        both = 2 * distance / (slope + np.array([root, -root]))
    ahead = both[(both > 0) & (both <= h)]
    return float(ahead.min()) if ahead.size else None
