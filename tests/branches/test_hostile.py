"""What goes wrong is a status with a hint; what the caller did wrong raises."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import Branch, Status, continuation
from tests.branches.problems import bratu, circle


def line(x, lam):
    return x - lam


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (TypeError, "`problem` must be a function", lambda: continuation(3, [1.0], 0, 1)),
        (TypeError, "must return a Problem", lambda: continuation(lambda x: x, [1.0], 0, 1)),
        (TypeError, "`stop` is needed", lambda: continuation(line, [1.0], 0)),
        (ValueError, "`stop` must differ", lambda: continuation(line, [1.0], 1, 1)),
        (ValueError, "`start` must be finite", lambda: continuation(line, [1.0], np.nan, 1)),
        (TypeError, "must hold real numbers", lambda: continuation(line, [1j], 0, 1)),
        (ValueError, "at least one unknown", lambda: continuation(line, [], 0, 1)),
        (ValueError, "`step` must be positive", lambda: continuation(line, [0.0], 0, 1, step=0.0)),
        (ValueError, "`max_points` must be at least 1", lambda: continuation(line, [0.0], 0, 1, max_points=0)),
        (ValueError, "`interval` must be", lambda: continuation(line, [0.0], 0, 1, interval=(1, 2))),
        (ValueError, "`direction` must be", lambda: continuation(line, [0.0], 0, 1, direction=([1.0, 2.0], 0))),
        (TypeError, "`events` must map", lambda: continuation(line, [0.0], 0, 1, events={"a": 1})),
        (TypeError, "'a' of `events` must", lambda: continuation(line, [0.0], 0, 1, events={"a": lambda x, lam: x})),
        (TypeError, "a number, got '1'", lambda: continuation(line, [0.0], 0, 1, events={"a": lambda x, lam: "1"})),
        (TypeError, "`previous` must be a Branch", lambda: continuation(line, previous=3)),
        (ValueError, "one by one", lambda: continuation(ims.Problem(line, batch_ndim=1), np.zeros((2, 1)), 0, 1)),
    ],
)
def test_a_wrong_argument_raises(error, words, call):
    with pytest.raises(error, match=words):
        call()


def test_a_branch_of_another_problem_is_refused():
    branch = continuation(line, [0.0], 0, 1, max_points=3)
    with pytest.raises(ValueError, match="branch of this problem"):
        continuation(circle, previous=branch)
    with pytest.raises(TypeError, match="`x0` must not be given"):
        continuation(line, [0.0], previous=branch)


def test_the_edge_of_the_domain_is_a_status():
    branch = continuation(lambda x, lam: np.where(lam > 1, np.nan, x - lam), [0.0], 0, 3)
    assert branch.status == Status.NONFINITE
    assert branch.lam[-1] == pytest.approx(1, abs=1e-4)
    assert "domain" in branch.message


def test_no_solution_at_the_start_is_a_status():
    branch = continuation(lambda x, lam: x**2 + 1 + lam, [1.0], 0, 1)
    assert not branch.success
    assert len(branch) == 0
    assert "start" in branch.message
    assert repr(branch).startswith("<Branch: status")
    assert "no solution" in branch.summary()


def test_a_singular_start_asks_for_a_direction():
    branch = continuation(lambda x, lam: x**2 - lam, [0.0], 0, 1)
    assert branch.status == Status.SINGULAR
    assert "direction" in branch.message
    along = continuation(lambda x, lam: x**2 - lam, [0.0], 0, 1, direction=([1.0], 0.0))
    assert along.success
    assert along.x[-1] == pytest.approx(1)


def test_a_branch_that_leaves_its_interval_at_once_is_reported():
    branch = continuation(lambda x, lam: x + lam, [0.0], 0, 1, direction=([1.0], -1.0))
    assert branch.status == Status.STAGNATED
    assert "leaves its interval at the start" in branch.message


def test_limits_end_the_branch_at_a_point_of_it():
    calls = 0

    def F(u, lam):
        nonlocal calls
        calls += 1
        return bratu(u, lam)

    branch = continuation(F, np.zeros(20), 0, 4, max_evaluations=150)
    assert branch.status == Status.EVALUATION_LIMIT
    assert calls <= 150
    assert branch.counts.residuals == calls
    assert (branch.residual_norm <= branch.target).all()
    resumed = continuation(bratu, previous=branch, max_points=3)
    assert len(resumed) == len(branch) + 3


def test_a_monitor_sees_every_point_and_may_end_the_branch():
    trace = ims.monitor.collect()
    branch = continuation(circle, [1.0], 0, 2, monitor=trace)
    assert [step.iteration for step in trace] == list(range(len(branch)))
    ended = continuation(circle, [1.0], 0, 2, monitor=lambda step, x, F: step.iteration == 3)
    assert ended.status == Status.STOPPED_BY_MONITOR
    assert len(ended) == 4


def test_arguments_are_not_written_and_runs_repeat():
    x0 = np.full(9, 0.1)
    first, second = (continuation(bratu, x0, 0, 4, max_points=10) for _ in range(2))
    assert (x0 == 0.1).all()
    np.testing.assert_array_equal(first.x, second.x)


def test_a_file_that_is_none_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", a=np.zeros(2))
    with pytest.raises(ValueError, match="is not a branch"):
        Branch.load(tmp_path / "other.npz")
    path = tmp_path / "damaged.npz"
    continuation(circle, [1.0], 0, 2).save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="or is damaged"):
        Branch.load(path)


def test_the_picture_and_the_table_show_special_points():
    pytest.importorskip("matplotlib")
    branch = continuation(circle, [1.0], 0, 2, eigenvalues=1)
    ax = branch.plot(ax=None)
    assert ax.get_xlabel() == "lam"
    assert ax.get_legend_handles_labels()[1] == ["fold"]
    assert len(branch.plot(np.linalg.norm, ax=ax).lines) > 3
    assert "fold" in branch.summary()
    assert "CONVERGED" in branch.summary()
    assert "<table" in branch._repr_html_()


@pytest.mark.parametrize("scale", [1e-300, 1e160, 1e300])
def test_branches_do_not_depend_on_the_units_of_F(scale):
    def branch(scale):
        return ims.continuation(lambda x, lam: scale * (x**3 + x - lam), np.array([-0.5]), -1.0, 1.0)

    np.testing.assert_allclose(branch(scale).lam, branch(1.0).lam, rtol=1e-6)
