"""Further solutions beside known ones."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve.branches import further_solutions
from tests.branches.problems import bratu, pitchfork


def test_all_roots_of_a_cubic_from_one_start():
    found = further_solutions(lambda x: (x - 1) * (x + 2) * (x - 4), np.array([0.5]))
    assert sorted(float(result.x[0]) for result in found) == pytest.approx([-2, 1, 4], abs=1e-6)
    assert all(result.success for result in found)


def test_the_upper_solution_of_bratu_s_equation_leads_to_its_branch():
    low = ims.continuation(bratu, np.zeros(31), 0, 2)
    (high,) = further_solutions(lambda u: bratu(u, 2.0), np.zeros(31), known=[low.x[-1]])
    assert high.x.max() > 5 * low.x[-1].max()
    branch = ims.continuation(bratu, high.x, 2, 4, interval=(1, 4))
    assert branch.lam[-1] == 1
    assert branch.of_kind("fold")[0].lam == pytest.approx(3.51, abs=0.01)


def test_a_start_that_is_a_known_solution_is_moved():
    known = np.array([[-1.0], [0.0]])
    found = further_solutions(lambda x: pitchfork(x, 1.0), known[1], known=known)
    assert [float(result.x[0]) for result in found] == pytest.approx([1])
    assert (known == [[-1.0], [0.0]]).all()


def test_where_there_are_no_more_the_list_is_empty():
    assert further_solutions(lambda x: x - 1, np.array([0.0]), known=[[1.0]]) == []
    assert further_solutions(lambda x: x**2 + 1, np.array([3.0])) == []
    assert further_solutions(lambda x: x + np.nan, np.array([3.0])) == []


@pytest.mark.parametrize("scale", [2.0**-20, 2.0**20])
def test_scales_change_nothing(scale):
    plain = further_solutions(lambda x: x**3 - x + 0.1, np.array([0.4]))
    scaled = further_solutions(lambda x: scale * ((x / scale) ** 3 - x / scale + 0.1), np.array([0.4 * scale]))
    assert [float(r.x[0]) / scale for r in scaled] == pytest.approx([float(r.x[0]) for r in plain], rel=1e-6)


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (TypeError, "`x0` must hold real", lambda: further_solutions(np.sin, [1j])),
        (ValueError, "`known` must have the shape", lambda: further_solutions(np.sin, [1.0], known=[[1.0, 2.0]])),
        (TypeError, "`stop` must be", lambda: further_solutions(np.sin, [1.0], stop=3)),
        (ValueError, "`count` must be", lambda: further_solutions(np.sin, [1.0], count=-1)),
    ],
)
def test_a_wrong_argument_raises(error, words, call):
    with pytest.raises(error, match=words):
        call()
