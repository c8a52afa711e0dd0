"""Substitution: one sweep along the sequence, then the residual is measured."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import NonlinearStop, Problem, Substitution, root
from implicitsolve.monitor import silent
from implicitsolve.nonlinear._solve import solve_root
from implicitsolve.nonlinear._state import Scheduler
from implicitsolve.status import Status
from tests.adapters.layers import ADAPTERS, make
from tests.helpers.compare import host

CAUSAL = [name for name, adapter in ADAPTERS.items() if min(adapter.offsets) > 0 or max(adapter.offsets) < 0]
SIZES: dict[str, dict[str, Any]] = {
    "T1": {"T": 1, "lengths": None},
    "T2": {"T": 2, "lengths": None},
    "full": {"T": 6, "lengths": None},
    "ragged": {"T": 6, "lengths": (6, 1, 4)},
}


@pytest.fixture(params=CAUSAL)
def name(request) -> str:
    return request.param


def chain(n: int = 5, **parts: Any) -> Problem:
    """x_t = cos(x_(t-1)), x_(-1) = 0."""

    def solution() -> np.ndarray:
        x = np.zeros(n)
        for t in range(n):
            x[t] = np.cos(x[t - 1] if t else 0.0)
        return x

    residual = lambda x: x - np.cos(np.concatenate([np.zeros(1), x[:-1]]))  # noqa: E731
    return Problem(residual, **({"substitute": solution, "fixed_point": True} | parts))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("scale", "library"), [(0.5, "numpy"), (3.0, "array_api_strict")])
def test_it_solves_causal_layers(name, size, scale, library):
    xp = pytest.importorskip(library)
    dtype = xp.float32 if scale > 1 else xp.float64
    case = make(name, **SIZES[size], scale=scale)
    layer = case.layer(xp, dtype)
    result = root(layer, method=Substitution())
    assert result.success.all()
    assert (result.iterations == 1).all()
    assert result.x.dtype == result.fun.dtype == dtype
    np.testing.assert_array_equal(host(result.fun), host(layer.residual(result.x)))
    assert np.abs(host(result.fun)).max() <= 64 * float(xp.finfo(dtype).eps) * max(1.0, np.abs(host(result.x)).max())
    norms = np.abs(host(result.fun)).reshape(3, -1).max(axis=1)
    np.testing.assert_array_equal(result.residual_norm, norms)
    assert (host(result.x)[~np.broadcast_to(case.valid, case.H.shape)] == 0).all()
    assert (result.counts.residuals, result.counts.jvps, result.counts.linearizations) == (3, 0, 0)


@pytest.mark.parametrize("capacity", [1, 2])
@pytest.mark.parametrize("has_take", [True, False])
def test_systems_may_wait_for_a_place(capacity, has_take, name):
    layer = make(name, B=5, T=4, lengths=(4, 1, 3, 2, 4)).layer()
    layer = layer if has_take else replace(layer, take=None)
    together = root(layer, method=Substitution())
    start = np.zeros((5, 4, layer.structure.block_size))
    result = solve_root(layer, start, Substitution(), NonlinearStop(), silent, Scheduler(capacity=capacity))
    assert result.success.all()
    np.testing.assert_allclose(result.x, together.x, atol=1e-14)


def test_some_systems_have_converged_already(name):
    for has_take in (True, False):
        layer = make(name, **SIZES["ragged"]).layer()
        layer = layer if has_take else replace(layer, take=None)
        x = root(layer, method=Substitution()).x
        start = x.copy()
        start[1] += 0.5
        stop = NonlinearStop(atol=1e-10, rtol=0.0)
        result = root(layer, start, method=Substitution(), stop=stop)
        assert result.success.all()
        assert result.iterations.tolist() == [0, 1, 0]
        np.testing.assert_allclose(result.x, x, atol=1e-14)


def test_a_long_sequence_that_doubles_every_state():
    """No Newton method knows a step through 60 doublings; a sweep does."""
    k = 2
    params = {"W": 2.0 * np.eye(k), "V": np.eye(k), "b": np.zeros(k)}
    inputs = np.ones((1, 60, k))
    layer = ims.adapters.elman(params, inputs, activation="relu")
    result = root(layer, method=Substitution())
    assert result.success.all()
    np.testing.assert_allclose(result.x[0, :, 0], 2.0 ** np.arange(1, 61) - 1, rtol=1e-14)


def test_a_problem_of_the_users():
    result = root(chain(), np.zeros(5), method=Substitution())
    assert result.success
    assert result.residual_norm == 0.0
    assert (result.iterations, result.krylov_iterations) == (1, 0)
    assert len(result.steps) == 2


def test_what_is_no_solution_is_not_called_one():
    wrong = chain(substitute=lambda: np.ones(5))
    result = root(wrong, np.zeros(5), method=Substitution())
    assert result.status == Status.STAGNATED
    np.testing.assert_array_equal(result.x, 1.0)
    np.testing.assert_array_equal(result.fun, wrong.residual(np.ones(5)))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_not_called_a_solution(bad):
    with np.errstate(invalid="ignore"):
        result = root(chain(substitute=lambda: np.full(5, bad)), np.zeros(5), method=Substitution())
    assert result.status == Status.NONFINITE


def test_the_iteration_limit():
    result = root(chain(), np.zeros(5), method=Substitution(), stop=NonlinearStop(max_iterations=0))
    assert result.status == Status.ITERATION_LIMIT
    assert result.iterations == 0
    np.testing.assert_array_equal(result.x, 0.0)
    assert root(chain(), np.zeros(5), method=Substitution(), stop=NonlinearStop(max_iterations=1)).success


RETURNED: dict[str, tuple[Any, type[Exception]]] = {
    "None": (None, TypeError),
    "size": (np.zeros(4), ValueError),
    "text": ("abc", TypeError),
    "complex": (1j * np.ones(5), TypeError),
}


@pytest.mark.parametrize(("returned", "error"), RETURNED.values(), ids=RETURNED)
def test_what_the_user_returns_is_checked(returned, error):
    with pytest.raises(error, match="`substitute`"):
        root(chain(substitute=lambda: returned), np.zeros(5), method=Substitution())


def test_a_problem_that_does_not_offer_it_is_named():
    with pytest.raises(ValueError, match="must offer `substitute`"):
        root(Problem(lambda x: x), np.ones(2), method=Substitution())
    with pytest.raises(TypeError, match="`substitute` must be callable"):
        Problem(lambda x: x, substitute=np.ones(2))  # type: ignore[arg-type]


def test_monitors_and_norms():
    layer, seen = make("elman", **SIZES["ragged"]).layer(), []
    stop = NonlinearStop(norm=lambda F: float(np.abs(F).sum()), atol=1e-12)
    result = root(layer, method=Substitution(), stop=stop, monitor=lambda *what: seen.append(what))
    assert [step.iteration for step, _, _ in seen] == [0, 1]
    assert [step.running for step, _, _ in seen] == [3, 0]
    np.testing.assert_array_equal(seen[1][1], result.x)
    np.testing.assert_array_equal(seen[1][2], result.fun)
    np.testing.assert_array_equal(seen[1][0].step_length, 1.0)
    np.testing.assert_array_equal(result.residual_norm, np.abs(result.fun).sum(axis=(1, 2)))
    assert result.initial_norm.shape == (3,)
