"""Steps along a branch: the predictor, the length of a step, and where the branch ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.branches._path import ALIGNED, CHORDS, FAR, Corrected, Path, Point
from implicitsolve.status import Status

USUAL_CORRECTION, USUAL_ANGLE, USUAL_COUNT = 0.05, 0.25, 4  # that steps aim at: relative to the step, radians, number
GROWTH = 2.0  # of a step, at most
SHORTEST = 1e-7  # step that ends the branch
NEAR = 0.1  # distance from the first point, over the step, up to which the branch may be closed


@dataclass
class Walk:
    """Where a branch has got to: all that the next step depends on."""

    path: Path
    points: list[Point]  # the last two, of which the last has its frame
    bounds: tuple[float, float]  # of the parameter
    length: float  # of the next step
    longest: float
    first: HostArray  # point of the whole branch, to which a closed one returns, and the covector of its tangent
    first_row: HostArray
    is_given: bool = False  # whether the first direction is, which may not be that of the branch
    status: Status = Status.RUNNING
    reason: str = ""

    def advance(self) -> Point | None:
        """The next point of the branch, observed; None where there is none, for which `reason` has words."""
        metric = self.path.metric
        last = self.points[-1]
        is_finite = True
        while self.length >= SHORTEST:
            z, direction, is_end = self._predicted()
            row = metric.parameter_row() if is_end else metric.covector(direction)
            made = self.path.correct(z, row, last.frame, far=(2.0 if self.is_given else FAR) * self.length)
            point, is_finite = made.point, is_finite and made.is_finite
            if (
                point is not None
                and self._follows(last, point, is_end)
                and self.path.observe(point, metric.covector(last.tangent), last.tangent)
                and ((cosine := metric.inner(last.tangent, point.tangent)) >= ALIGNED or self.is_given)
            ):
                self.is_given = False
                self._lengthen(made, cosine)
                return self._taken(point, is_end)
            self.length *= 0.5
        self.status = Status.STAGNATED if is_finite else Status.NONFINITE
        self.reason = "steps have become too short" if is_finite else "F is not finite ahead"
        if len(self.points) == 1 and last.z[-1] in self.bounds:
            self.reason += ", or the branch leaves its interval at the start"
        return None

    def _predicted(self) -> tuple[HostArray, HostArray, bool]:
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
        """Whether a point lies ahead, and between the bounds."""
        low, high = self.bounds
        chord = point.z - last.z
        length = self.path.metric.norm(chord)
        ahead = self.path.metric.inner(last.tangent, chord)
        is_ahead = ahead > 0 and (self.is_given or ahead >= CHORDS * length)
        return is_ahead and (is_end or low <= point.z[-1] <= high)

    def _lengthen(self, made: Corrected, cosine: float) -> None:
        """The next step: longer where this one was corrected little, turned little, and took few iterations."""
        angle = float(np.arccos(min(cosine, 1.0)))
        wanted = min(
            (USUAL_CORRECTION * self.length / made.first) ** 0.5 if made.first else GROWTH,
            USUAL_ANGLE / angle if angle else GROWTH,
            GROWTH ** (USUAL_COUNT - made.count),
        )
        self.length = min(self.length * min(max(wanted, 1 / GROWTH), GROWTH), self.longest)

    def _taken(self, point: Point, is_end: bool) -> Point:
        """Note a point, and whether it is the last."""
        if is_end:
            self.status, self.reason = Status.CONVERGED, f"the parameter has reached {point.z[-1]:.10g}"
        elif self._closes(self.points[-1], point):
            end = self.path.correct(self.first, self.first_row, point.frame).point
            if end is not None and self.path.observe(end, self.first_row, point.tangent):
                self.status, self.reason, point = Status.CONVERGED, "the branch is closed", end
        last = self.points[-1]
        last.frame = None
        self.points = [last, point]
        return point

    def back_to(self, points: list[Point]) -> None:
        """Take back a step: by half of it there may be no other branch."""
        chord = self.path.metric.norm(self.points[-1].z - points[-1].z)
        self.points, self.length, self.status, self.reason = points, 0.5 * chord, Status.RUNNING, ""

    def _closes(self, last: Point, point: Point) -> bool:
        """Whether the branch has come back to its first point."""
        metric, chord = self.path.metric, point.z - last.z
        h = metric.norm(chord)
        part = metric.inner(self.first - last.z, chord) / h**2
        if not 0 < part <= 1 or self.first_row @ last.tangent <= 0:
            return False
        z, _ = self.path.between(last, point, part)
        return metric.norm(z - self.first) <= NEAR * h

    def rescale(self, unit: float) -> None:
        """Measure x in another unit from now on."""
        metric = self.path.metric
        if unit != metric.unit:
            metric.unit = unit
            self.length *= metric.norm(self.points[-1].tangent)
            for point in self.points:
                point.tangent = point.tangent / metric.norm(point.tangent)


def _reach(lam: float, slope: float, curvature: float, h: float, bound: float) -> float | None:
    """The first s in (0, h] at which lam + s slope + s^2 curvature / 2 is the bound."""
    distance = bound - lam
    with np.errstate(all="ignore"):
        root = np.sqrt(slope * slope + 2 * curvature * distance)
        both = 2 * distance / (slope + np.array([root, -root]))
    ahead = both[(both > 0) & (both <= h)]
    return float(ahead.min()) if ahead.size else None
