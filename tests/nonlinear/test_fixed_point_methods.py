"""What Picard's, Anderson's and Broyden's methods have in common."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve import Anderson, Broyden, LinearOperator, NonlinearStop, Picard, Problem, Status, root
from implicitsolve.nonlinear._solve import solve_root
from implicitsolve.nonlinear._state import Scheduler

METHODS = {
    "picard": Picard(),
    "damped": Picard(damping=0.5),
    "anderson": Anderson(),
    "short": Anderson(memory=2, damping=0.5),
    "broyden": Broyden(),
    "restarted": Broyden(memory=3, damping=0.75),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
fewer = settings(max_examples=max(1, settings().max_examples // 3))
seeds = st.integers(0, 10**6)


class Layers:
    """x = tanh(A x + b) for each system of a batch, with ||A||_2 = `norm`."""

    def __init__(self, A, b, with_take=True):
        self.A, self.b, self.with_take = A, b, with_take
        self.calls = 0

    @classmethod
    def drawn(cls, seed, systems, n, norm=0.7, is_complex=False, with_take=True):
        rng = np.random.default_rng(seed)

        def random(*shape):
            values = rng.standard_normal(shape)
            return values + 1j * rng.standard_normal(shape) if is_complex else values

        A, b = random(systems, n, n), (0.1 if is_complex else 0.5) * random(systems, n)  # tanh has poles in the plane
        return cls(A * norm / np.linalg.norm(A, 2, axis=(-2, -1), keepdims=True), b, with_take)

    def residual(self, x):
        self.calls += 1
        return x - np.tanh((self.A @ x[..., None])[..., 0] + self.b)

    def problem(self):
        take = (lambda i: Layers(self.A[i], self.b[i]).problem()) if self.with_take else None
        return Problem(self.residual, batch_ndim=1, take=take, fixed_point=True)


@fewer
@given(seed=seeds, n=st.integers(1, 12), is_complex=st.booleans(), systems=st.integers(1, 3))
@every_method
def test_contractions_are_solved_and_what_the_result_says_is_so(method, seed, n, is_complex, systems):
    layers = Layers.drawn(seed, systems, n, 0.4 if is_complex else 0.7, is_complex, with_take=False)
    x0 = 0.1 * np.random.default_rng(seed).standard_normal((systems, n)).astype(layers.A.dtype)
    given_x0 = x0.copy()
    result = root(layers.problem(), x0, method=method, stop=NonlinearStop(rtol=1e-10))
    assert result.success.all()
    np.testing.assert_array_equal(x0, given_x0)
    assert result.counts.residuals == layers.calls == len(result.steps)  # one a step, those that go back included
    assert result.counts.jvps == result.counts.linearizations == 0
    F, first = layers.residual(result.x), layers.residual(x0)
    np.testing.assert_allclose(result.fun, F, rtol=0, atol=1e-14)
    assert (np.abs(F).max(axis=1) <= 1e-10 * np.abs(first).max(axis=1) + 1e-15).all()
    assert len(result.steps) == result.iterations.max() + 1
    if isinstance(method, Picard):  # the others may take a bad step, and go back
        assert all((step.step_length == method.damping).all() for step in result.steps[1:])


@every_method
def test_systems_that_wait_for_a_place_are_solved(method):
    layers = Layers.drawn(0, 7, 5, 0.9)
    x0 = np.zeros((7, 5))
    stop = NonlinearStop(rtol=1e-10)
    few = solve_root(layers.problem(), x0, method, stop, ims.monitor.silent, Scheduler(capacity=4))
    whole = root(layers.problem(), x0, method=method, stop=stop)
    assert few.success.all()
    np.testing.assert_allclose(few.x, whole.x, rtol=1e-8, atol=1e-9)
    assert (few.iterations <= whole.iterations + 2).all()


@every_method
def test_steps_out_of_the_domain_are_not_taken(method):
    problem = Problem(lambda x: np.where(x < 0, np.nan, x - 1.5 + 0.4 * x**2), fixed_point=True)
    result = root(problem, np.asarray([3.0]), method=method)
    assert result.success
    np.testing.assert_allclose(result.x, (3.4**0.5 - 1) / 0.8, rtol=1e-6)
    if method.damping == 1:
        assert 0.0 in [step.step_length[0] for step in result.steps[1:]]
        assert result.iterations < len(result.steps) - 1  # rejected steps are none


@every_method
def test_no_way_back_from_nan_ends_the_solve(method):
    result = root(Problem(lambda x: np.where(x == 1, 1.0, np.nan)), np.ones(3), method=method)
    assert result.status == Status.NONFINITE
    np.testing.assert_array_equal(result.x, np.ones(3))
    np.testing.assert_array_equal(result.fun, np.ones(3))
    assert result.counts.residuals == 11
    assert result.iterations == 0


def test_the_limit_is_500_steps_unless_the_rule_says_otherwise():
    problem = Problem(lambda x: 0.02 * (x - 1), fixed_point=True)
    assert root(problem, np.zeros(1), method=Picard(), stop=NonlinearStop(rtol=1e-5)).status == Status.ITERATION_LIMIT
    stop = NonlinearStop(rtol=1e-5, max_iterations=1000)
    assert root(problem, np.zeros(1), method=Picard(), stop=stop).success


@every_method
@pytest.mark.parametrize("systems", [0, 2])
def test_no_residual_is_asked_where_a_step_overflows(method, systems):
    """There it was 0."""

    def F(x):
        assert np.isfinite(x).all()
        return np.where(np.abs(x) > 1e300, -1e308, -1e10 * x)

    x0 = np.full((systems, 3) if systems else 3, 1.5e308)
    with np.errstate(all="ignore"):
        result = root(Problem(F, fixed_point=True, batch_ndim=int(systems > 0)), x0, method=method)
    assert not np.any(result.success)
    assert np.isfinite(result.x).all()


@pytest.mark.parametrize("method", [Anderson(), Broyden()], ids=["anderson", "broyden"])
def test_a_system_that_fails_ends_at_its_best_point(method):
    rootless = Problem(lambda x: 1 + x**2 + 0.1 * np.sin(40 * x), fixed_point=True)
    result = root(rootless, np.asarray([0.7]), method=method, stop=NonlinearStop(rtol=1e-6))
    assert result.status in (Status.STAGNATED, Status.ITERATION_LIMIT)
    best = min(step.residual_norm[0] for step in result.steps)
    assert result.residual_norm == best
    np.testing.assert_array_equal(result.fun, rootless.residual(result.x))


def offering(A, b, inverse):
    """x = A x + b, whose J offers `inverse(i)` of system i; linearize is counted by the result."""

    def part(i):
        def linearize(x):
            M = np.stack([inverse(j) for j in i])

            def operator(M):
                return LinearOperator(
                    lambda v: (M @ v[..., None])[..., 0],
                    in_shape=b.shape[1],
                    batch_shape=(len(M),),
                    take=lambda k: operator(M[k]),
                )

            def jacobian(rows):
                return LinearOperator(
                    lambda v: v - (A[rows] @ v[..., None])[..., 0],
                    in_shape=b.shape[1],
                    batch_shape=(len(rows),),
                    take=lambda k: jacobian(rows[k]),
                    inverse=None if inverse(0) is None else lambda: operator(M[np.searchsorted(i, rows)]),
                )

            return residual(x), jacobian(i)

        def residual(x):
            return x - (A[i] @ x[..., None])[..., 0] - b[i]

        return Problem(residual, linearize=linearize, batch_ndim=1, take=lambda k: part(i[k]), fixed_point=True)

    return part(np.arange(len(b)))


@pytest.mark.parametrize("method", [Anderson(), Broyden()], ids=["anderson", "broyden"])
def test_an_exact_inverse_takes_one_step_and_a_useless_one_is_given_up(method):
    rng = np.random.default_rng(0)
    A, b = 0.3 * rng.standard_normal((4, 3, 3)), rng.standard_normal((4, 3))
    identity = np.eye(3)
    inverses = [np.linalg.inv(identity - A[0]), np.full((3, 3), np.nan), -1e3 * identity, np.zeros((3, 3))]
    result = root(offering(A, b, lambda i: inverses[i]), np.zeros((4, 3)), method=method, stop=NonlinearStop(rtol=1e-9))
    assert list(result.status[:3]) == [Status.CONVERGED] * 3
    assert result.status[3] == Status.STAGNATED  # no step at all
    assert result.iterations[0] == 1
    np.testing.assert_allclose(result.x[:3], np.linalg.solve(identity - A, b[:, :, None])[:3, :, 0], rtol=1e-7)


@pytest.mark.parametrize("kind", [Anderson, Broyden])
def test_the_inverse_can_be_declined_and_j_need_not_offer_one(kind):
    rng = np.random.default_rng(1)
    A, b = 0.2 * rng.standard_normal((2, 8, 8)), rng.standard_normal((2, 8))
    plain = root(offering(A, b, lambda i: None if i < 9 else i), np.zeros((2, 8)), method=kind())
    declined = root(offering(A, b, lambda i: np.eye(8)), np.zeros((2, 8)), method=kind(preconditioned=False))
    np.testing.assert_array_equal(plain.x, declined.x)
    assert (plain.counts.linearizations, declined.counts.linearizations) == (1, 0)
    assert plain.counts.residuals == declined.counts.residuals


@pytest.mark.parametrize(
    ("kind", "settings", "error", "message"),
    [
        (Picard, {"damping": 0}, ValueError, "Picard: `damping` must be positive and finite, got 0"),
        (Picard, {"damping": "1"}, TypeError, "Picard: `damping` must be a real number, got str"),
        (Anderson, {"damping": np.inf}, ValueError, "Anderson: `damping` must be positive and finite"),
        (Anderson, {"memory": -1}, ValueError, "Anderson: `memory` must be at least 0"),
        (Anderson, {"memory": 2.5}, TypeError, "Anderson: `memory` must be an integer"),
        (Anderson, {"regularization": -1e-3}, ValueError, "Anderson: `regularization` must be finite and not negative"),
        (Anderson, {"growth_limit": 0.5}, ValueError, "Anderson: `growth_limit` must be at least 1, got 0.5"),
        (Anderson, {"patience": 0}, ValueError, "Anderson: `patience` must be at least 1"),
        (Anderson, {"preconditioned": None}, TypeError, "Anderson: `preconditioned` must be True or False"),
        (Broyden, {"memory": 0}, ValueError, "Broyden: `memory` must be at least 1"),
        (Broyden, {"damping": float("nan")}, ValueError, "Broyden: `damping` must be positive and finite"),
        (Broyden, {"growth_limit": float("nan")}, ValueError, "Broyden: `growth_limit` must be at least 1"),
        (Broyden, {"preconditioned": 1}, TypeError, "Broyden: `preconditioned` must be True or False, got int"),
    ],
)
def test_wrong_settings(kind, settings, error, message):
    with pytest.raises(error, match=message):
        kind(**settings)
