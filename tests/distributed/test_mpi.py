from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from implicitsolve.distributed import MPI

ROOT = Path(__file__).parents[2]
SIZES = [1, 2, 4]
SECONDS = 20.0  # to start Python several times on a busy machine, and to end

mpi = pytest.mark.mpi


def launcher():
    """The mpiexec of this environment, or a skip that says why there is none."""
    if find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.skip("there is no mpiexec")
    return found


def run(size, program, *arguments):
    """Run a program on ranks: its lines by rank, in any order, what it wrote of errors, status and seconds."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [launcher(), "-n", str(size), sys.executable, str(program), *arguments]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False, cwd=ROOT)
    return done.stdout.splitlines(), done.stderr, done.returncode, time.monotonic() - start


def reports(size, program):
    lines, errors, status, _ = run(size, Path(__file__).parent / program)
    assert status == 0, errors
    return sorted((json.loads(line) for line in lines), key=lambda report: report["rank"])


@mpi
@pytest.mark.parametrize("size", SIZES)
def test_the_communicator_does_what_threads_do(size):
    found = reports(size, "mpi_communicator.py")
    assert [report["rank"] for report in found] == list(range(size))


@mpi
@pytest.mark.parametrize("size", SIZES)
def test_the_serial_solution_and_status_on_all_ranks(size):
    found = reports(size, "mpi_solve.py")
    assert [(report["rank"], report["size"]) for report in found] == [(rank, size) for rank in range(size)]
    assert all(report["report"] == found[0]["report"] for report in found)  # to the last bit
    for name, (distance, status, alone) in found[0]["report"].items():
        assert status == alone == [1], name
        assert distance < 1e-12, name


@mpi
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("way", "error"),
    [("residual", "ArithmeticError: no residual here"), ("program", "LookupError: lost its way"), ("exit", "gave up")],
)
def test_an_error_of_one_rank_ends_all_within_seconds(size, way, error):
    lines, errors, status, seconds = run(size, Path(__file__).parent / "mpi_failing.py", way)
    assert status != 0
    assert lines == []
    assert f"[rank {size - 1}] " in errors
    assert error in errors
    assert seconds < SECONDS


@mpi
@pytest.mark.parametrize("example", ["distributed_bvp.py", "distributed_gru.py"])
@pytest.mark.parametrize("size", [1, 2])
def test_examples(example, size):
    lines, errors, status, _ = run(size, ROOT / "examples" / example)
    assert status == 0, errors
    assert "CONVERGED" in "\n".join(lines)


@pytest.mark.parametrize("missing", [ImportError("no module named mpi4py"), RuntimeError("cannot load MPI library")])
def test_without_mpi(monkeypatch, missing):
    def import_module(name):
        raise missing

    monkeypatch.setattr("implicitsolve.distributed._mpi.importlib.import_module", import_module)
    with pytest.raises(
        ImportError, match=rf"MPI needs mpi4py and an MPI library, .*'implicitsolve\[mpi\]'.*: {missing}"
    ):
        MPI()
