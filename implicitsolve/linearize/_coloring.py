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
    """Colors (j + a j1 + b j2) mod p with the smallest p that is near `least` and leaves no conflict, None if none is.

    j1 and j2 number the lines and the planes of a grid, whose lengths the gaps between the offsets tell: so five colors
    do for a five-point stencil, and seven in the cube. Two entries (i, j), (i, j') of a row conflict if their columns
    have one color. The differences of the offsets decide first; offsets that differ from row to row (a ring,
    boundaries) are decided by the entries themselves.
    """
    n = structure.unknowns
    if not structure.nnz or n <= least:
        return None
    offsets = np.flatnonzero(np.bincount(structure.indices - structure.columns + n)) - n
    steps = _line_lengths(offsets)
    by_offsets = offsets.size <= 4 * least
    differences = np.subtract.outer(offsets, offsets)[~np.eye(offsets.size, dtype=bool)] if by_offsets else offsets[:0]
    every = np.arange(n)
    for p in range(least, min(n, int(SLACK * least) + 2)):
        if by_offsets and (differences % p).all():
            return (every % p).astype(np.int32)
        if offsets.size > least and _has_no_conflict(structure, every % p, p):
            return (every % p).astype(np.int32)
        found = _lattice(offsets, steps, p) if by_offsets and steps else None
        if found is not None:
            colors = _numbered(every, steps, found) % p
            if _has_no_conflict(structure, colors, p):
                return colors.astype(np.int32)
    return None


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
    parts = [_numbered(offsets, steps, tuple(int(a == b) for b in range(len(steps)))) for a in range(len(steps))]
    none = _numbered(offsets, steps, (0,) * len(steps))
    for factors in itertools.product(range(1, p), repeat=len(steps)):
        colors = none + sum(factor * (part - none) for factor, part in zip(factors, parts))
        if np.unique(colors % p).size == offsets.size:
            return factors
    return None


def _has_no_conflict(structure: Sparse, colors: HostArray, p: int) -> bool:
    """Whether no row has two entries of one color, in one pass over the pattern."""
    n = structure.unknowns
    if structure.nnz > n * p:
        return False
    seen = np.bincount(structure.indices * np.int64(p) + colors[structure.columns], minlength=n * p)
    return int(seen.max()) <= 1


def greedy_colors(indptr: HostArray, indices: HostArray, rows: int, limit: int | None = None) -> HostArray:
    """First free color for each column, the fullest columns first; with a `limit`, any color where none is free.

    The colors that a row has seen are the bits of a Python integer, so that a column costs two passes over its entries.
    """
    count = indptr.size - 1
    sizes = np.diff(indptr)
    order: list[int] = np.argsort(-sizes, kind="stable").tolist()
    seen = [0] * rows
    ends: list[int] = indptr.tolist()
    entries: list[int] = indices.tolist()
    colors = [0] * count
    for j in order:
        column = entries[ends[j] : ends[j + 1]]
        taken = 0
        for i in column:
            taken |= seen[i]
        bit = ~taken & (taken + 1)
        if limit is not None and bit >> limit:
            bit = 1 << (j * 2654435761 >> 7) % limit  # a number without order, always the same
        for i in column:
            seen[i] |= bit
        colors[j] = bit.bit_length() - 1
    return np.array(colors, dtype=np.int32)
