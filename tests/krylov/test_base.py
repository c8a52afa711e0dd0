"""Where Krylov methods start, what they take over, and the verdict by what is known at the end."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve import LinearOperator, Status
from implicitsolve.krylov._base import classify, part_of, start, updated


def masks(size):
    return st.lists(st.booleans(), min_size=size, max_size=size).map(lambda flags: np.asarray(flags, dtype=bool))


@given(rows=masks(4), where=masks(4))
def test_what_is_replaced(rows, where):
    """Rows where it is wanted, of those at work; what was given stays as it was."""
    x, at = np.arange(8.0).reshape(4, 2), np.flatnonzero(rows)
    values = 100 + np.arange(2.0 * at.size).reshape(-1, 2)
    found = updated(x, at, where[at], values)
    expected = np.arange(8.0).reshape(4, 2)
    for value, row in zip(values, at):
        if where[row]:
            expected[row] = value
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(x, np.arange(8.0).reshape(4, 2))


def test_all_rows_are_no_copy():
    x = np.ones((3, 2))
    assert part_of(x, np.arange(3)) is x
    np.testing.assert_array_equal(part_of(np.arange(3.0)[:, None], np.asarray([2, 0])), [[2.0], [0.0]])


def test_a_start_costs_a_product_where_there_is_one(rng):
    products = []
    A = LinearOperator(lambda v: (products.append(1), 2 * v)[1], in_shape=3, batch_shape=(2,))
    b = np.stack([np.zeros(3), rng.normal(size=3)])
    x, r, norms = start(A, b, None)
    assert not products
    assert r is b
    np.testing.assert_array_equal(x, 0.0)
    np.testing.assert_allclose(norms, np.linalg.norm(b, axis=1))
    x, r, norms = start(A, b, np.ones((2, 3)))
    assert len(products) == 1
    np.testing.assert_array_equal(x, [[0.0] * 3, [1.0] * 3])  # b = 0 has the solution 0
    np.testing.assert_allclose(r, b - 2 * x)
    np.testing.assert_allclose(norms, np.linalg.norm(r, axis=1))


@given(
    norm=st.sampled_from([0.5, 1.0, 1.5, np.inf, np.nan]), broken=st.booleans(), bad=st.booleans(), idle=st.booleans()
)
def test_the_status(norm, broken, bad, idle):
    """The inequality first, if it was measured; then the worst of what is known."""
    flags = {name: np.asarray([flag]) for name, flag in (("broken", broken), ("nonfinite", bad), ("stagnated", idle))}
    found = classify(np.asarray([norm]), np.ones(1), **flags)[0]
    if norm <= 1:
        assert found == Status.CONVERGED
    elif bad or not np.isfinite(norm):
        assert found == Status.NONFINITE
    elif broken:
        assert found == Status.BREAKDOWN
    else:
        assert found == (Status.STAGNATED if idle else Status.ITERATION_LIMIT)
