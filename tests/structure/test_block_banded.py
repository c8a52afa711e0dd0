"""BlockBanded: lengths, and colorings that are valid and as small as any."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve.structure import BlockBanded

BANDS = st.integers(0, 4)


@given(BANDS, BANDS, st.integers(0, 60), st.booleans())
def test_no_row_depends_on_two_blocks_of_one_color(lower, upper, extra, periodic):
    structure = BlockBanded(lower, upper, periodic=periodic)
    length = extra + structure.width if periodic else extra
    colors = structure.colors(length)
    assert colors.shape == (length,)
    for t in range(length):
        row = np.arange(t - lower, t + upper + 1)
        row = row % length if periodic else row[(row >= 0) & (row < length)]
        assert np.unique(colors[row]).size == row.size


@given(BANDS, BANDS, st.integers(0, 60))
def test_the_number_of_colors_is_the_least(lower, upper, extra):
    line = BlockBanded(lower, upper)
    length = extra + line.width
    assert np.unique(line.colors(length)).tolist() == list(range(line.width))
    # No more than T // width blocks of a circle can have one color.
    circle = BlockBanded(lower, upper, periodic=True)
    assert np.unique(circle.colors(length)).tolist() == list(range(-(-length // (length // line.width))))


def test_fewer_blocks_than_the_band_is_wide():
    np.testing.assert_array_equal(BlockBanded(3, 2).colors(4), np.arange(4))
    assert BlockBanded(3, 2).colors(0).size == 0


def test_defaults_are_a_scalar_band_on_a_line():
    structure = BlockBanded(1, 2)
    assert (structure.block_size, structure.periodic, structure.width) == (1, False, 4)
    assert BlockBanded(1, 2, 3) == BlockBanded(lower=1, upper=2, block_size=3, periodic=False)
    with pytest.raises(dataclasses.FrozenInstanceError):
        structure.lower = 2  # type: ignore[misc]


@pytest.mark.parametrize(("unknowns", "k", "length"), [(12, 3, 4), (0, 3, 0), (5, 1, 5)])
def test_length(unknowns, k, length):
    assert BlockBanded(1, 1, k).length(unknowns) == length


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: BlockBanded(-1, 1), ValueError, ["lower", "-1"]),
        (lambda: BlockBanded(1, -2), ValueError, ["upper", "-2"]),
        (lambda: BlockBanded(1.0, 1), TypeError, ["lower", "float"]),
        (lambda: BlockBanded(True, 1), TypeError, ["lower", "bool"]),
        (lambda: BlockBanded(1, 1, 0), ValueError, ["block_size", "0"]),
        (lambda: BlockBanded(1, 1, periodic="yes"), TypeError, ["periodic", "str"]),
        (lambda: BlockBanded(1, 1, 3).length(10), ValueError, ["multiple", "3", "10"]),
        (lambda: BlockBanded(1, 1, 2, periodic=True).length(4), ValueError, ["periodic", "3", "2"]),
        (lambda: BlockBanded(1, 1, periodic=True).colors(2), ValueError, ["periodic", "3", "2"]),
        (lambda: BlockBanded(0, 0, periodic=True).colors(0), ValueError, ["periodic", "1", "0"]),
    ],
)
def test_a_wrong_argument_is_named(make, error, words):
    with pytest.raises(error, match="BlockBanded") as caught:
        make()
    for word in words:
        assert word in str(caught.value)
