"""Sparse Jacobians on the device: assembly and products as on the host, factors by cuDSS, statuses, refusals."""

import gc
import sys
from importlib import import_module

import numpy as np
import pytest
import scipy.sparse

import implicitsolve as ims
from implicitsolve.direct._cudss import CuDSSPlan
from implicitsolve.direct._sparse_lu import SparseLU
from implicitsolve.errors import BackendUnavailable
from implicitsolve.linearize._sparse_assemble import SparseAssembler
from implicitsolve.operators._sparse import SparseMatrix

pytestmark = pytest.mark.gpu
N = 12
GRID = ims.Grid(shape=(N, N))
LINE = scipy.sparse.diags_array([2.0 * np.ones(N), -0.8 * np.ones(N - 1), -1.2 * np.ones(N - 1)], offsets=[0, 1, -1])
A = scipy.sparse.csr_array(scipy.sparse.kronsum(LINE, LINE))
TIGHT = ims.NonlinearStop(rtol=1e-11)


@pytest.fixture
def xp(device):
    return device


def bratu(u):
    """A nonlinear convection and diffusion problem on a grid with N points a side; of any library and batch."""
    out = 4.0 * u
    out[..., 1:, :] -= 0.8 * u[..., :-1, :]
    out[..., :-1, :] -= 1.2 * u[..., 1:, :]
    out[..., 1:] -= u[..., :-1] + 0.1 * u[..., 1:] * u[..., :-1]
    out[..., :-1] -= u[..., 1:]
    return out - 0.02 * np.exp(u)


def random_pattern(rng, n=60):
    """A few entries a row, one long row and column, an empty row."""
    dense = rng.random((n, n)) < 0.05
    dense[7, :] = dense[:, 3] = True
    dense[20, :] = False
    return ims.Sparse(dense)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_products_are_those_of_the_dense_matrix(xp, rng, dtype):
    structure = random_pattern(rng)
    data = rng.standard_normal((2, structure.nnz)).astype(dtype) * (1 + 1j if dtype is np.complex128 else 1)
    v = rng.standard_normal((2, 60)).astype(dtype)
    matrix, expected = SparseMatrix(xp.asarray(data), structure), SparseMatrix(data, structure).todense()
    tolerance = {"rtol": 1e-5 if dtype is np.float32 else 1e-12, "atol": 1e-5 if dtype is np.float32 else 1e-12}
    np.testing.assert_allclose(matrix.matvec(xp.asarray(v)).get(), np.einsum("bij,bj->bi", expected, v), **tolerance)
    adjoint = np.einsum("bij,bi->bj", expected.conj(), v)
    np.testing.assert_allclose(matrix.rmatvec(xp.asarray(v)).get(), adjoint, **tolerance)
    np.testing.assert_array_equal(matrix.todense().get(), expected)
    np.testing.assert_array_equal(matrix.diagonal().get(), np.einsum("bii->bi", expected))
    np.testing.assert_array_equal(matrix.take(np.array([1])).todense().get(), expected[1:])
    np.testing.assert_array_equal(matrix.to_sparse(system=1).toarray(), expected[1])


@pytest.mark.parametrize("full_rows", [[], [5]])
@pytest.mark.parametrize("by", ["differences", "products", "products and adjoint products"])
def test_assembly_is_that_of_the_host(xp, rng, by, full_rows):
    structure = random_pattern(rng)
    dense = structure.to_scipy().toarray() * rng.standard_normal((60, 60))
    dense[full_rows] = rng.standard_normal((len(full_rows), 60))

    def assembled(matrix, x):
        assembler = SparseAssembler(structure, np.array(full_rows, dtype=int))
        if by == "differences":
            return assembler.differences(lambda y: y @ matrix.T + y**2, x, x @ matrix.T + x**2).todense()
        vjp = (lambda w: w @ matrix) if "adjoint" in by else None
        return assembler.products(lambda v: v @ matrix.T, x, vjp).todense()

    x = rng.standard_normal((3, 60))
    expected, found = assembled(dense, x), assembled(xp.asarray(dense), xp.asarray(x))
    np.testing.assert_allclose(found.get(), expected, rtol=1e-12, atol=1e-10)


def test_detection_searches_on_the_host(xp):
    found = ims.detect_structure(bratu, xp.zeros((N, N)))
    assert found.structure.has_entries_of(ims.detect_structure(bratu, np.zeros((N, N))).structure)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("structure", [GRID, "detect"], ids=["grid", "detect"])
def test_root_takes_the_steps_of_the_host(cudss, xp, rng, structure, batch, dtype):
    problem = ims.Problem(bratu, structure=structure, batch_ndim=len(batch))
    x0 = rng.uniform(0, 0.1, (*batch, N, N)).astype(dtype)
    expected = ims.root(problem, x0)
    result = ims.root(problem, xp.asarray(x0))
    assert np.all(result.success)
    assert result.detection.how == ("declared" if structure is GRID else "diagonals")
    assert result.x.dtype == dtype
    assert result.counts.residuals <= expected.counts.residuals + 2
    np.testing.assert_allclose(result.x.get(), expected.x, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("names", [("jvp",), ("jvp", "vjp"), ("jac",)], ids="+".join)
def test_derivatives_through_the_root(cudss, xp, names):
    problems = []
    for library in (np, xp):
        sparse = import_module("cupyx.scipy.sparse") if library is xp else scipy.sparse
        M = sparse.csr_matrix(scipy.sparse.csr_matrix(A))

        def jac(u, M=M, library=library):
            J = M.copy()
            on_it = library.asarray(np.flatnonzero(A.indices == np.repeat(np.arange(N * N), np.diff(A.indptr))))
            J.data[on_it] += 3 * u**2
            return J

        functions = {
            "jvp": lambda u, v, M=M: M @ v + 3 * u**2 * v,
            "vjp": lambda u, w, M=M: M.T @ w + 3 * u**2 * w,
            "jac": jac,
        }
        problems.append(
            ims.Problem(
                lambda u, M=M: M @ u + u**3 - 1.0,
                structure=None if names == ("jac",) else GRID,
                parameters={"theta": library.ones(())},
                parameter_vjp=lambda u, w: {"theta": -w.sum()},
                **{name: functions[name] for name in names},
            )
        )
    c = np.random.default_rng(0).standard_normal(N * N)
    expected = ims.root(problems[0], np.zeros(N * N), stop=TIGHT)
    result = ims.root(problems[1], xp.zeros(N * N), stop=TIGHT)
    assert result.success
    assert not hasattr(cudss, "calls") or cudss.calls["factorize"] > 0
    np.testing.assert_allclose(result.x.get(), expected.x, rtol=1e-9)
    pulled = ims.pull_back(problems[1], result, xp.asarray(c), stop=ims.LinearStop(rtol=1e-10))
    assert pulled.success
    lam = np.linalg.solve(A.toarray().T + np.diag(3 * expected.x**2), c)
    np.testing.assert_allclose(pulled.adjoint.get(), lam, rtol=1e-6, atol=1e-8)


def test_matrices_of_cupy_may_change_their_pattern(cudss, xp):
    sparse = import_module("cupyx.scipy.sparse")

    def jac(u):
        J = scipy.sparse.csr_matrix(A + scipy.sparse.diags_array(3 * u.get() ** 2))
        calls.append(1)
        if len(calls) == 1:  # without an entry that the next ones have, by columns
            J[0, 1] = 0.0
            J.eliminate_zeros()
            return sparse.csr_matrix(J).tocsc()
        return sparse.csr_matrix(J)

    calls: list[int] = []
    M = sparse.csr_matrix(scipy.sparse.csr_matrix(A))
    result = ims.root(ims.Problem(lambda u: M @ u + u**3 - 1.0, jac=jac), xp.zeros(N * N), stop=TIGHT)
    assert result.success
    assert result.detection.how == "jac"
    assert not hasattr(cudss, "calls") or cudss.calls["factorize"] > 1


def test_a_pattern_is_analyzed_once_and_every_solver_freed(cudss, double, xp):
    gc.collect()
    before = cudss.alive[0]
    problem = ims.Problem(lambda u: bratu(u) + 2 * u**3, structure=GRID)
    double.reset()
    result = ims.root(problem, xp.full((N, N), 3.0), stop=TIGHT)
    assert result.success
    assert cudss.calls["factorize"] >= 2
    assert cudss.calls["plan"] == 1
    reads = [entry for entry in double.transfers if entry[0] == "to_host"]
    assert max(size for _, _, size in reads) <= 64  # never a vector
    assert len(reads) <= 3 * len(result.steps) + 4 * cudss.calls["factorize"] + 4
    del result, problem
    gc.collect()
    assert cudss.alive[0] == before


def test_factors_solve_with_the_matrix_its_transpose_and_its_adjoint(cudss, xp, rng):
    columns = 10.0 ** rng.integers(-9, 9, N * N)
    data = (rng.standard_normal((2, GRID.sparse.nnz)) + 1j) * columns[GRID.sparse.columns]
    dense, b = SparseMatrix(data, GRID.sparse).todense(), rng.standard_normal((2, N * N)) + 1j
    factors = SparseLU().factor(SparseMatrix(xp.asarray(data), GRID.sparse))
    assert (factors.status == ims.Status.CONVERGED).all()
    for solve, matrix in ((factors.solve, dense), (factors.solve_adjoint, dense.conj().swapaxes(1, 2))):
        expected = np.linalg.solve(matrix, b[..., None])[..., 0]
        np.testing.assert_allclose(solve(xp.asarray(b)).get() / expected, 1, rtol=1e-6)
    assert factors.nbytes > 0


@pytest.mark.parametrize("size", [1.0, 1e-40, 1e40])
def test_singular_systems_of_a_batch_are_told(cudss, xp, size):
    data = np.stack([A.tocsc().data, A.tocsc().data, A.tocsc().data]) * size
    data[1, GRID.sparse.columns == 5] = 0.0
    data[2, 0] = np.nan
    factors = SparseLU().factor(SparseMatrix(xp.asarray(data), GRID.sparse))
    singular = int(ims.Status.SINGULAR)
    np.testing.assert_array_equal(factors.status, [int(ims.Status.CONVERGED), singular, singular])
    x = factors.solve(xp.ones((3, N * N))).get()
    assert np.isfinite(x[0]).all()
    assert np.isnan(x[1:]).all()


def test_the_diagonal_is_matched_after_it_was_zero(cudss, xp):
    """Of two systems the second one has zeros on the diagonal, as a saddle point has."""
    pairs = np.arange(20) ^ 1
    pattern = ims.Sparse((np.repeat(np.arange(20), 2), np.stack([np.arange(20), pairs], axis=1).ravel()))
    on_it = pattern.indices == pattern.columns
    data = np.where(on_it, [[3.0], [0.0]], 2.0)
    b = np.random.default_rng(0).standard_normal((2, 20))
    matrix = SparseMatrix(xp.asarray(data), pattern)
    plan = CuDSSPlan(matrix)
    for _ in range(2):
        factors = SparseLU().factor(matrix, plan)
        assert (factors.status == ims.Status.CONVERGED).all()
        expected = np.linalg.solve(SparseMatrix(data, pattern).todense(), b[..., None])[..., 0]
        np.testing.assert_allclose(factors.solve(xp.asarray(b)).get(), expected, rtol=1e-10)
    assert plan.matches


@pytest.mark.parametrize("method", ["plan", "factorize"])
def test_krylov_methods_follow_where_cudss_fails(cudss, double, xp, method):
    cudss.failing.add(method)
    result = ims.root(ims.Problem(bratu, structure=GRID), xp.zeros((N, N)))
    cudss.reset()
    assert result.success
    assert result.krylov_iterations > 0


@pytest.fixture
def without_nvmath(monkeypatch):
    for name in ("nvmath", "nvmath.sparse", "nvmath.sparse.advanced"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("structure", [GRID, GRID.sparse, "detect"], ids=["grid", "sparse", "detect"])
def test_without_nvmath_nothing_is_evaluated(without_nvmath, xp, structure):
    problem = ims.Problem(lambda u: pytest.fail("evaluated"), structure=structure)
    for method in ("auto", "sparse-newton"):
        with pytest.raises(BackendUnavailable, match=r"cuDSS, through nvmath-python.*structure=\"none\".*BlockBanded"):
            ims.root(problem, xp.zeros((N, N)), method=method)


def test_without_nvmath_products_solve(without_nvmath, xp):
    for structure in ("none", None):
        assert ims.root(ims.Problem(bratu, structure=structure), xp.zeros((N, N))).success
    problem = ims.Problem(bratu, structure=GRID)
    result = ims.root(problem, xp.zeros((N, N)), method="newton-krylov")
    assert result.success
    with pytest.raises(BackendUnavailable, match="nvmath-python"):
        ims.pull_back(problem, result, xp.ones((N, N)))
    assert ims.pull_back(problem, result, xp.ones((N, N)), method=ims.LGMRES()).success


def test_a_matrix_of_scipy_for_arrays_of_cupy_is_refused(cudss, xp):
    problem = ims.Problem(lambda u: u, jac=lambda u: scipy.sparse.eye_array(20))
    with pytest.raises(TypeError, match="`jac` must return matrices of the library of x0"):
        ims.root(problem, xp.ones(20))
