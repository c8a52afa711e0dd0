"""Anderson's acceleration of fixed-point iterations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from implicitsolve._arrays.host import to_host
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.errors import ChecksKeywords
from implicitsolve.kernels._norms import Norms
from implicitsolve.nonlinear._fixed_point import FixedPointLoop, FixedPointState, scale_rows
from implicitsolve.nonlinear._history import RENEWALS, History, has_fallen, is_misled, room
from implicitsolve.nonlinear._one_anderson import OneAnderson
from implicitsolve.nonlinear._state import FixedPointMethod, Solution, SolveContext
from implicitsolve.stopping import check_flag, check_limit, check_number, check_positive, check_tolerance


@dataclass(frozen=True, kw_only=True)
class Anderson(ChecksKeywords, FixedPointMethod):
    """Anderson's method: each step mixes the last points so that their mixed residual is smallest [1]_, [2]_.

    Parameters
    ----------
    memory : int, optional
        Largest number of earlier steps to mix, as many as fit into 336 MB, but at least 21; 0 for none, the plain
        iteration. Default 60: easy problems converge long before, and on hard ones every vector saves residuals.
    damping : float, optional
        Positive factor of the residual in the mixed step (often called beta). Default 1.
    regularization : float, optional
        Steps whose change of F lies in the span of the newer ones', but for this part of its squared length, are left
        out of the mixture. Default 1e-10, and never less than 100 times the unit roundoff.
    growth_limit : float, optional
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
    has its own mixture. On linear problems this is GMRES [2]_, as long as the memory reaches back to the start. While
    every step has reduced ||F|| to 0.15 of what it was or less, the next one is not mixed, and the memory begins later:
    on layers that contract so fast, mixing saved at most one residual, and took as much time.

    Meant for problems whose residual is x - G(x) (``Problem.fixed_point``): F is taken for a step of x, whatever its
    units are.

    The history of a system is discarded in two cases. A step after which F is not finite, or has grown beyond
    `growth_limit`, is rejected: the iteration resumes from the best point, without M and with half the damping, which
    recovers step by step; after ten rejections in a row the system has failed (STAGNATED, or NONFINITE). And where the
    mixed residuals average less than half of F over 5 steps, in which F itself does not fall by a tenth, the history
    misleads: on a linear problem only a map that doubles residuals could do that. A system that fails ends at the best
    of its points. At most 500 steps unless `max_iterations` is set.

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
    >>> A = np.array([[0.5, 0.4], [-0.4, 0.5]])
    >>> problem = ims.Problem(lambda x: x - np.tanh(A @ x + 1), fixed_point=True)
    >>> result = ims.root(problem, np.zeros(2), method=ims.Anderson())
    >>> result.x.round(6), result.counts.residuals
    (array([0.944425, 0.763197]), 7)
    """

    memory: int = 60
    damping: float = 1.0
    regularization: float = 1e-10
    growth_limit: float = 10.0
    patience: int = 50
    preconditioned: bool = True

    # Of ||F|| in every step so far, up to which steps are not mixed. Of 180 solves of implicit GRUs and LSTMs 25 took a
    # residual less than with 0.25, and one took one more; with 0 it was 31, for vector work in every step.
    contraction: ClassVar[float] = 0.15

    def __post_init__(self) -> None:
        check_limit("Anderson", "memory", self.memory)
        check_positive("Anderson", "damping", self.damping)
        check_tolerance("Anderson", "regularization", self.regularization)
        check_number("Anderson", "growth_limit", self.growth_limit, least=1)
        check_limit("Anderson", "patience", self.patience, least=1)
        check_flag("Anderson", "preconditioned", self.preconditioned)

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        if OneAnderson.applies(self, context, start.x):
            return OneAnderson(self, context, start, is_retry=rows is not None).run()
        return AndersonLoop(self, context, start, rows).run()


@dataclass
class _AndersonState(FixedPointState):
    """The systems that iterate, and their last points."""

    history: History
    image_step: Array  # M F
    mark: HostArray  # what ||F|| has to fall below
    idle: HostArray  # steps since it did
    promised: HostArray  # and the sum of the relative residuals that the mixtures promised in them
    last_norms: HostArray  # ||F|| one step before
    is_plain: HostArray  # whether ||F|| has fallen so fast in every step that none was mixed

    def is_misled(self, rejected: HostArray) -> HostArray:
        """Systems in which ||F|| does not fall as the mixtures predict."""
        fallen = rejected | has_fallen(self.norms, self.mark)
        self.idle = np.where(fallen, 0, self.idle + 1)
        self.promised = np.where(fallen, 0.0, self.promised)
        misled = is_misled(self.idle, self.promised)
        self.mark = np.where(fallen | misled, self.norms, self.mark)
        self.idle, self.promised = np.where(misled, 0, self.idle), np.where(misled, 0.0, self.promised)
        return misled


class AndersonLoop(FixedPointLoop[_AndersonState]):
    """Steps to the mixture of the last points."""

    stored: tuple[Array, HostArray] | None = None  # M F at a trial point, and inner products of the step there

    def _with_history(self, state: FixedPointState) -> _AndersonState:
        systems = state.rows.size
        return _AndersonState(
            **vars(state),
            history=History(state.F, state.norms, *room(self.method, state.x.shape, self.unit)),
            image_step=self._image_step(state, state.F),
            mark=state.norms,
            idle=np.zeros(systems, dtype=int),
            promised=np.zeros(systems),
            last_norms=state.norms,
            is_plain=np.ones(systems, dtype=bool),
        )

    def _is_due(self) -> HostArray:
        return (self.state.age[:, None] + 1 == RENEWALS).any(axis=1)

    def _trial(self) -> tuple[Array, Array]:
        state = self.state
        chosen, rest = state.history.chosen(state.norms)
        state.promised = state.promised + rest
        image = scale_rows(state.damping, state.image_step)
        if chosen is None:
            return -image, state.x - image
        return state.history.work.mix(state.x, image, *chosen)

    def _measure(self, F: Array, step: Array, x: Array, *, keeps_inverse: bool) -> Norms:
        """Norms; on a device with what the history will need of this step, so that nothing is read twice."""
        if isinstance(F, np.ndarray):
            return Norms(F, step, x)
        state, self.stored = self.state, None
        history = state.history
        is_plain = history.memory and not history.exponent.any()  # F is stored unscaled
        if not (keeps_inverse and is_plain and (state.damping == 1.0).all() and not state.is_plain.all()):
            return Norms(F, step, x)
        image = self._image_step(state, F)
        numbers = to_host(state.history.store(F, state.F, step, image, state.image_step, x))
        self.stored = image, numbers[:, :-6]
        return Norms(F, step, x, numbers=np.real(numbers[:, [-6, -3, -5, -2, -4, -1]]).astype(np.float64))

    def _learn(self, step: Array, old_F: Array, rejected: HostArray) -> None:
        state = self.state
        state.is_plain &= state.norms <= self.method.contraction * state.last_norms
        state.last_norms = state.norms
        if state.is_plain.all():
            state.mark, state.image_step = state.norms, self._image_step(state, state.F)
            return
        old, drops = state.image_step, rejected | state.is_misled(rejected) | state.is_plain
        if self.stored is None:
            state.image_step = self._image_step(state, state.F)
            dg = step - scale_rows(state.damping, state.image_step - old)
            state.history.append(state.F - old_F, dg, state.F, drops)
            return
        image, numbers = self.stored
        state.image_step = self._image_step(state, state.F) if rejected.any() else image
        state.history.record(numbers, drops)
