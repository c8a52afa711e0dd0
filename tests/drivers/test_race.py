"""`race`: winners, ties and failures, and what the beaten starts cost."""

from typing import Any

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve.adapters import gru_parameters, implicit_gru
from implicitsolve.drivers._race import RaceResult, race
from tests.drivers.executors import Roots

NEWTON = ims.NewtonKrylov()
TIGHT = ims.NonlinearStop(atol=1e-10, rtol=0.0)


def column(*numbers: float) -> Any:
    return np.asarray(numbers)[:, None]


def layer(rng: np.random.Generator, *, B: int = 4, T: int = 7, scale: float = 0.5, **options: Any) -> ims.Problem:
    params = gru_parameters(3, 5, scale=scale, rng=rng)
    return implicit_gru(params, rng.standard_normal((B, T, 3)), **options)


def test_the_start_that_needs_fewer_steps_wins_for_each_system() -> None:
    c, near = column(4.0, 9.0, 16.0), column(2.1, 3.1, 4.1)
    far = 1e6 * near
    first, second = np.where([[True], [False], [True]], near, far), np.where([[True], [False], [True]], far, near)
    result = race(Roots(c).problem(), [first, second], method=NEWTON, stop=TIGHT)
    alone = ims.root(Roots(c).problem(), near, method=NEWTON, stop=TIGHT)
    assert isinstance(result, ims.NonlinearResult)
    assert result.winner.tolist() == [0, 1, 0]
    assert result.success.all()
    np.testing.assert_array_equal(result.x, alone.x)
    np.testing.assert_array_equal(result.fun, alone.fun)
    for name in ("residual_norm", "iterations", "krylov_iterations"):
        np.testing.assert_array_equal(getattr(result, name), getattr(alone, name))


def test_names_are_the_problems_own_guesses(rng: np.random.Generator) -> None:
    problem = layer(rng, lengths=[7, 1, 4, 5])
    state = rng.bit_generator.state
    result = race(problem, ["zeros", "random", "one-step"], rng=rng)
    rng.bit_generator.state = state
    starts = [problem.initial_guess(kind, rng) for kind in ("zeros", "random", "one-step")]  # type: ignore[misc]
    again = race(problem, starts)
    np.testing.assert_array_equal(result.x, again.x)
    np.testing.assert_array_equal(result.winner, again.winner)
    assert result.success.all()


@pytest.mark.parametrize("method", ["anderson", "auto", "block-newton", "broyden", "newton-krylov", "picard"])
def test_all_methods_race(method: str, rng: np.random.Generator) -> None:
    problem = layer(rng, lengths=[7, 1, 4, 5])
    result = race(problem, ["one-step", "random"], method=method, stop=TIGHT, rng=rng)
    alone = ims.root(problem, method=method, stop=TIGHT)
    assert result.success.all()
    np.testing.assert_allclose(result.x, alone.x, atol=1e-8)
    assert np.abs(problem.residual(result.x)).max() <= 1e-10


def test_where_all_fail_the_smallest_residual_is_returned() -> None:
    c = column(-1.0, 4.0, -4.0)  # the first and the last have no root
    stop = ims.NonlinearStop(max_iterations=8)
    starts = [column(3.0, 1.0, 0.7), column(0.3, 1.0, 5.0)]
    result = race(Roots(c).problem(), starts, method=NEWTON, stop=stop)
    alone = [ims.root(Roots(c).problem(), start, method=NEWTON, stop=stop) for start in starts]
    assert result.winner.tolist() == [-1, 0, -1]
    best = np.argmin([one.residual_norm for one in alone], axis=0)
    for b in (0, 2):
        assert result.residual_norm[b] == alone[best[b]].residual_norm[b]
        assert result.status[b] == alone[best[b]].status[b] != ims.Status.STOPPED
        assert result.x[b] == alone[best[b]].x[b]
    with pytest.raises(ims.NoConvergence):
        result.raise_for_status()


def test_a_start_that_is_not_finite_loses_and_moves_no_tolerance() -> None:
    squares = Roots(column(4.0, 4.0))
    bad, good = column(np.nan, 3.0), column(3.0, np.inf)
    result = race(squares.problem(), [bad, good], method=NEWTON)
    assert result.winner.tolist() == [1, 0]
    np.testing.assert_array_equal(result.initial_norm, [5.0, 5.0])
    assert (result.residual_norm <= 1.5e-8 * 5.0).all()


def test_a_bad_start_does_not_loosen_the_tolerance_of_the_first() -> None:
    result = race(Roots(column(2.0)).problem(), [column(1.0), column(1e8)], method=NEWTON)
    assert result.winner.item() == 0
    assert result.initial_norm.item() == 1.0
    assert result.residual_norm.item() <= 1.5e-8


def test_beaten_starts_stop_costing() -> None:
    c, near, far = np.full((10, 1), 2.0), np.full((10, 1), 1.5), np.full((10, 1), 1e6)
    one, both = Roots(c), Roots(c)
    alone = ims.root(one.problem(), near, method=NEWTON)
    result = race(both.problem(), [near, far], method=NEWTON)
    assert result.winner.tolist() == [0] * 10
    assert sum(both.rows) <= 2 * sum(one.rows)
    assert result.counts.residuals == alone.counts.residuals
    assert result.steps[-1].running == 0


def test_a_system_goes_on_alone_while_others_have_their_winner() -> None:
    c = column(2.0, 2.0)
    starts = [column(1.4, 1e5), column(1e6, 1e6)]
    result = race(Roots(c).problem(), starts, method=NEWTON)
    after = [step.systems.tolist() for step in result.steps if step.running < 4]
    assert result.winner.tolist() == [0, 0]
    assert after[-1] == [1, 3]  # of both systems' starts, those of the second one


def test_a_start_that_failed_is_not_tried_again_once_another_one_has_won() -> None:
    def problem(c: Any) -> ims.Problem:
        def residual(x: Any) -> Any:
            return np.where(x > 10.0, 1.0 + (x - 12.0) ** 2, x * x - c)  # no root, but a minimum, near 12

        return ims.Problem(residual, batch_ndim=1, take=lambda rows: problem(c[rows]))

    stuck, good = column(12.5), column(9.0)
    failed = ims.root(problem(column(4.0)), stuck, method=NEWTON)
    assert failed.status.item() in (ims.Status.STAGNATED, ims.Status.LINE_SEARCH_FAILED)
    result = race(problem(column(4.0)), [stuck, good], method=NEWTON)
    assert (result.winner.item(), result.success.item()) == (1, True)
    assert 1 in result.steps[-1].systems  # nothing comes after the step that won


def test_a_system_does_not_depend_on_its_neighbours(rng: np.random.Generator) -> None:
    problem = layer(rng, scale=1.5, B=5)
    starts = [problem.initial_guess(kind, rng) for kind in ("random", "one-step")]  # type: ignore[misc]
    result = race(problem, starts, method=NEWTON)
    for b in range(5):
        rows = np.asarray([b])
        alone = race(problem.take(rows), [start[rows] for start in starts], method=NEWTON)  # type: ignore[misc]
        assert (alone.winner[0], alone.iterations[0]) == (result.winner[b], result.iterations[b])
        np.testing.assert_allclose(alone.x[0], result.x[b], atol=1e-9)


@pytest.mark.parametrize("size", [(0, 3), (2, 0)])
def test_nothing_to_solve(size: tuple[int, int]) -> None:
    problem = ims.Problem(lambda x: x, batch_ndim=1, take=lambda rows: problem)
    result = race(problem, [np.ones(size), np.ones(size)])
    assert result.x.shape == size
    assert result.winner.tolist() == [0] * size[0]


def test_gradients_flow_through_the_winners(rng: np.random.Generator) -> None:
    problem = layer(rng)
    stop = ims.NonlinearStop(atol=1e-12, rtol=0.0)
    result, alone = race(problem, ["one-step", "random"], stop=stop, rng=rng), ims.root(problem, stop=stop)
    ones = np.ones_like(result.x)
    gradients = [ims.pull_back(problem, one, ones).gradients["Uz"] for one in (result, alone)]
    np.testing.assert_allclose(*gradients, rtol=1e-5, atol=1e-8)


def test_one_system_tries_its_starts_in_turn() -> None:
    calls: list[float] = []

    def residual(x: Any) -> Any:
        calls.append(float(x[0]))
        return np.where(x < 0, np.nan, x * x - 4.0)

    problem = ims.Problem(residual)
    result = race(problem, [[-1.0], [3.0], [100.0]], method=NEWTON)
    assert isinstance(result, RaceResult)
    assert (result.winner, result.status, result.success) == (1, ims.Status.CONVERGED, True)
    assert 100.0 not in calls
    assert result.counts.residuals == len(calls)
    np.testing.assert_allclose(result.x, [2.0])
    assert race(problem, [[-1.0], [-2.0]], method=NEWTON).winner == -1


def test_a_batch_without_take_tries_whole_batches_in_turn() -> None:
    c = column(4.0, 9.0)
    problem = ims.Problem(lambda x: np.where(x < 0, np.nan, x * x - c), batch_ndim=1)
    result = race(problem, [column(-1.0, 2.0), column(3.0, 2.0), column(1.0, 1.0)], method=NEWTON)
    assert result.winner.tolist() == [1, 0]
    np.testing.assert_allclose(result.x, column(2.0, 3.0))
    np.testing.assert_array_equal(result.initial_norm, [5.0, 5.0])


def test_the_monitor_sees_all_starts() -> None:
    shapes: list[tuple[int, ...]] = []
    race(
        Roots(column(2.0, 3.0, 4.0)).problem(),
        [column(1.0, 1.0, 1.0), column(9.0, 9.0, 9.0)],
        method=NEWTON,
        monitor=lambda step, x, F: shapes.append(x.shape),
    )
    assert set(shapes) == {(6, 1)}


@pytest.mark.parametrize(
    ("starts", "error", "match"),
    [
        ("one-step", TypeError, "race: `starts` must be a list"),
        (np.ones((2, 1)), TypeError, "race: `starts` must be a list"),
        ([], ValueError, "race: `starts` must hold at least one"),
        ([np.ones((2, 1)), np.ones((3, 1))], ValueError, r"race: `starts` must have one shape, got \(2, 1\) and"),
        (["one-step"], TypeError, "race: `starts` names 'one-step', but"),
        ([["a"]], TypeError, "`starts` must hold"),
    ],
    ids=["name", "array", "empty", "shapes", "no guess", "text"],
)
def test_starts_are_checked(starts: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        race(Roots(np.ones((2, 1))).problem(), starts)


def test_settings_are_checked() -> None:
    problem, starts = Roots(np.ones((2, 1))).problem(), [np.ones((2, 1))]
    with pytest.raises(ValueError, match="race: `method` must be"):
        race(problem, starts, method="no such method")
    with pytest.raises(TypeError, match="race: `stop` must be"):
        race(problem, starts, stop=1e-8)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="race: `monitor` must be"):
        race(problem, starts, monitor=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="rng"):
        race(layer(np.random.default_rng(0)), ["random"])
    with pytest.raises(TypeError, match="`take` must return a Problem"):
        race(ims.Problem(lambda x: x, batch_ndim=1, take=lambda rows: None), starts)  # type: ignore[arg-type, return-value]
