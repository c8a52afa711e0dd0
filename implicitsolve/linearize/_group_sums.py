"""The pattern of any sparse Jacobian of one system, by sums over groups of columns, which identify these."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.linearize._bisection import SEED, STEP, BudgetSpentError, Probe

LENGTH = 2.0**-14  # of the displacements, over those of the probe: curved by 1e-8, rounded to 1e-8 or less
LONGEST = 8192  # columns of a group whose places one weight tells apart; with more there are two digits
CLOSE = 0.03  # of the distance between two weights, by which one may differ that is measured
CLEAN = 1e-5  # part of the entries found in a sum that may be left of it
AGREED = 1e-3  # relative distance of the values of an entry in different rounds
ULPS = 16.0  # of F, that are taken for rounding
ROUNDS = 3  # before rows are decoded: a wrong column then is in groups that have changed in one of 10 cases
WIDER = 1.0  # groups, over the entries of an open row in the mean
LEAST_GROUPS, MOST_GROUPS = 4, 64  # in a round; a row that changes with each of 64 groups is full
FEW, HUB = 8, 4.0  # open rows that are left to halving, if they need so many times the groups of the others
FIXED, FOR_ENTRY = 30.0, 18.0  # evaluations; for each entry of a row: on meshes and networks
IDLE, STUCK = 2, 0.9  # rounds that may leave nine of ten open rows as they are


@dataclass(frozen=True, eq=False)
class Round:
    """Sums of h_j dF_i/dx_j, and of these times weights w_j, over the columns j of each of some groups."""

    group: HostArray  # of each column (N,)
    table: HostArray  # columns by group and place
    place: HostArray  # of each column in its group (N,)
    weights: HostArray  # (digits, N)
    sums: HostArray  # (1 + digits, groups, N)
    changed: HostArray  # whether F_i changes (groups, N)


def group_sums_cost(row_entries: float) -> float:
    """Evaluations that the search will likely take, with differences along the colors at its end."""
    return FIXED + FOR_ENTRY * row_entries


def group_sums(probe: Probe, only: HostArray | None = None) -> tuple[HostArray, HostArray, HostArray]:
    """Find the entries of J in all rows, or in some: rows and columns of these, and the rows that could not be decoded.

    Columns are grouped at random, several times. For each group F is evaluated where its columns are displaced, and
    again where each is displaced by a part w_j of that, which identifies it. If a row has only one entry in a group,
    the ratio of its changes is that column's weight, and names it. The entry is subtracted from the sums of the other
    groups that hold the column, where others then are alone. A row is known when its entries explain all its sums;
    for the others there are more rounds.

    Three to five rounds of 1.5 times as many groups as a row has entries decode nearly all rows, however many there
    are: that is 8 to 15 evaluations for each entry of a row. Rows stay open where F is curved, or kinked, within a
    millionth of x. Full rows are among these. Such sums are those of sparse Fourier transforms [1]_.

    References
    ----------
    .. [1] X. Li, S. Pawar and K. Ramchandran, "Sub-linear time compressed sensing using sparse-graph codes", IEEE
           International Symposium on Information Theory (2015) 1645-1649.
    """
    n, random = probe.size, np.random.default_rng(SEED)
    h = (probe.x[0] + LENGTH * probe.h[0]) - probe.x[0]
    is_open = np.ones(n, dtype=bool) if only is None else np.isin(np.arange(n), only)
    rounds, idle, groups = [_grouping(probe, h, LEAST_GROUPS, random)], 0, LEAST_GROUPS
    rows, columns = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    while is_open.any() and idle < IDLE:
        share = min(float(np.mean(rounds[-1].changed[:, is_open])), 0.99)
        entries = np.log1p(-share) / np.log1p(-1 / groups)  # of an open row
        groups = int(np.clip(np.ceil(WIDER * entries), groups, MOST_GROUPS))
        if np.count_nonzero(is_open) <= FEW and groups > HUB * rounds[min(1, len(rounds) - 1)].sums.shape[1]:
            break
        rounds.append(_grouping(probe, h, groups, random))
        if len(rounds) < ROUNDS:
            continue
        some = np.flatnonzero(is_open)
        more, found, left = _entries_of(rounds, some, _rounding(probe, rounds[0], some), h)
        rows, columns = np.append(rows, some[more]), np.append(columns, found)
        idle = idle + 1 if np.count_nonzero(left) > STUCK * some.size else 0
        is_open[some[~left]] = False
    return rows, columns, np.flatnonzero(is_open)


def _rounding(probe: Probe, part: Round, rows: HostArray) -> HostArray:
    """What rounding leaves of changes of F in some rows, whose terms are as large as F, or J x, at least."""
    terms = np.abs(probe.F[0, rows]) + np.abs(part.sums[0][:, rows]).max(axis=0) / (LENGTH * STEP)
    return ULPS * np.finfo(terms.dtype).eps * terms


def _grouping(probe: Probe, h: HostArray, groups: int, random: np.random.Generator) -> Round:
    """Group the columns at random and displace each group, with and without weights."""
    n = probe.size
    order = random.permutation(n)
    group, place = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    group[order], place[order] = np.arange(n) % groups, np.arange(n) // groups
    size = -(-n // groups)
    base = size if size <= LONGEST else int(np.ceil(size**0.5))
    digits = np.stack([place] if base == size else [place // base, place % base])
    parts = np.concatenate([np.ones((1, n)), 0.5 + (digits + 0.5) / (2 * base)])
    x, F = probe.x[0], probe.F[0]
    if probe.evaluations + parts.shape[0] * groups > probe.budget:
        raise BudgetSpentError
    moved = x + h * parts
    sums = np.empty((parts.shape[0], groups, n), dtype=F.dtype)
    for g in range(groups):
        for digit, there in enumerate(moved):
            sums[digit, g] = probe.evaluate(np.where(group == g, there, x)[None])[0] - F
    table = np.full((groups, size), -1)
    table[group, place] = np.arange(n)
    return Round(group, table, place, (moved[1:] - x) / (moved[0] - x), sums, (sums != 0).any(axis=0))


def _entries_of(
    rounds: list[Round], rows: HostArray, rounding: HostArray, h: HostArray
) -> tuple[HostArray, HostArray, HostArray]:
    """Entries of some rows that explain all their sums: places in `rows`, columns; and which rows are left."""
    n, count = h.size, rows.size
    sums = [part.sums[:, :, rows] for part in rounds]
    changed = [part.changed[:, rows] for part in rounds]
    removed = [np.zeros(part.shape) for part in changed]
    keys = np.zeros(0, dtype=np.int64)
    while True:
        found, values = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=sums[0].dtype)
        for part, sum_, bits, gone in zip(rounds, sums, changed, removed):
            g, row = np.nonzero(bits & (np.abs(sum_[0]) > rounding + CLEAN * gone))
            column, value = _alone(part, g, sum_[:, g, row])
            row, column, value = row[column >= 0], column[column >= 0], value[column >= 0]
            for other, its in zip(rounds, changed):
                is_there = its[other.group[column], row]
                row, column, value = row[is_there], column[is_there], value[is_there]
            found, values = np.append(found, row * np.int64(n) + column), np.append(values, value)
        is_new = ~np.isin(found, keys)
        found, values, support = _medians(found[is_new], values[is_new])
        most = np.zeros(count, dtype=np.int64)
        np.maximum.at(most, found // n, support)  # a wrong column hardly comes up twice
        is_best = support >= np.minimum(most[found // n], 2)
        found, values = found[is_best], values[is_best]
        if not found.size:
            break
        keys = np.append(keys, found)
        row, column = np.divmod(found, n)
        for part, sum_, gone in zip(rounds, sums, removed):
            place = part.group[column] * count + row
            for digit, weight in enumerate((np.ones(n), *part.weights)):
                sum_[digit] -= _totals(place, values * weight[column], gone.shape)
            gone += _totals(place, np.abs(values), gone.shape)
    left = np.zeros(count, dtype=bool)
    for sum_, bits, gone in zip(sums, changed, removed):
        left |= (bits & ((gone == 0) | (np.abs(sum_) > rounding + CLEAN * gone).any(axis=0))).any(axis=0)
    row, column = np.divmod(keys, n)
    return row[~left[row]], column[~left[row]], left


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


def _alone(part: Round, group: HostArray, sums: HostArray) -> tuple[HostArray, HostArray]:
    """The columns that alone would make these sums (1 + digits, count), or -1; and their share of the first."""
    with np.errstate(all="ignore"):
        ratios = sums[1:] / sums[0]
    size = part.table.shape[1]
    base = size if len(part.weights) == 1 else int(np.ceil(size**0.5))
    digits = np.rint(np.nan_to_num((ratios.real - 0.5) * 2 * base - 0.5, nan=-1, posinf=-1, neginf=-1)).astype(np.int64)
    inside = ((digits >= 0) & (digits < base)).all(axis=0)
    place = np.where(inside, digits[0] if len(digits) == 1 else digits[0] * base + digits[1], 0)
    column = np.where(inside & (place < size), part.table[group, np.minimum(place, size - 1)], -1)
    is_close = (np.abs(ratios - part.weights[:, column]) < CLOSE / (2 * base)).all(axis=0)
    return np.where(is_close, column, -1), sums[0]
