"""Broyden's method without a Jacobian."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import Norms
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.fixed_point._loop import FixedPointLoop, check_damping, check_flag, check_growth, scaled
from implicitsolve.monitor import Monitor, silent
from implicitsolve.newton._broyden import BroydenInverse
from implicitsolve.newton._loop import Solution
from implicitsolve.stopping import NonlinearStop, check_limit


@dataclass(frozen=True, kw_only=True)
class Broyden:
    """Broyden's "good" method with limited memory, from J = I, for each system of a batch [1]_.

    Parameters
    ----------
    memory : int, optional
        Rank-one updates after which a system forgets them and begins anew. Default 50.
    damping : float, optional
        The first J is I / damping. Default 1.
    growth : float, optional
        Largest ||F|| that a step may lead to, over the smallest so far. Default 10.
    patience : int, optional
        Steps in which the norm of F must be halved; a system that takes longer has stagnated. Default 50.
    preconditioned : bool, optional
        Whether the first J is the inverse of the approximate inverse that J offers
        (`LinearOperator.approximate_inverse`), where the problem has `linearize` and such an inverse. Default True.

    Raises
    ------
    TypeError, ValueError
        If a setting is not usable.

    Notes
    -----
    Meant for problems whose residual is x - G(x) (``Problem.fixed_point``): J begins as I, whatever the units are.

    A step after which F is not finite, or has grown beyond `growth`, is not taken: the system goes back to its best
    point, forgets its updates, and goes on with half the damping, which recovers step by step. After ten such steps in
    a row it has failed (STAGNATED, or NONFINITE). A system that fails ends at the best of its points. At most 500 steps
    unless the stopping rule says otherwise.

    Cost per step: 1 residual, and 2 passes over 2 vectors for each update. Holds 2 vectors per system for each update,
    and about eight others.

    References
    ----------
    .. [1] C. T. Kelley, "Iterative methods for linear and nonlinear equations", SIAM (1995), section 7.3.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> A = np.array([[0.5, 0.4], [-0.4, 0.5]])
    >>> problem = ims.Problem(lambda x: x - np.tanh(A @ x + 1), fixed_point=True)
    >>> ims.root(problem, np.zeros(2), method=ims.Broyden()).x.round(6)
    array([0.944425, 0.763197])
    """

    memory: int = 50
    damping: float = 1.0
    growth: float = 10.0
    patience: int = 50
    preconditioned: bool = True

    eliminates = True

    def __post_init__(self) -> None:
        """Check the settings."""
        check_limit("Broyden", "memory", self.memory, least=1)
        check_damping("Broyden", self.damping)
        check_growth("Broyden", self.growth)
        check_limit("Broyden", "patience", self.patience, least=1)
        check_flag("Broyden", "preconditioned", self.preconditioned)

    def solve(self, evaluator: Evaluator, x0: Array, stop: NonlinearStop, monitor: Monitor = silent) -> Solution:
        """Solve on arrays (B, N): the loop behind `root`."""
        return _BroydenLoop(self, evaluator, Solution.at(x0), stop, monitor).run()


class _BroydenLoop(FixedPointLoop):
    """A loop that corrects J by the steps it has taken."""

    JOINS = False

    def __init__(self, method: Broyden, *arguments: Any) -> None:
        super().__init__(method, *arguments)
        self.updates = BroydenInverse()
        self.size: HostArray | None = None  # of the last step, where it is known
        self.first = self.damping  # with which each system's updates began

    def _is_due(self) -> HostArray:
        return (self.age + 1) % self.method.memory == 0

    def _proposal(self) -> Array:
        return self.updates.direction(lambda F: scaled(self.damping, self._image_step(F)), self.F)

    def _measured(self, F: Array, step: Array, x: Array, *, may_foresee: bool) -> Norms:
        measured = super()._measured(F, step, x, may_foresee=may_foresee)
        self.size = None if isinstance(F, np.ndarray) else measured.two(1)
        return measured

    def _learn(self, step: Array, old_F: Array, lost: HostArray) -> None:
        self.updates.step(step, step, np.ones(lost.size), self.size)
        self.updates.reset(lost | (self.age % self.method.memory == 0) | (self.damping != self.first))
        self.updates.forget(self.method.memory)
        self.first = self.damping

    def _keep(self, keep: Indices) -> None:
        super()._keep(keep)
        self.updates.take(keep)
        self.first = self.first[keep]
