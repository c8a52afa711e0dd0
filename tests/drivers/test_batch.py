"""`solve_batch`: chunks equal `root` of the whole, whoever works; only what is lost is lost, and errors are raised."""

import multiprocessing
import threading
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve import Status
from tests.drivers.executors import Here, numbers
from tests.drivers.worker_problems import (
    Begun,
    Cubes,
    Deadly,
    DeadlyOnce,
    Raising,
    Slow,
    Wrong,
    forget,
    guessed,
    made,
    not_a_problem,
)

FIELDS = "x", "fun", "status", "residual_norm", "initial_norm", "iterations", "krylov_iterations"


@pytest.fixture(scope="module")
def threads():
    with ThreadPoolExecutor(2) as executor:
        yield executor


def agree(result, whole, systems=slice(None), of_whole=None):
    of_whole = systems if of_whole is None else of_whole
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(result, name)[systems], getattr(whole, name)[of_whole], err_msg=name)


@given(size=st.integers(1, 9), chunks=st.integers(1, 12), is_square=st.booleans())
def test_properties_chunks_are_root_of_their_systems(threads, size, chunks, is_square):
    c = np.linspace(-1.0, 2.0, size)[:, None] + np.zeros((size, 3))
    x0 = np.full((size, 3), 0.5)

    def problem(c):
        return ims.Problem(
            lambda x: x**3 - c if not is_square else x**2 + 1 + c,  # no root for some of them
            jvp=lambda x, v: (2 * x if is_square else 3 * x**2) * v,
            batch_ndim=1,
            take=lambda rows: problem(c[rows]),
        )

    stop = ims.NonlinearStop(rtol=1e-12, max_iterations=15)
    result = ims.drivers.solve_batch(problem(c), x0, executor=threads, chunks=chunks, stop=stop)
    for rows in np.array_split(np.arange(size), min(chunks, size)):
        agree(ims.root(problem(c[rows]), x0[rows], stop=stop), result, of_whole=rows)
    whole = ims.root(problem(c), x0, stop=stop)  # other chunks are another batch: equal up to rounding
    np.testing.assert_array_equal(result.success, whole.success)
    np.testing.assert_allclose(result.x[whole.success], whole.x[whole.success], rtol=1e-9)
    assert result.lost == ()
    assert sorted({s for step in result.steps for s in step.systems.tolist()}) == list(range(size))


def test_a_layer_in_processes_is_root_bitwise(rng):
    params = ims.adapters.gru_parameters(2, 4, rng=rng)
    layer = ims.adapters.implicit_gru(params, rng.standard_normal((6, 5, 2)), lengths=[5, 1, 3, 2, 5, 4])
    seen = []
    result = ims.drivers.solve_batch(
        layer, executor=2, chunks=3, progress=lambda done, total: seen.append((done, total))
    )
    chunks = [ims.root(layer.take(rows)) for rows in np.split(np.arange(6), 3)]
    np.testing.assert_allclose(result.x, ims.root(layer).x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(result.x, np.concatenate([chunk.x for chunk in chunks]), rtol=0, atol=1e-12)
    assert result.success.all()
    assert seen == [(2, 6), (4, 6), (6, 6)]


def test_a_function_makes_the_problem_of_some_systems(threads):
    c = numbers(7)
    whole = ims.root(Cubes(c).problem(), np.ones((7, 1)))
    agree(ims.drivers.solve_batch(partial(made, c), np.ones((7, 1)), executor=threads, chunks=3), whole)
    agree(ims.drivers.solve_batch(partial(guessed, c), count=7, executor=threads, chunks=3), whole)


def test_what_a_function_returns_is_checked(threads):
    with pytest.raises(TypeError, match=r"`problem` must be a Problem, or a function .* returned ndarray"):
        ims.drivers.solve_batch(not_a_problem, np.ones((2, 1)), executor=threads)
    with pytest.raises(ValueError, match="must begin at as many states, got 5"):
        ims.drivers.solve_batch(lambda rows: guessed(numbers(5), np.arange(5)), count=2, executor=threads, chunks=1)
    with pytest.raises(ValueError, match="batch_ndim=1, got 0"):
        ims.drivers.solve_batch(lambda rows: ims.Problem(np.cos), np.ones((2, 1)), executor=threads)


def test_a_killed_process_loses_its_chunk_alone():
    c, x0 = numbers(8, 5), np.full((8, 1), 1.5)
    seen = []
    result = ims.drivers.solve_batch(
        Deadly(c).problem(), x0, executor=2, chunks=4, progress=lambda done, total: seen.append(done)
    )
    lost = np.asarray([4, 5])
    kept = np.setdiff1d(np.arange(8), lost)
    np.testing.assert_array_equal(result.status[lost], Status.LOST)
    np.testing.assert_array_equal(result.x[lost], x0[lost])
    assert np.isnan(result.fun[lost]).all()
    assert np.isnan(result.residual_norm[lost]).all()
    agree(result, ims.root(Cubes(np.abs(c)).problem(), x0), kept)
    assert [chunk.systems.tolist() for chunk in result.lost] == [[4, 5]]
    assert isinstance(result.lost[0].error, BrokenExecutor)
    assert seen == [2, 4, 6, 8]
    assert "2 of 8 systems: LOST" in result.message


def test_of_a_broken_pool_the_culprit_alone_is_lost():
    c, x0 = numbers(8, 1), np.full((8, 1), 1.5)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, context, initializer=forget) as executor:
        result = ims.drivers.solve_batch(Begun(c).problem(), x0, executor=executor, chunks=4)
    agree(result, ims.root(Cubes(np.abs(c)).problem(), x0), np.arange(2, 8))
    np.testing.assert_array_equal(result.status[:2], Status.LOST)


def test_a_pool_that_does_not_tell_its_size_is_handed_so_many_chunks():
    handed = []

    class Slow(Here):
        def submit(self, fn, /, *args, **kwargs):
            handed.append(len(seen))
            return super().submit(fn, *args, **kwargs)

    seen = []
    options = {"chunks": 6, "progress": lambda done, total: seen.append(done)}
    for workers, expected in ((None, [0] * 6), (2, [0, 0, 0, 3, 3, 3])):
        handed.clear()
        seen.clear()
        result = ims.drivers.solve_batch(
            Cubes(numbers(6)).problem(), np.ones((6, 1)), executor=Slow(), workers=workers, **options
        )
        assert result.success.all()
        assert handed == expected


def test_a_process_that_dies_once_loses_nothing(tmp_path):
    c = numbers(3, 0)
    result = ims.drivers.solve_batch(
        DeadlyOnce(c, tmp_path / "mark").problem(), np.full((3, 1), 1.5), executor=1, chunks=3
    )
    assert result.success.all()
    assert (tmp_path / "mark").exists()


def test_a_lack_of_memory_loses_its_chunk_alone(threads):
    c = numbers(4, 2)
    result = ims.drivers.solve_batch(
        Raising(c, MemoryError("no")).problem(), np.ones((4, 1)), executor=threads, chunks=4
    )
    np.testing.assert_array_equal(result.status == Status.LOST, [False, False, True, False])
    assert isinstance(result.lost[0].error, MemoryError)
    assert result.success.sum() == 3


class KilledWorker(Exception):  # noqa: N818
    """As Dask's."""


@pytest.mark.parametrize("trouble", [KilledWorker("a worker"), OSError("gone"), TimeoutError("late")])
def test_what_any_executor_gives_up_is_lost(trouble):
    result = ims.drivers.solve_batch(
        Cubes(numbers(4)).problem(), np.ones((4, 1)), executor=Here(trouble, {1}), chunks=4
    )
    np.testing.assert_array_equal(result.status, [1, Status.LOST, 1, 1])
    assert result.lost[0].error is trouble


def test_what_a_broken_executor_does_not_take_is_lost():
    class Breaking(Here):
        def submit(self, fn, /, *args, **kwargs):
            if self.calls == 2:
                raise BrokenExecutor("closed")
            return super().submit(fn, *args, **kwargs)

    result = ims.drivers.solve_batch(Cubes(numbers(4)).problem(), np.ones((4, 1)), executor=Breaking(), chunks=4)
    np.testing.assert_array_equal(result.status, [1, 1, Status.LOST, Status.LOST])


def test_lost_systems_without_a_start_are_nan():
    trouble = KilledWorker("a worker")
    result = ims.drivers.solve_batch(partial(guessed, numbers(4)), count=4, executor=Here(trouble, {1}), chunks=4)
    np.testing.assert_array_equal(np.isnan(result.x[:, 0]), [False, True, False, False])
    with pytest.raises(RuntimeError, match="the states' shape is unknown"):
        ims.drivers.solve_batch(partial(guessed, numbers(1)), count=1, executor=Here(trouble, {0}))


@pytest.mark.parametrize("at", [{0}, {1, 3}, {0, 1, 2, 3}], ids=str)
def test_lost_chunks_are_solved_by_one_more_call(at):
    problem, x0 = Cubes(numbers(8).reshape(2, 4, 1)).problem(batch_ndim=2), np.full((2, 4, 1), 1.5)
    executor = Here(KilledWorker("a worker"), at)
    first = ims.drivers.solve_batch(problem, x0, executor=executor, chunks=4)
    assert (first.status == Status.LOST).sum() == 2 * len(at)
    calls = executor.calls
    again = ims.drivers.solve_batch(problem, x0, executor=executor, chunks=3, previous=first)
    assert executor.calls - calls == min(3, 2 * len(at))
    assert again.lost == ()
    agree(again, ims.root(problem, x0))
    assert again.counts.residuals > first.counts.residuals
    assert sorted({int(i) for step in again.steps for i in step.systems}) == list(range(8))
    last = ims.drivers.solve_batch(problem, x0, executor=executor, previous=again)
    assert executor.calls - calls == min(3, 2 * len(at))
    agree(last, again)


@pytest.mark.parametrize("previous", [ims.root(lambda x: x - 1, np.ones(2)), "yesterday"], ids=["root", "text"])
def test_a_previous_result_of_something_else_is_refused(previous):
    with pytest.raises(TypeError, match="`previous` must be what solve_batch returned"):
        ims.drivers.solve_batch(Cubes(numbers(4)).problem(), np.ones((4, 1)), executor=Here(), previous=previous)


def test_cancelled_systems_say_so():
    cancel = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        result = ims.drivers.solve_batch(
            Slow(numbers(20)).problem(),  # or all have ended before the cancellation is seen
            np.full((20, 1), 1.5),
            executor=executor,
            chunks=20,
            progress=lambda done, total: done < 3 or cancel.set(),
            cancel=cancel,
        )
    assert set(result.status.tolist()) == {Status.CONVERGED, Status.CANCELLED}
    assert result.success.sum() >= 3
    np.testing.assert_array_equal(result.x[result.status == Status.CANCELLED], 1.5)
    assert result.lost == ()


def test_a_cancelled_process_does_not_go_on():
    cancel = threading.Event()
    timer = threading.Timer(0.5, cancel.set)
    timer.start()
    result = ims.drivers.solve_batch(Cubes(numbers(2)).problem(), np.ones((2, 1)), executor=1, cancel=cancel)
    timer.join()
    assert set(result.status.tolist()) <= {Status.CONVERGED, Status.CANCELLED}
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("error", [Wrong("enough"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
def test_what_progress_raises_ends_the_solve(error):
    def progress(done, total):
        raise error

    with pytest.raises(type(error)):
        ims.drivers.solve_batch(Cubes(numbers(4)).problem(), np.ones((4, 1)), executor=2, chunks=4, progress=progress)
    assert not multiprocessing.active_children()
