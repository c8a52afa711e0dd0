"""Picard's iteration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from implicitsolve._evaluate import Evaluator
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.fixed_point._loop import FixedPointLoop, check_damping
from implicitsolve.monitor import Monitor, silent
from implicitsolve.newton._loop import Solution
from implicitsolve.stopping import NonlinearStop


@dataclass(frozen=True, kw_only=True)
class Picard:
    """Fixed-point iteration ``x <- x - damping F(x)``, which is ``x <- G(x)`` for F(x) = x - G(x) and no damping.

    It converges, linearly, where the eigenvalues of I - damping J at the solution lie inside the unit circle; a norm of
    that matrix below 1 around the start is enough.

    Parameters
    ----------
    damping : float, optional
        Positive factor of the step. Default 1.

    Notes
    -----
    Meant for problems whose residual is x - G(x) (``Problem.fixed_point``); for any other F the step has wrong units,
    and nothing speaks for its direction. Where F is not finite the system goes back to its last point, with half the
    damping, which recovers step by step; after ten such steps in a row its status is NONFINITE. At most 500 steps
    unless the stopping rule says otherwise.

    Cost per step: 1 residual. It holds x, F and one more pair of vectors.

    Raises
    ------
    ValueError
        If `damping` is not positive and finite.

    References
    ----------
    .. [1] C. T. Kelley, "Iterative methods for linear and nonlinear equations", SIAM (1995), section 4.2.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> from implicitsolve.fixed_point import Picard
    >>> problem = ims.Problem(lambda x: x - np.cos(x), fixed_point=True)
    >>> ims.root(problem, 1.0, method=Picard()).x.round(6)
    0.739085
    """

    damping: float = 1.0
    eliminates = True

    def __post_init__(self) -> None:
        """Check the settings."""
        check_damping("Picard", self.damping)

    def solve(self, evaluator: Evaluator, x0: Array, stop: NonlinearStop, monitor: Monitor = silent) -> Solution:
        """Solve on arrays (B, N): the loop behind `root`."""
        return _PicardLoop(self, evaluator, Solution.at(x0), stop, monitor).run()


class _PicardLoop(FixedPointLoop):
    """Steps to the image of x."""

    def __init__(
        self,
        method: Picard,
        evaluator: Evaluator,
        solution: Solution,
        stop: NonlinearStop,
        monitor: Monitor,
        rows: Indices | None = None,
    ) -> None:
        super().__init__(
            method, evaluator, solution, stop, monitor, rows, growth=np.inf, least_pivot=None
        )
