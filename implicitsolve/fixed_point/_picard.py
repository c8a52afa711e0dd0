"""Picard's iteration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from implicitsolve._evaluate import Evaluator
from implicitsolve._typing import Array, HostArray
from implicitsolve.fixed_point._loop import FixedPointLoop, check_damping, scaled
from implicitsolve.monitor import Monitor, silent
from implicitsolve.newton._loop import Solution
from implicitsolve.stopping import NonlinearStop


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
    steps in a row are the end (NONFINITE). At most 500 steps unless the stopping rule says otherwise.

    Cost per step: 1 residual. Holds 2 vectors per system besides x and F.

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

    eliminates = True
    patience = 50
    preconditioned = False

    def __post_init__(self) -> None:
        """Check the settings."""
        check_damping("Picard", self.damping)

    @property
    def growth(self) -> float:
        """No iterate is refused for its residual."""
        return np.inf

    def solve(self, evaluator: Evaluator, x0: Array, stop: NonlinearStop, monitor: Monitor = silent) -> Solution:
        """Solve on arrays (B, N): the loop behind `root`."""
        return _PicardLoop(self, evaluator, Solution.at(x0), stop, monitor).run()


class _PicardLoop(FixedPointLoop):
    """A loop that knows nothing but F, so that newcomers cost the others nothing."""

    IDLE = 0.25

    NEW_BEST = 0.99  # a slow contraction is one

    def _proposal(self) -> Array:
        return -scaled(self.damping, self.F)

    def _learn(self, step: Array, old_F: Array, lost: HostArray) -> None:
        pass
