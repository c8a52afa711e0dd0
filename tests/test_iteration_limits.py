"""Limits of iterations: none of the caller's, a number, or zero."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve import LinearStop, NonlinearStop, Problem, root
from implicitsolve.status import Status

METHODS: dict[str, Any] = {
    "newton-krylov": ims.NewtonKrylov(),
    "gmres": ims.NewtonKrylov(krylov=ims.GMRES()),
    "full step": ims.NewtonKrylov(line_search=ims.FullStep()),
    "block-newton": ims.BlockNewton(reuse="none"),
}


def endless(method: Any, limit: int | None) -> ims.NonlinearResult:
    """e^x has no root: each Newton step goes by -1 and divides F by e, for ever."""
    structure = ims.BlockBanded(0, 0, 1) if isinstance(method, ims.BlockNewton) else None
    problem = Problem(np.exp, jac=lambda x: np.diag(np.exp(x)), structure=structure)
    return root(problem, np.zeros(2), method=method, stop=NonlinearStop(rtol=1e-300, max_iterations=limit))


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize(("limit", "steps"), [(0, 0), (1, 1), (7, 7), (130, 130), (np.int64(3), 3)])
def test_a_solve_ends_at_its_limit(method, limit, steps):
    result = endless(method, limit)
    assert result.status in (Status.ITERATION_LIMIT, Status.AT_INFINITY)  # which both say that the limit ended it
    assert result.iterations == steps
    assert len(result.steps) == steps + 1
    np.testing.assert_allclose(result.x, -float(steps), rtol=1e-3, atol=1e-12)


def diode(x: Any) -> Any:
    """A diode behind a resistor at 10 V: Newton's steps take 26 mV of the voltage each."""
    with np.errstate(all="ignore"):
        return np.array([1e-12 * (np.exp(x[0] / 0.026) - 1) - x[1], x[1] - (10 - x[0]) / 1e3])


def diodes(x: Any) -> Any:
    """The same with diodes in series."""
    with np.errstate(all="ignore"):
        current = 1e-14 * (np.exp(-np.diff(x, append=0.0) / 0.025) - 1)
        return np.append((8 - x[0]) / 1e3, current[:-1]) - current


def rectifier(x: Any) -> Any:
    """Two diodes with a load behind each."""
    with np.errstate(all="ignore"):
        current = 1e-14 * (np.exp(-np.diff(x, prepend=5.0) / 0.025) - 1)
        return current - np.append(current[1:], 0.0) - x / 1e3


@pytest.mark.parametrize(
    ("F", "x0"), [(diode, [10.0, 0.0]), (diode, [5.0, 0.0]), (diodes, [7.0, 6.0, 5.0]), (rectifier, [0.0, 0.0])]
)
def test_progress_is_not_cut_short(F, x0):
    """A solve was cut at 100 steps, and spent 1,000 evaluations on other methods, all in vain."""
    result = root(F, x0)
    assert result.success
    assert 100 < result.iterations < 600
    assert result.retries == ()


def test_no_limit_of_the_callers_leaves_the_methods_own():
    assert NonlinearStop().max_iterations is None
    stop = NonlinearStop()
    spent = np.asarray([0, 30, 100, 700])
    np.testing.assert_array_equal(stop.remaining(500, spent), 500)
    assert stop.remaining(500, spent).shape == (4,)


@given(st.integers(0, 1000), st.lists(st.integers(0, 2000), max_size=5), st.integers(0, 2000))
def test_a_limit_counts_what_was_spent(limit, spent, default):
    left = NonlinearStop(max_iterations=limit).remaining(default, np.asarray(spent, dtype=int))
    assert left.tolist() == [limit - one for one in spent]


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_at_a_limit_of_zero_a_solution_is_a_solution(method):
    structure = ims.BlockBanded(0, 0, 1) if isinstance(method, ims.BlockNewton) else None
    problem = Problem(lambda x: x - 1, jac=lambda x: np.eye(2), structure=structure)
    stop = NonlinearStop(atol=1e-12, max_iterations=0)
    for start, status in ((np.ones(2), Status.CONVERGED), (np.zeros(2), Status.ITERATION_LIMIT)):
        result = root(problem, start, method=method, stop=stop)
        assert result.status == status
        assert (result.iterations, result.counts.residuals) == (0, 1)
        np.testing.assert_array_equal(result.x, start)


@pytest.mark.parametrize("limit", [0, 1, 4])
def test_second_attempts_have_what_the_first_ones_left(limit):
    """Where the line search fails the solve begins again: all attempts together keep to the limit."""
    problem = Problem(lambda x: 1 + x**2, jvp=lambda x, v: 2 * x * v)
    for method in ("auto", "newton-krylov"):
        result = root(problem, np.asarray([3.0, 0.5]), method=method, stop=NonlinearStop(max_iterations=limit))
        assert not result.success
        assert result.iterations <= limit


WRONG = [(-1, ValueError), (1.0, TypeError), (True, TypeError), ("3", TypeError), (np.inf, TypeError)]


@pytest.mark.parametrize(("limit", "error"), WRONG, ids=[str(wrong[0]) for wrong in WRONG])
def test_wrong_limits_are_named(limit, error):
    with pytest.raises(error, match="NonlinearStop: `max_iterations` must be"):
        NonlinearStop(max_iterations=limit)


def test_linear_solves_always_have_a_limit():
    with pytest.raises(TypeError, match="LinearStop: `max_iterations` must be an integer"):
        LinearStop(max_iterations=None)  # type: ignore[arg-type]
