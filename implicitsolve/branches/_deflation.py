"""`further_solutions`: roots beside known ones, by deflation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from implicitsolve._record import Tally
from implicitsolve._root import check_settings, root
from implicitsolve._typing import HostArray
from implicitsolve.branches._family import Family, real_start
from implicitsolve.branches._system import ExtendedSystem, Frame
from implicitsolve.problem import Problem
from implicitsolve.result import NonlinearResult
from implicitsolve.stopping import NonlinearStop, check_limit

LONGEST_STEP = 10.0  # step, over the distance to the nearest known solution
DISTINCT = 1e-3  # distance of two solutions, over the size of x, from which on they are different


def further_solutions(
    problem: Any,
    x0: Any,
    known: Iterable[Any] = (),
    *,
    count: int = 10,
    max_iterations: int = 50,
    stop: NonlinearStop | None = None,
) -> list[NonlinearResult]:
    """Find solutions of F(x) = 0 beside known ones, by deflation.

    Parameters
    ----------
    problem : callable or Problem
        One system F(x), such as ``lambda x: F(x, lam)`` for a family at one value of its parameter.
    x0 : array_like
        Start of every search; real numbers. Computed in float64.
    known : iterable of array_like, optional
        Known solutions, in the shape of x0. Default: none.
    count : int, optional
        Largest number of solutions to seek. Default 10.
    max_iterations : int, optional
        Newton steps of one search. Default 50.
    stop : NonlinearStop, optional
        As in `root`, with F(x0) as the reference.

    Returns
    -------
    list of NonlinearResult
        New solutions, in the order in which they were found: all have converged, and differ from `known` and one
        another. The search ends with the first one that fails, which does not show that there are no more.

    Notes
    -----
    Newton's method is applied to M(x) F(x) with M(x) the product of 1 + 1 / ||x - r||^2 over the known solutions r, in
    units of the root mean square of x [1]_: it cannot converge to them again. The step has the direction of the one for
    F, and another length or sign, so that no other matrix is factored. J is assembled as by `continuation`.

    References
    ----------
    .. [1] P. E. Farrell, A. Birkisson and S. W. Funke, "Deflation techniques for finding distinct solutions of
           nonlinear partial differential equations", SIAM J. Sci. Comput. 37 (2015) A2026-A2045.

    Examples
    --------
    >>> found = ims.branches.further_solutions(lambda x: x**3 - x, np.array([0.4]), known=[[0.0]])
    >>> sorted(round(float(result.x[0]), 6) for result in found)
    [-1.0, 1.0]
    """
    check_limit("further_solutions", "count", count)
    check_limit("further_solutions", "max_iterations", max_iterations)
    stop = check_settings("further_solutions", "auto", stop, None)[1]
    x = real_start("further_solutions", x0)
    try:
        roots = [np.array(root, dtype=float) for root in known]
    except (TypeError, ValueError):
        raise TypeError(f"further_solutions: `known` must be a list of solutions, got {known!r}") from None
    for solution in roots:
        if solution.shape != x.shape:
            raise ValueError(f"further_solutions: `known` must have the shape {x.shape} of x0, got {solution.shape}")
    problem = problem if isinstance(problem, Problem) else Problem(problem)
    search = _Search(problem, x, [solution.reshape(-1) for solution in roots], stop)
    found: list[NonlinearResult] = []
    while len(found) < count and (result := search.next(max_iterations)) is not None:
        found.append(result)
    return found


class _Search:
    """Newton's method for M F from one start."""

    def __init__(self, problem: Problem, x0: HostArray, roots: list[HostArray], stop: NonlinearStop) -> None:
        self.problem, self.roots, self.stop = problem, roots, stop
        self.start: HostArray = np.append(x0.reshape(-1), 0.0)
        unit = max(float(np.sqrt(np.mean(x**2))) for x in (self.start[:-1], *roots)) or 1.0
        self.system = ExtendedSystem(Family(lambda _: problem, None), x0, Tally(), unit=unit, span=1.0)
        F = self.system.residual(self.start)[None, :]
        self.target = float(stop.target(stop.measure(F, x0.shape), F)[0])

    def next(self, steps: int) -> NonlinearResult | None:
        """One more solution, if the search converges to one."""
        z, metric = self.start, self.system.metric
        if min(self._distances(z), default=np.inf) <= DISTINCT:
            z = z + np.append(np.random.default_rng(0).normal(0.0, 10 * DISTINCT * metric.unit, z.size - 1), 0.0)
        F = self.system.residual(z)
        for _ in range(steps):
            if not np.isfinite(F).all():
                return None
            if float(self.stop.measure(F[None, :], self.system.shape)[0]) <= self.target:
                return self._confirm(z)
            row = metric.parameter_row()
            step = Frame(self.system, z, F, row).correction(z, F, row)
            with np.errstate(all="ignore"):
                step = step / (1 - self._slope(z) @ step[:-1])
            length, near = metric.norm(step), min(self._distances(z), default=np.inf)
            if not np.isfinite(length) or length == 0:
                return None
            z = z + step * min(1.0, LONGEST_STEP * near / length)
            F = self.system.residual(z)
        return None

    def _confirm(self, z: HostArray) -> NonlinearResult | None:
        result = root(self.problem, self.system.state(z), stop=NonlinearStop(atol=self.target, norm=self.stop.norm))
        found = np.append(result.x, 0.0)
        if not result.success or min(self._distances(found), default=np.inf) <= DISTINCT:
            return None
        self.roots.append(found[:-1])
        return result

    def _distances(self, z: HostArray) -> list[float]:
        return [self.system.metric.norm(np.append(z[:-1] - solution, 0.0)) for solution in self.roots]

    def _slope(self, z: HostArray) -> HostArray:
        """The gradient of log M."""
        total = np.zeros(z.size - 1)
        for solution, d in zip(self.roots, self._distances(z)):
            with np.errstate(all="ignore"):
                gradient = 2 * (z[:-1] - solution) / (self.system.metric.unit**2 * self.system.size)
                total -= gradient / (d**4 * (1 + 1 / d**2))
        return total
