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
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse

from implicitsolve._difference_steps import MAX_ADJUSTMENTS, DifferenceSteps
from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import (
    array_namespace,
    eps,
    gather,
    is_array,
    is_complex,
    norm2,
    scatter,
    takes_indices,
    to_host,
)
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels import place_color
from implicitsolve.kernels._assembly import write
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.structure import BlockBanded

Rows: TypeAlias = slice | Indices
MOST_PRODUCTS = 64  # of one assembly, for which direct solves are the first choice
LARGEST_BLOCK = 64  # the same, of a block that is factorized
AFFINE = 1e-3  # mismatch between a difference and twice the one of half the length, up to which it is a derivative


def coloring(structure: BlockBanded, length: int) -> tuple[Rows, ...]:
    """The blocks of each color of a matrix of `length` block rows."""
    if structure.periodic:
        colors = structure.colors(length)
        return tuple(np.flatnonzero(colors == color) for color in range(int(colors.max()) + 1))
    return tuple(slice(color, length, structure.width) for color in range(min(structure.width, length)))


class Assembler:
    """Assembles J of a problem with a declared structure, for some or all systems of a batch.

    Parameters
    ----------
    evaluator : Evaluator
        Of the whole batch.
    rdiff : float, optional
        Relative length of differences; see `DifferenceSteps`.
    central : bool, optional
        Whether differences are central: two residuals for each, and an error of rdiff^2 in place of rdiff.
    certifies : bool, optional
        Whether guessed lengths are checked by a second difference. Newton's method checks them by its step.
    """

    def __init__(
        self, evaluator: Evaluator, rdiff: float | None = None, *, central: bool = False, certifies: bool = True
    ) -> None:
        problem = evaluator.problem
        if problem.structure is None:
            raise ValueError("the problem must declare its `structure`, got None")
        self.structure: BlockBanded = problem.structure
        self.length = self.structure.length(evaluator.size)
        self.colors = coloring(self.structure, self.length)
        if central and rdiff is None:
            rdiff = eps(evaluator.xp, evaluator.dtype) ** (1 / 3)
        least = 1.0 if central else None  # accuracy of every entry, however small x is there
        self.steps = DifferenceSteps(evaluator.rows.size, self.structure.block_size, rdiff, least)
        self.central, self.certifies = central, certifies
        sources = {"blocks": problem.blocks, "linearize": problem.linearize, "jac": problem.jac}
        self.source = next((name for name, function in sources.items() if function is not None), None)
        self.takes_products = self.source is None  # or what the problem offers turns out to be no matrix
        self.uses_differences = not evaluator.has_exact_products

    @property
    def favors_direct(self) -> bool:
        """Whether assembling and factorizing J is the first choice: small blocks, few products."""
        k = self.structure.block_size
        return k <= LARGEST_BLOCK and (self.source == "blocks" or len(self.colors) * k <= MOST_PRODUCTS)

    @property
    def cost(self) -> int:
        """Products, or residuals, that one assembly takes; 1 where the problem offers a matrix (as far as is known)."""
        return len(self.colors) * self.structure.block_size if self.takes_products else 1

    def assemble(self, evaluator: Evaluator, x: Array, F: Array) -> BlockBandedMatrix:
        """J(x) for x (b, N), where F is F(x); `evaluator` is that of these systems."""
        if self.source is not None:
            return self._converted(evaluator, evaluator.matrix(x), x)
        if evaluator.problem.jvp is not None:
            return self._products(evaluator, evaluator.jacobian(x, F), x)
        evaluator.tally.add("linearizations")
        return self._differences(evaluator, x, F)

    def is_certain(self, rows: Indices) -> bool:
        """Whether no difference of systems `rows` had a guessed length."""
        return not (self.uses_differences and self.steps.is_guess[rows].any())

    def check(self, rows: Indices, newton_step: Array) -> HostArray:
        """Compare guessed lengths with J^-1 F (b, N); return which systems need another assembly."""
        return self.steps.learn(rows, self.in_blocks(newton_step))

    def in_blocks(self, x: Array) -> Array:
        """View (b, N) as (b, T, k)."""
        return array_namespace(x).reshape(x, (x.shape[0], self.length, self.structure.block_size))

    def _converted(self, evaluator: Evaluator, J: Any, x: Array) -> BlockBandedMatrix:
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
            raise TypeError(f"`{self.source}` returned complex numbers for a real x0: pass a complex one")
        xp = evaluator.xp
        blocks = xp.reshape(J.blocks, (math.prod(evaluator.batch_shape), *J.blocks.shape[-4:]))
        return self._matrix(evaluator.selected(xp.astype(blocks, x.dtype)))

    def _matrix(self, blocks: Array) -> BlockBandedMatrix:
        structure = self.structure
        return BlockBandedMatrix(blocks, lower=structure.lower, upper=structure.upper, periodic=structure.periodic)

    def _zeros(self, x: Array) -> Array:
        k = self.structure.block_size
        shape = (x.shape[0], self.length, self.structure.width, k, k)
        return array_namespace(x).zeros(shape, dtype=x.dtype, device=x.device)

    def _products(self, evaluator: Evaluator, J: LinearOperator, x: Array) -> BlockBandedMatrix:
        """Columns from products with the indicators of the colors."""
        xp, blocks = evaluator.xp, self._zeros(x)
        ones = xp.ones_like(self.in_blocks(x))
        for i, color in enumerate(self.colors):
            products: list[Array] = []
            for c in range(self.structure.block_size):
                seed = xp.zeros_like(x)
                _add(self.in_blocks(seed), color, c, ones)
                products.append(self.in_blocks(J.matvec(seed)))
            self._place(blocks, i, products, ones)
        return self._matrix(blocks)

    def _differences(self, evaluator: Evaluator, x: Array, F: Array) -> BlockBandedMatrix:
        """Columns from differences of the residual along the colors."""
        blocks = self._zeros(x)
        self.steps.follow(evaluator.rows, self.in_blocks(x))
        h = self.steps.lengths(evaluator.rows, self.in_blocks(x))
        for i, color in enumerate(self.colors):
            changes: list[Array] = []
            for c in range(self.structure.block_size):
                change, h = self._change(evaluator, x, F, color, c, h)
                if i == 0 and self.certifies:
                    change, h = self._certified(evaluator, x, F, color, c, change, h)
                changes.append(self.in_blocks(change))
            self._place(blocks, i, changes, h)
        return self._matrix(blocks)

    def _place(self, blocks: Array, color: int, changes: list[Array], h: Array) -> None:
        """Write what a color's k changes (b, T, k), over the steps h (b, T, k), tell of the blocks."""
        xp, lower = array_namespace(blocks), self.structure.lower
        stacked = changes[0][None, ...] if len(changes) == 1 else xp.stack(changes)
        if not self.structure.periodic:
            function = place_color.select(blocks, length=self.length, block_size=len(changes))
            function(blocks, stacked, h, color, lower)
            return
        columns: Any = self.colors[color]
        for j in range(self.structure.width):
            rows = (columns - j + lower) % self.length
            for row, column in _parts(rows, columns, blocks):
                write(blocks[:, :, j, :, :], stacked, h, row, column, len(changes))

    def _change(self, evaluator: Evaluator, x: Array, F: Array, color: Rows, c: int, h: Array) -> tuple[Array, Array]:
        """F(x + h v) - F(x) for the indicator v of unknown c in the blocks of a color, and the steps h that it took."""
        xp, rows, steps = evaluator.xp, evaluator.rows, self.steps
        change = self._difference(evaluator, x, F, color, c, h)
        for attempt in range(MAX_ADJUSTMENTS + 1):
            finite = np.isfinite(norm2(change))
            if finite.all() and steps.is_felt[rows, c].all():
                break
            with np.errstate(invalid="ignore"):
                felt = to_host(xp.any(xp.abs(change) > 8 * eps(xp, x.dtype) * xp.abs(F), axis=1))
            again = np.flatnonzero(steps.adjust(rows, c, felt, finite, attempt))
            if not again.size:
                break
            h = steps.lengths(rows, self.in_blocks(x))
            scatter(change, again, gather(self._difference(evaluator, x, F, color, c, h), again))
        return change, h

    def _certified(
        self, evaluator: Evaluator, x: Array, F: Array, color: Rows, c: int, change: Array, h: Array
    ) -> tuple[Array, Array]:
        """Shorten guessed steps until half of the step gives half of the change."""
        rows, steps = evaluator.rows, self.steps
        for _ in range(MAX_ADJUSTMENTS):
            guess = steps.is_guess[rows, c]
            if not guess.any():
                break
            half = self._difference(evaluator, x, F, color, c, 0.5 * h)
            with np.errstate(all="ignore"):
                wrong = guess & ~(norm2(change - 2 * half) <= AFFINE * norm2(change))
            steps.shrink(rows, c, wrong)
            again = np.flatnonzero(wrong)
            if again.size:
                h = steps.lengths(rows, self.in_blocks(x))
                scatter(change, again, gather(self._difference(evaluator, x, F, color, c, h), again))
        return change, h

    def _difference(self, evaluator: Evaluator, x: Array, F: Array, color: Rows, c: int, h: Array) -> Array:
        """F(x + h v) - F(x); if central, half of F(x + h v) - F(x - h v)."""

        def at(h: Array) -> Array:
            shifted = evaluator.xp.asarray(x, copy=True)
            with np.errstate(all="ignore"):
                _add(self.in_blocks(shifted), color, c, h)
            return evaluator.residual(shifted, keep=self.central)  # with the caller's floating-point warnings

        forward = at(h)
        backward = at(-h) if self.central else F
        with np.errstate(all="ignore"):
            return 0.5 * (forward - backward) if self.central else forward - backward


def _parts(rows: Rows, columns: Rows, like: Array) -> list[tuple[Any, Any]]:
    """Rows and the columns they see, in the form in which arrays like `like` take them: the standard knows slices."""
    if isinstance(rows, slice) or isinstance(columns, slice) or takes_indices(like):
        return [(rows, columns)]
    return [(slice(r, r + 1), slice(t, t + 1)) for r, t in zip(rows.tolist(), columns.tolist())]


def _add(x: Array, columns: Rows, c: int, h: Array) -> None:
    """``x[:, columns, c] += h[:, columns, c]``."""
    part, steps = x[:, :, c], h[:, :, c]
    for t, _ in _parts(columns, columns, x):
        part[:, t] = part[:, t] + steps[:, t]
