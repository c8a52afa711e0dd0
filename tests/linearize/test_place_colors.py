"""`place_colors`: the reference against a loop over entries."""

import numpy as np
import pytest

from implicitsolve.linearize._difference_steps import place_colors


def by_entries(blocks, changes, per_length, color, lower):
    T = changes.shape[2]
    m = blocks.shape[2]
    for s in range(color, T, m):
        for t in range(T):
            j = s - t + lower
            if 0 <= j < m:
                blocks[:, t, j] = np.moveaxis(changes[:, :, t, :], 0, -1) * per_length[:, s, None, :]


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize(("T", "lower", "upper"), [(1, 0, 0), (2, 3, 2), (7, 1, 1), (9, 0, 2), (10, 2, 0), (7, 2, 1)])
def test_writes_what_the_loop_over_entries_writes(k, T, lower, upper, rng):
    B, m = 2, lower + upper + 1
    colors = min(m, T)
    changes, per_length = rng.normal(size=(colors, k, B, T, k)), rng.uniform(1.0, 2.0, (B, T, k))
    for first in range(colors):
        for last in {first + 1, colors}:  # one color at once, and several
            got, expected = np.full((B, T, m, k, k), -1.0), np.full((B, T, m, k, k), -1.0)
            place_colors.reference(got, changes[first:last], per_length, first, lower)
            for color in range(first, last):
                by_entries(expected, changes[color], per_length, color, lower)
            np.testing.assert_array_equal(got, expected)
