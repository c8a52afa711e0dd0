"""Inverses of diagonal blocks, and what stands for those that have none."""

from __future__ import annotations

import numpy as np

from implicitsolve.precondition._parts import finite, inverses


def test_where_there_is_no_finite_inverse_is_the_identity_over_the_scale(rng):
    """A regular block, a singular one, one whose inverse overflows in one place, and one that is not finite."""
    blocks = np.stack([rng.normal(size=(2, 2)), np.ones((2, 2)), np.diag([5e-324, 1.0]), np.diag([np.inf, np.nan])])
    found = inverses(blocks, lambda: np.asarray([1.0, 4.0, 8.0, 2.0]))
    np.testing.assert_allclose(found[0], np.linalg.inv(blocks[0]))
    np.testing.assert_array_equal(found[1:], np.eye(2) / np.asarray([4.0, 8.0, 2.0])[:, None, None])


def test_numbers_are_blocks(rng):
    blocks = np.asarray([2.0, 0.0, -4.0]).reshape(3, 1, 1)
    np.testing.assert_array_equal(inverses(blocks, lambda: np.full(3, 5.0))[:, 0, 0], [0.5, 0.2, -0.25])


def test_scales_are_requested_only_where_they_are_needed(rng):
    def never():
        raise AssertionError("all blocks are regular")

    blocks = rng.normal(size=(3, 2, 2)) + 4 * np.eye(2)
    np.testing.assert_allclose(inverses(blocks, never) @ blocks, np.broadcast_to(np.eye(2), (3, 2, 2)), atol=1e-14)


def test_zeros_where_it_is_not_finite():
    np.testing.assert_array_equal(finite(np.asarray([1.0, np.inf, -np.inf, np.nan, -2.0])), [1.0, 0.0, 0.0, 0.0, -2.0])
