"""How many problems are solved by defaults, beside SciPy's hybr, lm and krylov.

The 23 problems of Burkardt's TEST_NONLIN, the systems of Moré, Garbow and Hillstrom from 1, 10 and 100 times the
standard start (all ones times the factor where that is 0, as in MINPACK's tests), and both galleries of differential
equations and networks. Solved: max|F| <= the problem's tolerance at the returned x, measured here, within 20,000
evaluations of F. A local minimizer of ||F|| that is not a root is a failure. A success that a solver claims and this
does not confirm is a false one; SciPy's hybr and lm test x, not F.

Usage::

    python -m benchmarks.robustness
    python -m benchmarks.robustness --write docs/performance/robustness.md
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize

import implicitsolve as ims
from benchmarks.benchmarks.problems import GalleryProblem, burkardt_problems, classic_problems, pde_gallery
from benchmarks.sparse_problems import sparse_gallery

EVALUATIONS = 20_000
PEERS = ("hybr", "lm", "krylov")


class SpentError(Exception):
    """All evaluations are spent."""


def started(problem: GalleryProblem, factor: float) -> np.ndarray:
    """A multiple of the start; of 0, all ones times the factor."""
    is_moved = factor != 1 and not problem.x0.any()
    return np.full(problem.x0.shape, float(factor)) if is_moved else factor * problem.x0


def sets() -> dict[str, list[tuple[GalleryProblem, np.ndarray]]]:
    """Problems and starts, by set."""
    classic = classic_problems()
    return {
        "Burkardt's 23": [(p, p.x0) for p in burkardt_problems()],
        **{f"Moré, Garbow, Hillstrom, x0 times {f}": [(p, started(p, f)) for p in classic] for f in (1, 10, 100)},
        "differential equations, small": [(p, p.x0) for p in pde_gallery()],
        "sparse gallery, quick": [(p, p.x0) for p in sparse_gallery("quick")],
    }


def run(solve: Callable[..., tuple[Any, bool]], problem: GalleryProblem, x0: np.ndarray) -> tuple[bool, bool, int]:
    """Whether the system is solved, whether success is falsely claimed, and calls of F."""
    calls, tolerance = 0, problem.tolerance()

    def F(x: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > EVALUATIONS:
            raise SpentError
        return np.asarray(problem.residual(np.asarray(x)))

    try:
        x, claims = solve(F, x0.copy(), tolerance)
        solved = bool(np.max(np.abs(problem.residual(np.asarray(x)))) <= tolerance)
    except (SpentError, ValueError, np.linalg.LinAlgError):
        return False, False, calls
    return solved, claims and not solved, calls


def ours(F: Any, x0: np.ndarray, tolerance: float) -> tuple[Any, bool]:
    """`root` by defaults."""
    result = ims.root(F, x0, stop=ims.NonlinearStop(atol=tolerance, rtol=0.0))
    return result.x, bool(result.success)


def peer(method: str) -> Callable[..., tuple[Any, bool]]:
    """A method of `scipy.optimize.root` by defaults."""

    def solve(F: Any, x0: np.ndarray, tolerance: float) -> tuple[Any, bool]:
        shape, options = x0.shape, {"fatol": tolerance} if method == "krylov" else {}
        flat = scipy.optimize.root(lambda x: F(x.reshape(shape)).ravel(), x0.ravel(), method=method, options=options)
        return flat.x.reshape(shape), bool(flat.success)

    return solve


def table(solvers: dict[str, Callable[..., tuple[Any, bool]]]) -> tuple[list[str], list[str]]:
    """Rows of the table, and what this library does not solve."""
    lines = ["| set | problems | " + " | ".join(solvers) + " |", "| --- |" + " ---: |" * (len(solvers) + 1)]
    total, false, missed, count = dict.fromkeys(solvers, 0), dict.fromkeys(solvers, 0), [], 0
    for name, problems in sets().items():
        solved = dict.fromkeys(solvers, 0)
        for problem, x0 in problems:
            for solver, solve in solvers.items():
                is_solved, is_false, calls = run(solve, problem, x0)
                solved[solver] += is_solved
                false[solver] += is_false
                if solver == "implicitsolve" and not is_solved:
                    missed.append(f"- {name}: {problem.name}, after {calls} evaluations")
        count += len(problems)
        lines.append(f"| {name} | {len(problems)} | " + " | ".join(str(solved[s]) for s in solvers) + " |")
        total = {s: total[s] + solved[s] for s in solvers}
    lines.append(f"| all | {count} | " + " | ".join(f"{total[s]} ({total[s] / count:.1%})" for s in solvers) + " |")
    lines.append("| false successes | | " + " | ".join(str(false[s]) for s in solvers) + " |")
    return lines, missed


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", type=Path, metavar="PATH", help="write the Markdown page there")
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args(arguments)
    solvers = {"implicitsolve": ours} | ({} if options.no_peers else {name: peer(name) for name in PEERS})
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lines, missed = table(solvers)
    page = "\n\n".join(
        [
            "# Robustness",
            "Small systems of the published sets, also from starts 10 and 100 times as far, and the galleries of\n"
            "differential equations and networks, solved by defaults with nothing declared. A problem is solved if\n"
            "max|F| is within the tolerance at the returned x. A local minimizer of ‖F‖ that is not a root is a\n"
            "failure. The table is written by `python -m benchmarks.robustness`.",
            "\n".join(lines),
            "Not solved by `root`:\n\n" + ("\n".join(missed) or "none"),
            "The authors of NonlinearSolve.jl report 23 of Burkardt's 23 problems for their default polyalgorithm (A.\n"
            "Pal et al., *NonlinearSolve.jl: high-performance and robust solvers for systems of nonlinear equations\n"
            "in Julia*, arXiv 2403.16341, 2024). That is their figure: it was not measured here.",
        ]
    )
    print(page)
    if options.write:
        options.write.write_text(page + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
