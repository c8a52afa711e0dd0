"""Newton's whole steps where a search along a direction stops at the kinks of F."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import Problem, root
from tests.helpers.kinked import melting, string_above_a_floor


@pytest.mark.parametrize("structure", [None, ims.BlockBanded(1, 1)], ids=["detected", "declared"])
def test_contact_was_left_at_a_kink(structure):
    """||F|| grows a thousandfold with the first penalty; searches stopped there after 650 evaluations."""
    F, x0 = string_above_a_floor(100, 100.0)
    result = root(Problem(F, structure=structure), x0)
    assert result.success, str(result)
    assert result.counts.residuals < 120
    assert np.max(result.x) < 0.8 + 1e-2
    assert any("FullStep" in retry.method for retry in result.retries)


def test_a_bar_melts_step_by_step():
    """Each step changes the phase of several points; a third of the steps were not solved, or took 250 evaluations."""
    enthalpy, evaluations = melting(100, 1e-2)[1], 0
    for _ in range(30):

        def implicit_step(h, before=enthalpy):
            temperature = np.where(h < 0, h, np.maximum(h - 1, 0))
            p = np.concatenate([[1.0], temperature, temperature[-1:]])
            return h - before - 1e-2 * 100**2 * (p[2:] - 2 * temperature + p[:-2])

        result = root(implicit_step, enthalpy)
        assert result.success, str(result)
        enthalpy, evaluations = result.x, evaluations + result.counts.residuals
    assert evaluations < 30 * 120


def test_where_whole_steps_fail_the_search_continues():
    """Whole steps lead to where F is flat; they are left when they become longer."""

    def F(u):
        p = np.pad(u, 1)
        return np.arctan(3 * (3 * u - p[2:] - p[:-2] - 0.05)) + 1e-3 * u

    result = root(F, np.full(60, 40.0))
    assert result.success, str(result)
    assert [retry.method for retry in result.retries] == [
        "SparseNewton with FullStep",
        "SparseNewton with Backtracking",
    ]
    assert result.counts.residuals < 400


def test_systems_of_a_batch_do_not_end_their_neighbours_attempt():
    F, x0 = string_above_a_floor(30, 100.0)
    easy = np.full(30, 0.1)

    def of_both(u):
        return np.stack([F(row) for row in u])

    both = root(Problem(of_both, structure=ims.BlockBanded(1, 1), batch_ndim=1), np.stack([x0, easy]))
    alone = root(Problem(of_both, structure=ims.BlockBanded(1, 1), batch_ndim=1), easy[None])
    np.testing.assert_allclose(both.x[1], alone.x[0], rtol=1e-7)


@pytest.mark.parametrize("search", [ims.FullStep(), ims.Dogleg()], ids=["whole", "dogleg"])
def test_a_callers_search_is_the_only_one(search):
    F, x0 = string_above_a_floor(100, 100.0)
    names = ims.plan(F, x0, method=ims.SparseNewton(line_search=search)).names
    assert names.count(f"SparseNewton with {type(search).__name__}") == 1
    assert not any("FullStep" in name for name in names if not isinstance(search, ims.FullStep))
