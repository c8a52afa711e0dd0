"""Sparse LU: solves and adjoint solves equal the dense ones, on every engine; singular matrices say so."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve import linear_solve
from implicitsolve.direct._sparse_lu import SparseLU, SparsePlan
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.status import Status
from implicitsolve.structure._grid import Grid
from implicitsolve.structure._sparse import Sparse

GRIDS = [
    Grid(shape=(40,)),
    Grid(shape=(60,), periodic=True, fields=2),
    Grid(shape=(16, 16), stencil="box"),
    Grid(shape=(6, 6, 6)),
]


def random_matrix(structure, batch=(), seed=0, is_complex=False, shift=0.0):
    random = np.random.default_rng(seed)
    data = random.normal(size=(*batch, structure.nnz))
    data = data + 1j * random.normal(size=data.shape) if is_complex else data
    data[..., structure.indices == structure.columns] += shift
    return SparseMatrix(data, structure)


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: str(grid.shape))
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
@pytest.mark.parametrize("is_complex", [False, True])
def test_solves_and_adjoint_solves(grid, batch, is_complex):
    A = random_matrix(grid.sparse, batch, is_complex=is_complex, shift=4.0)
    plan = SparsePlan(A.structure)
    dense, n = A.todense(), grid.unknowns
    b = np.random.default_rng(1).normal(size=(*batch, n))
    for _ in range(2):  # the second time with the order of the first
        factors = SparseLU().factor(A, plan)
        for rhs in (b, b * (1 - 2j)):
            assert np.allclose(factors.solve(rhs), np.linalg.solve(dense, rhs[..., None])[..., 0])
            adjoint = np.swapaxes(dense.conj(), -1, -2)
            assert np.allclose(factors.solve_adjoint(rhs), np.linalg.solve(adjoint, rhs[..., None])[..., 0])
    flat = b.reshape(-1, n)
    assert np.allclose(factors.negative(flat), -factors.solve(b).reshape(-1, n))
    assert np.all(np.asarray(factors.status) == Status.CONVERGED)
    assert factors.nbytes > 0


@given(st.integers(0, 2**32 - 1), st.integers(2, 40))
def test_unsymmetric_patterns_without_a_good_diagonal(seed, n):
    random = np.random.default_rng(seed)
    pattern = random.random((n, n)) < 0.2
    pattern[np.arange(n), random.permutation(n)] = True
    A = random_matrix(Sparse(pattern), seed=seed)
    dense = A.todense()
    factors = SparseLU().factor(A)
    if np.linalg.matrix_rank(dense) < n:
        return
    b = random.normal(size=n)
    x = factors.solve(b)
    size = np.abs(dense).max() * np.abs(x).max() * n
    assert np.abs(dense @ x - b).max() <= 1e-9 * max(size, 1.0)


def test_small_pivots_on_the_diagonal_are_noticed():
    structure = Grid(shape=(30, 30)).sparse
    A = random_matrix(structure)
    A.data[structure.indices == structure.columns] = 1e-14
    b = np.ones(900)
    x = SparseLU().factor(A).solve(b)
    assert np.abs(A @ x - b).max() <= 1e-8 * np.abs(x).max()


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, "box"]), st.sampled_from([1, 2]), st.booleans())
def test_fill_does_not_depend_on_jumps(seed, stencil, fields, has_conditions):
    """A threshold for pivots left the diagonal where coefficients jump: 65,536 unknowns took minutes and gigabytes."""
    random = np.random.default_rng(seed)
    structure = Grid(shape=(14, 14), stencil=stencil, fields=fields).sparse
    size = 10.0 ** random.uniform(-3, 3, structure.nnz)
    if has_conditions:  # rows of the identity: the pattern is no longer symmetric
        keep = ~np.isin(structure.rows, np.arange(14)) | (structure.rows == structure.columns)
        structure = Sparse((structure.rows[keep], structure.columns[keep]), unknowns=structure.unknowns)
        size = size[keep]
    A = SparseMatrix(size, structure)
    plan = SparsePlan(structure)
    factors = SparseLU().factor(A, plan)
    b = random.normal(size=structure.unknowns)
    x = factors.solve(b)
    if not plan.pivots:
        least = SparseLU().factor(SparseMatrix(1.0 + 9.0 * (structure.rows == structure.columns), structure)).nbytes
        assert factors.nbytes <= least + 64 * structure.unknowns
    assert np.linalg.norm(b - A @ x) <= 1e-7 * (size.max() * np.linalg.norm(x) + np.linalg.norm(b))


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1e-3, 1e3]))
def test_zeros_on_the_diagonal_are_pivots_after_a_neighbor(seed, skew):
    """Saddle points: partial pivoting took three times as long in the cube, and minimum degree alone filled all."""
    random = np.random.default_rng(seed)
    n = 16
    K = Grid(shape=(n, n)).sparse.to_scipy() * random.uniform(-1.0, 0.0, (n * n, n * n)) + 4 * sp.eye_array(n * n)
    B = sp.csr_array(np.eye(n * n)[: n * n // 3] + np.eye(n * n)[1 : n * n // 3 + 1])
    A = SparseMatrix.from_scipy(sp.block_array([[K, B.T], [(1 + skew) * B, None]]))
    x = random.normal(size=A.shape[0])
    plan = SparsePlan(A.structure)
    factors = SparseLU().factor(A, plan)
    assert np.allclose(factors.solve(A @ x), x)
    assert not plan.pivots
    assert factors.nbytes <= 12 * 40 * A.shape[0]


def test_networks_of_pipes_were_ordered_as_saddle_points(rng):
    """Their flows are eliminated first anyhow: with each node behind one of them the factors were twice as large."""
    n, m = 400, 600
    a = np.append(np.arange(1, n), rng.integers(0, n, m - n + 1))
    b = np.append((rng.uniform(size=n - 1) * np.arange(1, n)).astype(int), rng.integers(0, n, m - n + 1))
    B = sp.csc_array((np.repeat([1.0, -1.0], m), (np.append(a, b), np.tile(np.arange(m), 2))), shape=(n, m))
    one, losses = sp.csc_array(([1.0], ([0], [0])), shape=(n, n)), rng.uniform(1.0, 2.0, m)
    A = sp.csc_array(sp.block_array([[one, B], [B.T, -sp.diags_array(losses)]]))
    nodes = sp.csc_array(one + B @ B.T)
    assert SparseLU().factor(A).nbytes <= SparseLU().factor(nodes).nbytes + 12 * 4 * (n + m)


def test_fill_of_networks_was_estimated_as_that_of_a_band(rng):
    """30 times too much for a power grid: GMRES with ILU was tried for 100 iterations before each factorization."""
    n, tree, loops = 8000, np.arange(1, 8000), rng.integers(0, 8000, (2, 800))
    A = sp.csc_array((np.ones(n + 799), np.hstack([[tree, tree // 2], loops])), shape=(n, n))
    factors = SparseLU().factor(sp.csc_array(A + A.T + 10.0 * sp.eye_array(n)))
    assert factors.nbytes / 24 <= factors.plan.fill.entries <= factors.nbytes / 6


def test_many_zeros_without_a_neighbor_take_partial_pivoting():
    A = sp.kron(sp.eye_array(900), np.array([[0.0, 1.0], [2.0, 0.0]]))
    A = sp.csc_array(A + 1e-3 * sp.random_array((1800, 1800), density=2e-3, rng=0))
    A.setdiag(0.0)
    A.eliminate_zeros()
    x = np.cos(np.arange(1800))
    assert np.allclose(SparseLU().factor(A).solve(A @ x), x)


@pytest.mark.parametrize("empty", ["row", "column"])
@pytest.mark.parametrize("grid", [Grid(shape=(50,)), Grid(shape=(8, 8, 8))], ids=["band", "SuperLU"])
def test_singular_systems_of_a_batch(grid, empty):
    A = random_matrix(grid.sparse, (2,), shift=8.0)
    where = (A.structure.indices if empty == "row" else A.structure.columns) == 5
    A.data[1, where] = 0.0
    factors = SparseLU().factor(A)
    assert factors.status.tolist() == [int(Status.CONVERGED), int(Status.SINGULAR)]
    x = factors.solve(np.ones((2, grid.unknowns)))
    assert np.isfinite(x[0]).all()
    assert np.isnan(x[1]).all()
    assert np.isfinite(factors.take(np.array([0])).solve(np.ones((1, grid.unknowns)))).all()


@pytest.mark.parametrize("n", [200, 3000])
@pytest.mark.parametrize("corner", [0.0, 2.0])
def test_full_rows_and_columns_fill_nothing(n, corner):
    """A mean and its multiplier: by COLAMD the full row was a candidate for every pivot, and 20,000 took minutes."""
    A = sp.lil_array(sp.diags_array([1.0, -2.5, 1.0], offsets=[-1, 0, 1], shape=(n, n)))
    A[-1, :], A[:, -1] = 1.0, 2.0
    A = A.tocsc()
    A.data[-1] = corner
    factors = SparseLU().factor(SparseMatrix.from_scipy(A))
    x = np.cos(np.arange(n))
    assert np.allclose(factors.solve(A @ x), x)
    assert factors.nbytes <= 200 * n


def test_engines_and_estimates():
    line, plane, cube = (SparsePlan(Grid(shape=s).sparse) for s in [(1000,), (60, 60), (40, 40, 40)])
    assert line.is_band
    assert not plane.is_band
    assert plane.fill.prefers_direct
    assert not cube.fill.prefers_direct
    assert line.fill.operations < plane.fill.operations < cube.fill.operations
    shuffled = np.random.default_rng(0).permutation(1000)
    pattern = Grid(shape=(1000,)).sparse
    assert SparsePlan(Sparse((shuffled[pattern.indices], shuffled[pattern.columns]), unknowns=1000)).is_band


@pytest.mark.parametrize("form", ["csr_array", "coo_matrix", "dia_array", "toarray"])
def test_a_matrix_of_scipy_was_no_argument_of_linear_solve(form):
    A = sp.diags_array([-1.0, 3.0, -2.0], offsets=[-1, 0, 1], shape=(30, 30))
    matrix = A.toarray() if form == "toarray" else getattr(sp, form)(A)
    result = linear_solve(matrix, np.ones(30), method=SparseLU())
    assert result.success
    assert np.allclose(A @ result.x, 1.0)
