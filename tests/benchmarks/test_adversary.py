"""The campaigns of `benchmarks.adversary`, on a few seeds each; its runner counts and reports."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.adversary import __main__ as adversary
from benchmarks.adversary.campaigns import CAMPAIGNS
from benchmarks.adversary.systems import Watched

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", CAMPAIGNS)
@settings(max_examples=5)
@given(seed=st.integers(0, 2**32 - 1))
def test_properties_of_hostile_systems(name, seed):
    with np.errstate(all="ignore"):
        assert CAMPAIGNS[name](np.random.default_rng(seed)) >= 0


def test_points_that_are_not_finite_or_outside_of_the_bounds_are_noted():
    F = Watched(lambda x: x, lower=0.0)
    for x in (np.ones(2), np.array([1.0, np.nan]), -np.ones(2)):
        F(x)
    assert F.wrong == ["call 2 at nan", "call 3 outside the bounds"]


@pytest.mark.parametrize("failing", [False, True])
def test_what_fails_is_printed_with_its_seed(failing, monkeypatch, capsys):
    outcome = {"solved": 3} | ({"failure": "AssertionError in x.py:1: false success"} if failing else {})

    def outcomes(self, until):
        yield from ((i, "truth", outcome) for i in range(4))

    monkeypatch.setattr(adversary.Workers, "outcomes", outcomes)
    assert adversary.main(["--seed", "7", "--systems", "6"]) == failing
    printed = capsys.readouterr().out
    assert printed.startswith("seed 7\n")
    assert f"| all | 2 | 6 | {2 * failing} |" in printed
    assert ("FAILED --seed 7 --trial 1 (truth): AssertionError" in printed) == failing


def test_a_process_that_hangs_or_dies_has_a_successor(monkeypatch):
    script = """echo '{"trial": 3, "campaign": "limits"}'; exec sleep 600"""
    monkeypatch.setattr(adversary, "PATIENCE", 2.0)  # in which a shell starts on a busy machine too
    monkeypatch.setattr(adversary.Workers, "command", lambda self: ["sh", "-c", script])
    workers = adversary.Workers(seed=1, first=3, names=[])
    assert next(workers.outcomes(np.inf)) == (3, "limits", {"solved": 1, "failure": "hangs for 2 s"})
    assert workers.next == 4
