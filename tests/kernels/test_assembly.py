"""`place_color`: the reference against a loop over entries, and every implementation against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from implicitsolve.kernels import place_color

BACKENDS = ["reference", "numba"]


def by_entries(blocks, changes, h, color, lower):
    T = changes.shape[2]
    m = blocks.shape[2]
    for s in range(color, T, m):
        for t in range(T):
            j = s - t + lower
            if 0 <= j < m:
                blocks[:, t, j] = np.moveaxis(changes[:, :, t, :], 0, -1) / h[:, s, None, :]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize(("T", "lower", "upper"), [(1, 0, 0), (2, 3, 2), (7, 1, 1), (9, 0, 2), (10, 2, 0)])
def test_writes_what_the_loop_over_entries_writes(backend, k, T, lower, upper, rng):
    if backend == "numba":
        pytest.importorskip("numba")
    B, m = 2, lower + upper + 1
    changes, h = rng.normal(size=(k, B, T, k)), rng.uniform(1.0, 2.0, (B, T, k))
    got, expected = np.full((B, T, m, k, k), -1.0), np.full((B, T, m, k, k), -1.0)
    place = place_color.select(got, backend, length=T, block_size=k)
    for color in range(min(m, T)):
        place(got, changes, h, color, lower)
        by_entries(expected, changes, h, color, lower)
    np.testing.assert_array_equal(got, expected)
