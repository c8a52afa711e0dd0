"""The iteration of `DenseNewton` for batches, bounds and equilibrated equations: steps in a trust region."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from implicitsolve._arrays.namespace import near_reciprocals
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.globalize import _rules as rules
from implicitsolve.globalize._line_search import SearchResult
from implicitsolve.globalize._searches import dogleg, kept_part, least_squares_step
from implicitsolve.kernels._norms import Norms, norm2, norm_max
from implicitsolve.krylov._descent import Descent
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._difference_product import Box
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.nonlinear._accuracy import MODEL, MOST_LEFT, Lengths, scales, units_of
from implicitsolve.nonlinear._broyden import MAX_ASSEMBLIES
from implicitsolve.nonlinear._certificate import MOST_UNKNOWNS
from implicitsolve.nonlinear._convergence import RUNNING, SINGULAR, STAGNATED
from implicitsolve.nonlinear._dense_matrices import central_differences, is_singular, solve_each, times
from implicitsolve.nonlinear._loop import IterationLoop
from implicitsolve.nonlinear._offered_jacobians import assembler_of
from implicitsolve.nonlinear._one_dense_system import DENSE_BEST, DENSE_PATIENCE, IDLE_STEPS
from implicitsolve.nonlinear._state import LoopState, Solution, SolveContext
from implicitsolve.operators import LinearOperator
from implicitsolve.structure import BlockBanded


@dataclass
class DenseState(LoopState):
    """The systems that iterate, their Jacobians and trust regions."""

    J: HostArray  # (b, N, N)
    radius: HostArray
    poor: HostArray  # steps in succession that were not as predicted
    idle: HostArray  # ... that reduced ||F|| by next to nothing
    is_stale: HostArray
    reference: HostArray  # the larger of x0 and the first step, (b, N)
    F_before: HostArray  # F before the last accepted step
    is_exact: HostArray  # whether J is that of the last assembly, but for the update of its own step


@dataclass
class Trial:
    """Steps of all systems, in the units of the equations in which they are judged."""

    newton: HostArray  # (b, N) Newton's steps, and their lengths
    newton_size: HostArray
    norms: HostArray  # ||F|| before the step
    step: HostArray  # the steps, and their lengths
    size: HostArray
    limited: Indices  # systems whose steps are not Newton's,
    model: HostArray | None = None  # ... and F + J s of these


class DenseLoop(IterationLoop[DenseState]):
    """Steps in a trust region."""

    NEW_BEST, PATIENCE = DENSE_BEST, DENSE_PATIENCE

    def __init__(self, method: Any, context: SolveContext, solution: Solution, rows: Indices | None = None) -> None:
        super().__init__(method, context, solution, rows)
        self.is_first, self.components = True, self.whole.size
        self.scale: HostArray | None = None
        dense = BlockBanded(0, 0, block_size=self.whole.size)
        self.assembler = Assembler(self.whole, self.unit**0.5, certifies=False, structure=dense)
        self.offered = assembler_of(context, self.evaluator, self.state.x)
        self.budget.note_assembly(self.whole.size if self.offered is None else self.offered.cost)

    def _extend(self, state: LoopState, J: LinearOperator | None) -> DenseState:
        b, N = state.x.shape
        counts = np.zeros((2, b), dtype=np.int8)
        return DenseState(
            **vars(state),
            J=np.zeros((b, N, N), dtype=state.x.dtype),
            radius=np.full(b, np.inf),
            poor=counts[0],
            idle=counts[1],
            is_stale=np.ones(b, dtype=bool),
            reference=np.zeros_like(state.x),
            F_before=state.F,
            is_exact=np.zeros(b, dtype=bool),
        )

    def _step(self, is_last: HostArray) -> dict[str, HostArray]:
        state, fresh = self.state, self.state.is_stale
        if fresh.any():
            self._assemble(np.flatnonzero(fresh))
        lost = self._confirm_again(self._confirm(np.flatnonzero(fresh & state.progress.doubted)))
        with np.errstate(all="ignore"):
            trial = self._trial()
        self.limited = trial.limited
        measured = self._evaluate(trial.step)
        found = trial_points(measured, measured.two(0))
        with np.errstate(all="ignore"):
            norms = found.norms if self.scale is None else norm2(found.F * self.scale)
            others = ~rules.has_halved(norms, trial.norms)  # Newton's steps that halve ||F|| pass all tests
            others[trial.limited] = True
            rows = np.flatnonzero(others)
            if self.scale is None:
                state.is_exact &= fresh
            reduction, ratio = self._test(trial, found, norms / trial.norms, rows)
            found.accepted[rows] = ratio >= rules.SUFFICIENT_DECREASE
            is_outdated = self._learn(trial, found, rows, ratio, norms)
            idle = self._idle(trial, rows, reduction, ratio)
            state.idle = _at_places(rows, idle, state.idle)
            failed = np.where(idle < IDLE_STEPS, RUNNING, STAGNATED)
            failed[np.isin(rows, lost) | ~(trial.size[rows] > 0) | ~np.isfinite(trial.size[rows])] = SINGULAR
            found.length = found.accepted.astype(np.float64)
            state.F_before = np.where(found.accepted[:, None], state.F, state.F_before)
            moved, is_still = self._accept(found.restore(state.x, state.F, state.norms), trial.step)
            failed = _at_places(rows, failed, state.status)
            lost = np.flatnonzero(fresh & ~found.accepted)
            lengths = self._relative_length(trial.newton, lost)
            state.progress.direction[lost] = np.where(is_singular(state.J[lost]), np.inf, lengths)
            self._update_status(found.accepted, moved, is_still, is_last, failed, trial.newton)
            state.is_stale = is_outdated
            state.is_stale |= state.progress.doubted
            state.poor[state.is_stale] = 0
            found.length *= np.fmin(trial.size / trial.newton_size, 1.0)
        return {"step_length": found.length, "factorized": fresh}

    def _prediction(self, moved: Array, steps: HostArray, before: HostArray, sizes: HostArray) -> Lengths:
        state = self.state
        self._note_first(moved)
        lengths, is_near = self._by_contraction(steps, before, sizes)
        rows = np.flatnonzero(is_near)
        if not rows.size:
            return lengths, steps, before, sizes
        with np.errstate(all="ignore"):
            J, x, s, F = state.J[rows], state.x[rows], moved[rows], state.F[rows]
            equations = near_reciprocals(np.abs(J).max(axis=2))
            theta = norm2(F * equations) / norm2(state.F_before[rows] * equations)
            reference, box = state.reference[rows], self.evaluator.box
            if box is not None:  # of amounts that cannot be negative, small ones have their own size
                lower = np.broadcast_to(box.lower, state.x.shape)[rows]
                reference = np.where(lower == 0, np.minimum(np.abs(x), reference), reference)
            scale = scales(units_of(J), x, x - s, reference)
            found = [norm_max(v / scale) for v in (solve_each(J, F), s, x - s)]
            found.append(np.ones(rows.size))  # of x, or of what it is relative to
            least = np.where(theta > MOST_LEFT, 1.0, MODEL)
            found[0] = np.maximum(found[0], least * theta * found[1])
            is_known = np.isfinite(found[0]) & ~is_singular(J)
            found[0] = np.where(is_known, found[0], np.inf)
            done = np.flatnonzero((found[0] <= self.xtol) & self.stop.judges_x)
            limited = np.isin(rows[done], self.limited) & ~state.is_exact[rows[done]]
            self._confirm(rows[done], state.x - moved, limited)
            found[0][state.progress.doubted[rows]] = np.inf
        lengths, steps, before, sizes = known = tuple(v.copy() for v in (lengths, steps, before, sizes))
        for whole, part in zip(known, found):
            whole[rows] = part
        return lengths, steps, before, sizes

    def _inverse(self, rows: Indices, v: Array) -> Array:
        return solve_each(self.state.J[rows], v)

    def _confirm_again(self, lost: Indices) -> Indices:
        """Which of these systems no J by longer differences confirms."""
        if lost.size and self.offered is None and not self.evaluator.has_exact_products:
            part, x, _ = self._part(lost)
            self.assembler.steps.lengthen(part.rows, x[:, None])
            self._assemble(lost)
            lost = self._confirm(lost)
        return lost

    def _trial(self) -> Trial:
        """Steps within the trust regions and the bounds."""
        state, box, is_equilibrated = self.state, self.evaluator.box, self.method.equilibrated
        J, F, norms, self.scale = state.J, state.F, state.norms, None
        if is_equilibrated:
            largest = np.abs(J).max(axis=2, keepdims=True)
            rows = 1 / np.where(largest > 0, largest, 1.0)  # no powers of 2: ||R F|| is compared from step to step
            self.scale = rows[:, :, 0]
            J, F = J * rows, F * self.scale
            norms = norm2(F)
        step = newton = -solve_each(J, F)
        size = norm2(newton)
        if self.is_first:
            state.radius = rules.first_radius(size, norm2(state.x), 1.0 if is_equilibrated else rules.FIRST_RADIUS)
            self.is_first = False
        limited = np.flatnonzero(~(size <= state.radius))
        if limited.size:
            step, part = newton.copy(), J[limited]
            descent = Descent.of(partial(times, part), partial(times, np.swapaxes(part, 1, 2)), F[limited])
            step[limited] = dogleg(descent.unit, descent.length, step[limited], state.radius[limited])[0]
        if box is not None:
            step, leaves = self._bound(box, step)
            limited = np.union1d(limited, leaves)
        trial = Trial(newton, size, norms, step, size if step is newton else norm2(step), limited)
        if limited.size:
            trial.model = F[limited] + times(J[limited], step[limited])
        return trial

    def _bound(self, box: Box, step: Array) -> tuple[Array, Indices]:
        """Steps within the bounds, and which of them would have left these."""
        state = self.state
        low, high = box.room(state.x, kept_part(state.norms, state.start_norms))
        leaves = np.flatnonzero(((step < low) | (step > high)).any(axis=1))
        if leaves.size:
            step = np.clip(step, low, high)
        for i in leaves[: 0 if self.method.projected else None]:
            within = np.maximum(low[i], -state.radius[i]), np.minimum(high[i], state.radius[i])
            step[i] = least_squares_step(state.J[i], state.F[i], *within, step[i])
        return step, leaves

    def _evaluate(self, step: Array) -> Norms:
        """F at the trial points, the steps and these points."""
        x = self.evaluator.move(self.state.x, step)
        return Norms(self.evaluator.attempt(x, self.state.x, jacobian=False)[0], step, x)

    def _test(self, trial: Trial, found: SearchResult, growth: HostArray, rows: Indices) -> tuple[HostArray, HostArray]:
        """Reduction of ||F||^2 by some systems' steps, and its ratio to the predicted one; -inf where F is not finite.

        A step that was not as predicted is judged by ||J^-1 F|| too; where that has become smaller, its reductions are
        taken over. The equilibrated equations have but one norm.
        """
        left = np.zeros(growth.shape)
        if trial.model is not None:
            left[trial.limited] = norm2(trial.model) / trial.norms[trial.limited]
        reduction = 1 - growth[rows] ** 2
        ratio = np.where(found.finite[rows], reduction / (1 - left[rows] ** 2), -np.inf)
        tested = np.flatnonzero(~(ratio >= rules.GOOD) & (growth[rows] < rules.MOST_GROWTH))
        if tested.size and self.scale is None:
            places = rows[tested]
            size, length = trial.newton_size[places], np.minimum(trial.size / trial.newton_size, 1.0)[places]
            natural = norm2(solve_each(self.state.J[places], found.F[places]))
            is_smaller = rules.has_natural_decrease(natural, size, length)
            tested, gains = tested[is_smaller], rules.natural_reduction(natural / size, length)
            for value, gain in zip((reduction, ratio), gains):
                value[tested] = np.maximum(value[tested], gain[is_smaller])
        return reduction, ratio

    def _idle(self, trial: Trial, rows: Indices, reduction: HostArray, ratio: HostArray) -> HostArray:
        """The number of successive steps of some systems that have hardly reduced ||F||.

        Of equilibrated equations, whose first steps are short, none is counted that was rejected, or went as predicted.
        """
        idle, is_idle = self.state.idle[rows], reduction < rules.IDLE
        if self.scale is None:
            return np.where(is_idle, idle + 1, 0)
        is_short = (ratio >= rules.GOOD) & (trial.size[rows] < trial.newton_size[rows])
        return np.where(is_idle & ~is_short, idle + (ratio >= rules.SUFFICIENT_DECREASE), 0)

    def _learn(self, trial: Trial, found: SearchResult, rows: Indices, ratio: HostArray, norms: HostArray) -> HostArray:
        """Change J and the trust regions by what came of the steps; return where J has to be assembled again."""
        state, radius = self.state, self.state.radius[rows]
        np.maximum(state.radius, 2 * trial.size, out=state.radius)
        state.radius[rows] = rules.next_radius(radius, trial.size[rows], ratio)
        if self.scale is not None:
            return found.accepted.copy()
        self._correct(trial, found)
        state.poor = _at_places(rows, np.where(ratio >= rules.GOOD, 0, state.poor[rows] + 1), state.poor)
        return (state.poor > 1) | (found.accepted & (norms > trial.norms))

    def _correct(self, trial: Trial, found: SearchResult) -> None:
        """Broyden's update of J by what the step changed, accepted or not."""
        step, mismatch = trial.step, found.F  # F(x + s) - F - J s, of which the last two cancel in Newton's step
        if trial.model is not None:
            mismatch = mismatch.copy()
            mismatch[trial.limited] -= trial.model
        if not found.finite.all():
            mismatch = np.where(found.finite[:, None], mismatch, 0.0)
        if step.shape[1] == 1:
            self.state.J[:, 0] += mismatch / step
            return
        length = trial.size.astype(step.dtype, copy=False)[:, None]  # its reciprocal may overflow
        self.state.J += (mismatch / length)[:, :, None] * (step / length)[:, None, :]

    def _assemble(self, rows: Indices) -> None:
        """Assemble J of some systems, and again where the lengths of differences were wrong guesses."""
        is_small = self.evaluator.size <= MOST_UNKNOWNS
        if self.method.equilibrated and is_small and not self.evaluator.has_exact_products:
            part, x, _ = self._part(rows)
            self.state.is_exact[rows] = True
            self.state.J[rows] = central_differences(part, x)
            return
        for _ in range(MAX_ASSEMBLIES):
            part, x, F = self._part(rows)
            J = self._jacobian(part, x, F)
            self.state.is_exact[rows] = True
            if rows.size == self.state.rows.size:
                self.state.J = J
            else:
                self.state.J[rows] = J
            if self.offered is not None or self.assembler.is_certain(part.rows):
                break
            with np.errstate(all="ignore"):
                rows = rows[self.assembler.check(part.rows, solve_each(J, F))]
            if not rows.size:
                break

    def _jacobian(self, part: Evaluator, x: Array, F: Array) -> HostArray:
        if self.offered is not None:
            return np.array(self.offered.assemble(part, x, F).todense())
        return self.assembler.assemble(part, x, F).blocks[:, 0, 0]


def trial_points(measured: Norms, norms: HostArray) -> SearchResult:
    F, _, x = measured.arrays
    accepted, finite = np.ones(norms.shape, dtype=bool), np.isfinite(norms)
    return SearchResult(x, F, norms, norms, accepted, finite, None, measured)


def _at_places(rows: Indices, values: Any, like: HostArray) -> HostArray:
    """An array like that one with values in some rows, and zeros elsewhere."""
    placed = np.zeros_like(like)
    placed[rows] = values
    return placed
