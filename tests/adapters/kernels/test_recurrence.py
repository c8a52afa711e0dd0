"""Recurrences without gates, run as a whole, against a loop over the runs."""

import numpy as np
import pytest

from implicitsolve.adapters import kernels
from implicitsolve.adapters.kernels import Plan

RULES = {
    "tanh": lambda y, x, f: np.tanh(y + x),
    "relu": lambda y, x, f: np.maximum(y + x, 0),
    "push": lambda y, x, f: x + f * y,
    "pull": lambda y, x, f: x + y,
}
LENGTHS_AND_LAGS = ((5, 5, 5), (1,)), ((1, 6, 4, 1), (1, 2)), ((1,), (1,)), ((2, 3), (4,)), (range(1, 12), (1,))


@pytest.fixture(params=["reference", "numba"])
def run(request):
    if request.param == "numba":
        pytest.importorskip("numba")
    return kernels.rnn.select(np.empty(0), request.param, size=1).run


def plan_of(lengths, rng) -> Plan:
    """Runs of these lengths, in either direction, whose rows stand in any order, with gaps."""
    lengths, ways = np.asarray(lengths), rng.choice([1, -1], len(lengths))
    sources, targets = (np.empty(len(lengths), int) for _ in range(2))
    for firsts in (sources, targets):
        order = rng.permutation(len(lengths))
        firsts[order] = np.cumsum(lengths[order] + 1) - lengths[order]
        firsts += np.where(ways > 0, 0, lengths - 1)
    return Plan(lengths, sources, targets, ways, int((lengths + 1).sum()) + 2)


def rows_of(plan, i) -> tuple[np.ndarray, np.ndarray]:
    """Sources and targets of a run, step by step."""
    moved = plan.ways[i] * np.arange(plan.lengths[i])
    return plan.sources[i] + moved, plan.targets[i] + moved


def expected(rule, weights, x, begin, lags, plan):
    """The definition, one run after the other."""
    h = np.zeros((plan.rows, weights.shape[1]), weights.dtype)
    for i in range(len(begin)):
        past = {-1 - s: state for s, state in enumerate(begin[i])}
        for t, (row, target) in enumerate(zip(*rows_of(plan, i))):
            y = sum(past[t - lag] @ W for lag, W in zip(lags, weights))
            h[target] = RULES[rule](y, x[0][row], x[-1][row])
            past[t] = x[1][row] * h[target] if rule == "pull" else h[target]
    return h


def case(rule, lengths, lags, k, dtype, rng):
    plan = plan_of(lengths, rng)
    x = tuple(rng.normal(size=(plan.rows, k)).astype(dtype) for _ in range(2 if rule in ("push", "pull") else 1))
    weights = (rng.normal(size=(len(lags), k, k)) / k).astype(dtype)
    begin = rng.normal(size=(len(lengths), max(lags), k)).astype(dtype)
    return rule, weights, x, begin, lags, plan


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("lengths", "lags"), LENGTHS_AND_LAGS)
@pytest.mark.parametrize("k", [1, 13, 40])
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
def test_it_is_the_loop_over_the_runs(run, rule, lengths, lags, k, dtype, rng):
    arguments = case(rule, lengths, lags, k, dtype, rng)
    found = run(*arguments)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected(*arguments), rtol=0, atol=50 * np.finfo(dtype).eps)


def test_weights_and_rows_may_be_views(run, rng):
    rule, weights, x, begin, lags, plan = case("push", (4, 3), (1, 2), 20, "float64", rng)
    wide = [np.repeat(part, 2, axis=1)[:, ::2] for part in x]
    found = run(rule, np.asfortranarray(weights), tuple(wide), np.asfortranarray(begin), lags, plan)
    np.testing.assert_allclose(found, expected(rule, weights, x, begin, lags, plan), rtol=0, atol=1e-13)


def test_what_is_not_finite_stays_in_its_run(run, rng):
    rule, weights, x, begin, lags, plan = case("tanh", (4, 4), (1,), 33, "float64", rng)
    x[0][rows_of(plan, 0)[0][1], 5] = np.nan  # of the first run, in the second step
    h = run(rule, weights, x, begin, lags, plan)
    first, second = (h[rows_of(plan, i)[1]] for i in range(2))
    assert np.isfinite(second).all()
    assert np.isfinite(first[0]).all()
    assert np.isnan(first[1]).sum() == 1
    assert np.isnan(first[2:]).all()


def test_threads_share_the_runs(monkeypatch, rng):
    pytest.importorskip("numba")
    from implicitsolve.backends.numba import _jit

    compiled = kernels.rnn.select(np.empty(0), "numba", size=1).run
    arguments = case("tanh", (9, 8, 9, 5, 8, 5, 2), (1, 3), 37, "float64", rng)
    monkeypatch.setattr(_jit, "LEAST_OPERATIONS", 0)
    alone = compiled(*arguments)
    monkeypatch.setattr(_jit.config, "NUMBA_NUM_THREADS", 3)
    np.testing.assert_allclose(compiled(*arguments), alone, rtol=0, atol=1e-15)
