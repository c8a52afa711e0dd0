"""Broyden's method without a Jacobian."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from implicitsolve._namespace import Norms
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.nonlinear._broyden_inverse import BroydenInverse
from implicitsolve.nonlinear._fixed_point import (
    FixedPointLoop,
    FixedPointState,
    check_damping,
    check_growth_limit,
    scaled,
)
from implicitsolve.nonlinear._state import SolveContext
from implicitsolve.result import Solution
from implicitsolve.stopping import check_flag, check_limit


@dataclass(frozen=True, kw_only=True)
class Broyden:
    """Broyden's "good" method with limited memory, from J = I, for each system of a batch [1]_.

    Parameters
    ----------
    memory : int, optional
        Rank-one updates after which a system drops them and restarts. Default 50.
    damping : float, optional
        The first J is I / damping. Default 1.
    growth_limit : float, optional
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

    A step after which F is not finite, or has grown beyond `growth_limit`, is rejected: the iteration resumes from the
    best point, without the updates and with half the damping, which recovers step by step. After ten rejections in a
    row the system has failed (STAGNATED, or NONFINITE). A system that fails ends at the best of its points. At most
    500 steps unless `max_iterations` is set.

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
    growth_limit: float = 10.0
    patience: int = 50
    preconditioned: bool = True

    kind: ClassVar[str] = "nonlinear"
    keeps_bounds: ClassVar[bool] = False
    eliminates = True
    rdiff = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_limit("Broyden", "memory", self.memory, least=1)
        check_damping("Broyden", self.damping)
        check_growth_limit("Broyden", self.growth_limit)
        check_limit("Broyden", "patience", self.patience, least=1)
        check_flag("Broyden", "preconditioned", self.preconditioned)

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        """Solve on arrays (B, N); see `NonlinearMethod`."""
        return _BroydenLoop(self, context, start, rows).run()


@dataclass
class _BroydenState(FixedPointState):
    """The systems that iterate, and their updates."""

    updates: BroydenInverse
    first: HostArray  # damping with which each system's updates began


class _BroydenLoop(FixedPointLoop[_BroydenState]):
    """Steps with a J that is updated by the steps so far."""

    ADMITS = None
    size: HostArray | None = None  # length of the last step, where it is known

    def _with_history(self, state: FixedPointState) -> _BroydenState:
        return _BroydenState(**vars(state), updates=BroydenInverse(), first=state.damping)

    def _is_due(self) -> HostArray:
        return (self.state.age + 1) % self.method.memory == 0

    def _proposal(self) -> Array:
        state = self.state
        return state.updates.direction(lambda F: scaled(state.damping, self._image_step(state, F)), state.F)

    def _measured(self, F: Array, step: Array, x: Array, *, keeps_inverse: bool) -> Norms:
        measured = Norms(F, step, x)
        self.size = None if isinstance(F, np.ndarray) else measured.two(1)
        return measured

    def _learn(self, step: Array, old_F: Array, rejected: HostArray) -> None:
        state = self.state
        state.updates.step(step, step, np.ones(rejected.size), self.size)
        state.updates.reset(rejected | (state.age % self.method.memory == 0) | (state.damping != state.first))
        state.updates.forget(self.method.memory)
        state.first = state.damping
