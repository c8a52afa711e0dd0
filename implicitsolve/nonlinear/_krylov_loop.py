"""The iteration of `NewtonKrylov` for batches: directions from a Krylov method."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from implicitsolve._arrays.namespace import array_namespace, eps, is_complex
from implicitsolve._typing import Array, HostArray
from implicitsolve.globalize._line_search import SearchResult, SearchStart
from implicitsolve.globalize._rules import forcing_term, has_halved, tighten
from implicitsolve.globalize._searches import kept_part
from implicitsolve.kernels._norms import norm2, norm_max
from implicitsolve.krylov import KrylovOutcome
from implicitsolve.krylov._descent import Descent
from implicitsolve.krylov._recycling import RecyclingGMRES
from implicitsolve.linearize._evaluator import Evaluator, NewSystems
from implicitsolve.nonlinear._accuracy import NEAR_ROOT, Lengths, next_length, plain_scales
from implicitsolve.nonlinear._convergence import LINE_SEARCH_FAILED, NONFINITE, RUNNING
from implicitsolve.nonlinear._direction import LARGEST_ETA, FixedMethod, LinearSolver, SinglePrecision
from implicitsolve.nonlinear._loop import IterationLoop
from implicitsolve.nonlinear._state import JacobianAssembler, LoopState, SolveMemory
from implicitsolve.operators import LinearOperator
from implicitsolve.operators._convert import maps_residual
from implicitsolve.precondition._lagged import LaggedInverse, lagged
from implicitsolve.status import Status

BOUNDED = 0.01  # largest eta next to bounds, where unknowns near one are smaller than the error of the others
MAX_KRYLOV = 60  # iterations of one linear solve where the caller set no limit


def jacobian_at(evaluator: Evaluator, jacobians: JacobianAssembler | None, x: Array, F: Array) -> LinearOperator:
    """J(x) for Krylov methods: assembled where that takes fewer evaluations than products."""
    if jacobians is not None and jacobians.saves_products:
        return jacobians.assemble(evaluator, x, F)
    return evaluator.jacobian(x, F)


@dataclass
class _NewtonState(LoopState):
    """The systems that iterate, and what their next directions depend on."""

    eta: HostArray  # forcing terms
    J: LinearOperator | None  # J(x), where it is known
    x_norms: HostArray | None  # ||x||, where it is known
    lagged: LaggedInverse | None  # preconditioners built from J
    linear: LinearSolver
    radius: HostArray  # of trust regions
    reference: Array  # the larger of x0 and the first step


class KrylovLoop(IterationLoop[_NewtonState]):
    """Steps whose directions come from a Krylov method."""

    ADMITS = 0.1  # so that at least 0.9 of the slots are in use while systems wait

    def _first_residual(self, x: Array) -> tuple[Array, LinearOperator | None]:
        return self.evaluator.trial(x)

    def _evaluate_entering(self, entering: NewSystems) -> None:
        if self.state.J is not None:  # linearized together, products with J take one call and not two
            self.state.J = entering.evaluate(self.state.x, jacobian=True)[1]

    def _extend(self, state: LoopState, J: LinearOperator | None) -> _NewtonState:
        method = self.method
        systems = state.rows.size
        linear: LinearSolver
        if method.krylov is None:
            linear = method.recycling(self.evaluator.size, systems, self.previous.space)
        else:
            linear = FixedMethod(method.krylov, method.max_krylov or MAX_KRYLOV)
        return _NewtonState(
            **vars(state),
            eta=method.forcing.first(systems),
            J=J,
            x_norms=None,
            lagged=None if method.preconditioner is None else lagged(method.preconditioner, self.whole, systems),
            linear=linear if method.krylov_dtype is None else SinglePrecision(linear),
            radius=np.full(systems, np.inf),
            reference=array_namespace(state.x).zeros_like(array_namespace(state.x).abs(state.x)),
        )

    def _prediction(self, moved: Array, steps: HostArray, before: HostArray, sizes: HostArray) -> Lengths:
        state = self.state
        gain = state.progress.gain if self.stop.judges_x else state.progress.last_gain
        corrections = next_length(gain * state.norms, steps)
        self._note_first(moved)
        is_near = corrections <= NEAR_ROOT * np.maximum(before, sizes)
        if not is_near.any():
            return corrections, steps, before, sizes
        lengths = norm_max(moved / plain_scales(state.x, state.x - moved, state.reference))
        ones = np.where(is_near, 1.0, sizes)
        corrections = np.where(is_near, corrections / steps * lengths, corrections)
        return corrections, np.where(is_near, lengths, steps), np.where(is_near, 1.0, before), ones

    def _keep(self, memory: SolveMemory) -> None:
        if isinstance(self.state.linear, RecyclingGMRES):
            memory.space = self.state.linear.space

    def _step(self, is_last: HostArray) -> dict[str, HostArray]:
        evaluator, state = self.evaluator, self.state
        if not evaluator.has_exact_products:
            evaluator.length.follow(evaluator.rows, norm2(state.x) if state.x_norms is None else state.x_norms)
        J = self._jacobian()
        eta = self._forcing()
        A = J.astype(evaluator.xp.float32) if self.method.krylov_dtype and not is_complex(state.F) else J
        M = self._preconditioner(A)
        limit = np.maximum(1, self.budget.rest(state.rows))
        if state.lagged is not None:
            limit = np.minimum(limit, state.lagged.limit)
        outcome = state.linear.direction(A, state.F, state.norms, eta, M, limit)
        state.since = state.since - state.linear.grew  # a larger space may solve what this one could not
        linear_residual = outcome.residual_norm / np.where(state.norms > 0, state.norms, 1.0)
        previous, direction = state.norms, outcome.x
        if evaluator.box is not None:
            direction = evaluator.box.shorten(state.x, direction, kept_part(previous, state.start_norms))
        descent = self._descent(J, direction, linear_residual) if self.method.line_search.needs_descent else None
        correction = state.linear.correction
        found = self.method.line_search.search(
            SearchStart(evaluator, state.x, state.F, previous, direction, linear_residual, correction, descent=descent)
        )
        size = norm_max(direction) if found.measured is None else found.measured.largest(1)
        found.accepted &= size > 0  # a zero step is none, though ||F|| has not grown
        self.solution.krylov_iterations[state.rows] += outcome.iterations
        self._take(found, direction, outcome, size, is_last)
        state.eta = self._next_eta(eta, previous, linear_residual, found)
        return {
            "step_length": np.where(found.accepted, found.length, 0.0),
            "forcing": eta,
            "linear_residual": linear_residual,
            "krylov_iterations": outcome.iterations,
            "linear_status": outcome.status,
        }

    def _take(
        self,
        found: SearchResult,
        direction: Array,
        outcome: KrylovOutcome,
        size: HostArray,
        is_last: HostArray,
    ) -> None:
        """Take over where the search along the directions ended, and update the status."""
        state = self.state
        if found.accepted.any():
            state.J = found.jacobian
        measured = None if isinstance(state.x, np.ndarray) else found.measured
        state.x_norms = None if measured is None else measured.two(2)
        if found.measured is not None and self.evaluator.box is None and self._is_good(found.norms, is_last):
            self._take_good_step(found.measured, found.norms)
        else:
            moved, has_stopped = self._accept(found, direction)
            failed = self._failures(found, outcome, size)
            lost = np.flatnonzero(~found.accepted)
            if lost.size:
                state.progress.direction[lost] = self._relative_length(direction, lost)
            self._update_status(found.accepted, moved, has_stopped, is_last, failed, outcome.x)
        if state.lagged is not None:
            state.lagged.count(outcome.iterations)

    def _descent(self, J: LinearOperator, direction: Array, linear_residual: HostArray) -> Descent:
        """Steepest descent: in the Krylov space, by J^H, or Newton's direction itself."""
        found: Descent | None = getattr(self.state.linear, "descent", None)
        if self.evaluator.box is not None:  # the direction is not Newton's
            found = None
        elif found is None and self.evaluator.problem.vjp is not None:
            found = Descent.of(J.matvec, J.rmatvec, self.state.F)
        found = Descent.along(direction, linear_residual) if found is None else found
        return replace(found, radius=self.state.radius)

    def _jacobian(self) -> LinearOperator:
        state = self.state
        if state.J is None:
            state.J = jacobian_at(self.evaluator, self.jacobians, state.x, state.F)
        return state.J if self.shift is None else self.shift(self.evaluator.rows, state.J, state.x, state.F)

    def _failures(self, found: SearchResult, outcome: KrylovOutcome, size: HostArray) -> HostArray:
        """Status of systems whose line search or linear solve failed for good."""
        state = self.state
        failed = np.full(state.rows.size, RUNNING)
        if found.accepted.all():  # of a step that is not zero
            return failed
        lost = ~found.accepted
        failed[lost] = np.where(found.finite, LINE_SEARCH_FAILED, NONFINITE)[lost]
        empty = ~(size > 0)
        if state.lagged is not None:
            old = state.lagged.expire(lost)
            failed[old] = RUNNING
            empty &= ~old
        growing = empty & state.linear.grew  # GMRES may make no progress before its last vector
        failed[growing] = RUNNING
        self.budget.refund(state.rows[growing], outcome.iterations[growing])  # of a solve that goes on
        empty &= ~growing
        failed[empty] = Status.LINEAR_SOLVE_FAILED
        failed[empty & (outcome.status == Status.BREAKDOWN)] = Status.SINGULAR
        failed[empty & (outcome.status == Status.NONFINITE)] = NONFINITE
        return failed

    def _forcing(self) -> HostArray:
        """Eta, but never more accuracy than the stopping rule needs."""
        state, largest = self.state, LARGEST_ETA if self.evaluator.box is None else BOUNDED
        with np.errstate(all="ignore"):
            return forcing_term(state.eta, state.measure, state.target, largest)

    def _next_eta(
        self, eta: HostArray, previous: HostArray, linear_residual: HostArray, found: SearchResult
    ) -> HostArray:
        """Eta of the forcing rule; ten times smaller where an accurate direction did not help."""
        norms = self.state.norms
        chosen = self.method.forcing.next(eta, norms, previous)
        slow = ~has_halved(norms, previous) & (linear_residual <= eta) | ~found.accepted
        if not slow.any():
            return chosen
        return np.where(slow, tighten(chosen, eta, eps(self.evaluator.xp, self.state.x.dtype)), chosen)

    def _preconditioner(self, J: LinearOperator) -> LinearOperator | None:
        """M for the running systems, on arrays (b, N)."""
        state, M = self.state, self.method.preconditioner
        if state.lagged is not None:
            return state.lagged.operator(self.evaluator, state.x, state.F)
        if M is None:
            return J.approximate_inverse() if self.method.may_transform else None
        if callable(M) and not (hasattr(M, "matvec") or maps_residual(M)):
            x, F = self._whole_batch()
            M = M(self.whole.unflatten(x), self.whole.unflatten(F))
        flat = self.whole.operator(M, "preconditioner")
        return flat if state.rows.size == self.solution.status.size else flat.take(state.rows)
