"""How accurately `NewtonKrylov` solves its linear systems: the forcing rule, what the target needs, second attempts."""

from __future__ import annotations

import numpy as np
import pytest

from implicitsolve import EisenstatWalker, NewtonKrylov, NonlinearStop, Problem, root

STOP = NonlinearStop(rtol=1e-10, norm="2", max_iterations=60)


def hilly(size, seed):
    """Products of sines: Newton's directions often do not help."""
    rng = np.random.default_rng(seed)
    A, b = rng.standard_normal((size, size)), rng.standard_normal(size)

    def F(x):
        return np.sin(A @ x) + 0.3 * x - b

    return Problem(F, jvp=lambda x, v: np.cos(A @ x) * (A @ v) + 0.3 * v)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("forcing", [EisenstatWalker(), EisenstatWalker(gamma=0.5, alpha=1.5, eta0=0.5)])
def test_every_step_is_solved_as_the_rules_say(seed, forcing):
    method = NewtonKrylov(forcing=forcing, restarts=0)
    result = root(hilly(6, seed), np.full(6, 2.0), method=method, stop=STOP)
    steps = result.steps[1:]
    norms = np.asarray([step.residual_norm for step in result.steps])
    target = 1e-10 * norms[0]
    eta = forcing.first(1)
    assert len(steps) > 3
    for before, after, step in zip(norms[:-1], norms[1:], steps):
        used = np.minimum(np.maximum(eta, 0.5 * target / before), 0.9)  # no more than the target needs
        np.testing.assert_allclose(step.forcing, used, rtol=1e-12)
        assert step.linear_residual <= used * (1 + 1e-9) or step.krylov_iterations == 6
        eta = forcing.next(used, after, before)
        slow = not after < 0.5 * before and step.linear_residual <= used
        if slow or not step.step_length:  # an accurate direction that did not help: ten times as accurately
            eta = np.minimum(eta, np.maximum(0.1 * np.minimum(used, 0.1), 1e-6))


def test_a_line_search_that_failed_is_tried_again_with_better_directions_and_then_given_up():
    """The residual cannot fall below 1, where J is all but zero."""
    problem = Problem(lambda x: x**2 + 1, jvp=lambda x, v: 2 * x * v)
    result = root(problem, np.asarray([1.0, 2.0]), method=NewtonKrylov(restarts=0), stop=STOP)
    assert not result.success
    lengths = np.asarray([step.step_length[0] for step in result.steps[1:]])
    assert np.count_nonzero(lengths == 0) <= 4
