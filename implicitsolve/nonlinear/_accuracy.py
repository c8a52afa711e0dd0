"""The estimated error of x after a step, by which the default stopping rule decides.

Let s be the last accepted step, and c the correction that the inverse at hand predicts for the point that it has led
to: -H F(x), where H is the inverse by which s was found (factors, or Broyden's updates of them), which takes no
evaluation. For Newton's method with H = J^-1 of the point before, c is the simplified Newton correction, and

    ||x - x*|| <= ||c|| / (1 - theta),        theta = ||c|| / ||s|| < 1

([1]_, section 2.1): theta is the contraction that the step has shown. Methods without such an inverse predict the error
by the gains of the last steps, ||s|| over the change of ||F||: it is at most the largest of them times ||F(x)||, as
1 / (1 - q) where every step leaves the part q of ||F||. An inexact step that leaves a weak direction alone
is short, and those before it were not; the first one of a retry has none before it, and predicts nothing.

Some x are not accurate, however small the prediction. J may have changed along a long step, and the estimate
grows with the fourth power of its length beyond 1 % of an unknown. After a step that has enlarged ||F||, two have to
reduce it. Where x is 10^3 times as large as x0 and the first step, two steps in succession have to be at most half as
long as the one before: F may vanish at infinity alone. Steps that lead away without becoming shorter are no approach to
a root. Where an unknown has moved by more than its own size, F has to change from x to (1 + t) x as J predicts, or when
such unknowns alone grow by the part t.

A rule is written once, for numbers (`Progress`) and for the systems of a batch (`BatchProgress`).

References
----------
.. [1] P. Deuflhard, "Newton methods for nonlinear problems", Springer (2004).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from implicitsolve._arrays.host import to_host
from implicitsolve._arrays.namespace import array_namespace, eps, near_reciprocals
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.operators._wrappers import SystemArrays

ADVANCE = 0.7  # of the length of a step that the next one has at least where x runs away: roots of x^3 have 2/3
STEPS_AWAY = 5  # such steps in succession from which on they are no approach to a root
PART_AWAY = 0.1  # part of ||F(x0)|| that is left at most where x runs away
LOST = 20  # ... from which on a solve ends, once ||F|| has fallen by all digits and ||x|| has doubled
UNITS_LEFT = 16  # units of rounding of ||F(x0)|| that are left of it then
FAR = 1e3  # times x0 and the first step: beyond it x is accurate after two contractions in succession
LONG, CURVED = 0.01, 4  # of the size of an unknown: beyond it the error grows with that power of the step's length
FARTHEST = 1e6  # times ||x||: a step that is longer shows nothing of J where it leads
NEAR_ROOT = 1e-5  # relative error, as predicted by the contraction of F, up to which the correction is computed
MOST_LEFT = 0.5  # part of ||F|| left by a step, above which no correction below that of this contraction counts
CONFIRMED = 0.5  # part of the way by which an inverse may miss it: the error is at most twice the correction then
MODEL = 1e-3  # of that prediction: a model of J that has learned from steps predicts no smaller correction
NEGLIGIBLE = 1e-8  # of the largest unknown, and of x0 or the first step: what errors are relative to at least
SAME = 1e-3  # of the largest unknown, from which on another one has its unit
FADING = 0.3  # part of the largest gain that counts at the next step
FORGOTTEN = 0.85  # ... and of the largest one since x has run away
FADED = 1e-3  # part of ||F(x0)|| that is left where x has run away: then it did not come to a root later
LEAST_FALL = 1e-3  # of ||F||: a step that takes less from it shows nothing of the error
LIMITED = 1e-5  # largest relative error at which x is accepted where F is rounding error, so that no better x is known
SMALLEST = sys.float_info.min  # positive number: a quotient by it, in place of 0, is infinite or large

Lengths = tuple[HostArray, HostArray, HostArray, HostArray]  # of corrections, steps, x before and after them


def units_of(J: Array, xp: Any = np) -> Array:
    """Units of the unknowns, up to a common factor, for dense J (b, N, N), or for blocks (b, T, m, k, k) of k unknowns.

    The unit of an unknown is the reciprocal of its column, once rows have one size.
    """
    blocks = J if J.ndim == 5 else J[:, None, None]
    rows = near_reciprocals(xp.abs(blocks).max(axis=(2, 4), keepdims=True), xp)
    return near_reciprocals(xp.abs(blocks * rows).max(axis=(1, 2, 3)), xp)


def sparse_units(J: Any) -> HostArray | None:
    """Units of the unknowns for a sparse J of one system, if they differ by more than SAME."""
    sizes, n = np.abs(J.flat_data[0]), J.structure.unknowns
    largest = np.zeros(n, dtype=sizes.dtype)
    np.maximum.at(largest, J.structure.indices, sizes)
    sizes, columns = sizes * near_reciprocals(largest)[J.structure.indices], np.zeros_like(largest)
    np.maximum.at(columns, J.structure.columns, sizes)
    positive = columns[columns > 0]
    is_even = not positive.size or positive.min() >= SAME * positive.max()
    return None if is_even else near_reciprocals(columns)[None]


def scales(units: Array, x: Array, before: Array, reference: Array, xp: Any = np) -> Array:
    """What errors of the unknowns x (..., N) are relative to: their sizes in these units.

    An unknown near zero is judged by the largest one, but by no more than its own x0 or first step, `reference`: a
    column of J is small too where F hardly depends on the unknown.
    """
    own = xp.maximum(xp.abs(x), xp.abs(before))
    common, largest = units * (own / units).max(axis=-1, keepdims=True), own.max(axis=-1, keepdims=True)
    near_zero = xp.minimum(common, xp.maximum(reference, NEGLIGIBLE * xp.minimum(common, largest)))
    return xp.maximum(xp.maximum(own, near_zero), NEGLIGIBLE * reference)


def neglects(
    evaluator: Evaluator, x: Array, F: Array, inverse: Callable[[Array], Array], correction: Array, reference: Array
) -> HostArray:
    """Systems in which unknowns treated as zero have errors that rounding of F does not explain; one evaluation.

    `correction` (b, N) is what the inverse predicts at x, `reference` the larger of x0 and the first step.
    """
    xp = array_namespace(x)
    with np.errstate(all="ignore"):
        limit = LIMITED * xp.maximum(abs(x), reference)
        if not xp.any(abs(correction) > limit):
            return np.zeros(x.shape[0], dtype=bool)
        exact = xp.where(abs(F) > 2 * abs(neighbor(evaluator, x) - F), F, 0.0)
        return to_host(xp.any((abs(correction) > limit) & (abs(inverse(exact)) > limit), axis=1))


def neighbor(evaluator: Evaluator, x: Array) -> Array:
    """F at a point whose unknowns are the floating-point neighbors of those of x."""
    xp = evaluator.xp
    sign = xp.asarray(1 - 2 * (np.arange(x.shape[1]) % 2), dtype=x.dtype, device=x.device)
    return evaluator.residual(x * (1 + eps(xp, x.dtype) * sign), keep=False)


def far_part(start: Array, before: Array, x: Array, scale: Array) -> Array:
    """x (b, N) in the unknowns so far from where J was assembled, or a step began, that it is doubtful, else 0."""
    with np.errstate(all="ignore"):
        moved, step = abs(x - start), abs(x - before)
        return x * ((moved > abs(start)) & (moved > 0.5 * scale) | (step > scale))


def is_wide(h: Array, x: Array) -> Array:
    """The unknowns of x (b, N) for which a difference of length h is too long to give J at x."""
    xp = array_namespace(x)
    largest = xp.max(xp.abs(x), axis=1, keepdims=True)
    return xp.abs(h) > xp.maximum(0.5 * xp.abs(x), LONG * largest)


def agrees(
    evaluator: Evaluator,
    x: Array,
    F: Array,
    inverse: Callable[[Array], Array],
    scale: Array,
    far: Array,
    unseen: Callable[[Array], Array] | None = None,
    *,
    is_strict: bool = False,
) -> HostArray:
    """Systems in which F changes from x (b, N) to (1 + t) x, or to x + t `far`, as an inverse of J predicts.

    Curvature in a large unknown may hide what a small one does, if both change. Where F is not finite at one end, the
    other one, (1 - t) x, decides. `is_strict`: unknowns that have moved far are tested alone, relative to their
    own sizes. At most three evaluations.
    """
    xp = array_namespace(x)
    part = eps(xp, x.dtype) ** 0.25  # t: rounding of differences may be multiplied by a large J^-1
    has_agreed = np.zeros(x.shape[0], dtype=bool)
    first, missed = xp.where(xp.any(far != 0, axis=1)[:, None], far, x), CONFIRMED * scale
    directions = [first, x] if xp.any(first != x) else [first]
    if is_strict:  # others may be larger
        directions, missed = [first], CONFIRMED * xp.where(far != 0, xp.maximum(abs(far), SAME * scale), scale)
    for direction in directions:
        with np.errstate(all="ignore"):
            ahead = evaluator.move(x, part * direction)
            moved = ahead - x  # first: `residual` may change its argument
            change = evaluator.residual(ahead, keep=False) - F
            found = inverse(change) if unseen is None else inverse(change) + part * unseen(direction)
            has_agreed |= to_host(xp.all(abs(found - moved) <= part * missed, axis=1))
        if has_agreed.all():
            break
        if direction is first and not xp.all(xp.isfinite(change)):
            directions.append(-first)
    return has_agreed


def next_length(error: Any, step: Any) -> Any:
    """The length of the next correction, if the error that a step has left shrinks by a constant factor."""
    whole = step + error
    return error * (step / (whole + (whole == 0)))


def plain_scales(x: Array, before: Array, reference: Array) -> Array:
    """Units of the unknowns without J: those of `reference`."""
    xp = array_namespace(x)
    own = xp.maximum(xp.abs(x), xp.abs(before))
    most, largest = (xp.max(v, axis=1, keepdims=True) for v in (reference, own))
    units = xp.where(reference > SAME * most, 1.0, xp.maximum(reference / most, NEGLIGIBLE))
    return xp.maximum(xp.maximum(own, units * largest), NEGLIGIBLE * reference)


def known_scales(units: HostArray | None, x: Array, before: Array, reference: Array) -> Array:
    """`scales` where units are known, else `plain_scales`."""
    return plain_scales(x, before, reference) if units is None else scales(units, x, before, reference)


def component_scales(x: Array, before: Array, reference: Array, k: int) -> Array:
    """`plain_scales` of k components that share their units, for each unknown; (b, k) or (b, N) in `reference`."""
    scale = plain_scales(component_sizes(x, k), component_sizes(before, k), component_sizes(reference, k))
    return array_namespace(x).tile(scale, (1, x.shape[1] // k))


def component_sizes(v: Array, k: int) -> Array:
    """Largest magnitudes over all blocks of the k components of v (b, N), which share their units: (b, k)."""
    xp = array_namespace(v)
    return xp.max(xp.abs(xp.reshape(v, (v.shape[0], -1, k))), axis=1)


def is_below_range(norms: Any, sizes: Any, unit: float, smallest: float) -> Any:
    """Where ||F|| and the rounding errors of x lie below the smallest normal number, which bounds full accuracy."""
    return (norms <= smallest) & (sizes > 0) & (sizes * unit <= smallest)


@dataclass
class Progress:
    """What is known of the error of one system's x, in numbers."""

    error: Any = math.inf  # of x, relative to x
    doubted: Any = False  # whether F does not change at x as the inverse at hand predicts
    direction: Any = math.inf  # length of the last Newton step, or correction, at x, relative to x
    size: Any = 0.0  # of x
    step: Any = math.inf  # length of the last accepted step
    start: Any = 0.0  # size of x0
    reference: Any = 0.0  # the larger of x0 and the first step, or less where x and a step have been smaller than it,
    shrink: Any = 1.0  # ... of which the last step has left this part
    steps: Any = 0  # accepted so far
    falls: Any = 2  # steps in succession that have reduced ||F||; two suffice
    contractions: Any = 0  # steps in succession of at most half the length of the one before
    away: Any = 0  # ... which are not much shorter than the one before
    begin: Any = 0.0  # size of x where these began
    gain: Any = 0.0  # length of a step over what it took from ||F||: the largest one, which fades from step to step
    last_gain: Any = 0.0  # that of the last step alone
    away_gain: Any = 0.0  # the largest of all, once x has run away
    norm: Any = 0.0  # ||F||,
    norm_before: Any = 0.0  # ... before the last step,
    first_norm: Any = 0.0  # ... at x0,
    away_norm: Any = math.inf  # ... and where x last ran away

    @staticmethod
    def where(condition: Any, first: Any, second: Any) -> Any:
        """The first where the condition holds, else the second."""
        return first if condition else second

    larger: ClassVar[Any] = staticmethod(max)
    has_any: ClassVar[Any] = staticmethod(bool)

    def note_step(self, step: Any, size: Any, norm: Any, norm_before: Any) -> None:
        """Note an accepted step of that length to an x of that size, and ||F|| there and before."""
        where, larger = self.where, self.larger
        is_first = self.reference <= 0
        if self.has_any(is_first):
            self.start = where(is_first, self.size, self.start)
            self.reference = where(is_first, larger(self.size, step), self.reference)
            self.first_norm = where(is_first, norm_before, self.first_norm)
        is_longest, largest = (self.start > 0) & (step > FARTHEST * self.start), larger(self.start, larger(step, size))
        if self.has_any(is_longest):
            largest = where(is_longest, self.start, largest)
        self.shrink = largest / larger(larger(self.reference, largest), math.ulp(0.0))
        self.reference = self.shrink * self.reference
        self.steps, self.doubted = self.steps + 1, self.doubted & False  # at every x anew
        self.contractions = (self.contractions + 1) * (step <= 0.5 * self.step)
        self.falls = (self.falls + 1) * (norm < norm_before)
        goes_on = (step >= ADVANCE * self.step) & (norm < norm_before)
        self.begin = where(goes_on, self.begin, size) if self.has_any(goes_on) else size
        self.away = (self.away + 1) * goes_on
        self.last_gain = gain = step / larger(larger(abs(norm_before - norm), LEAST_FALL * norm_before), SMALLEST)
        self.gain = larger(gain, FADING * self.gain)
        self.step, self.size, self.norm, self.norm_before = step, size, norm, norm_before
        if self.has_any((self.away >= STEPS_AWAY) | (self.away_gain > 0)):
            runs_away = self.runs_away()
            self.away_gain = where((self.away_gain > 0) | runs_away, larger(gain, FORGOTTEN * self.away_gain), 0.0)
            self.away_norm = where(runs_away & (norm < self.away_norm), norm, self.away_norm)

    def note_correction(self, correction: Any, step: Any, before: Any, size: Any, unit: float) -> None:
        """Estimate the error, given the lengths of the predicted correction, of the step, and of x before and after.

        They may be in other units than those of `note_step`.
        """
        where, larger = self.where, self.larger
        scale = larger(larger(size, before), SMALLEST)
        if self.has_any(self.away_gain > 0):
            moved = self.away_gain * self.norm * (step / larger(self.step, math.ulp(0.0)))
            correction = larger(correction, next_length(moved, step))
        is_visible = (self.size <= FAR * self.reference) | (self.contractions >= 2)
        is_visible = is_visible & ((before == 0) | (before * FARTHEST >= step))
        is_known = (
            is_visible & (self.falls >= 2) & (self.norm <= (1 - LEAST_FALL) * self.norm_before) & (correction < step)
        )
        growth = larger(1.0, step / (LONG * scale)) ** CURVED
        remaining = growth * correction * (step / larger(step - correction, SMALLEST))  # ||c|| / (1 - theta)
        self.error = where(is_known, remaining / scale + unit, math.inf)
        length = step
        if self.has_any(correction > step):
            length = larger(where(correction < math.inf, correction, 0.0), step)
        self.direction = where(is_visible, length / scale, math.inf)

    def is_at_infinity(self, norm: Any) -> Any:
        """Whether F vanishes, or nearly, where x has run away to."""
        has_faded = (self.size > FAR * self.reference) & (self.away_norm <= FADED * self.first_norm)
        return has_faded | (norm == 0) & self.runs_away()

    def runs_away(self) -> Any:
        """Whether the last steps are no approach to a root."""
        has_fallen = self.norm <= PART_AWAY * self.first_norm
        return (self.away >= STEPS_AWAY) & (self.size >= 2 * self.begin) & has_fallen

    def is_lost(self, norm: Any, first: Any, unit: float) -> Any:
        """Whether to end since a root at infinity is likely, where ||F|| has fallen from `first` to `norm`."""
        return (self.away >= LOST) & (self.size >= 2 * self.begin) & (norm <= UNITS_LEFT * unit * first)

    def may_settle(self, limit: float) -> Any:
        """Whether x is accurate up to `limit` if F is rounding error: no long step has left F unchanged."""
        is_near = (self.reference == 0) | (self.size <= FAR * self.reference)
        is_determined = (
            (self.steps == 0) | (self.norm <= MOST_LEFT * self.norm_before) | (self.step <= limit * self.size)
        )
        return self.where(self.doubted, False, (self.direction <= limit) & is_near & is_determined)


@dataclass
class BatchProgress(Progress, SystemArrays):
    """`Progress` of the systems of a batch, in arrays (b,)."""

    where: ClassVar[Any] = staticmethod(np.where)
    larger: ClassVar[Any] = staticmethod(np.maximum)
    has_any: ClassVar[Any] = staticmethod(np.any)

    @classmethod
    def at(cls, sizes: HostArray) -> BatchProgress:
        """The progress of systems at their x0, of these sizes."""
        values = vars(Progress()) | {"size": sizes}
        return cls(*(np.full(sizes.shape, value) for value in values.values()))

    def note_some(self, rows: Indices, note: str, *arguments: Any) -> None:
        """Call one of the methods that note something, for some systems."""
        with np.errstate(all="ignore"):
            if rows.size == self.error.size:
                getattr(self, note)(*arguments)
                return
            part = self.take(rows)
            getattr(part, note)(*(a[rows] if isinstance(a, np.ndarray) else a for a in arguments))
        for name, values in vars(part).items():
            whole = getattr(self, name).astype(values.dtype)  # a copy: others may hold the array
            whole[rows] = values
            setattr(self, name, whole)
