"""Points of a branch: corrections to it, what is observed there, and folds, branch points and others in between."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse.linalg

from implicitsolve._typing import HostArray
from implicitsolve.branches._system import ExtendedSystem, Frame, Metric

CORRECTIONS = 10  # of one predicted point
LOCATIONS = 15  # evaluations of a test function, to find where it is zero
TESTS = 2  # test functions for branch points, where there are no factors: the sign of one changes at its poles too
FOLD, LOCATED = 1e-6, 1e-9  # accuracy of test functions, over their size; lam at a fold has the square of the first
DENSE_SPECTRUM = 300  # unknowns up to which all eigenvalues are computed
IMAGINARY = 1e-3  # real part over the modulus of a located pair, above which it is not a Hopf point's
NEARER = 1e-2  # factor to which a test function must have fallen to show a branch point
NEAREST = 1e-4  # distance of two points whose branches are not distinguished

Found = tuple[str, "Point", dict[str, Any]]  # kind, where, and what is known of it


@dataclass(eq=False)
class Point:
    """A solution z = (x, lam), and what is known there."""

    z: HostArray
    F: HostArray
    norm: float  # max|F|, and what it had to fall to
    target: float
    frame: Any = field(default=None, repr=False)  # a `Frame`, as long as the next step needs it
    tangent: Any = None  # of length 1, once the point has been observed
    signs: Any = None  # that all change at a branch point
    eigenvalues: HostArray | None = None


@dataclass
class Corrected:
    """Outcome of a correction: `point` is None where it failed."""

    point: Point | None = None
    count: int = 0
    is_finite: bool = True


class Path:
    """Corrections to one branch, and what is computed at its points: eigenvalues by ``spectrum(frame)``, if given."""

    def __init__(
        self,
        system: ExtendedSystem,
        spectrum: Callable[[Frame], HostArray] | None = None,
        *,
        seeks_branch_points: bool = True,
        atol: float = 0.0,
    ) -> None:
        self.system, self.spectrum, self.atol, self.seeks_branch_points = system, spectrum, atol, seeks_branch_points
        self.metric: Metric = system.metric
        random, shape = np.random.default_rng(0), (TESTS, 2, system.size + 1)
        self.borders: HostArray = random.choice((-1.0, 1.0), shape) * random.uniform(0.5, 1.0, shape)

    def correct(self, z: HostArray, row: HostArray, frame: Frame | None, *, strict: bool = False) -> Corrected:
        """Newton's method in the hyperplane of `row`: chord steps with Broyden's updates, a new J where they fail."""
        made, steps, last = Corrected(), list[HostArray](), np.inf
        is_new, F, tolerance = frame is None, self.system.residual(z), 0.0
        while True:
            norm = float(np.max(np.abs(F)))
            if not np.isfinite(norm):
                made.is_finite = False
                return made
            frame = Frame(self.system, z, F, row) if frame is None else frame
            tolerance = self.atol or max(tolerance, frame.tolerance(strict=strict))
            if norm <= tolerance:
                made.point = Point(z, F, norm, tolerance)
                return made
            if made.count == CORRECTIONS:
                return made
            step = self._secant(frame.correction(z, F, row), steps)
            if not row[:-1].any():  # only the parameter is fixed: not by rounding errors
                step[-1] = 0.0
            size = self.metric.norm(step)
            if not size < last:  # with a J of an earlier point it is assembled anew
                if is_new:
                    return made
                frame, is_new, steps, last = None, True, [], np.inf
                continue
            z, last = z + step, size
            steps.append(step)
            F = self.system.residual(z)
            made.count += 1

    def _secant(self, step: HostArray, steps: list[HostArray]) -> HostArray:
        """Broyden's step from a chord step, and the steps before it (Kelley, Iterative Methods, 1995, section 7.3)."""
        inner = self.metric.inner
        for before, after in itertools.pairwise(steps):
            step = step + after * (inner(before, step) / inner(before, before))
        if not steps:
            return step
        along = inner(steps[-1], step) / inner(steps[-1], steps[-1])
        return step / (1 - along) if along < 0.5 else step

    def observe(self, point: Point, row: HostArray, guess: HostArray | None = None, *, accurate: bool = False) -> bool:
        """Compute tangent, test functions and eigenvalues; return whether there is a tangent."""
        frame = point.frame = Frame(self.system, point.z, point.F, row, guess, accurate=accurate)
        length = self.metric.norm(frame.null)
        if not (np.isfinite(length) and length > 0):
            return False
        point.tangent = frame.null / length
        if self.seeks_branch_points:
            values = [frame.sign] if frame.factors is not None else [bordered_test(frame, b) for b in self.borders]
            point.signs = np.sign(values)
        point.eigenvalues = None if self.spectrum is None else self.spectrum(frame)
        return True

    def border(self, frame: Frame) -> HostArray:
        """Borders (b, c) of a test function that is smooth near a frame: its singular vectors, by one inverse step."""
        b, c = self.borders[0]
        if frame.factors is not None:
            c = _unit(frame.scaled_solve(b))
            b = _unit(frame.scaled_solve(c, transposed=True))
        return np.stack([np.append(b[:-1] * frame.scale, b[-1]), c])

    # Between two points

    def curve(self, a: Point, b: Point, part: float) -> tuple[HostArray, HostArray]:
        """The Hermite cubic through two points with their tangents: its position and its direction."""
        h = self.metric.norm(b.z - a.z)
        s, ta, tb = part, h * a.tangent, h * b.tangent
        d = b.z - a.z
        z = a.z + s * ta + s * s * (3 * d - 2 * ta - tb) + s**3 * (ta + tb - 2 * d)
        return z, ta + 2 * s * (3 * d - 2 * ta - tb) + 3 * s * s * (ta + tb - 2 * d)

    def at(self, a: Point, b: Point, part: float, *, observed: bool) -> Point | None:
        """The point of the branch at this fraction of the way from a to b."""
        z, direction = self.curve(a, b, part)
        row = self.metric.covector(direction / self.metric.norm(direction))
        point = self.correct(z, row, b.frame, strict=True).point
        if point is None or (observed and not self.observe(point, row, b.tangent, accurate=True)):
            return None
        return point

    def locate(
        self,
        a: Point,
        b: Point,
        function: Callable[[Point], float],
        values: tuple[float, float],
        accuracy: float,
        *,
        observed: bool,
    ) -> Point | None:
        """The point between a and b at which a function is zero: regula falsi, with stale values halved."""
        low, high, (first, last), found = 0.0, 1.0, values, None
        size, before = max(abs(first), abs(last)), 0.0  # the last value
        for _ in range(LOCATIONS):
            part = (low * last - high * first) / (last - first)
            found = self.at(a, b, part, observed=observed)
            value = np.nan if found is None else function(found)
            if not np.isfinite(value) or abs(value) <= accuracy * size or high - low <= accuracy:
                break
            is_stale = value * before > 0
            if value * last > 0:
                high, last, first = part, value, first * (0.5 if is_stale else 1.0)
            else:
                low, first, last = part, value, last * (0.5 if is_stale else 1.0)
            before = value
        return found

    def special(self, a: Point, b: Point, events: dict[str, Callable[[Point], float]]) -> list[Found] | None:
        """What happens between two observed points; None if they are of two branches."""
        found: list[Found] = []
        if a.signs is not None and b.signs is not None and (a.signs * b.signs < 0).all():
            singular = self._branch_point(a, b)
            if singular is None and b.frame.factors is not None and self.metric.norm(b.z - a.z) > NEAREST:
                return None
            found += [] if singular is None else [singular]
        for name, event in (events | {"fold": _slope}).items():
            first, last, is_fold = event(a), event(b), event is _slope
            if first * last < 0 or (last == 0 and first != 0):
                accuracy = FOLD if is_fold else LOCATED
                point = b if last == 0 else self.locate(a, b, event, (first, last), accuracy, observed=is_fold)
                found += [] if point is None else [(name, point, {})]
        return found + list(self._hopf(a, b))

    def _branch_point(self, a: Point, b: Point) -> Found | None:
        """Where the determinant of the bordered matrix is zero, if it is anywhere."""
        border = self.border(b.frame)
        last = bordered_test(b.frame, border)
        point = self.locate(a, b, lambda p: bordered_test(p.frame, border), (-last, last), LOCATED, observed=True)
        if point is None or not abs(bordered_test(point.frame, border)) <= NEARER * abs(last):
            return None
        null = point.frame.solve(border[0])
        other = null - point.tangent * self.metric.inner(null, point.tangent)
        return "branch point", point, {"direction": self.system.parts(other / self.metric.norm(other))}

    def _hopf(self, a: Point, b: Point) -> Iterator[Found]:
        before, after = (int((np.real(pairs(point)) > 0).sum()) for point in (a, b))
        for place in range(min(before, after), max(before, after)):
            if place >= min(pairs(a).size, pairs(b).size):
                continue

            def test(point: Point, place: int = place) -> float:
                values = pairs(point)
                return float(np.real(values[place])) if place < values.size else np.nan

            point = self.locate(a, b, test, (test(a), test(b)), LOCATED, observed=True)
            if point is not None and abs(test(point)) <= IMAGINARY * abs(pairs(point)[place]):
                yield "hopf", point, {"frequency": float(np.imag(pairs(point)[place]))}


def _slope(point: Point) -> float:
    return float(point.tangent[-1])


def bordered_test(frame: Frame, border: HostArray) -> float:
    """A smooth function that is zero at branch points, and has the sign of the determinant, or the opposite sign."""
    b, c = border
    with np.errstate(all="ignore"):
        return float(-1 / (c @ frame.scaled_solve(np.append(b[:-1] / frame.scale, b[-1]))))


def _unit(v: HostArray) -> HostArray:
    with np.errstate(all="ignore"):
        return v / np.linalg.norm(v)


def leading_eigenvalues(frame: Frame, count: int, shift: complex) -> HostArray:
    """Eigenvalues of J by falling real part: of all, where it is small, else of those nearest to `shift`."""
    A: Any = frame.matrix
    if A is None:
        raise ValueError(
            "continuation: `eigenvalues` needs an assembled Jacobian: declare `structure` or `jac`, "
            "or take an event that computes them"
        )
    n = A.structure.unknowns
    if n <= DENSE_SPECTRUM or count >= n - 1:
        values = np.linalg.eigvals(A.todense())
    else:
        start = np.random.default_rng(0).uniform(0.5, 1.0, n)
        try:
            matrix = A.to_sparse().astype(complex if np.imag(shift) else float)
            values = scipy.sparse.linalg.eigs(matrix, k=count, sigma=shift, v0=start, return_eigenvectors=False)
        except (RuntimeError, scipy.sparse.linalg.ArpackError):  # singular at the shift, or not converged
            values = np.full(count, np.nan)
    order = np.lexsort((-np.imag(values), -np.real(values)))
    return np.asarray(values[order][:count], dtype=complex)


def pairs(point: Point) -> HostArray:
    """Complex pairs of eigenvalues, by falling real part: the one with positive imaginary part of each."""
    values = np.zeros(0) if point.eigenvalues is None else point.eigenvalues
    return values[np.imag(values) > 0]
