"""Zeros inside the blocks of a Jacobian: found by one difference, used to take several unknowns of a block at once."""

from __future__ import annotations

import numpy as np

from implicitsolve._typing import HostArray

LEAST_BLOCK = 4  # unknowns in a block from which on one difference is spent on looking for zeros
LEAST_SITES = 8  # blocks in which each unknown is perturbed, at least, to find its equations
WORTHWHILE = 0.7  # fraction of the differences that groups must need at most


class Groups:
    """Unknowns of a block that are displaced together, since no equation contains two of them.

    Parameters
    ----------
    pattern : ndarray (m, k, k) of bool
        Whether entry (r, c) of block diagonal j differs from zero in some row.
    lower : int
        Block diagonals below the main one.

    Attributes
    ----------
    members : list of lists of (color, c)
        Unknown c of the blocks of a color, for each group.
    entries : tuple of ndarrays (n, 4)
        For the rows t of each remainder t mod m: the entries (j, r, c) of the pattern, and the group that determines
        them.
    """

    def __init__(self, pattern: HostArray, lower: int) -> None:
        m, k = pattern.shape[:2]
        remainder = np.arange(m)
        seen: list[HostArray] = []  # by each group: the equations (remainder, r)
        self.members: list[list[tuple[int, int]]] = []
        group_of = np.zeros((m, k), dtype=np.int64)
        for color in range(m):
            diagonal = (color - remainder + lower) % m  # in which the rows of each remainder couple to the color
            for c in range(k):
                sees = pattern[diagonal, :, c]
                group = next((g for g, other in enumerate(seen) if not (other & sees).any()), len(seen))
                if group == len(seen):
                    seen.append(np.zeros_like(sees))
                    self.members.append([])
                seen[group] |= sees
                self.members[group].append((color, c))
                group_of[color, c] = group
        entries = np.argwhere(pattern)  # (j, r, c)
        colors = [(entries[:, 0] + t - lower) % m for t in range(m)]
        self.entries = tuple(np.column_stack([entries, group_of[color, entries[:, 2]]]) for color in colors)


def sites(length: int, width: int, k: int) -> tuple[HostArray, HostArray]:
    """Blocks so far apart that each row couples to one of them, and the perturbed unknown of each, all in turn."""
    blocks = np.arange(0, length, width)
    return blocks, np.arange(blocks.size) % k


def is_worthwhile(length: int, width: int, k: int) -> bool:
    """Whether looking for zeros may pay, by the sizes of one system."""
    return k >= LEAST_BLOCK and length >= LEAST_SITES * width * k


def pattern_of(changed: HostArray, lower: int, width: int) -> HostArray:
    """Pattern (m, k, k) from the equations (T, k) that changed as the unknowns at `sites` did."""
    T, k = changed.shape
    pattern = np.zeros((width, k, k), dtype=bool)
    count = sites(T, width, k)[0].size
    rounds = -(-count // k)  # of all kinds of unknowns
    for j in range(width):
        offset = lower - j  # the row coupled to block t in diagonal j is t + offset
        first = -(-max(-offset, 0) // width)
        rows = changed[first * width + offset :: width]
        seen = np.zeros((rounds * k, k), dtype=bool)  # by each site in turn
        seen[first : first + min(len(rows), count - first)] = rows[: count - first]
        pattern[j] = seen.reshape((rounds, k, k)).any(axis=0).T
    return pattern


def weights(length: int, k: int) -> HostArray:
    """Numbers (T, k) between -1 and 1 in no order, always the same: factors of a displacement of all unknowns."""
    return np.random.default_rng(0).uniform(-1.0, 1.0, (length, k))
