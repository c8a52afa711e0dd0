"""Line search for the strong Wolfe conditions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from implicitsolve._namespace import eps, norm2
from implicitsolve._typing import HostArray
from implicitsolve.globalize._line_search import (
    SUFFICIENT_DECREASE,
    Backtracking,
    SearchResult,
    SearchStart,
    squared_ratio,
)
from implicitsolve.stopping import check_limit

CURVATURE = 0.9  # Nocedal and Wright (2006), section 3.1


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

    kind: ClassVar[str] = "line search"
    needs_descent: ClassVar[bool] = False

    max_trials: int = 10

    def __post_init__(self) -> None:
        """Check the settings."""
        check_limit("Wolfe", "max_trials", self.max_trials)

    def search(self, start: SearchStart) -> SearchResult:
        """Search; see `LineSearch`."""
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
        """Return plain backtracking."""
        return Backtracking()

    def _merit(self, norms: HostArray, first: HostArray) -> float:
        return 0.5 * float(squared_ratio(norms, first)[0])

    def _slope(self, start: SearchStart, length: float, value: float) -> float:
        evaluator = start.evaluator
        width = float(eps(evaluator.xp, start.x.dtype)) ** 0.5 * (1 + length)
        beyond = evaluator.moved(start.x, start.step, np.asarray([length + width]))
        return (self._merit(norm2(evaluator.residual(beyond)), start.norms) - value) / width
