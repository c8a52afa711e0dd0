"""A `take` that returns other systems than it was given: it was not noticed, and the answers were those of others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims

WRONG = {
    "in another order": lambda rows, rng: rng.permutation(rows),
    "backwards": lambda rows, rng: rows[::-1],
    "in their own order": lambda rows, rng: np.sort(rows),
    "the first": lambda rows, rng: np.arange(rows.size),
    "one for all": lambda rows, rng: rows[:1],
    "too few": lambda rows, rng: rows[:-1],
    "too many": lambda rows, rng: np.append(rows, 0),
    "the right ones": lambda rows, rng: rows,
}


def cubes(numbers, choose, calls, pure=False):
    def F(x):
        calls.append(len(x))
        return x**3 + x - numbers

    return ims.Problem(
        F, batch_ndim=1, pure=pure, take=lambda rows: cubes(numbers[choose(rows)], choose, calls, pure=pure)
    )


@pytest.mark.filterwarnings("ignore")
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(list(WRONG)),
    method=st.sampled_from(["auto", "newton-krylov", "anderson"]),
    streams=st.booleans(),
)
def test_properties_other_systems_were_solved_where_take_returned_them(seed, kind, method, streams):
    rng, calls = np.random.default_rng(seed), []
    numbers = rng.uniform(1, 20, (int(rng.integers(4, 60)), 2))
    x0 = 1.0 + rng.random(numbers.shape) * 10.0 ** rng.uniform(-8, 3, (len(numbers), 1))
    problem, result, message = cubes(numbers, lambda rows: WRONG[kind](rows, rng), calls), None, ""
    try:
        if streams:
            result = ims.drivers.solve_stream(problem, x0, method=method, batch_size=len(x0) // 2 + 1)
        else:
            result = ims.root(problem, x0, method=method)
    except ValueError as raised:
        message = str(raised)
    if result is None:
        assert kind != "the right ones"
        assert "`take`" in message or "shape" in message
    else:
        error = np.abs(result.x**3 + result.x - numbers).max(axis=1) / np.abs(result.x).max(axis=1)
        assert not result.success[error > 1e-3].any()
        assert result.counts.residuals == len(calls)


def test_it_takes_one_evaluation_of_those_that_run_unless_the_problem_is_pure():
    numbers = np.array([[1.0], [2.0], [30.0], [4.0]])
    x0, counts = np.array([[0.6823], [1.0], [300.0], [-20.0]]), []
    for pure in (False, True):
        result = ims.root(cubes(numbers, lambda rows: rows, [], pure), x0, method="newton-krylov")
        assert result.success.all()
        counts.append(result.counts.residuals)
    assert counts[0] == counts[1] + 1


def test_rounding_in_another_order_is_no_other_system(rng):
    """Warm starts at roots, whose F is rounding errors alone."""
    A = rng.standard_normal((30, 30)) + 9 * np.eye(30)

    def problem(b):
        def F(x):
            return (x if len(b) == len(x0) else np.asfortranarray(x)) @ A - b

        return ims.Problem(F, batch_ndim=1, take=lambda rows: problem(b[rows]))

    x = rng.standard_normal((200, 30))
    x0 = x * (1 + 1e-15 * rng.standard_normal(x.shape))
    x0[::2] += 1e-3
    assert ims.root(problem(x @ A), x0, method="newton-krylov").success.all()
