"""`continuation`: a branch of solutions over a parameter by pseudo-arclength, whose end may be a start of `root`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from implicitsolve._record import LimitReached, Tally
from implicitsolve._root import check_settings
from implicitsolve._typing import Array, HostArray
from implicitsolve.branches._branch import Branch
from implicitsolve.branches._family import Family, real_start
from implicitsolve.branches._path import Path, leading_eigenvalues
from implicitsolve.branches._run import Run
from implicitsolve.branches._system import ROOT_EPS, ExtendedSystem
from implicitsolve.errors import check_names
from implicitsolve.monitor import Monitor, silent
from implicitsolve.problem import Problem
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


@check_names
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
        Number of leading eigenvalues of J at each point, by which Hopf points are located. Default 0. They are those
        of the linearization of x' = F(x, lam): negative real parts mean stability. Needs an assembled J.
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
    one for dF/dlam are added. Where none of these applies, linear systems are solved by GMRES without a preconditioner.

    The next step is twice as long if at most three corrections were needed, and half as long after more than four. A
    step that turns by more than 37 degrees, or whose corrections do not contract, is halved.

    Test functions that change sign from a point to the next are followed to their zero: the parameter's component of
    the tangent at a fold; at a branch point, where the determinant of the bordered matrix changes sign, the reciprocal
    of a bordered inverse [2]_; the real part of a complex pair at a Hopf point. Two zeros in one step may cancel. Where
    the determinant changes its sign and is zero nowhere, the step has led to another branch, and is taken back.

    References
    ----------
    .. [1] H. B. Keller, "Numerical solution of bifurcation and nonlinear eigenvalue problems", in Applications of
           Bifurcation Theory, Academic Press (1977) 359-384.
    .. [2] W. Govaerts, Numerical Methods for Bifurcations of Dynamical Equilibria, SIAM (2000), chapters 3 and 4.

    Examples
    --------
    Bratu's equation has two solutions below its fold, and none above:

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
    if not isinstance(shift, int | float | complex | np.number):
        raise TypeError(f"continuation: `shift` must be a number, got {type(shift).__name__}")
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
    functions: Any = {} if events is None else events
    if not (isinstance(functions, Mapping) and all(map(callable, functions.values()))):
        raise TypeError(f"continuation: `events` must map names to functions g(x, lam), got {events!r}")
    run = Run(path, dict(functions), observer, bounds, stop, max_points)
    if previous is None:
        ahead = None if direction is None else _direction(direction, x)
        _follow(run, partial(run.begin, np.append(x, first), ahead, min(step, max_step), max_step))
    else:
        _follow(run, partial(run.resume, previous))
    return run.branch(parameter or "lam")


def _follow(run: Run, begin: Callable[[], None]) -> None:
    """Begin a branch, and follow it within its limits."""
    tally = run.path.system.tally
    try:
        tally.enforce(begin)
        tally.enforce(run.follow)
    except LimitReached:
        run.end(tally.ended or Status.EVALUATION_LIMIT, f"{tally.evaluations} evaluations are made")


def _start(x0: Any, start: Any, stop: Any) -> tuple[HostArray, float, float]:
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
    if interval is None:
        return min(start, stop), max(start, stop)
    try:
        low, high = (float(end) for end in interval)
    except (TypeError, ValueError):
        raise TypeError(f"continuation: `interval` must be two numbers (low, high), got {interval!r}") from None
    if not low <= start <= high or not low < high:
        raise ValueError(f"continuation: `interval` must be (low, high) with `start` = {start} inside, got {interval}")
    return low, high


def _direction(direction: Any, x: HostArray) -> HostArray:
    try:
        dx, dlam = (np.asarray(part, dtype=float) for part in direction)
    except (TypeError, ValueError):
        raise TypeError(f"continuation: `direction` must be (dx, dlam), got {direction!r}") from None
    if dx.shape != x.shape or dlam.ndim:
        raise ValueError(f"continuation: `direction` must be (dx, dlam) with dx of shape {x.shape}, got {dx.shape}")
    ahead = np.append(dx.reshape(-1), dlam)
    if not np.isfinite(ahead).all() or not ahead.any():
        raise ValueError("continuation: `direction` must be finite and not zero")
    return ahead


def _resume(
    previous: Any, stop: float | None, given: Mapping[str, Any]
) -> tuple[HostArray, tuple[float, float], float, float]:
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


def end_of_ramp(problem: Any, x0: Any, ramp: Any, stop: NonlinearStop) -> tuple[Problem, Array, Tally]:
    """The problem at the last value of a ramp, the end of the branch from x0 at its first value, and its evaluations.

    Only the end counts: points are those of a branch by fewer digits, with steps as long as corrections allow. If the
    branch ends earlier, its last point is returned.
    """
    if not (isinstance(ramp, tuple) and len(ramp) == 3 and isinstance(ramp[0], str)):
        raise TypeError(f'root: `ramp` must be (name, first, last), such as ("Re", 100, 2000), got {ramp!r}')
    name, (x, first, last) = ramp[0], _start(x0, *ramp[1:])
    family, tally, span = Family(problem, name), Tally(stop.max_evaluations, stop.max_seconds), abs(last - first)
    system = ExtendedSystem(family, x, tally, unit=1.0, span=span, accuracy=ROOT_EPS**0.5)
    run = Run(Path(system, seeks_branch_points=False), {}, silent, _interval(None, first, last), last, 200)
    _follow(run, partial(run.begin, np.append(x, first), None, 0.05, 1.0))
    branch = run.branch(name)
    for kind in ("residuals", "jvps", "vjps", "linearizations"):
        setattr(tally, kind, getattr(branch.counts, kind))
    return family.at(last), branch.x[-1] if len(branch.x) else x0, tally
