"""Condition numbers, against those of dense matrices."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve.diagnostics import _system


def linear(A: np.ndarray, b: np.ndarray | float = 0.0, *, adjoint: bool = True, **functions) -> ims.Problem:
    vjp = (lambda x, w: w @ A.conj()) if adjoint else None
    return ims.Problem(lambda x: x @ A.T - b, jvp=lambda x, v: v @ A.T, vjp=vjp, **functions)


def tridiagonal(size: int, diagonal: float) -> np.ndarray:
    return diagonal * np.eye(size) - np.eye(size, k=1) - 1.5 * np.eye(size, k=-1)


@pytest.mark.parametrize("is_complex", [False, True])
def test_a_small_matrix_is_written_out(rng, is_complex):
    A = rng.standard_normal((8, 8)) + (1j * rng.standard_normal((8, 8)) if is_complex else 0)
    found = ims.diagnostics.condition(linear(A), np.ones(8, dtype=A.dtype))
    assert found.number == pytest.approx(np.linalg.cond(A, 1), rel=1e-10)
    assert found.norm == pytest.approx(np.linalg.norm(A, 1))
    assert found.number == found.norm * found.inverse_norm


STRUCTURES = {"bands": ims.BlockBanded(1, 1), "sparse": ims.Sparse(tridiagonal(400, 3.0)), "detected": "detect"}


@pytest.mark.parametrize("diagonal", [3.0, 2.5, 2.45])
@pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES)
def test_a_structure_is_factored(structure, diagonal):
    A = tridiagonal(400, diagonal)
    products = None if structure == "detect" else (lambda x, v: v @ A.T)

    def residual(x):
        y = diagonal * x
        y[:-1] -= x[1:]
        y[1:] -= 1.5 * x[:-1]
        return y

    found = ims.diagnostics.condition(ims.Problem(residual, jvp=products, structure=structure), np.ones(400))
    exact = np.linalg.cond(A, 1)
    rounding = 1e-5 if structure == "detect" else 1e-8  # of central differences, and of LU
    assert exact / 3 <= found.number <= exact * (1 + rounding)


def test_products_alone(monkeypatch, rng):
    monkeypatch.setattr(_system, "MOST_WRITTEN", 10)
    A = np.eye(40) + 0.05 * rng.standard_normal((40, 40))
    found = ims.diagnostics.condition(linear(A), np.ones(40))
    assert np.linalg.cond(A, 1) / 3 <= found.number <= np.linalg.cond(A, 1) * (1 + 1e-4)


def test_a_singular_matrix_without_a_matrix(monkeypatch):
    monkeypatch.setattr(_system, "MOST_WRITTEN", 2)
    assert not ims.diagnostics.condition(linear(np.diag([1.0, 2.0, 0.0, 3.0])), np.ones(4)).number < 1e15


@pytest.mark.parametrize("structure", [None, ims.BlockBanded(1, 1)])
def test_nearly_singular_and_singular_matrices(structure):
    for small in (1e-8, 1e-14):
        A = np.diag([1.0, small, 2.0])
        found = ims.diagnostics.condition(linear(A, structure=structure), np.ones(3))
        assert found.number == pytest.approx(2 / small, rel=1e-2)
    singular = ims.diagnostics.condition(linear(np.diag([1.0, 0.0, 2.0]), structure=structure), np.ones(3))
    assert singular.number == singular.inverse_norm == np.inf
    assert singular.norm == 2


def test_the_error_is_the_distance_to_the_root(rng):
    A, root = rng.standard_normal((6, 6)), rng.standard_normal(6)
    found = ims.diagnostics.condition(linear(A, A @ root), root + 1e-3 * np.eye(6)[2])
    assert found.error == pytest.approx(1e-3, rel=1e-8)


def test_the_system_of_a_batch():
    scales = np.asarray([1.0, 10.0, 100.0])[:, None] ** np.arange(2)
    problem = ims.Problem(lambda x: scales * x, batch_ndim=1)
    for i in range(3):
        assert ims.diagnostics.condition(problem, np.ones((3, 2)), system=i).number == pytest.approx(10.0**i, rel=1e-5)


def test_many_unknowns_need_adjoint_products():
    with pytest.raises(TypeError, match=r"501 unknowns, and needs `vjp`.*`structure`"):
        ims.diagnostics.condition(ims.Problem(lambda x: 2 * x, structure="none"), np.ones(501))


def test_a_large_problem_without_structure_is_assembled_from_what_a_search_finds():
    def residual(x):
        return 3 * x - np.roll(x, 1) + 0.1 * x**2

    x = np.full(2000, 0.5)
    J = np.diag(3 + 0.2 * x[:600]) - np.roll(np.eye(600), 1, axis=0)  # the same columns
    found = ims.diagnostics.condition(residual, x)
    assert found.norm == pytest.approx(np.linalg.norm(J, 1), rel=1e-6)
    assert found.number == pytest.approx(np.linalg.cond(J, 1), rel=0.1)


def test_the_global_random_state_is_unchanged():
    A = tridiagonal(30, 3.0)
    np.random.seed(3)  # noqa: NPY002
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    first = ims.diagnostics.condition(linear(A, structure=ims.BlockBanded(1, 1)), np.ones(30))
    assert np.random.random() == expected  # noqa: NPY002
    assert ims.diagnostics.condition(linear(A, structure=ims.BlockBanded(1, 1)), np.ones(30)) == first
