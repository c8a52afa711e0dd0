"""Folds, branch points, Hopf points and events between two neighboring points of a branch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse.linalg

from implicitsolve._typing import HostArray
from implicitsolve.branches._frame import Frame
from implicitsolve.branches._path import Path, Point, bordered_test

FOLD, LINEAR = 1e-6, 1e-9  # accuracy of test functions, over their size; lam at a fold has the square of the first
DENSE_SPECTRUM = 300  # unknowns up to which all eigenvalues are computed
REAL = 1e-9  # imaginary part, over the modulus, up to which an eigenvalue is real
IMAGINARY = 1e-3  # real part over the modulus of a located pair, from which on it is none
NEARER = 1e-2  # by which a test function must have fallen to show a branch point
NEAREST = 1e-4  # distance of two points whose branches are not told apart


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
    return values[np.imag(values) > REAL * np.abs(values)]


Found = tuple[str, Point, dict[str, Any]]


def between(path: Path, a: Point, b: Point, events: dict[str, Callable[[Point], float]]) -> list[Found] | None:
    """What happens between two observed points: kinds, points, and what is known; None if they are of two branches."""
    found: list[Found] = []
    if a.signs is not None and b.signs is not None and (a.signs * b.signs < 0).all():
        singular = _branch_point(path, a, b)
        if singular is None and b.frame.factors is not None and path.metric.norm(b.z - a.z) > NEAREST:
            return None
        found += [] if singular is None else [singular]
    for name, event in events.items():
        first, last = event(a), event(b)
        if first * last < 0 or (last == 0 and first != 0):
            point = b if last == 0 else path.located(a, b, event, (first, last), LINEAR, observed=False)
            if point is not None:
                found.append((name, point, {}))
    slopes = float(a.tangent[-1]), float(b.tangent[-1])
    if slopes[0] * slopes[1] < 0:
        point = path.located(a, b, lambda p: float(p.tangent[-1]), slopes, FOLD, observed=True)
        if point is not None:
            found.append(("fold", point, {}))
    return found + list(_hopf(path, a, b))


def _branch_point(path: Path, a: Point, b: Point) -> Found | None:
    """Where the determinant of the bordered matrix is zero, if it is anywhere."""
    border = path.border(b.frame)
    last = bordered_test(b.frame, border)
    point = path.located(a, b, lambda p: bordered_test(p.frame, border), (-last, last), LINEAR, observed=True)
    if point is None or not abs(bordered_test(point.frame, border)) <= NEARER * abs(last):
        return None
    null = point.frame.solve(border[0])
    other = null - point.tangent * path.metric.inner(null, point.tangent)
    return "branch point", point, {"direction": path.system.parts(other / path.metric.norm(other))}


def _hopf(path: Path, a: Point, b: Point) -> Iterator[Found]:
    """Complex pairs that cross the imaginary axis."""
    before, after = (int((np.real(pairs(point)) > 0).sum()) for point in (a, b))
    for place in range(min(before, after), max(before, after)):
        if place >= min(pairs(a).size, pairs(b).size):
            continue

        def test(point: Point, place: int = place) -> float:
            values = pairs(point)
            return float(np.real(values[place])) if place < values.size else np.nan

        point = path.located(a, b, test, (test(a), test(b)), LINEAR, observed=True)
        if point is not None and abs(test(point)) <= IMAGINARY * abs(pairs(point)[place]):
            yield "hopf", point, {"frequency": float(np.imag(pairs(point)[place]))}
