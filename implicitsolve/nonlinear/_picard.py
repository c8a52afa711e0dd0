"""Picard's iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.nonlinear._fixed_point import FixedPointLoop, FixedPointState, check_damping, scaled
from implicitsolve.nonlinear._scheduler import SolveContext
from implicitsolve.nonlinear._state import Solution


@dataclass(frozen=True, kw_only=True)
class Picard:
    """Fixed-point iteration ``x <- x - damping F(x)``: for F(x) = x - G(x) without damping it is ``x <- G(x)``.

    It converges, linearly, from near a solution where I - damping J has its eigenvalues inside the unit circle.

    Parameters
    ----------
    damping : float, optional
        Positive factor of the step. Default 1.

    Raises
    ------
    TypeError, ValueError
        If `damping` is no positive, finite number.

    Notes
    -----
    Meant for problems whose residual is x - G(x) (``Problem.fixed_point``): F is taken for a step of x, whatever its
    units are.

    Where a step leads to a point at which F is not finite, it is not taken, and the next one is half as long; ten such
    steps in a row end the solve (NONFINITE). At most 500 steps unless `max_iterations` is set.

    Cost per step: 1 residual. Holds 2 vectors per system in addition to x and F.

    References
    ----------
    .. [1] C. T. Kelley, "Iterative methods for linear and nonlinear equations", SIAM (1995), section 4.2.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> problem = ims.Problem(lambda x: x - np.cos(x), fixed_point=True)
    >>> float(ims.root(problem, 1.0, method=ims.Picard()).x.round(6))
    0.739085
    """

    damping: float = 1.0

    kind: ClassVar[str] = "nonlinear"
    keeps_bounds: ClassVar[bool] = False
    eliminates = True
    rdiff = None
    patience = 50
    preconditioned = False

    def __post_init__(self) -> None:
        """Check the settings."""
        check_damping("Picard", self.damping)

    @property
    def growth_limit(self) -> float:
        """No iterate is rejected for its residual."""
        return np.inf

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        """Solve on arrays (B, N); see `NonlinearMethod`."""
        return _PicardLoop(self, context, start, rows).run()


class _PicardLoop(FixedPointLoop[FixedPointState]):
    """Steps along -F."""

    NEW_BEST = 0.99  # a slow contraction is one

    def _with_history(self, state: FixedPointState) -> FixedPointState:
        return state

    def _proposal(self) -> Array:
        return -scaled(self.state.damping, self.state.F)

    def _learn(self, step: Array, old_F: Array, rejected: HostArray) -> None:
        """Without a history there is nothing to update."""
