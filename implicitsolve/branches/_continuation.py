"""`continuation`, a branch of solutions over a parameter by pseudo-arclength, and `further_solutions` by deflation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from implicitsolve._record import LimitReached, Tally
from implicitsolve._typing import HostArray
from implicitsolve.branches._branch import Branch
from implicitsolve.branches._path import Path, leading_eigenvalues
from implicitsolve.branches._run import Run
from implicitsolve.branches._system import ExtendedSystem, Family, Frame, real_start
from implicitsolve.monitor import Monitor
from implicitsolve.problem import Problem
from implicitsolve.result import NonlinearResult
from implicitsolve.solve import check_settings, root
from implicitsolve.status import Status
from implicitsolve.stopping import (
    NonlinearStop,
    check_budget,
    check_flag,
    check_limit,
    check_number,
    check_positive,
    check_tolerance,
)


def continuation(
    problem: Any,
    x0: Any = None,
    start: float | None = None,
    stop: float | None = None,
    *,
    parameter: str | None = None,
    interval: tuple[float, float] | None = None,
    direction: tuple[Any, float] | None = None,
    step: float = 0.05,
    max_step: float = 0.2,
    max_points: int = 200,
    max_evaluations: int | None = None,
    atol: float = 0.0,
    branch_points: bool = True,
    eigenvalues: int = 0,
    shift: complex = 0.0,
    events: Mapping[str, Callable[[HostArray, float], float]] | None = None,
    monitor: Monitor | None = None,
    previous: Branch | None = None,
) -> Branch:
    """Follow the solutions of F(x, lam) = 0 from lam = start, through folds, by pseudo-arclength.

    Parameters
    ----------
    problem : callable or Problem
        ``F(x, lam)``; a `Problem` whose functions have the parameter as a further argument, ``residual(x, lam)``,
        ``jac(x, lam)``, ``jvp(x, v, lam)``, and ``parameter_jvp(x, {"lam": 1.0}, lam)``, the derivative of F with
        respect to the parameter, in place of which a difference is taken; or a function ``lam -> Problem`` of one
        argument.
    x0 : array_like
        Guess of the solution at ``lam = start``: real numbers, of any shape. Computed in float64.
    start, stop : float
        The branch begins at `start`, towards `stop`, and ends where the parameter leaves the interval.
    parameter : str, optional
        Name of the functions' argument, passed by keyword. Default: the one after x (for products, after v), whether or
        not it has a default; called "lam".
    interval : (float, float), optional
        Values of the parameter in which the branch is followed. Default: from `start` to `stop`.
    direction : (array_like, float), optional
        (dx, dlam) along which the branch leaves x0, such as `SpecialPoint.direction` at a branch point. Default: along
        the branch through x0, towards `stop`.
    step, max_step : float, optional
        First and longest step in arc length, in which ``|stop - start|`` and the largest root mean square of x so far
        are 1. Defaults 0.05 and 0.2; in between, steps follow corrections and curvature.
    max_points : int, optional
        Largest number of points, those of `previous` not counted. Default 200.
    max_evaluations : int, optional
        Limit of residuals and products with J together. Default: none.
    atol : float, optional
        Points satisfy ``max|F(x, lam)| <= atol``. Default 0 for ``sqrt(eps) max|dF/dlam| |stop - start|``, with the
        derivative at the first two points, or ``64 eps max(|J| |x|)``, the size of rounding errors, if that is more.
    branch_points : bool, optional
        Whether branch points are sought. Default True; without an assembled J it takes two linear solves per point.
    eigenvalues : int, optional
        How many leading eigenvalues of J are computed at each point, and Hopf points located. Default 0. They are those
        of the linearization of x' = F(x, lam): negative real parts are stable. Needs an assembled J.
    shift : complex, optional
        With more than 300 unknowns: the eigenvalues nearest to this number are computed, by a factorization per point.
        Default 0. Near a Hopf point it should be about i times the frequency.
    events : mapping of str to callable, optional
        ``g(x, lam)`` returns a real number; points at which it changes sign are located. If the function has an
        attribute ``terminal = True``, the branch ends there.
    monitor : callable, optional
        Called with every point as with a step of `root`; where it returns True, the branch ends.
    previous : Branch, optional
        The branch is continued where this one has ended, with its steps, tolerance and interval (extended to `stop`, if
        that is given). `x0`, `start`, `direction`, `interval` and `step` must not be given then.

    Returns
    -------
    Branch
        Points, special points, and a status. A numerical failure is a status, never an exception.

    Raises
    ------
    TypeError, ValueError
        If an argument, or what one of the functions returns, is not usable. Exceptions of the functions pass unchanged.

    Notes
    -----
    From the last two points and their tangents a point is predicted, to second order in the step, and corrected in the
    hyperplane across [1]_: by chord steps with the factors of the last point's bordered matrix, which is nonsingular at
    folds, and Broyden's updates; by Newton's method with new factors, where these converge slowly. Then J is assembled
    and factored, which gives the tangent. The assembly takes one call of `jac`, or a residual for each color of the
    declared or detected sparsity, or of all columns up to 128 unknowns; two or three residuals for the corrections and
    one for dF/dlam are added. Without any of these all linear systems are solved by GMRES without a preconditioner.

    The next step is longer, by 2 at most, if the first correction was below 5 % of the step, the tangent turned by less
    than 0.25, and at most three corrections were needed. A step that turns by more than 37 degrees, or whose
    corrections do not contract, is halved.

    Test functions that change sign from a point to the next are followed to their zero: the parameter's component of
    the tangent at a fold; at a branch point, where the determinant of the bordered matrix changes sign, the
    reciprocal of a bordered inverse [2]_; the real part of a complex pair at a Hopf point. Several in one step may
    cancel. Where the determinant changes its sign and is zero nowhere, the step has led to another branch, and is taken
    back.

    References
    ----------
    .. [1] H. B. Keller, "Numerical solution of bifurcation and nonlinear eigenvalue problems", in Applications of
           Bifurcation Theory, Academic Press (1977) 359-384.
    .. [2] W. Govaerts, Numerical Methods for Bifurcations of Dynamical Equilibria, SIAM (2000), chapters 3 and 4.

    Examples
    --------
    Bratu's equation has two solutions below its fold, and none above:

    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> def bratu(u, lam):
    ...     return np.diff(u, 2, prepend=0, append=0) * 50**2 + lam * np.exp(u)
    >>> branch = ims.continuation(bratu, np.zeros(49), start=0, stop=4, max_points=30)
    >>> branch.of_kind("fold")
    [<fold at 3.513...>]
    """
    family = Family(problem, parameter)
    for name, value in (("step", step), ("max_step", max_step)):
        check_positive("continuation", name, value)
    check_limit("continuation", "max_points", max_points, least=1)
    check_budget("continuation", max_evaluations, None)
    check_tolerance("continuation", "atol", atol)
    check_flag("continuation", "branch_points", branch_points)
    check_limit("continuation", "eigenvalues", eigenvalues)
    observer = check_settings("continuation", "auto", None, monitor)[2]
    first = 0.0
    if previous is None:
        x, first, stop = _start(x0, start, stop)
        bounds, span = _interval(interval, first, stop), abs(stop - first)
    else:
        given = {"x0": x0, "start": start, "direction": direction, "interval": interval}
        x, bounds, span, stop = _resume(previous, stop, given)
    tally = Tally(max_evaluations)
    system = ExtendedSystem(family, x, tally, unit=1.0, span=span)
    spectrum = partial(leading_eigenvalues, count=eigenvalues, shift=shift) if eigenvalues else None
    path = Path(system, spectrum, seeks_branch_points=branch_points, atol=atol)
    if events is not None and not (isinstance(events, Mapping) and all(map(callable, events.values()))):
        raise TypeError(f"continuation: `events` must map names to functions g(x, lam), got {events!r}")
    run = Run(path, dict(events or {}), observer, bounds, stop, max_points)
    try:
        if previous is None:
            ahead = None if direction is None else _direction(direction, x)
            tally.enforced(run.begin, np.append(x.reshape(-1), first), ahead, min(step, max_step), max_step)
        else:
            tally.enforced(run.resume, previous)
        tally.enforced(run.follow)
    except LimitReached:
        run.end(tally.ended or Status.EVALUATION_LIMIT, f"{tally.evaluations} evaluations are made")
    return run.branch(parameter or "lam")


def _start(x0: Any, start: Any, stop: Any) -> tuple[HostArray, float, float]:
    """The guess in float64, and both ends."""
    for name, value in (("x0", x0), ("start", start), ("stop", stop)):
        if value is None:
            raise TypeError(f"continuation: `{name}` is needed, unless `previous` is given")
    x = real_start("continuation", x0)
    for name, value in (("start", start), ("stop", stop)):
        check_number("continuation", name, value)
        if not math.isfinite(value):
            raise ValueError(f"continuation: `{name}` must be finite, got {value}")
    if start == stop:
        raise ValueError(f"continuation: `stop` must differ from `start`, got {stop} for both")
    return x, float(start), float(stop)


def _interval(interval: Any, start: float, stop: float) -> tuple[float, float]:
    """Where the parameter may be."""
    if interval is None:
        return min(start, stop), max(start, stop)
    low, high = (float(end) for end in interval)
    if not low <= start <= high or not low < high:
        raise ValueError(f"continuation: `interval` must be (low, high) with `start` = {start} inside, got {interval}")
    return low, high


def _direction(direction: Any, x: HostArray) -> HostArray:
    """(dx, dlam) as one vector."""
    dx, dlam = direction
    dx = np.asarray(dx, dtype=float)
    if dx.shape != x.shape:
        raise ValueError(f"continuation: `direction` must be (dx, dlam) with dx of shape {x.shape}, got {dx.shape}")
    ahead = np.append(dx.reshape(-1), float(dlam))
    if not np.isfinite(ahead).all() or not ahead.any():
        raise ValueError("continuation: `direction` must be finite and not zero")
    return ahead


def _resume(
    previous: Any, stop: float | None, given: Mapping[str, Any]
) -> tuple[HostArray, tuple[float, float], float, float]:
    """Last solution, interval, span and end of a branch that is continued."""
    if not isinstance(previous, Branch):
        raise TypeError(f"continuation: `previous` must be a Branch, got {type(previous).__name__}")
    if not previous.state:
        raise ValueError(f"continuation: `previous` must be a branch that can go on, got {previous!r}")
    for name, value in given.items():
        if value is not None:
            raise TypeError(f"continuation: `{name}` must not be given with `previous`")
    state, (low, high) = previous.state, (float(end) for end in previous.state["bounds"])
    if stop is None:
        return previous.x[-1], (low, high), float(state["span"]), float(state["stop"])
    check_number("continuation", "stop", stop)
    return previous.x[-1], (min(low, stop), max(high, stop)), float(state["span"]), float(stop)


LONGEST = 10.0  # step, over the distance to the nearest known solution
ASIDE = 1e-2  # of the size of x, by which a start that is a known solution is moved
APART = 1e-4  # distance of two solutions, over the size of x, from which on they are different


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
        As of `root`, with F(x0) as the reference.

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
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> found = ims.branches.further_solutions(lambda x: x**3 - x, np.array([0.4]), known=[[0.0]])
    >>> sorted(round(float(result.x[0]), 6) for result in found)
    [-1.0, 1.0]
    """
    check_limit("further_solutions", "count", count)
    check_limit("further_solutions", "max_iterations", max_iterations)
    stop = check_settings("further_solutions", "auto", stop, None)[1]
    x = real_start("further_solutions", x0)
    roots = [np.array(root, dtype=float) for root in known]
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
        if min(self._distances(z), default=np.inf) <= APART:
            z = z + np.append(np.random.default_rng(0).normal(0.0, ASIDE * metric.unit, z.size - 1), 0.0)
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
            z = z + step * min(1.0, LONGEST * near / length)
            F = self.system.residual(z)
        return None

    def _confirm(self, z: HostArray) -> NonlinearResult | None:
        """The result of `root` there, if it is a new solution."""
        result = root(self.problem, self.system.state(z), stop=NonlinearStop(atol=self.target, norm=self.stop.norm))
        found = np.append(result.x, 0.0)
        if not result.success or min(self._distances(found), default=np.inf) <= APART:
            return None
        self.roots.append(found[:-1])
        return result

    def _distances(self, z: HostArray) -> list[float]:
        """To the known solutions, in units of x."""
        return [self.system.metric.norm(np.append(z[:-1] - solution, 0.0)) for solution in self.roots]

    def _slope(self, z: HostArray) -> HostArray:
        """The gradient of log M."""
        total = np.zeros(z.size - 1)
        for solution, d in zip(self.roots, self._distances(z)):
            with np.errstate(all="ignore"):
                gradient = 2 * (z[:-1] - solution) / (self.system.metric.unit**2 * self.system.size)
                total -= gradient / (d**4 * (1 + 1 / d**2))
        return total
