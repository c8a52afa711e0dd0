"""The penalty on dG/dx: an unbiased estimate, and the exact gradients of that estimate."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import NonlinearStop, Problem, root
from implicitsolve.derivatives import jacobian_penalty
from tests.adapters.layers import ADAPTERS, make

SMOOTH = [name for name, adapter in ADAPTERS.items() if adapter.smooth]


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def case_of(name: str, **kwargs: Any):
    return make(name, **({"T": 4, "lengths": (4, 1, 3), "scale": 0.8} | kwargs))


def frobenius(case) -> float:
    """||dG/dx||_F^2 / N, dense."""
    D = np.eye(case.H.size) - case.jacobian()
    D[~np.broadcast_to(case.valid, case.H.shape).ravel()] = 0.0
    return float(np.sum(D**2)) / case.H.size


def by_vectors(case, samples: int, seed: int) -> float:
    """The estimate with the vectors that the generator gives."""
    rng, D = generator(seed), np.eye(case.H.size) - case.jacobian()
    vectors = [rng.standard_normal((case.H.shape[0], case.H[0].size)).ravel() for _ in range(samples)]
    return float(np.mean([np.sum((D.T @ e) ** 2) for e in vectors])) / case.H.size


@pytest.mark.parametrize("name", SMOOTH)
def test_the_value_is_that_of_its_vectors(name):
    case = case_of(name)
    for samples in (1, 3):
        penalty = jacobian_penalty(case.layer(), case.H, samples=samples, rng=generator(5))
        assert penalty.value == pytest.approx(by_vectors(case, samples, 5), rel=1e-12)
        assert isinstance(penalty.value, float)


def test_the_estimate_is_unbiased():
    case = case_of("implicit_gru")
    exact, samples = frobenius(case), 150
    values = [jacobian_penalty(case.layer(), case.H, samples=1, rng=generator(i)).value for i in range(samples)]
    error = np.std(values) / samples**0.5
    assert abs(np.mean(values) - exact) <= 4 * error
    assert error < 0.15 * exact
    many = jacobian_penalty(case.layer(), case.H, samples=150, rng=generator(1)).value
    assert many == pytest.approx(exact, rel=0.25)


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_are_those_of_the_estimate(name, rng):
    """Against differences of the value with the same vectors, in x and in every parameter."""
    case = case_of(name)
    penalty = jacobian_penalty(case.layer(), case.H, samples=2, rng=generator(3))
    h = 1e-5

    def value(layer, x):
        return jacobian_penalty(layer, x, samples=2, rng=generator(3)).value

    direction = rng.standard_normal(case.H.shape)
    difference = (value(case.layer(), case.H + h * direction) - value(case.layer(), case.H - h * direction)) / (2 * h)
    assert penalty.cotangent.shape == case.H.shape
    assert np.sum(penalty.cotangent * direction) == pytest.approx(difference, rel=1e-6, abs=1e-8)
    assert penalty.gradients.keys() == case.P.keys()
    for key, given in case.P.items():
        direction = rng.standard_normal(given.shape)
        up, down = (value(case.layer(**{key: given + sign * h * direction}), case.H) for sign in (1, -1))
        assert penalty.gradients[key].shape == given.shape
        assert np.sum(penalty.gradients[key] * direction) == pytest.approx((up - down) / (2 * h), rel=1e-6, abs=1e-8)


def test_the_whole_gradient_through_the_solution(rng):
    """penalty(x(theta), theta): the cotangent goes back through `pull_back`, the gradients come on top."""
    case = case_of("implicit_gru", scale=0.6)
    stop = NonlinearStop(atol=1e-13, rtol=0.0)
    solve = lambda layer: root(layer, method="newton-krylov", stop=stop)  # noqa: E731
    layer = case.layer()
    result = solve(layer)
    penalty = jacobian_penalty(layer, result, samples=2, rng=generator(7))
    back = ims.pull_back(layer, result, penalty.cotangent, stop=ims.LinearStop(rtol=1e-12))
    h = 1e-5
    for key, given in case.P.items():
        direction = rng.standard_normal(given.shape)

        def value(sign, key=key, given=given, direction=direction):
            moved = case.layer(**{key: given + sign * h * direction})
            return jacobian_penalty(moved, solve(moved), samples=2, rng=generator(7)).value

        total = np.sum((penalty.gradients[key] + back.gradients[key]) * direction)
        assert total == pytest.approx((value(1) - value(-1)) / (2 * h), rel=1e-5, abs=1e-8)


def test_a_vjp_that_hands_out_one_buffer():
    buffer = np.zeros(6)

    def vjp(x, w):
        np.copyto(buffer, w - np.cos(x) * w)
        x[...] = w[...] = np.nan  # its own copies
        return buffer

    problem = Problem(lambda x: x - np.sin(x), vjp=vjp, fixed_point=True)
    clean = replace(problem, vjp=lambda x, w: w - np.cos(x) * w)
    x = np.linspace(0.1, 1, 6)
    one, other = (jacobian_penalty(each, x, samples=3, rng=generator()) for each in (problem, clean))
    assert one.value == other.value
    np.testing.assert_array_equal(one.cotangent, other.cotangent)


def test_every_source_of_adjoint_products():
    A = 0.3 * generator(0).standard_normal((4, 4))
    dense = lambda x: np.eye(4) - A * np.cos(x)  # noqa: E731
    F = lambda x: x - A @ np.sin(x)  # noqa: E731
    x = generator(1).standard_normal(4)
    ways = [
        {"vjp": lambda x, w: dense(x).T @ w},
        {"jac": dense},
        {"linearize": lambda x: (F(x), dense(x))},
        {"jac": dense, "vjp": lambda x, w: pytest.fail("jac is preferred")},
    ]
    values = [jacobian_penalty(Problem(F, fixed_point=True, **way), x, rng=generator()) for way in ways]
    for penalty in values:
        assert penalty.value == pytest.approx(values[0].value, rel=1e-12)
        np.testing.assert_allclose(penalty.cotangent, values[0].cotangent, atol=1e-9)


def test_cost():
    calls = dict.fromkeys(("vjp", "parameters"), 0)

    def vjp(x, w):
        calls["vjp"] += 1
        return w - np.cos(x) * w

    def parameter_vjp(x, w):
        calls["parameters"] += 1
        return {"a": np.sum(w)}

    problem = Problem(
        lambda x: x - np.sin(x),
        vjp=vjp,
        parameters={"a": np.asarray(1.0)},
        parameter_vjp=parameter_vjp,
        fixed_point=True,
    )
    jacobian_penalty(problem, np.ones(3), samples=4, rng=generator())
    assert calls == {"vjp": 12, "parameters": 8}


FIXED: dict[str, Any] = {"vjp": lambda x, w: w, "fixed_point": True}
WRONG: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "no problem": (lambda x: x, {}, TypeError, "`problem` must be a Problem with `fixed_point`"),
    "no fixed point": (Problem(lambda x: x, vjp=lambda x, w: w), {}, TypeError, "`fixed_point`"),
    "no adjoint": (Problem(lambda x: x, jvp=lambda x, v: v, fixed_point=True), {}, TypeError, "rmatvec|J\\^H"),
    "nothing": (Problem(lambda x: x, fixed_point=True), {}, TypeError, "rmatvec|J\\^H"),
    "no generator": (Problem(lambda x: x, **FIXED), {"rng": 0}, TypeError, "`rng` must be a numpy.random.Generator"),
    "old generator": (Problem(lambda x: x, **FIXED), {"rng": np.random.RandomState(0)}, TypeError, "`rng`"),
    "no samples": (Problem(lambda x: x, **FIXED), {"samples": 0}, ValueError, "`samples` must be at least 1"),
    "half a sample": (Problem(lambda x: x, **FIXED), {"samples": 0.5}, TypeError, "`samples` must be an integer"),
}


@pytest.mark.parametrize(("problem", "arguments", "error", "words"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_named(problem, arguments, error, words):
    with pytest.raises(error, match=words):
        jacobian_penalty(problem, np.ones(3), **({"rng": generator()} | arguments))


def test_parameters_without_their_product_are_named():
    problem = Problem(lambda x: x, parameters={"a": np.ones(1)}, **FIXED)
    with pytest.raises(TypeError, match="`parameter_vjp`"):
        jacobian_penalty(problem, np.ones(3), rng=generator())


def test_states_that_do_not_fit_are_refused():
    with pytest.raises(TypeError, match="`result` must hold"):
        jacobian_penalty(Problem(lambda x: x, **FIXED), ["a"], rng=generator())
    with pytest.raises(ValueError, match="`batch_ndim` is 2"):
        jacobian_penalty(Problem(lambda x: x, batch_ndim=2, **FIXED), np.ones(3), rng=generator())
