"""Alternatives to backtracking along a direction: whole steps, strong Wolfe conditions, a dogleg, steps within bounds.

Iterates stay inside bounds [1]_: a step leaves the part ``min(0.1, ||F|| / ||F(x0)||)`` of the distance to a bound, so
that a root on a bound is approached as fast as ||F|| falls, and functions that exist only inside are not called on it.
With a dense J a step that would leave the bounds minimizes ||F + J s|| within them.

References
----------
.. [1] S. Bellavia, M. Macconi and B. Morini, "An affine scaling trust-region approach to bound-constrained nonlinear
       systems", Appl. Numer. Math. 44 (2003) 257-280.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from scipy.optimize import lsq_linear

from implicitsolve._arrays.host import from_host, gather, scatter, to_host
from implicitsolve._arrays.namespace import array_namespace, eps, near_reciprocals
from implicitsolve._typing import Array, HostArray
from implicitsolve.globalize._line_search import Backtracking, LineSearch, SearchResult, SearchStart, squared_ratio
from implicitsolve.globalize._rules import SUFFICIENT_DECREASE, first_radius, next_radius, part_of_leg
from implicitsolve.kernels._norms import norm2
from implicitsolve.krylov._descent import Descent
from implicitsolve.stopping import check_limit

CURVATURE = 0.9  # Nocedal and Wright (2006), section 3.1


@dataclass(frozen=True, kw_only=True)
class FullStep(LineSearch):
    """No line search: every step is taken whole, as long as the residual is finite there.

    Examples
    --------
    >>> newton = ims.NewtonKrylov(line_search=ims.FullStep())
    >>> float(ims.root(lambda x: x**2 - 2, 1.0, method=newton).x.round(6))
    1.414214
    """

    def search(self, start: SearchStart) -> SearchResult:
        found = start.full_step()
        found.accepted = found.finite.copy()
        return found.restore(start.x, start.F, start.norms)


@dataclass(frozen=True, kw_only=True)
class Wolfe(LineSearch):
    """Strong Wolfe conditions on ||F||^2 / 2 along the step, by bisection; for one system, not a batch.

    The derivative along the step is a difference, so that a trial may cost two residuals. Where no length meets the
    conditions in `max_trials` trials, the step is shortened by `Backtracking`.

    Parameters
    ----------
    max_trials : int, optional
        Lengths that are tried. Default 10.

    References
    ----------
    .. [1] J. Nocedal and S. J. Wright, "Numerical optimization", Springer (2006), (3.7), with c1 = 1e-4 and c2 = 0.9.

    Examples
    --------
    >>> ims.root(np.arctan, 10.0, method=ims.NewtonKrylov(line_search=ims.Wolfe())).status.name
    'CONVERGED'
    """

    max_trials: int = 10

    def __post_init__(self) -> None:
        check_limit("Wolfe", "max_trials", self.max_trials)

    def search(self, start: SearchStart) -> SearchResult:
        if start.norms.size != 1:
            raise ValueError('line_search="wolfe" works on one system; use "armijo" for a batch')
        found = start.full_step()
        first_slope = -(1 - float(start.linear_residual[0]) ** 2)  # of half the squared ratio
        short, long, length = 0.0, np.inf, 1.0
        for trial in range(self.max_trials):
            if trial:
                start.try_length(found, np.asarray([length]))
            value = self._merit(found.norms, start.norms)
            if value <= 0.5 + SUFFICIENT_DECREASE * length * first_slope:
                slope = self._slope(start, length, value)
                if abs(slope) <= CURVATURE * abs(first_slope):
                    found.length, found.accepted = np.asarray([length]), np.asarray([True])
                    found.finite = found.accepted.copy()
                    return found
                short, long = (length, long) if slope < 0 else (short, length)
            else:  # NaN too
                long = length
            length = 2 * length if long == np.inf else 0.5 * (short + long)
        return Backtracking().search(replace(start, whole=None))

    def cautious(self) -> Backtracking:
        return Backtracking()

    def _merit(self, norms: HostArray, first: HostArray) -> float:
        return 0.5 * float(squared_ratio(norms, first)[0])

    def _slope(self, start: SearchStart, length: float, value: float) -> float:
        evaluator = start.evaluator
        width = float(eps(evaluator.xp, start.x.dtype)) ** 0.5 * (1 + length)
        beyond = evaluator.move(start.x, start.step, np.asarray([length + width]))
        return (self._merit(norm2(evaluator.residual(beyond)), start.norms) - value) / width


@dataclass(frozen=True, kw_only=True)
class Dogleg(LineSearch):
    """Powell's dogleg in a trust region: steps bend from Newton's direction towards steepest descent as they shorten.

    A step s is accepted when ||F||^2 falls by at least 1e-4 of what ||F + J s||^2 predicts. The path leads from 0 to
    the minimizer of ||F + J s|| along steepest descent, and from there to Newton's step [1]_; s is where it leaves the
    ball ||s||_2 <= radius. With an assembled J steepest descent is -J^H F; with GMRES it is the descent within the
    Krylov space, which costs no product with J^H [2]_; with other Krylov methods it is -J^H F if the problem has `vjp`,
    and otherwise the path is straight.

    The first radius is the smaller of ||s|| and 100 ||x0||. It is halved after a step that brought less than 0.2 of
    the prediction, and is at least twice the step where that brought more [3]_. Only ratios enter: units of F and of x
    change no decision.

    Prefer it to `Backtracking` where exact Newton steps are long and lead nowhere, near singular Jacobians: it never
    accepts a larger ||F||, and so ends at a minimizer of ||F|| where curved valleys need the natural test.

    Parameters
    ----------
    max_trials : int, optional
        Steps that are tried at one point before the search fails. Default 10: the last radius is a thousandth of
        the first.

    References
    ----------
    .. [1] M. J. D. Powell, "A hybrid method for nonlinear equations", in P. Rabinowitz (ed.), "Numerical methods for
           nonlinear algebraic equations", Gordon and Breach (1970) 87-114.
    .. [2] P. N. Brown and Y. Saad, "Hybrid Krylov methods for nonlinear systems of equations", SIAM J. Sci. Stat.
           Comput. 11 (1990) 450-481.
    .. [3] A. R. Conn, N. I. M. Gould and P. L. Toint, "Trust-region methods", SIAM (2000), algorithm 6.1.1.

    Examples
    --------
    >>> newton = ims.NewtonKrylov(line_search=ims.Dogleg())
    >>> ims.root(np.arctan, 10.0, method=newton).status.name  # whole steps from 10 diverge
    'CONVERGED'
    """

    needs_descent: ClassVar[bool] = True

    max_trials: int = 10

    def __post_init__(self) -> None:
        check_limit("Dogleg", "max_trials", self.max_trials, least=1)

    def search(self, start: SearchStart) -> SearchResult:
        """Shrink the trust region until a step is accepted; see `LineSearch`."""
        evaluator, x, F, norms, step = start.evaluator, start.x, start.F, start.norms, start.step
        xp, size, eta, whole = array_namespace(x), norm2(step), np.clip(start.linear_residual, 0.0, 1.0), start.whole
        descent = Descent.along(step, eta) if start.descent is None else start.descent
        radius = np.where(np.isinf(descent.radius), first_radius(size, norm2(x)), descent.radius)
        if whole is not None:  # what has been tried
            radius = np.fmin(radius, 0.5 * size)
        b = np.zeros(norms.shape, dtype=bool)
        found = SearchResult(
            xp.asarray(x, copy=True), xp.asarray(F, copy=True), norms.copy(), b * 1.0, b, b.copy(), None
        )
        found.finite |= False if whole is None else whole.finite
        least = eps(xp, x.dtype) * norm2(x)
        rows = np.flatnonzero(np.isfinite(size) | (descent.length > 0))
        for trial in range(self.max_trials):
            if not rows.size:
                break
            s, gain = trust_step(descent.take(rows), gather(step, rows), radius[rows], eta[rows])
            part, length = evaluator.take(rows, x), norm2(s)
            new_x = part.move(gather(x, rows), s)
            new_F, J = part.trial(new_x) if trial == 0 and rows.size == norms.size else (part.residual(new_x), None)
            new_norms = norm2(new_F)
            with np.errstate(all="ignore"):
                ratio = (1 - squared_ratio(new_norms, norms[rows])) / gain
                ratio = np.where(np.isfinite(new_norms), ratio, -np.inf)
                accepted = ratio >= SUFFICIENT_DECREASE
                found.length[rows] = np.where(length < size[rows], length / size[rows], 1.0)
            scatter(found.x, rows, new_x)
            scatter(found.F, rows, new_F)
            found.norms[rows], found.accepted[rows], found.jacobian = new_norms, accepted, J
            found.finite[rows] |= np.isfinite(new_norms)
            held = np.where(accepted, radius[rows], np.fmin(radius[rows], length))
            radius[rows] = next_radius(held, length, ratio)
            rows = rows[~accepted & (length > least[rows])]
        descent.radius[:] = radius
        return found.restore(start.x, start.F, start.norms)


def trust_step(descent: Descent, newton: Array, radius: HostArray, eta: HostArray) -> tuple[Array, HostArray]:
    """Newton's step or, where it is longer than `radius`, the dogleg's; and the part of ||F||^2 that it removes."""
    with np.errstate(all="ignore"):
        step, first, second = dogleg(descent.unit, descent.length, newton, radius)
        is_inside = norm2(newton) <= radius
        rest = np.maximum(1 - eta**2 - descent.gain, 0.0)
        gain = (2 - first) * first * descent.gain + (2 - second) * second * rest
        gain = np.where(is_inside, 1 - eta**2, gain)
    return array_namespace(step).where(from_host(is_inside, step)[:, None], newton, step), gain


def dogleg(unit: Array, length: HostArray, newton: Array, radius: HostArray) -> tuple[Array, HostArray, HostArray]:
    """Steps of length `radius` on a path from 0 via `length` times `unit` to Newton's step; the parts of both legs."""
    xp = array_namespace(newton)
    first = unit * from_host(np.fmin(length, radius), unit)[:, None]
    first = xp.where(xp.isfinite(first), first, 0.0)
    rest = xp.where(xp.isfinite(newton), newton, 0.0) - first
    a, b, c = norm2(rest) ** 2, np.real(to_host(xp.vecdot(first, rest))), radius**2 - norm2(first) ** 2
    part = part_of_leg(a, b, c)
    part = np.where((length < radius) & np.isfinite(part), part, 0.0)
    return first + from_host(part, rest)[:, None] * rest, np.fmin(radius / length, 1.0), part


BOUND_PART = 0.1  # of the distance to a bound, at most
MOST_RELEASES = 3  # times that an unknown is let go from its bound


def kept_part(norms: HostArray, first: HostArray) -> HostArray:
    """The part of the distance to a bound that a step leaves, where ||F|| has fallen from `first` to `norms`."""
    with np.errstate(all="ignore"):
        return np.fmin(BOUND_PART, norms / first)


def least_squares_step(J: HostArray, F: HostArray, low: HostArray, high: HostArray, step: HostArray) -> HostArray:
    """The minimizer of ||R (F + J s)|| with low <= s <= high, where R equilibrates the rows of J, for one system."""
    shortened = np.clip(step, low, high)
    with np.errstate(all="ignore"):
        if not (np.isfinite(J).all() and np.isfinite(F).all()):  # which LAPACK is not called with
            return shortened
        rows = near_reciprocals(np.max(np.abs(J), axis=1))  # as Newton's step, it depends on no unit
        scaled = J * rows[:, None]
        columns = near_reciprocals(np.max(np.abs(scaled), axis=0))
        try:
            within = low / columns, high / columns
            found = lsq_linear(scaled * columns, -F * rows, within, method="bvls", max_iter=MOST_RELEASES).x * columns
        except (ValueError, np.linalg.LinAlgError):  # the scales have overflowed
            return shortened
    return np.clip(found, low, high)
