"""Large sparse systems with nothing declared, beside a colored Newton method by hand on the best linear solver.

By hand J comes from differences along the colors of the known pattern, and every step solves with SuperLU (symmetric
mode, D^-1/2 J D^-1/2), SuperLU with COLAMD, or smoothed aggregation: the fastest of the three counts. Each run has a
process of its own, whose CPU time and memory are measured. Memory is in vectors of x, beyond what Python holds.

Usage::

    python -m benchmarks.large_systems                            # 10^4 and 10^5 unknowns
    python -m benchmarks.large_systems --sizes 1e4 1e5 1e6 --write docs/performance/large_systems.md
    python -m benchmarks.large_systems --only heterogeneous --no-hand
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import implicitsolve as ims
from benchmarks.benchmarks.problems import GalleryProblem
from benchmarks.sparse_problems import awkward, planes
from implicitsolve.linearize._sparse_assemble import SparseAssembler

SECONDS = 300  # limit of a run
PROBLEMS: dict[str, tuple[Callable[[int], GalleryProblem], float]] = {  # unknowns as a power of the size
    "bratu-2d": (lambda n: planes.bratu(2, n), 2),
    "heterogeneous": (awkward.heterogeneous, 2),
    "lognormal": (awkward.lognormal, 2),
    "anisotropic": (awkward.anisotropic, 2),
    "graded-layers": (awkward.graded_layers, 2),
    "recirculating": (awkward.recirculating, 2),
    "richards-step": (awkward.richards, 2),
    "contact": (awkward.contact, 2),
    "delaunay": (awkward.delaunay, 2),
    "brusselator": (planes.brusselator, 2),
    "spring-lattice": (awkward.spring_lattice, 2),
    "hyperelastic": (awkward.hyperelastic, 2),
    "drift-diffusion-plane": (awkward.drift_diffusion_plane, 2),
    "bratu-3d": (lambda n: planes.bratu(3, n), 3),
    "jumps-cube": (awkward.jumps_cube, 3),
    "gas-network": (lambda n: awkward.gas_network(n * n), 2),
}
FIELDS = {"brusselator": 2, "spring-lattice": 2, "hyperelastic": 2, "drift-diffusion-plane": 3, "gas-network": 2.3}


def made(name: str, unknowns: float) -> GalleryProblem:
    """The problem with about so many unknowns."""
    make, power = PROBLEMS[name]
    return make(round((unknowns / FIELDS.get(name, 1)) ** (1 / power)))


def superlu(J: Any, b: Any) -> Any:
    """Symmetric mode on the symmetrically scaled matrix."""
    d = np.abs(J.diagonal())
    d = np.where(d > 0, d, 1.0) ** -0.5
    D = sp.diags_array(d)
    options: Any = {"diag_pivot_thresh": 1e-3, "options": {"SymmetricMode": True}}
    return d * spla.splu((D @ J @ D).tocsc(), permc_spec="MMD_AT_PLUS_A", **options).solve(d * b)


def colamd(J: Any, b: Any) -> Any:
    """Partial pivoting."""
    return spla.splu(J).solve(b)


def amg(J: Any, b: Any) -> Any:
    """Conjugate gradients, or GMRES, with smoothed aggregation of the symmetrically scaled matrix."""
    import pyamg

    d = np.abs(J.diagonal()) ** -0.5
    D = sp.diags_array(d)
    A = (D @ J @ D).tocsr()
    M = pyamg.smoothed_aggregation_solver(A).aspreconditioner()
    x, info = spla.gmres(A, d * b, M=M, rtol=1e-8, restart=60, maxiter=5)
    if info:
        raise ArithmeticError("GMRES has not converged")
    return d * x


def newton(problem: GalleryProblem, solve: Callable[[Any, Any], Any]) -> dict[str, Any]:
    """Colored Newton with halved steps; the search for the pattern is not counted."""
    structure = ims.detect_structure(problem.residual, problem.x0, budget=10_000).structure
    begin, shape, evaluations = time.process_time(), problem.x0.shape, 1
    assembler: Any = SparseAssembler(structure)  # type: ignore[arg-type]
    x = problem.x0.ravel().astype(float)
    F = problem.residual(x.reshape(shape)).ravel()
    for _ in range(60):
        if np.abs(F).max() <= problem.tolerance():
            return {"seconds": time.process_time() - begin, "evaluations": evaluations}
        J = assembler.differences(lambda z: problem.residual(z.reshape(shape)).reshape(1, -1), x[None], F[None])
        step, length = solve(J.to_sparse(), -F), 1.0
        evaluations += assembler.cost
        for _ in range(20):
            trial = problem.residual((x + length * step).reshape(shape)).ravel()
            evaluations += 1
            if np.linalg.norm(trial) < np.linalg.norm(F):
                break
            length *= 0.5
        x, F = x + length * step, trial
    return {}


def ours(problem: GalleryProblem) -> dict[str, Any]:
    """The plain call."""
    begin, stop = time.process_time(), ims.NonlinearStop(atol=problem.tolerance(), rtol=0.0)
    result = ims.root(problem.residual, problem.x0, stop=stop)
    seconds = time.process_time() - begin
    if np.abs(problem.residual(result.x)).max() > problem.tolerance():
        return {}
    return {"seconds": seconds, "evaluations": result.counts.residuals}


SOLVERS = {"SuperLU": superlu, "COLAMD": colamd, "AMG": amg}


def measure(name: str, unknowns: float, solver: str) -> dict[str, Any]:
    """One run in this process."""
    problem, before = made(name, unknowns), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ours(problem) if solver == "ours" else newton(problem, SOLVERS[solver])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found | {"unknowns": problem.size, "vectors": (peak - before) * 1024 / (8 * problem.size)}


def run(name: str, unknowns: float, solver: str) -> dict[str, Any]:
    """One run in a process of its own; nothing but the unknowns if it fails."""
    command = [sys.executable, "-m", "benchmarks.large_systems", "--run", name, str(unknowns), solver]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return {}
    return json.loads(done.stdout.splitlines()[-1])


def exponent(rows: Sequence[dict[str, Any]]) -> str:
    """Of the time between the last two sizes."""
    good = [row for row in rows if "seconds" in row]
    if len(good) < 2:
        return ""
    a, b = good[-2:]
    return f"{math.log(b['seconds'] / a['seconds']) / math.log(b['unknowns'] / a['unknowns']):.2f}"


def table(names: Sequence[str], sizes: Sequence[float], by_hand: bool) -> str:
    """A row for each problem and size, and the means."""
    lines = ["| problem | unknowns | evaluations | seconds | vectors | by hand | seconds | ratio | exponent |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: |")
    ratios: list[float] = []
    for name in names:
        rows: list[dict[str, Any]] = []
        for size in sizes:
            row = run(name, size, "ours")
            rows.append(row)
            rivals = {solver: run(name, size, solver) for solver in SOLVERS} if by_hand else {}
            rivals = {solver: found for solver, found in rivals.items() if "seconds" in found}
            best = min(rivals, key=lambda solver: rivals[solver]["seconds"], default="")
            cells = [name, f"{row.get('unknowns', size):,}"]
            if "seconds" not in row:
                cells += ["failed", "", ""]
            else:
                cells += [f"{row['evaluations']}", f"{row['seconds']:.2f}", f"{row['vectors']:.0f}"]
            if best:
                cells += [f"{best}, {rivals[best]['evaluations']}", f"{rivals[best]['seconds']:.2f}"]
            else:
                cells += ["", ""]
            ratio = row["seconds"] / rivals[best]["seconds"] if best and "seconds" in row else None
            ratios += [] if ratio is None else [ratio]
            cells += ["" if ratio is None else f"{ratio:.2f}", exponent(rows)]
            lines.append("| " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines += ["", f"Ratios: {mean:.2f} in the geometric mean of {len(ratios)}, {max(ratios):.2f} at most."]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=float, nargs="+", default=[1e4, 1e5])
    parser.add_argument("--only", default="", help="names of problems, with commas")
    parser.add_argument("--no-hand", action="store_true")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, metavar="PATH", help="replace the table of the page there")
    options = parser.parse_args(arguments)
    if options.run:
        name, unknowns, solver = options.run
        print(json.dumps(measure(name, float(unknowns), solver)))
        return
    names = options.only.split(",") if options.only else list(PROBLEMS)
    text = table(names, options.sizes, not options.no_hand)
    print(text)
    if options.write:
        page = options.write.read_text(encoding="utf-8")
        head, rest = page.split("<!-- table -->\n")[:2]
        options.write.write_text(f"{head}<!-- table -->\n\n{text}\n{rest[rest.index('<!-- end -->') - 1 :]}")


if __name__ == "__main__":
    main()
