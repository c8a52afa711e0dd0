"""Differences that fill a block-banded Jacobian: how long they are, and where their entries stand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from implicitsolve._arrays.host import from_host, takes_indices, to_host
from implicitsolve._arrays.namespace import array_namespace, eps, numpy_namespace
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels import Kernel
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.structure import BlockBanded

Rows: TypeAlias = slice | Indices
LONGEST_DIFFERENCE = 1e-3  # step that a long system may have by default
FARTHER = 1e4  # how much longer a step gets that did not change F, or shorter one at which F is not finite
TRUSTED = 1e-9, 1e-2  # a guessed step over the Newton step: within these bounds the guess was good enough
ENTRYWISE = 2  # unknowns of a block up to which entries are written one by one, those of all colors in one pass
LEAST_CHANGE = 8  # units of roundoff of F by which an entry of F must have changed
MAX_ADJUSTMENTS = 8  # further evaluations at most, for each color, to find a step that changes F and keeps it finite


class DifferenceSteps:
    """Length of the differences: ``h = rdiff * max(|x|, floor)`` for each entry of x, (T, k).

    The floor, for unknown c of all blocks of a system, is ``least * rms(x[:, c])``, by default with ``least =
    eps^(1/3)``, for unknowns whose size differs much from block to block.

    The relative step `rdiff` is by default the fourth root of eps (1.2e-4 in float64), or ``sqrt(eps) T`` up to 1e-3
    where that is longer: for T > 8000. It is longer than the square root that balances errors for a single product,
    because all entries of J pass through a direct solve: on a grid rounding in the differences, eps / h, is multiplied
    by the condition of J, about T^2, and truncation, which only makes Newton's method converge linearly with a factor
    of about h, is not.

    Where an unknown is zero in all blocks, its floor is a guess: the rms of the others, or 1. The first Newton step
    then confirms or replaces it (`learn`), or a second difference does (`halve`).
    """

    def __init__(self, systems: int, block_size: int, rdiff: float | None = None, least: float | None = None) -> None:
        shape = systems, block_size
        self.floor: HostArray = np.zeros(shape)
        self.boost: HostArray = np.ones(shape)  # of the floor, where the step did not change F
        self.sign: HostArray = np.ones(shape)  # of the step, and how much shorter it is where F was not finite
        self.is_guess: HostArray = np.ones(shape, dtype=bool)
        self.has_changed: HostArray = np.zeros(shape, dtype=bool)
        self.rdiff, self.least = rdiff, least

    def follow(self, rows: Indices | slice, x: Array) -> None:
        """Set the floors for new iterates x (b, T, k); those found earlier stay where x is still zero."""
        size = rms(x)
        least = floor_length(eps(array_namespace(x), x.dtype)) if self.least is None else self.least
        if (size > 0).all():
            self.is_guess[rows] = False
            self.floor[rows], self.sign[rows] = self.boost[rows] * least * size, 1.0
            return
        if not size.any():
            self.floor[rows], self.sign[rows] = np.where(self.floor[rows] > 0, self.floor[rows], 1.0), 1.0
            return
        whole = norm2(size)[:, None] / math.sqrt(size.shape[1])
        known = np.where(self.floor[rows] > 0, self.floor[rows], np.where(whole > 0, whole, 1.0))
        self.is_guess[rows] &= size == 0
        self.floor[rows] = np.where(size > 0, self.boost[rows] * least * size, known)
        self.sign[rows] = 1.0

    def lengths(self, rows: Indices | slice, x: Array) -> Array:
        """Steps (b, T, k) of systems `rows` at x."""
        xp = array_namespace(x)
        floor, relative = self.floor[rows], self.relative(x) * self.sign[rows]
        with np.errstate(over="ignore"):
            h = xp.maximum(xp.abs(x), from_host(floor, x)[:, None, :])
            h *= from_host(relative, x)[:, None, :]
        return h

    def relative(self, x: Array) -> float:
        """Length of a step over that of its entry of x (b, T, k)."""
        if self.rdiff is not None:
            return self.rdiff
        return relative_length(eps(array_namespace(x), x.dtype), x.shape[1])

    def learn(self, rows: Indices | slice, newton_step: Array) -> HostArray:
        """Compare guessed steps with the Newton step (b, T, k); return which systems need another assembly."""
        guess, size = self.is_guess[rows], rms(newton_step)
        steps = self.relative(newton_step) * self.floor[rows]
        low, high = TRUSTED
        with np.errstate(all="ignore"):
            trusted = (low * size <= steps) & (steps <= high * size)
            if (trusted | ~guess).all():
                self.is_guess[rows] = False
                return np.zeros(guess.shape[0], dtype=bool)
            finite = np.isfinite(size)
            wrong = guess & (~finite | ((size > 0) & ((steps < low * size) | (steps > high * size))))
        shorter = self.floor[rows] / FARTHER  # J from too long a step may be meaningless
        better = np.where(finite, np.maximum(size, shorter), shorter)
        self.floor[rows] = np.where(wrong, better, self.floor[rows])
        self.is_guess[rows] = wrong
        self.has_changed[rows] &= ~wrong
        return np.any(wrong, axis=1)

    def lengthen(self, rows: Indices | slice, x: Array) -> None:
        """Take the length of the largest unknown of x (b, T, k) for all: shorter ones are lost in rounding of F."""
        size = rms(x)
        least = floor_length(eps(array_namespace(x), x.dtype)) if self.least is None else self.least
        with np.errstate(all="ignore"):
            boost = size.max(axis=1, keepdims=True) / (least * size)
        self.boost[rows] = np.where(np.isfinite(boost), boost, self.boost[rows])

    def adjust(self, rows: Indices | slice, c: int, changed: HostArray, finite: HostArray, attempt: int) -> HostArray:
        """Check a difference along unknown c; return which systems must repeat it.

        Steps that change no equation grow, until it is clear that none will. Where F is not finite they turn round,
        and then shrink.
        """
        unchanged = finite & ~changed & ~self.has_changed[rows, c]
        self.has_changed[rows, c] |= finite & changed
        if attempt == MAX_ADJUSTMENTS:
            back = np.where(unchanged, FARTHER**-attempt, 1.0)
            self.has_changed[rows, c] |= unchanged  # it is not tried again
        else:
            back = np.where(unchanged, FARTHER, 1.0)
            self.sign[rows, c] *= np.where(finite, 1.0, -1.0 if attempt == 0 else -1.0 / FARTHER)
        self.boost[rows, c] *= back
        self.floor[rows, c] *= back
        return np.logical_and(unchanged | ~finite, attempt < MAX_ADJUSTMENTS)

    def shrink(self, rows: Indices | slice, c: int, where: HostArray) -> None:
        """Take shorter guesses along unknown c; those of other systems are good."""
        self.floor[rows, c] /= np.where(where, FARTHER, 1.0)
        self.is_guess[rows, c] &= where


def relative_length(precision: float, blocks: int) -> float:
    """Default relative length of differences for systems of so many blocks; see `DifferenceSteps`."""
    return max(precision**0.25, min(LONGEST_DIFFERENCE, precision**0.5 * blocks))


def floor_length(precision: float) -> float:
    """Default floor of an entry's size over the size of that unknown in all blocks."""
    return precision ** (1 / 3)


def rms(x: Array) -> HostArray:
    """Root mean square over the blocks of each unknown of x (b, T, k), on the host (b, k)."""
    systems, length, k = x.shape
    if not systems or not length:
        return np.zeros((systems, k))
    if length == 1:
        return to_host(abs(x[:, 0, :])).astype(np.float64, copy=False)
    xp = array_namespace(x)
    columns = xp.reshape(x if k == 1 else xp.permute_dims(x, (0, 2, 1)), (systems * k, length))
    return np.reshape(norm2(columns), (systems, k)) / np.sqrt(length)


class OneSystemDifferences:
    """Blocks of J of one system by differences, as long as none must be taken again; updates `steps`."""

    def __init__(
        self,
        evaluator: Evaluator,
        structure: BlockBanded,
        colors: Sequence[slice | Indices],
        steps: DifferenceSteps,
        sensitivity: HostArray,
    ) -> None:
        self.evaluator, self.steps, self.sensitivity = evaluator, steps, sensitivity
        self.structure, self.length, self.k = structure, structure.length(evaluator.size), structure.block_size
        self.shape = structure.width, self.k, 1, self.length, self.k
        self.colors = [color for color in colors for _ in range(self.k)]
        self.unknowns = [*range(self.k)] * len(colors)

    def differences_at(self, x: HostArray, F: HostArray, norm: float) -> HostArray | None:
        """Blocks (1, T, m, k, k) at x (N,), undefined outside the matrix; None where a length must be adjusted."""
        steps, states, whole = self.steps, x.reshape((1, self.length, self.k)), slice(None)
        steps.follow(whole, states)
        h, relative = steps.lengths(whole, states), steps.relative(states)
        changes = np.empty(self.shape, dtype=x.dtype)
        least, largest = LEAST_CHANGE * eps(numpy_namespace, x.dtype) * norm, 0.0
        for color, c, change in zip(self.colors, self.unknowns, changes.reshape((-1, x.size))):
            point = states.copy()
            with np.errstate(all="ignore"):
                point[0, color, c] += h[0, color, c]
            there = self.evaluator.residual_of_one(point.reshape(-1), keep=False)
            with np.errstate(all="ignore"):
                np.subtract(there, F, out=change)
                size = math.sqrt(change.dot(change))
            if not least < size < math.inf:
                return None
            largest = max(largest, size)
        steps.has_changed[:] = True
        self.sensitivity[0] = largest / relative
        self.evaluator.tally.add("linearizations")
        blocks = np.empty((1, self.length, self.shape[0], self.k, self.k), dtype=x.dtype)
        with np.errstate(all="ignore"):
            place(blocks, changes, 1 / h, 0, self.structure.lower)
        return blocks


def place(blocks: Array, changes: Array, per_length: Array, first: int, lower: int) -> None:
    """Write ``blocks[:, t, j, r, c] = changes[i, c, :, t, r] * per_length[:, s, c]`` for some colors.

    Here s = t + j - lower. Color first + i holds blocks s = first + i, first + i + m, ..., m = lower + upper + 1, so
    that each row t couples to one of them. `changes` (colors, k, b, T, k) are how F changed as unknown c of a color's
    blocks did, `per_length` (b, T, k) one over how much each unknown did.
    """
    T, m, k = blocks.shape[1:4]
    with np.errstate(all="ignore"):
        for i in range(changes.shape[0]):
            for j in range(m):
                offset = j - lower
                start, stop = first + i - offset + (m if first + i < offset else 0), max(0, min(T, T - offset))
                rows, columns = slice(start, stop, m), slice(start + offset, stop + offset, m)
                if start < stop:
                    write(blocks[:, :, j, :, :], changes[i, ...], per_length, rows, columns, k)


def write(part: Array, changes: Array, per_length: Array, rows: Any, columns: Any, k: int) -> None:
    """Write the blocks of a block diagonal: small ones entry by entry, in long loops; larger ones whole."""
    if k > ENTRYWISE:
        columns_last = array_namespace(part).permute_dims(changes[:, :, rows, :], (1, 2, 3, 0))
        part[:, rows, :, :] = columns_last * per_length[:, columns, None, :]
        return
    is_view = isinstance(part, np.ndarray) and isinstance(rows, slice)
    for c in range(k):
        column = changes[c, ...]  # a view: an index array beside two integers would move its axis
        for row in range(k):
            if is_view:
                np.multiply(column[:, rows, row], per_length[:, columns, c], out=part[:, rows, row, c])
            else:
                part[:, rows, row, c] = column[:, rows, row] * per_length[:, columns, c]


place_colors: Kernel = Kernel("place_colors", place, module="vectors")


def subtract(a: Array, b: Array, out: Array) -> None:
    """``out[...] = a - b``."""
    if isinstance(out, np.ndarray):
        np.subtract(a, b, out=out)
    else:
        out[...] = a - b


def parts_of(rows: Rows, columns: Rows, like: Array) -> list[tuple[Any, Any]]:
    """Rows and the columns coupled to them, as indices for arrays like `like`: slices under the standard."""
    if isinstance(rows, slice) or isinstance(columns, slice) or takes_indices(like):
        return [(rows, columns)]
    return [(slice(r, r + 1), slice(t, t + 1)) for r, t in zip(rows.tolist(), columns.tolist())]


def add_steps(x: Array, columns: Rows, c: int, h: Array) -> None:
    """``x[:, columns, c] += h[:, columns, c]``."""
    part, steps = x[:, :, c], h[:, :, c]
    for t, _ in parts_of(columns, columns, x):
        part[:, t] += steps[:, t]
