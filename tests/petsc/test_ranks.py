"""PETSc's parts on 1, 2 and 4 ranks: the serial solution, the same status, and as many products."""

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("petsc4py.PETSc", reason="petsc4py is not installed")
pytest.importorskip("mpi4py", reason="mpi4py is not installed")
pytestmark = pytest.mark.petsc
ROOT = Path(__file__).parents[2]
OPEN_MPI = {  # a test may have more ranks than cores, and run as root in a container
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def run(size, *arguments):
    """Run `ranks.py` on so many ranks."""
    mpiexec = shutil.which("mpiexec")
    if mpiexec is None:
        pytest.skip("there is no mpiexec")
    command = [mpiexec, "-n", str(size), sys.executable, str(Path(__file__).parent / "ranks.py"), *arguments]
    environment = os.environ | OPEN_MPI | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=800, env=environment, check=False, cwd=ROOT)


@cache
def reports(size):
    """What `ranks.py` finds on so many ranks."""
    done = run(size)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("size") == size, "mpiexec belongs to another MPI than petsc4py"
    return found


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_serial_solution_with_as_many_products(size):
    serial, found = reports(1), reports(size)
    solves = [name for name, report in found.items() if "x" in report]
    assert len(solves) == 5
    for name in solves:
        report, alone = found[name], serial[name]
        assert report["status"] == alone["status"] == "CONVERGED", name
        best = np.asarray(serial["grid lu" if name.startswith("grid") else "line lu"]["x"])
        assert np.max(np.abs(np.asarray(report["x"]) - best)) <= 1e-8 * np.max(np.abs(best)), name
        if "asm" not in name:  # whose subdomains are those of the ranks
            assert report["products"] <= 1.1 * alone["products"] + 1, name
            assert abs(report["steps"] - alone["steps"]) <= 1, name


@pytest.mark.parametrize("size", [1, 2, 4])
def test_products_and_derivatives(size):
    for name in ("grid products", "line derivatives"):
        for first, second in reports(size)[name].values():
            assert first == pytest.approx(second, rel=1e-9), name


def test_an_exception_on_one_rank_ends_all():
    done = run(2, "fail")
    assert done.returncode != 0
    assert "[rank 1] LookupError: no data here" in done.stderr
