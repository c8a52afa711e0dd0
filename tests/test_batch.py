"""`solve_batch`: chunks equal `root` of the whole, whoever works; only what is lost is lost, and errors are raised."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve import Status
from implicitsolve._processes import Processes
from tests.worker_problems import (
    Begun,
    Cubes,
    Deadly,
    DeadlyOnce,
    Raising,
    Unsendable,
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


class Here(Executor):
    """Works at once, in this thread; says what it was given."""

    def __init__(self, trouble=None, at=()):
        self.calls, self.trouble, self.at = 0, trouble, at

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        if self.calls in self.at:
            future.set_exception(self.trouble)
        else:
            future.set_result(fn(*args, **kwargs))
        self.calls += 1
        return future


def numbers(size, *bad):
    c = np.arange(1.0, size + 1)[:, None]
    c[list(bad)] *= -1
    return c


def run(command):
    """Run a command with the modules that this process finds."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)


def agree(result, whole, systems=slice(None)):
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(result, name)[systems], getattr(whole, name)[systems], err_msg=name)


# ------------------------------------------------------------------------------------------------------------- the same


@given(size=st.integers(1, 9), chunks=st.integers(1, 12), places=st.integers(1, 3), is_square=st.booleans())
def test_properties_chunks_are_root_of_the_whole(threads, size, chunks, places, is_square):
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
    whole = ims.root(problem(c), x0, stop=stop)
    result = ims.solve_batch(problem(c), x0, executor=threads, chunks=chunks, stop=stop)
    agree(result, whole)
    assert result.lost == ()
    assert sorted({s for step in result.steps for s in step.systems.tolist()}) == list(range(size))


def test_two_batch_axes_keep_their_shape(threads):
    c = np.arange(1.0, 13.0).reshape(3, 4, 1)

    def flat(c):
        return ims.Problem(lambda x: x**3 - c, batch_ndim=1, take=lambda rows: flat(c[rows]))

    problem = ims.Problem(lambda x: x**3 - c, batch_ndim=2, take=lambda rows: flat(c.reshape(12, 1)[rows]))
    whole = ims.root(problem, np.ones((3, 4, 1)))
    agree(ims.solve_batch(problem, np.ones((3, 4, 1)), executor=threads, chunks=5), whole)


def test_the_library_and_dtype_stay(threads, xp, dtype):
    def problem(c):
        return ims.Problem(
            lambda x: x**3 - c, batch_ndim=1, take=lambda rows: problem(xp.take(c, xp.asarray(rows), axis=0))
        )

    c = xp.asarray([[1.0], [8.0], [27.0]], dtype=dtype)
    result = ims.solve_batch(problem(c), xp.ones_like(c), executor=threads, chunks=2)
    assert type(result.x) is type(c)
    assert result.x.dtype == dtype
    assert result.success.all()


def test_counts_are_those_of_all_chunks():
    problem = Cubes(numbers(6)).problem()
    result = ims.solve_batch(problem, np.ones((6, 1)), executor=Here(), chunks=2)
    halves = [ims.root(problem.take(rows), np.ones((3, 1))) for rows in (np.arange(3), np.arange(3, 6))]
    assert result.counts == halves[0].counts + halves[1].counts
    assert [step.systems.tolist() for step in result.steps[:1]] == [[0, 1, 2]]
    assert result.steps[-1].systems.max() == 5


def test_a_layer_in_processes_is_root_bitwise(rng):
    params = ims.adapters.gru_parameters(2, 4, rng=rng)
    layer = ims.adapters.implicit_gru(params, rng.standard_normal((6, 5, 2)), lengths=[5, 1, 3, 2, 5, 4])
    seen = []
    result = ims.solve_batch(layer, executor=2, chunks=3, progress=lambda done, total: seen.append((done, total)))
    chunks = [ims.root(layer.take(rows)) for rows in np.split(np.arange(6), 3)]
    np.testing.assert_allclose(result.x, ims.root(layer).x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(result.x, np.concatenate([chunk.x for chunk in chunks]), rtol=0, atol=1e-12)
    assert result.success.all()
    assert seen == [(2, 6), (4, 6), (6, 6)]


def test_an_empty_batch_needs_nobody():
    result = ims.solve_batch(Cubes(numbers(0)).problem(), np.ones((0, 1)), executor=Here(BaseException(), {0}))
    assert result.x.shape == (0, 1)
    assert result.message == "the batch is empty"


def test_more_chunks_than_systems_are_one_for_each():
    executor = Here()
    assert ims.solve_batch(Cubes(numbers(3)).problem(), np.ones((3, 1)), executor=executor, chunks=9).success.all()
    assert executor.calls == 3


def test_systems_that_fail_have_their_status(threads):
    def squares(c):
        return ims.Problem(lambda x: x**2 - c, batch_ndim=1, take=lambda rows: squares(c[rows]))

    c = np.asarray([[4.0], [-1.0], [9.0]])
    result = ims.solve_batch(squares(c), np.ones((3, 1)), executor=threads, chunks=3)
    np.testing.assert_array_equal(result.success, [True, False, True])
    with pytest.raises(ims.NoConvergence, match="1 of 3 systems"):
        result.raise_for_status()


# -------------------------------------------------------------------------------------------- a function as the problem


def test_a_function_makes_the_problem_of_some_systems(threads):
    c = numbers(7)
    whole = ims.root(Cubes(c).problem(), np.ones((7, 1)))
    agree(ims.solve_batch(partial(made, c), np.ones((7, 1)), executor=threads, chunks=3), whole)
    agree(ims.solve_batch(partial(guessed, c), count=7, executor=threads, chunks=3), whole)


def test_what_a_function_returns_is_checked(threads):
    with pytest.raises(TypeError, match=r"`problem` must be a Problem, or a function .* returned ndarray"):
        ims.solve_batch(not_a_problem, np.ones((2, 1)), executor=threads)
    with pytest.raises(ValueError, match="must begin at as many states, got 5"):
        ims.solve_batch(lambda rows: guessed(numbers(5), np.arange(5)), count=2, executor=threads, chunks=1)
    with pytest.raises(ValueError, match="batch_ndim=1, got 0"):
        ims.solve_batch(lambda rows: ims.Problem(np.cos), np.ones((2, 1)), executor=threads)


# --------------------------------------------------------------------------------------------------------- lost workers


def test_a_killed_process_loses_its_chunk_alone():
    c, x0 = numbers(8, 5), np.full((8, 1), 1.5)
    seen = []
    result = ims.solve_batch(
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
    assert "ended with exit code" in str(result.lost[0].error)
    assert seen == [2, 4, 6, 8]
    assert "2 of 8 systems: LOST" in result.message


def test_of_a_broken_pool_the_culprit_alone_is_lost():
    c, x0 = numbers(8, 1), np.full((8, 1), 1.5)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, context, initializer=forget) as executor:
        result = ims.solve_batch(Begun(c).problem(), x0, executor=executor, chunks=4)
    agree(result, ims.root(Cubes(np.abs(c)).problem(), x0), np.arange(2, 8))
    np.testing.assert_array_equal(result.status[:2], Status.LOST)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.timeout(60)
def test_processes_that_are_forked_end_too():
    with Processes(2, multiprocessing.get_context("fork")) as executor:
        waiting = [executor.submit(time.sleep, 0.2) for _ in range(2)]  # one for each process
        assert [future.result() for future in waiting] == [None, None]
        processes = [worker.process for worker in executor._workers]
        assert len(processes) == 2
    assert not any(process.is_alive() for process in processes)


def test_a_process_that_dies_once_loses_nothing(tmp_path):
    c = numbers(3, 0)
    result = ims.solve_batch(DeadlyOnce(c, tmp_path / "mark").problem(), np.full((3, 1), 1.5), executor=1, chunks=3)
    assert result.success.all()
    assert (tmp_path / "mark").exists()


def test_a_lack_of_memory_loses_its_chunk_alone(threads):
    c = numbers(4, 2)
    result = ims.solve_batch(Raising(c, MemoryError("no")).problem(), np.ones((4, 1)), executor=threads, chunks=4)
    np.testing.assert_array_equal(result.status == Status.LOST, [False, False, True, False])
    assert isinstance(result.lost[0].error, MemoryError)
    assert result.success.sum() == 3


class KilledWorker(Exception):  # noqa: N818
    """As Dask's."""


@pytest.mark.parametrize("trouble", [KilledWorker("a worker"), OSError("gone"), TimeoutError("late")])
def test_what_any_executor_gives_up_is_lost(trouble):
    result = ims.solve_batch(Cubes(numbers(4)).problem(), np.ones((4, 1)), executor=Here(trouble, {1}), chunks=4)
    np.testing.assert_array_equal(result.status, [1, Status.LOST, 1, 1])
    assert result.lost[0].error is trouble


def test_what_a_broken_executor_does_not_take_is_lost():
    class Breaking(Here):
        def submit(self, fn, /, *args, **kwargs):
            if self.calls == 2:
                raise BrokenExecutor("closed")
            return super().submit(fn, *args, **kwargs)

    result = ims.solve_batch(Cubes(numbers(4)).problem(), np.ones((4, 1)), executor=Breaking(), chunks=4)
    np.testing.assert_array_equal(result.status, [1, 1, Status.LOST, Status.LOST])


def test_lost_systems_without_a_start_are_nan():
    trouble = KilledWorker("a worker")
    result = ims.solve_batch(partial(guessed, numbers(4)), count=4, executor=Here(trouble, {1}), chunks=4)
    np.testing.assert_array_equal(np.isnan(result.x[:, 0]), [False, True, False, False])
    with pytest.raises(RuntimeError, match="nothing tells the states' shape"):
        ims.solve_batch(partial(guessed, numbers(1)), count=1, executor=Here(trouble, {0}))


# --------------------------------------------------------------------------------------------------------------- errors


def test_an_exception_of_the_residual_is_raised_and_ends_the_solve():
    executor = ThreadPoolExecutor(1)
    seen = []
    with executor, pytest.raises(Wrong, match="here") as caught:
        ims.solve_batch(
            Raising(numbers(40, 1), Wrong("here")).problem(),
            np.ones((40, 1)),
            executor=executor,
            chunks=40,
            progress=lambda done, total: seen.append(done),
        )
    assert seen == [1]
    assert "in fail" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("error", "expected"), [(Wrong("there"), Wrong), (Unsendable(1, 2), RuntimeError)], ids=["own", "unsendable"]
)
def test_an_exception_in_a_process_is_raised_here(error, expected):
    c = numbers(2, 1)
    if expected is RuntimeError:  # it cannot be sent there either: made where it is raised
        problem = partial(raising_there, c)
    else:
        problem = Raising(c, error).problem()
    with pytest.raises(expected, match=r"there|Unsendable: 1 and 2") as caught:
        ims.solve_batch(problem, np.ones((2, 1)), executor=1, chunks=1)
    assert "in fail" in caught.value.__notes__[0]


def raising_there(c, indices):
    return Raising(c[indices], Unsendable(1, 2)).problem()


@pytest.mark.parametrize(
    ("change", "culprit"),
    [
        ({"residual": lambda x: x}, "problem.residual"),
        ({"jvp": lambda x, v: v}, "problem.jvp"),
        ({"method": ims.NewtonKrylov(preconditioner=lambda x, F: None)}, "method"),
        ({"stop": ims.NonlinearStop(norm=lambda F: abs(F).max())}, "stop"),
    ],
    ids=["residual", "jvp", "method", "stop"],
)
def test_what_cannot_be_sent_is_named_before_a_process_starts(monkeypatch, change, culprit):
    monkeypatch.setattr(Processes, "_started", lambda self: pytest.fail("a process was started"))
    options = {name: change[name] for name in ("method", "stop") if name in change}
    functions = {name: change[name] for name in ("residual", "jvp") if name in change}
    cubes = Cubes(numbers(2))

    def problem():
        return ims.Problem(
            functions.get("residual", cubes.residual),
            jvp=functions.get("jvp", cubes.jvp),
            batch_ndim=1,
            take=lambda indices: ims.Problem(
                functions.get("residual", cubes.residual), jvp=functions.get("jvp", cubes.jvp), batch_ndim=1
            ),
        )

    with pytest.raises(TypeError, match=rf"`{culprit}` cannot be sent .* top level of a module"):
        ims.solve_batch(problem(), np.ones((2, 1)), executor=1, chunks=1, **options)


def test_an_executor_that_cannot_send_is_no_lost_worker():
    trouble = AttributeError("Can't pickle local object")
    with pytest.raises(TypeError, match="the executor cannot send the problem: Can't pickle"):
        ims.solve_batch(Cubes(numbers(4)).problem(), np.ones((4, 1)), executor=Here(trouble, {0, 1, 2, 3}))


def test_a_script_without_a_guard_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, implicitsolve as ims\n"
        "layer = ims.adapters.elman(\n"
        "    ims.adapters.elman_parameters(1, 1, rng=np.random.default_rng(0)), np.ones((2, 1, 1)))\n"
        "ims.solve_batch(layer, executor=1)\n"
    )
    ended = run([sys.executable, str(script)])
    assert ended.returncode == 1
    assert 'must stand behind `if __name__ == "__main__":`' in ended.stderr.splitlines()[-1]


def test_a_function_that_workers_cannot_find_is_told_so():
    code = (
        "import numpy as np, implicitsolve as ims\n"
        "def residual(x):\n"
        "    return x - 1\n"
        "def take(indices):\n"
        "    return ims.Problem(residual, batch_ndim=1, take=take)\n"
        "ims.solve_batch(take(None), np.zeros((2, 1)), executor=1)\n"
    )
    ended = run([sys.executable, "-c", code])
    assert "TypeError: solve_batch: a worker cannot load the problem: Can't get attribute" in ended.stderr


@pytest.mark.mpi
def test_the_executor_of_mpi4py_works(tmp_path):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    folders = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    mpiexec = shutil.which("mpiexec", path=folders)
    if mpiexec is None:
        pytest.skip("there is no mpiexec")
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, implicitsolve as ims\n"
        "from mpi4py.futures import MPIPoolExecutor\n"
        "from tests.worker_problems import Cubes\n"
        "if __name__ == '__main__':\n"
        "    c = np.arange(1.0, 8.0)[:, None]\n"
        "    with MPIPoolExecutor() as executor:\n"
        "        result = ims.solve_batch(Cubes(c).problem(), np.ones((7, 1)), executor=executor, chunks=4)\n"
        "        print(executor.num_workers, result.success.all(), np.allclose(result.x**3, c))\n"
    )
    ended = run([mpiexec, "-n", "3", sys.executable, "-m", "mpi4py.futures", str(script)])
    assert ended.stdout.split() == ["2", "True", "True"], ended.stderr


BAD = {
    "executor": ({"executor": "many"}, TypeError, "`executor` must be an executor .* got str"),
    "executor-bool": ({"executor": True}, TypeError, "`executor` must be an executor .* got bool"),
    "executor-zero": ({"executor": 0}, ValueError, "`executor` must be at least 1, got 0"),
    "chunks": ({"chunks": 0}, ValueError, "`chunks` must be at least 1, got 0"),
    "method": ({"method": "best"}, ValueError, "solve_batch: `method`"),
    "stop": ({"stop": 1e-6}, TypeError, "solve_batch: `stop`"),
    "progress": ({"progress": 1}, TypeError, "`progress` must be callable, got int"),
    "cancel": ({"cancel": 1}, TypeError, "`cancel` must be a threading.Event, got int"),
    "count": ({"count": 2}, TypeError, "`count` is for a `problem` that is a function"),
    "no-start": ({"x0": None}, TypeError, "`x0` is needed"),
    "single": ({"problem": ims.Problem(np.cos)}, ValueError, "must be a batch"),
    "no-take": ({"problem": ims.Problem(np.cos, batch_ndim=1)}, ValueError, "offer `take`"),
    "no-problem": ({"problem": 3}, TypeError, "`problem` must be a Problem, or a function .* got int"),
    "neither": ({"problem": not_a_problem, "x0": None}, TypeError, "either `x0` or `count`, got neither"),
    "both": ({"problem": not_a_problem, "count": 2}, TypeError, "either `x0` or `count`, got both"),
    "count-zero": ({"problem": not_a_problem, "x0": None, "count": 0}, ValueError, "`count` must be at least 1"),
    "axes": ({"x0": 1.0}, ValueError, "x0 has only 0 axes"),
    "rows": ({"problem": not_a_problem, "x0": 1.0}, ValueError, "must have a row for each system"),
}


@pytest.mark.parametrize(("change", "error", "message"), BAD.values(), ids=BAD)
def test_bad_arguments_are_named(change, error, message):
    arguments = {"problem": Cubes(numbers(2)).problem(), "x0": np.ones((2, 1)), "executor": Here(), **change}
    with pytest.raises(error, match=message):
        ims.solve_batch(arguments.pop("problem"), arguments.pop("x0"), **arguments)


# ------------------------------------------------------------------------------------------------------ ending it early


def test_cancelled_systems_say_so():
    cancel = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        result = ims.solve_batch(
            Cubes(numbers(20)).problem(),
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
    result = ims.solve_batch(Cubes(numbers(2)).problem(), np.ones((2, 1)), executor=1, cancel=cancel)
    timer.join()
    assert set(result.status.tolist()) <= {Status.CONVERGED, Status.CANCELLED}
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("error", [Wrong("enough"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
def test_what_progress_raises_ends_the_solve(error):
    def progress(done, total):
        raise error

    with pytest.raises(type(error)):
        ims.solve_batch(Cubes(numbers(4)).problem(), np.ones((4, 1)), executor=2, chunks=4, progress=progress)
    assert not multiprocessing.active_children()
