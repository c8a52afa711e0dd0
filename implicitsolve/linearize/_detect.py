"""Detection of the sparsity of a Jacobian, from a residual without a declared structure."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from implicitsolve._arrays.host import from_host, to_host
from implicitsolve._typing import Array, HostArray
from implicitsolve.linearize._bisection import NONE, BudgetSpentError, Entries, EvaluationError, Flat, Probe, bisect
from implicitsolve.linearize._coloring import color_columns
from implicitsolve.linearize._diagonals import TOO_MANY, Diagonals, NotDiagonalError, verify
from implicitsolve.linearize._group_sums import FEW_LEFT, FEW_OPEN, LEAST_GROUPS, LENGTH, MOST_OPEN, GroupSums
from implicitsolve.linearize._shifts import shift_kernels
from implicitsolve.linearize._sparse_assemble import random_direction, wrong_rows
from implicitsolve.structure import Detection, Outcome
from implicitsolve.structure._sparse import Sparse, from_csc

Found = tuple[Entries, HostArray]
Inward = Callable[[Array, Array], Array] | None
Some = Array | None
LEAST_UNKNOWNS = 16  # systems with fewer are dense: their Jacobian costs no more than the search
SMALLEST_GRAPH = 64  # in smaller ones the pattern of a graph costs what Krylov does (benchmarks/pde.py)
SAMPLE = 8  # rows that show which diagonals a pattern misses
FEW_OFFSETS = 8  # of all columns, up to which those of one-sided differences take fewer evaluations than bisection
KINK_GROUPS = 8  # evaluations that mark rows in which J is wrong for a kink of F alone
FIXED, FOR_ENTRY = 10.0, 11.0  # evaluations of `GroupSums`; for each entry of a row: on meshes and networks
BUDGET = 400  # evaluations: unstructured graphs take 50 to 250 (benchmarks/pde.py)


def detect(
    residual: Flat,
    x: Array,
    *,
    shape: tuple[int, ...] = (),
    budget: int = BUDGET,
    scale: HostArray | None = None,
    bisection: bool | Literal["only"] = True,
    inward: Inward = None,
    first: Array | None = None,
) -> Detection:
    """Find the sparsity of a residual's Jacobian near x.

    F_i does not depend on x_j where it stays the same, bit for bit, as x_j changes. A few columns suggest diagonals,
    which differences along the colors of their pattern verify; other patterns are found by halving groups of columns.
    At the end J d is compared with the change of F along a random d.

    All systems of a batch x (B, N) are displaced at once and have one pattern. The search runs on the host. `shape` are
    the axes of one system's unknowns, `scale` and `inward` those of `Probe`, and `first` is F(x) if it is known.
    Patterns without diagonals are sought if `bisection`, and nothing else if it is "only".
    """
    n = x.shape[1]
    if n < LEAST_UNKNOWNS:
        return Detection(how=Outcome.SMALL, evaluations=0, unknowns=n)
    search = partial(_search, shape=shape or (n,), bisection=bisection)
    return _near(residual, x, budget, search=search, scale=scale, inward=inward, first=first)


def extend(
    residual: Flat,
    x: Array,
    known: Sparse,
    rows: HostArray,
    *,
    budget: int = BUDGET,
    scale: HostArray | None = None,
    inward: Inward = None,
    values: HostArray | None = None,
) -> Detection:
    """Find the entries that a pattern misses in some rows, in which F takes other branches than where it was found.

    Where the pattern is one of diagonals, a few of the rows show others, of which all rows get the entries. Where
    `values` (1, nnz) are J(x) by the pattern, others are sought beside these first, with displacements by `scale`.
    """
    inner = np.linspace(0, rows.size, SAMPLE + 2).astype(np.intp)[1:-1]
    some = np.unique(rows[inner]) if known.diagonals.size else rows

    def search(probe: Probe, values: HostArray | None = None) -> Detection:
        entries = _by_groups(probe, some)[0] if values is None else _beside(probe, known, values, some)
        structure = known.union(Sparse((entries.rows, entries.columns), unknowns=known.unknowns))
        if known.diagonals.size:
            structure = structure.with_diagonals(entries.columns - entries.rows)
        return Detection(structure=structure, how=Outcome.BISECTION, evaluations=probe.evaluations, unknowns=probe.size)

    near = partial(_near, residual, x, inward=inward)
    if values is None:
        return near(budget, search=search, scale=scale)
    found = near(budget, search=partial(search, values=values), scale=scale, is_generic=True)
    if found.structure is not None:
        return found
    again = near(max(budget - found.evaluations, 1), search=search)
    return replace(again, evaluations=found.evaluations + again.evaluations)


def _near(
    F: Flat,
    x: Array,
    budget: int,
    *,
    search: Callable[[Probe], Detection],
    scale: Some = None,
    inward: Inward = None,
    first: Some = None,
    is_generic: bool = False,
) -> Detection:
    """The pattern found around a generic point near x, or the reason why there is none; `first` is F(x), if known."""
    if not isinstance(x, np.ndarray):
        first = None if first is None else to_host(first)
        F, inward, x = _by_the_host(F, inward, x)
    probe = Probe(F, x, budget, scale, inward, is_generic)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the points are the search's choice, not the caller's
            probe.approach(first)
            if probe.is_finite:
                return search(probe)
            how = Outcome.NOT_FINITE
    except BudgetSpentError:
        how = Outcome.BUDGET
    except NotDiagonalError:
        how = Outcome.CONTRADICTION
    except EvaluationError:
        how = Outcome.RAISED
    return Detection(how=how, evaluations=probe.evaluations, unknowns=probe.size)


def _by_the_host(residual: Flat, inward: Any, x: Array) -> tuple[Flat, Any, HostArray]:
    """Functions on arrays of another library as functions on NumPy arrays, and x as one."""
    like = x
    there = inward and (lambda x, h: to_host(inward(from_host(x, like), from_host(h, like))))
    return lambda x: to_host(residual(from_host(x, like))), there, to_host(x)


def _search(probe: Probe, shape: tuple[int, ...], bisection: bool | Literal["only"]) -> Detection:
    """Diagonals first; then all known offsets, and halving, for rows that were wrong; or halving of all columns."""
    diagonals = Diagonals(probe, shape)
    try:
        if bisection == "only":
            raise NotDiagonalError
        hypothesis = diagonals.hypothesis()
        if diagonals.is_full:
            return Detection(how=Outcome.FULL, evaluations=probe.evaluations, unknowns=probe.size, large=hypothesis[0])
        pattern, full = hypothesis
        found = _by_colors(probe, pattern, full)[0]
        if found.structure is not None:
            return found
    except NotDiagonalError:
        if diagonals.is_full:
            kernels = shift_kernels(probe)
            how = Outcome.DENSE if kernels is None else Outcome.SHIFTS
            return Detection(how=how, evaluations=probe.evaluations, unknowns=probe.size, kernels=kernels)
    if bisection:
        entries, unexplained = _by_groups(probe)
        return _mend(probe, entries, unexplained, Outcome.BISECTION, partial(_by_groups, probe))[0]
    likely = FIXED + FOR_ENTRY * diagonals.row_entries
    return Detection(how=Outcome.IRREGULAR, evaluations=probe.evaluations, unknowns=probe.size, likely=likely)


def _by_colors(probe: Probe, pattern: Sparse, full_rows: HostArray) -> tuple[Detection, HostArray]:
    """What differences along the colors of a hypothesis show, and the rows in which it is wrong."""
    entries, unexplained = verify(probe, pattern, full_rows)
    remedies = (
        partial(_silent, pattern, probe, entries),
        partial(_at_offsets, probe, entries),
        partial(_by_groups, probe),
    )
    return _mend(probe, entries, unexplained, Outcome.DIAGONALS, *remedies)


def _mend(
    probe: Probe, entries: Entries, unexplained: HostArray, how: Outcome, *remedies: Callable[[HostArray], Found]
) -> tuple[Detection, HostArray]:
    """The entries found so far, with those of the wrong rows replaced."""
    found, wrong = _confirm(probe, entries, how, unexplained)
    for again in remedies:
        if 0 < wrong.size <= TOO_MANY * probe.size and probe.size >= SMALLEST_GRAPH:
            more, unexplained = again(wrong)
            unexplained = np.union1d(unexplained, _outside(probe, more, wrong))
            entries = _merge(entries, ~np.isin(entries.rows, wrong), more)
            found, wrong = _confirm(probe, entries, how, unexplained)
    return found, wrong


def _silent(pattern: Sparse, probe: Probe, entries: Entries, wrong: HostArray) -> Found:
    """Entries of some rows, with those of the hypothesis whose differences were zero, as on one side of a kink."""
    n, mine = probe.size, np.isin(pattern.rows, wrong)
    some, rows, columns = entries.of(np.isin(np.arange(n), wrong)), pattern.rows[mine], pattern.columns[mine]
    is_silent = ~np.isin(columns * np.int64(n) + rows, some.columns * np.int64(n) + some.rows)
    rows, columns = rows[is_silent], columns[is_silent]
    return _merge(some, np.ones(some.rows.size, dtype=bool), Entries(rows, columns, probe.F[:, rows], NONE)), NONE


def _at_offsets(probe: Probe, entries: Entries, wrong: HostArray) -> Found:
    """Entries of some rows at all known offsets and, if these are few, at twice them: one-sided differences."""
    offsets = np.unique(entries.rows - entries.columns)
    if offsets.size <= FEW_OFFSETS:
        offsets = np.union1d(offsets, 2 * offsets)
    columns = wrong[:, None] - offsets
    inside = (columns >= 0) & (columns < probe.size)
    rows = np.repeat(wrong, np.count_nonzero(inside, axis=1))
    return verify(probe, Sparse((rows, columns[inside]), unknowns=probe.size), entries.full_rows, wrong)


def _outside(probe: Probe, entries: Entries, rows: HostArray) -> HostArray:
    """The rows, found again, that change with columns in which none of them has an entry."""
    others = np.ones(probe.size, dtype=bool)
    others[entries.columns] = False
    return np.intersect1d(rows, probe.rows_of_change(probe.displace(others)))


def _by_groups(probe: Probe, only: HostArray | None = None) -> Found:
    """Entries by sums over groups, or by halving these where that fails; and rows that are not explained."""
    rows = np.arange(probe.size) if only is None else only
    if probe.systems > 1 or probe.F.dtype.char not in "dD" or rows.size <= FEW_LEFT:
        return _by_halves(probe, rows)
    sums, n = GroupSums(probe, rows), probe.size
    few = int(FEW_OPEN * rows.size)
    sums.search(min(few, MOST_OPEN))
    if np.count_nonzero(sums.is_open) > max(few, 8 * FEW_LEFT):
        return _by_halves(probe, rows)
    pattern = Sparse(np.divmod(sums.pattern, n), unknowns=n)
    entries, unexplained = verify(probe, pattern, NONE, rows, sums.rounding(np.arange(n)) / LENGTH)
    sums.reopen(unexplained)
    if not sums.is_open.any():
        return entries, unexplained
    again = sums.is_open.copy()
    sums.explain(entries.of(again))  # with their values, others are alone in sums
    sums.search(0)
    entries = _merge(entries, ~again[entries.rows], sums.entries(again))
    left = np.flatnonzero(sums.is_open)
    if not left.size:
        return entries, left
    more, unexplained = _by_halves(probe, left)
    return _merge(entries, np.ones(entries.rows.size, dtype=bool), more), unexplained


def _beside(probe: Probe, known: Sparse, values: HostArray, rows: HostArray) -> Entries:
    """Entries that some rows have beside known ones, of which `values` are J at this point.

    They are found by sums that the known ones are subtracted from, which may show others where F is curved.
    """
    sums = GroupSums(probe, rows)
    changes = probe.F[:, known.rows] + values * probe.h[:, known.columns]
    entries = Entries(known.rows, known.columns, changes, NONE)
    sums.add(LEAST_GROUPS)
    before = rows.size + 1
    while 0 < (left := np.count_nonzero(sums.is_open)) < before:
        before = left
        sums.add(LEAST_GROUPS)
        sums.explain(entries.of(sums.is_open))
    if left > rows.size // 2:
        raise NotDiagonalError
    n, mine = probe.size, np.isin(known.rows, rows)
    old = known.rows[mine] * np.int64(n) + known.columns[mine]
    columns, there = np.unique(np.setdiff1d(sums.keys, old) % n), np.union1d(sums.keys, old)
    there = there[np.isin(there % n, columns)]
    colors = color_columns(Sparse(np.divmod(there, n), unknowns=n)).colors
    for color in np.unique(colors[columns]).tolist():
        changed = probe.changed_rows(probe.displace(columns[colors[columns] == color]))
        there = there[changed[there // n] | (colors[there % n] != color)]
    return Entries(*np.divmod(there, n), probe.F[:, there // n], NONE)


def _by_halves(probe: Probe, rows: HostArray) -> Found:
    """Entries of some rows by halving groups; differences along colors give the values that it leaves open."""
    entries = bisect(probe, rows)
    if not np.isnan(entries.values).any():
        return entries, NONE
    return verify(probe, Sparse((entries.rows, entries.columns), unknowns=probe.size), entries.full_rows, rows)


def _merge(entries: Entries, keep: HostArray, other: Entries) -> Entries:
    return Entries(
        np.concatenate([entries.rows[keep], other.rows]),
        np.concatenate([entries.columns[keep], other.columns]),
        np.concatenate([entries.values[:, keep], other.values], axis=1),
        np.union1d(entries.full_rows, other.full_rows),
    )


def _confirm(probe: Probe, entries: Entries, how: Outcome, unexplained: HostArray) -> tuple[Detection, HostArray]:
    """Compare J d with the measured change of F; a Detection with the structure if they agree, and the wrong rows.

    Rows that are `unexplained` are wrong.
    """
    n, rows, columns, values = probe.size, entries.rows, entries.columns, entries.values
    structure, is_sorted = entries.pattern, True
    if structure is None:
        keys = columns.astype(np.int64) * n + rows
        is_sorted = bool((keys[1:] > keys[:-1]).all())
        if not is_sorted:  # an entry may have come up twice
            order = np.unique(keys, return_index=True)[1]
            rows, columns, values = rows[order], columns[order], values[:, order]
        structure = from_csc(np.concatenate([[0], np.cumsum(np.bincount(columns, minlength=n))]), rows)
    with np.errstate(all="ignore"):
        values = (values - probe.F.take(rows, axis=1)) / probe.h.take(columns, axis=1)
    if not np.isfinite(values).all():
        return Detection(how=Outcome.NOT_FINITE, evaluations=probe.evaluations, unknowns=n), np.arange(n)
    random = from_host(random_direction(entries.colors, probe.size, probe.evaluations), probe.x)
    d = probe.inward(probe.x, probe.h * random)
    is_wrong = wrong_rows(probe.evaluate, probe.x, probe.F, structure, values, d, entries.full_rows)
    is_wrong[unexplained] = True
    wrong = np.flatnonzero(is_wrong)
    may_be_kinks = 0 < wrong.size <= TOO_MANY * n and not unexplained.size
    if may_be_kinks and _are_complete(probe, structure, d, wrong):
        wrong = wrong[:0]
    if unexplained.size or wrong.size:
        return Detection(how=Outcome.CONTRADICTION, evaluations=probe.evaluations, unknowns=probe.size), wrong
    return Detection(
        structure=structure,
        how=how,
        evaluations=probe.evaluations,
        unknowns=probe.size,
        values=values,
        full_rows=entries.full_rows,
        colors=entries.colors if is_sorted else None,
    ), wrong


def _are_complete(probe: Probe, structure: Sparse, d: HostArray, rows: HostArray) -> bool:
    """Whether F in some rows changes, bit for bit, as far along d as where only columns of their entries move.

    Then no entry is missing there, and J differs for a kink or a jump of F between the points.
    """
    all_moved, mine = probe.evaluate(probe.x + d), structure.to_scipy().tocsr()
    for few in (rows[k::KINK_GROUPS] for k in range(min(KINK_GROUPS, rows.size))):
        moved, columns = probe.x.copy(), mine[few].indices
        moved[:, columns] += d[:, columns]
        if (probe.evaluate(moved)[:, few] != all_moved[:, few]).any():
            return False
    return True
