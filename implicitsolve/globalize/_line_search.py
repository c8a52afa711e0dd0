"""How accurately each Newton equation is solved, and how far to go along its solution, system by system."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, TypeAlias

import numpy as np

from implicitsolve._arrays.host import gather, scatter
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.globalize._rules import MOST_GROWTH, armijo_ratio, has_natural_decrease
from implicitsolve.kernels._norms import Norms, norm2
from implicitsolve.krylov._descent import Descent
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.operators import LinearOperator
from implicitsolve.stopping import check_fraction, check_limit, check_number


class Forcing(Protocol):
    """Chooses eta for each system of a batch."""

    kind: ClassVar[str] = "forcing"

    def first(self, systems: int) -> HostArray:
        """Eta of the first step."""
        ...

    def next(self, eta: HostArray, norms: HostArray, previous: HostArray) -> HostArray:
        """Eta after ||F|| went from `previous` to `norms` with `eta`."""
        ...


@dataclass(frozen=True, kw_only=True)
class ConstantForcing(Forcing):
    """One eta for every step.

    Parameters
    ----------
    eta : float, optional
        Relative tolerance of the linear solve, in (0, 1). Default 0.1.

    Examples
    --------
    >>> newton = ims.NewtonKrylov(forcing=ims.ConstantForcing(eta=0.01))
    >>> float(ims.root(lambda x: x**2 - 2, 1.0, method=newton).x.round(6))
    1.414214
    """

    eta: float = 0.1

    def __post_init__(self) -> None:
        check_fraction("ConstantForcing", "eta", self.eta)

    def first(self, systems: int) -> HostArray:
        return np.full(systems, self.eta)

    def next(self, eta: HostArray, norms: HostArray, previous: HostArray) -> HostArray:
        return np.full(eta.shape, self.eta)


@dataclass(frozen=True, kw_only=True)
class EisenstatWalker(Forcing):
    """Choice 2 of Eisenstat and Walker: ``eta = gamma (||F|| / ||F_previous||)^alpha``.

    Parameters
    ----------
    eta0 : float, optional
        First eta. Default 0.1.
    eta_max : float, optional
        Largest eta. Default 0.9, as in KINSOL.
    gamma, alpha : float, optional
        Defaults 0.9 and 2, as in KINSOL.

    Notes
    -----
    Safeguards: eta does not fall below ``gamma eta_previous^alpha`` while that exceeds 0.1, and no linear
    residual is required to be smaller than half of what the stopping rule of the solve needs.

    References
    ----------
    .. [1] S. C. Eisenstat and H. F. Walker, "Choosing the forcing terms in an inexact Newton method",
           SIAM J. Sci. Comput. 17 (1996) 16-32, (2.6) and section 2.1.

    Examples
    --------
    >>> newton = ims.NewtonKrylov(forcing=ims.EisenstatWalker(eta_max=0.5))
    >>> float(ims.root(lambda x: x**2 - 2, 1.0, method=newton).x.round(6))
    1.414214
    """

    eta0: float = 0.1
    eta_max: float = 0.9
    gamma: float = 0.9
    alpha: float = 2.0

    def __post_init__(self) -> None:
        for name in ("eta0", "eta_max", "gamma"):
            check_fraction("EisenstatWalker", name, getattr(self, name))
        check_number("EisenstatWalker", "alpha", self.alpha)
        if not 1 < self.alpha <= 2:
            raise ValueError(f"EisenstatWalker: `alpha` must lie in (1, 2], got {self.alpha}")

    def first(self, systems: int) -> HostArray:
        return np.full(systems, min(self.eta0, self.eta_max))

    def next(self, eta: HostArray, norms: HostArray, previous: HostArray) -> HostArray:
        with np.errstate(all="ignore"):
            choice, guard = self.gamma * (norms / previous) ** self.alpha, self.gamma * eta**self.alpha
            return np.fmin(np.maximum(choice, guard * (guard > 0.1)), self.eta_max)  # NaN gives way to eta_max


@dataclass
class SearchResult:
    """Where a search ended."""

    x: Array  # (b, N) new iterates, and F there; the old ones where the search failed
    F: Array
    norms: HostArray  # (b,) ||F||_2 at x
    length: HostArray  # (b,) accepted fraction of the step, 0 where none was
    accepted: HostArray  # (b,) where a step was accepted
    finite: HostArray  # (b,) where at least one trial had a finite residual
    jacobian: LinearOperator | None  # J(x), if the problem computed it on the way
    measured: Norms | None = None  # of F, the whole step and x, where the whole step has led to x in every system

    def take(self, rows: Indices) -> SearchResult:
        """The result of some systems, without J."""
        x, F = gather(self.x, rows), gather(self.F, rows)
        return SearchResult(x, F, self.norms[rows], self.length[rows], self.accepted[rows], self.finite[rows], None)

    def restore(self, x: Array, F: Array, norms: HostArray) -> SearchResult:
        """Put the old iterate back where no step was accepted."""
        failed = np.flatnonzero(~self.accepted)
        if failed.size:
            scatter(self.x, failed, gather(x, failed))
            scatter(self.F, failed, gather(F, failed))
            self.norms[failed], self.length[failed] = norms[failed], 0.0
            self.jacobian = self.measured = None
        return self


Correction: TypeAlias = Callable[[Array], Array]


@dataclass(frozen=True)
class SearchStart:
    """State of the systems of a batch that a line search reads."""

    evaluator: Evaluator
    x: Array  # (b, N) the iterates, and F there
    F: Array
    norms: HostArray  # (b,) ||F||_2
    step: Array  # (b, N) the directions
    linear_residual: HostArray  # (b,) ||F + J step|| / ||F||; 0 where the linear system was solved directly
    correction: Correction | None = None  # an approximation of F -> J(x)^-1 F that costs no product
    whole: SearchResult | None = None  # where the whole step led, if that is known
    descent: Descent | None = None  # of ||F + J s||, and the trust region, for searches with `needs_descent`

    def full_step(self) -> SearchResult:
        """Try the whole step of every system, and accept it wherever F is finite there."""
        if self.whole is not None:
            return self.whole
        new_x = self.evaluator.move(self.x, self.step)
        F, J = self.evaluator.attempt(new_x, self.x)
        measured = Norms(F, self.step, new_x)
        norms = measured.two(0)
        finite = np.isfinite(norms)
        return SearchResult(new_x, F, norms, np.ones(norms.shape), finite.copy(), finite, J, measured)

    def try_length(self, found: SearchResult, length: HostArray) -> None:
        """Evaluate F at that part of the step, for all systems."""
        found.x = self.evaluator.move(self.x, self.step, length)
        found.F, found.jacobian = self.evaluator.attempt(found.x, self.x, jacobian=False)
        found.measured = None
        found.norms = norm2(found.F)


class LineSearch(Protocol):
    """Frozen settings of a line search."""

    kind: ClassVar[str] = "line search"
    needs_descent: ClassVar[bool] = False  # whether `search` uses the steepest descent of ||F + J s||

    def search(self, start: SearchStart) -> SearchResult:
        """Find the length of the step of each system, and evaluate F there."""
        ...

    def cautious(self) -> LineSearch | None:
        """Return the search for a second attempt at a system on which this one has failed; None for no attempt."""
        return None


@dataclass(frozen=True, kw_only=True)
class Backtracking(LineSearch):
    """Shorten the step until the residual, or the Newton correction, has become smaller.

    A length lam is accepted when ``||F(x + lam s)|| <= (1 - t lam (1 - eta)) ||F(x)||``, t = 1e-4 [1]_, or when
    ``||J(x)^-1 F(x + lam s)|| <= (1 - lam / 4) ||s||`` and ||F|| has grown by less than `growth_limit` [3]_. The second
    test does not depend on how the equations are scaled against each other, and accepts long steps in curved valleys
    where the first does not; J^-1 is approximated in the last Krylov space, so that the test costs no product.

    The length comes from a quadratic, then cubic model of ||F||^2, kept within [0.1, 0.5] of the last one [2]_. Where
    F is NaN or Inf, or overflows, the length falls tenfold until it is finite.

    Parameters
    ----------
    max_trials : int, optional
        Shortenings of one step before the search fails. Default 20: by then lam is below 1e-6.
    growth_limit : float, optional
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
    >>> newton = ims.NewtonKrylov(line_search=ims.Backtracking(max_trials=40))
    >>> result = ims.root(np.arctan, 10.0, method=newton)  # whole steps from 10 diverge
    >>> result.status.name, bool(result.steps[1].step_length < 1)
    ('CONVERGED', True)
    """

    max_trials: int = 20
    growth_limit: float = 1e3

    def __post_init__(self) -> None:
        check_limit("Backtracking", "max_trials", self.max_trials)
        check_number("Backtracking", "growth_limit", self.growth_limit, least=1)

    def search(self, start: SearchStart) -> SearchResult:
        found, norms = start.full_step(), start.norms
        eta = np.clip(start.linear_residual, 0.0, 1.0)
        # Of ||F||^2 / ||F(x)||^2 along the step, since GMRES leaves a residual orthogonal to J s.
        slope = -2 * (1 - eta**2)
        length = np.ones(norms.shape)
        ratio = squared_ratio(found.norms, norms)
        older_length, older_ratio = np.full(norms.shape, np.nan), np.full(norms.shape, np.nan)
        pending = ~self._accepts(start, found.F, ratio, length, eta)
        for _ in range(self.max_trials):
            if not pending.any():
                break
            shorter = model_minimizer(length, ratio, older_length, older_ratio, slope)
            older_length, older_ratio = np.where(pending, length, older_length), np.where(pending, ratio, older_ratio)
            length = np.where(pending, shorter, length)
            self._evaluate(start, found, np.flatnonzero(pending), length)
            ratio = squared_ratio(found.norms, norms)
            pending &= ~self._accepts(start, found.F, ratio, length, eta)
        found.length, found.accepted = length, ~pending
        return found.restore(start.x, start.F, start.norms)

    def cautious(self) -> Backtracking:
        """Return the search with a smaller `growth_limit`."""
        return replace(self, growth_limit=MOST_GROWTH)

    def _accepts(self, start: SearchStart, F: Array, ratio: HostArray, length: HostArray, eta: HostArray) -> HostArray:
        """Where one of the two tests holds; NaN passes neither."""
        with np.errstate(all="ignore"):
            decreased = np.sqrt(ratio) <= armijo_ratio(length, eta)
            if decreased.all() or start.correction is None or self.growth_limit <= 1:
                return decreased
            measured = Norms(start.correction(F), start.step)
            is_smaller = has_natural_decrease(measured.two(0), measured.two(1), length)
            return decreased | (is_smaller & (ratio < self.growth_limit**2))

    def _evaluate(self, start: SearchStart, found: SearchResult, rows: Indices, length: HostArray) -> None:
        """Evaluate new trial points of some systems."""
        if rows.size == length.size:
            start.try_length(found, length)
            found.finite |= np.isfinite(found.norms)
            return
        part = start.evaluator.take(rows, start.x)
        trial = part.move(gather(start.x, rows), gather(start.step, rows), length[rows])
        F = part.residual(trial)
        found.jacobian = found.measured = None
        scatter(found.x, rows, trial)
        scatter(found.F, rows, F)
        found.norms[rows] = norm2(F)
        found.finite[rows] |= np.isfinite(found.norms[rows])


def squared_ratio(norms: HostArray, first: HostArray) -> HostArray:
    with np.errstate(all="ignore"):
        return (norms / first) ** 2


def model_minimizer(
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
