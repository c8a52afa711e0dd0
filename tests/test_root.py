"""`root`: arguments, the stopping rule and results."""

import pickle

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import NonlinearStop, Problem, Status, root

TIGHT = NonlinearStop(rtol=1e-10)


def square(x):
    return x**2 - 2


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "match"),
    [
        ((3, 1.0), {}, TypeError, "`residual`"),
        ((None, 1.0), {}, TypeError, "`residual`"),
        ((square,), {}, TypeError, "`x0`"),
        ((square, "one"), {}, TypeError, "`x0`"),
        ((square, [None]), {}, TypeError, "`x0`"),
        ((square, np.array([1, 2], dtype=object)), {}, TypeError, "`x0`"),
        ((square, {"a": "one"}), {}, TypeError, "`x0: a`"),
        ((square, [[1.0, 2.0], [3.0]]), {}, (TypeError, ValueError), "`x0`"),
        ((square, 1.0), {"method": "bisection"}, ValueError, "`method`.*newton-krylov"),
        ((square, 1.0), {"method": ims.GMRES()}, TypeError, "`method`"),
        ((square, 1.0), {"method": None}, TypeError, "`method`"),
        ((square, 1.0), {"stop": 1e-6}, TypeError, "`stop`"),
        ((square, 1.0), {"stop": ims.LinearStop()}, TypeError, "`stop`"),
        ((square, 1.0), {"monitor": "table"}, TypeError, "`monitor`"),
        ((square, 1.0), {"tol": "tight"}, TypeError, "`tol`"),
        ((Problem(square, batch_ndim=2), [1.0]), {}, ValueError, "`batch_ndim`"),
    ],
)
def test_wrong_arguments_raise_and_are_named(arguments, keywords, error, match):
    with pytest.raises(error, match=match):
        root(*arguments, **keywords)


def test_initial_guess_of_the_problem():
    asked = []

    def guess(kind, rng):
        asked.append((kind, rng))
        return np.ones(2)

    result = root(Problem(square, initial_guess=guess))
    assert result.success
    assert asked == [("default", None)]


def test_a_name_is_a_method():
    named, given = root(square, 1.0, method="newton-krylov"), root(square, 1.0, method=ims.NewtonKrylov())
    np.testing.assert_array_equal(named.x, given.x)


@pytest.mark.parametrize(("x0", "batch_ndim"), [(np.zeros(0), 0), (np.zeros((0, 3)), 1), (np.zeros((3, 0)), 1)])
def test_nothing_to_solve(x0, batch_ndim):
    result = root(Problem(square, batch_ndim=batch_ndim), x0)
    assert result.x.shape == result.fun.shape == x0.shape
    assert np.all(result.success)
    assert np.shape(result.success) == x0.shape[:batch_ndim]
    assert result.raise_for_status() is result
    assert result.counts.residuals == 0
    assert isinstance(result.message, str)


@pytest.mark.parametrize(
    ("taken", "error"),
    [(None, TypeError), (square, TypeError), (Problem(square), ValueError)],
    ids=["None", "function", "wrong"],
)
def test_wrong_take_is_named(taken, error):
    c = np.array([[1.0], [9.0]])
    problem = Problem(lambda x: x**2 - c, batch_ndim=1, take=lambda indices: taken)
    with pytest.raises(error, match="`take`"):
        root(problem, np.ones((2, 1)))


@pytest.mark.parametrize(
    "norm",
    ["max", "2", lambda F: np.sum(np.abs(F)), lambda F: float(np.mean(F**2)) ** 0.5],
    ids=["max", "2", "1", "rms"],
)
@pytest.mark.parametrize(("atol", "rtol"), [(0.0, None), (1e-3, 0.0), (0.0, 1e-3), (1e-9, 1e-3), (1e-2, 1e-9)])
def test_success_is_the_inequality_at_x(norm, atol, rtol):
    def F(x):
        return np.stack([x[0] ** 2 + x[1] - 3, x[0] - x[1] + 1])

    def measure(values):
        return np.max(np.abs(values)) if norm == "max" else np.linalg.norm(values) if norm == "2" else norm(values)

    x0 = np.array([2.0, 3.0])
    result = root(F, x0, stop=NonlinearStop(atol=atol, rtol=rtol, norm=norm))
    rtol = np.finfo(float).eps ** 0.5 if rtol is None else rtol
    assert result.success
    np.testing.assert_array_equal(result.fun, F(result.x))
    assert measure(F(result.x)) <= max(atol, rtol * measure(F(x0)))
    assert result.residual_norm == pytest.approx(measure(result.fun), rel=1e-12)
    assert result.initial_norm == pytest.approx(measure(F(x0)), rel=1e-12)
    previous = result.steps[-2].worst
    assert previous > max(atol, rtol * measure(F(x0)))  # not a step more than needed


def test_norm_sees_one_system_in_its_own_shape():
    shapes = []

    def norm(F):
        shapes.append(F.shape)
        return np.max(np.abs(F))

    root(Problem(square, batch_ndim=1), np.ones((4, 2, 3)), stop=NonlinearStop(norm=norm))
    assert set(shapes) == {(2, 3)}


def test_scalar_results_are_python_numbers():
    result = root(square, 1.0)
    assert isinstance(result.success, bool)
    assert isinstance(result.status, Status)
    assert isinstance(result.iterations, int)
    assert isinstance(result.krylov_iterations, int)
    assert isinstance(result.residual_norm, float)
    assert result.x.shape == ()


def test_no_convergence_carries_everything():
    result = root(lambda x: x**2 + 1, np.ones(2))
    with pytest.raises(ims.NoConvergence) as caught:
        result.raise_for_status()
    error = pickle.loads(pickle.dumps(caught.value))
    np.testing.assert_array_equal(error.x, result.x)
    assert error.result.status == result.status
    assert str(error) == result.message == str(caught.value)
