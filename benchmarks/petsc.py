"""One large system through PETSc on 1, 2 and 4 ranks: counts, differences between the solutions, time and memory.

A steady Brusselator on a torus (two fields, a published benchmark of NonlinearSolve.jl) with algebraic multigrid, at
several sizes, and a boundary value problem on a line with a direct solve. "linear" are the iterations of GMRES for an
adjoint residual of 1e-8 with J at the solution. The parent starts ``mpiexec`` for each number of ranks and compares;
times are those of the solve alone, by the clock, and mean little while others use the cores.

Usage::

    python benchmarks/petsc.py                        # N = 64 to 256, a line of 10^5, on 1, 2 and 4 ranks
    python benchmarks/petsc.py --sizes 64 128 256 512 --line 1000000 --ranks 1 2
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # this tree's package, whatever is installed

import numpy as np

import implicitsolve as ims
from implicitsolve.petsc import Mesh, PETScPreconditioner
from tests.petsc.systems import brusselator, layers

STOP = ims.NonlinearStop(atol=2e-13)  # a few times the rounding errors of F, which is of the size of c u, c = 10
LINE = ims.NonlinearStop(rtol=1e-10)
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMP_NUM_THREADS": "1",
}
ROW = "{:>18} {:>6} {:>10} {:>6} {:>7} {:>9} {:>7} {:>8} {:>8} {:>10}"


def solves(sizes, length, kind):
    """Every solve on these ranks: a report and the whole solution."""
    for n in sizes:
        mesh = Mesh((n, n), fields=2, periodic=True)
        residual, jvp, x0 = brusselator(mesh)
        inverse = None if kind == "gamg" else PETScPreconditioner(type=kind)  # the default: W-cycles of GAMG
        problem = mesh.problem(residual, jvp=jvp, inverse=inverse)
        report, x = timed(problem, x0, STOP)
        linear = problem.pull_back(x, mesh.zeros() + 1.0, stop=ims.LinearStop(rtol=1e-8)).linear
        yield f"Brusselator {n}", report | {"linear": int(linear.iterations)}, mesh.gathered(x)
    if length:
        mesh, problem = layers(length)
        report, x = timed(problem, mesh.zeros() + 1.0, LINE)
        yield f"line {length}", report | {"linear": 1}, mesh.gathered(x)


def timed(problem, x0, stop):
    """The report of a solve, and the solution."""
    start, cpu = time.perf_counter(), time.process_time()
    result = problem.root(x0, stop=stop)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    report = {
        "status": result.status.name,
        "steps": int(result.iterations),
        "krylov": int(result.krylov_iterations),
        "residuals": result.counts.residuals,
        "seconds": seconds,
        "cpu": cpu,
    }
    return report, result.x


def ranks(arguments):
    """The part of the program that runs under mpiexec."""
    found = list(solves(arguments.sizes, arguments.line, arguments.type))
    mesh = Mesh((4,))
    peaks = np.zeros(mesh.size)
    peaks[mesh.rank] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    peak = mesh.total(peaks).max()
    if mesh.rank == 0:
        folder = Path(arguments.folder)
        np.savez(folder / f"{mesh.size}.npz", **{name: x for name, _, x in found})
        reports = {name: report for name, report, _ in found}
        (folder / f"{mesh.size}.json").write_text(json.dumps([reports, float(peak)]), encoding="utf-8")


def main():
    """Start the ranks and compare."""
    parser = argparse.ArgumentParser(description="One large system through PETSc on several ranks.")
    parser.add_argument("--sizes", type=int, nargs="*", default=[64, 128, 256], help="points along each axis")
    parser.add_argument("--line", type=int, default=100_000, help="points of the line; 0 for none")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--type", default="gamg", help="PETSc's name of the preconditioner")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder is not None:
        ranks(arguments)
        return
    heads = ("system", "ranks", "status", "steps", "Krylov", "residuals", "linear", "wall s", "CPU s", "difference")
    print(ROW.format(*heads))
    with tempfile.TemporaryDirectory() as folder:
        for size in arguments.ranks:
            command = ["mpiexec", "-n", str(size), sys.executable, __file__, *sys.argv[1:], "--folder", folder]
            subprocess.run(command, check=True, env=OPEN_MPI | dict(os.environ))
            if not (Path(folder) / f"{size}.json").exists():
                raise SystemExit(f"mpiexec did not start {size} ranks: it belongs to another MPI than mpi4py")
            reports, peak = json.loads((Path(folder) / f"{size}.json").read_text(encoding="utf-8"))
            serial = np.load(Path(folder) / f"{arguments.ranks[0]}.npz")
            own = np.load(Path(folder) / f"{size}.npz")
            for name, report in reports.items():
                difference = np.max(np.abs(own[name] - serial[name])) / np.max(np.abs(serial[name]))
                values = (f"{report['seconds']:.2f}", f"{report['cpu']:.2f}", f"{difference:.1e}")
                counts = (report["status"], report["steps"], report["krylov"], report["residuals"], report["linear"])
                print(ROW.format(name, size, *counts, *values))
            print(f"{'':>18} {size:>6} largest memory of a rank {peak:.0f} MiB")


if __name__ == "__main__":
    main()
