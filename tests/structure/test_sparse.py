"""Sparse and Grid: the pattern from every form, and refusals that say what is wrong."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve.structure._grid import Grid
from implicitsolve.structure._sparse import Sparse

PATTERN = np.array([[1, 0, 1], [0, 1, 0], [0, 1, 1]], dtype=bool)


@pytest.mark.parametrize(
    "pattern",
    [
        PATTERN,
        PATTERN.tolist(),
        scipy.sparse.csr_matrix(PATTERN),
        scipy.sparse.coo_array(0.0 * PATTERN + PATTERN),
        np.nonzero(PATTERN),
        Sparse(PATTERN),
    ],
    ids=["dense", "list", "csr", "coo", "pairs", "itself"],
)
def test_all_forms_give_the_same_pattern(pattern):
    structure = Sparse(pattern)
    assert np.array_equal(structure.to_scipy().toarray(), PATTERN)
    assert structure.nnz == 5
    assert structure.row_counts.tolist() == [2, 1, 2]
    assert structure.bandwidth == (1, 2)
    assert repr(structure) == "<Sparse 3x3, 5 entries, at most 2 in a row>"


def test_stored_zeros_count_and_duplicates_do_not():
    stored = scipy.sparse.csc_array((np.zeros(2), (np.array([0, 1]), np.array([1, 1]))), (2, 2))
    assert Sparse(stored).nnz == 2
    assert Sparse((np.array([0, 0]), np.array([1, 1])), unknowns=2).nnz == 1


def test_symmetry_is_of_the_pattern():
    assert Grid(shape=(3, 4), fields=2).sparse.is_symmetric
    assert not Sparse(PATTERN).is_symmetric


@pytest.mark.parametrize(
    ("pattern", "error", "message"),
    [
        (np.ones((2, 3)), ValueError, "square"),
        ((np.array([0]),), ValueError, "rows, columns"),
        ((np.array([0.5]), np.array([1])), TypeError, "integers"),
        ((np.array([0, 1]), np.array([1])), ValueError, "equally long"),
        ((np.array([-1]), np.array([1])), ValueError, "from 0"),
        (np.ones(3), TypeError, "matrix"),
        ("dense", TypeError, "got str"),
    ],
)
def test_refusals(pattern, error, message):
    with pytest.raises(error, match=message):
        Sparse(pattern)


def test_size_is_checked():
    with pytest.raises(ValueError, match="3 unknowns, but a system has 4"):
        Sparse(PATTERN).check_size(4)
    with pytest.raises(ValueError, match="12 unknowns"):
        Grid(shape=(3, 4)).check_size(13)
    with pytest.raises(ValueError, match="from 0 to 1"):
        Sparse((np.array([0]), np.array([2])), unknowns=2)


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
    periodic=st.booleans(),
    fields=st.integers(1, 3),
    last=st.booleans(),
)
def test_grid_couples_the_neighbors(shape, periodic, fields, last):
    grid = Grid(shape=shape, periodic=periodic, fields=fields, fields_last=last)
    expected = np.eye(int(np.prod(shape)), dtype=bool)
    for axis, n in enumerate(shape):
        line = np.eye(n, k=1, dtype=bool) | np.eye(n, k=-1, dtype=bool)
        if periodic:
            line[0, -1] = line[-1, 0] = True
        factors = [line if a == axis else np.eye(m, dtype=bool) for a, m in enumerate(shape)]
        whole = factors[0]
        for factor in factors[1:]:
            whole = np.kron(whole, factor)
        expected |= whole
    every = np.ones((fields, fields), dtype=bool)
    expected = np.kron(expected, every) if last else np.kron(every, expected)
    assert np.array_equal(grid.sparse.to_scipy().toarray(), expected)


def test_stencils():
    assert Grid(shape=(5, 5), stencil="box").sparse.row_counts.max() == 9
    assert Grid(shape=(9,), stencil=2).sparse.bandwidth == (2, 2)
    assert Grid(shape=(9,), stencil=((1,), (-3,))).sparse.bandwidth == (3, 1)
    with pytest.raises(ValueError, match="one integer for each of 2 axes"):
        Grid(shape=(3, 3), stencil=((1,),))
    with pytest.raises(ValueError, match="box"):
        Grid(shape=(3, 3), stencil="star")
    with pytest.raises(ValueError, match="periodic"):
        Grid(shape=(3, 3), periodic=(True,))


def test_with_diagonal_holds_both_and_is_the_pattern_itself_where_nothing_is_missing():
    whole = Grid(shape=(4, 5)).sparse
    assert whole.with_diagonal[0] is whole
    dense = np.random.default_rng(0).random((9, 9)) < 0.3
    dense[3, 3] = False
    structure = Sparse(dense)
    pattern, own, diagonal = structure.with_diagonal
    np.testing.assert_array_equal(pattern.to_scipy().toarray(), dense | np.eye(9, dtype=bool))
    np.testing.assert_array_equal(pattern.indices[own], structure.indices)
    np.testing.assert_array_equal(pattern.columns[own], structure.columns)
    np.testing.assert_array_equal(pattern.indices[diagonal], np.arange(9))
    np.testing.assert_array_equal(pattern.columns[diagonal], np.arange(9))


def test_patterns_from_elements_and_edges():
    """All unknowns of a cell, or of the two ends of an edge, are coupled, as in the assembled matrix."""
    rng = np.random.default_rng(0)
    triangles, quads = rng.integers(0, 20, (15, 3)), rng.integers(0, 20, (8, 4))
    expected = np.zeros((20, 20), dtype=bool)
    for cell in [*triangles, *quads]:
        expected[np.ix_(cell, cell)] = True
    pattern = Sparse.from_elements([triangles, quads], nodes=20)
    assert np.array_equal(pattern.to_scipy().toarray(), expected)
    stacked = Sparse.from_elements([triangles, quads], nodes=20, fields=2, fields_last=False)
    assert np.array_equal(stacked.to_scipy().toarray(), np.kron(np.ones((2, 2)), expected))
    edges = rng.integers(0, 20, (30, 2))
    network = Sparse.from_edges(edges, nodes=20, fields=3)
    assert network.has_entries_of(Sparse.from_elements([edges, np.arange(20)[:, None]], fields=3))
    with pytest.raises(TypeError, match="cells"):
        Sparse.from_elements([[0.5, 1.0]])
    with pytest.raises(ValueError, match="edges"):
        Sparse.from_edges([[0, 1, 2]])
