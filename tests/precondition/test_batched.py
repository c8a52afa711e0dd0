"""BatchedInverse: the inverses of a batch that were factorized at different steps act as one operator."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve import BlockBandedMatrix, BlockLU
from implicitsolve._arrays.host import to_host
from implicitsolve.precondition._lagged import BatchedInverse


def inverse_of(values, xp=np, backend="auto"):
    """A diagonal matrix a_i I for each system i: its inverse tells which matrix it was."""
    blocks = np.broadcast_to(np.asarray(values, dtype=float)[:, None, None, None, None], (len(values), 2, 1, 1, 1))
    return BlockLU(backend=backend).factor(BlockBandedMatrix(xp.asarray(blocks.copy()), lower=0, upper=0))


def applied(pieces, size):
    """1 / a_i of each system; all rows must be equal."""
    z = pieces.matvec(np.ones((size, 2)))
    np.testing.assert_array_equal(z[:, 0], z[:, 1])
    return z[:, 0]


def closed_up_to(pieces, expected, rows):
    """Some systems, where the last of them fill the places of those that are left out."""
    gaps = np.setdiff1d(np.arange(rows.size), rows)
    moves = gaps, rows[rows.size - gaps.size :]
    indices = np.arange(rows.size)
    indices[gaps] = moves[1]
    return pieces.keep(indices, moves), expected[indices]


steps = st.lists(st.tuples(st.booleans(), st.integers(0, 10**6)), max_size=8)


@given(size=st.integers(1, 6), steps=steps)
def test_any_sequence_of_replacements_and_choices(size, steps):
    """Against a list of numbers."""
    pieces, expected, fresh = BatchedInverse(), np.ones(size), 2.0
    for is_choice, seed in steps:
        rng = np.random.default_rng(seed)
        rows = np.flatnonzero(rng.random(expected.size) < 0.5)
        if is_choice:
            if not rows.size:
                continue
            if seed % 2:
                rows = rng.permutation(rows)
                pieces, expected = pieces.take(rows), expected[rows]
            else:
                pieces, expected = closed_up_to(pieces, expected, rows)
        else:
            values = fresh * 2.0 ** np.arange(rows.size)
            fresh *= 2.0 ** (rows.size + 1)
            if not rows.size:
                continue
            pieces.replace(rows, inverse_of(values))
            expected[rows] = 1 / values
        np.testing.assert_array_equal(applied(pieces, expected.size), expected)


def test_replaced_factors_are_let_go():
    pieces = BatchedInverse()
    for _ in range(5):
        pieces.replace(np.arange(3), inverse_of([1, 2, 4]))
        pieces.replace(np.asarray([0, 2]), inverse_of([8, 16]))
        pieces.replace(np.asarray([1]), inverse_of([32]))
        assert len(pieces.parts) == 2
    np.testing.assert_array_equal(applied(pieces, 3), [1 / 8, 1 / 32, 1 / 16])


def test_factors_of_many_systems_stay_where_they_are_when_few_are_replaced_or_left_out():
    pytest.importorskip("numba")
    pieces, values = BatchedInverse(), np.arange(1.0, 101)
    pieces.replace(np.arange(100), inverse_of(values, backend="numba"))
    store = pieces.parts[0][1]._factored.factors.F
    pieces.replace(np.asarray([3, 98]), inverse_of([200, 300]))
    values[[3, 98]] = 200, 300
    pieces, expected = closed_up_to(pieces, 1 / values, np.setdiff1d(np.arange(100), [7, 50]))
    assert np.shares_memory(pieces.parts[0][1]._factored.factors.F, store)
    np.testing.assert_array_equal(applied(pieces, 98), expected)


def test_factors_that_another_solve_holds_are_not_overwritten():
    pytest.importorskip("numba")
    pieces, values = BatchedInverse(), np.arange(1.0, 101)
    pieces.replace(np.arange(100), inverse_of(values, backend="numba"))
    other, expected = closed_up_to(copy.copy(pieces), 1 / values, np.arange(5, 100))
    np.testing.assert_array_equal(applied(other, 95), expected)
    np.testing.assert_array_equal(applied(pieces, 100), 1 / values)


def test_every_library(xp):
    pieces = BatchedInverse()
    pieces.replace(np.arange(3), inverse_of([1, 2, 4], xp))
    pieces.replace(np.asarray([1]), inverse_of([8], xp))
    part = pieces.take(np.asarray([1, 2]))
    z = part.matvec(xp.ones((2, 2), dtype=xp.float64))
    np.testing.assert_array_equal(to_host(z)[:, 0], [0.125, 0.25])
