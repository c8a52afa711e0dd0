import numpy as np
import pytest

import implicitsolve as ims
from benchmarks.rootless_systems import hopeless_cases, solvable_cases
from implicitsolve.nonlinear._auto import MOST_DENSE
from implicitsolve.nonlinear._budget import evaluations_without_progress

# Solves that fell short, or whose steps were cut short, prolonged the attempt.
LONG = {("Rosenbrock, shifted", 300), ("farther from I", 1000), ("Riccati on a long interval", 2000)}
LAST_STEP = 25  # evaluations of a step that are granted, however little of the budget is left


def test_the_sets_have_the_published_sizes():
    assert len(hopeless_cases()) == 145
    assert len(solvable_cases()) == 57


def spent_without_progress(case):
    """The most evaluations since either norm of F was halved, in all attempts together, as the budget counts them."""
    seen = []

    def watch(step, x, F):
        seen.append((step.iteration, step.counts.evaluations, np.array([np.abs(F).max(), np.linalg.norm(F)])))

    result = ims.root(case.problem, case.x0, stop=ims.NonlinearStop(atol=case.atol), monitor=watch)
    begins = {retry.iteration for retry in result.retries}
    (_, charged, first), most, spent, before = seen[0], 0, 0, 0
    last, least = first, np.inf * first
    for iteration, evaluations, norms in seen[1:]:
        if iteration - 1 in begins:
            last, least, before = first, np.fmin(least, last), spent
        spent, charged = spent + evaluations - charged, evaluations
        most = max(most, spent)
        if (norms < last / 2).any():
            before = 0 if (norms < least / 2).any() else before
            last, spent = np.fmin(last, norms), before
    return max(most, spent + result.counts.evaluations - charged)


@pytest.mark.rounding
def test_long_linear_solves_do_not_prolong_a_hopeless_attempt():
    cases = [c for c in hopeless_cases() if c.group in ("nothing declared", "dense", "declared blocks")]
    cases = [c for c in cases if (c.name, np.size(c.start)) in LONG]
    assert len(cases) == len(LONG)
    with np.errstate(all="ignore"):
        for case in cases:
            size = np.size(case.start)
            columns = size if size <= MOST_DENSE else 0  # a dense J follows
            most = evaluations_without_progress(size, columns) + LAST_STEP
            assert 0 < spent_without_progress(case) <= most, case.name
