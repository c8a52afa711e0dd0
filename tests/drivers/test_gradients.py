"""`stream_gradients`: the gradients of the plain batch, from a batch that is refilled."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve.adapters import gru_parameters, implicit_gru
from implicitsolve.drivers import stream_gradients
from implicitsolve.drivers._gradients import _Refilled
from implicitsolve.monitor import silent
from tests.adapters.layers import ADAPTERS, make

STOP = ims.NonlinearStop(atol=1e-11, rtol=0.0)
LINEAR = ims.LinearStop(rtol=1e-10)
TIGHT = {"stop": STOP, "adjoint_stop": LINEAR}


def layer(rng: np.random.Generator, B: int = 30, T: int = 9) -> ims.Problem:
    params = gru_parameters(3, 6, scale=0.6, rng=rng)
    given = {"lengths": rng.integers(1, T + 1, B), "hs": rng.standard_normal((B, 6))}
    return implicit_gru(params, rng.standard_normal((B, T, 3)), **given)


def squares(x: Any, systems: Any) -> Any:
    """Of the loss sum(x**2) / 2."""
    return x


def plain(problem: ims.Problem, **options: Any) -> dict[str, Any]:
    result = ims.root(problem, stop=STOP)
    return ims.pull_back(problem, result, result.x, stop=LINEAR, **options).gradients


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-8 * (1 + np.abs(value).max(initial=0.0)), err_msg=name)


@pytest.mark.parametrize("batch_size", [3, 100])
def test_gradients_of_the_plain_batch(batch_size: int, rng: np.random.Generator) -> None:
    problem = layer(rng)
    found = stream_gradients(problem, squares, batch_size=batch_size, **TIGHT)
    assert found.success.all()
    assert found.counted.all()
    assert_equal(found.gradients, plain(problem))
    again = stream_gradients(problem, found.solution.x, batch_size=batch_size, **TIGHT)
    for name, value in found.gradients.items():
        np.testing.assert_array_equal(again.gradients[name], value)


@pytest.mark.parametrize("name", sorted(ADAPTERS))
def test_every_adapter(name: str) -> None:
    problem = make(name, B=7, lengths=(4, 1, 3, 2, 4, 1, 4), scale=0.3).layer()
    assert_equal(stream_gradients(problem, squares, batch_size=3, **TIGHT).gradients, plain(problem))


def test_both_solves_keep_the_batch_full(rng: np.random.Generator) -> None:
    steps: dict[str, list[Any]] = {"monitor": [], "adjoint_monitor": []}
    monitors: Any = {name: lambda step, x, F, name=name: steps[name].append(step) for name in steps}
    stream_gradients(layer(rng, B=60), squares, batch_size=8, **TIGHT, **monitors)
    for name, seen in steps.items():
        width = [step.systems.size + step.started for step in seen if step.iteration and step.waiting]
        assert np.mean(width) >= 0.95 * 8, name
        assert len(width) > 20


def roots(c: Any) -> ims.Problem:
    """x**2 = c for each system, and c a parameter of its own."""
    return ims.Problem(
        lambda x: x * x - c,
        jvp=lambda x, v: 2 * x * v,
        vjp=lambda x, w: 2 * x * w,
        batch_ndim=1,
        parameters={"c": c},
        parameter_vjp=lambda x, w: {"c": -w},
        take=lambda rows: roots(c[rows]),
    )


def test_failed_systems_are_left_out_unless_they_are_to_count() -> None:
    c = np.asarray([4.0, -1.0, 9.0, np.nan, 16.0])[:, None]
    seen: list[int] = []

    def cotangent(x: Any, systems: Any) -> Any:
        seen.extend(systems.tolist())
        return np.ones_like(x)

    found = stream_gradients(roots(c), cotangent, np.full((5, 1), 3.0), batch_size=2, **TIGHT)
    assert seen == found.counted.nonzero()[0].tolist() == [0, 2, 4]
    assert (found.status == found.solution.status).all()
    np.testing.assert_allclose(found.gradients["c"][:, 0], [1 / 4, 0, 1 / 6, 0, 1 / 8], rtol=1e-8)
    with pytest.raises(ims.NoConvergence):
        found.raise_for_status()
    x0 = np.full((5, 1), 3.0)
    counted = stream_gradients(roots(c), cotangent, x0, batch_size=2, failed="count", **TIGHT)
    assert counted.counted.tolist() == np.isfinite(counted.solution.x[:, 0]).tolist()
    assert counted.gradients["c"][1] != 0
    assert not counted.success[1]


def test_a_singular_adjoint_is_left_out() -> None:
    def flat(c: Any) -> ims.Problem:  # x**2 = c at c = 0
        return replace(roots(c), residual=lambda x: x * x - c, take=lambda rows: flat(c[rows]))

    c = np.asarray([4.0, 0.0, 9.0])[:, None]
    found = stream_gradients(flat(c), lambda x, s: np.ones_like(x), np.sqrt(c), batch_size=2, **TIGHT)
    assert found.solution.success.all()
    assert found.counted.tolist() == found.success.tolist() == [True, False, True]
    np.testing.assert_allclose(found.gradients["c"][:, 0], [1 / 4, 0, 1 / 6], rtol=1e-8)
    np.testing.assert_array_equal(found.adjoint[1], 0.0)


def test_systems_on_which_anderson_fails_go_to_lgmres(rng: np.random.Generator) -> None:
    A = np.stack([np.eye(40) * 0.1, 30 * rng.standard_normal((40, 40)), np.eye(40)])
    b = rng.standard_normal((3, 40))
    for target in (np.full(3, 1e-6), np.asarray([1e-6, 1e-6, np.inf])):
        found = _Refilled(2, silent).solve(ims.aslinearoperator(A), b, target=target, max_iterations=500)
        assert (found.status == ims.Status.CONVERGED).all()
        residual = np.linalg.norm(b - (A @ found.x[..., None])[..., 0], axis=1)
        assert (residual <= target).all()


def test_arguments_are_checked(rng: np.random.Generator) -> None:
    problem = layer(rng, B=3)
    with pytest.raises(ValueError, match="stream_gradients: `failed` must be one of"):
        stream_gradients(problem, squares, batch_size=2, failed="skip")
    with pytest.raises(ValueError, match="stream_gradients: `cotangent` must return shape"):
        stream_gradients(problem, lambda x, systems: x[:, :2], batch_size=2)
    with pytest.raises(ValueError, match="stream_gradients: `cotangent` must have the shape of x"):
        stream_gradients(problem, np.ones((3, 2)), batch_size=2)
