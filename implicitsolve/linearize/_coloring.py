"""Column coloring: unknowns of one color appear together in no equation, so one difference suffices for all."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from implicitsolve._sparse_structure import Sparse
from implicitsolve._typing import HostArray

SLACK = 1.34  # a closed form is taken with so many times the colors that the fullest row needs; greedy needs 1.2 to 1.4
LEAST_FULL = 48  # entries from which on a row may be left out as full
FULLER = 6.0  # how many times the entries of the 99th percentile a row that is left out has
MOST_FULL = 8  # rows that may be left out
MOST_COLORS = 1.75  # the same after the repair of conflicts; a greedy coloring takes ten times as long
COMMON = 32  # an offset is common if at least one of so many columns has it
LEAST_COMMON = 0.7  # part of the entries that common offsets must have
MOST_REPAIRED = 0.3  # part of the entries that may be in rows with a conflict
MOST_BITS = 52  # colors whose sum of powers of two a float64 holds exactly


@dataclass(frozen=True, eq=False)
class Coloring:
    """Colors of the columns.

    Attributes
    ----------
    colors : ndarray (N,) of int
        Color of each column.
    count : int
        Number of colors.
    full_rows : ndarray of int
        Rows with so many entries that the coloring does not respect them; mostly none.
    """

    colors: HostArray
    count: int
    full_rows: HostArray


def color_columns(structure: Sparse) -> Coloring:
    """Color the columns of a pattern such that no row, few full ones aside, has two entries of one color.

    Periodic colors j mod p are tried first: on a grid they are nearly optimal and cost a few passes over the pattern.
    Else columns are colored one by one, the fullest first, each with the first color that is free [1]_.

    References
    ----------
    .. [1] A. H. Gebremedhin, F. Manne and A. Pothen, "What color is your Jacobian? Graph coloring for computing
           derivatives", SIAM Review 47 (2005) 629-705, sections 3 and 7.
    """
    n = structure.unknowns
    full = full_rows(structure.row_counts)
    if full.size:
        keep = ~np.isin(structure.indices, full)
        structure = Sparse((structure.indices[keep], structure.columns[keep]), unknowns=n)
    least = max(1, int(structure.row_counts.max(initial=0)))
    colors = periodic_colors(structure, least)
    if colors is None:
        colors = greedy_colors(structure.indptr, structure.indices, n)
    return Coloring(colors, int(colors.max(initial=0)) + 1, full)


def full_rows(counts: HostArray) -> HostArray:
    """Rows with far more entries than the others, if they are few."""
    if not counts.size:
        return np.zeros(0, dtype=np.intp)
    place = max(0, counts.size - 1 - counts.size // 100 - MOST_FULL)
    usual = int(np.partition(counts, place)[place])
    rows = np.flatnonzero(counts > max(LEAST_FULL, FULLER * usual))
    return rows if rows.size <= MOST_FULL else np.zeros(0, dtype=np.intp)


def periodic_colors(structure: Sparse, least: int) -> HostArray | None:
    """Colors (j + a j1 + b j2) mod p with the smallest p that is near `least` and leaves few conflicts, or None.

    j1 and j2 number the lines and the planes of a grid, whose lengths follow from the gaps between offsets: five colors
    do for a five-point stencil, and seven in the cube. Two entries (i, j), (i, j') of a row conflict if their columns
    have one color. The differences of the offsets that many columns have decide first. What conflicts are left, at the
    ends of lines or the seam of a ring, are resolved by coloring these columns one by one.
    """
    n = structure.unknowns
    if not structure.nnz or n <= least:
        return None
    counts = np.bincount(structure.indices - structure.columns + n)
    offsets = np.flatnonzero(counts) - n
    common = np.flatnonzero(counts * COMMON >= n) - n
    if common.size > 4 * least or counts[common + n].sum() < LEAST_COMMON * structure.nnz:
        return None
    steps = _line_lengths(common)
    every = np.arange(n, dtype=np.int32)
    best, count = None, min(n, int(MOST_COLORS * least) + 3, MOST_BITS)
    periods = range(least, min(count, int(SLACK * least) + 2))
    whole = next((p for p in periods if np.unique(offsets % p).size == offsets.size), None)
    tried = 0
    for p in periods if whole is None else range(least, whole):
        if p >= count or (tried > 1 and best is not None):
            break
        if common.size > p or np.unique(common % p).size == common.size:
            colors = every % p
        else:
            factors = _lattice(common, steps, p) if steps else None
            if factors is None:
                continue
            colors = (_numbered(every, steps, factors) % p).astype(np.int32)
        repaired, tried = _repaired(structure, colors, p, MOST_REPAIRED if whole is None else 0.0), tried + 1
        if repaired is not None and int(repaired.max()) + 1 < count:
            best, count = repaired, int(repaired.max()) + 1
    return every % whole if best is None and whole is not None else best


def _repaired(structure: Sparse, colors: HostArray, p: int, most: float) -> HostArray | None:
    """Proper colors where few columns have one that is taken, which are colored again; None where these are many.

    Many are those in the rows of more than the part `most` of the entries.

    A row whose colors are p different ones has as many bits in the sum of 2^color; equal ones carry.
    """
    n, rows = structure.unknowns, structure.indices
    bits = np.bincount(rows, np.repeat(2.0**colors, np.diff(structure.indptr)), minlength=n).astype(np.int64)
    bad = np.bitwise_count(bits) != structure.row_counts
    if not bad.any():
        return colors
    entries = np.flatnonzero(bad[rows])
    if entries.size > most * rows.size:
        return None
    columns = structure.columns[entries]
    keys = rows[entries] * np.int64(p) + colors[columns]
    order = np.argsort(keys, kind="stable")
    again = columns[order[1:][keys[order[1:]] == keys[order[:-1]]]]
    colors = colors.copy()
    colors[again] = -1
    return greedy_colors(structure.indptr, rows, n, colors=colors)


def _line_lengths(offsets: HostArray) -> list[int]:
    """Lengths of the lines and planes of a grid, from the gaps between offsets: at most two."""
    sizes = np.unique(np.abs(offsets[offsets != 0]))
    lengths: list[int] = []
    for before, after in itertools.pairwise(sizes):
        if after >= 3 * before and after >= 6:
            lengths.append(int(np.median(sizes[(sizes >= after) & (sizes <= 1.5 * after)])))
    return lengths[:2]


def _numbered(j: HostArray, steps: list[int], factors: tuple[int, ...]) -> HostArray:
    """The place in the line, plus factors times the numbers of the line and of the plane; j may be an offset."""
    total = 0 * j
    for step, factor in zip(reversed(steps), reversed(factors)):
        number = (j + (step // 2 if (j < 0).any() else 0)) // step  # an offset lies around zero
        total += factor * number
        j = j - number * step
    return total + j


def _lattice(offsets: HostArray, steps: list[int], p: int) -> tuple[int, ...] | None:
    """Factors for which all offsets have different colors; None if there are none."""
    axes = range(len(steps))
    none = _numbered(offsets, steps, (0,) * len(steps))
    parts = np.array([_numbered(offsets, steps, tuple(int(a == b) for b in axes)) - none for a in axes])
    factors = np.stack(np.meshgrid(*[np.arange(1, p)] * len(steps), indexing="ij"), axis=-1).reshape(-1, len(steps))
    colors = np.sort((none + factors @ parts) % p, axis=1)
    proper = np.flatnonzero((colors[:, 1:] != colors[:, :-1]).all(axis=1))
    return tuple(factors[proper[0]].tolist()) if proper.size else None


def greedy_colors(
    indptr: HostArray, indices: HostArray, rows: int, limit: int | None = None, colors: HostArray | None = None
) -> HostArray:
    """First free color for each column, the fullest columns first; with a `limit`, any color where none is free.

    The colors that a row has seen are the bits of a Python integer, so that a column costs two passes over its entries.
    Columns whose `colors` are given and not negative (at most 52) keep them.
    """
    sizes = np.diff(indptr)
    seen = [0] * rows
    chosen = [0] * sizes.size
    order = np.argsort(-sizes, kind="stable")
    if colors is not None:
        bits = np.repeat(np.where(colors < 0, 0.0, 2.0 ** np.maximum(colors, 0)), sizes)
        seen, chosen = np.bincount(indices, bits, minlength=rows).astype(np.int64).tolist(), colors.tolist()
        order = order[colors[order] < 0]
    ends: list[int] = indptr.tolist()
    for j in order.tolist():
        column: list[int] = indices[ends[j] : ends[j + 1]].tolist()
        taken = 0
        for i in column:
            taken |= seen[i]
        bit = ~taken & (taken + 1)
        if limit is not None and bit >> limit:
            bit = 1 << (j * 2654435761 >> 7) % limit  # a number without order, always the same
        for i in column:
            seen[i] |= bit
        chosen[j] = bit.bit_length() - 1
    return np.array(chosen, dtype=np.int32)
