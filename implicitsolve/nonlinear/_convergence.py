"""When systems have converged: what the stopping rule reads after each step, for one system and for a batch."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar

import numpy as np

from implicitsolve._arrays.host import from_host, gather, to_host
from implicitsolve._arrays.namespace import array_namespace
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels._norms import Norms, norm2, norm_max
from implicitsolve.nonlinear._accuracy import (
    LIMITED,
    LONG,
    LOST,
    NEAR_ROOT,
    NEGLIGIBLE,
    Lengths,
    Progress,
    agrees,
    component_scales,
    component_sizes,
    far_part,
    is_below_range,
    next_length,
    plain_scales,
)
from implicitsolve.nonlinear._state import is_rounding
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop

RUNNING, CONVERGED, ITERATION_LIMIT = int(Status.RUNNING), int(Status.CONVERGED), int(Status.ITERATION_LIMIT)
STAGNATED, DIVERGED, NONFINITE = int(Status.STAGNATED), int(Status.DIVERGED), int(Status.NONFINITE)
LINE_SEARCH_FAILED, SINGULAR = int(Status.LINE_SEARCH_FAILED), int(Status.SINGULAR)
STATIONARY_ON_BOUND, AT_INFINITY = int(Status.STATIONARY_ON_BOUND), int(Status.AT_INFINITY)  # attributes cost calls
UNMOVED = (STAGNATED, LINE_SEARCH_FAILED, SINGULAR, int(Status.LINEAR_SOLVE_FAILED), ITERATION_LIMIT)


class OneConvergence:
    """What `OneSystem` decides after each step."""

    RUNS_AWAY: ClassVar[bool] = True  # whether steps that do not become shorter mean a root at infinity
    is_retry: bool  # whether attempts before have failed
    progress: Progress
    stop: NonlinearStop
    judges_x: bool  # whether the error of x decides,
    judges_F: bool  # ... or F, or both
    solution: Any
    evaluator: Any
    status: int
    x: HostArray
    F: HostArray
    norm: float
    measure: HostArray
    best_measure: float
    target: HostArray
    start_norm: float
    previous_x: HostArray
    unit: float
    smallest: float
    xtol: float
    reference: HostArray | None
    lacks_units: bool = True  # of unknowns: where `reference` is not known, or zero
    anchor: HostArray  # where J was assembled, or x0
    components: int  # that share their units
    is_singular: bool = False  # whether J, where it is at hand, does not determine x

    def _norm(self, v: HostArray) -> float:
        raise NotImplementedError

    def _mark_converged(self, moved: HostArray | None, step: float | None = None, size: float | None = None) -> None:
        """Set the status where the stopping rule holds; `moved` is the step that has led to x, 0 for none.

        `step` and `size` are the lengths of the step and of x, where they are known.
        """
        progress, judges_x = self.progress, self.judges_x
        step = 0.0 if moved is None else self._norm(moved) if step is None else step
        size = progress.size if not step > 0 else self._norm(self.x) if size is None else size
        if step > 0:
            self._estimate(moved, step, size)
        if self._holds(moved, size):
            self._take_success(size)
        elif judges_x and step == 0 and progress.direction <= self.xtol:  # which is infinite before the first step
            self._settle(self.xtol)
        may_be_lost = progress.away >= LOST and self.status == RUNNING and self.RUNS_AWAY and judges_x
        if may_be_lost and progress.is_lost(self.norm, self.start_norm, self.unit):
            self.status = AT_INFINITY

    def _holds(self, moved: HostArray | None, size: float) -> bool:
        """Whether the stopping rule holds at x, of that size, or F is too small to be represented."""
        is_tiny = self.norm <= self.smallest and not (self.progress.doubted and self._has_grown())
        if is_tiny and (self.norm == 0 or is_below_range(self.norm, size, self.unit, self.smallest)):
            return True
        if self.judges_x and not (self.norm <= self.start_norm and self.progress.error <= self.xtol):
            return False
        step = None if moved is None or self.judges_x else moved[None]
        return not self.judges_F or bool(self.stop.holds(self.measure, self.target, self.x[None], step)[0])

    def _has_grown(self) -> bool:
        """Whether x is larger than x0, where F may be 0 because it has become flat."""
        return self._norm(self.x) > self._norm(self.solution.start[0])

    def _take_success(self, size: float) -> None:
        """Set the status where the rule holds at an x of that size: no success where x has run away."""
        progress = self.progress
        if self.judges_x:
            is_at_infinity = progress.is_at_infinity(self.norm)
            if is_at_infinity or (self.RUNS_AWAY and progress.runs_away()):
                self.status = AT_INFINITY if is_at_infinity or self.norm == 0 else self.status
                return
        self.status = CONVERGED
        if self.norm == 0 and not math.isfinite(progress.error):
            progress.error = self.unit
        if not (size < math.inf and np.isfinite(self.measure[0])):  # whatever F returns there
            self.status, self.measure = NONFINITE, np.full(1, np.nan)

    def _estimate(self, moved: HostArray, step: float, size: float) -> None:
        """Estimate the error of x, of that size, after a step of that length."""
        if not (step < math.inf and math.isfinite(self.norm)):
            return
        progress, before = self.progress, self.progress.size
        progress.note_step(step, size, self.norm, self.previous_norm)
        size = max(size, NEGLIGIBLE * progress.reference)
        progress.note_correction(*self._prediction(moved, step, before, size), self.unit)
        if not self.judges_F and 0 < progress.error < math.inf and step <= LONG * size:
            self.target = self.solution.target = self.measure * (self.xtol / progress.error)

    def _prediction(self, moved: HostArray, step: float, before: float, size: float) -> Lengths:
        """The lengths of the correction at x, of the step there, and of x before and after it."""
        gain = self.progress.gain if self.judges_x else self.progress.last_gain
        gain = math.inf if self.is_retry and self.progress.steps < 2 else gain  # begun anywhere, by one inexact step
        error = gain * self.norm
        correction = next_length(error, step) if error < math.inf else math.inf
        reference = self._note_first(moved)
        if not correction <= NEAR_ROOT * max(before, size):
            return correction, step, before, size
        scale = plain_scales(self.x[None], self.previous_x[None], reference[None])[0]
        with np.errstate(all="ignore"):
            length = float(np.abs(moved / scale).max())
        return correction / step * length, length, 1.0, 1.0

    def _note_first(self, moved: HostArray) -> HostArray:
        """What unknowns near zero are judged by: see `Progress.reference`."""
        if self.lacks_units:  # of an unknown at zero, by the first step that moves it
            first, known = np.maximum(np.abs(self.previous_x), np.abs(moved)), self.reference
            self.reference = first if known is None else np.where(known > 0, known, first)
            self.lacks_units = not self.reference.all()
        if self.progress.shrink < 1:
            self.reference = self.reference * self.progress.shrink
        return self.reference

    def _settle(self, limit: float) -> None:
        """Accept x, though F no longer falls, if it is accurate and F is rounding error; an evaluation."""
        progress, point = self.progress, (self.evaluator, self.x[None], self.F[None])
        if progress.may_settle(limit) and not self.is_singular and bool(is_rounding(*point)[0]):
            self.status, progress.error = CONVERGED, 2 * progress.direction + self.unit

    def _confirm(self, *, always: bool) -> bool:
        """Whether the inverse holds at x: noted by evaluations where x is far from `anchor`, or `always`."""
        x, before, reference = self.x[None], self.previous_x[None], self.reference[None]  # type: ignore[index]
        scale = component_scales(x, x, reference, self.components)
        far = self._far(x, before, scale)
        if always or far.any():
            point, is_strict = (self.evaluator, x, self.F[None], self._inverse), self.components == x.size
            self.progress.doubted = not agrees(*point, scale, far, is_strict=is_strict)[0]
        return not self.progress.doubted

    def _far(self, x: HostArray, before: HostArray, scale: HostArray) -> HostArray:
        """x (1, N) in the unknowns where J has to be confirmed, else 0."""
        near = before if x.size == 1 else self.anchor[None]  # of one unknown J is a secant
        return far_part(near if self.norm > 0 and self.anchor is not self.x else self.solution.start, before, x, scale)

    def _is_refuted(self) -> bool:
        """Whether J, assembled at x since an earlier one was doubted, does not hold there: then the system ends."""
        self.status = RUNNING if self._confirm(always=True) else SINGULAR
        return self.status == SINGULAR

    def _inverse(self, v: HostArray) -> HostArray:
        """The inverse at hand times v (1, N)."""
        raise NotImplementedError


class BatchConvergence:
    """What `IterationLoop` decides after each step."""

    RUNS_AWAY: ClassVar[bool] = True  # whether steps that do not become shorter mean a root at infinity
    is_retry: bool  # whether attempts before have failed
    state: Any
    stop: NonlinearStop
    solution: Any
    truth: Any
    scheduler: Any
    measured: Norms | None
    components: int  # that share their units
    unit: float
    smallest: float
    xtol: float

    def _part(self, rows: Indices) -> tuple[Any, Array, Array]:
        raise NotImplementedError

    def _mark_converged(self, moved: Array | None) -> None:
        """Set the status of systems for which the stopping rule holds; `moved` is their last step, 0 for none."""
        state, stop, progress = self.state, self.stop, self.state.progress
        steps = np.zeros(state.rows.size)
        if moved is not None:
            with np.errstate(all="ignore"):
                steps = self._estimate(moved)
        is_finite = np.isfinite(state.norms)
        if not stop.judges_x:
            held = stop.holds(state.measure, state.target, state.x, moved)
        else:
            held = (progress.error <= self.xtol) & (state.norms <= state.start_norms)
            if stop.judges_F:
                held &= stop.holds(state.measure, state.target, state.x, None)
        with np.errstate(all="ignore"):
            runs_away = progress.runs_away() & self.RUNS_AWAY
            away = (held | (state.norms == 0)) & progress.is_at_infinity(state.norms)
            away |= self.RUNS_AWAY & progress.is_lost(state.norms, state.start_norms, self.unit)
        held &= ~(runs_away & stop.judges_x)
        away &= stop.judges_x & is_finite
        if self.truth is None and stop.judges_x:
            held |= is_below_range(state.norms, progress.size, self.unit, self.smallest) & ~progress.doubted
        failed, is_zero = np.isin(state.status, UNMOVED), state.norms == 0
        flat = is_zero & progress.doubted
        if flat.any():  # F may be 0 because it has become flat where x is larger than x0
            flat &= progress.size > norm2(gather(self.solution.start, state.rows))
        self._note_converged(state.status, is_zero & ~flat, state.measure, state.x, held & ~away)
        runs_away |= flat
        state.status[(away & (state.status <= CONVERGED)) | (failed & runs_away)] = AT_INFINITY
        if stop.judges_x and not stop.judges_F and moved is not None:
            with np.errstate(all="ignore"):
                is_rejected = (steps == 0) & progress.may_settle(self.xtol) & (state.status == RUNNING)
                may_settle = np.where(failed, progress.may_settle(LIMITED), is_rejected)
            self._settle(np.flatnonzero(may_settle))
        self.measured = None
        if self.scheduler is not None:
            self.scheduler.stop_beaten(state.status, state.rows)

    def _estimate(self, moved: Array) -> HostArray:
        """Estimate the errors of x after these steps; return their lengths."""
        state, progress, known = self.state, self.state.progress, self.measured
        if known is None or known.arrays[-1] is not state.x or known.arrays[1] is not moved:
            known = Norms(state.F, moved, state.x)
        steps, sizes, before = known.two(1), known.two(2), progress.size
        rows = np.flatnonzero((steps > 0) & (steps < np.inf) & np.isfinite(state.norms))
        progress.shrink = np.ones(steps.shape)
        if rows.size:
            progress.note_some(rows, "note_step", steps, sizes, state.norms, state.norms_before)
            lengths = self._prediction(moved, steps, before, np.maximum(sizes, NEGLIGIBLE * progress.reference))
            progress.note_some(rows, "note_correction", *lengths, self.unit)
        if self.stop.judges_x and not self.stop.judges_F:
            with np.errstate(all="ignore"):
                aims = state.measure * (self.xtol / progress.error)
            is_known = np.isfinite(aims) & (aims > 0) & (steps <= LONG * sizes)
            state.target = np.where(is_known, aims, state.target)
        return steps

    def _prediction(self, moved: Array, steps: HostArray, before: HostArray, sizes: HostArray) -> Lengths:
        """The lengths of the corrections at x, of the steps there, and of x before and after them."""
        with np.errstate(all="ignore"):
            progress = self.state.progress
            gain = progress.gain if self.stop.judges_x else progress.last_gain
            gain = np.where(self.is_retry & (progress.steps < 2), np.inf, gain)  # begun anywhere, by one inexact step
            return next_length(gain * self.state.norms, steps), steps, before, sizes

    def _note_first(self, moved: Array) -> None:
        """Note what the components, or unknowns, near zero are judged by: see `Progress.reference`."""
        state, xp, progress = self.state, array_namespace(moved), self.state.progress
        is_first, k = progress.steps == 1, state.reference.shape[1]
        if is_first.any():
            first = xp.maximum(component_sizes(state.x - moved, k), component_sizes(moved, k))
            state.reference = xp.where(from_host(is_first, moved)[:, None], first, state.reference)
        if (progress.shrink < 1).any():
            state.reference = state.reference * from_host(progress.shrink, moved)[:, None]

    def _by_contraction(self, steps: HostArray, before: HostArray, sizes: HostArray) -> tuple[HostArray, HostArray]:
        """The lengths of the corrections as the contraction of F predicts them, for rules that read F, else infinite.

        Also where they are so small that the correction is worth computing.
        """
        state = self.state
        with np.errstate(all="ignore"):
            lengths = steps * np.where(state.norms_before > 0, state.norms / state.norms_before, np.inf)
        is_near = lengths <= NEAR_ROOT * np.maximum(before, sizes)
        return (np.full(lengths.shape, np.inf) if self.stop.judges_x else lengths), is_near

    def _confirm(self, rows: Indices, before: Array | None = None, always: HostArray | bool = False) -> Indices:
        """Systems whose inverse does not hold at x: of those far from x0, or `always`; of all without `before`."""
        if not rows.size:
            return rows
        state, among = self.state, rows
        x, last = gather(state.x, rows), gather(state.x if before is None else before, rows)
        scale = component_scales(x, last, gather(state.reference, rows), self.components)
        anchor = gather(self.solution.start, state.rows[rows])
        if before is not None and x.shape[1] == 1:  # J is a secant
            anchor = array_namespace(x).where(from_host(state.norms[rows] > 0, x)[:, None], last, anchor)
        parts = far_part(anchor, x, x, scale)
        far = np.flatnonzero(to_host(array_namespace(x).any(parts != 0, axis=1)) | always | (before is None))
        rows, scale, parts = rows[far], gather(scale, far), gather(parts, far)
        if rows.size:
            inverse = partial(self._inverse, rows)
            state.progress.doubted[rows] = ~agrees(*self._part(rows), inverse, scale, parts)
        return among[state.progress.doubted[among]]

    def _inverse(self, rows: Indices, v: Array) -> Array:
        """The inverses at hand of some systems times v."""
        raise NotImplementedError

    def _relative_length(self, direction: Array, rows: Indices) -> HostArray:
        """Lengths of the directions of some systems, over those of x."""
        with np.errstate(all="ignore"):
            part = direction if rows.size == direction.shape[0] else gather(direction, rows)
            return np.where(self.state.progress.size[rows] > 0, norm2(part) / self.state.progress.size[rows], np.inf)

    def _settle(self, rows: Indices) -> None:
        """Accept systems that are accurate, though F no longer falls, if F is rounding error; an evaluation."""
        if rows.size:
            rows = rows[is_rounding(*self._part(rows))]
            progress = self.state.progress
            self.state.status[rows] = CONVERGED
            progress.error[rows] = 2 * progress.direction[rows] + self.unit

    def _note_converged(
        self, status: HostArray, zero: HostArray, measure: HostArray, x: Array, held: HostArray
    ) -> None:
        """Set the status of systems for which the stopping rule `held`, or whose F is `zero`."""
        if self.truth is None:
            held = held | zero
        else:
            status[zero] = STAGNATED
        rows = np.flatnonzero(held)
        if rows.size:
            status[rows] = CONVERGED
            lost = rows[~(np.isfinite(self._largest(x, rows)) & np.isfinite(measure[rows]))]
            status[lost], measure[lost] = NONFINITE, np.nan  # whatever F, or a caller's norm, returns there

    def _largest(self, x: Array, rows: Indices) -> HostArray:
        """max|x| of some systems, which on a device came with the norms of the last step."""
        known = self.measured
        if known is not None and known.arrays[-1] is x:
            return known.largest(len(known.arrays) - 1, rows)
        return norm_max(x if rows.size == x.shape[0] else gather(x, rows))
