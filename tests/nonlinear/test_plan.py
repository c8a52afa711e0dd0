"""The plan of a solve: what is printed is what runs."""

import pickle
from pathlib import Path

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import Problem, plan, root


def bratu(u, c=1.0):
    p = np.pad(u, 1)
    return 2 * u - p[2:] - p[:-2] - c * np.exp(u) / (u.size + 1) ** 2


WEIGHTS = np.random.default_rng(0).standard_normal((60, 60)) / 8
CASES = {
    "one equation": (lambda x: x**2 + 1, np.array([3.0]), "auto"),
    "few unknowns": (lambda x: x**2 + 1, np.full(5, 3.0), "auto"),
    "sparse": (lambda u: bratu(u, 9.0), np.zeros(300), "auto"),
    "dense": (lambda x: np.tanh(WEIGHTS @ x) - 2, np.zeros(60), "auto"),
    "products": (lambda x: x**2 + 1 + WEIGHTS @ x, np.full(60, 3.0), "newton-krylov"),
    "blocks": (Problem(lambda u: bratu(u, 9.0), structure=ims.BlockBanded(1, 1)), np.zeros(40), "auto"),
    "fixed point": (Problem(lambda x: x - np.exp(x), fixed_point=True), np.ones(30), "auto"),
    "batch": (Problem(lambda x: x**2 + 1, batch_ndim=1), np.full((3, 4), 2.0), "auto"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_printed_plan_is_the_one_that_runs(name):
    """None of these has a root: every stage that applies is tried, in the order of the plan."""
    problem, x0, method = CASES[name]
    planned = plan(problem, x0, method=method)
    with np.errstate(all="ignore"):
        result = root(problem, x0, method=method)
    assert not np.any(result.success)
    tried = [retry.method for retry in result.retries]
    assert tried
    ahead = iter(planned.names)
    assert all(any(name == other for other in ahead) for name in tried)
    assert all(name in str(planned) for name in tried)


TITLES = {
    "few unknowns": "Up to 20 unknowns, nothing declared:",
    "sparse": "More unknowns:",
    "blocks": "A `structure` of small blocks:",
    "fixed point": "A fixed-point problem:",
    "products": 'Products alone, `method="newton-krylov"`:',
}


def section(name):
    problem, x0, method = CASES[name]
    return f"{TITLES[name]}\n\n```text\n{plan(problem, x0, method=method)}\n```\n"


def test_the_page_on_choosing_a_method_shows_the_plans():
    page = (Path(__file__).parents[2] / "docs/how_to/choose_a_method.md").read_text(encoding="utf-8")
    for name in TITLES:
        assert section(name) in page, section(name)


def test_the_plan_of_a_solve_that_failed_is_shown():
    problem, x0, _ = CASES["few unknowns"]
    result = root(problem, x0)
    lines = str(result.plan).splitlines()
    assert str(result.plan) == str(plan(problem, x0))
    assert all(line in result.summary() for line in lines)
    assert lines[0] not in str(ims.diagnostics.explain(result))  # which names causes only
    assert pickle.loads(pickle.dumps(result)).plan is None


def test_a_plan_takes_no_evaluation():
    def F(x):
        raise AssertionError

    assert "Find the sparsity of J" in str(plan(F, np.zeros(200)))


def test_a_search_is_in_the_plan_only_where_nothing_is_declared():
    declared = plan(Problem(bratu, structure=ims.Grid(shape=(50,))), np.zeros(50))
    assert str(declared).startswith("1. Take the declared sparsity of J")
    assert not any(stage.is_search for stage in plan(Problem(bratu, structure="none"), np.zeros(50)).stages)


def test_the_stages_for_every_second_block_are_named():
    rng = np.random.default_rng(0)
    layer = ims.adapters.implicit_gru(ims.adapters.gru_parameters(4, 80, rng=rng), rng.standard_normal((9, 9, 4)))
    assert plan(layer, method="anderson").names == ("Anderson",)
    assert plan(layer).names[-1] == "NewtonKrylov with Backtracking"
    assert any("Homotopy" in name for name in plan(layer).names)


def test_the_budget_grows_with_the_system_and_with_its_assemblies():
    from implicitsolve.nonlinear._budget import evaluations_without_progress

    small = evaluations_without_progress(100)
    assert evaluations_without_progress(10**6) > 5 * small
    assert evaluations_without_progress(100, assembly=200) > 2 * small
