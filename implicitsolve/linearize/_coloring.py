"""Column coloring: unknowns of one color appear together in no equation, so one difference suffices for all."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.structure._sparse import COMMON, LEAST_COMMON, Sparse

SLACK = 1.5  # a lattice is taken with so many times the colors that the fullest row needs; greedy needs 1.2 to 2
LEAST_FULL, FULL_PART = 128, 0.25  # entries of a full row at least, and their part of the unknowns
MOST_FULL = 8  # rows that may be left out
LEAST_LINES = 4  # an offset shows a length of lines if at least one of so many columns has it
MOST_KINDS, MOST_LATTICES = 96, 256  # kinds of rows that are looked at, and lattices that suit the most frequent one
PRIME = 1021  # hashes of rows
MOST_BITS = 52  # colors whose sum of powers of two a float64 holds exactly


@dataclass(frozen=True, eq=False)
class Coloring:
    """Colors of the columns."""

    colors: HostArray  # (N,)
    count: int
    full_rows: HostArray  # rows with entries in a quarter of the columns or more, where they are few; mostly none
    local: HostArray  # whether the coloring respects an entry (nnz,): of full rows only those with a mirror image


def color_columns(structure: Sparse) -> Coloring:
    """Color the columns of a pattern such that no row, few full ones aside, has two entries of one color.

    Lattices are tried first: on a grid they are nearly optimal and cost a few passes over the pattern.
    Else columns are colored one by one, the fullest first, each with the first color that is free [1]_.

    References
    ----------
    .. [1] A. H. Gebremedhin, F. Manne and A. Pothen, "What color is your Jacobian? Graph coloring for computing
           derivatives", SIAM Review 47 (2005) 629-705, sections 3 and 7.
    """
    n = structure.unknowns
    full, local = full_rows(structure.row_counts), np.ones(structure.nnz, dtype=bool)
    if full.size:
        local = ~np.isin(structure.indices, full) | _has_image(structure, full)
        structure = Sparse((structure.indices[local], structure.columns[local]), unknowns=n)
    least = max(1, int(structure.row_counts.max(initial=0)))
    colors = lattice_colors(structure, least)
    if colors is None:
        colors = greedy_colors(structure.indptr, structure.indices, n)
    return Coloring(colors, int(colors.max(initial=0)) + 1, full, local)


def full_rows(counts: HostArray) -> HostArray:
    """Rows with entries in a quarter of the columns or more, if they are few."""
    rows = np.flatnonzero(counts > max(LEAST_FULL, FULL_PART * counts.size))
    return rows if rows.size <= MOST_FULL else np.zeros(0, dtype=np.intp)


def _has_image(structure: Sparse, full: HostArray) -> HostArray:
    """Whether (j, i) is an entry in a row that is not full, or i = j: unknown i then is local to equation j."""
    n, rows, columns = np.int64(structure.unknowns), structure.rows, structure.columns
    sizes = np.diff(structure.indptr)
    short = ~np.isin(rows, full) & (sizes <= LEAST_FULL)[columns]
    return np.isin(rows * n + columns, (columns * n + rows)[short]) | (rows == columns)


def lattice_colors(structure: Sparse, least: int) -> HostArray | None:
    """Colors that repeat on a grid like the cosets of a lattice: the fewest, from `least` on, or None.

    Columns are numbered by their place on a grid, whose lines are as long as offsets show that many columns have. The
    lattices of index p have p cosets, such as (j + 2 j1) mod 5 for a five-point stencil. The first without conflicts
    in any kind of row, inside or at an end, is taken.
    """
    n = structure.unknowns
    if not structure.nnz or n <= least:
        return None
    offsets = structure.offsets + n  # from 1 to 2 n - 1
    counts = np.bincount(offsets, minlength=2 * n)
    common = np.flatnonzero(counts * COMMON >= n)
    if common.size > 4 * least or counts[common].sum() < LEAST_COMMON * structure.nnz:
        return None
    steps = _line_lengths(common - n, counts[common], n)
    columns, weights = _kinds_of_rows(structure, offsets)
    if weights.sum() < LEAST_COMMON * n:
        return None
    most = min(n, int(SLACK * least) + 2, MOST_BITS)
    best = _best_lattice(_number(np.maximum(columns, 0), steps), columns, range(least, most))
    if best is None:
        return None
    p, lattice = best
    colors = _cosets(lattice[None], _number(np.arange(n), steps))[0]
    return colors if _is_proper(structure, colors, p) else None


def _best_lattice(entries: list[HostArray], columns: HostArray, indices: range) -> tuple[int, HostArray] | None:
    """The first lattice without conflicts in the entries of rows of each kind, and its index."""
    for p in indices:
        lattices = lattices_of_index(p, len(entries))
        lattices = lattices[~_conflicts(lattices, [part[:1] for part in entries], columns[:1])[:, 0]]
        for few in (lattices[i : i + 16] for i in range(0, min(lattices.shape[0], MOST_LATTICES), 16)):
            is_free = ~_conflicts(few, entries, columns).any(axis=1)
            if is_free.any():
                return p, few[np.argmax(is_free)]
    return None


def _line_lengths(offsets: HostArray, counts: HostArray, n: int) -> list[int]:
    """Lengths of the lines and planes of a grid, from the gaps between offsets: at most two."""
    sizes, place = np.unique(np.abs(offsets), return_inverse=True)
    counts = np.bincount(place, counts)
    lengths: list[int] = []
    for before, after in itertools.pairwise(sizes[sizes > 0].tolist()):
        if after >= 3 * before and after >= 6:
            near = (sizes >= after) & (sizes <= 1.5 * after)
            whole = near & (n % np.maximum(sizes, 1) == 0)  # as on a grid
            length = int(np.argmax(np.where(whole if whole.any() else near, counts, 0)))
            if counts[length] * LEAST_LINES >= n:
                lengths.append(int(sizes[length]))
    return lengths[:2]


def _kinds_of_rows(structure: Sparse, offsets: HostArray) -> tuple[HostArray, HostArray]:
    """The columns (kinds, entries) of one row of each set of offsets, -1 after the last, and how many rows it has.

    The most frequent kinds, and these first. Two sets with the same hash count as one.
    """
    n, rows = structure.unknowns, structure.rows
    hashes = np.arange(2 * n) * 2654435761 % PRIME
    key = np.bincount(rows, hashes.astype(np.float64)[offsets], minlength=n).astype(np.int64) % PRIME
    counts, row = np.bincount(key), np.zeros(PRIME, dtype=np.int64)
    row[key] = np.arange(n)
    frequent = np.flatnonzero(counts)
    frequent = frequent[np.argsort(-counts[frequent], kind="stable")][:MOST_KINDS]
    number = np.full(n, -1)
    number[row[frequent]] = np.arange(frequent.size)
    entries = np.flatnonzero((number >= 0)[rows])
    entries = entries[np.argsort(number[rows[entries]], kind="stable")]
    kind = number[rows[entries]]
    place = np.arange(kind.size) - np.searchsorted(kind, kind)
    columns = np.full((frequent.size, int(place.max(initial=0)) + 1), -1)
    columns[kind, place] = structure.columns[entries]
    return columns, counts[frequent]


def _number(j: HostArray, steps: list[int]) -> list[HostArray]:
    """The place in the line, the number of the line in its plane, and that of the plane, of columns j."""
    parts: list[HostArray] = []
    for step in reversed(steps):
        number = j // step
        j = j - step * number
        parts.append(number)
    return [j, *reversed(parts)]


@functools.cache
def lattices_of_index(p: int, axes: int) -> HostArray:
    """All lattices with p cosets: their bases (count, axes, axes) in Hermite normal form, upper triangular."""
    found: list[HostArray] = []
    for diagonal in itertools.product([d for d in range(1, p + 1) if p % d == 0], repeat=axes):
        if math.prod(diagonal) == p:
            above = [(i, k) for k in range(axes) for i in range(k)]
            for entries in itertools.product(*(range(diagonal[i]) for i, _ in above)):
                basis = np.diag(diagonal)
                for place, entry in zip(above, entries):
                    basis[place] = entry
                found.append(basis)
    return np.stack(found)


def _cosets(lattices: HostArray, points: list[HostArray]) -> HostArray:
    """The number of the coset of each point, for each lattice: (lattices, *points)."""
    shape = -1, *[1] * points[0].ndim
    rest: list[HostArray] = [part[None] for part in points]
    coset: Any = 0
    for k in reversed(range(len(rest))):
        size = lattices[:, k, k].reshape(shape)
        quotient = rest[k] // size  # `divmod` takes twice the time
        for i in range(k):
            rest[i] = rest[i] - lattices[:, i, k].reshape(shape) * quotient
        coset = coset * size + (rest[k] - size * quotient)
    return coset


def _conflicts(lattices: HostArray, entries: list[HostArray], columns: HostArray) -> HostArray:
    """Whether a row of each kind has two entries of one color (lattices, kinds)."""
    colors = np.where(columns >= 0, _cosets(lattices, entries), -1 - np.arange(columns.shape[1]))
    colors.sort(axis=-1)
    return (colors[..., 1:] == colors[..., :-1]).any(axis=-1)


def _is_proper(structure: Sparse, colors: HostArray, p: int) -> bool:
    """Whether no row has two entries of one color: then the sum of 2^color has a bit for each entry."""
    bits = np.bincount(structure.rows, (2.0 ** np.arange(p))[colors][structure.columns], minlength=structure.unknowns)
    return bool((np.bitwise_count(bits.astype(np.int64)) == structure.row_counts).all())


def greedy_colors(indptr: HostArray, indices: HostArray, rows: int, limit: int | None = None) -> HostArray:
    """First free color for each column, the fullest columns first; with a `limit`, any color where none is free.

    The colors that a row has seen are the bits of a Python integer, so that a column costs two passes over its entries.
    """
    sizes = np.diff(indptr)
    seen = [0] * rows
    chosen = [0] * sizes.size
    order = np.argsort(-sizes, kind="stable")
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
    return np.array(chosen, dtype=np.intp)
