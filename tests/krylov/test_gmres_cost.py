"""What Krylov methods cost: products, memory, transfers, and what a polish saves."""

import tracemalloc

import array_api_strict
import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import GMRES, LGMRES, BiCGSTAB, LinearOperator, LinearStop, ScipyKrylov
from tests.krylov.systems import FAMILY, norms_of, product, systems


@pytest.mark.parametrize("family", FAMILY)
def test_products_are_one_an_iteration_and_one_a_cycle(rng, family):
    A, b = systems(rng, "regular", 1, 30, False)
    calls = []
    counted = LinearOperator(lambda v: (calls.append(None), A[0] @ v)[1], in_shape=30)
    result = ims.linear_solve(counted, b[0], method=family(restart=10), stop=LinearStop(rtol=1e-10, max_iterations=25))
    assert result.iterations == 25
    columns = {GMRES: [10, 10, 5], LGMRES: [10, 11, 4]}[family]
    assert result.matvecs == len(calls) == sum(columns) + len(columns)


@pytest.mark.parametrize("family", FAMILY)
def test_without_confirmation_no_product_is_spent_on_residuals(rng, family):
    A, b = systems(rng, "regular", 2, 12, False)
    calls = []
    counted = LinearOperator(lambda v: (calls.append(None), product(A, v))[1], in_shape=12, batch_shape=(2,))
    outcome = family(restart=5).solve(counted, b, target=1e-3 * norms_of(b), max_iterations=100, confirm=False)
    assert len(calls) == outcome.iterations.max()
    np.testing.assert_allclose(outcome.residual_norm, norms_of(b - product(A, outcome.x)), rtol=1e-6)


@pytest.mark.parametrize(
    "method", [GMRES(restart=40), LGMRES(restart=40), BiCGSTAB(), ScipyKrylov(function="gmres")], ids=str
)
def test_systems_that_have_finished_are_not_multiplied(method, rng):
    n, batch = 40, 10
    A = np.repeat(np.eye(n)[None], batch, axis=0)
    A[3] = np.diag(np.linspace(1, 50, n))
    rows = []

    def operator(matrices):
        def matvec(v):
            rows.append(len(v))
            return product(matrices, v)

        return LinearOperator(
            matvec, in_shape=n, batch_shape=(len(matrices),), take=lambda indices: operator(matrices[indices])
        )

    result = ims.linear_solve(operator(A), rng.standard_normal((batch, n)), method=method)
    assert result.success.all()
    assert (np.delete(result.iterations, 3) <= 2).all()
    assert result.iterations[3] > 8
    assert sum(rows) <= 4 * batch + result.matvecs  # the first step and the last product; one row in the others


@pytest.mark.parametrize(("with_M", "vectors"), [(False, 1), (True, 2)])
def test_a_column_costs_as_many_vectors_as_the_docstring_says(with_M, vectors):
    n = 20_000
    d = np.linspace(1, 2, n)
    b = 1 + np.sin(np.arange(n))
    A = LinearOperator(lambda v: d * v, in_shape=n)
    M = LinearOperator(lambda v: v, in_shape=n) if with_M else None
    peaks = []
    for restart in (6, 8):  # beyond 8 the room grows as columns come
        tracemalloc.start()
        ims.linear_solve(A, b, M=M, method=GMRES(restart=restart), stop=LinearStop(rtol=1e-3))
        peaks.append(tracemalloc.get_traced_memory()[1] / (8 * n))
        tracemalloc.stop()
    assert peaks[1] - peaks[0] == pytest.approx(2 * vectors, abs=0.5)
    assert peaks[0] < 6 * vectors + 16


class Transfers:
    """Counts what moves numbers from a strict array to Python or NumPy."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        kind = type(array_api_strict.zeros(1))
        for name in ("__dlpack__", "__bool__", "__float__", "__int__", "__complex__", "__array__", "__buffer__"):
            if hasattr(kind, name):
                monkeypatch.setattr(kind, name, self.counted(getattr(kind, name)))

    def counted(self, method):
        def wrapper(*arguments, **keywords):
            self.count += 1
            return method(*arguments, **keywords)

        return wrapper


@pytest.mark.parametrize("method", [GMRES(restart=12), LGMRES(restart=12), BiCGSTAB()], ids=str)
def test_one_transfer_to_the_host_an_iteration(monkeypatch, method):
    xp = array_api_strict
    d = xp.linspace(1, 40, 60)
    A = LinearOperator(lambda v: d * v, in_shape=60, dtype=xp.float64)
    b = xp.ones(60)
    transfers = Transfers(monkeypatch)
    result = ims.linear_solve(A, b, method=method, stop=LinearStop(rtol=1e-12, max_iterations=48))
    assert result.iterations > 15
    cycles = 1 if isinstance(method, BiCGSTAB) else result.matvecs - result.iterations
    assert transfers.count <= result.iterations + 2 * cycles + 4


def near_identity(rng, size: int, n: int, norm: float) -> np.ndarray:
    return np.eye(n) + norm * rng.standard_normal((size, n, n)) / np.sqrt(n)


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize("with_M", [False, True])
def test_a_polish_saves_a_product(rng, family, with_M):
    dense, b = near_identity(rng, 4, 200, 0.1), rng.standard_normal((4, 200))
    A, target = ims.aslinearoperator(dense), 1e-6 * np.linalg.norm(b, axis=1)
    M = ims.aslinearoperator(np.broadcast_to(np.eye(200), dense.shape).copy()) if with_M else None
    plain = family().solve(A, b, target=target, max_iterations=50, M=M, confirm=False)
    polished = family().solve(A, b, target=target, max_iterations=50, M=M, confirm=False, polish=True)
    norms = np.linalg.norm(b - np.einsum("bij,bj->bi", dense, polished.x), axis=1)
    assert (polished.iterations <= plain.iterations).all()
    assert polished.iterations.sum() < plain.iterations.sum()
    assert (norms <= target).all()
    assert (polished.status == ims.Status.CONVERGED).all()
    np.testing.assert_allclose(polished.residual_norm, norms, rtol=0.3)
    for i in range(4):  # each system for itself
        part = A.take(np.asarray([i]))
        alone = family().solve(
            part, b[i : i + 1], target=target[i : i + 1], max_iterations=50, confirm=False, polish=True
        )
        np.testing.assert_allclose(alone.x[0], polished.x[i], rtol=1e-12, atol=1e-14)
