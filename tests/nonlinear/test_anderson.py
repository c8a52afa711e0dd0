"""Anderson's method against its definition, against GMRES, and where it must forget its past."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from implicitsolve import Anderson, LinearOperator, NonlinearStop, Picard, Problem, Status, root
from implicitsolve.nonlinear._history import FIRST_COLUMNS, History

seeds = st.integers(0, 10**6)


def by_definition(F, x, steps, memory, damping, M):
    """Points of Anderson's method on one system, type II, from the first step that contracts less."""
    points, residuals, plain = [x], [F(x)], 0
    for _ in range(steps):
        if plain == len(points) - 2 and np.linalg.norm(residuals[-1]) <= Anderson.contraction * np.linalg.norm(
            residuals[-2]
        ):
            plain += 1
        last = range(max(plain, len(points) - 1 - memory), len(points) - 1)
        g, f = [x - damping * M @ r for x, r in zip(points, residuals)], residuals[-1]
        step = np.zeros_like(x)
        if memory and last:
            dF = np.stack([residuals[j + 1] - residuals[j] for j in last], axis=1)
            dg = np.stack([g[j + 1] - g[j] for j in last], axis=1)
            step = dg @ np.linalg.lstsq(dF, f, rcond=None)[0]
        points.append(g[-1] - step)
        residuals.append(F(points[-1]))
    return points, residuals


@settings(max_examples=max(1, settings().max_examples // 2))
@given(
    seed=seeds,
    n=st.integers(2, 8),
    memory=st.integers(0, 5),
    damping=st.sampled_from([1.0, 0.5]),
    is_complex=st.booleans(),
    has_inverse=st.booleans(),
)
def test_points_are_those_of_the_definition(seed, n, memory, damping, is_complex, has_inverse):
    rng = np.random.default_rng(seed)

    def random(*shape):
        values = rng.standard_normal(shape)
        return values + 1j * rng.standard_normal(shape) if is_complex else values

    A, b, x0 = random(n, n), 0.1 * random(n), 0.1 * random(n)
    A *= 0.6 / np.linalg.norm(A, 2)
    M = np.eye(n) + 0.2 * random(n, n) / n if has_inverse else np.eye(n)

    def F(x):
        return x - np.tanh(A @ x + b)

    def linearize(x):
        return F(x), LinearOperator(
            lambda v: v, in_shape=n, inverse=lambda: LinearOperator(lambda v: M @ v, in_shape=n)
        )

    seen = []
    root(
        Problem(F, linearize=linearize if has_inverse else None, fixed_point=True),
        x0,
        method=Anderson(memory=memory, damping=damping, growth_limit=1e6),
        stop=NonlinearStop(rtol=1e-5, max_iterations=12),
        monitor=lambda step, x, F: seen.append(x),
    )
    points, residuals = by_definition(F, x0, len(seen) - 2, min(memory, n), damping, M)
    for found, point in zip(seen[:-1], points, strict=True):  # a solve that fails ends at its best point
        np.testing.assert_allclose(found, point, rtol=0, atol=2e-4 * np.linalg.norm(residuals[0]))


@settings(max_examples=max(1, settings().max_examples // 2))
@given(seed=seeds, n=st.integers(1, 12), is_complex=st.booleans())
def test_on_linear_problems_it_is_gmres(seed, n, is_complex):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if is_complex else 0)
    J = np.eye(n) - 0.5 * np.linalg.qr(A)[0]  # so that no step contracts F enough to be taken unmixed
    b = (rng.standard_normal(n) + 0 * J[0]).astype(J.dtype)
    residuals = []
    result = root(
        Problem(lambda x: J @ x - b, fixed_point=True),
        np.zeros_like(b),
        method=Anderson(),
        stop=NonlinearStop(rtol=1e-9),
        monitor=lambda step, x, F: residuals.append(F),
    )
    assert result.success
    assert result.iterations <= n + 1  # GMRES ends after n products; its solution is reached one step later
    krylov = [b]
    for found in residuals[1:]:
        V = np.linalg.qr(np.stack(krylov, axis=1))[0][:, : len(krylov) - 1]
        best = -b + (J @ V) @ np.linalg.lstsq(J @ V, b, rcond=None)[0]  # GMRES' residual after one product less
        np.testing.assert_allclose(found, best - J @ best, rtol=0, atol=1e-6 * np.linalg.norm(b))
        krylov.append(J @ krylov[-1])


def test_a_plateau_of_a_linear_problem_is_no_reason_to_forget():
    n = 12
    J = np.eye(n) - 0.9 * np.roll(np.eye(n), 1, axis=0)  # GMRES finds nothing until the last step
    b = np.eye(n)[0]
    result = root(Problem(lambda x: J @ x - b, fixed_point=True), np.zeros(n), method=Anderson())
    assert result.success
    assert result.iterations <= n + 2  # after a step as long as x one more confirms it


def test_it_needs_fewer_residuals_than_picard_and_converges_where_that_does_not():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((30, 30)) / 30**0.5
    for scale in (0.6, 1.5):
        problem = Problem(lambda x, s=scale: x - np.tanh(s * A @ x + 0.3), fixed_point=True)
        result, plain = (root(problem, np.zeros(30), method=method) for method in (Anderson(), Picard()))
        assert result.success
        assert plain.success == (scale < 1)
        assert result.counts.residuals < 0.8 * plain.counts.residuals


def test_growth_sends_a_system_back_to_its_best_point():
    problem = Problem(lambda x: np.where(np.abs(x) < 2, 5 * x, 1e3 * x), fixed_point=True)
    result = root(problem, np.asarray([1.0]), method=Anderson(growth_limit=10))
    lost = [step for step in result.steps[1:] if step.step_length[0] == 0]
    assert result.success
    assert len(lost) == 1
    assert lost[0].residual_norm[0] == 5.0
    assert result.steps[lost[0].iteration + 1].step_length[0] == 0.5


def test_a_past_that_misleads_is_forgotten():
    rng = np.random.default_rng(5)
    counts = {}
    A = 3 * rng.standard_normal((40, 6, 6)) / 6**0.5
    b = rng.standard_normal((40, 6))
    problem = Problem(lambda x: x - np.tanh((A @ x[..., None])[..., 0] + b), batch_ndim=1, fixed_point=True)
    for growth in (10.0, np.inf):
        result = root(problem, np.zeros((40, 6)), method=Anderson(growth_limit=growth), stop=NonlinearStop(rtol=1e-8))
        counts[growth] = result.success.sum()
        assert set(result.status) <= {Status.CONVERGED, Status.STAGNATED}
    assert counts[10.0] >= 34


METHODS = [Anderson(), Anderson(memory=3), Anderson(damping=0.5, growth_limit=2.0), Anderson(memory=0)]


def mixed(history, norms):
    chosen, rest = history.chosen(norms)
    return (None if chosen is None else history.work.combine(*chosen)), rest


@given(
    seed=seeds,
    memory=st.integers(1, 2 * FIRST_COLUMNS + 3),
    steps=st.integers(1, 40),
    power=st.sampled_from([0, 300]),
    systems=st.sampled_from([3, 10]),  # of which one leaves
)
def test_the_history_is_what_was_put_in(seed, memory, steps, power, systems):
    rng, n = np.random.default_rng(seed), 60
    scale = 2.0**power
    F = scale * rng.standard_normal((systems, n))
    history = History(F, np.linalg.norm(F, axis=1), memory, 1e-12)
    past = [[] for _ in range(systems)]
    for step in range(steps):
        size = len(past)
        dF, dg = scale * rng.standard_normal((size, n)), rng.standard_normal((size, n))
        lost = rng.random(size) < 0.1
        F = np.where(lost[:, None], F, F + dF)
        history.append(dF, dg, F, lost)
        for i in range(size):
            past[i] = [] if lost[i] else [*past[i], (dF[i], dg[i])][-memory:]
        if step == steps // 3:
            keep = np.asarray([2, 0, *range(3, systems)])
            history = history.take(keep)
            F, past = F[keep], [past[i] for i in keep]
        if step == steps // 2:
            new = scale * rng.standard_normal((1, n))
            history = history.concat(History(new, np.linalg.norm(new, axis=1), memory, 1e-12), len(F))
            F, past = np.concatenate([F, new]), [*past, []]
    correction, rest = mixed(history, np.linalg.norm(F / scale, axis=1) * scale)
    for i, pairs in enumerate(past):
        if not pairs:
            assert rest[i] == 1
            assert correction is None or not correction[i].any()
            continue
        dF, dg = (np.stack(part, axis=1) for part in zip(*pairs))
        c = np.linalg.lstsq(dF / scale, F[i] / scale, rcond=None)[0]
        np.testing.assert_allclose(correction[i], dg @ c, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(
            rest[i], np.linalg.norm(F[i] / scale - dF / scale @ c) / np.linalg.norm(F[i] / scale), rtol=1e-6
        )


@pytest.mark.parametrize("seed", range(32))
def test_one_system_takes_the_steps_of_a_batch(seed):
    rng = np.random.default_rng(seed)
    N, size, scale = int(rng.integers(1, 30)), rng.choice([0.2, 0.9, 1.5]), 10.0 ** rng.integers(-12, 13)
    A, b = size * rng.standard_normal((N, N)) / np.sqrt(N), rng.standard_normal(N)
    image = [np.tanh, np.positive, np.square, lambda y: 0.3 * np.exp(np.minimum(y, 700.0))][seed % 4]

    def F(x):
        return x - scale * image(A @ (x / scale) + b)

    options = {"method": METHODS[seed // 4 % 4], "stop": NonlinearStop(rtol=1e-7, max_iterations=100)}
    with np.errstate(all="ignore"):
        alone = root(Problem(F, fixed_point=True), np.zeros(N), **options)
        batch = root(Problem(lambda x: F(x[0])[None], fixed_point=True, batch_ndim=1), np.zeros((1, N)), **options)
    assert (alone.status, alone.counts, alone.iterations) == (batch.status[0], batch.counts, batch.iterations[0])
    assert [step.step_length[0] for step in alone.steps[1:]] == [step.step_length[0] for step in batch.steps[1:]]
    np.testing.assert_allclose(alone.x, batch.x[0], rtol=1e-3, atol=1e-6 * scale)
