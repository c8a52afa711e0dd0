"""Sparse systems with nothing declared: evaluations and elapsed time beside the best of SciPy's six newton_krylov.

SciPy runs with lgmres, gmres and bicgstab, each with the Armijo and the Wolfe line search; the best that solves counts,
for evaluations and for time separately. Every residual is counted here, and max|F| is measured here at the end.

Usage::

    python -m benchmarks.pde --quick                       # some hundreds of unknowns, about a minute
    python -m benchmarks.pde --only brusselator,bratu-2d   # chosen problems
    python -m benchmarks.pde --sparse                      # SparseNewton instead of newton_krylov
    python -m benchmarks.pde --json now.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize

import implicitsolve
from benchmarks.benchmarks.problems import GalleryProblem
from benchmarks.sparse_problems import sparse_gallery
from implicitsolve.nonlinear._sparse_newton import SparseNewton

RIVALS = [(method, search) for method in ("lgmres", "gmres", "bicgstab") for search in ("armijo", "wolfe")]


class SpentError(Exception):
    """The budget of a run is spent."""


def run(solve: Callable[..., Any], problem: GalleryProblem, budget: int, seconds: float, repeat: int) -> dict[str, Any]:
    """Solve, the best time of some runs; calls, seconds and whether the answer is right."""
    tolerance, best, calls, solved = problem.tolerance(), math.inf, 0, False
    for _ in range(repeat):
        calls, begin, x = 0, time.process_time(), None

        def residual(x: Any, begin: float = begin) -> Any:
            nonlocal calls
            calls += 1
            if calls > budget or time.process_time() - begin > seconds:
                raise SpentError
            return problem.residual(np.asarray(x))

        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with contextlib.suppress(SpentError, scipy.optimize.NoConvergence, ValueError, ArithmeticError):
                x = solve(residual, problem.x0.copy(), tolerance)
            elapsed = time.process_time() - begin
            solved = x is not None and float(np.max(np.abs(problem.residual(np.asarray(x))))) <= tolerance
        best = min(best, elapsed)
        if not solved:
            break
    return {"solved": bool(solved), "evaluations": calls, "seconds": best}


def rival(method: str, search: str) -> Callable[..., Any]:
    """SciPy's solver with one choice of methods."""

    def solve(residual: Any, x0: Any, tolerance: float) -> Any:
        return scipy.optimize.newton_krylov(
            residual, x0, f_tol=tolerance, method=method, line_search=search, maxiter=500
        )

    return solve


def ours(residual: Any, x0: Any, tolerance: float) -> Any:
    """The plain call."""
    return implicitsolve.newton_krylov(residual, x0, f_tol=tolerance)


def sparse(residual: Any, x0: Any, tolerance: float) -> Any:
    """`SparseNewton`, which detects the sparsity first."""
    stop = implicitsolve.NonlinearStop(atol=tolerance, rtol=0.0)
    return implicitsolve.root(residual, x0, method=SparseNewton(), stop=stop).x


def compare(problem: GalleryProblem, options: argparse.Namespace) -> dict[str, Any]:
    """All runs on one problem, and the two ratios."""
    row: dict[str, Any] = {"problem": problem.name, "unknowns": problem.size}
    row["ours"] = run(sparse if options.sparse else ours, problem, 20_000, options.seconds, options.repeat)
    rivals = (
        {}
        if options.no_rivals
        else {
            f"{m}/{s}": run(rival(m, s), problem, 20_000, options.seconds, 1 if options.quick else options.repeat)
            for m, s in RIVALS
        }
    )
    good = {name: r for name, r in rivals.items() if r["solved"]}
    for kind in ("evaluations", "seconds"):
        best = min(good, key=lambda name: good[name][kind]) if good else None
        row[f"best_{kind}"] = None if best is None else [best, good[best][kind]]
        row[f"{kind}_ratio"] = row["ours"][kind] / good[best][kind] if best and row["ours"]["solved"] else None
    return row


def mean(rows: list[dict[str, Any]], kind: str) -> float:
    """Geometric mean of a ratio."""
    logs = [math.log(row[kind]) for row in rows if row[kind]]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="some hundreds of unknowns, one run each")
    parser.add_argument("--full", action="store_true", help="ten thousands of unknowns")
    parser.add_argument("--only", default="", help="names of problems, with commas")
    parser.add_argument("--sparse", action="store_true")
    parser.add_argument("--no-rivals", action="store_true")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="limit of one run")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    chosen = [name for name in options.only.split(",") if name]
    rows = []
    print("problem | unknowns | evaluations | best of SciPy | ratio | seconds | best of SciPy | ratio")
    for problem in sparse_gallery("quick" if options.quick else "full" if options.full else "small"):
        if chosen and problem.name not in chosen:
            continue
        row = compare(problem, options)
        rows.append(row)
        cells = [problem.name, str(problem.size)]
        for kind, form in (("evaluations", "d"), ("seconds", ".4f")):
            mine, best, ratio = row["ours"][kind], row[f"best_{kind}"], row[f"{kind}_ratio"]
            cells += [
                format(mine, form) + ("" if row["ours"]["solved"] else " FAILED"),
                "none" if best is None else f"{best[0]} {best[1]:{form}}",
                "" if ratio is None else f"{ratio:.2f}",
            ]
        print(" | ".join(cells), flush=True)
    print(
        f"geometric means over {len(rows)}: evaluations {mean(rows, 'evaluations_ratio'):.3f}, "
        f"seconds {mean(rows, 'seconds_ratio'):.3f}"
    )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
