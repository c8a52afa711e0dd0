"""ILU and AMG make fewer Krylov iterations; refusals."""

import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse

import implicitsolve as ims
from benchmarks.sparse_problems import planes
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.precondition import AMG, ILU


def laplacian(n):
    line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
    return SparseMatrix.from_scipy(scipy.sparse.kronsum(line, line, format="csc"))


@pytest.mark.parametrize("settings", [ILU(), AMG(coarsest=50)], ids=["ILU", "AMG"])
def test_fewer_iterations(settings):
    A = laplacian(30)
    b = np.ones(900)
    plain = ims.linear_solve(A, b, method=ims.GMRES())
    better = ims.linear_solve(A, b, method=ims.GMRES(), M=settings.build(A))
    assert better.success
    assert better.iterations < 0.5 * plain.iterations


def test_batches_and_adjoints_of_incomplete_factors():
    A = laplacian(8)
    both = SparseMatrix(np.stack([A.data, 2 * A.data]), A.structure)
    M = ILU(drop_tolerance=0.0, fill=20.0).build(both)
    b = np.random.default_rng(0).normal(size=(2, 64))
    assert np.allclose(both.matvec(M.matvec(b)), b)
    assert np.allclose(both.rmatvec(M.rmatvec(b)), b)
    assert np.allclose(M.take(np.array([1])).matvec(b[1:]), M.matvec(b)[1:])


def test_a_zero_pivot_leaves_the_diagonal():
    data = np.eye(4)
    data[2] = data[:, 2] = 0.0
    A = SparseMatrix.from_scipy(scipy.sparse.csc_array(data))
    assert np.isfinite(ILU().build(A).matvec(np.ones(4))).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ILU(drop_tolerance=1.0), "drop_tolerance"),
        (lambda: ILU(fill=0.5), "fill"),
        (lambda: AMG(fields=0), "fields"),
        (lambda: AMG(coarsening="classical", fields=2), "fields` must be 1"),
        (lambda: AMG(coarsening="none"), "coarsening"),
        (lambda: ILU().build(np.eye(3)), "ndarray"),
        (lambda: ILU().build(ims.aslinearoperator(np.eye(3))), "LinearOperator"),
        (lambda: ims.root(ims.Problem(np.sin), np.ones(30), method=preconditioned(ILU())), "Sparse or Grid"),
    ],
)
def test_settings(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def preconditioned(settings):
    return ims.NewtonKrylov(preconditioner=settings)


def brusselator(n, fields_last=False):
    problem = planes.brusselator(n)
    if not fields_last:
        return ims.Problem(problem.residual, structure=ims.Grid(shape=(n, n), fields=2, periodic=True)), problem.x0
    return (
        ims.Problem(
            lambda u: np.moveaxis(problem.residual(np.moveaxis(u, -1, 0)), 0, -1),
            structure=ims.Grid(shape=(n, n), fields=2, fields_last=True, periodic=True),
        ),
        np.moveaxis(problem.x0, 0, -1),
    )


@pytest.mark.parametrize("fields_last", [False, True])
def test_multigrid_iterations_do_not_grow_with_the_grid(fields_last):
    counts = []
    for n in (24, 48):
        problem, x0 = brusselator(n, fields_last)
        method = preconditioned(AMG(fields=2, fields_last=fields_last, coarsest=50))
        result = ims.root(problem, x0, method=method, stop=ims.NonlinearStop(atol=1e-6))
        assert result.success
        counts.append(result.krylov_iterations)
    assert counts[1] <= 1.5 * counts[0]


def test_incomplete_factors_of_a_declared_grid_and_of_line_blocks(rng):
    problem, x0 = brusselator(16)
    assert ims.root(problem, x0, method=preconditioned(ILU()), stop=ims.NonlinearStop(atol=1e-6)).success
    blocks = rng.standard_normal((2, 30, 3, 2, 2)) + 6 * np.eye(2) * (np.arange(3) == 1)[:, None, None]
    A, b = ims.BlockBandedMatrix(blocks, lower=1, upper=1), rng.standard_normal((2, 30, 2))
    M = ILU(drop_tolerance=0.0, fill=20.0).build(A)
    np.testing.assert_allclose(A @ (M @ b), b, atol=1e-10)
    np.testing.assert_allclose(A.H @ (M.H @ b), b, atol=1e-10)


@pytest.mark.parametrize("M", [ILU(), AMG(fields=2, coarsest=20)], ids=["ILU", "AMG"])
def test_adjoint_of_a_brusselator(M):
    problem, x0 = brusselator(12)
    result = ims.root(problem, x0, stop=ims.NonlinearStop(atol=1e-8))
    by_factors = ims.pull_back(problem, result, np.ones_like(x0))
    stop = ims.LinearStop(rtol=1e-10)
    found = ims.pull_back(problem, result, np.ones_like(x0), method=ims.GMRES(), M=M, stop=stop)
    np.testing.assert_allclose(
        found.adjoint, by_factors.adjoint, rtol=1e-6, atol=1e-8 * np.abs(by_factors.adjoint).max()
    )


@pytest.mark.parametrize("settings", [ILU(), AMG()], ids=["ILU", "AMG"])
def test_no_finite_matrix_ends_at_once(settings):
    A = laplacian(8)
    M = settings.build(SparseMatrix(np.where(np.arange(A.data.size) == 3, np.nan, A.data), A.structure))
    assert M.matvec(np.ones(64)).shape == (64,)


ZEROS = """
import numpy as np, scipy.sparse as sp, implicitsolve as ims
n = 400
P = sp.lil_array(sp.diags_array([np.ones(n), np.ones(n - 1), np.ones(n - 1)], offsets=[0, 1, -1]))
P[200] = 1
P = P.tocsc()
for kept in (0, 1, n // 2, n - 1):  # columns that are not zero
    A = P.copy()
    A.data[A.indptr[kept]:] = 0
    ims.precondition.ILU().build(A)
problem = ims.Problem(lambda x: np.ones(n), structure=ims.Sparse(P))
assert not ims.root(problem, np.zeros(n), stop=ims.NonlinearStop(max_seconds=3)).success
"""


def test_incomplete_factors_of_arrows_of_zeros_hung():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", ZEROS], check=True, timeout=600, env=environment)


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize(
    "settings",
    [ILU(), AMG(coarsest=10), AMG(fields=2, coarsest=10), AMG(coarsening="classical", coarsest=10)],
    ids=["ILU", "AMG", "fields", "classical"],
)
def test_adjoint_products_are_exact(settings, is_complex, rng):
    A = laplacian(12)
    noise = rng.uniform(0.5, 1.5, A.data.size) * (np.exp(1j * rng.uniform(0, 0.3, A.data.size)) if is_complex else 1.0)
    A = SparseMatrix(A.data * noise, A.structure)
    if is_complex and getattr(settings, "coarsening", "") == "classical":
        with pytest.raises(TypeError, match="real"):
            settings.build(A)
        return
    M = settings.build(A)
    v, w = rng.standard_normal((2, 144)) + (1j * rng.standard_normal((2, 144)) if is_complex else 0.0)
    np.testing.assert_allclose(np.vdot(w, M.matvec(v)), np.vdot(M.rmatvec(w), v), rtol=1e-10)
