"""BatchedInverse: the inverses of a batch that were factorized at different steps act as one operator."""

import numpy as np
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
            rows = rng.permutation(rows) if seed % 2 else rows
            pieces, expected = pieces.take(rows), expected[rows]
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


def test_every_library(xp):
    pieces = BatchedInverse()
    pieces.replace(np.arange(3), inverse_of([1, 2, 4], xp))
    pieces.replace(np.asarray([1]), inverse_of([8], xp))
    part = pieces.take(np.asarray([1, 2]))
    z = part.matvec(xp.ones((2, 2), dtype=xp.float64))
    np.testing.assert_array_equal(to_host(z)[:, 0], [0.125, 0.25])
