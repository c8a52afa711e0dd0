"""The common part of fixed-point iterations: one residual per step, rejected steps, inverses of J; and Picard's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from implicitsolve._arrays.host import from_host, gather, scatter
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.globalize._line_search import SearchResult
from implicitsolve.kernels._norms import Norms
from implicitsolve.nonlinear._convergence import CONVERGED, NONFINITE, RUNNING, STAGNATED
from implicitsolve.nonlinear._loop import IterationLoop
from implicitsolve.nonlinear._state import FixedPointMethod, LoopState, Solution, SolveContext
from implicitsolve.operators import LinearOperator
from implicitsolve.precondition._lagged import BatchedInverse
from implicitsolve.stopping import check_positive

REJECTIONS = 10  # in a row, each with half the damping of the one before, after which a system has failed


@dataclass
class FixedPointState(LoopState):
    """The systems that iterate, their damping, and their best points."""

    damping: HostArray
    rejections: HostArray  # steps in a row that were rejected
    age: HostArray  # steps since the start, or the last rejected one
    best_norms: HostArray  # ||F||_2 at the best point
    is_trusted: HostArray  # whether M is used
    inverse: BatchedInverse  # M


State = TypeVar("State", bound=FixedPointState)


class FixedPointLoop(IterationLoop[State], Generic[State]):
    """Steps ``-damping M F(x)`` with a method's corrections; each costs one residual.

    M is the approximate inverse that J offers, rebuilt when the method requires it, until a step is rejected; else I.
    """

    STEPS = 500  # limit where the caller set none
    LIMITED = False  # but by their steps, of one evaluation each
    RUNS_AWAY = False
    NEW_BEST = 0.5  # steps are cheap, and rarely each better than the one before
    ADMITS: ClassVar[float | None] = 0.05  # and so at least 0.95 of the slots are in use while systems wait
    FOLDS = True

    def __init__(self, method: Any, context: SolveContext, solution: Solution, rows: Indices | None = None) -> None:
        self.preconditioned = method.preconditioned and context.evaluator.offers_inverse
        self.newest: LinearOperator | None = None
        super().__init__(method, context, solution, rows)
        self.patience = method.patience

    # What a method adds

    def _with_history(self, state: FixedPointState) -> State:
        """The record of systems that start, with the method's history of their steps."""
        raise NotImplementedError

    def _proposal(self) -> Array:
        raise NotImplementedError

    def _trial(self) -> tuple[Array, Array]:
        """The step, and the point that it leads to."""
        step = self._proposal()
        return step, self.state.x + step

    def _measure(self, F: Array, step: Array, x: Array, *, keeps_inverse: bool) -> Norms:
        """Norms at the end of a step; where M is kept, a method may already store the differences."""
        return Norms(F, step, x)

    def _learn(self, step: Array, old_F: Array, rejected: HostArray) -> None:
        """Update the history by the step that was tried, from where F was `old_F`; drop it where it was rejected."""
        raise NotImplementedError

    def _is_due(self) -> HostArray:
        """Systems whose M is rebuilt at the next point."""
        return np.zeros(self.state.age.size, dtype=bool)

    # Steps

    def _first_residual(self, x: Array) -> tuple[Array, LinearOperator | None]:
        return self._evaluate(x, x, self.preconditioned), None

    def _take_known(self, F: Array, J: LinearOperator | None) -> tuple[Array, LinearOperator | None]:
        self.newest = J
        return F, None

    @property
    def _entering_need_jacobian(self) -> bool:
        return self.preconditioned

    def _extend(self, state: LoopState, J: LinearOperator | None) -> State:
        size = state.rows.size
        extended = FixedPointState(
            **vars(state),
            damping=np.full(size, float(self.method.damping)),
            rejections=np.zeros(size, dtype=int),
            age=np.zeros(size, dtype=int),
            best_norms=state.norms,
            is_trusted=np.ones(size, dtype=bool),
            inverse=BatchedInverse(),
        )
        self._renew(extended, extended.is_trusted)
        return self._with_history(extended)

    def _evaluate(self, x: Array, inside: Array, is_due: bool) -> Array:
        """F(x), and M there if it is due."""
        F, J = self.evaluator.attempt(x, inside, jacobian=is_due)
        self.newest = J if is_due else self.newest
        return F

    def _image_step(self, state: FixedPointState, F: Array) -> Array:
        with np.errstate(all="ignore"):
            return state.inverse.matvec(F) if state.inverse.parts else F

    def _step(self, is_last: HostArray) -> dict[str, HostArray]:
        state = self.state
        due = self._is_due() & state.is_trusted & self.preconditioned
        with np.errstate(all="ignore"):
            step, x = self._trial()
        F, old_F = self._evaluate(x, state.x, bool(due.any())), state.F
        with np.errstate(all="ignore"):
            measured = self._measure(F, step, x, keeps_inverse=not due.any())
        norms, length = measured.two(0), state.damping
        with np.errstate(over="ignore"):
            rejected = ~(norms <= self.method.growth_limit * state.best_norms)
        if self._is_good(norms, is_last) and not (due.any() or rejected.any()):
            self._take_good_step(measured, norms)
            state.rejections[:] = 0
            if not (state.status == CONVERGED).all():
                self._remember(step, old_F, rejected)
            return {"step_length": length}
        finite = np.isfinite(norms)
        rejected |= ~finite
        length = np.where(rejected, 0.0, length)
        found = SearchResult(x, F, norms, length, ~rejected, finite, None, measured)
        self._return_to_best(found, rejected)
        moved, is_still = self._accept(found, step)
        state.rejections = np.where(rejected, state.rejections + 1, 0)
        self._update_status(found.accepted, moved, is_still, is_last, self._failures(finite))
        if not (state.status == CONVERGED).all():
            self._renew(state, due & ~rejected)
            self._remember(step, old_F, rejected)
        return {"step_length": found.length}

    def _remember(self, step: Array, old_F: Array, rejected: HostArray) -> None:
        """Count a step, recover from rejected ones, and update the history and the best points."""
        state = self.state
        state.age = np.where(rejected, 0, state.age + 1)
        whole = self.method.damping
        state.damping = np.where(rejected, 0.5 * state.damping, np.minimum(2 * state.damping / whole, 1.0) * whole)
        with np.errstate(all="ignore"):
            self._learn(step, old_F, rejected)
        state.best_norms = np.where(self._note_best(), state.norms, state.best_norms)

    def _return_to_best(self, found: SearchResult, rejected: HostArray) -> None:
        """Replace rejected points by the best ones, and continue without M, which may be the cause."""
        rows = np.flatnonzero(rejected)
        if rows.size:
            state = self.state
            scatter(found.x, rows, gather(state.best_x, rows))
            scatter(found.F, rows, gather(state.best_F, rows))
            found.norms[rows], found.measured = state.best_norms[rows], None
            state.is_trusted[rows] = False
            state.inverse.drop(rows)

    def _renew(self, state: FixedPointState, due: HostArray) -> None:
        """Take over the newest M for some systems."""
        J, rows = self.newest, np.flatnonzero(due)
        self.newest = None
        if J is None or not rows.size:
            return
        M = J.approximate_inverse()
        self.preconditioned = M is not None
        if M is not None:
            state.inverse.replace(rows, M if rows.size == due.size else M.take(rows))

    def _failures(self, finite: HostArray) -> HostArray:
        """Status of systems whose steps were rejected too often."""
        failed = np.full(finite.size, RUNNING)
        is_over = self.state.rejections >= REJECTIONS
        failed[is_over] = np.where(finite, STAGNATED, NONFINITE)[is_over]
        return failed


def scale_rows(damping: HostArray, step: Array) -> Array:
    return step if (damping == 1.0).all() else from_host(damping, step)[:, None] * step


@dataclass(frozen=True, kw_only=True)
class Picard(FixedPointMethod):
    """Fixed-point iteration ``x <- x - damping F(x)``: for F(x) = x - G(x) without damping it is ``x <- G(x)``.

    It converges, linearly, from near a solution where I - damping J has its eigenvalues inside the unit circle.

    Parameters
    ----------
    damping : float, optional
        Positive factor of the step. Default 1.

    Raises
    ------
    TypeError, ValueError
        If `damping` is not a positive finite number.

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
    >>> problem = ims.Problem(lambda x: x - np.cos(x), fixed_point=True)
    >>> float(ims.root(problem, 1.0, method=ims.Picard()).x.round(6))
    0.739085
    """

    damping: float = 1.0

    patience = 50
    preconditioned = False

    def __post_init__(self) -> None:
        check_positive("Picard", "damping", self.damping)

    @property
    def growth_limit(self) -> float:
        """No iterate is rejected for its residual."""
        return np.inf

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        return _PicardLoop(self, context, start, rows).run()


class _PicardLoop(FixedPointLoop[FixedPointState]):
    """Steps along -F."""

    NEW_BEST = 0.99  # a slow contraction is one

    def _with_history(self, state: FixedPointState) -> FixedPointState:
        return state

    def _proposal(self) -> Array:
        return -scale_rows(self.state.damping, self.state.F)

    def _learn(self, step: Array, old_F: Array, rejected: HostArray) -> None:
        """Without a history there is nothing to update."""
