"""Libraries of sparse factors: the same solutions, and what is said where one is missing or fails."""

import importlib.util

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve.direct._sparse_engines import ENGINE_LIBRARIES
from implicitsolve.operators._sparse import SparseMatrix

STRUCTURE = ims.Grid(shape=(30, 30)).sparse


def installed(engine):
    return importlib.util.find_spec(ENGINE_LIBRARIES[engine].module.split(".")[0]) is not None


@pytest.mark.parametrize("engine", ENGINE_LIBRARIES)
@pytest.mark.parametrize("kind", ["definite", "unsymmetric", "indefinite"])
def test_solves_by_each_library(engine, kind, rng):
    if not installed(engine):
        pytest.skip(f"{ENGINE_LIBRARIES[engine].module} is not installed")
    data = np.where(STRUCTURE.rows == STRUCTURE.columns, -3.0 if kind == "indefinite" else 6.0, -1.0)
    data = data * rng.uniform(0.5, 1.0, data.size) if kind == "unsymmetric" else data
    A, x = SparseMatrix(data, STRUCTURE), rng.standard_normal(900)
    method = ims.SparseLU(engine=engine)
    plan = method.plan(A)
    for _ in range(2):
        factors = method.factor(A, plan)
        np.testing.assert_allclose(factors.solve(A @ x), x, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(factors.solve_adjoint(A.rmatvec(x)), x, rtol=1e-8, atol=1e-8)
    assert factors.nbytes > 0
    with pytest.raises(TypeError, match="real matrices"):
        method.factor(SparseMatrix(data * 1j, STRUCTURE))


@pytest.mark.parametrize("engine", ENGINE_LIBRARIES)
def test_missing_libraries_are_named_with_their_extra(engine, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, ENGINE_LIBRARIES[engine].module, None)
    with pytest.raises(ims.BackendUnavailable, match=rf"implicitsolve\[{ENGINE_LIBRARIES[engine].extra}\]"):
        ims.SparseLU(engine=engine)


def test_unknown_engines_are_refused():
    with pytest.raises(ValueError, match="engine"):
        ims.SparseLU(engine="none")


def test_factors_take_the_place_of_iterations():
    def bratu(u):
        p = np.pad(u, 1)
        neighbors = p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2]
        return 4 * u - neighbors - 5 * np.exp(u) / 31**2

    for engine in ["auto", *filter(installed, ENGINE_LIBRARIES)]:
        method = ims.SparseNewton(factor=ims.SparseLU(engine=engine))
        assert ims.root(bratu, np.zeros((30, 30)), method=method).success
