"""One system with a dense Jacobian: the steps of `DenseLoop` on vectors and plain numbers.

J is factored by one call of LAPACK.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.linalg import lapack

from implicitsolve._arrays.namespace import near_reciprocals
from implicitsolve._typing import HostArray
from implicitsolve.globalize._rules import (
    GOOD,
    IDLE,
    MOST_GROWTH,
    SUFFICIENT_DECREASE,
    first_radius,
    has_halved,
    has_natural_decrease,
    natural_reduction,
    next_radius,
    part_of_leg,
)
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._difference_steps import LEAST_CHANGE, DifferenceSteps
from implicitsolve.nonlinear._accuracy import Lengths, is_wide, neglects, scales
from implicitsolve.nonlinear._broyden import MAX_ASSEMBLIES
from implicitsolve.nonlinear._convergence import CONVERGED, RUNNING, SINGULAR, STAGNATED
from implicitsolve.nonlinear._dense_matrices import solve_each
from implicitsolve.nonlinear._loop import WHOLE
from implicitsolve.nonlinear._offered_jacobians import assembler_of
from implicitsolve.nonlinear._one_system import FACTORED, NO_STEP, REUSED, OneInvertedSystem
from implicitsolve.nonlinear._state import Solution, SolveContext
from implicitsolve.structure import BlockBanded

DENSE_BEST, DENSE_PATIENCE = 0.1, 40  # steps in which ||F|| must fall to a tenth: Watson's of nine variables takes 31
IDLE_STEPS = 10  # idle steps after which a system has stagnated
GETRF = {"f": lapack.sgetrf, "d": lapack.dgetrf}
GETRS = {"f": lapack.sgetrs, "d": lapack.dgetrs}


class OneDenseSystem(OneInvertedSystem):
    """Powell's hybrid method on one system without bounds; see `DenseNewton`."""

    NEW_BEST, PATIENCE = DENSE_BEST, DENSE_PATIENCE

    def __init__(self, context: SolveContext, solution: Solution, *, is_retry: bool) -> None:
        super().__init__(context, solution, is_retry=is_retry)
        N = self.x.size
        self.dtype, self.size = self.x.dtype, N
        self.components = N
        self.offered = assembler_of(context, self.evaluator, solution.x)
        self.takes_differences = self.offered is None and not self.evaluator.has_exact_products  # of all columns of J
        self.assembler: Assembler | None = None
        self.J: HostArray = np.zeros((N, N))
        self.rows = self.columns = np.ones(N, dtype=self.dtype)  # by which they are scaled before J is factored
        self.factors: Any = None  # of J scaled so, until J changes
        self.is_blind: HostArray = np.zeros(N, dtype=bool)  # to which unknowns J was when it was assembled
        self.steps = DifferenceSteps(1, N, self.unit**0.5)
        self.poor = self.idle = 0
        self.budget.note_assembly(N if self.offered is None else self.offered.cost)
        self.radius, self.is_stale = math.inf, True
        self.predicted: Any = None
        self.is_singular = self.is_mixed = self.is_even = False  # whether rows of J differ in size; or nothing does
        self.is_limited = False  # whether the last step was shorter than Newton's

    def _step(self) -> dict[str, HostArray]:
        is_fresh = self.is_stale
        if is_fresh and self._begin():
            return {"step_length": NO_STEP, "factorized": FACTORED}
        with np.errstate(all="ignore"):
            step, size, newton_size, model = self._trial()
            x, self.is_limited = self.x + step, model is not None
        traced = {"step_length": NO_STEP, "factorized": FACTORED if is_fresh else REUSED}
        x_size = self._norm(x)
        if not math.isfinite(self.progress.direction):
            self._note_direction()
        if not (0 < size < math.inf and (x_size < math.inf or np.isfinite(x).all())):
            self._end_without_step()
            return traced
        F = self.evaluator.residual_of_one(x)
        with np.errstate(all="ignore"):
            norm = self._norm(F)
            is_accepted = self._learn(F, norm, step, model, newton_size)
            self.is_exact &= is_fresh
            is_slow = is_accepted and not has_halved(norm, self.norm)
            if is_accepted:
                self._accept(x, F, norm)
            else:
                size = 0.0
            failed = RUNNING if self.idle < IDLE_STEPS else STAGNATED
            self._update_status(step, is_slow=is_slow, failed=failed, step=size, size=x_size)
        if is_accepted and model is None:
            traced["step_length"] = WHOLE
        elif is_accepted:
            traced["step_length"] = np.asarray([ratio_of(size, newton_size)])
            if not self.progress.error < math.inf:
                self.progress.direction = math.inf  # the length of a shortened step predicts no error
        return traced

    def _begin(self) -> bool:
        """Assemble J at x; return whether it is refuted there: then the system ends."""
        self._assemble()
        self.progress.direction = math.inf
        return self.progress.doubted and self._is_refuted()

    def _is_refuted(self) -> bool:
        """Whether J at x is refuted, also when it is assembled by longer differences."""
        is_refuted = super()._is_refuted()
        if is_refuted and self.takes_differences:
            self.steps.lengthen(slice(None), self.x[None, None])
            self._assemble()
            is_refuted = not self._confirm(always=True)
            self.status = SINGULAR if is_refuted else RUNNING
        return is_refuted

    def _end_without_step(self) -> None:
        """End where J gives no step: at a root if F = 0."""
        self.status = SINGULAR
        if self.norm == 0:
            self._mark_converged(None)

    def _note_direction(self) -> None:
        """Note the length of Newton's step at x, relative to x, in the units of the unknowns."""
        newton, first = self.predicted[1], np.abs(self.x) if self.reference is None else self.reference
        with np.errstate(all="ignore"):
            scale = scales(self.columns, self.x, self.x, first)
            self.progress.direction = math.inf if self.is_singular else float(np.maximum.reduce(np.abs(newton / scale)))

    def _trial(self) -> tuple[HostArray, float, float, HostArray | None]:
        """The step within the trust region, its length and Newton's, and F + J s unless it is Newton's."""
        step, model = self._newton(), None
        newton_size = size = self._norm(step)
        if self.radius == math.inf:
            self.radius = first_radius(size, self.progress.size)
        if not size <= self.radius:
            step = self._dogleg(step)
            model, size = self.F + self.J.dot(step), self._norm(step)
        return step, size, newton_size, model

    def _newton(self) -> HostArray:
        """Newton's step at x."""
        if self.predicted is None or self.predicted[0] is not self.F:
            self.predicted = self.F, -self._solve(self.F)
        return self.predicted[1]

    def _lengths(self, correction: HostArray, moved: HostArray, step: float, before: float, size: float) -> Lengths:
        scale = scales(self.columns, self.x, self.previous_x, self.reference)  # type: ignore[arg-type]
        length = float(np.maximum.reduce(np.abs(correction / scale)))
        step = float(np.maximum.reduce(np.abs(moved / scale)))
        if self.judges_x and length <= self.xtol:
            if not self._confirm(always=self.is_limited and not self.is_exact):
                self.is_stale, length = True, math.inf
            elif self._neglects(correction):
                length = math.inf
        return length, step, 1.0, 1.0

    def _settle(self, limit: float) -> None:
        super()._settle(limit)
        if self.status == CONVERGED and self.progress.steps > 0 and self._neglects(self._newton()):
            self.status = STAGNATED

    def _neglects(self, correction: HostArray) -> bool:
        """Whether small unknowns are in error, though x is accurate in the units at hand."""
        first = self.reference[None]  # type: ignore[index]
        return bool(neglects(self.evaluator, self.x[None], self.F[None], self._inverse, correction[None], first)[0])

    def _far(self, x: HostArray, before: HostArray, scale: HostArray) -> HostArray:
        far, is_lost = super()._far(x, before, scale), self.is_blind
        if self.takes_differences:
            is_lost = is_lost | is_wide(self.steps.lengths(slice(None), x[None])[0], x)
        return np.where(is_lost & (x != self.solution.start), x, far)

    def _inverse(self, v: HostArray) -> HostArray:
        return self._solve(v[0])[None]

    def _contraction(self, theta: float) -> float:
        return self._norm(self.F * self.rows) / self._norm(self.previous_F * self.rows) if self.is_mixed else theta

    def _correction(self) -> HostArray:
        newton = self._newton()
        return np.full_like(newton, np.inf) if self.is_singular else newton

    def _learn(self, F: HostArray, norm: float, step: HostArray, model: HostArray | None, newton_size: float) -> bool:
        """Whether a step is accepted; change J and the trust region by what came of it."""
        size = newton_size if model is None else self._norm(step)
        growth = norm / self.norm
        reduction = ratio = 1 - growth * growth
        if not math.isfinite(norm):
            ratio = -math.inf
        elif model is not None:
            left = self._norm(model) / self.norm
            ratio = ratio_of(reduction, 1 - left * left)
        if not ratio >= GOOD and growth < MOST_GROWTH:  # or ||J^-1 F|| is reduced more, compared with its prediction
            length, natural = min(ratio_of(size, newton_size), 1.0), self._norm(self._solve(F))
            if length > 0 and has_natural_decrease(natural, newton_size, length):
                gains = natural_reduction(ratio_of(natural, newton_size), length)
                reduction, ratio = max(reduction, gains[0]), max(ratio, gains[1])
        is_accepted = ratio >= SUFFICIENT_DECREASE
        self.radius = next_radius(self.radius, size, ratio)
        self.idle = self.idle + 1 if reduction < IDLE else 0
        self.poor = 0 if ratio >= GOOD else self.poor + 1
        self.is_stale = self.poor > 1 or (is_accepted and norm > self.norm)
        self.poor = 0 if self.is_stale else self.poor
        self._correct(F, norm, step, size, model)
        return is_accepted

    def _correct(self, F: HostArray, norm: float, step: HostArray, size: float, model: HostArray | None) -> None:
        """Broyden's update of J by what the step changed, accepted or not."""
        if not math.isfinite(norm):
            return
        self.factors = self.predicted = None
        mismatch = F if model is None else F - model  # F(x + s) - F - J s, of which the last two cancel in Newton's
        if self.size == 1:
            self.J += mismatch / step
        else:
            self.J += (mismatch / size)[:, None] * (step / size)

    def _dogleg(self, newton: HostArray) -> HostArray:
        """The step of length `radius` on the path by the minimizer along steepest descent to Newton's step."""
        gradient, radius = -self.F.dot(self.J), self.radius
        slope = self._norm(gradient)
        if not slope < math.inf:
            return newton * (radius / self._norm(newton))
        unit = gradient / (slope if slope > 0 else 1.0)
        image = self._norm(self.J.dot(unit))
        length = ratio_of(slope, image * image)
        first = unit * (length if length < radius else radius)
        rest = (newton if np.isfinite(newton).all() else np.where(np.isfinite(newton), newton, 0.0)) - first
        square, room = rest.dot(rest), radius * radius - first.dot(first)
        part = float(part_of_leg(square, first.dot(rest), room)) if length < radius else 0.0
        return first + part * rest if math.isfinite(part) else first

    # J

    def _assemble(self) -> None:
        """Assemble J, and again where the lengths of differences were wrong guesses."""
        for _ in range(MAX_ASSEMBLIES):
            self.J, self.factors, self.predicted, self.is_exact = self._jacobian(), None, None, True
            self.anchor, self.is_blind = self.x, ~self.J.any(axis=0)
            with np.errstate(all="ignore"):  # pivots are chosen among numbers of one size
                self.rows = near_reciprocals(np.maximum.reduce(np.abs(self.J), axis=1), np)
                self.is_mixed = np.count_nonzero(self.rows != self.rows[0]) > 0
                self.columns = near_reciprocals(np.maximum.reduce(np.abs(self.J * self.rows[:, None]), axis=0), np)
                self.is_even = not self.is_mixed and not np.count_nonzero(self.columns != self.columns[0])
            if not self.takes_differences or not np.count_nonzero(self.steps.is_guess):
                break
            with np.errstate(all="ignore"):
                is_wrong = self.steps.learn(slice(None), self._solve(self.F)[None, None]).any()
            if not is_wrong or self.budget.rest_of_one(self.budget.share) < self.size:
                break

    def _jacobian(self) -> HostArray:
        """J(x) as an array (N, N), which is ours."""
        if self.takes_differences:
            return self._differences()
        evaluator, x, F = self.evaluator, self.x[None], self.F[None]
        if self.offered is not None:
            return np.array(self.offered.assemble(evaluator, x, F).todense())[0]
        return self._general_assembler().assemble(evaluator, x, F).blocks[0, 0, 0]

    def _differences(self) -> HostArray:
        """J(x) by a difference for each unknown."""
        steps, states, N = self.steps, self.x[None, None], self.size
        steps.follow(slice(None), states)
        h = steps.lengths(slice(None), states)
        points = np.empty((N, N), dtype=self.dtype)
        points[:] = self.x
        with np.errstate(all="ignore"):
            points.reshape(-1)[:: N + 1] += h[0, 0]
        values = np.empty_like(points)
        for point, value in zip(points, values):
            value[:] = self.evaluator.residual_of_one(point, keep=False)
        with np.errstate(all="ignore"):
            values -= self.F
            sizes = np.sqrt(np.vecdot(values, values))
            has_changed = (sizes > LEAST_CHANGE * self.unit * self.norm) & (sizes < np.inf)
        steps.has_changed |= has_changed
        if np.count_nonzero(has_changed) < N:
            assembler, norms, F = self._general_assembler(), np.asarray([self.norm]), self.F[None]
            for c in np.flatnonzero(~has_changed).tolist():
                if self.budget.rest_of_one(self.budget.share) <= 0:
                    break
                h = assembler.adjust_lengths(
                    self.evaluator, self.x[None], F, norms, assembler.colors[0], c, h, values[c : c + 1]
                )[0]
        self.tally.add("linearizations")
        with np.errstate(all="ignore"):
            return np.multiply(values.T, 1 / h[0, 0], order="C")

    def _general_assembler(self) -> Assembler:
        """The assembler of batches, with the lengths of this one."""
        if self.assembler is None:
            dense = BlockBanded(0, 0, block_size=self.size)
            self.assembler = Assembler(self.evaluator, self.unit**0.5, certifies=False, structure=dense)
            self.assembler.steps = self.steps
        return self.assembler

    def _solve(self, F: HostArray) -> HostArray:
        """J^-1 F, with the factors of J."""
        if self.size == 1:
            return F / self.J[0]
        if self.factors is None:
            J = self.J if self.is_even else self.J * self.rows[:, None] * self.columns
            self.factors = GETRF[F.dtype.char](J)
        lu, pivots, info = self.factors
        self.is_singular = info != 0
        if info == 0:
            x = GETRS[F.dtype.char](lu, pivots, F if self.is_even else F * self.rows)[0]
            if not self.is_even:
                x *= self.columns
            if math.isfinite(x.dot(x)):
                return x
        return solve_each(self.J[None], F[None])[0]


def ratio_of(a: float, b: float) -> float:
    """a / b, as IEEE 754 has it where b is zero."""
    if b:
        return a / b
    return math.copysign(math.inf, a) if a else math.nan
