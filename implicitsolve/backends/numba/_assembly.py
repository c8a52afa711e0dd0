"""Compiled `place_color`: one pass over the blocks of a Jacobian for each color."""

# pyright: basic

from __future__ import annotations

from implicitsolve.backends.numba._jit import kernel


@kernel
def place_color(blocks, changes, h, color, lower):
    """Write what a color's changes (k, b, T, k), over the steps h (b, T, k), tell of the blocks (b, T, m, k, k)."""
    B, T, m, k = blocks.shape[:4]
    for b in range(B):
        j = (color + lower) % m
        for t in range(T):
            s = t + j - lower
            if 0 <= s < T:
                for r in range(k):
                    for c in range(k):
                        blocks[b, t, j, r, c] = changes[c, b, t, r] / h[b, s, c]
            j = j - 1 if j > 0 else m - 1
