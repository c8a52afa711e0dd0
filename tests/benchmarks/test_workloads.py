"""The workloads: their residuals against the library's, their bands and derivatives against differences."""

from typing import Any

import numpy as np
import pytest
from scipy.linalg import solve_banded

import implicitsolve as ims
from benchmarks.benchmarks.workloads import (
    WORKLOADS,
    Banded,
    Bratu,
    Brusselator,
    Brusselators,
    Burgers,
    Elman,
    ImplicitGRU,
    Workload,
)

LAYERS = {
    "gru": ImplicitGRU.draw(3, 7, 5, 2.0, width=4),
    "gru-float32": ImplicitGRU.draw(3, 7, 5, 2.0, np.float32, width=4),
    "elman": Elman.draw(3, 7, 5),
}
LINES = {
    "bratu": Bratu.draw(50),
    "burgers": Burgers.draw(50),
    "brusselator": Brusselator.draw(20, 1),
    "ring": Brusselator.draw(20, 3),
    "batch": Brusselators.draw(4, 6),
}


def near(workload: Workload, rng: np.random.Generator) -> Any:
    """A state around the start."""
    return (workload.x0 + rng.uniform(-0.1, 0.1, workload.x0.shape)).astype(workload.x0.dtype)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_agree_with_the_adapters(name: str, rng: np.random.Generator) -> None:
    workload = LAYERS[name]
    x = near(workload, rng)
    own, adapter = workload.residual(x), workload.problem().residual(x)
    assert own.dtype == adapter.dtype == workload.x0.dtype
    np.testing.assert_allclose(own, adapter, atol=50 * np.finfo(own.dtype).eps)


def test_a_layer_in_single_precision_is_the_rounded_one() -> None:
    single, double = LAYERS["gru-float32"], LAYERS["gru"]
    assert isinstance(single, ImplicitGRU)
    assert isinstance(double, ImplicitGRU)
    for name, value in single.params.items():
        np.testing.assert_array_equal(value, double.params[name].astype(np.float32))


@pytest.mark.parametrize("name", LINES)
def test_bands_are_the_jacobian(name: str, rng: np.random.Generator) -> None:
    workload = LINES[name]
    x, v = near(workload, rng), rng.standard_normal(workload.x0.shape)
    e = 1e-6
    product = (workload.residual(x + e * v) - workload.residual(x - e * v)) / (2 * e)
    recovered = solve_banded(workload.widths, workload.band(x), product.ravel()).reshape(x.shape)
    np.testing.assert_allclose(recovered, v, atol=1e-5 * np.abs(v).max())


@pytest.mark.parametrize("name", LINES)
def test_gradients_are_those_of_the_solution(name: str, rng: np.random.Generator) -> None:
    """d<c, x>/d parameter, against differences of two solutions."""
    workload = LINES[name]
    problem = workload.problem()
    stop = ims.NonlinearStop(atol=1e-15, rtol=0.0)
    x = ims.root(problem, workload.x0, stop=stop).x
    cotangent = rng.standard_normal(x.shape)
    (found,) = ims.pull_back(problem, x, cotangent, stop=ims.LinearStop(rtol=1e-12)).gradients.values()
    field = "B" if isinstance(workload, (Brusselator, Brusselators)) else "constant"
    value, e, moved = getattr(workload, field), 1e-5, []
    for sign in (1, -1):
        arguments = vars(workload) | {field: value + sign * e}
        moved.append(ims.root(type(workload)(**arguments).problem(), x, stop=stop).x)
    axes = tuple(range(np.ndim(value), x.ndim))
    expected = (cotangent * (moved[0] - moved[1])).sum(axis=axes) / (2 * e)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("name", LAYERS | LINES)
def test_the_default_solver_reaches_the_target(name: str) -> None:
    workload = (LAYERS | LINES)[name]
    assert workload.size(workload.x0) > 10 * workload.target
    result = ims.root(workload.problem(), workload.x0, stop=ims.NonlinearStop(atol=workload.target, rtol=0.0))
    assert workload.solved(result.x)


def test_the_compiled_residual_is_the_same(rng: np.random.Generator) -> None:
    pytest.importorskip("numba")
    workload = LINES["batch"]
    assert isinstance(workload, Brusselators)
    function, parameters = workload.compiled()
    x = near(workload, rng)
    out = np.empty_like(x)
    for one, p, F in zip(x, parameters, out):
        function(one, p, F)
    np.testing.assert_allclose(out, workload.residual(x), atol=1e-15)


def test_sizes_are_those_of_the_definitions() -> None:
    workloads = {key: make() for key, make in WORKLOADS.items()}
    shapes = {key: workload.x0.shape for key, workload in workloads.items()}
    assert shapes["W1-k200-s1"] == shapes["W1-k200-s2"] == shapes["W1-k200-s1-float32"] == (20, 40, 200)
    assert shapes["W1-k448-s1"] == (20, 25, 448)
    assert shapes["W2-bratu-1e4"] == shapes["W2-burgers-1e4"] == (10_000,)
    assert shapes["W3-k8"] == (20_000, 8)
    assert shapes["W4"] == (10_000, 8, 2)
    assert shapes["W5"] == (20, 1000, 100)
    assert all(isinstance(workload, Banded) == (key[:2] in ("W2", "W3", "W4")) for key, workload in workloads.items())
