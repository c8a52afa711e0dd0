"""The pattern of any sparse Jacobian of one system, by sums over groups of columns, which identify these."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from implicitsolve._arrays.host import distinct, first_places
from implicitsolve._typing import HostArray
from implicitsolve.linearize._bisection import DISPLACEMENT, SEED, BudgetSpentError, Entries, Probe

LENGTH = 2.0**-10  # of the displacements, over those of the probe: curved by 1e-7, rounded to 1e-9 or less
LARGEST_GROUP = 16384  # columns of a group whose places one weight distinguishes; with more there are two digits
WEIGHT_ERROR = 0.03  # of the distance between two weights, by which one may differ that is measured
CLEAN = 1e-5  # part of the entries found in a sum that may be left of it
TINY = 1e-6  # part of the largest sum in the row, up to which a change needs no entry, without differences along colors
COLORED_DOUBT = 1e2  # ... and so many times as much of entries whose values come from the probe's displacements
AGREED = 1e-3  # relative distance of the values of an entry in different rounds
ULPS = 16.0  # of F, that are taken for rounding
FIRST_ROUNDS = 3  # before rows are decoded: a wrong column then is in groups that have changed in one of 10 cases
LEAST_GROUPS, MOST_GROUPS = 4, 64  # in a round; a row that changes with each of 64 groups is full
FEW_LEFT, HUB = 8, 8.0  # open rows that are left to halving, if they need so many times the groups of the others
FEW_OPEN = 0.01  # part of the rows that may stay open: by 0.08 entries of 1e-4 of the largest in their row were missed
MOST_OPEN, MOST_IN_CELL = 256, 300  # open rows, and columns in question, for which pairs of columns are tried
IDLE_ROUNDS, STILL_OPEN = 2, 0.9  # rounds that may leave nine of ten open rows as they are
SYMMETRIC = 0.9  # part of the entries whose mirror images may be entries, from which on all of these are taken
DAMPING, ALIKE = 1e-13, 1e-9  # of least squares; of two columns that no round distinguishes

Keys = HostArray
"""Numbers ``row * N + column`` of entries."""


@dataclass(frozen=True, eq=False)
class Round:
    """Sums of h_j dF_i/dx_j, and of these times weights w_j, over the columns j of each of some groups."""

    group: HostArray  # of each column (N,)
    table: HostArray  # columns by group and place
    place: HostArray  # of each column in its group (N,)
    weights: HostArray  # (1 + digits, N), the first ones 1
    sums: HostArray  # (1 + digits, groups, N)
    changed: HostArray  # whether F_i changes (groups, N)

    def equations(self, columns: HostArray) -> HostArray:
        """How the sums of rows follow from k columns of each (rows, k): (rows, (1 + digits) groups, k)."""
        mine = self.group[columns][:, None] == np.arange(self.sums.shape[1])[:, None]
        return np.concatenate([mine * weight.real[columns][:, None] for weight in self.weights], axis=1)


class GroupSums:
    """Entries of J in some rows, from sums over groups of columns.

    Columns are grouped at random, several times. For each group F is evaluated where its columns are displaced, and
    again where each is displaced by a part w_j of that, which identifies it. If a row has only one entry in a group,
    the ratio of its changes is that column's weight, and names it. The entry is subtracted from the sums of the other
    groups that hold the column, where others then are alone. A row is known when its entries explain all its sums.
    Of other rows the mirror images of entries in known rows are tried, as most patterns are nearly symmetric, and pairs
    of columns that share all groups.

    Three or four rounds of as many groups as a row has entries decode nearly all rows, however many there are. Rows
    stay open where F is curved within a millionth of x, and full ones. Sparse Fourier transforms use such sums [1]_.

    References
    ----------
    .. [1] X. Li, S. Pawar and K. Ramchandran, "Sub-linear time compressed sensing using sparse-graph codes", IEEE
           International Symposium on Information Theory (2015) 1645-1649.
    """

    def __init__(self, probe: Probe, rows: HostArray) -> None:
        self.probe, self.size = probe, probe.size
        self.h: HostArray = (probe.x[0] + LENGTH * probe.h[0]) - probe.x[0]
        self.rounds: list[Round] = []
        self.is_open: HostArray = np.isin(np.arange(probe.size), rows)
        self.keys: Keys = np.zeros(0, dtype=np.int64)  # in rows that are known
        self.values: HostArray = np.zeros(0, dtype=probe.F.dtype)  # their shares of sums
        self.guesses: Keys = self.keys  # in open rows
        self._random = np.random.default_rng(SEED)
        self._slack = 0.0  # part of the largest sum in a row that may be left of any

    def search(self, most: int) -> None:
        """Add rounds until at most so many rows are open, or more would gain little."""
        idle = 0
        while (before := np.count_nonzero(self.is_open)) > most and idle < IDLE_ROUNDS:
            groups = self._next_groups()
            if before <= FEW_LEFT and self.rounds and groups > HUB * self.rounds[0].sums.shape[1]:
                break
            self.add(groups)
            if len(self.rounds) >= FIRST_ROUNDS:
                self.explain()
                idle = idle + 1 if np.count_nonzero(self.is_open) > STILL_OPEN * before else 0

    def reopen(self, rows: HostArray) -> None:
        """Take the entries of some rows for guesses again."""
        self.is_open[rows] = True
        is_left = self.is_open[self.keys // self.size]
        self.guesses = np.append(self.guesses, self.keys[is_left])
        self.keys, self.values = self.keys[~is_left], self.values[~is_left]

    def entries(self, rows: HostArray) -> Entries:
        """Entries of those of some rows (N,) of bool that are known."""
        mine = rows[self.keys // self.size]
        i, j = np.divmod(self.keys[mine], self.size)
        values = self.probe.F[0, i] + self.values[mine] * (self.probe.h[0] / self.h)[j]
        return Entries(i, j, values[None], np.zeros(0, dtype=np.intp))

    def _next_groups(self) -> int:
        """As many groups as open rows have entries, estimated from the last round."""
        if not self.rounds:
            return LEAST_GROUPS
        changed = self.rounds[-1].changed[:, self.is_open]
        share, groups = min(float(np.mean(changed)), 0.99), changed.shape[0]
        return int(np.clip(np.ceil(np.log1p(-share) / np.log1p(-1 / groups)), groups, MOST_GROUPS))

    def explain(self, colored: Entries | None = None) -> None:
        """Close the open rows whose sums can be explained; with entries that differences along colors have shown."""
        self._slack = self._slack if colored is None else CLEAN
        rows = np.flatnonzero(self.is_open)
        keys, values, rest = self._decode(rows, colored)
        self.is_open[rows] = np.logical_or.reduce([part.unexplained.any(axis=0) for part in rest])
        is_left = self.is_open[keys // self.size]
        self.guesses = keys[is_left]
        self._add(keys[~is_left], values[~is_left])
        self._mirror()
        if np.count_nonzero(self.is_open) <= np.clip(FEW_OPEN * self.size, 8 * FEW_LEFT, MOST_OPEN):
            self._close(distinct(self.guesses[self.is_open[self.guesses // self.size]], self._pairs(rows, rest)))
            self._mirror()

    def _add(self, keys: Keys, values: HostArray) -> None:
        self.keys, self.values = np.append(self.keys, keys), np.append(self.values, values)
        self.is_open[keys // self.size] = False

    def _mirror(self) -> None:
        """Close rows by mirror images of known entries, then by entries in columns of open rows, while any are."""
        while self._close(self.hypothesis(self.is_open)) or self._close(self.hypothesis(self.is_open), self._among()):
            pass

    def _among(self) -> Keys:
        """Entries that open rows may have in columns of open rows, if such pairs are fewer than the known entries."""
        if (rows := np.flatnonzero(self.is_open)).size ** 2 > self.keys.size or not self._slack:
            return self.keys[:0]
        i, j = np.repeat(rows, rows.size), np.tile(rows, rows.size)
        return (i * np.int64(self.size) + j)[self._may_be(i, j)]

    def hypothesis(self, rows: HostArray) -> Keys:
        """Likely entries of some rows (N,) of bool: guesses, and the mirror images of known entries that may be."""
        i, j = np.divmod(self.keys, self.size)
        i, j = i[rows[j]], j[rows[j]]
        images = (j * np.int64(self.size) + i)[self._may_be(j, i)]
        return distinct(self.guesses[rows[self.guesses // self.size]], images)

    @property
    def pattern(self) -> Keys:
        """Known and likely entries; with all mirror images that may be, if these are nearly all."""
        rows, columns = np.divmod(self.keys, self.size)
        is_symmetric = np.count_nonzero(self._may_be(columns, rows)) >= SYMMETRIC * self.keys.size
        known = np.zeros(self.size, dtype=bool)
        known[rows] = is_symmetric
        return distinct(self.keys, self.hypothesis(self.is_open | known))

    def _may_be(self, rows: HostArray, columns: HostArray) -> HostArray:
        """Where there may be entries: the row changes with each group that has the column."""
        return np.logical_and.reduce([part.changed[part.group[columns], rows] for part in self.rounds])

    def add(self, groups: int) -> None:
        """Group the columns at random and displace each group, with and without weights."""
        probe, n = self.probe, self.size
        order = self._random.permutation(n)
        group, place = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
        group[order], place[order] = np.arange(n) % groups, np.arange(n) // groups
        size = -(-n // groups)
        base = size if size <= LARGEST_GROUP else int(np.ceil(size**0.5))
        digits = np.stack([place] if base == size else [place // base, place % base])
        parts = np.concatenate([np.ones((1, n)), 0.5 + (digits + 0.5) / (2 * base)])
        x, F = probe.x[0], probe.F[0]
        if probe.evaluations + parts.shape[0] * groups > probe.budget:
            raise BudgetSpentError
        moved = x + self.h * parts
        sums = np.empty((parts.shape[0], groups, n), dtype=F.dtype)
        for g in range(groups):
            for digit, there in enumerate(moved):
                sums[digit, g] = probe.evaluate(np.where(group == g, there, x)[None])[0] - F
        table = np.full((groups, size), -1)
        table[group, place] = np.arange(n)
        weights = (moved - x) / (moved[0] - x)
        self.rounds.append(Round(group, table, place, weights, sums, (sums != 0).any(axis=0)))

    def rounding(self, rows: HostArray) -> HostArray:
        """What rounding leaves of changes of F in some rows, whose terms are as large as F, or J x, at least."""
        largest = np.abs(self.rounds[0].sums[0][:, rows]).max(axis=0)
        terms = np.abs(self.probe.F[0, rows]) + largest / (LENGTH * DISPLACEMENT)
        return ULPS * np.finfo(terms.dtype).eps * terms

    def _close(self, likely: Keys, others: Keys | None = None) -> bool:
        """Close rows whose keys explain their sums by least squares, with others where these are felt; whether any."""
        keys = likely if others is None else distinct(likely, others)
        rows, columns = np.divmod(keys, self.size)
        start = first_places(rows)
        some, count = rows[start], np.diff(np.append(start, rows.size))
        fits, values = np.zeros(some.size, dtype=bool), np.zeros(keys.size, dtype=self.probe.F.dtype)
        equations = sum(part.sums[..., 0].size for part in self.rounds)
        for k in np.unique(count[2 * count <= equations]).tolist():
            mine = np.flatnonzero(count == k)
            places = start[mine][:, None] + np.arange(k)
            fits[mine], values[places] = self._fit(some[mine], columns[places])
        largest = np.repeat(np.maximum.reduceat(np.abs(values), start), count) if keys.size else values
        is_there = np.repeat(fits, count) & (np.isin(keys, likely) | (np.abs(values) > TINY * largest))
        self._add(keys[is_there], values[is_there])
        return bool(fits.any())

    def _fit(self, rows: HostArray, columns: HostArray) -> tuple[HostArray, HostArray]:
        """Whether k columns of each row (rows, k) explain its sums, and the values of these by least squares."""
        A = np.concatenate([part.equations(columns) for part in self.rounds], axis=1)
        b = np.concatenate([part.sums[..., rows].reshape(-1, rows.size) for part in self.rounds]).T[..., None]
        changed = np.concatenate([np.tile(part.changed[:, rows], (len(part.sums), 1)) for part in self.rounds]).T
        H, values = A.swapaxes(1, 2), np.zeros((*columns.shape, 1))
        normal = H @ A + DAMPING * np.eye(columns.shape[1])
        for _ in range(2):
            values = values + np.linalg.solve(normal, H @ (b - A @ values))
        rest, gone = np.abs(b - A @ values)[..., 0], (A @ np.abs(values))[..., 0]
        largest = np.abs(b).max(axis=1)
        is_left = rest > self.rounding(rows)[:, None] + self._slack * largest + CLEAN * gone
        is_wrong = changed & np.where(gone > 0, is_left, rest > max(self._slack, TINY) * largest)
        return ~is_wrong.any(axis=1), values[..., 0]

    def _decode(self, rows: HostArray, colored: Entries | None) -> tuple[Keys, HostArray, list[Rest]]:
        """Entries of some rows that are alone in a group once others are subtracted, their values, and what is left."""
        n, rounding = self.size, self.rounding(rows)
        rest = [Rest(part, rows) for part in self.rounds]
        keys, values = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=self.probe.F.dtype)
        if colored is not None:
            keys = np.searchsorted(rows, colored.rows) * np.int64(n) + colored.columns
            values = (colored.values[0] - self.probe.F[0, colored.rows]) * (self.h / self.probe.h[0])[colored.columns]
            row, column = np.divmod(keys, n)
            for part in rest:
                part.subtract(row, column, values, COLORED_DOUBT)
        while True:
            found, its = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=values.dtype)
            for part in rest:
                row, column, value = part.alone(rounding)
                is_there = self._may_be(rows[row], column)
                found = np.append(found, (row * np.int64(n) + column)[is_there])
                its = np.append(its, value[is_there])
            found, its, support = _medians(found, its)
            support[np.isin(found, keys, assume_unique=True)] = 0
            most = np.zeros(rows.size, dtype=np.int64)
            np.maximum.at(most, found // n, support)  # a wrong column hardly comes up twice
            is_best = support >= np.clip(most[found // n], 1, 2)
            found, its = found[is_best], its[is_best]
            if not found.size:
                row, column = np.divmod(keys, n)
                for part in rest:
                    part.unexplained = part.is_wrong(rounding, self._slack)
                return rows[row] * np.int64(n) + column, values, rest
            keys, values = np.append(keys, found), np.append(values, its)
            row, column = np.divmod(found, n)
            for part in rest:
                part.subtract(row, column, its)

    def _pairs(self, rows: HostArray, rest: list[Rest]) -> Keys:
        """One or two columns of each open row that explain best what is left of its sums."""
        keys = [np.zeros(0, dtype=np.int64)]
        for k in np.flatnonzero(self.is_open[rows]).tolist():
            masks = [part.unexplained[:, k] for part in rest]
            cell = self.rounds[-1].table[masks[-1]].ravel()  # columns of groups with something left, in all rounds
            for part, mask in zip(self.rounds, masks):
                cell = cell[mask[part.group[cell]] & (cell >= 0)]
            if 0 < cell.size <= MOST_IN_CELL:
                pieces = [  # of groups with something left, in which these columns are
                    (part.group[cell] == np.flatnonzero(mask)[:, None]) * part.weights[:, None, cell].real
                    for part, mask in zip(self.rounds, masks)
                ]
                A = np.concatenate([piece.reshape(-1, cell.size) for piece in pieces]).T
                b = np.concatenate([part.sums[:, mask, k].ravel() for part, mask in zip(rest, masks)])
                keys.append(rows[k] * np.int64(self.size) + cell[_best_pair(A, b)])
        return np.concatenate(keys)


class Rest:
    """What entries leave of the sums of a round, in some rows."""

    def __init__(self, part: Round, rows: HostArray) -> None:
        self.part, self.changed = part, part.changed[:, rows]
        self.sums: HostArray = part.sums[:, :, rows]
        self.gone: HostArray = np.zeros(self.changed.shape)  # sizes of what was subtracted
        self.largest: HostArray = np.abs(self.sums[0]).max(axis=0)
        self.unexplained: HostArray = self.changed

    def subtract(self, row: HostArray, column: HostArray, values: HostArray, doubt: float = 1.0) -> None:
        """Subtract entries with some values, which are `doubt` times less accurate than those found here."""
        place = self.part.group[column] * self.changed.shape[1] + row
        for digit, weight in enumerate(self.part.weights):
            self.sums[digit] -= _totals(place, values * weight[column], self.changed.shape)
        self.gone += doubt * _totals(place, np.abs(values), self.changed.shape)

    def is_wrong(self, rounding: HostArray, slack: float) -> HostArray:
        """Where rounding, or a part of the largest, cannot be what is left, or no entry explains it (groups, rows)."""
        size = np.abs(self.sums)
        is_left = (size > rounding + slack * self.largest + CLEAN * self.gone).any(axis=0)
        return self.changed & np.where(self.gone > 0, is_left, size[0] > max(slack, TINY) * self.largest)

    def alone(self, rounding: HostArray) -> tuple[HostArray, HostArray, HostArray]:
        """Rows, columns that alone would make what is left of a sum, and their values."""
        part = self.part
        g, row = np.nonzero(self.changed & (np.abs(self.sums[0]) > rounding + CLEAN * self.gone))
        sums = self.sums[:, g, row]
        with np.errstate(all="ignore"):
            ratios = sums[1:] / sums[0]
        size, weights = part.table.shape[1], part.weights[1:]
        base = size if len(weights) == 1 else int(np.ceil(size**0.5))
        numbers = np.nan_to_num((ratios.real - 0.5) * 2 * base - 0.5, nan=-1, posinf=-1, neginf=-1)
        digits = np.rint(numbers).astype(np.int64)
        inside = ((digits >= 0) & (digits < base)).all(axis=0)
        place = np.where(inside, digits[0] if len(digits) == 1 else digits[0] * base + digits[1], 0)
        column = np.where(inside & (place < size), part.table[g, np.minimum(place, size - 1)], -1)
        is_close = (np.abs(ratios - weights[:, column]) < WEIGHT_ERROR / (2 * base)).all(axis=0) & (column >= 0)
        return row[is_close], column[is_close], sums[0, is_close]


def _best_pair(A: HostArray, b: HostArray) -> HostArray:
    """The two rows of A (n, M), or the one, that explain b best by least squares."""
    A = A / np.linalg.norm(A, axis=1, keepdims=True)
    cosine, c = A @ A.T, A @ b
    gain = cosine * (c[:, None] * c.conj()).real
    gain *= -2
    gain += np.abs(c)[:, None] ** 2 + np.abs(c) ** 2
    apart = 1 - cosine * cosine
    gain = np.where(apart > ALIKE, gain / np.maximum(apart, ALIKE), 0.0)
    np.fill_diagonal(gain, np.abs(c) ** 2)
    return np.unique(np.unravel_index(np.argmax(gain), gain.shape))


def _medians(keys: HostArray, values: HostArray) -> tuple[HostArray, HostArray, HostArray]:
    """Keys, each once, with the median of its values, and how many of them agree with that."""
    order = np.lexsort((np.abs(values), keys))
    keys, values = keys[order], values[order]
    keys, first, number, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    median = values[first + counts // 2]
    agrees = np.abs(values - median[number]) <= AGREED * np.abs(median[number])
    return keys, median, np.bincount(number, agrees, minlength=keys.size).astype(np.int64)


def _totals(place: HostArray, values: HostArray, shape: tuple[int, ...]) -> HostArray:
    """Sums of real or complex values by their places."""
    size = int(np.prod(shape))
    total = np.bincount(place, values.real, minlength=size)
    if values.dtype.kind == "c":
        total = total + 1j * np.bincount(place, values.imag, minlength=size)
    return total.reshape(shape)
