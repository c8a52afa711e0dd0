"""How accurately `NewtonKrylov` solves its linear systems: the forcing rule, what the target needs, second attempts."""

import numpy as np
import pytest

from implicitsolve import GMRES, EisenstatWalker, NewtonKrylov, NonlinearStop, Problem, Status, aslinearoperator, root
from implicitsolve.kernels._norms import norm2
from implicitsolve.krylov import _recycling

pytestmark = pytest.mark.rounding

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
    method = NewtonKrylov(forcing=forcing, retry=False)
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


@pytest.mark.parametrize("most", [1, 6])
def test_a_line_search_that_fails_ends_the_attempt(most):
    """J has the wrong sign: every direction leads uphill."""
    d = np.arange(1.0, 7.0)
    problem = Problem(lambda x: d * x, jvp=lambda x, v: -d * v)
    method = NewtonKrylov(krylov=GMRES(restart=6), max_krylov=most, retry=False)
    result = root(problem, np.ones(6), method=method, stop=STOP)
    assert result.status is Status.LINE_SEARCH_FAILED
    assert result.iterations == 0
    assert len(result.steps) == 2
    np.testing.assert_array_equal(result.x, 1.0)


@pytest.mark.parametrize(("recycle", "size", "kept"), [(3, 300, 3), (200, 300, 20), (0, 300, None), (5, 40, 5)])
def test_pairs_that_are_kept_of_a_linear_solve(recycle, size, kept, monkeypatch, rng):
    """No more than asked for, and no more than fit, but 20; of an easy solve none, unless the system is small."""
    monkeypatch.setattr(_recycling, "RECYCLED_MEMORY", 25 * 100)
    A = aslinearoperator((np.eye(size) + 0.5 * rng.standard_normal((size, size)) / size**0.5)[None])
    F, space = rng.standard_normal((1, size)), _recycling.RecyclingGMRES(60, recycle, 1)
    outcome = space.direction(A, F, norm2(F), np.asarray([1e-10]), None)
    assert outcome.iterations[0] > 20
    assert (space.space is None) == (kept is None)
    if kept is not None:
        assert space.space.held.sum() == kept


def test_a_space_that_was_too_small_doubles_up_to_400():
    """A cyclic shift, of which no space but the whole one solves anything."""
    size = 500
    shift = aslinearoperator(np.roll(np.eye(size), 1, axis=0)[None])
    space, F, sizes = _recycling.RecyclingGMRES(60, 0, 1), np.eye(size)[:1], []
    for _ in range(4):
        sizes.append(space.direction(shift, F, norm2(F), np.asarray([0.1]), None).iterations[0])
    assert sizes == [60, 120, 240, 400]
    assert space.sizes[0] == 400


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_system_takes_the_steps_that_it_takes_in_a_batch(dtype):
    """Plain numbers and arrays decide alike, where the line search shortens steps too."""

    def residual(x):
        return np.exp(x) - 2 + 0.1 * np.roll(x, 1, axis=-1)

    x0 = np.linspace(-2, 0, 40).astype(dtype)
    one = root(residual, x0, method=NewtonKrylov())
    batch = root(Problem(residual, batch_ndim=1), np.stack([x0, x0]), method=NewtonKrylov())
    assert one.success
    assert one.iterations == batch.iterations[0]
    assert any(step.step_length[0] < 1 for step in one.steps[1:])
    np.testing.assert_allclose(one.x, batch.x[0], atol=1e-3)
