"""Broyden's method against its definition."""

import numpy as np
import pytest

from implicitsolve import Broyden, NonlinearStop, Problem, root


def by_definition(F, x, steps, memory, damping):
    """Points of Broyden's method with J = I / damping at first and after every `memory` steps."""
    points = [x]
    for step in range(steps):
        if step % memory == 0:
            J = np.eye(x.size) / damping
        s = -np.linalg.solve(J, F(x))
        y = F(x + s) - F(x)
        J = J + np.outer(y - J @ s, s) / (s @ s)
        x = x + s
        points.append(x)
    return points


@pytest.mark.parametrize(("memory", "damping"), [(50, 1.0), (50, 0.5), (3, 1.0), (1, 0.75)])
def test_points_are_those_of_the_definition(memory, damping):
    rng = np.random.default_rng(1)
    A, b, x0 = 0.3 * rng.standard_normal((6, 6)), rng.standard_normal(6), rng.standard_normal(6)

    def F(x):
        return x - np.tanh(A @ x + b)

    seen = []
    result = root(
        Problem(F, fixed_point=True),
        x0,
        method=Broyden(memory=memory, damping=damping),
        stop=NonlinearStop(rtol=1e-6),
        monitor=lambda step, x, F: seen.append(x),
    )
    assert result.success
    for found, point in zip(seen, by_definition(F, x0, len(seen) - 1, memory, damping), strict=True):
        np.testing.assert_allclose(found, point, rtol=0, atol=1e-9)


def test_a_linear_problem_ends_after_twice_as_many_steps_as_unknowns():
    rng = np.random.default_rng(2)
    n = 8
    J, b = np.eye(n) + 0.5 * rng.standard_normal((n, n)), rng.standard_normal(n)
    problem = Problem(lambda x: J @ x - b, fixed_point=True)
    result = root(problem, np.zeros(n), method=Broyden(growth_limit=1e9), stop=NonlinearStop(rtol=1e-6))
    assert result.success
    assert result.iterations <= 2 * n + 1  # Gay, SIAM J. Numer. Anal. 16 (1979)


def test_damping_recovers_and_updates_begin_anew():
    def F(x):
        return np.where(x.max(axis=-1, keepdims=True) > 2, np.nan, 1.8 * (x - 1.5))

    x0 = np.asarray([[-1.5, -1.0], [1.0, 1.2]])
    result = root(Problem(F, batch_ndim=1, fixed_point=True), x0, method=Broyden())
    assert result.success.all()
    lengths = [step.step_length[list(step.systems).index(0)] for step in result.steps[1:] if 0 in step.systems]
    assert lengths[:2] == [0.0, 0.5]
