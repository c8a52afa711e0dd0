"""Coloring: no row has two entries of one color; few colors where they are known."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve.linearize._coloring import color_columns
from implicitsolve.structure._grid import Grid
from implicitsolve.structure._sparse import Sparse


def conflicts(structure, coloring):
    rows = np.setdiff1d(np.arange(structure.unknowns), coloring.full_rows)
    keep = np.isin(structure.indices, rows)
    pairs = structure.indices[keep].astype(np.int64) * coloring.count + coloring.colors[structure.columns[keep]]
    return pairs.size - np.unique(pairs).size


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.floats(0, 0.4))
def test_no_conflicts_in_random_patterns(seed, n, density):
    pattern = np.random.default_rng(seed).random((n, n)) < density
    structure = Sparse(pattern)
    coloring = color_columns(structure)
    assert conflicts(structure, coloring) == 0
    assert coloring.colors.shape == (n,)
    assert coloring.count <= n


@pytest.mark.parametrize(
    ("grid", "most"),
    [
        (Grid(shape=(100,)), 3),
        (Grid(shape=(99,), periodic=True), 3),
        (Grid(shape=(40, 40)), 6),
        (Grid(shape=(40, 40), stencil="box"), 9),
        (Grid(shape=(12, 12, 12)), 10),
        (Grid(shape=(24, 24), periodic=True, fields=2), 20),
    ],
    ids=str,
)
def test_grids_need_few_colors(grid, most):
    coloring = color_columns(grid.sparse)
    assert conflicts(grid.sparse, coloring) == 0
    assert coloring.count <= most


def test_full_rows_and_columns_do_not_ruin_it():
    n = 300
    arrow = scipy.sparse.lil_array((n, n), dtype=bool)
    arrow.setdiag(True)
    arrow[-1, :] = arrow[:, -1] = True
    coloring = color_columns(Sparse(arrow))
    assert coloring.count == 2
    assert coloring.full_rows.tolist() == [n - 1]


def test_empty_pattern():
    nothing = np.zeros(0, dtype=int)
    assert color_columns(Sparse((nothing, nothing), unknowns=4)).count == 1
