"""Anderson's acceleration of fixed-point iterations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import Norms, array_namespace, eps, gather, to_host
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.fixed_point._history import FIRST_COLUMNS, History
from implicitsolve.fixed_point._loop import FixedPointLoop, check_damping, check_flag, check_growth, scaled
from implicitsolve.monitor import Monitor, silent
from implicitsolve.newton._loop import Solution
from implicitsolve.stopping import NonlinearStop, check_limit, check_tolerance

RENEWALS = np.asarray([8, 32, 128])  # ages at which M is built anew, and counted from when a system goes back
ROUNDING = 100  # rounding units below which a pivot of the small problem tells nothing
LARGEST = 2**27  # numbers that the memory of all systems may take: 1 GiB in float64
IDLE = 5  # steps in which ||F|| must fall by a tenth, if the mixtures promise that it is halved in each
FALLEN, PROMISED = 0.9, 0.5


@dataclass(frozen=True, kw_only=True)
class Anderson:
    """Anderson's method: each step mixes the last points so that their mixed residual is smallest [1]_, [2]_.

    Parameters
    ----------
    memory : int, optional
        Most earlier steps that are mixed, within 1 GiB; 0 for none, which leaves the iteration itself. Default 60: easy
        problems converge long before, and on hard ones every vector saves residuals.
    damping : float, optional
        Positive factor of the residual in the mixed step (often called beta). Default 1.
    regularization : float, optional
        Steps whose change of F lies in the span of the newer ones', but for this part of its squared length, are left
        out of the mixture. Default 1e-10, and never less than 100 rounding units.
    growth : float, optional
        Largest ||F|| that a step may lead to, over the smallest so far. Default 10.
    patience : int, optional
        Steps in which the norm of F must be halved; a system that takes longer has stagnated. Default 50.
    preconditioned : bool, optional
        Whether residuals are multiplied by the approximate inverse that J offers
        (`LinearOperator.approximate_inverse`), where the problem has `linearize` and such an inverse. Default True.

    Raises
    ------
    TypeError, ValueError
        If a setting is not usable.

    Notes
    -----
    With g(x) = x - damping M(x) F(x), where M is that inverse or I, the next point is ``g(x) - sum_j c_j dg_j``, with
    ``||F(x) - sum_j c_j dF_j||_2`` smallest; dF_j and dg_j are the changes of F and g in the last steps. Every system
    has its own mixture. On linear problems this is GMRES [2]_, as long as the memory reaches back to the start.

    Meant for problems whose residual is x - G(x) (``Problem.fixed_point``): F is taken for a step of x, whatever its
    units are.

    A system forgets its past in two cases. A step after which F is not finite, or has grown beyond `growth`, is not
    taken: the system goes back to its best point, and on without M and with half the damping, which recovers step by
    step; after ten such steps in a row it has failed (STAGNATED, or NONFINITE). And where the mixed residuals are less
    than half of F on the average over 5 steps, but F itself does not fall by a tenth in them, the past misleads: on a
    linear problem only a map that doubles residuals could do that. A system that fails ends at the best of its points.
    At most 500 steps unless the stopping rule says otherwise.

    M is built at the start and after 8, 32 and 128 steps. Measured on implicit GRUs, this saves as many residuals as
    building it at each point.

    Cost per step: 1 residual, 2 passes over the memory, and a small problem on the host. Holds 2 vectors per system for
    each step in the memory, and about eight others.

    References
    ----------
    .. [1] D. G. Anderson, "Iterative procedures for nonlinear integral equations", J. ACM 12 (1965) 547-560.
    .. [2] H. F. Walker and P. Ni, "Anderson acceleration for fixed-point iterations", SIAM J. Numer. Anal. 49 (2011)
           1715-1735.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> A = np.array([[0.5, 0.4], [-0.4, 0.5]])
    >>> problem = ims.Problem(lambda x: x - np.tanh(A @ x + 1), fixed_point=True)
    >>> result = ims.root(problem, np.zeros(2), method=ims.Anderson())
    >>> result.x.round(6), result.counts.residuals
    (array([0.944425, 0.763197]), 7)
    """

    memory: int = 60
    damping: float = 1.0
    regularization: float = 1e-10
    growth: float = 10.0
    patience: int = 50
    preconditioned: bool = True

    eliminates = True

    def __post_init__(self) -> None:
        """Check the settings."""
        check_limit("Anderson", "memory", self.memory)
        check_damping("Anderson", self.damping)
        check_tolerance("Anderson", "regularization", self.regularization)
        check_growth("Anderson", self.growth)
        check_limit("Anderson", "patience", self.patience, least=1)
        check_flag("Anderson", "preconditioned", self.preconditioned)

    def solve(self, evaluator: Evaluator, x0: Array, stop: NonlinearStop, monitor: Monitor = silent) -> Solution:
        """Solve on arrays (B, N): the loop behind `root`."""
        return self.from_start(evaluator, Solution.at(x0), stop, monitor)

    def from_start(self, evaluator: Evaluator, start: Solution, stop: NonlinearStop, monitor: Monitor) -> Solution:
        """Solve from a start of whose first norm something may be known."""
        return _AndersonLoop(self, evaluator, start, stop, monitor).run()


class _AndersonLoop(FixedPointLoop):
    """A loop that mixes the last points."""

    PER_SYSTEM = (*FixedPointLoop.PER_SYSTEM, "mark", "idle", "promised")

    def __init__(self, method: Anderson, *arguments: Any) -> None:
        super().__init__(method, *arguments)
        xp, (systems, N) = array_namespace(self.x), self.x.shape
        least = max(method.regularization, ROUNDING * eps(xp, self.x.dtype))
        within = max(FIRST_COLUMNS, LARGEST // max(1, 2 * systems * N))
        self.history = History(self.F, self.norms, min(method.memory, N, within), least)
        self.image_step = self._image_step(self.F)
        self.foreseen: tuple[Array, HostArray] | None = None
        self.mark = self.norms  # that ||F|| has to fall below
        self.idle, self.promised = np.zeros(systems, dtype=int), np.zeros(systems)  # steps since it did, and their sum

    def _is_due(self) -> HostArray:
        return (self.age[:, None] + 1 == RENEWALS).any(axis=1)

    def _trial(self) -> tuple[Array, Array]:
        chosen, rest = self.history.chosen(self.norms)
        self.promised = self.promised + rest
        image = scaled(self.damping, self.image_step)
        if chosen is None:
            return -image, self.x - image
        if self.history.places is None:
            return self.history.work.mixed(self.x, image, *chosen)
        step = -image - self.history.combined(*chosen)
        return step, self.x + step

    def _measured(self, F: Array, step: Array, x: Array, *, may_foresee: bool) -> Norms:
        """Norms; on a device with what the history will need of this step, so that nothing is read twice."""
        history, self.foreseen = self.history, None
        if isinstance(F, np.ndarray) or not (may_foresee and history.is_plain and (self.damping == 1.0).all()):
            return super()._measured(F, step, x, may_foresee=may_foresee)
        image = self._image_step(F)
        numbers = to_host(history.foresee(F, self.F, step, image, self.image_step, x))
        self.foreseen = image, numbers[:, :-6]
        return Norms(F, step, x, numbers=np.real(numbers[:, [-6, -3, -5, -2, -4, -1]]).astype(np.float64))

    def _learn(self, step: Array, old_F: Array, lost: HostArray) -> None:
        old, forgets = self.image_step, lost | self._is_misled(lost)
        if self.foreseen is None:
            self.image_step = self._image_step(self.F)
            dg = step - scaled(self.damping, self.image_step - old)
            self.history.append(self.F - old_F, dg, self.F, forgets)
            return
        image, numbers = self.foreseen
        self.image_step = self._image_step(self.F) if lost.any() else image
        self.history.record(numbers, forgets)

    def _is_misled(self, lost: HostArray) -> HostArray:
        """Systems in which ||F|| does not follow what the mixtures promise."""
        fallen = lost | (self.norms < FALLEN * self.mark)
        self.idle = np.where(fallen, 0, self.idle + 1)
        self.promised = np.where(fallen, 0.0, self.promised)
        misled = (self.idle >= IDLE) & (self.promised < PROMISED * self.idle)
        self.mark = np.where(fallen | misled, self.norms, self.mark)
        self.idle, self.promised = np.where(misled, 0, self.idle), np.where(misled, 0.0, self.promised)
        return misled

    def _keep(self, keep: Indices) -> None:
        super()._keep(keep)
        self.history.take(keep)
        self.image_step = gather(self.image_step, keep)

    def _join(self, other: Any) -> None:
        super()._join(other)
        self.history.join(other.history)
        self.image_step = array_namespace(self.x).concat([self.image_step, other.image_step], axis=0)
