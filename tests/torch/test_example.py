"""The training example: its Bayes rules, and a short training."""

import itertools
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)


@pytest.fixture(scope="module")
def main() -> ModuleType:
    """The script as a module."""
    return import_module("torch_training")


def log_odds(main, seen, t):
    """Log odds of "on" at position t, by summing over all paths of the switch."""
    total = {True: 0.0, False: 0.0}
    for path in itertools.product((False, True), repeat=len(seen)):
        turns = np.diff(path) != 0
        probability = 0.5 * np.prod(np.where(turns, main.TURN, 1.0 - main.TURN))
        errors = seen - (2.0 * np.array(path) - 1.0)
        total[path[t]] += probability * np.exp(-0.5 * np.sum(errors**2) / main.NOISE**2)
    return np.log(total[True] / total[False])


def test_filter_and_smoother_are_bayes_rule(main, rng):
    T = 5
    seen = rng.standard_normal((1, T))
    np.testing.assert_allclose(
        main.filter_logits(seen)[0], [log_odds(main, seen[0, : t + 1], t) for t in range(T)], atol=1e-12
    )
    padded = np.concatenate([seen, rng.standard_normal((1, main.LONGEST - T))], axis=1)
    batch = main.Batch(padded, padded > 0, np.array([T]))
    smoothed = main.smoother_logits(batch)[0, :T]
    np.testing.assert_allclose(smoothed, [log_odds(main, seen[0], t) for t in range(T)], atol=1e-12)


def test_errors_count_elements_alone(main):
    batch = main.Batch.draw(50, np.random.default_rng(0))
    assert main.SHORTEST <= batch.lengths.min() <= batch.lengths.max() <= main.LONGEST
    assert batch.error(np.where(batch.is_on, 1.0, -1.0)) == 0.0
    assert batch.error(np.where(batch.is_element == batch.is_on, 1.0, -1.0)) == 0.0
    on, off = batch.error(np.ones_like(batch.seen)), batch.error(-np.ones_like(batch.seen))
    assert on + off == pytest.approx(1.0)


def test_training_learns(main, capsys, monkeypatch):
    monkeypatch.setattr(main, "TEST_SEQUENCES", 60)
    errors = main.run(main.parse(["--steps", "10", "--state", "6", "--batch", "8", "--rate", "0.05"]))
    assert "10 steps of 8 sequences" in capsys.readouterr().out
    assert errors["implicit GRU"] < errors["the sign of what is seen"]
    assert errors["Bayes smoother (both sides)"] < errors["Bayes filter (past alone)"]
