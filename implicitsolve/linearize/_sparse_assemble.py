"""A sparse Jacobian by one difference, or one product, for each color of its columns."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from implicitsolve._arrays.host import from_host, index_dtype, to_host
from implicitsolve._arrays.namespace import array_namespace, device, eps
from implicitsolve._typing import Array, HostArray
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._bisection import MOST_LONGER, NONE, Flat
from implicitsolve.linearize._coloring import Coloring, color_columns
from implicitsolve.linearize._difference_steps import FARTHER
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.structure import Detection
from implicitsolve.structure._sparse import Sparse

Product = Callable[[Array], Array]
NOWHERE = np.zeros((0, 2), dtype=np.intp)
DIFFERENCE_DIGITS = 1e5  # units of rounding that differences have at least, which counts in single precision
GOOD_COLORING = 1.25  # colors over the entries of the fullest row, up to which no fewer are sought
MISMATCH = 1e-3  # part of |J| |d| by which J d may differ from the measured change of F
CURVED_PART = 10.0  # ... or so many times what F differs from a straight line along d
ROUNDING_UNITS = 1e3  # ... or so many units in the last place of F
GOLDEN = 0.6180339887498949  # (sqrt(5) - 1) / 2, whose multiples m differ from whole numbers by 1 / (sqrt(5) m) or more


class Places(NamedTuple):
    """Where an assembly finds its numbers."""

    colors: Array  # of the columns (N,)
    columns: Array  # of the entries (nnz,)
    place: Array  # of the entries in the changes (colors, N)
    unknown: Array  # changes (colors, N) without an entry


class SparseAssembler:
    """Assembles Jacobians (B, nnz) with one pattern; all places in memory are computed, and sent to a device, once.

    `full_rows` depend on nearly all unknowns and are not in the pattern that is given; `structure` has them. `colors`
    are used if hardly fewer are possible. One assembly takes `cost` differences, or products. `surprises` (n, 2) are
    colors and rows in which the last one found changes although the color has no column in the row: the pattern is too
    narrow where there are any. Changes up to ``eps^(3/8)`` of the largest in the row, and ``eps^(5/8)`` of the largest
    of all, are taken for rounding.

    Full rows come from adjoint products where `products` is given any, one for each. Otherwise the mean of their
    entries, local ones aside (`Coloring.local`), takes one more difference, and stands for all of these: right for a
    mean or an integral, and elsewhere an approximation, which secant corrections have to make up for (`is_exact`).
    """

    def __init__(self, structure: Sparse, full_rows: HostArray | None = None, colors: HostArray | None = None) -> None:
        n = structure.unknowns
        if full_rows is not None and full_rows.size:
            rows, columns = np.repeat(full_rows, n), np.tile(np.arange(n), full_rows.size)
            structure, colors = structure.union(Sparse((rows, columns), unknowns=n)), None
        self.structure = structure
        least = int(structure.row_counts.max(initial=1))
        count = n if colors is None else int(colors.max()) + 1
        if colors is not None and count <= GOOD_COLORING * least:
            coloring = Coloring(colors, count, NONE, np.ones(structure.nnz, dtype=bool))
        else:
            coloring = color_columns(structure)
        self.coloring: Coloring = coloring
        self.cost: int = coloring.count + bool(coloring.full_rows.size)
        self.surprises: HostArray = NOWHERE
        self.units: HostArray | None = None  # of the unknowns of one system, if they differ
        self.is_exact: bool = not coloring.full_rows.size
        colors, rows, columns = coloring.colors, structure.rows, structure.columns
        place = colors[columns] * n + rows  # in the changes (colors, N) of one system
        self._in_full = np.flatnonzero(np.isin(rows, coloring.full_rows))
        self._is_distant = np.ones(n, dtype=bool)  # columns that are local to no full row
        self._is_distant[columns[self._in_full[coloring.local[self._in_full]]]] = False
        known = np.zeros(coloring.count * n, dtype=bool)
        known[place] = True
        unknown = ~known.reshape(coloring.count, n)
        unknown[:, coloring.full_rows] = False
        small = index_dtype(unknown.size)
        self._on_host = Places(colors, columns.astype(small), place.astype(small), unknown)
        self._sent: dict[str, Places] = {}

    @classmethod
    def of(cls, found: Detection, known: SparseAssembler | None = None) -> SparseAssembler:
        """The assembler for what was found: a copy of a known one for the same pattern, or a new one."""
        structure: Any = found.structure
        if known is not None and not found.full_rows.size and known.structure.has_entries_of(structure):
            return copy.copy(known)
        return cls(structure, found.full_rows, found.colors)

    def _places(self, x: Array) -> Places:
        if isinstance(x, np.ndarray):
            return self._on_host
        where = str(device(x))
        if where not in self._sent:
            self._sent[where] = Places(*(from_host(part, x) for part in self._on_host))
        return self._sent[where]

    def assemble(self, evaluator: Evaluator, x: Array, F: Array) -> SparseMatrix:
        """J(x) for x (b, N), where F is F(x): from the problem's products where it has exact ones."""
        problem = evaluator.problem
        if problem.jvp is not None or problem.linearize is not None or problem.jac is not None:
            J = evaluator.jacobian(x, F)
            many = getattr(J, "products", None)
            return self.products(J.matvec, x, J.rmatvec if problem.vjp is not None else None, many)
        residual = partial(evaluator.residual, keep=False)
        h = evaluator.inward(x, self.lengths(x))
        J = self.differences(residual, x, F, h)
        longer = self._felt_lengths(evaluator, x, F, h, J)
        return J if longer is None else self.differences(residual, x, F, longer)

    def _felt_lengths(self, evaluator: Evaluator, x: Array, F: Array, h: Array, J: SparseMatrix) -> Array | None:
        """Lengths that change F, where `h` does not, since x is far smaller than its unit; None if there are none."""
        xp, entries = array_namespace(x), h[:, self._places(x).columns]
        least = eps(xp, x.dtype) ** 0.75 * xp.max(xp.abs(F), axis=1)
        with np.errstate(all="ignore"):
            is_short = ~xp.any(~(xp.abs(J.data * entries) <= least[:, None]), axis=1)
            for _ in range(MOST_LONGER):
                if not xp.any(is_short):
                    break
                unit = self.lengths(xp.zeros_like(x))
                h = evaluator.inward(x, xp.where(is_short[:, None], xp.maximum(FARTHER * xp.abs(h), unit), h))
                if not xp.all(xp.isfinite(x + h)):
                    return None
                felt = xp.max(xp.abs(evaluator.residual(x + h, keep=False) - F), axis=1) > least
                if xp.any(is_short & felt):
                    return h
        return None

    def lengths(self, x: Array) -> Array:
        """Differences (B, N): ``max(eps^0.45, 1e5 eps) max(|x|, eps^(1/3) rms(x))``; if x = 0, those of x = 1.

        The truncation error of longer differences hides that J is nearly singular, as at a shock: with eps^(1/4), 19 of
        25 shocks were solved, in 174 evaluations (geometric mean); with these, 23 in 48. Where J has shown the units of
        the unknowns, x and lengths are in these. An unknown of 0 shows no size, and takes eps^(1/5) rms(x).
        """
        xp, unit = array_namespace(x), 1.0 if self.units is None else self.units
        precision, size = eps(xp, x.dtype), xp.abs(x) / unit
        rms = from_host(norm2(size)[:, None] / math.sqrt(x.shape[1]), x)
        part = xp.where(size > 0, precision ** (1 / 3), precision**0.2)
        floor = xp.where(rms > 0, part * rms, xp.ones_like(rms))
        floor = xp.where(xp.isfinite(floor), floor, 0.0)  # their squares overflow
        return max(precision**0.45, DIFFERENCE_DIGITS * precision) * xp.maximum(size, floor) * unit

    def _members(self, x: Array, color: int) -> Array:
        """Whether unknowns have a color; behind the colors those that are local to no full row."""
        if color == self.coloring.count:
            return from_host(self._is_distant, x)
        return self._places(x).colors == color

    def differences(self, residual: Flat, x: Array, F: Array, h: Array | None = None) -> SparseMatrix:
        """J (B systems) by differences of F along the colors, turned round where F is not finite; `F` is F(x)."""
        h = self.lengths(x) if h is None else h
        xp, columns = array_namespace(x), self._places(x).columns
        changes = xp.empty((self.cost, *x.shape), dtype=F.dtype, device=device(x))
        with np.errstate(all="ignore"):
            moved = x + xp.astype(h, x.dtype, copy=False)
            moved = xp.where(xp.isfinite(moved), moved, x - h)  # no function is called where x overflows
            for color in range(self.cost):
                xp.subtract(residual(xp.where(self._members(x, color), moved, x)), F, out=changes[color, ...])
            steps = moved - x  # as rounded
            bad = to_host(~xp.all(xp.isfinite(changes), axis=2))
            for color in np.flatnonzero(bad.any(axis=1)).tolist():
                mine = self._members(x, color)
                turned = residual(xp.where(mine & xp.isfinite(x - steps), x - steps, x)) - F
                better = from_host(bad[color], x) & xp.all(xp.isfinite(turned), axis=1)
                changes[color, ...] = xp.where(better[:, None], turned, changes[color, ...])
                steps = xp.where(better[:, None] & mine, -steps, steps)
            self._look_outside(changes)
            data = self._entries(changes) / xp.take(steps, columns, axis=1)
            self._spread(data, changes, steps)
        return SparseMatrix(data, self.structure)

    def products(
        self, jvp: Product, like: Array, vjp: Product | None = None, jvps: Product | None = None
    ) -> SparseMatrix:
        """J from products with the colors, all at once by `jvps`; full rows from `vjp`. `like` has the shape of x."""
        xp, cost = array_namespace(like), self.cost if vjp is None else self.coloring.count
        changes = xp.empty((cost, *like.shape), dtype=like.dtype, device=device(like))
        for color in range(cost):
            changes[color, ...] = self._members(like, color)
            if jvps is None:
                changes[color, ...] = jvp(xp.asarray(changes[color, ...], copy=True))
        changes = changes if jvps is None else jvps(changes)
        self._look_outside(changes)
        data = self._entries(changes)
        if vjp is None:
            self._spread(data, changes, xp.ones_like(like))
        else:
            self.fill(data, jvp, vjp)
        return SparseMatrix(data, self.structure)

    def fill(self, data: Array, jvp: Product, vjp: Product | None) -> None:
        """Write entries of full rows: by an adjoint product for each row, else by a product for each column."""
        xp, structure = array_namespace(data), self.structure
        seed = xp.zeros((data.shape[0], structure.unknowns), dtype=data.dtype, device=device(data))
        rows, columns = structure.indices[self._in_full], structure.columns[self._in_full]
        one, other = (columns, rows) if vjp is None else (rows, columns)
        for place in np.unique(one).tolist():
            seed[:, place] = 1
            here, found = one == place, jvp(seed) if vjp is None else xp.conj(vjp(seed))
            data[:, from_host(self._in_full[here], data)] = xp.take(found, from_host(other[here], data), axis=1)
            seed[:, place] = 0

    def _look_outside(self, changes: Array) -> None:
        """Note changes (colors, B, N) outside the pattern."""
        xp = array_namespace(changes)
        changes = changes[: self.coloring.count, ...]
        outside = xp.any(changes != 0, axis=1) & self._places(changes).unknown
        self.surprises = NOWHERE
        if xp.any(outside):
            size, precision = xp.abs(changes), eps(xp, changes.dtype)
            size = xp.where(xp.isfinite(size), size, xp.zeros_like(size))
            rounding = precision**0.375 * xp.max(size, axis=0) + precision**0.625 * xp.max(size, axis=(0, 2))[:, None]
            self.surprises = np.argwhere(to_host(outside & xp.any(size > rounding, axis=1)))

    def _entries(self, changes: Array) -> Array:
        """Changes (colors, B, N) at the entries (B, nnz)."""
        xp, systems = array_namespace(changes), changes.shape[1]
        by_system = changes if systems == 1 else xp.moveaxis(changes, 1, 0)
        flat = xp.reshape(by_system, (systems, changes.shape[0] * changes.shape[2]))
        return xp.take(flat, self._places(changes).place, axis=1)

    def _spread(self, data: Array, changes: Array, steps: Array) -> None:
        """Entries of full rows: local ones by the changes of their colors, the others by the last change, evenly."""
        xp, (colors, columns, _, _) = array_namespace(data), self._places(data)
        distant = from_host(self._is_distant, data)
        for row in self.coloring.full_rows.tolist():
            mine = self._in_full[self.structure.indices[self._in_full] == row]
            is_local = self.coloring.local[mine]
            others = from_host(mine[~is_local], data)
            has_entry = xp.zeros(distant.shape, dtype=xp.bool, device=device(data))
            has_entry[xp.take(columns, others)] = True
            size = xp.where(has_entry, xp.abs(steps), 0.0)
            mean = changes[-1, :, row] / xp.sum(xp.where(distant, size, 0.0), axis=1)
            data[:, others] = mean[:, None] * xp.sign(xp.take(steps.real, xp.take(columns, others), axis=1))
            for entry in mine[is_local].tolist():
                column = int(self._on_host.columns[entry])
                color = int(self._on_host.colors[column])
                rest = mean * xp.sum(xp.where(colors == color, size, 0.0), axis=1)
                data[:, entry] = (changes[color, :, row] - rest) / steps[:, column]


def random_direction(colors: HostArray | None, size: int, seed: int) -> HostArray:
    """Numbers of size 0.5 to 1, far apart for near columns of a color: an entry in the wrong one shows."""
    random = np.random.default_rng(seed)
    if colors is None:
        lengths = random.uniform(0.5, 1.0, size)
    else:
        order = np.argsort(colors.astype(np.min_scalar_type(int(colors.max()))), kind="stable")
        first = np.searchsorted(colors[order], np.arange(int(colors.max()) + 1))
        rank = np.empty(size)
        rank[order] = np.arange(size) - first[colors[order]]
        turns = rank * GOLDEN + random.uniform()
        lengths = 0.5 + 0.5 * (turns - np.floor(turns))
    return np.asarray(lengths * random.choice((-1.0, 1.0), size))


def wrong_rows(
    evaluate: Flat,
    x: Array,
    F: Array,
    structure: Sparse,
    values: Array,
    d: Array,
    full_rows: HostArray,
    mismatch: float = MISMATCH,
) -> HostArray:
    """Rows, full ones aside, in which J d differs from F's change along d in some system: one evaluation, or two."""
    xp, is_full = array_namespace(x), np.zeros(structure.unknowns, dtype=bool)
    is_full[full_rows] = True
    with np.errstate(all="ignore"):
        change = evaluate(x + d) - F
        size = SparseMatrix(xp.abs(values), structure).matvec(xp.abs(d))
        excess = xp.abs(change - SparseMatrix(values, structure).matvec(d)) - mismatch * size
        excess -= ROUNDING_UNITS * eps(xp, F.dtype) * xp.abs(F)
        suspected = ~(excess <= 0) & from_host(~is_full, x)
        if not xp.any(suspected):
            return np.zeros(is_full.size, dtype=bool)
        curved = xp.abs(change - 2.0 * (evaluate(x + 0.5 * d) - F))
        curved, size, excess, wrong = map(to_host, (curved, size, excess, suspected))
        parts = np.append(curved[size > 0] / size[size > 0], 0.0)
        usual = np.quantile(parts, 0.95)  # of other rows: in one row terms may cancel
        wrong = wrong & ~(excess <= CURVED_PART * np.fmax(curved, usual * size))
    return np.asarray(wrong.any(axis=0))
