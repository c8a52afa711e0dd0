"""The pattern of any sparse Jacobian, by halving groups of columns in all rows at once.

A residual is seen as a program there: which equations change, bit for bit, when some unknowns do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._arrays.host import from_host
from implicitsolve._arrays.namespace import eps, numpy_namespace
from implicitsolve._record import LimitReached
from implicitsolve._typing import Array, HostArray
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._coloring import full_rows, greedy_colors
from implicitsolve.linearize._difference_steps import FARTHER
from implicitsolve.structure._sparse import Sparse

Flat = Callable[[Array], Array]
"""A residual on arrays (B, N)."""

NONE = np.zeros(0, dtype=np.intp)
GENERIC = 1e-3  # relative distance of the generic point: a product of three factors that vanished differs by 1e-9
MOST_LONGER = 5  # times that displacements which do not change F are made `FARTHER` times as long
DISPLACEMENT = 2.0**-13  # relative displacement, eps^(1/4): the changes are good entries of J as well
SEED = 20190622  # any: the generic point is the same in every solve


class BudgetSpentError(Exception):
    """More evaluations are needed than were allowed."""


class EvaluationError(Exception):
    """A limit was reached, or F raised an ArithmeticError at a probing point, where a solve may never evaluate it."""


class Probe:
    """Evaluations of a residual on arrays (B, N) around a generic point near x, counted and bounded by `budget`.

    `scale` are sizes of the unknowns, by default |x|, at least the root mean square of its system, and 1 where x is
    zero; ``inward(x, h)`` returns displacements as long as h that stay within the bounds of x. `x` and `F` become the
    generic point and the residual there; ``(x + h) - x`` is h without rounding.
    """

    def __init__(
        self,
        residual: Flat,
        x: HostArray,
        budget: int,
        scale: HostArray | None = None,
        inward: Any = None,
        is_generic: bool = False,
    ) -> None:
        self.inward: Callable[[HostArray, HostArray], HostArray] = inward or (lambda x, h: h)
        self._residual, self.budget, self.evaluations = residual, budget, 0
        self._is_generic = is_generic  # the start itself
        self.systems, self.size = x.shape
        if scale is None:
            rms = from_host(norm2(x)[:, None] / self.size**0.5, x)
            scale = np.maximum(np.abs(x), np.where(rms > 0, rms, 1.0))
        self._start, self.scale = x, scale
        self.x, self.F, self.shifted, self.h = x, x, x, x
        self.is_finite = False

    def approach(self, first: HostArray | None = None) -> None:
        """Find a generic point where F is finite, on one side of the start or the other, else the start itself.

        Where F has hardly changed from `first`, that at the start, x is far smaller than its unit: the unknowns are
        displaced as from 0, and then farther.
        """
        self._approach()
        for _ in range(MOST_LONGER if first is not None and self.is_finite else 0):
            least = eps(numpy_namespace, self.x.dtype) ** 0.75 * np.abs(first).max(axis=1)
            is_near = np.abs(self.F - first).max(axis=1) <= least
            if not is_near.any():
                return
            self.scale = np.where(is_near[:, None], np.maximum(FARTHER * self.scale, 1.0), self.scale)
            self._approach()

    def _approach(self) -> None:
        x, scale, random = self._start, self.scale, np.random.default_rng(SEED)
        spread = random.uniform(0.5, 1.0, self.size)
        away = np.where(x < 0, -1.0, 1.0) if x.dtype.kind != "c" else 1.0  # no unknown changes its sign
        distances = (GENERIC * away, -GENERIC * away, 1e-3 * GENERIC * away, 0.0)
        for distance in distances[3 * self._is_generic :]:
            self.x = x + self.inward(x, (distance * spread * scale).astype(x.dtype))
            self.F = self.evaluate(self.x)
            self.is_finite = bool(np.isfinite(self.F).all())
            if self.is_finite:
                break
        towards = away * random.uniform(0.5, 1.0, self.size)  # all different: no change of two unknowns cancels
        self.shifted = self.x + self.inward(self.x, (DISPLACEMENT * towards * scale).astype(x.dtype))
        self.h = self.shifted - self.x

    def evaluate(self, x: HostArray) -> HostArray:
        """Evaluate the residual, or raise BudgetSpentError or EvaluationError."""
        if self.evaluations >= self.budget:
            raise BudgetSpentError
        self.evaluations += 1
        try:
            return self._residual(x)
        except (ArithmeticError, LimitReached) as error:  # at x0 itself the solve raises it
            raise EvaluationError from error

    def displace(self, where: HostArray | int) -> HostArray:
        """Residual (B, N) after the unknowns `where` (indices, or a mask) have been displaced."""
        if isinstance(where, np.ndarray) and where.dtype.kind == "b":
            return self.evaluate(np.where(where, self.shifted, self.x))
        x = self.x.copy()
        x[:, where] = self.shifted[:, where]
        return self.evaluate(x)

    def rows_of_change(self, F: HostArray) -> HostArray:
        """Rows in which F differs from that at the generic point, in any system; NaN counts as a change."""
        return np.flatnonzero(self.changed_rows(F))

    def changed_rows(self, F: HostArray) -> HostArray:
        """Rows of F that have changed, as a mask."""
        return F[0] != self.F[0] if self.systems == 1 else (F != self.F).any(axis=0)

    def differ(self, a: HostArray, b: HostArray) -> HostArray:
        """Whether entries (B, n) differ in any system; two NaN are alike."""
        return ((a != b) & ~(np.isnan(a) & np.isnan(b))).any(axis=0)


FIRST_GROUPS = 16  # groups at the beginning, each displaced alone: half of them would cost as much
LEAST_COLORS = 6  # of groups in one round, that are always allowed
MORE_COLORS = 1.6  # colors at most over the groups that nine of ten rows meet at most


@dataclass(frozen=True, eq=False)
class Entries:
    """Places (row, column) that hold an entry, and F in that row where the column alone was displaced."""

    rows: HostArray
    columns: HostArray
    values: HostArray  # (B, n)
    full_rows: HostArray
    colors: HostArray | None = None  # of the columns, where those of a color were displaced together
    pattern: Sparse | None = None  # of these entries, where it is known

    def of(self, rows: HostArray) -> Entries:
        """Entries of some rows (N,) of bool."""
        mine = rows[self.rows]
        return Entries(self.rows[mine], self.columns[mine], self.values[:, mine], self.full_rows)


def bisect(probe: Probe, only: HostArray) -> Entries:
    """Find the entries in some rows of the Jacobian of a residual that is local, bit for bit.

    Groups of neighboring columns are halved, round by round. First halves without a common row are displaced together:
    a row that stays as it was depends on the second half only; one that becomes, bit for bit, what it was with the
    whole group displaced, on the first only. Colors are limited: a row may depend on either of two groups, until a
    later round shows. What remains in doubt at single columns is NaN; rows that depend on all of many groups are full.
    """
    n = probe.size
    wanted = np.isin(np.arange(n), only)
    starts = np.unique(np.linspace(0, n, min(FIRST_GROUPS, n) + 1).astype(np.int64))
    found = [probe.displace(np.arange(a, b)) for a, b in itertools.pairwise(starts)]
    rows_of = [rows[wanted[rows]] for rows in map(probe.rows_of_change, found)]
    rows = np.concatenate(rows_of)
    groups = np.repeat(np.arange(len(found)), [len(r) for r in rows_of])
    values = np.concatenate([F[:, r] for F, r in zip(found, rows_of)], axis=1)
    known = np.ones(rows.size, dtype=bool)
    full = NONE
    while True:
        counts, whole = np.bincount(rows, minlength=n), starts.size - 1
        more = full_rows(np.where(counts == whole, n, counts)) if whole > 3 * FIRST_GROUPS else full
        if more.size:
            full = np.union1d(full, more)
            keep = ~np.isin(rows, more)
            rows, groups, values, known = rows[keep], groups[keep], values[:, keep], known[keep]
        if int(np.diff(starts).max(initial=1)) == 1:
            break
        starts, rows, groups, values, known = _halve(probe, starts, rows, groups, values, known)
    values[:, ~known] = np.nan
    return Entries(rows, starts[groups], values, full)


def _halve(
    probe: Probe, starts: HostArray, rows: HostArray, groups: HostArray, values: HostArray, known: HostArray
) -> tuple[HostArray, HostArray, HostArray, HostArray, HostArray]:
    """Halve all groups; entries are sorted by group, before and after. `known` marks where `values` holds F."""
    count = starts.size - 1
    sizes = np.diff(starts)
    middle = starts[:-1] + (sizes + 1) // 2
    split = (sizes > 1)[groups]
    rounds = int(np.ceil(np.log2(max(2, sizes.max(initial=1)))))
    base = probe.F[:, rows]
    first, alone = _displaced_groups(probe, starts[:-1], middle, rows, groups, split, rounds)
    first[:, ~split] = values[:, ~split]
    in_first = ~split | probe.differ(first, base)
    first_known = np.where(split, alone, known)
    # Nothing changed: all is in the second half. Else it has a part unless the first half did what the whole group did.
    in_second = split & (~in_first | ~(known & alone) | probe.differ(first, values))
    second, second_known = values.copy(), known & ~in_first
    unknown = in_second & in_first
    if unknown.any():
        need = np.zeros(count, dtype=bool)
        need[groups[unknown]] = True
        shown = in_second & need[groups]
        F, alone = _displaced_groups(probe, middle, starts[1:], rows, groups, shown, 1)
        in_second &= ~shown | probe.differ(F, base)
        fresh = shown & alone
        second[:, fresh] = F[:, fresh]
        second_known |= fresh
    # Groups 2 g and 2 g + 1 are the halves of group g; those of one column have no second.
    new_rows = np.concatenate([rows[in_first], rows[in_second]])
    new_groups = np.concatenate([2 * groups[in_first], 2 * groups[in_second] + 1])
    new_values = np.concatenate([first[:, in_first], second[:, in_second]], axis=1)
    new_known = np.concatenate([first_known[in_first], second_known[in_second]])
    is_there = np.ones(2 * count, dtype=bool)
    is_there[1::2] = sizes > 1
    number = np.cumsum(is_there) - 1
    order = np.argsort(new_groups, kind="stable")
    new_starts = np.concatenate([np.column_stack([starts[:-1], middle]).ravel()[is_there], starts[-1:]])
    return new_starts, new_rows[order], number[new_groups[order]], new_values[:, order], new_known[order]


def _displaced_groups(
    probe: Probe, begins: HostArray, ends: HostArray, rows: HostArray, groups: HostArray, where: HostArray, rounds: int
) -> tuple[HostArray, HostArray]:
    """Displace columns ``begins[g]:ends[g]`` of the groups that have entries `where`, color by color.

    Returns F at these entries, and whether no other group of the color has an entry in the row.
    """
    out, alone = np.empty((probe.systems, rows.size), dtype=probe.F.dtype), np.zeros(rows.size, dtype=bool)
    selected = np.flatnonzero(where)
    if not selected.size:
        return out, alone
    members = np.bincount(rows[selected], minlength=probe.size)
    limit = max(LEAST_COLORS, int(MORE_COLORS * np.quantile(members[members > 0], 0.9)))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(groups[selected], minlength=begins.size))])
    colors = greedy_colors(indptr, rows[selected], probe.size, limit)
    colors[np.diff(indptr) == 0] = -1
    total = int(colors.max()) + 1
    if probe.evaluations + total * rounds > probe.budget:
        raise BudgetSpentError
    of_entry = colors[groups[selected]]
    place = rows[selected] * np.int64(total) + of_entry
    alone[selected] = np.bincount(place, minlength=probe.size * total)[place] == 1
    order = np.argsort(of_entry, kind="stable")
    bounds = np.searchsorted(of_entry[order], np.arange(total + 1))
    for color in range(total):
        mine = np.flatnonzero(colors == color)
        border = np.zeros(probe.size + 1, dtype=np.int8)
        border[begins[mine]] += 1
        np.add.at(border, ends[mine], -1)
        F = probe.displace(np.cumsum(border[:-1]).astype(bool))
        entries = selected[order[bounds[color] : bounds[color + 1]]]
        out[:, entries] = F[:, rows[entries]]
    return out, alone
