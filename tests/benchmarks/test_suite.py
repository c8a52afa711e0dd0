"""The suite's own tools: what they count is there."""

from typing import Any

import numpy as np
import pytest

import implicitsolve as ims
from benchmarks.benchmarks import adapters, block_banded, krylov, solves, tools
from benchmarks.benchmarks.workloads import Elman, ImplicitGRU


def test_peak_bytes_are_those_of_the_arrays_held_together() -> None:
    def hold() -> None:
        a = np.ones(1_000_000)
        del a
        b, c = np.ones(500_000), np.ones(250_000)
        del b, c

    assert 8e6 <= tools.peak_bytes(hold) < 8.1e6


def test_transfers_are_reads_by_the_host() -> None:
    xp = pytest.importorskip("array_api_strict")
    a = xp.asarray([1.0, 2.0])
    with tools.transfers() as reads:
        a = a + a * a
        assert reads.count == 0
        assert float(a[0]) == 2.0
        assert bool(a[1] > 5)
        np.testing.assert_array_equal(np.from_dlpack(a), [2.0, 6.0])
        assert reads.count == 3
    float(a[0])
    assert reads.count == 3


def test_the_least_time_is_a_time() -> None:
    seconds = tools.least({"little": lambda: None, "much": lambda: sum(range(200_000))}, turns=3)
    assert 0 <= seconds["little"] < seconds["much"] < 10


@pytest.mark.parametrize("method", ["picard", "newton-krylov"])
def test_products_of_each_are_those_of_the_calls(method: str) -> None:
    """Rows of every call, divided by the batch, against what the trace says."""
    workload = ImplicitGRU.draw(6, 9, 8, 3.0, width=4)
    rows = 0

    def problem(of: ims.Problem) -> ims.Problem:
        def counted(product: Any) -> Any:
            def call(x: Any, *others: Any) -> Any:
                nonlocal rows
                rows += len(x)
                return product(x, *others)

            return call

        return ims.Problem(
            counted(of.residual),
            jvp=counted(lambda x, v: of.linearize(x)[1].matvec(v)),  # type: ignore[misc]
            batch_ndim=1,
            fixed_point=True,
            take=lambda chosen: problem(of.take(chosen)),  # type: ignore[misc]
        )

    stop = ims.NonlinearStop(atol=1e-10, rtol=0.0)
    result = ims.root(problem(workload.problem()), workload.x0, method=method, stop=stop)
    assert result.success.all()
    assert solves.products_of_each(result) <= rows / 6
    assert solves.products_of_each(result) == pytest.approx(rows / 6, rel=0.15)  # compaction waits for enough to end


@pytest.mark.parametrize("name", krylov.SYSTEMS)
def test_linear_systems_can_be_solved(name: str) -> None:
    A, b = krylov.SYSTEMS[name]()
    result = ims.linear_solve(A, b, method=krylov.METHODS["BiCGSTAB"], stop=krylov.STOP)
    assert np.all(result.success)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_lapack_solves_the_same_systems(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.linalg import lapack

    monkeypatch.setitem(block_banded.SIZES, k, 20)
    A, b = block_banded.system(k)
    lapacks = block_banded.LapackTime()
    lapacks.setup(k)
    if k == 1:
        x = lapack.dgttrs(*lapacks.factors, lapacks.b)[0]
    else:
        x = lapack.dgbtrs(lapacks.factors[0], lapacks.kl, lapacks.kl, lapacks.b, lapacks.factors[1])[0]
    np.testing.assert_allclose(ims.linear_solve(A, b).x.ravel(), x, rtol=1e-9)


@pytest.mark.parametrize("name", adapters.LAYERS)
def test_matrix_products_alone_are_no_more_than_those_of_the_layer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recurrent weights of a layer hold as many numbers as the products that it is compared with."""
    monkeypatch.setitem(adapters.SIZES, 6, (2, 3))
    problem = adapters.layer(name, 2, 3, 6, "float64")
    assert problem.parameters is not None
    recurrent = {
        key: value for key, value in problem.parameters.items() if key[0] in "UPNA" or (key, name) == ("W", "elman")
    }
    assert sum(np.size(value) for value in recurrent.values()) == sum(
        6 * m * 6 * n for m, n in adapters.LAYERS[name][2]
    )
    for call in adapters.calls(name, 6, "float64").values():
        call()


def test_a_workload_is_counted() -> None:
    counts = solves.Forward.count(Elman.draw(2, 6, 4))
    assert counts["residuals"] >= 1
    assert counts["bytes"] > 2 * 6 * 4 * 8
    assert counts["residual"] <= 1
