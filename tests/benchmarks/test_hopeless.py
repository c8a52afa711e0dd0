from __future__ import annotations

import warnings

import numpy as np
import pytest

from benchmarks.hopeless import main, solve
from benchmarks.rootless_systems import hopeless_cases, solvable_cases

# Evaluations over the limit before: solves that fell short, or whose steps were cut short, prolonged the attempt.
OVER = {("Rosenbrock, shifted", 300): 93, ("farther from I", 1000): 150, ("Riccati on a long interval", 2000): 156}


def test_the_sets_have_the_published_sizes():
    assert len(hopeless_cases()) == 145
    assert len(solvable_cases()) == 57


@pytest.mark.rounding
def test_long_linear_solves_do_not_prolong_a_hopeless_attempt():
    cases = [c for c in hopeless_cases() if c.group in ("nothing declared", "dense", "declared blocks")]
    cases = [c for c in cases if (c.name, np.size(c.start)) in OVER]
    assert len(cases) == len(OVER)
    with np.errstate(all="ignore"):
        assert [case.name for case in cases if solve(case).excess] == []


def test_a_page_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.hopeless.TIMED", 0)
    with warnings.catch_warnings():
        main(["--only", "rectified", "--write", str(tmp_path / "page.md")])
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "3 systems" in text
    assert "| fixed point | rectified | 1000 |" in text
