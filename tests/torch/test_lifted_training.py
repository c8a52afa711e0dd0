"""Lifted nets beside the networks themselves: gradients, and what training reaches."""

from importlib import import_module
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("torch", exc_type=ImportError)

NAMES = ["feed-forward", "recurrent", "bidirectional", "implicit"]


@pytest.fixture(scope="module")
def main() -> ModuleType:
    """The script as a module."""
    return import_module("lifted_training")


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_gradients_equal_those_of_the_network(main: ModuleType, rng: np.random.Generator, name: str) -> None:
    network = main.networks(5)[name]
    weights = network.draw(rng)
    batch = main.Batch.draw(4, rng)
    seen, is_on = batch.seen[:, : main.T], batch.is_on[:, : main.T]
    np.testing.assert_allclose(network.logits(weights, seen), network.ordinary_logits(weights, seen), atol=1e-12)
    expected = network.ordinary_gradients(weights, seen, is_on)
    found = network.gradients(weights, seen, is_on)
    assert set(found) == set(expected) == set(weights)
    for key, gradient in expected.items():
        np.testing.assert_allclose(found[key], gradient, rtol=0, atol=1e-11 * abs(gradient).max(), err_msg=key)


def test_training_leads_to_the_same_weights_and_stays_well_posed(main: ModuleType) -> None:
    options = main.parse(["--steps", "4", "--state", "4", "--batch", "5", "--rate", "0.3"])
    for network in main.networks(4).values():
        lifted, ordinary = (main.train(network, f, options) for f in (network.gradients, network.ordinary_gradients))
        for key, expected in ordinary.items():
            np.testing.assert_allclose(lifted[key], expected, atol=1e-8)
        norms = [abs(lifted[key]).sum(axis=1).max() for key in network.in_A]
        assert max(norms) == pytest.approx(main.KAPPA)


def test_the_command_line_prints_equal_errors(main: ModuleType, monkeypatch, capsys) -> None:
    monkeypatch.setattr(main, "TEST_SEQUENCES", 20)
    errors = main.run(main.parse(["--steps", "2", "--state", "3", "--batch", "3"]))
    assert list(errors) == NAMES
    assert all(lifted == ordinary for lifted, ordinary in errors.values())
    assert "gradients differ by" in capsys.readouterr().out
