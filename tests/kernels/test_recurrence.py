"""Recurrences without gates, run as a whole, against a loop over the runs."""

from __future__ import annotations

import numpy as np
import pytest

from implicitsolve import kernels
from implicitsolve.kernels import Plan

RULES = {
    "tanh": lambda y, x, f: np.tanh(y + x),
    "relu": lambda y, x, f: np.maximum(y + x, 0),
    "push": lambda y, x, f: x + f * y,
    "pull": lambda y, x, f: x + y,
}


@pytest.fixture(params=["reference", "numba"])
def run(request):
    if request.param == "numba":
        pytest.importorskip("numba")
    return kernels.rnn.select(np.empty(0), request.param, size=1).run


def plan_of(lengths, rng) -> Plan:
    """Runs of these lengths, the longest first, whose rows stand anywhere."""
    active = (np.asarray(lengths)[:, None] > np.arange(max(lengths))).sum(axis=0)
    count = sum(lengths) + 3
    return Plan(active, rng.permutation(count)[: sum(lengths)], rng.permutation(count)[: sum(lengths)], count)


def expected(rule, weights, x, begin, lags, plan):
    """The definition, one run after the other."""
    h = np.zeros((plan.rows, weights.shape[1]), weights.dtype)
    first = np.cumsum(plan.active) - plan.active
    for i in range(len(begin)):
        past = {-1 - s: state for s, state in enumerate(begin[i])}
        for t in range(int((plan.active > i).sum())):
            row, target = plan.at[first[t] + i], plan.targets[first[t] + i]
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
@pytest.mark.parametrize(("lengths", "lags"), [((5, 5, 5), (1,)), ((6, 4, 1, 1), (1, 2)), ((1,), (1,)), ((3, 2), (4,))])
@pytest.mark.parametrize("k", [1, 13, 40])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
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
    x[0][plan.at[2], 5] = np.nan  # of the first run, in the second step
    found = run(rule, weights, x, begin, lags, plan)[plan.targets].reshape(4, 2, 33)
    assert np.isfinite(found[:, 1]).all()
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1, 0]).sum() == 1
    assert np.isnan(found[2:, 0]).all()


def test_threads_share_the_runs(monkeypatch, rng):
    pytest.importorskip("numba")
    from implicitsolve.backends.numba import _threads

    compiled = kernels.rnn.select(np.empty(0), "numba", size=1).run
    arguments = case("tanh", (9, 9, 8, 8, 5, 5, 2), (1, 3), 37, "float64", rng)
    monkeypatch.setattr(_threads, "LEAST", 0)
    alone = compiled(*arguments)
    monkeypatch.setattr(_threads.config, "NUMBA_NUM_THREADS", 3)
    np.testing.assert_allclose(compiled(*arguments), alone, rtol=0, atol=1e-15)
