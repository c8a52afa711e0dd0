"""Monitors: what they see, what they write, and that a solve is the same with and without them."""

import io
import logging
import re

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import monitor


def problem(batch_ndim: int = 0) -> ims.Problem:
    return ims.Problem(lambda x: x**2 - 2, jvp=lambda x, v: 2 * x * v, batch_ndim=batch_ndim)


X0 = np.asarray([[1.0, 1.5], [30.0, 2.0]])


def test_a_monitor_sees_the_start_and_every_step():
    seen = []
    result = ims.root(problem(1), X0, monitor=lambda step, x, F: seen.append((step, x, F)))
    assert [step.iteration for step, _, _ in seen] == list(range(len(seen)))
    assert [step for step, _, _ in seen] == list(result.steps)
    assert len(seen) == 1 + result.iterations.max()
    np.testing.assert_array_equal(seen[0][1], X0)
    np.testing.assert_array_equal(seen[-1][1], result.x)
    for step, x, F in seen:
        assert x.shape == F.shape == X0.shape
        np.testing.assert_allclose(F, x**2 - 2)
        np.testing.assert_allclose(step.residual_norm, np.abs(F).max(axis=1)[step.systems])
    running = [step.running for step, _, _ in seen]
    assert running[0] == 2
    assert running[-1] == 0
    assert running == sorted(running, reverse=True)
    residuals = [step.counts.residuals for step, _, _ in seen]
    assert residuals == sorted(residuals)
    assert residuals[-1] == result.counts.residuals


def test_a_monitor_gets_copies(xp):
    def vandal(step, x, F):
        x[...] = float("nan")
        F[...] = float("nan")

    x0 = xp.asarray(X0)
    plain, spoiled = (ims.root(problem(1), x0, monitor=each) for each in (None, vandal))
    assert spoiled.success.all()
    assert bool(xp.all(plain.x == spoiled.x))
    assert bool(xp.all(x0 == xp.asarray(X0)))


@pytest.mark.parametrize("at", [0, 2])
def test_an_exception_in_a_monitor_ends_the_solve_and_passes_unchanged(at):
    error = StopIteration("enough")

    def stops(step, x, F):
        if step.iteration == at:
            raise error

    with pytest.raises(StopIteration) as caught:
        ims.root(problem(), X0, monitor=stops)
    assert caught.value is error


def test_nothing_is_printed_without_a_monitor(capsys):
    ims.root(problem(), X0)
    ims.root(problem(), X0, monitor=monitor.silent)
    ims.root(ims.Problem(lambda x: x**2 + 1), 1.0)
    assert capsys.readouterr() == ("", "")


def test_log_to_writes_one_line_a_step(caplog):
    logger = logging.getLogger("solve")
    with caplog.at_level(logging.DEBUG, "solve"):
        result = ims.root(problem(), X0, monitor=monitor.log_to(logger, logging.DEBUG))
    assert [record.message for record in caplog.records] == [str(step) for step in result.steps]
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
    caplog.clear()
    ims.root(problem(), X0, monitor=monitor.log_to(logger))
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_table_writes_a_head_and_one_row_a_step():
    stream = io.StringIO()
    result = ims.root(problem(1), X0, method="newton-krylov", monitor=monitor.table(stream))
    head, *rows = stream.getvalue().splitlines()
    assert head.split() == ["step", "max", "norm(F)", "running", "step", "length", "eta", "products"]
    assert len(rows) == len(result.steps)
    assert {len(row) for row in rows} == {len(head)}
    assert [int(row.split()[0]) for row in rows] == list(range(len(rows)))
    assert int(rows[-1].split()[-1]) <= result.counts.residuals + result.counts.jvps  # and a dense J that certifies x
    assert len(rows[0].split()) == 4  # the start has no step length and no eta
    assert len(rows[-1].split()) == 6


def test_combine_calls_all_in_order():
    calls = []
    both = monitor.combine(lambda *a: calls.append("first"), lambda *a: calls.append("second"))
    ims.root(problem(), X0, monitor=both)
    assert calls[:4] == ["first", "second", "first", "second"]
    ims.root(problem(), X0, monitor=monitor.combine())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def contraction(rate: float) -> ims.Problem:
    return ims.Problem(lambda x: (1 - rate) * (x - 1), fixed_point=True)


def test_progress_bar_has_the_share_of_digits_and_the_steps_left_at_the_pace_of_the_last():
    stream, trace = io.StringIO(), monitor.collect()
    both = monitor.combine(trace, monitor.progress_bar(stream, label="model"))
    stop = ims.NonlinearStop(atol=1e-8, max_iterations=1000)
    result = ims.root(contraction(0.1**0.1), np.zeros(3), method="picard", stop=stop, monitor=both)
    lines = stream.getvalue().splitlines()
    assert 10 <= len(lines) <= 12  # one for each tenth
    digits = np.log10(trace[0].worst / 1e-8)
    for line in lines[1:-1]:
        form = r"model \[(#*)\.*\] +(\d+) %  step (\d+), norm (\S+), target 1e-08, about (\d+) steps? left"
        found = re.fullmatch(form, line)
        share, step, left = int(found[2]), int(found[3]), int(found[5])
        assert share == int(100 * (1 - np.log10(trace[step].worst / 1e-8) / digits))
        assert len(found[1]) == share // 5
        assert abs(step + left - result.iterations) <= 1
    assert "100 %" in lines[-1]
    assert "left" not in lines[-1]


def test_progress_bar_on_a_terminal_is_one_line_for_each_solve():
    stream = Terminal()
    bar = monitor.progress_bar(stream)
    for name in ("solve [", "solve 2 ["):  # one monitor may serve several solves
        stream.seek(stream.truncate(0))
        result = ims.root(problem(1), X0, monitor=bar)
        text = stream.getvalue()
        assert text.count("\r") == len(result.steps)
        assert text.count(name) == len(result.steps)
        assert text.count("\n") == 1
        assert text.endswith("\n")
        assert "0 of 2 running" in text


def test_progress_bar_does_not_call_a_solve_that_fails_complete():
    stream = io.StringIO()
    ims.root(ims.Problem(lambda x: x**2 + 1), 3.0, monitor=monitor.progress_bar(stream))
    assert "100 %" not in stream.getvalue()
    nothing = io.StringIO()
    ims.root(ims.Problem(lambda x: x * np.nan), np.ones(2), monitor=monitor.progress_bar(nothing))
    assert re.search(r" 0 %  step 0, norm nan", nothing.getvalue())


def test_progress_bar_shows_steps_without_a_target():
    stream = io.StringIO()
    bar = monitor.progress_bar(stream)
    for iteration, running in ((0, 3), (1, 0)):
        known = {"systems": np.arange(3), "residual_norm": np.ones(3), "running": running}
        bar(ims.NewtonStep(iteration=iteration, **known), X0, X0)
    first, last = (" ".join(line.split("]")[1].split()) for line in stream.getvalue().splitlines())
    assert first == "0 % step 0, norm 1, 3 of 3 running"
    assert last == "100 % step 1, norm 1, 0 of 3 running"


def test_progress_bar_of_a_continuation_is_the_way_of_the_parameter():
    stream = io.StringIO()
    bar = monitor.progress_bar(stream, label="branch")
    branch = ims.continuation(lambda x, lam: x**2 - lam, [1.0], 1.0, 4.0, max_step=0.05, monitor=bar)
    assert branch.success
    lines = stream.getvalue().splitlines()
    assert 10 <= len(lines) <= 12
    assert all(re.search(r"step \d+, norm .*, about \d+ steps? left$", line) for line in lines[2:-1])
    assert f"100 %  step {len(branch) - 1}, norm" in lines[-1]
    circle = io.StringIO()
    options = {"max_points": 10, "monitor": monitor.progress_bar(circle)}
    ended = ims.continuation(lambda x, lam: x**2 + lam**2 - 1, [1.0], 0.0, 2.0, **options)
    assert "100 %" in circle.getvalue().splitlines()[-1]  # of the points
    assert len(ended) == 10


@pytest.mark.parametrize("batch_ndim", [0, 1])
@pytest.mark.parametrize("method", ["auto", "newton-krylov", "anderson"])
def test_monitors_that_overwrite_the_target_made_a_solve_converge(method, batch_ndim):
    def overwrite(step, x, F):
        for part in (step.target, step.residual_norm, x, F):  # other arrays may be shared, and are read-only
            part.fill(10**6)

    problem = ims.Problem(lambda x: x**3 + x - 2, batch_ndim=batch_ndim)
    seen, clean = (ims.root(problem, np.zeros((2, 3)), method=method, monitor=m) for m in (overwrite, None))
    assert seen.counts == clean.counts
    np.testing.assert_array_equal(seen.x, clean.x)
