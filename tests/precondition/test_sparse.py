"""ILU and AMG make fewer Krylov iterations; refusals."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import implicitsolve as ims
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.precondition._sparse import AMG, ILU


def laplacian(n):
    line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
    return SparseMatrix.from_scipy(scipy.sparse.kronsum(line, line, format="csc"))


@pytest.mark.parametrize(
    "settings", [ILU(), pytest.param(AMG(coarsest=50), id="AMG")], ids=lambda each: type(each).__name__
)
def test_fewer_iterations(settings):
    if isinstance(settings, AMG):
        pytest.importorskip("pyamg")
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
    ],
)
def test_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()
