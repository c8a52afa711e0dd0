"""Runs on large systems, and by hand, at a small size."""

import pytest

from benchmarks.large_systems import PROBLEMS, SOLVERS, exponent, made, measure


@pytest.mark.parametrize("solver", ["ours", *SOLVERS])
def test_a_run_counts_evaluations_and_memory(solver):
    if solver == "AMG":
        pytest.importorskip("pyamg")
    found = measure("heterogeneous", 400, solver)
    assert found["unknowns"] == 400
    assert 0 < found["evaluations"] < 60
    assert found["vectors"] >= 0


def test_sizes_are_those_asked_for():
    for name in PROBLEMS:
        assert 0.7 < made(name, 600).size / 600 < 1.4
    rows = [{"seconds": 1.0, "unknowns": 10}, {}, {"seconds": 8.0, "unknowns": 40}]
    assert exponent(rows) == "1.50"
