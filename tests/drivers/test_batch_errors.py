"""`solve_batch`: errors are raised, and say what is wrong."""

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.context import SpawnProcess

import numpy as np
import pytest

import implicitsolve as ims
from tests.drivers.executors import Here, numbers, run
from tests.drivers.worker_problems import (
    Cubes,
    Raising,
    Unsendable,
    Wrong,
    not_a_problem,
)


def test_an_exception_of_the_residual_is_raised_and_ends_the_solve():
    executor = ThreadPoolExecutor(1)
    seen = []
    with executor, pytest.raises(Wrong, match="here") as caught:
        ims.drivers.solve_batch(
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
        ims.drivers.solve_batch(problem, np.ones((2, 1)), executor=1, chunks=1)
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
    monkeypatch.setattr(SpawnProcess, "start", lambda self: pytest.fail("a process was started"))
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
        ims.drivers.solve_batch(problem(), np.ones((2, 1)), executor=1, chunks=1, **options)


def test_an_executor_that_cannot_send_is_no_lost_worker():
    trouble = AttributeError("Can't pickle local object")
    with pytest.raises(TypeError, match="the executor cannot send the problem: Can't pickle"):
        ims.drivers.solve_batch(Cubes(numbers(4)).problem(), np.ones((4, 1)), executor=Here(trouble, {0, 1, 2, 3}))


def test_a_script_without_a_guard_is_reported(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, implicitsolve as ims\n"
        "layer = ims.adapters.elman(\n"
        "    ims.adapters.elman_parameters(1, 1, rng=np.random.default_rng(0)), np.ones((2, 1, 1)))\n"
        "ims.drivers.solve_batch(layer, executor=1)\n"
    )
    ended = run([sys.executable, str(script)])
    assert ended.returncode == 1
    assert 'needs `if __name__ == "__main__":`' in ended.stderr.splitlines()[-1]


def test_a_function_that_workers_cannot_find_is_reported():
    code = (
        "import numpy as np, implicitsolve as ims\n"
        "def residual(x):\n"
        "    return x - 1\n"
        "def take(indices):\n"
        "    return ims.Problem(residual, batch_ndim=1, take=take)\n"
        "ims.drivers.solve_batch(take(None), np.zeros((2, 1)), executor=1)\n"
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
        "from tests.drivers.worker_problems import Cubes\n"
        "if __name__ == '__main__':\n"
        "    c = np.arange(1.0, 8.0)[:, None]\n"
        "    with MPIPoolExecutor() as executor:\n"
        "        result = ims.drivers.solve_batch(Cubes(c).problem(), np.ones((7, 1)), executor=executor, chunks=4)\n"
        "        print(executor.num_workers, result.success.all(), np.allclose(result.x**3, c))\n"
    )
    ended = run([mpiexec, "-n", "3", sys.executable, "-m", "mpi4py.futures", str(script)])
    assert ended.stdout.split() == ["2", "True", "True"], ended.stderr


BAD = {
    "executor": ({"executor": "many"}, TypeError, "`executor` must be an executor .* got str"),
    "executor-bool": ({"executor": True}, TypeError, "`executor` must be an executor .* got bool"),
    "executor-zero": ({"executor": 0}, ValueError, "`executor` must be at least 1, got 0"),
    "workers": ({"workers": 0}, ValueError, "`workers` must be at least 1, got 0"),
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
    "rows": ({"problem": not_a_problem, "x0": 1.0}, ValueError, "x0 has only 0 axes"),
}


@pytest.mark.parametrize(("change", "error", "message"), BAD.values(), ids=BAD)
def test_bad_arguments_are_named(change, error, message):
    arguments = {"problem": Cubes(numbers(2)).problem(), "x0": np.ones((2, 1)), "executor": Here(), **change}
    with pytest.raises(error, match=message):
        ims.drivers.solve_batch(arguments.pop("problem"), arguments.pop("x0"), **arguments)
