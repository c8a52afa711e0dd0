"""Zeros inside the blocks of a Jacobian, found by one difference: several unknowns of a block are taken at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from implicitsolve._arrays.host import from_host, to_host
from implicitsolve._arrays.namespace import array_namespace, eps
from implicitsolve._typing import Array, HostArray
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._difference_steps import LEAST_CHANGE
from implicitsolve.structure import BlockBanded

LEAST_BLOCK = 4  # unknowns in a block from which on one difference is spent on looking for zeros
LEAST_SITES = 8  # blocks in which each unknown is perturbed, at least, to find its equations
WORTHWHILE = 0.7  # fraction of the differences that groups must need at most


class Groups:
    """Unknowns of a block that are displaced together, since no equation contains two of them.

    `pattern` (m, k, k) says whether entry (r, c) of block diagonal j differs from zero in some row. `members` are the
    pairs (color, c) of each group: unknown c of the blocks of a color. `entries` are, for the rows t of each remainder
    t mod m, the entries (j, r, c) of the pattern, and the group that determines them.
    """

    def __init__(self, pattern: HostArray, lower: int) -> None:
        self.lower = lower
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

    @staticmethod
    def may_pay(length: int, width: int, k: int) -> bool:
        """Whether looking for zeros may save time, by the sizes of one system."""
        return k >= LEAST_BLOCK and length >= LEAST_SITES * width * k

    def pays(self, cost: int) -> bool:
        """Whether an assembly by groups, with a check, takes enough fewer differences than `cost`."""
        return len(self.members) + 2 <= WORTHWHILE * cost

    def place(
        self, blocks: Array, changes: Array, per_length: Array, weights: Array, checked: Array, tolerance: float
    ) -> bool:
        """Write blocks (b, T, m, k, k) from differences along the groups; whether one more confirms them.

        `changes` (groups, b, T, k) are how F changed as the unknowns of a group did, by one over `per_length`
        (b, T, k); `checked` (b, T, k) is how it changed as all did, times `weights` (T, k).
        """
        xp = array_namespace(blocks)
        T, m = blocks.shape[1:3]
        blocks[...] = 0
        predicted, size = xp.zeros_like(checked), xp.zeros_like(checked)
        with np.errstate(all="ignore"):
            for remainder, part in enumerate(self.entries):
                for j, r, c, group in part.tolist():
                    offset = j - self.lower
                    start = remainder + (m * (-(-(-offset - remainder) // m)) if remainder + offset < 0 else 0)
                    rows = slice(start, max(0, min(T, T - offset)), m)
                    columns = slice(start + offset, max(0, min(T, T + offset)), m)
                    if start >= rows.stop:
                        continue
                    change = changes[group, :, rows, r]
                    blocks[:, rows, j, r, c] = change * per_length[:, columns, c]
                    predicted[:, rows, r] += change * weights[None, columns, c]
                    size[:, rows, r] += xp.abs(change)
            return bool(xp.all(xp.abs(checked - predicted) <= tolerance * size))


def sites(length: int, width: int, k: int) -> tuple[HostArray, HostArray]:
    """Blocks so far apart that each row couples to one of them, and the perturbed unknown of each, all in turn."""
    blocks = np.arange(0, length, width)
    return blocks, np.arange(blocks.size) % k


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


def find_groups(
    structure: BlockBanded, length: int, cost: int, residual: Callable[..., Array], x: Array, F: Array, h: Array
) -> Groups | None:
    """Perturb unknowns far from each other, all kinds of them in turn, and record which equations change."""
    xp, k = array_namespace(x), structure.block_size
    states = (x.shape[0], length, k)
    blocks, unknowns = sites(length, structure.width, k)
    where = np.zeros((length, k))
    where[blocks, unknowns] = 1.0
    shifted = xp.reshape(xp.reshape(x, states) + from_host(where, x) * h, x.shape)
    with np.errstate(all="ignore"):
        change = xp.abs(residual(shifted, keep=False) - F)
        is_changed = xp.reshape(change > LEAST_CHANGE * eps(xp, x.dtype) * xp.abs(F), states)
    pattern = pattern_of(to_host(xp.any(is_changed, axis=0)), structure.lower, structure.width)
    if not np.isfinite(norm2(change)).all() or not pattern.any((0, 1)).all():
        return None
    groups = Groups(pattern, structure.lower)
    return groups if groups.pays(cost) else None
