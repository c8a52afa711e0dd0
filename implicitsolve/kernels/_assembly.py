"""Array-API reference of `place_color`: what one color's differences tell of the blocks of a Jacobian."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicitsolve._namespace import array_namespace
from implicitsolve._typing import Array

SMALL_BLOCK = 4  # unknowns up to which the entries of blocks are written one by one


def place_color(blocks: Array, changes: Array, h: Array, color: int, lower: int) -> None:
    """Write ``blocks[:, t, j, r, c] = changes[c, :, t, r] / h[:, s, c]``, s = t + j - lower, for all s of the color.

    The color holds the blocks s = color, color + m, ..., where m = lower + upper + 1, so that each row t sees one.

    Parameters
    ----------
    blocks : Array (b, T, m, k, k)
        Written in place.
    changes : Array (k, b, T, k)
        How F changed as unknown c of the color's blocks did.
    h : Array (b, T, k)
        By how much each unknown did.
    color, lower : int
        As above.
    """
    T, m, k = blocks.shape[1:4]
    for j in range(m):
        offset = j - lower
        first = color - offset + (m if color < offset else 0)
        rows = slice(first, max(0, min(T, T - offset)), m)
        columns = slice(first + offset, max(0, min(T, T + offset)), m)
        write(blocks[:, :, j, :, :], changes, h, rows, columns, k)


def write(part: Array, changes: Array, h: Array, rows: Any, columns: Any, k: int) -> None:
    """Write the blocks `rows` of one block diagonal, which see the blocks `columns`.

    Small blocks entry by entry, which is a long loop over the blocks for each; larger ones whole, since each entry
    would pass through all of them.
    """
    xp = array_namespace(part)
    with np.errstate(all="ignore"):
        if k > SMALL_BLOCK:
            part[:, rows, :, :] = xp.permute_dims(changes[:, :, rows, :], (1, 2, 3, 0)) / h[:, columns, None, :]
            return
        for c in range(k):
            column = changes[c, ...]  # a view: an index array beside two integers would move its axis
            for row in range(k):
                part[:, rows, row, c] = column[:, rows, row] / h[:, columns, c]
