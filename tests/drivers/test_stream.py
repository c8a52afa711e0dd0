"""`solve_stream` and `solve_sequences`: the answers of `root`, in full batches."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve.adapters import gru_parameters, implicit_gru
from implicitsolve.drivers._stream import Solved, solve_sequences, solve_stream
from implicitsolve.globalize._line_search import SearchStart
from implicitsolve.globalize._searches import FullStep
from implicitsolve.monitor import silent
from implicitsolve.nonlinear._loop import IterationLoop
from implicitsolve.nonlinear._solve import solve_root
from implicitsolve.nonlinear._state import LoopState, Scheduler, Solution
from tests.adapters.layers import ADAPTERS, make
from tests.drivers.executors import Roots

NEWTON = ims.NewtonKrylov()
TIGHT = ims.NonlinearStop(atol=1e-10, rtol=0.0)
HOST = "status", "iterations", "krylov_iterations"


def layer(rng: np.random.Generator, *, B: int = 13, T: int = 6, scale: float = 1.0) -> ims.Problem:
    params = gru_parameters(3, 5, scale=scale, rng=rng)
    return implicit_gru(params, rng.standard_normal((B, T, 3)), lengths=rng.integers(1, T + 1, B))


@pytest.mark.parametrize("batch_size", [1, 4, 13, 50])
@pytest.mark.parametrize("method", ["anderson", "auto", "block-newton", "broyden", "newton-krylov", "picard"])
def test_every_system_is_solved_as_by_root(method: str, batch_size: int, rng: np.random.Generator) -> None:
    problem = layer(rng)
    result = solve_stream(problem, batch_size=batch_size, method=method, stop=TIGHT)
    whole = ims.root(problem, method="anderson" if method == "auto" else method, stop=TIGHT)
    np.testing.assert_allclose(result.x, whole.x, atol=1e-9)
    assert result.success.all()
    assert np.abs(problem.residual(result.x) - result.fun).max() < 1e-13
    np.testing.assert_allclose(result.iterations, whole.iterations, atol=1)


@pytest.mark.parametrize("name", sorted(ADAPTERS))
def test_every_adapter_streams(name: str) -> None:
    problem = make(name, B=7, lengths=(4, 1, 3, 2, 4, 1, 4), scale=0.3).layer()
    result, whole = solve_stream(problem, batch_size=3, stop=TIGHT), ims.root(problem, stop=TIGHT)
    assert result.success.all()
    np.testing.assert_allclose(result.x, whole.x, atol=1e-9)


@pytest.mark.parametrize("batch_size", [1, 3, 8, 11, 12])
def test_every_system_takes_the_steps_it_takes_alone(batch_size: int, rng: np.random.Generator) -> None:
    roots = Roots(10.0 ** rng.uniform(-3, 6, 11))
    result = solve_stream(roots.problem(), np.ones((11, 1)), batch_size=batch_size, method=NEWTON)
    assert max(roots.rows) <= batch_size
    for b in range(11):
        alone = ims.root(Roots(roots.c[b]).problem(), np.ones((1, 1)), method=NEWTON)
        assert all(getattr(alone, name)[0] == getattr(result, name)[b] for name in HOST)
        np.testing.assert_array_equal(alone.x[0], result.x[b])
        assert alone.residual_norm[0] == result.residual_norm[b]
        assert alone.initial_norm[0] == result.initial_norm[b]


def test_recycled_spaces_of_systems_that_come_late(rng: np.random.Generator) -> None:
    A = np.eye(30) + 0.1 * rng.standard_normal((12, 30, 30))

    def problem(A: Any) -> ims.Problem:
        def residual(x: Any) -> Any:
            return (A @ x[..., None])[..., 0] + 0.2 * np.sin(x) - 1.0

        def jvp(x: Any, v: Any) -> Any:
            return (A @ v[..., None])[..., 0] + 0.2 * np.cos(x) * v

        return ims.Problem(residual, jvp=jvp, batch_ndim=1, take=lambda rows: problem(A[rows]))

    x0 = np.zeros((12, 30))
    result = solve_stream(problem(A), x0, batch_size=5, method=NEWTON, stop=TIGHT)
    whole = ims.root(problem(A), x0, method=NEWTON, stop=TIGHT)
    assert result.success.all()
    np.testing.assert_allclose(result.krylov_iterations, whole.krylov_iterations, atol=2)
    np.testing.assert_allclose(result.x, whole.x, atol=1e-8)
    assert whole.krylov_iterations.min() > 20


class Picard:
    """x <- x - F(x): the simplest method that can admit systems beside others."""

    kind, eliminates, rdiff = "nonlinear", False, None

    def solve(self, context: Any, start: Solution, rows: Any = None) -> Solution:
        return PicardLoop(self, context, start, rows).run()


class PicardLoop(IterationLoop[LoopState]):
    ADMITS: ClassVar[float | None] = 0.05

    def _extend(self, state: LoopState, J: Any) -> LoopState:
        return state

    def _step(self, is_last: Any) -> dict[str, Any]:
        state, zero = self.state, np.zeros(self.state.rows.size)
        step = -state.F
        found = FullStep().search(SearchStart(self.evaluator, state.x, state.F, state.norms, step, zero))
        moved, is_still = self._accept(found, step)
        self._update_status(found.accepted, moved, is_still, is_last, np.zeros(state.rows.size, dtype=int))
        return {}


class StaticPicard(Picard):
    def solve(self, context: Any, start: Solution, rows: Any = None) -> Solution:
        return StaticLoop(self, context, start, rows).run()


class StaticLoop(PicardLoop):
    ADMITS = None


PICARD = Picard()


def contraction(rate: Any) -> ims.Problem:
    """x - (rate x + 1): Picard's error falls by `rate` in each step."""
    return ims.Problem(lambda x: x - rate * x - 1.0, batch_ndim=1, take=lambda rows: contraction(rate[rows]))


def picard(rate: Any, method: Any = PICARD, capacity: int | None = 8, stop: Any = TIGHT, monitor: Any = silent) -> Any:
    return solve_root(contraction(rate), np.zeros_like(rate), method, stop, monitor, Scheduler(capacity=capacity))


def test_places_that_become_free_are_taken(rng: np.random.Generator) -> None:
    rate = rng.uniform(0.1, 0.75, (200, 1))
    joined, static, whole = picard(rate), picard(rate, StaticPicard()), picard(rate, capacity=None)
    for result in (joined, static):
        np.testing.assert_array_equal(result.iterations, whole.iterations)
        np.testing.assert_array_equal(result.x, whole.x)
        assert result.success.all()
    sizes = [step.systems.size for step in joined.steps[1:]]
    assert max(sizes) == 8
    assert np.mean(sizes[:-60]) >= 0.75 * 8  # until nobody waits
    assert joined.counts.residuals < 0.8 * static.counts.residuals


def mean_width(result: Any, batch_size: int) -> float:
    """Part of the slots that were in use while systems waited."""
    return float(np.mean([s.systems.size + s.started for s in result.steps[1:] if s.waiting])) / batch_size


@pytest.mark.parametrize("method", ["anderson", "auto", "newton-krylov", "picard"])
def test_a_stream_with_a_hard_tail_ran_at_half_its_width(method: str, rng: np.random.Generator) -> None:
    is_hard = rng.random((200, 1)) < 0.1
    rate = np.where(is_hard, rng.uniform(0.9, 0.97, (200, 1)), rng.uniform(0.1, 0.5, (200, 1)))

    def problem(rate: Any) -> ims.Problem:
        return ims.Problem(
            lambda x: x - rate * np.cos(x),
            jvp=lambda x, v: v + rate * np.sin(x) * v,
            batch_ndim=1,
            take=lambda rows: problem(rate[rows]),
            fixed_point=True,
        )

    result = solve_stream(problem(rate), np.zeros((200, 1)), batch_size=20, method=method, stop=TIGHT)
    whole = ims.root(problem(rate), np.zeros((200, 1)), method=method, stop=TIGHT)
    assert result.success.all()
    assert mean_width(result, 20) >= 0.9
    np.testing.assert_array_equal(result.iterations, whole.iterations)


@pytest.mark.parametrize("method", ["anderson", "picard"])
def test_systems_that_start_take_no_calls_of_their_own(method: str, rng: np.random.Generator) -> None:
    problem = layer(rng, B=40)
    result = solve_stream(problem, batch_size=8, method=method, stop=TIGHT)
    steps = len(result.steps) - 1
    assert sum(step.started for step in result.steps) == 40 - 8
    assert result.counts.residuals == 1 + steps  # the first eight


@pytest.mark.parametrize("capacity", [1, 3, 4])
def test_systems_that_need_no_step_pass_through(capacity: int) -> None:
    rate = np.full((9, 1), 0.5)
    x0 = np.full((9, 1), 2.0)  # the solution
    x0[[2, 7]] = 0.0
    result = solve_root(contraction(rate), x0, PICARD, TIGHT, silent, Scheduler(capacity=capacity))
    assert result.success.all()
    assert (result.iterations > 0).tolist() == [b in (2, 7) for b in range(9)]
    np.testing.assert_allclose(result.x, 2.0, atol=1e-9)


@pytest.mark.parametrize("method", [PICARD, StaticPicard(), NEWTON], ids=["joined", "static", "newton"])
def test_failed_systems_do_not_block_others(method: Any) -> None:
    rate = np.asarray([0.5, np.nan, 0.5, 3.0, 0.5, np.nan, np.nan, 0.2, 0.5])[:, None]
    result = picard(rate, method, capacity=2)
    whole = picard(rate, method, capacity=None)
    np.testing.assert_array_equal(result.status, whole.status)
    assert result.success.tolist() == [bool(r == r) and (r < 1 or method is NEWTON) for r in rate[:, 0]]


def test_second_attempts_keep_to_the_batch_size() -> None:
    roots = Roots([4.0, -1.0, -2.0, 9.0, -3.0, -4.0, 16.0, -5.0])  # the negative ones have none
    x0 = np.full((8, 1), 3.0)
    result = solve_stream(roots.problem(), x0, batch_size=3, method=NEWTON)
    assert max(roots.rows) <= 3
    whole = ims.root(Roots(roots.c).problem(), x0, method=NEWTON)
    np.testing.assert_array_equal(result.status, whole.status)
    np.testing.assert_array_equal(result.x, whole.x)
    assert result.success.tolist() == [c > 0 for c in roots.c[:, 0]]


def test_the_monitor_sees_who_runs_and_who_waits() -> None:
    trace = ims.monitor.collect()
    picard(np.full((10, 1), 0.5), capacity=4, monitor=trace)
    assert trace[0].running == 10
    assert trace[-1].running == 0
    assert [step.iteration for step in trace] == list(range(len(trace)))
    assert all(one.running >= other.running for one, other in pairwise(trace))
    assert set(np.concatenate([step.systems for step in trace]).tolist()) == set(range(10))


def test_the_monitor_gets_the_whole_batch_and_may_stop_it() -> None:
    def monitor(step: Any, x: Any, F: Any) -> None:
        assert x.shape == F.shape == (5, 1)
        if step.iteration == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve_stream(
            Roots(np.arange(1.0, 6.0)).problem(), np.full((5, 1), 9.0), batch_size=2, method=NEWTON, monitor=monitor
        )


@pytest.mark.parametrize("shape", [(0, 3), (4, 0)])
def test_nothing_to_solve(shape: tuple[int, int]) -> None:
    problem = ims.Problem(lambda x: x, batch_ndim=1, take=lambda rows: problem)
    result = solve_stream(problem, np.ones(shape), batch_size=2)
    assert result.x.shape == shape
    assert result.success.all()


def test_arguments_are_checked() -> None:
    problem, x0 = Roots([1.0]).problem(), np.ones((1, 1))
    with pytest.raises(ValueError, match="solve_stream: `batch_size` must be at least 1, got 0"):
        solve_stream(problem, x0, batch_size=0)
    with pytest.raises(TypeError, match="solve_stream: `batch_size` must be an integer"):
        solve_stream(problem, x0, batch_size=2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="solve_stream: `x0` is needed"):
        solve_stream(problem, batch_size=1)
    with pytest.raises(TypeError, match="solve_stream: `problem` must be a Problem"):
        solve_stream(np.cos, x0, batch_size=1)  # type: ignore[arg-type]
    for poor in (ims.Problem(np.cos), ims.Problem(np.cos, batch_ndim=1)):
        with pytest.raises(ValueError, match="solve_stream: `problem` must be a batch"):
            solve_stream(poor, x0, batch_size=1)
    with pytest.raises(ValueError, match="solve_stream: `method` must be"):
        solve_stream(problem, x0, batch_size=1, method="none")
    with pytest.raises(TypeError, match="solve_sequences: `build` must be callable"):
        solve_sequences(None, [], batch_size=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="solve_sequences: `window` must be at least 1"):
        solve_sequences(len, [], batch_size=1, window=0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="solve_sequences: `stop` must be"):
        solve_sequences(len, [], batch_size=1, stop=3)  # type: ignore[arg-type]


class Sentences:
    """Random sentences, the layer on them, and the sizes of the batches that were built."""

    def __init__(self, rng: np.random.Generator, count: int, longest: int = 12) -> None:
        self.params = gru_parameters(3, 4, scale=0.5, rng=rng)
        self.all = [rng.standard_normal((int(n), 3)) for n in rng.integers(1, longest + 1, count)]
        self.lengths: list[list[int]] = []

    def build(self, batch: list[Any]) -> ims.Problem:
        lengths = [len(sentence) for sentence in batch]
        self.lengths.append(lengths)
        inputs = np.zeros((len(batch), max(lengths), 3))
        for row, sentence in zip(inputs, batch):
            row[: len(sentence)] = sentence
        return implicit_gru(self.params, inputs, lengths=lengths)


@pytest.mark.parametrize(("batch_size", "window"), [(1, 1), (4, 2), (4, 32), (64, 1)])
def test_every_sequence_is_solved_once(batch_size: int, window: int, rng: np.random.Generator) -> None:
    sentences = Sentences(rng, 21)
    found = list(
        solve_sequences(sentences.build, iter(sentences.all), batch_size=batch_size, window=window, stop=TIGHT)
    )
    assert sorted(one.index for one in found) == list(range(21))
    for one in found:
        alone = ims.root(sentences.build([sentences.all[one.index]]), method="anderson", stop=TIGHT)
        assert isinstance(one, Solved)
        assert (one.status, type(one.status)) == (ims.Status.CONVERGED, ims.Status)
        assert one.iterations == alone.iterations[0]
        assert one.residual_norm <= 1e-10
        np.testing.assert_allclose(one.x, alone.x[0], atol=1e-9)


def test_buckets_hold_sequences_of_about_equal_length(rng: np.random.Generator) -> None:
    sentences = Sentences(rng, 200, longest=40)
    list(solve_sequences(sentences.build, sentences.all, batch_size=8, window=25))
    assert all(lengths == sorted(lengths, reverse=True) for lengths in sentences.lengths)
    assert all(len(lengths) % 8 == 0 for lengths in sentences.lengths[:-1])
    padded = sum(len(lengths) * lengths[0] for lengths in sentences.lengths)
    assert padded < 1.3 * sum(map(len, sentences.all))


def test_sequences_are_read_as_needed(rng: np.random.Generator) -> None:
    sentences, read = Sentences(rng, 30), []

    def source() -> Iterator[Any]:
        for i, sentence in enumerate(sentences.all):
            read.append(i)
            yield sentence

    stream = solve_sequences(sentences.build, source(), batch_size=2, window=3)
    assert read == []
    first = next(stream)
    assert read == list(range(6))
    assert sorted([first.index, *(one.index for one in stream)]) == list(range(30))


def test_failed_sequences_are_reported() -> None:
    def roots(c: Any) -> ims.Problem:
        def guess(kind: str, rng: Any) -> Any:
            return np.where(c != 0, 1.0, 0.0)

        return ims.Problem(lambda x: x * x - c, batch_ndim=1, take=lambda rows: roots(c[rows]), initial_guess=guess)

    def build(batch: list[Any]) -> ims.Problem:
        c = np.zeros((len(batch), len(batch[0])))
        for row, numbers in zip(c, batch):
            row[: len(numbers)] = numbers
        return roots(c)

    stream = solve_sequences(build, [[4.0], [9.0, -1.0], [16.0, 25.0, 36.0]], batch_size=2, method=NEWTON)
    found = {one.index: one for one in stream}
    assert [found[i].status == ims.Status.CONVERGED for i in range(3)] == [True, False, True]
    np.testing.assert_allclose(found[2].x, [4.0, 5.0, 6.0], atol=1e-6)


def test_errors_of_the_caller_pass() -> None:
    def build(batch: list[Any]) -> ims.Problem:
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        list(solve_sequences(build, [[1.0]], batch_size=2))
