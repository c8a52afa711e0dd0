"""One call of `continuation`: the first point, the others, what lies between them, and the record of it all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.branches._branch import Branch
from implicitsolve.branches._path import Path, Point
from implicitsolve.branches._special import SpecialPoint, between
from implicitsolve.branches._walk import Walk
from implicitsolve.linearize._tally import LimitReached
from implicitsolve.monitor import Monitor, ends_solve
from implicitsolve.result import Counts, NewtonStep, NonlinearResult
from implicitsolve.solve import root
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop

GENERIC = 1 / 16  # part of the way to `stop`, where the sparsity is sought
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
        self.z: list[HostArray] = []
        self.norms: list[tuple[float, float]] = []  # of F, and their targets
        self.eigenvalues: list[HostArray] = []
        self.special: list[SpecialPoint] = []
        self.status, self.reason = Status.RUNNING, ""
        self.walk: Walk | None = None
        self.offset = 0  # points of the branch before those of this call
        self.others = Counts()  # calls that the tally has not seen

    def _event(self, name: str, function: Callable[[HostArray, float], float]) -> Callable[[Point], float]:
        def event(point: Point) -> float:
            value: Any = function(self.path.system.state(point.z), float(point.z[-1]))
            if np.ndim(value) != 0:
                raise TypeError(f"continuation: event {name!r} must return a number, got shape {np.shape(value)}")
            return float(value)

        return event

    def end(self, status: Status, reason: str) -> None:
        """Note how the branch ends, unless it has ended."""
        if self.status == Status.RUNNING:
            self.status, self.reason = status, reason

    def begin(self, z: HostArray, ahead: HostArray | None, step: float, max_step: float) -> None:
        """Solve at the start, fix tolerance and units, and take the first tangent, or the given direction."""
        path, metric = self.path, self.path.metric
        row = metric.parameter_row()
        path.system.generic = z[-1] + GENERIC * (self.stop - z[-1])
        metric.unit = _rms(z) or 1.0
        point = path.correct(z, row, None).point
        if point is None:
            found = self._solved(z)
            point = path.correct(np.append(found.x.reshape(-1), z[-1]), row, None).point
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
        row = metric.covector(point.tangent)
        self.walk = Walk(path, [point], self.bounds, step, max_step, point.z, row, is_given=is_given)
        self._note(point)

    def _solved(self, z: HostArray) -> NonlinearResult:
        """The solution at the start by `root`."""
        system = self.path.system
        tally = system.tally
        left = None if tally.most is None else max(1, tally.most - tally.evaluations)
        problem = system.family.at(float(z[-1]))
        found = root(problem, system.state(z), stop=NonlinearStop(max_evaluations=left))
        self.others = found.counts
        if tally.most is not None:
            tally.most = max(1, tally.most - found.counts.residuals - found.counts.jvps)
        return found

    def resume(self, state: Mapping[str, Any]) -> None:
        """Take up a branch where it has ended."""
        path = self.path
        path.metric.unit = float(state["unit"])
        path.solver.reach, path.solver.is_reach_known = float(state["reach"]), True
        points = [Point(z, z, 0.0, 0.0, tangent=tangent) for z, tangent in zip(state["z"], state["tangent"])]
        last, tangent = points[-1], points[-1].tangent
        last.F = path.system.residual(last.z)
        last.norm = float(np.max(np.abs(last.F), initial=0.0))
        last.target = float(state["target"])
        if not last.norm <= 2 * last.target:
            raise ValueError(
                f"continuation: `previous` must be a branch of this problem, but max|F| is {last.norm:.3g} at its end, "
                f"not {last.target:.3g}"
            )
        path.observe(last, path.metric.covector(points[0].tangent))
        last.tangent, self.offset = tangent, int(state["count"])
        length, longest = float(state["length"]), float(state["longest"])
        self.walk = Walk(path, points, self.bounds, length, longest, state["first"], state["first_row"])

    def follow(self) -> None:
        """Walk to the end of the branch."""
        while self.walk is not None and self.status == Status.RUNNING:
            if len(self.z) >= self.max_points:
                self.end(Status.ITERATION_LIMIT, f"there are {self.offset + len(self.z)} points")
                return
            known, length = self.walk.points, self.walk.length
            point = self.walk.advance()
            if point is not None:
                try:
                    point = self._examined(known[-1], point)
                except LimitReached:  # a later call examines the same step
                    self.walk.points, self.walk.length = known, length
                    raise
                if point is None:
                    self.walk.back_to(known)
                    continue
                self._note(point)
                self.walk.rescale(max(self.path.metric.unit, _rms(point.z)))
            if self.walk.status != Status.RUNNING:
                self.end(self.walk.status, self.walk.reason)

    def _examined(self, last: Point, point: Point) -> Point | None:
        """Record what lies between two points; return the second, or the one at which an event ends the branch.

        None if they are points of two branches.
        """
        metric = self.path.metric
        found = between(self.path, last, point, self.events)
        if found is None:
            return None
        found.sort(key=lambda item: metric.inner(item[1].z - last.z, point.z - last.z))
        index = self.offset + len(self.z) - 1
        for kind, at, known in found:
            x, lam = self.path.system.state(at.z), float(at.z[-1])
            along = known.pop("direction", None)
            direction = None if along is None else (self.path.system.state(along), float(along[-1]))
            self.special.append(
                SpecialPoint(kind=kind, lam=lam, x=x, residual_norm=at.norm, index=index, direction=direction, **known)
            )
            if kind in self.terminal:
                self.end(Status.CONVERGED, f"event {kind!r} has ended the branch")
                if self.path.spectrum is not None:
                    self.path.observe(at, metric.covector(point.tangent), point.tangent)
                return at
        return point

    def _note(self, point: Point) -> None:
        """Record a point, and show it to the monitor."""
        self.z.append(point.z)
        self.norms.append((point.norm, point.target))
        if point.eigenvalues is not None:
            self.eigenvalues.append(point.eigenvalues)
        system, first = self.path.system, self.z[0][-1]
        ahead = abs((self.stop - point.z[-1]) / (self.stop - first)) if self.stop != first else 1.0
        self.path.solver.is_reach_known = self.offset + len(self.z) > 1
        step = NewtonStep(
            iteration=self.offset + len(self.z) - 1,
            systems=np.zeros(1, dtype=int),
            residual_norm=np.array([point.norm]),
            target=np.array([point.target]),
            step_length=np.array([0.0 if self.walk is None else self.walk.length]),
            running=1,
            left=np.array([min(ahead, 1 - len(self.z) / self.max_points)]),
            counts=system.tally.counts(),
        )
        if ends_solve(self.monitor(step, system.state(point.z), system.state(np.append(point.F, 0.0)))):
            self.end(Status.STOPPED_BY_MONITOR, "the monitor has ended the branch")

    # The record

    def _state(self) -> dict[str, Any]:
        """What `resume` needs."""
        walk, path = self.walk, self.path
        if walk is None or len(walk.points) < 2:
            return {}
        return {
            "z": np.stack([point.z for point in walk.points]),
            "tangent": np.stack([np.asarray(point.tangent) for point in walk.points]),
            "first": walk.first,
            "first_row": walk.first_row,
            "bounds": np.array(walk.bounds),
            "stop": self.stop,
            "span": path.metric.span,
            "unit": path.metric.unit,
            "reach": path.solver.reach,
            "target": walk.points[-1].target,
            "length": walk.length,
            "longest": walk.longest,
            "count": self.offset + len(self.z),
        }

    def branch(self, parameter: str, previous: Branch | None) -> Branch:
        """The whole branch, that of `previous` included."""
        system = self.path.system
        shape, count = system.shape, len(self.z)
        z = np.stack(self.z) if count else np.zeros((0, system.size + 1))
        lam, x, norms = z[:, -1].copy(), z[:, :-1].reshape(count, *shape), np.array(self.norms).reshape(-1, 2)
        values = np.stack(self.eigenvalues) if len(self.eigenvalues) == count > 0 else None
        counts, special = system.tally.counts() + self.others, tuple(self.special)
        if previous is not None:
            lam, x = np.concatenate([previous.lam, lam]), np.concatenate([previous.x, x])
            norms = np.concatenate([np.stack([previous.residual_norm, previous.target], axis=1), norms])
            is_known = values is not None and previous.eigenvalues is not None
            values = np.concatenate([previous.eigenvalues, values]) if is_known else None  # type: ignore[arg-type, list-item]
            counts, special = previous.counts + counts, previous.special + special
        hint = HINTS.get(self.status, "") if count else self.status.hint
        return Branch(
            lam=lam,
            x=x,
            residual_norm=norms[:, 0],
            target=norms[:, 1],
            special=special,
            eigenvalues=values,
            status=self.status,
            message=f"{self.status.name}: {self.reason}.{' ' + hint if hint else ''}",
            counts=counts,
            parameter=parameter,
            state=self._state(),
        )


def _rms(z: HostArray) -> float:
    """Root mean square of x."""
    size = float(np.max(np.abs(z[:-1])))
    return size * float(np.sqrt(np.mean((z[:-1] / size) ** 2))) if size > 0 else 0.0
