"""J at one point, as accurate as central differences or products make it, by a pattern that is tested there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import numpy as np

from implicitsolve._arrays.host import from_host, takes_indices, to_host
from implicitsolve._arrays.namespace import eps
from implicitsolve._typing import Array, HostArray
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._bisection import NONE
from implicitsolve.linearize._detect import detect, extend
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._sparse_assemble import MISMATCH, SparseAssembler, random_direction, wrong_rows
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.structure import Detection, Outcome
from implicitsolve.structure._sparse import Sparse

NEAR_SOLUTION = 1e-3  # part of the usual displacements, with which a search at a solution keeps to its branches
MOST_COLUMNS = 1000  # unknowns up to which each takes a difference, where J^H needs entries and no pattern is found


def sparse_jacobian(
    caller: str,
    evaluator: Evaluator,
    x: Array,
    F: Array | None,
    known: Detection | None = None,
    *,
    by_columns: bool = False,
    dense: bool = False,
    h: Array | None = None,
    error: float = 0.0,
) -> SparseMatrix | None:
    """J(x), for x (B, N), by the colors of the declared pattern, or else of a detected one; None if there is none.

    A pattern that the solve has detected, `known`, is used unless it misses entries at x; it is extended then, by a
    search so near x that F has the same branches. A row that depends on nearly all unknowns takes an adjoint product;
    without such products, if `by_columns`, all of them take one for each column. So does, if `dense`, a J of up to
    1000 unknowns without a pattern. Central differences have the lengths `h`, and a relative `error` over them.
    A declared pattern that misses entries is a ValueError: J d is not the product, or F's change, along a random d.
    """
    if not takes_indices(x):
        return None
    point, J, found = _Point(evaluator, x, F, h, error), None, None
    while (found := point.next_pattern(found, known, dense=dense)) is not None:
        J = None if found.structure is None else point.assemble(found, by_columns=by_columns)
        if J is None or not point.wrong.size:
            return J
    if evaluator.problem.sparse_structure is None:  # a kink, or a wrong pattern; the caller compares what it makes of J
        return J if by_columns else None
    raise ValueError(
        f"{caller}: `structure` must hold every entry of J, but the pattern's J d is wrong in {point.wrong.size} of "
        f"{evaluator.size} rows, row {point.wrong[0]} first"
    )


class _Point:
    """A point x (B, N) at which J is assembled by one pattern after another, until J d is right for a random d."""

    def __init__(self, evaluator: Evaluator, x: Array, F: Array | None, h: Array | None, error: float) -> None:
        self.evaluator, self.x, self.F, self.error, xp = evaluator, x, F, error, evaluator.xp
        self.rms = from_host(norm2(x)[:, None] / math.sqrt(x.shape[1]), x)
        self.precision = eps(xp, evaluator.dtype)
        if h is None:
            size = xp.maximum(xp.abs(x), xp.where(self.rms > 0, self.precision**0.25 * self.rms, 1.0))
            h = evaluator.inward(x, self.precision ** (1 / 3) * size)
        self.h: Array = h
        self.is_free: bool = evaluator.box is None
        self.wrong: HostArray = NONE  # rows in which the last J d was wrong
        self.is_wider = self.is_last = False  # what a search has added to the first pattern was tried; so was all else

    def next_pattern(self, last: Detection | None, known: Detection | None, *, dense: bool) -> Detection | None:
        """The pattern to try where the `last` one has missed entries, declared or found; None: no more."""
        evaluator, x, declared = self.evaluator, self.x, self.evaluator.problem.sparse_structure
        if declared is not None:
            found = Detection(structure=declared.sparse, how=Outcome.DECLARED, evaluations=0, unknowns=evaluator.size)
            return found if last is None else None
        if last is None:
            return known if known is not None and known.structure is not None else self._detect(dense=dense)
        if not self.is_wider:
            self.is_wider = True
            scale = NEAR_SOLUTION * to_host(evaluator.xp.maximum(evaluator.xp.abs(x), self.rms))
            scale, pattern = np.where(scale > 0, scale, NEAR_SOLUTION), cast("Sparse", last.structure)
            more = extend(evaluator.residual, x, pattern, self.wrong, scale=scale, inward=evaluator.inward)
            if more.structure is not None:
                return more
            self.is_last = last is not known
        if self.is_last:
            return None
        self.is_last = True
        return self._detect(dense=dense)

    def _detect(self, *, dense: bool) -> Detection:
        """What a search finds; if `dense`, all entries of a J that is not large."""
        evaluator, n = self.evaluator, self.evaluator.size
        found = detect(self.evaluator.residual, self.x, shape=evaluator.event_shape, inward=evaluator.inward)
        if found.structure is not None or not dense or n > MOST_COLUMNS:
            return found
        full = Sparse(np.ones((n, n), dtype=bool))
        return Detection(structure=full, how=Outcome.DENSE, evaluations=0, unknowns=n)

    def assemble(self, found: Detection, *, by_columns: bool) -> SparseMatrix | None:
        """J by a pattern, and in `wrong` its wrong rows; None where full rows would need products with J^H."""
        evaluator, x, xp, assembler = self.evaluator, self.x, self.evaluator.xp, SparseAssembler.of(found)
        product = evaluator.jacobian(x, self.F)
        vjp = product.rmatvec if product._rmatvec is not None else None
        if not (assembler.is_exact or vjp is not None or by_columns):
            return None
        if evaluator.has_exact_products:
            jvp, evaluate, base = product.matvec, (lambda z: product.matvec(z - x)), xp.zeros_like(x)
            J = assembler.products(jvp, x, None, getattr(product, "products", None))
        elif self.F is not None:
            jvp, evaluate, base = self._product, self._odd_part, self.F
            data = self._second_order(lambda side: assembler.differences(evaluator.residual, x, base, side).data)
            J = SparseMatrix(data, assembler.structure)
        else:
            return None
        if not assembler.is_exact:
            assembler.fill(J.data, jvp, vjp)
        mismatch = min(MISMATCH, self.precision ** (1 / 3))  # missing entries of a long row may nearly cancel
        if (mismatch := max(mismatch, self.error)) >= 1:
            return J
        d = evaluator.inward(x, self.h * from_host(random_direction(assembler.coloring.colors, x.shape[1], 0), x))
        self.wrong = np.flatnonzero(wrong_rows(evaluate, x, base, J.structure, J.data, d, NONE, mismatch))
        return J

    def _second_order(self, derivative: Callable[[Array], Array]) -> Array:
        """A derivative by one-sided differences of two lengths, to both sides of x unless bounds are near."""
        one, other = derivative(self.h), derivative(-self.h if self.is_free else 0.5 * self.h)
        return 0.5 * (one + other) if self.is_free else 2 * other - one

    def _product(self, v: Array) -> Array:
        """J v for the direction v of one unknown."""
        x, F, xp = self.x, self.F, self.evaluator.xp
        return self._second_order(lambda h: (self.evaluator.residual(x + v * h) - F) / xp.sum(v * h, axis=1)[:, None])

    def _odd_part(self, z: Array) -> Array:
        """F(z), without the even part of its change from x where z has a mirror image."""
        F = self.evaluator.residual(z)
        return self.F + 0.5 * (F - self.evaluator.residual(2 * self.x - z)) if self.is_free else F
