"""How far to go along a Newton direction: for each system of a batch its own step length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import Norms, array_namespace, eps, from_host, gather, norm2, scatter, to_host
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.operators import LinearOperator
from implicitsolve.stopping import check_limit, check_number

CURVATURE = 0.9  # Nocedal and Wright (2006), section 3.1
SUFFICIENT_DECREASE = 1e-4  # Dennis and Schnabel (1996), section 6.3
LENGTHS = np.linspace(0.1, 0.5, 17)  # among which a model of ||J^-1 F|| is minimized
REST = 1 - LENGTHS
PROMISING = 0.8  # of ||J^-1 F|| at the start: what that model must promise


@dataclass
class Searched:
    """Where a search ended.

    Attributes
    ----------
    x, F : Array (b, N)
        New iterates and F there; the old ones where the search failed.
    norms : ndarray (b,)
        ||F||_2 at x.
    length : ndarray (b,)
        Accepted fraction of the step, 0 where none was.
    accepted : ndarray (b,) of bool
        Where a step was accepted.
    finite : ndarray (b,) of bool
        Where at least one trial had a finite residual.
    jacobian : LinearOperator or None
        J(x), if the problem computed it on the way.
    measured : Norms or None
        Of F, the whole step and x, where the whole step has led to x in every system.
    """

    x: Array
    F: Array
    norms: HostArray
    length: HostArray
    accepted: HostArray
    finite: HostArray
    jacobian: LinearOperator | None
    measured: Norms | None = None

    def take(self, rows: Indices) -> Searched:
        """The same of some systems, without J."""
        x, F = gather(self.x, rows), gather(self.F, rows)
        return Searched(x, F, self.norms[rows], self.length[rows], self.accepted[rows], self.finite[rows], None)


Correction: TypeAlias = Callable[[Array], Array]


class LineSearch(Protocol):
    """Frozen settings with one method."""

    def search(
        self,
        evaluator: Evaluator,
        x: Array,
        F: Array,
        norms: HostArray,
        step: Array,
        linear_residual: HostArray,
        correction: Correction | None = None,
        whole: Searched | None = None,
    ) -> Searched:
        """Go along `step` (b, N) from x, where ||F||_2 is `norms`; `linear_residual` is ||F + J step|| / ||F||.

        `correction`, where there is one, approximates ``F -> J(x)^-1 F`` and costs no product. `whole` is what the
        whole step brought, where that is known: then `step` and `correction` are those of a direct solve.
        """
        ...


def full_step(evaluator: Evaluator, x: Array, norms: HostArray, step: Array, *, linearizes: bool = True) -> Searched:
    """Try the whole step of every system, and accept it wherever F is finite there."""
    with np.errstate(all="ignore"):
        new_x = x + step
    F, J = evaluator.trial(new_x) if linearizes else (evaluator.residual(new_x), None)
    measured = Norms(F, step, new_x)
    new_norms = measured.two(0)
    finite = np.isfinite(new_norms)
    return Searched(new_x, F, new_norms, np.ones(norms.shape), finite.copy(), finite, J, measured)


@dataclass(frozen=True, kw_only=True)
class FullStep:
    """No line search: every step is taken whole, as long as the residual is finite there.

    Examples
    --------
    >>> import implicitsolve as ims
    >>> newton = ims.NewtonKrylov(line_search=ims.FullStep())
    >>> float(ims.root(lambda x: x**2 - 2, 1.0, method=newton).x.round(6))
    1.414214
    """

    def search(
        self,
        evaluator: Evaluator,
        x: Array,
        F: Array,
        norms: HostArray,
        step: Array,
        linear_residual: HostArray,
        correction: Correction | None = None,
        whole: Searched | None = None,
    ) -> Searched:
        """Go the whole way; see `LineSearch`."""
        found = full_step(evaluator, x, norms, step) if whole is None else whole
        found.accepted = found.finite.copy()
        return _restore(found, x, F, norms)


@dataclass(frozen=True, kw_only=True)
class Backtracking:
    """Shorten the step until the residual, or the Newton correction, has become smaller.

    A length lam is accepted when ``||F(x + lam s)|| <= (1 - t lam (1 - eta)) ||F(x)||``, t = 1e-4 [1]_, or when
    ``||J(x)^-1 F(x + lam s)|| <= (1 - lam / 4) ||s||`` and ||F|| has grown by less than `growth` [3]_. The second test
    does not depend on how the equations are scaled against each other, and goes through curved valleys in which the
    first creeps; J^-1 is what the last Krylov space knows of it, so that the test costs no product.

    The length comes from a quadratic, then cubic model of ||F||^2, kept within [0.1, 0.5] of the last one [2]_. With a
    direct solve the first comes from a model of ||J^-1 F||, J^-1 F(x + lam s) = -(1 - lam) s + lam^2 J^-1 F(x + s),
    where that promises to fall below 0.8 of its start. Where F is NaN or Inf, or overflows, the length falls tenfold
    until it is finite.

    Parameters
    ----------
    max_trials : int, optional
        Shortenings of one step before the search fails. Default 20: by then lam is below 1e-6.
    growth : float, optional
        Largest growth of ||F|| that the second test may accept. Default 1000; 1 switches the second test off.

    References
    ----------
    .. [1] S. C. Eisenstat and H. F. Walker, "Globally convergent inexact Newton methods", SIAM J. Optim. 4 (1994)
           393-422, algorithm INB.
    .. [2] J. E. Dennis and R. B. Schnabel, "Numerical methods for unconstrained optimization and nonlinear equations",
           SIAM (1996), algorithm A6.3.1.
    .. [3] P. Deuflhard, "Newton methods for nonlinear problems", Springer (2011), section 3.3: restricted natural
           monotonicity test.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> newton = ims.NewtonKrylov(line_search=ims.Backtracking(max_trials=40))
    >>> result = ims.root(np.arctan, 10.0, method=newton)  # whole steps from 10 diverge
    >>> result.status.name, bool(result.steps[1].step_length < 1)
    ('CONVERGED', True)
    """

    max_trials: int = 20
    growth: float = 1e3

    def __post_init__(self) -> None:
        """Check the settings."""
        check_limit("Backtracking", "max_trials", self.max_trials)
        check_number("Backtracking", "growth", self.growth)
        if not self.growth >= 1:
            raise ValueError(f"Backtracking: `growth` must be at least 1, got {self.growth}")

    def search(
        self,
        evaluator: Evaluator,
        x: Array,
        F: Array,
        norms: HostArray,
        step: Array,
        linear_residual: HostArray,
        correction: Correction | None = None,
        whole: Searched | None = None,
    ) -> Searched:
        """Backtrack; see `LineSearch`."""
        found = full_step(evaluator, x, norms, step) if whole is None else whole
        is_direct = whole is not None
        eta = np.clip(linear_residual, 0.0, 1.0)
        slope = -2 * (
            1 - eta**2
        )  # of ||F||^2 / ||F(x)||^2 along the step, since GMRES leaves a residual orthogonal to J s
        length = np.ones(norms.shape)
        ratio = _squared_ratio(found.norms, norms)
        older_length, older_ratio = np.full(norms.shape, np.nan), np.full(norms.shape, np.nan)
        accepts, first = self._accepts(found.F, ratio, length, eta, step, correction)
        pending = ~accepts
        for _ in range(self.max_trials):
            if not pending.any():
                break
            shorter = np.full(norms.shape, np.nan)
            if first is not None and is_direct:
                shorter = _promising(step, first)
            if np.isnan(shorter[pending]).any():
                model = _shorter(length, ratio, older_length, older_ratio, slope)
                shorter = np.where(np.isnan(shorter), model, shorter)
            first = None
            older_length, older_ratio = np.where(pending, length, older_length), np.where(pending, ratio, older_ratio)
            length = np.where(pending, shorter, length)
            self._evaluate(evaluator, found, np.flatnonzero(pending), x, length, step)
            ratio = _squared_ratio(found.norms, norms)
            pending &= ~self._accepts(found.F, ratio, length, eta, step, correction)[0]
        found.length, found.accepted = length, ~pending
        return _restore(found, x, F, norms)

    def _accepts(
        self,
        F: Array,
        ratio: HostArray,
        length: HostArray,
        eta: HostArray,
        step: Array,
        correction: Correction | None,
    ) -> tuple[HostArray, Array | None]:
        """Where one of the two tests holds; NaN passes neither. Also J^-1 F, where it was needed."""
        with np.errstate(all="ignore"):
            decreased = np.sqrt(ratio) <= 1 - SUFFICIENT_DECREASE * length * (1 - eta)
            if decreased.all() or correction is None or self.growth <= 1:
                return decreased, None
            natural = correction(F)
            measured = Norms(natural, step)
            is_smaller = measured.two(0) <= (1 - length / 4) * measured.two(1)
            return decreased | (is_smaller & (ratio < self.growth**2)), natural

    def _evaluate(
        self, evaluator: Evaluator, found: Searched, rows: Indices, x: Array, length: HostArray, step: Array
    ) -> None:
        """Evaluate new trial points of some systems."""
        if rows.size == length.size:
            with np.errstate(all="ignore"):
                found.x = x + from_host(length, x)[:, None] * step
            found.F, found.jacobian, found.measured = evaluator.residual(found.x), None, None
            found.norms = norm2(found.F)
            found.finite |= np.isfinite(found.norms)
            return
        part = evaluator.take(rows, x)
        with np.errstate(all="ignore"):
            trial = gather(x, rows) + from_host(length[rows], x)[:, None] * gather(step, rows)
        F = part.residual(trial)
        found.jacobian = found.measured = None
        scatter(found.x, rows, trial)
        scatter(found.F, rows, F)
        found.norms[rows] = norm2(F)
        found.finite[rows] |= np.isfinite(found.norms[rows])


@dataclass(frozen=True, kw_only=True)
class Wolfe:
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
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> ims.root(np.arctan, 10.0, method=ims.NewtonKrylov(line_search=ims.Wolfe())).status.name
    'CONVERGED'
    """

    max_trials: int = 10

    def __post_init__(self) -> None:
        """Check the settings."""
        check_limit("Wolfe", "max_trials", self.max_trials)

    def search(
        self,
        evaluator: Evaluator,
        x: Array,
        F: Array,
        norms: HostArray,
        step: Array,
        linear_residual: HostArray,
        correction: Correction | None = None,
        whole: Searched | None = None,
    ) -> Searched:
        """Search; see `LineSearch`."""
        if norms.size != 1:
            raise ValueError('line_search="wolfe" works on one system; use "armijo" for a batch')
        found = full_step(evaluator, x, norms, step) if whole is None else whole
        first_slope = -(1 - float(linear_residual[0]) ** 2)  # of half the squared ratio
        short, long, length = 0.0, np.inf, 1.0
        for trial in range(self.max_trials):
            if trial:
                with np.errstate(all="ignore"):
                    found.x = x + length * step
                found.F, found.jacobian, found.measured = evaluator.residual(found.x), None, None
                found.norms = norm2(found.F)
            value = self._merit(found.norms, norms)
            if value <= 0.5 + SUFFICIENT_DECREASE * length * first_slope:
                slope = self._slope(evaluator, x, step, norms, length, value)
                if abs(slope) <= CURVATURE * abs(first_slope):
                    found.length, found.accepted = np.asarray([length]), np.asarray([True])
                    found.finite = found.accepted.copy()
                    return found
                short, long = (length, long) if slope < 0 else (short, length)
            else:  # NaN too
                long = length
            length = 2 * length if long == np.inf else 0.5 * (short + long)
        return Backtracking().search(evaluator, x, F, norms, step, linear_residual, correction)

    def _merit(self, norms: HostArray, first: HostArray) -> float:
        return 0.5 * float(_squared_ratio(norms, first)[0])

    def _slope(
        self, evaluator: Evaluator, x: Array, step: Array, first: HostArray, length: float, value: float
    ) -> float:
        width = float(eps(evaluator.xp, x.dtype)) ** 0.5 * (1 + length)
        with np.errstate(all="ignore"):
            beyond = x + (length + width) * step
        return (self._merit(norm2(evaluator.residual(beyond)), first) - value) / width


def _squared_ratio(norms: HostArray, first: HostArray) -> HostArray:
    with np.errstate(all="ignore"):
        return (norms / first) ** 2


def _shorter(
    length: HostArray, ratio: HostArray, older_length: HostArray, older_ratio: HostArray, slope: HostArray
) -> HostArray:
    """Next length: minimizer of the quadratic, then cubic model of the ratio (1 at 0, `slope` there)."""
    with np.errstate(all="ignore"):
        quadratic = -slope * length**2 / (2 * (ratio - 1 - slope * length))
        # cubic through the last two trials, Dennis and Schnabel (6.3.18)
        rest = (ratio - 1 - slope * length) / length**2
        older_rest = (older_ratio - 1 - slope * older_length) / older_length**2
        a = (rest - older_rest) / (length - older_length)
        b = (older_rest * length - rest * older_length) / (length - older_length)
        root = np.sqrt(np.maximum(b * b - 3 * a * slope, 0.0))
        cubic = np.where(np.abs(a) > 0, (root - b) / (3 * a), -slope / (2 * b))
        model = np.where(np.isfinite(cubic) & np.isfinite(older_ratio), cubic, quadratic)
        model = np.where(np.isfinite(model), model, 0.5 * length)
    bounded = np.clip(model, 0.1 * length, 0.5 * length)
    return np.where(np.isfinite(ratio), bounded, 0.1 * length)


def _promising(step: Array, natural: Array) -> HostArray:
    """Length after the whole step of an exact J, given J^-1 F at its end, if a model of ||J^-1 F|| promises much; NaN.

    Along the step ``J(x)^-1 F(x + l step) = -(1 - l) step + l^2 natural`` where F is quadratic.
    """
    xp = array_namespace(step)
    with np.errstate(all="ignore"):
        size = from_host(norm2(step), step)[:, None]
        unit, other = step / size, natural / size
        products = np.real(to_host(xp.vecdot(unit, other))).astype(np.float64)[:, None]
        model = REST**2 - 2 * REST * LENGTHS**2 * products + LENGTHS**4 * norm2(other)[:, None] ** 2
        is_promising = np.min(model, axis=1) <= PROMISING**2  # NaN is not
    return np.where(is_promising, LENGTHS[np.argmin(model, axis=1)], np.nan)


def _restore(found: Searched, x: Array, F: Array, norms: HostArray) -> Searched:
    """Put the old iterate back where no step was accepted."""
    failed = np.flatnonzero(~found.accepted)
    if failed.size:
        scatter(found.x, failed, gather(x, failed))
        scatter(found.F, failed, gather(F, failed))
        found.norms[failed], found.length[failed] = norms[failed], 0.0
        found.jacobian = found.measured = None
    return found
