"""Substitution: one sweep along the sequence, then the residual is measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import NewtonKrylov, NonlinearStop, Problem, Substitution, root
from implicitsolve.monitor import silent
from implicitsolve.nonlinear._state import Scheduler
from implicitsolve.solve import solve_root
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


# Layers


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_it_solves_causal_layers(name, size, scale, xp, dtype):
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


def test_it_agrees_with_newtons_method(name):
    for size in SIZES.values():
        layer = make(name, **size, scale=0.8).layer()
        stop = NonlinearStop(atol=1e-12, rtol=0.0)
        other = root(layer, method=NewtonKrylov(), stop=stop)
        np.testing.assert_allclose(root(layer, method=Substitution(), stop=stop).x, other.x, atol=1e-9)


def test_one_sequence_alone(name):
    for T in (1, 2, 5):
        case = make(name, B=1, T=T, lengths=None)
        params = {key: case.P[key] for key in case.weights}
        edges = {key: case.P[key][0] for key in case.adapter.boundaries(1)}
        alone = case.adapter.build(params, case.P["inputs"][0], **edges, **case.adapter.options)
        result = root(alone, method=Substitution())
        assert result.status is Status.CONVERGED
        assert result.iterations == 1
        np.testing.assert_allclose(result.x, root(case.layer(), method=Substitution()).x[0], atol=1e-14)


def test_a_batch_is_its_sequences(name):
    layer = make(name, **SIZES["ragged"]).layer()
    together = root(layer, method=Substitution())
    for b in range(3):
        alone = root(layer.take(np.asarray([b])), method=Substitution())
        np.testing.assert_allclose(alone.x[0], together.x[b], atol=1e-14)


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


def test_whatever_the_start_the_solution_is_the_same(name, rng):
    layer = make(name, T=6, lengths=None, scale=0.7).layer()
    x = root(layer, method=Substitution()).x
    for start in (rng.uniform(-1, 1, x.shape), 1e6 * np.ones_like(x)):
        before = start.copy()
        result = root(layer, start, method=Substitution())
        np.testing.assert_array_equal(result.x, x)
        np.testing.assert_array_equal(start, before)


def test_a_long_sequence_that_doubles_every_state():
    """No Newton method knows a step through 60 doublings; a sweep does."""
    k = 2
    params = {"W": 2.0 * np.eye(k), "V": np.eye(k), "b": np.zeros(k)}
    inputs = np.ones((1, 60, k))
    layer = ims.adapters.elman(params, inputs, activation="relu")
    result = root(layer, method=Substitution())
    assert result.success.all()
    np.testing.assert_allclose(result.x[0, :, 0], 2.0 ** np.arange(1, 61) - 1, rtol=1e-14)


# Problems of users


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


def test_the_solution_is_not_the_users_array():
    own = root(chain(), np.zeros(5), method=Substitution()).x
    result = root(chain(substitute=lambda: own), np.zeros(5), method=Substitution())
    assert not np.shares_memory(result.x, own)
    expected = own.copy()
    result.x[...] = 7.0
    np.testing.assert_array_equal(own, expected)


def test_the_start_decides_on_the_dtype():
    start = np.zeros(5, np.float32)
    result = root(chain(), start, method=Substitution())
    assert result.x.dtype == result.fun.dtype == np.float32
    assert result.success


def test_lists_and_flat_arrays_are_arrays():
    known = root(chain(), np.zeros(5), method=Substitution()).x
    assert root(chain(substitute=lambda: known.tolist()), np.zeros(5), method=Substitution()).success
    with pytest.raises(ValueError, match=r"`substitute`.*\(5,\).*\(5, 1\)"):
        root(chain(substitute=lambda: known[:, None]), np.zeros(5), method=Substitution())


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


def test_exceptions_pass():
    def fails():
        raise ZeroDivisionError("of the user")

    with pytest.raises(ZeroDivisionError, match="of the user"):
        root(chain(substitute=fails), np.zeros(5), method=Substitution())


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


def test_it_is_one_step_for_derivatives_too(rng):
    """The derivative of a causal system is a sweep as well: one Krylov iteration with the inverse that J offers."""
    layer = make("elman", **SIZES["ragged"]).layer()
    result = root(layer, method=Substitution())
    cotangent = rng.standard_normal(result.x.shape)
    back = ims.pull_back(layer, result, cotangent, stop=ims.LinearStop(rtol=1e-12))
    assert back.success.all()
    assert (back.linear.iterations <= 1).all()
    np.testing.assert_allclose(layer.linearize(result.x)[1].rmatvec(back.adjoint), cotangent, atol=1e-11)


def test_it_has_no_settings():
    assert Substitution() == Substitution()
    with pytest.raises(TypeError):
        Substitution(3)  # type: ignore[call-arg]
