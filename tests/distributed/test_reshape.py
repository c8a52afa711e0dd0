"""Reshaping arrays that are partitioned across ranks."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from implicitsolve.distributed import Serial, split, threads
from tests.distributed.arrays import namespace


@st.composite
def refactored(draw):
    """Lengths of axes in front, of blocks and behind them, and how they are factored twice."""
    ranks = draw(st.integers(1, 3))
    k, T = draw(st.integers(1, 3)), draw(st.integers(ranks, 5))
    batch = draw(st.lists(st.integers(1, 3), max_size=2))
    ones = [1] * draw(st.integers(0, 1))
    one = [*batch, T, k], len(batch)
    other = draw(
        st.sampled_from([[*batch, T * k], [int(np.prod(batch)), T * k], [*ones, *batch, T, k], [*batch, T, k, 1]])
    )
    return ranks, one, other


@given(refactored())
def test_reshaping_moves_the_split_axis_along(case):
    ranks, (shape, axis), other = case
    array = np.arange(float(np.prod(shape))).reshape(shape)

    def program(comm):
        xp, x = namespace(), split(comm, array, axis=axis)
        there = xp.reshape(x, tuple(other))
        back = xp.reshape(there, tuple(shape))
        assert comm.size == 1 or (back.axis == x.axis and back.counts is x.counts)
        return there.gathered(), back.gathered()

    for there, back in threads(ranks, program):
        np.testing.assert_array_equal(there, array.reshape(other))
        np.testing.assert_array_equal(back, array)


class TestReshaping:
    @pytest.mark.parametrize(("shape", "axis", "new"), [((2, 6), 1, (12,)), ((6,), 0, (2, 3)), ((4, 3), 0, (3, 4))])
    def test_runs_that_would_be_torn(self, shape, axis, new):
        with pytest.raises(ValueError, match="every rank's run must stay a run of one axis"):
            threads(3, lambda comm: namespace().reshape(split(comm, np.ones(shape), axis), new))

    def test_sizes(self):
        xp, x = namespace(), split(Serial(), np.ones((4, 3)), axis=0)
        assert xp.reshape(x, (-1,)).shape == (12,)
        with pytest.raises(ValueError, match=r"12 numbers does not fit the shape \(5, 2\)"):
            xp.reshape(x, (5, 2))

    def test_no_systems(self):
        x = split(Serial(), np.ones((0, 4, 3)), axis=1)
        assert namespace().reshape(namespace().reshape(x, (0, 12)), (0, 4, 3)).axis == 1

    def test_is_a_view(self):
        x = split(Serial(), np.zeros((4, 3)), axis=0)
        namespace().reshape(x, (1, 12))[...] = 1.0
        assert (x.local == 1.0).all()
