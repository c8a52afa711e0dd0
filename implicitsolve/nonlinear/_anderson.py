"""Anderson's acceleration of fixed-point iterations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from implicitsolve._arrays.host import to_host
from implicitsolve._arrays.namespace import array_namespace, eps
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.globalize._rules import has_diverged, has_halved, is_still
from implicitsolve.kernels._norms import Norms
from implicitsolve.linearize._evaluator import NewSystems
from implicitsolve.nonlinear._convergence import CONVERGED, DIVERGED, ITERATION_LIMIT, NONFINITE, STAGNATED
from implicitsolve.nonlinear._fixed_point import REJECTIONS, FixedPointLoop, FixedPointState, scaled
from implicitsolve.nonlinear._history import FIRST_COLUMNS, History, OneHistory
from implicitsolve.nonlinear._one_system import OneSystem
from implicitsolve.nonlinear._state import FixedPointMethod, Solution, SolveContext
from implicitsolve.operators import LinearOperator
from implicitsolve.stopping import check_flag, check_limit, check_number, check_positive, check_tolerance

RENEWALS = np.asarray([8, 32, 128])  # ages at which M is built anew, and counted from when a system goes back
ROUNDING = 100  # units of roundoff below which a pivot of the small problem is noise
LARGEST = 2**27  # numbers that the memory of all systems may take: 1 GiB in float64
IDLE = 5  # steps in which ||F|| must fall by a tenth, if the mixtures predict that each halves it
FALLEN, PREDICTED = 0.9, 0.5


@dataclass(frozen=True, kw_only=True)
class Anderson(FixedPointMethod):
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
        if _OneSystemLoop.applies(self, context, start.x):
            return _OneSystemLoop(self, context, start, is_retry=rows is not None).run()
        return _AndersonLoop(self, context, start, rows).run()


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
        fallen = rejected | (self.norms < FALLEN * self.mark)
        self.idle = np.where(fallen, 0, self.idle + 1)
        self.promised = np.where(fallen, 0.0, self.promised)
        misled = (self.idle >= IDLE) & (self.promised < PREDICTED * self.idle)
        self.mark = np.where(fallen | misled, self.norms, self.mark)
        self.idle, self.promised = np.where(misled, 0, self.idle), np.where(misled, 0.0, self.promised)
        return misled


class _AndersonLoop(FixedPointLoop[_AndersonState]):
    """Steps to the mixture of the last points."""

    stored: tuple[Array, HostArray] | None = None  # M F at a trial point, and inner products of the step there

    def _with_history(self, state: FixedPointState) -> _AndersonState:
        method, (systems, N) = self.method, state.x.shape
        least = max(method.regularization, ROUNDING * eps(array_namespace(state.x), state.x.dtype))
        within = max(FIRST_COLUMNS, LARGEST // max(1, 2 * systems * N))
        return _AndersonState(
            **vars(state),
            history=History(state.F, state.norms, min(method.memory, N, within), least),
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
        image = scaled(state.damping, state.image_step)
        if chosen is None:
            return -image, state.x - image
        if state.history.places is None:
            return state.history.work.mixed(state.x, image, *chosen)
        step = -image - state.history.combined(*chosen)
        return step, state.x + step

    def _measured(self, F: Array, step: Array, x: Array, *, keeps_inverse: bool) -> Norms:
        """Norms; on a device with what the history will need of this step, so that nothing is read twice."""
        if isinstance(F, np.ndarray):
            return Norms(F, step, x)
        state, self.stored = self.state, None
        history = state.history
        is_plain = history.memory and history.places is None and not history.exponent.any()  # F is stored unscaled
        if not (keeps_inverse and is_plain and (state.damping == 1.0).all() and not state.is_plain.all()):
            return Norms(F, step, x)
        image = self._image_step(state, F)
        numbers = to_host(state.history.store(F, state.F, step, image, state.image_step, x))
        self.stored = image, numbers[:, :-6]
        return Norms(F, step, x, numbers=np.real(numbers[:, [-6, -3, -5, -2, -4, -1]]).astype(np.float64))

    def _join(self, entering: NewSystems, age: int) -> None:
        super()._join(entering, age)
        places = self.state.history.places
        if places is not None and places.size == self.state.history.dF.shape[0] > 0:  # in its order it needs none
            self.state.keep(np.argsort(places))
            self.evaluator = self.whole.take(self.state.rows, self.solution.x)

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
            dg = step - scaled(state.damping, state.image_step - old)
            state.history.append(state.F - old_F, dg, state.F, drops)
            return
        image, numbers = self.stored
        state.image_step = self._image_step(state, state.F) if rejected.any() else image
        state.history.record(numbers, drops)


class _OneSystemLoop(OneSystem):
    """The steps of `_AndersonLoop`, and of `_BriefLoop`, for one system in vectors and plain numbers."""

    NEW_BEST, STEPS, LIMITED, RUNS_AWAY = FixedPointLoop.NEW_BEST, FixedPointLoop.STEPS, False, False

    def __init__(self, method: Anderson, context: SolveContext, solution: Solution, *, is_retry: bool) -> None:
        self.method, self.is_due = method, method.preconditioned and context.evaluator.problem.linearize is not None
        self.newest: LinearOperator | None = None  # J, from which M is to be built
        self.M: LinearOperator | None = None
        self.is_trusted = self.is_due
        super().__init__(context, solution, is_retry=is_retry)
        self.patience, self.damping = method.patience, float(method.damping)
        self.most_steps: float | None = getattr(method, "most_steps", None)
        self.age = self.rejections = self.idle = 0
        self.best_norm = self.mark = self.last_norm = self.norm
        self.promised, self.is_plain = 0.0, True
        self._renew()
        self.image = self._image(self.F)
        least = max(method.regularization, ROUNDING * self.unit)
        within = max(FIRST_COLUMNS, LARGEST // max(1, 2 * self.x.size))
        self.history = OneHistory(self.F, self.norm, min(method.memory, self.x.size, within), least)

    @staticmethod
    def applies(method: Anderson, context: SolveContext, x0: Array) -> bool:
        """Whether the system is alone and real, and need not agree with a batch to the last bit."""
        may_differ = not context.evaluator.batch_shape or isinstance(method, BriefAnderson)
        return may_differ and type(x0) is np.ndarray and x0.dtype.char in "fd" and OneSystem.suits(context)

    def _evaluated(self, x: HostArray) -> HostArray:
        if not self.is_due:
            return super()._evaluated(x)
        F, self.newest = self.evaluator.trial(x[None])
        return F[0]

    def _renew(self) -> None:
        """Build M at the newest point, if J was evaluated there."""
        if self.is_due and self.newest is not None:
            self.M = self.newest.approximate_inverse()
            self.is_trusted = self.M is not None
        self.newest = None

    def _image(self, F: HostArray) -> HostArray:
        """M F."""
        with np.errstate(all="ignore"):
            return F if self.M is None else self.M.matvec(F[None])[0]

    def _step(self) -> dict[str, HostArray]:
        previous, old_F, length = self.norm, self.F, self.damping
        self.is_due = self.is_trusted and self.age + 1 in RENEWALS
        with np.errstate(all="ignore"):
            step, rest = -length * self.image, 1.0
            if self.history.order:
                mixture, rest = self.history.mixture(previous)
                step -= mixture
            x = self.x + step
            self.promised += rest
            F = self._evaluated(x) if np.isfinite(x).all() else np.full_like(x, np.nan)
            norm = self._norm(F)
        rejected, is_finite = not norm <= self.method.growth_limit * self.best_norm, math.isfinite(norm)
        moved = step
        if rejected:
            x, F, norm, moved = self.best_x, self.best_F, self.best_norm, self.best_x - self.x
            self.is_trusted, self.M = False, None
        self.rejections = self.rejections + 1 if rejected else 0
        self._accept(x, F, norm)
        self.solution.iterations[0] -= rejected  # which is no iteration
        self._end(moved, previous, rejected, is_finite)
        if self.status != CONVERGED:
            if not rejected:
                self._renew()
            self.age = 0 if rejected else self.age + 1
            whole = self.method.damping
            self.damping = 0.5 * length if rejected else min(2 * length / whole, 1.0) * whole
            with np.errstate(all="ignore"):
                self._learn(step, old_F, rejected)
            if float(self.measure[0]) < self.best_measure:
                self.best_norm = norm
        return {"step_length": np.asarray([0.0 if rejected else length])}

    def _end(self, moved: HostArray, previous: float, rejected: bool, is_finite: bool) -> None:
        """Set the status; see `IterationLoop`."""
        if self.iteration >= self.last:
            self.status = ITERATION_LIMIT
        if not (rejected or has_halved(self.norm, previous)):
            has_stopped = is_still(self._largest(moved), self._largest(self.x), self.unit)
            self.status = STAGNATED if has_stopped else self.status
        if has_diverged(self.norm, self.start_norm):
            self.status = DIVERGED
        if self.rejections >= REJECTIONS:
            self.status = STAGNATED if is_finite else NONFINITE
        if self.most_steps is not None and is_finite:
            gained, needed = self.start_norm / self.norm, float(self.solution.first_norm[0] / self.target[0])
            is_slow = math.log(gained) * (1 + self.most_steps) < math.log(needed)
            self.status = ITERATION_LIMIT if is_slow else self.status
        self.most_steps = None
        self._mark_converged(moved)

    def _learn(self, step: HostArray, old_F: HostArray, rejected: bool) -> None:
        """Add the step to the history, or drop that where it misleads."""
        self.is_plain = self.is_plain and self.norm <= self.method.contraction * self.last_norm
        self.last_norm, old = self.norm, self.image
        self.image = self._image(self.F)
        if self.is_plain:
            self.mark = self.norm
        elif self._is_misled(rejected) or rejected:
            self.history.clear()
        elif self.history.memory:
            self.history.append(self.F - old_F, step - self.damping * (self.image - old), self.F)

    def _is_misled(self, rejected: bool) -> bool:
        """Whether ||F|| does not fall as the mixtures predict."""
        if rejected or self.norm < FALLEN * self.mark:
            self.mark, self.idle, self.promised = self.norm, 0, 0.0
            return False
        self.idle += 1
        if self.idle < IDLE or self.promised >= PREDICTED * self.idle:
            return False
        self.mark, self.idle, self.promised = self.norm, 0, 0.0
        return True


class _BriefLoop(_AndersonLoop):
    """Ends all systems, at ITERATION_LIMIT, if one would take too many further steps at the rate of the first."""

    is_first = True

    def _step(self, is_last: HostArray) -> dict[str, HostArray]:
        details = super()._step(is_last)
        self.is_first = False
        return details

    def _is_slow(self, norms: HostArray) -> bool:
        state = self.state
        with np.errstate(all="ignore"):
            gained = np.log(state.start_norms / norms)
            needed = np.log(self.solution.first_norm[state.rows] / state.target)
            return self.is_first and bool((gained * (1 + self.method.most_steps) < needed).any())

    def _is_good(self, norms: HostArray, is_last: HostArray) -> bool:
        return super()._is_good(norms, is_last) and not self._is_slow(norms)

    def _failed(self, finite: HostArray) -> HostArray:
        failed = super()._failed(finite)
        if self._is_slow(self.state.norms):
            failed[finite] = ITERATION_LIMIT
        return failed


@dataclass(frozen=True, kw_only=True)
class BriefAnderson(Anderson):
    """Anderson's method, which ends after a step if that predicts more than `most_steps` further ones for a system."""

    most_steps: float = math.inf

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        if _OneSystemLoop.applies(self, context, start.x):
            return _OneSystemLoop(self, context, start, is_retry=rows is not None).run()
        return _BriefLoop(self, context, start, rows).run()
