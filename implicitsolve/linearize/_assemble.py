"""The Jacobian as a block-banded matrix: the problem's own matrix, or products with colored directions.

Blocks of one color share no row of the matrix, so that one product, or one difference of the residual, gives a column
of all their blocks at once [1]_. A matrix of m block diagonals needs m colors, and each the k unknowns of a block: k m
products, whatever the number of blocks.

References
----------
.. [1] A. R. Curtis, M. J. D. Powell and J. K. Reid, "On the estimation of sparse Jacobian matrices",
       IMA J. Appl. Math. 13 (1974) 117-119.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse

from implicitsolve._arrays.host import from_host, gather, scatter, to_host
from implicitsolve._arrays.namespace import array_namespace, eps, is_array, is_complex
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._block_groups import Groups, find_groups, weights
from implicitsolve.linearize._difference_steps import (
    ENTRYWISE,
    LEAST_CHANGE,
    MAX_ADJUSTMENTS,
    DifferenceSteps,
    OneSystemDifferences,
    Rows,
    add_steps,
    parts_of,
    place_colors,
    subtract,
    write,
)
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.problem import favors_direct
from implicitsolve.structure import BlockBanded
from implicitsolve.structure._block_banded import coloring

AFFINE = 1e-3  # mismatch between a difference and twice the one of half the length, up to which it is a derivative


class Assembler:
    """Assembles J of a problem with a declared structure, or `structure`, for some or all systems of a batch.

    The relative length of differences is `rdiff`, see `DifferenceSteps`; `steps` replace it. `central` ones
    take two residuals each, with an error of rdiff^2 in place of rdiff. If `certifies`, guessed lengths are checked by
    a second difference: Newton's method checks them by its step.
    """

    is_current, saves_products = True, False  # J is that at x

    def __init__(
        self,
        evaluator: Evaluator,
        rdiff: float | None = None,
        *,
        central: bool = False,
        certifies: bool = True,
        structure: BlockBanded | None = None,
        steps: DifferenceSteps | None = None,
    ) -> None:
        problem = evaluator.problem
        structure = problem.block_structure if structure is None else structure
        if structure is None:
            raise ValueError(f"the problem must declare its `structure` as BlockBanded, got {problem.structure!r}")
        self.problem = problem
        self.structure: BlockBanded = structure
        self.length = self.structure.length(evaluator.size)
        self.colors = coloring(self.structure, self.length)
        if central and rdiff is None:
            rdiff = eps(evaluator.xp, evaluator.dtype) ** (1 / 3)
        least = 1.0 if central else None  # accuracy of every entry, however small x is there
        own = DifferenceSteps(evaluator.rows.size, self.structure.block_size, rdiff, least)
        self.steps: DifferenceSteps = own if steps is None else steps
        self.central, self.certifies = central, certifies
        self.groups: Groups | None = None
        is_worth_it = Groups.may_pay(self.length, self.structure.width, self.structure.block_size)
        self.seeks_zeros = is_worth_it and not (self.structure.periodic or central or certifies)
        self.all_rows: Indices = evaluator.rows
        self.sensitivity: HostArray = np.full(evaluator.rows.size, np.nan)
        sources = {"blocks": problem.blocks, "linearize": problem.linearize, "jac": problem.jac}
        self.source = next((name for name, function in sources.items() if function is not None), None)
        self.takes_products = self.source is None  # or what the problem offers turns out to be no matrix
        self.uses_differences = self.source is None and not evaluator.has_exact_products

    @property
    def favors_direct(self) -> bool:
        """Whether assembling and factorizing J is the first choice."""
        return favors_direct(self.problem, self.length)

    @property
    def cost(self) -> int:
        """Products, or residuals, that one assembly takes; 1 where the problem offers a matrix without a cost."""
        if self.takes_products:
            return len(self.colors) * self.structure.block_size
        return self.problem.blocks_cost if self.source == "blocks" else 1

    def assemble(self, evaluator: Evaluator, x: Array, F: Array) -> BlockBandedMatrix:
        """J(x) for x (b, N), where F is F(x); `evaluator` is that of these systems."""
        if self.source is not None:
            return self._convert(evaluator, evaluator.matrix(x), x)
        if evaluator.problem.jvp is not None:
            return self._products(evaluator, evaluator.jacobian(x, F), x)
        evaluator.tally.add("linearizations")
        return self._differences(evaluator, x, F)

    def one_system(self, evaluator: Evaluator) -> OneSystemDifferences | None:
        """Assemble J of a single system, if J comes from differences, all of them few enough to be kept."""
        structure = self.structure
        is_plain = not structure.periodic and len(self.colors) == structure.width
        if not (self.uses_differences and is_plain and (self.length == 1 or structure.block_size <= ENTRYWISE)):
            return None
        return OneSystemDifferences(evaluator, structure, self.colors, self.steps, self.sensitivity)

    def is_certain(self, rows: Indices) -> bool:
        """Whether no difference of systems `rows` had a guessed length."""
        return not (self.uses_differences and self.steps.is_guess[rows].any())

    def check(self, rows: Indices, newton_step: Array) -> HostArray:
        """Compare guessed lengths with J^-1 F (b, N); return which systems need another assembly."""
        return self.steps.learn(rows, self.in_blocks(newton_step))

    def _rows(self, evaluator: Evaluator) -> Rows:
        """Places of an evaluator's systems in the whole batch."""
        return slice(None) if evaluator.rows is self.all_rows else evaluator.rows

    def in_blocks(self, x: Array) -> Array:
        """View (b, N) as (b, T, k)."""
        return array_namespace(x).reshape(x, (x.shape[0], self.length, self.structure.block_size))

    def _convert(self, evaluator: Evaluator, J: Any, x: Array) -> BlockBandedMatrix:
        """The matrix that the problem offered, in the declared structure."""
        if scipy.sparse.issparse(J):
            J = BlockBandedMatrix.from_sparse(J, self.structure)
        elif is_array(J):
            J = BlockBandedMatrix.from_dense(J, self.structure)
        if not isinstance(J, BlockBandedMatrix):
            self.takes_products = True
            return self._products(evaluator, evaluator.as_operator(J, self.source or ""), x)
        expected = evaluator.batch_shape, self.length, self.structure
        is_one = not J.batch_shape and math.prod(evaluator.batch_shape) == 1
        got = evaluator.batch_shape if is_one else J.batch_shape, J.length, J.structure
        if got != expected:
            raise ValueError(
                f"`{self.source}` must return a matrix of batch shape, number of blocks and structure {expected}, "
                f"got {got}"
            )
        if is_complex(J.blocks) and not is_complex(x):
            raise TypeError(
                f"`{self.source}` returned complex numbers for a real x0: pass a complex x0 to solve in complex"
            )
        xp = evaluator.xp
        blocks = xp.reshape(J.blocks, (math.prod(evaluator.batch_shape), *J.blocks.shape[-4:]))
        return self._matrix(evaluator.select(xp.astype(blocks, x.dtype)))

    def _matrix(self, blocks: Array) -> BlockBandedMatrix:
        structure = self.structure
        return BlockBandedMatrix(blocks, lower=structure.lower, upper=structure.upper, periodic=structure.periodic)

    def _room(self, x: Array) -> Array:
        """Blocks (b, T, m, k, k) for the entries of the matrix; those outside are zero."""
        xp, structure, T, k = array_namespace(x), self.structure, self.length, self.structure.block_size
        shape = (x.shape[0], T, structure.width, k, k)
        if structure.periodic:
            return xp.zeros(shape, dtype=x.dtype, device=x.device)
        blocks = xp.empty(shape, dtype=x.dtype, device=x.device)
        for j in range(structure.width):
            offset = j - structure.lower
            blocks[:, : min(max(0, -offset), T), j, :, :] = 0
            blocks[:, max(T - max(0, offset), 0) :, j, :, :] = 0
        return blocks

    def _products(self, evaluator: Evaluator, J: LinearOperator, x: Array) -> BlockBandedMatrix:
        """Columns from products with the indicators of the colors."""
        xp, blocks = evaluator.xp, self._room(x)
        ones, k, many = xp.ones_like(self.in_blocks(x)), self.structure.block_size, getattr(J, "products", None)
        seeds = xp.zeros((len(self.colors), k, *x.shape), dtype=x.dtype, device=x.device)
        for i, color in enumerate(self.colors):
            for c in range(k):
                add_steps(self.in_blocks(seeds[i, c, ...]), color, c, ones)
                if many is None:
                    seeds[i, c, ...] = J.matvec(seeds[i, c, ...])
        found = seeds if many is None else many(xp.reshape(seeds, (len(self.colors) * k, *x.shape)))
        found = xp.reshape(found, (*seeds.shape[:3], self.length, k))
        for i in range(len(self.colors)):
            self._place(blocks, i, found[i, ...], ones)
        return self._matrix(blocks)

    def _differences(self, evaluator: Evaluator, x: Array, F: Array) -> BlockBandedMatrix:
        """Columns from differences of the residual along the colors."""
        xp, rows, states = evaluator.xp, self._rows(evaluator), self.in_blocks(x)
        k = self.structure.block_size
        blocks = self._room(x)
        self.steps.follow(rows, states)
        h = evaluator.inward(x, self.steps.lengths(rows, states))
        if self.seeks_zeros and self._by_groups(evaluator, x, F, h, blocks):
            return self._matrix(blocks)
        norms, largest = norm2(F), np.zeros(x.shape[0])
        changes = xp.empty((k, *x.shape), dtype=x.dtype, device=x.device)
        for i, color in enumerate(self.colors):
            for c in range(k):
                self._difference(evaluator, x, F, color, c, h, changes[c, ...])
                h, sizes = self.adjust_lengths(evaluator, x, F, norms, color, c, h, changes[c, ...])
                if i == 0 and self.certifies:
                    h = self._certify(evaluator, x, F, color, c, h, changes[c, ...])
                largest = np.fmax(largest, sizes)
            self._place(blocks, i, xp.reshape(changes, (k, *states.shape)), h)
        with np.errstate(over="ignore"):
            self.sensitivity[rows] = largest / self.steps.relative(states)
        return self._matrix(blocks)

    def _by_groups(self, evaluator: Evaluator, x: Array, F: Array, h: Array, blocks: Array) -> bool:
        """Fill the blocks by fewer differences, where they hold zeros; whether that went well. If not, never again.

        Entries that seemed zero are checked by one difference along all unknowns. The others come from the same
        numbers as without groups, so that nothing of J depends on what was found in other systems of the batch.
        """
        if self.groups is None:
            self.groups = find_groups(self.structure, self.length, self.cost, evaluator.residual, x, F, h)
            self.seeks_zeros = self.groups is not None
            if self.groups is None:
                return False
            self.steps.has_changed[self._rows(evaluator)] = True
        xp, k, states = evaluator.xp, self.structure.block_size, self.in_blocks(x)

        def change(shifted: Array, out: Array) -> None:
            with np.errstate(all="ignore"):
                subtract(evaluator.residual(shifted, keep=False), F, out)

        changes = xp.empty((len(self.groups.members), *x.shape), dtype=x.dtype, device=x.device)
        for group, members in enumerate(self.groups.members):
            shifted = xp.asarray(x, copy=True)
            for color, c in members:
                add_steps(self.in_blocks(shifted), self.colors[color], c, h)
            change(shifted, changes[group, ...])
        weight = from_host(weights(self.length, k), x)
        weight = weight if evaluator.box is None else xp.abs(weight)  # h points inwards
        checked = xp.empty_like(x)
        change(xp.reshape(states + weight * h, x.shape), checked)
        stacked = xp.reshape(changes, (changes.shape[0], *states.shape))
        with np.errstate(all="ignore"):
            per_length = 1 / h
        self.seeks_zeros = self.groups.place(blocks, stacked, per_length, weight, self.in_blocks(checked), AFFINE)
        sizes = np.stack([norm2(changes[group, ...]) for group in range(changes.shape[0])])
        self.sensitivity[evaluator.rows] = np.max(sizes, axis=0) / self.steps.relative(states)
        return self.seeks_zeros

    def _place(self, blocks: Array, color: int, changes: Array, h: Array) -> None:
        """Write block entries from the changes (k, b, T, k) of one color over the steps h (b, T, k)."""
        lower, k = self.structure.lower, self.structure.block_size
        with np.errstate(all="ignore"):
            per_length = 1 / h
        if not self.structure.periodic:
            function = place_colors.select(blocks, length=self.length, block_size=k)
            function(blocks, changes[None, ...], per_length, color, lower)
            return
        columns: Any = self.colors[color]
        for j in range(self.structure.width):
            rows = (columns - j + lower) % self.length
            for row, column in parts_of(rows, columns, blocks):
                with np.errstate(all="ignore"):
                    write(blocks[:, :, j, :, :], changes, per_length, row, column, k)

    def adjust_lengths(
        self, evaluator: Evaluator, x: Array, F: Array, norms: HostArray, color: Rows, c: int, h: Array, change: Array
    ) -> tuple[Array, HostArray]:
        """Repeat differences F(x + h v) - F(x) in `change` whose length did not suit; v is unknown c of a color.

        Returns the steps h that it took, and the norms of the change; `norms` are those of F.
        """
        xp, rows, steps, sizes = evaluator.xp, self._rows(evaluator), self.steps, norm2(change)
        for attempt in range(MAX_ADJUSTMENTS + 1):
            finite = np.isfinite(sizes)
            if finite.all() and steps.has_changed[rows, c].all():
                break
            least = LEAST_CHANGE * eps(xp, x.dtype)
            changed = sizes > least * norms  # then it holds for one entry at least
            if finite.all() and changed.all():
                steps.has_changed[rows, c] = True
                break
            if not changed.all():
                with np.errstate(invalid="ignore"):
                    changed |= to_host(xp.any(xp.abs(change) > least * xp.abs(F), axis=1))
            again = np.flatnonzero(steps.adjust(rows, c, changed, finite, attempt))
            if not again.size:
                break
            h = evaluator.inward(x, steps.lengths(rows, self.in_blocks(x)))
            scatter(change, again, gather(self._difference(evaluator, x, F, color, c, h, xp.empty_like(change)), again))
            sizes = norm2(change)
        return h, sizes

    def _certify(self, evaluator: Evaluator, x: Array, F: Array, color: Rows, c: int, h: Array, change: Array) -> Array:
        """Shorten guessed steps until half of the step gives half of the change, in `change`."""
        xp, rows, steps = evaluator.xp, self._rows(evaluator), self.steps
        for _ in range(MAX_ADJUSTMENTS):
            guess = steps.is_guess[rows, c]
            if not guess.any():
                break
            half = self._difference(evaluator, x, F, color, c, 0.5 * h, xp.empty_like(change))
            with np.errstate(all="ignore"):
                rounding = LEAST_CHANGE * eps(xp, x.dtype) * norm2(F)
                wrong = guess & ~(norm2(change - 2 * half) <= np.fmax(AFFINE * norm2(change), rounding))
            steps.shrink(rows, c, wrong)
            again = np.flatnonzero(wrong)
            if again.size:
                h = evaluator.inward(x, steps.lengths(rows, self.in_blocks(x)))
                better = self._difference(evaluator, x, F, color, c, h, xp.empty_like(change))
                scatter(change, again, gather(better, again))
        return h

    def _difference(self, evaluator: Evaluator, x: Array, F: Array, color: Rows, c: int, h: Array, out: Array) -> Array:
        """F(x + h v) - F(x), in `out`; if central, half of F(x + h v) - F(x - h v), or as accurate on one side."""
        is_bounded = self.central and evaluator.box is not None

        def at(h: Array) -> Array:
            shifted = evaluator.xp.asarray(x, copy=True)
            with np.errstate(all="ignore"):
                add_steps(self.in_blocks(shifted), color, c, h)
            return evaluator.residual(shifted, keep=self.central)  # with the caller's floating-point warnings

        forward, other = at(h), at(0.5 * h if is_bounded else -h) if self.central else F
        with np.errstate(all="ignore"):
            if is_bounded:
                forward, other = 4 * (other - F), forward - F
            subtract(forward, other, out)
            if self.central and not is_bounded:
                out *= 0.5
        return out
