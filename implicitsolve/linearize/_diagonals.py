"""The pattern of a residual on a line, in the plane or in a volume, guessed from a few columns and verified."""

from __future__ import annotations

import math

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.linearize._bisection import Entries, Probe
from implicitsolve.linearize._coloring import color_columns
from implicitsolve.structure._sparse import Sparse, from_csc

MOST_ROWS = 100  # rows that one column may change, before the Jacobian is called dense
LEAST_APART = 64  # unknowns, below which columns are not far from each other
IN_COMMON = 0.25  # part of a column's offsets that others far from it have too, at least: two fields may share a third
FEW_FIELDS = 12  # an axis of at most so many entries may count fields, of at most half of the points along any other
TOO_MANY = 0.25  # part of the rows that may change for no known reason
CONSECUTIVE = 7  # neighbors that are displaced to find how many fields are interleaved
LARGE, MOST_LARGE = 1e-2, 32  # over its largest entry, entries of a full column that precondition, and how many may
REMAINDER = 0.1  # sum of the other entries over that of these, at most

Offset = tuple[int, ...]
Rows = HostArray | None


class NotDiagonalError(Exception):
    """The pattern does not follow diagonals."""


class Diagonals:
    """Hypothesis that the entries lie on diagonals, which differ from field to field; wrapped around where seen so."""

    def __init__(self, probe: Probe, shape: tuple[int, ...]) -> None:
        self.probe, self.n = probe, probe.size
        self.shape = shape if math.prod(shape) == self.n else (self.n,)
        self.strides = np.cumprod([1, *self.shape[:0:-1]])[::-1]
        self.columns: dict[int, HostArray] = {}  # rows that each displaced column changed
        self.full_rows = np.zeros(0, dtype=np.intp)
        self.wraps = [False] * len(self.shape)  # whether an axis is closed to a ring
        self.is_full = False  # whether columns change nearly all rows, and only their large entries are recorded

    def hypothesis(self) -> tuple[Sparse, HostArray]:
        """Displace a few columns; return the pattern that follows from them, and rows that are left out.

        NotDiagonalError: columns of one kind have different offsets; or `is_full`, and not most of the changes little.
        """
        n = self.n
        middle = self._place(0.53)
        F = self.probe.displace(np.array([middle]))
        self.columns[middle] = self.probe.rows_of_change(F)
        if self.columns[middle].size > min(MOST_ROWS, max(8, n // 2)):
            self.is_full = True
            self.columns[middle] = self._large(F)
        self._find_fields(middle)
        second = self._place(0.31)
        self._displace(second)
        self.full_rows = self._common_rows((middle, second))
        self._compare(second)
        for column in (0, n - 1):
            self._displace(column)
        self.full_rows = self._common_rows((middle, second, 0, n - 1))
        offsets = self._offsets()
        return self._pattern(offsets), self.full_rows

    def _displace(self, column: int) -> None:
        if column not in self.columns:
            F = self.probe.displace(np.array([column]))
            self.columns[column] = self._large(F) if self.is_full else self.probe.rows_of_change(F)

    def _large(self, F: HostArray) -> HostArray:
        """Rows that have changed much, where these are few and the others add up to little; raise if not."""
        change = np.abs(F - self.probe.F)
        change = (change / change.max(axis=1, keepdims=True)).max(axis=0)
        rows = np.flatnonzero(change > LARGE)
        kept = float(change[rows].sum())
        if self.n < LEAST_APART or not 1 < rows.size <= MOST_LARGE or not change.sum() - kept <= REMAINDER * kept:
            raise NotDiagonalError
        return rows

    def _place(self, part: float) -> int:
        """A column that far along every axis."""
        return int(np.ravel_multi_index(tuple(int(part * m) for m in self.shape), self.shape))

    def _find_fields(self, middle: int) -> None:
        """Find how many fields there are, and where: on the first axis, on the last, or interleaved without an axis."""
        shape, n = self.shape, self.n
        self.fields, self.stacked = 1, False
        first, last = shape[0], shape[-1]
        if _counts_fields(first, shape[1:]):
            self.fields, self.stacked = first, True
        elif _counts_fields(last, shape[:-1]):
            self.fields = last
        if self.fields > 1:
            for f in range(self.fields):
                self._displace(self._in_field(middle, f))
            return
        if middle + 1 >= n:
            return
        self._displace(middle + 1)
        if self._relative(middle) == self._relative(middle + 1) or n < 4 * CONSECUTIVE:
            return
        for j in range(2, CONSECUTIVE):
            self._displace(middle + j)
        seen = [self._relative(middle + j) for j in range(CONSECUTIVE)]
        for k in range(2, CONSECUTIVE):
            is_whole = len(shape) == 1 or shape[-1] % k == 0
            if is_whole and all(seen[j] == seen[j + k] for j in range(CONSECUTIVE - k)):
                self.fields = k
                return

    def _compare(self, second: int) -> None:
        """Raise if a distant column shares few nonzero offsets with the others, or not all where nothing verifies."""
        known = set[Offset]().union(*(self._relative(column) for column in self.columns if column != second))
        own = self._relative(second)
        if self.is_full and not own <= known:
            raise NotDiagonalError
        shared = (own & known) - {(0,) * len(self.shape)}
        is_long = self.columns[second].size > MOST_ROWS
        if min(len(own), len(known)) > 2 and not is_long and len(shared) < IN_COMMON * (len(own) - 1):
            raise NotDiagonalError

    @property
    def row_entries(self) -> float:
        """Entries in a row, as the columns displaced so far have them."""
        return float(np.median([rows.size for rows in self.columns.values()]))

    def _in_field(self, column: int, f: int) -> int:
        """The column of field f at the place of another column."""
        if self.stacked:
            return column % (self.n // self.fields) + f * (self.n // self.fields)
        return min(column - column % self.fields + f, self.n - 1)

    def _field_of(self, columns: HostArray) -> HostArray:
        return columns // (self.n // self.fields) if self.stacked else columns % self.fields

    def _relative(self, column: int) -> set[Offset]:
        """Where the rows that a column changes are, seen from it, along each axis; full rows aside."""
        rows = self.columns[column]
        rows = rows[~np.isin(rows, self.full_rows)] if self.full_rows.size else rows
        there, here = np.unravel_index(rows, self.shape), np.unravel_index(column, self.shape)
        return set(zip(*(np.subtract(a, b).tolist() for a, b in zip(there, here))))

    def _common_rows(self, columns: tuple[int, ...]) -> HostArray:
        """Rows that depend on all of some columns far from each other."""
        rows = [set(self.columns[column].tolist()) for column in columns if self.columns[column].size <= MOST_ROWS]
        if self.n < LEAST_APART or len(rows) < len(columns) - 1:
            return np.zeros(0, dtype=np.intp)
        return np.array(sorted(set.intersection(*rows)), dtype=np.intp)

    def _offsets(self) -> list[list[Offset]]:
        """Offsets of each field's columns: of those displaced inside, and where the first and the last have others.

        An offset of these that differs from a known one by the length of an axis shows that the axis is a ring.
        """
        found: list[set[Offset]] = [set() for _ in range(self.fields)]
        for column in self.columns:
            if column not in (0, self.n - 1):
                found[int(self._field_of(np.array(column)))] |= self._relative(column)
        for column in (0, self.n - 1):
            if self.columns[column].size > MOST_ROWS:
                continue
            field = found[int(self._field_of(np.array(column)))]
            known = {self._on_torus(offset): offset for offset in field}
            for offset in self._relative(column) - field:
                same = known.get(self._on_torus(offset))
                if same is None:
                    field.add(offset)
                else:
                    self.wraps = [ring or a != b for ring, a, b in zip(self.wraps, offset, same)]
        if self.is_full:  # couplings of fields may be small where these are
            for f, field in enumerate(found):
                field |= {self._offset_of_field(g - f) for g in range(self.fields)}
        return [sorted(field) for field in found]

    def _offset_of_field(self, distance: int) -> Offset:
        """The offset of another field at the same place."""
        others = (0,) * (len(self.shape) - 1)
        return (distance, *others) if self.stacked else (*others, distance)

    def _on_torus(self, offset: Offset) -> Offset:
        return tuple(d % m for d, m in zip(offset, self.shape))

    def _pattern(self, offsets: list[list[Offset]]) -> Sparse:
        """All columns with the offsets of their fields, those that change too many rows with their own."""
        n, width, axes = self.n, max(map(len, offsets)), range(len(self.shape))
        whole = np.zeros((width, *self.shape), dtype=np.int32)
        for f, field in enumerate(offsets):
            mine = [slice(None)] * len(self.shape)  # columns of the field, along each axis
            mine[0 if self.stacked else -1] = slice(f, f + 1) if self.stacked else slice(f, None, self.fields)
            for axis in axes:
                m, moves = self.shape[axis], np.array([offset[axis] for offset in field], dtype=np.int64)
                place = np.arange(m)[mine[axis]] + moves[:, None]
                if self.wraps[axis]:
                    place %= m
                rows = np.full((width, place.shape[1]), n, dtype=np.int32)  # stands for none
                rows[: len(field)] = np.where((place >= 0) & (place < m), place * self.strides[axis], n)
                whole[:, *mine] += rows.reshape([width] + [place.shape[1] if other == axis else 1 for other in axes])
        rows = whole.reshape(width, n)
        if any(self.wraps):
            seam = np.flatnonzero((rows[1:] <= rows[:-1]).any(axis=0))
            some = np.sort(rows[:, seam], axis=0)
            some[1:][some[1:] == some[:-1]] = n
            rows[:, seam] = some
        keep = rows < n
        dense = [column for column, changed in self.columns.items() if changed.size > MOST_ROWS]
        keep[:, dense] = False
        if self.full_rows.size:
            keep &= ~np.isin(rows, self.full_rows)
        pattern = from_csc(np.concatenate([[0], np.cumsum(np.add.reduce(keep, dtype=np.intp))]), rows.T[keep.T])
        if not dense:
            return pattern
        more = [np.setdiff1d(self.columns[column], self.full_rows) for column in dense]
        columns = np.repeat(dense, [part.size for part in more])
        return pattern.union(Sparse((np.concatenate(more), columns), unknowns=n))


def _counts_fields(m: int, others: tuple[int, ...]) -> bool:
    """Whether an axis of m entries may count fields: few beside the points along the other axes."""
    return m <= FEW_FIELDS and math.prod(others) > 8 and all(2 * m <= other for other in others)


def verify(
    probe: Probe, pattern: Sparse, full_rows: HostArray, only: Rows = None, rounding: Rows = None
) -> tuple[Entries, HostArray]:
    """Displace all columns of a color at once, color by color: entries that are there, and rows changed for no reason.

    Rows that change although the pattern has no column of the color there are returned; too many of them are a
    NotDiagonalError. Rows that are not in `only` do not count, nor do such changes up to `rounding` (N,).
    """
    coloring, n = color_columns(pattern), probe.size
    colors = coloring.colors
    left_out = np.union1d(full_rows, coloring.full_rows) if coloring.full_rows.size else full_rows
    ignored = left_out if only is None else np.setdiff1d(np.arange(n), np.setdiff1d(only, left_out))
    place = colors[pattern.columns] * n + pattern.rows
    expected = np.zeros((coloring.count, n), dtype=bool)
    expected.reshape(-1)[place] = True
    responses = np.empty((probe.systems, coloring.count, n), dtype=probe.F.dtype)
    changed = np.empty_like(expected)
    surprised = 0
    for color in range(coloring.count):
        responses[:, color] = F = probe.displace(colors == color)
        changed[color] = probe.changed_rows(F)
        changed[color, ignored] = False
        if rounding is not None:
            changed[color] &= expected[color] | ~(np.abs(F - probe.F) <= rounding).all(axis=0)
        surprised += int(np.count_nonzero(changed[color] & ~expected[color]))
        if surprised > TOO_MANY * n:
            raise NotDiagonalError
    there = changed.reshape(-1)[place]
    rows, columns, is_exact = pattern.rows, pattern.columns, not surprised and bool(there.all())
    if not is_exact:
        rows, columns, place = rows[there], columns[there], place[there]
    values = responses.reshape(probe.systems, -1).take(place, axis=1)
    unexplained = np.flatnonzero((changed & ~expected).any(axis=0)) if surprised else np.zeros(0, dtype=np.int64)
    return Entries(rows, columns, values, left_out, colors, pattern if is_exact else None), unexplained
