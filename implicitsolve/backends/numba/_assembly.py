"""Compiled `place_colors` and `place_groups`: one pass over the blocks of a Jacobian."""

# pyright: basic

from __future__ import annotations

import numpy as np

from implicitsolve import kernels
from implicitsolve.backends.numba._jit import kernel, static_size, supports


def place_colors(blocks, changes, per_length, first, lower):
    """Write blocks (b, T, m, k, k) from changes (colors, k, b, T, k) times `per_length` (b, T, k)."""
    n, k = changes.shape[:2]
    if k == 1 and n == 3 and blocks.shape[2] == 3 and lower == 1:
        _place_tridiagonal(blocks[..., 0, 0], changes[:, 0, :, :, 0], per_length[:, :, 0])
        return
    for i in range(n):
        _place_color(blocks, changes[i], per_length, first + i, lower, static_size(k))


@kernel
def _place_tridiagonal(blocks, changes, per_length):
    """All three colors of scalar tridiagonal matrices, blocks (b, T, 3) from changes (3, b, T)."""
    B, T = per_length.shape
    for b in range(B):
        blocks[b, 0, 1] = changes[0, b, 0] * per_length[b, 0]
        for t in range(1, T):
            above, at = (t - 1) % 3, t % 3
            blocks[b, t - 1, 2] = changes[at, b, t - 1] * per_length[b, t]
            blocks[b, t, 0] = changes[above, b, t] * per_length[b, t - 1]
            blocks[b, t, 1] = changes[at, b, t] * per_length[b, t]


@kernel
def _place_color(blocks, changes, per_length, color, lower, size):
    B, T, m = blocks.shape[:3]
    k = len(size) if len(size) > 0 else blocks.shape[3]
    for b in range(B):
        j = (color + lower) % m
        for t in range(T):
            s = t + j - lower
            if 0 <= s < T:
                for r in range(k):
                    for c in range(k):
                        blocks[b, t, j, r, c] = changes[c, b, t, r] * per_length[b, s, c]
            j = j - 1 if j > 0 else m - 1


def place_groups(blocks, changes, per_length, entries, lower, weights, checked, tolerance):
    """Write blocks from differences along groups of unknowns, and check them; see `implicitsolve.kernels`."""
    starts = np.cumsum([0, *(len(part) for part in entries)])
    room = np.empty((2, blocks.shape[3]), changes.dtype), np.empty(blocks.shape[3], per_length.real.dtype)
    table = np.concatenate(entries).astype(np.uint64)
    return _place_groups(blocks, changes, per_length, table, starts, lower, weights, checked, tolerance, *room)


@kernel
def _place_groups(blocks, changes, per_length, entries, starts, lower, weights, checked, tolerance, room, size):
    B, T, m, k = blocks.shape[:4]
    predicted = room[0]
    passed = True
    for b in range(B):
        for t in range(T):
            blocks[b, t] = 0
            predicted[:] = 0
            size[:] = 0
            for e in range(starts[t % m], starts[t % m + 1]):
                j, r, c, group = entries[e, 0], entries[e, 1], entries[e, 2], entries[e, 3]
                s = t + np.int64(j) - lower
                if 0 <= s < T:
                    change = changes[group, b, t, r]
                    blocks[b, t, j, r, c] = change * per_length[b, s, c]
                    predicted[r] += change * weights[s, c]
                    size[r] += abs(change)
            for r in range(k):
                passed = passed and abs(checked[b, t, r] - predicted[r]) <= tolerance * size[r]
    return passed


kernels.place_colors.implement("numba", place_colors, supports)
kernels.place_groups.implement("numba", place_groups, supports)
