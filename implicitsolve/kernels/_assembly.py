"""Blocks of a Jacobian from differences of colors, or of groups of unknowns where zeros in the blocks are known.

Compiled loops would save 1 to 20 % of a solve with a cheap residual, and compile for a third of a second each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from implicitsolve._namespace import array_namespace
from implicitsolve._typing import Array, HostArray

SMALL_BLOCK = 4  # unknowns up to which the entries of blocks are written one by one


def place_colors(blocks: Array, changes: Array, per_length: Array, first: int, lower: int) -> None:
    """Write ``blocks[:, t, j, r, c] = changes[i, c, :, t, r] * per_length[:, s, c]`` for some colors.

    Here s = t + j - lower. Color first + i holds blocks s = first + i, first + i + m, ..., m = lower + upper + 1, so
    that each row t couples to one of them.

    Parameters
    ----------
    blocks : Array (b, T, m, k, k)
        Written in place.
    changes : Array (colors, k, b, T, k)
        How F changed as unknown c of a color's blocks did.
    per_length : Array (b, T, k)
        One over how much each unknown did.
    first, lower : int
        As above.
    """
    T, m, k = blocks.shape[1:4]
    for i in range(changes.shape[0]):
        for j in range(m):
            offset = j - lower
            start = first + i - offset + (m if first + i < offset else 0)
            rows = slice(start, max(0, min(T, T - offset)), m)
            columns = slice(start + offset, max(0, min(T, T + offset)), m)
            if start < rows.stop:  # the standard has no slices that start beyond the end
                write(blocks[:, :, j, :, :], changes[i, ...], per_length, rows, columns, k)


def write(part: Array, changes: Array, per_length: Array, rows: Any, columns: Any, k: int) -> None:
    """Write the blocks `rows` of one block diagonal, which couple to the blocks `columns`.

    Small blocks entry by entry, which is a long loop over the blocks for each; larger ones whole, since each entry
    would pass through all of them.
    """
    xp = array_namespace(part)
    with np.errstate(all="ignore"):
        if k > SMALL_BLOCK:
            part[:, rows, :, :] = (
                xp.permute_dims(changes[:, :, rows, :], (1, 2, 3, 0)) * per_length[:, columns, None, :]
            )
            return
        for c in range(k):
            column = changes[c, ...]  # a view: an index array beside two integers would move its axis
            for row in range(k):
                part[:, rows, row, c] = column[:, rows, row] * per_length[:, columns, c]


def place_groups(
    blocks: Array,
    changes: Array,
    per_length: Array,
    entries: tuple[HostArray, ...],
    lower: int,
    weights: Array,
    checked: Array,
    tolerance: float,
) -> bool:
    """Write all blocks of a Jacobian from differences along groups of unknowns, and check them by one more.

    Parameters
    ----------
    blocks : Array (b, T, m, k, k)
        Written in place, outside the matrix with zeros.
    changes : Array (groups, b, T, k)
        How F changed as the unknowns of a group did.
    per_length : Array (b, T, k)
        One over how much each unknown did.
    entries : tuple of m ndarrays (n, 4)
        See `implicitsolve.linearize._block_sparsity.Groups`.
    lower : int
        Block diagonals below the main one.
    weights, checked : Array (T, k), (b, T, k)
        How F changed as all unknowns did, times these weights.
    tolerance : float
        Difference between that and the prediction of the groups, over the sum of their magnitudes, taken for rounding
        and curvature.

    Returns
    -------
    bool
        Whether every equation passed.
    """
    xp = array_namespace(blocks)
    T, m = blocks.shape[1:3]
    blocks[...] = 0
    predicted, size = xp.zeros_like(checked), xp.zeros_like(checked)
    with np.errstate(all="ignore"):
        for remainder, part in enumerate(entries):
            for j, r, c, group in part.tolist():
                offset = j - lower
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
