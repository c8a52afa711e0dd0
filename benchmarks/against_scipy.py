"""Count residual evaluations of scipy.optimize.newton_krylov and implicitsolve.newton_krylov on the gallery.

Both solvers run with default options and are given the same absolute tolerance on max|F|. The residual is wrapped
in a counter of this script's own, and what is reported as max|F| is evaluated here, at the point returned.

Usage::

    python -m benchmarks.against_scipy                          # everything, table on the terminal
    python -m benchmarks.against_scipy --only scipy --set pde   # one solver, one set
    python -m benchmarks.against_scipy --write docs/performance/against_scipy.md --json counts.json
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from benchmarks.benchmarks.problems import GalleryProblem, burkardt_problems, classic_problems, pde_gallery

SETS = {"classic": "Moré, Garbow and Hillstrom", "burkardt": "Burkardt, TEST_NONLIN", "pde": "PDE gallery"}
SCIPY, WOLFE, OURS = "scipy", "scipy-wolfe", "ours"


class BudgetSpentError(Exception):
    """The residual was called more often than a run may."""


@dataclass(frozen=True)
class Run:
    """One solver on one problem; `residual` is max|F| at the point the solver left, measured afterwards."""

    solved: bool
    evaluations: int
    residual: float
    seconds: float
    ending: str

    @property
    def cell(self) -> str:
        """The count, or the count in brackets with the reason of the failure."""
        return f"{self.evaluations}" if self.solved else f"({self.evaluations}: {self.ending})"


class Counter:
    """The residual of a problem that counts its calls and remembers no array."""

    def __init__(self, problem: GalleryProblem, budget: int) -> None:
        self.problem, self.budget, self.calls = problem, budget, 0

    def __call__(self, x: Any) -> Any:
        """Evaluate, or stop the run."""
        if self.calls >= self.budget:
            raise BudgetSpentError
        self.calls += 1
        return self.problem.residual(np.asarray(x))


def run(solve: Callable[..., Any], problem: GalleryProblem, budget: int, **options: Any) -> Run:
    """Run a newton_krylov on one problem from its start."""
    counter, tolerance, x = Counter(problem, budget), problem.tolerance(), None
    begin = time.perf_counter()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            x, ending = solve(counter, problem.x0.copy(), f_tol=tolerance, **options), "wrong answer"
        except BudgetSpentError:
            ending = "budget"
        except scipy.optimize.NoConvergence as failure:
            x, ending = failure.args[0], "no convergence"
        except Exception as failure:  # noqa: BLE001  (a crash of either solver is a result of the benchmark)
            ending = type(failure).__name__
        seconds = time.perf_counter() - begin
        residual = math.nan if x is None else float(np.max(np.abs(problem.residual(np.reshape(x, problem.x0.shape)))))
    solved = ending == "wrong answer" and residual <= tolerance
    return Run(solved, counter.calls, residual, seconds, "" if solved else ending)


@dataclass(frozen=True)
class Row:
    """All runs on one problem."""

    group: str
    problem: GalleryProblem
    runs: dict[str, Run]

    @property
    def ratio(self) -> float:
        """Our evaluations over those of SciPy's default; NaN unless both solve."""
        ours, theirs = self.runs.get(OURS), self.runs.get(SCIPY)
        if ours is None or theirs is None or not (ours.solved and theirs.solved):
            return math.nan
        return ours.evaluations / theirs.evaluations


def solvers(only: str | None, group: str) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Name -> (newton_krylov, options). The Wolfe search runs on the small systems only."""
    chosen: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {}
    if only != "ours":
        chosen[SCIPY] = (scipy.optimize.newton_krylov, {})
        if group != "pde":
            chosen[WOLFE] = (scipy.optimize.newton_krylov, {"line_search": "wolfe"})
    if only != "scipy":
        chosen[OURS] = (importlib.import_module("implicitsolve").newton_krylov, {})
    return chosen


def measure(groups: Sequence[str], size: str, only: str | None, budget: int) -> list[Row]:
    """Run the requested comparisons."""
    sets: dict[str, Callable[[], list[GalleryProblem]]] = {
        "classic": classic_problems,
        "burkardt": burkardt_problems,
        "pde": lambda: pde_gallery(size),
    }
    return [
        Row(group, p, {name: run(f, p, budget, **kw) for name, (f, kw) in solvers(only, group).items()})
        for group in groups
        for p in sets[group]()
    ]


# -- tables ----------------------------------------------------------------------------------------------------


def _number(value: float, form: str) -> str:
    return "" if math.isnan(value) else format(value, form)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def table(rows: Sequence[Row]) -> str:
    """One Markdown table for one group."""
    names = list(rows[0].runs)
    compared = {SCIPY, OURS} <= set(names)
    headings = {SCIPY: "SciPy", WOLFE: "SciPy, Wolfe", OURS: "implicitsolve"}
    head = ["problem", "N", *(headings[n] for n in names), *(["ratio"] if compared else [])]
    head += [f"max abs F, {headings[n]}" for n in names]
    lines = [_line(head), _line(["---"] + ["---:"] * (len(head) - 1))]
    for row in rows:
        problem = row.problem
        label = f"{problem.name}: {problem.title}" if row.group == "burkardt" else problem.title or problem.name
        cells = [label, str(problem.size), *(row.runs[n].cell for n in names)]
        cells += [_number(row.ratio, ".2f")] if compared else []
        lines.append(_line(cells + [_number(row.runs[n].residual, ".1e") for n in names]))
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Problems, solved by each, and the geometric mean and the worst of our count over SciPy's."""
    names = list(dict.fromkeys(name for row in rows for name in row.runs))
    ratios = [row.ratio for row in rows if not math.isnan(row.ratio)]
    result: dict[str, Any] = {
        "problems": len(rows),
        "tried": {n: sum(n in row.runs for row in rows) for n in names},
        "solved": {n: sum(row.runs[n].solved for row in rows if n in row.runs) for n in names},
        "seconds": {n: round(sum(row.runs[n].seconds for row in rows if n in row.runs), 2) for n in names},
    }
    if ratios:
        result |= {
            "compared": len(ratios),
            "geometric_mean": math.exp(sum(math.log(r) for r in ratios) / len(ratios)),
            "worst": max(ratios),
            "worst_problem": max((r for r in rows if not math.isnan(r.ratio)), key=lambda r: r.ratio).problem.name,
        }
    return result


def summary_text(rows: Sequence[Row]) -> str:
    """The summary in one paragraph."""
    s = summary(rows)
    text = "Solved: " + ", ".join(f"{name} {count} of {s['tried'][name]}" for name, count in s["solved"].items()) + "."
    if "worst" in s:
        text += (
            f" Over the {s['compared']} that both solve, implicitsolve / SciPy:"
            f" geometric mean {s['geometric_mean']:.2f}, worst {s['worst']:.2f} ({s['worst_problem']})."
        )
    return text


def report(rows: Sequence[Row], command: str) -> str:
    """The page: how it was measured, a table and a summary for each set."""
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}"
    parts = [
        "# Residual evaluations against SciPy",
        "Calls of the residual by `newton_krylov` with default options, including those for finite-difference products,"
        " to the same tolerance: max|F| <= 1e-8 for the classic sets, max|F| <= 1e-8 max|F(x0)| for the PDE gallery."
        " Calls are counted outside the solvers and max|F| is evaluated at the returned point. A count in brackets is a"
        " failure, with its reason; ratios are implicitsolve / SciPy default.",
        f"Made by `{command}` with {versions}.",
    ]
    for group, title in SETS.items():
        chosen = [row for row in rows if row.group == group]
        if chosen:
            parts += [f"## {title}", table(chosen), summary_text(chosen)]
    if len({row.group for row in rows}) > 1:
        parts += ["## All", summary_text(rows)]
    return "\n\n".join(parts) + "\n"


def write(path: Path, text: str) -> None:
    """Write beside and rename, so that a page is never half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def as_json(rows: Sequence[Row]) -> str:
    """All counts, by problem name."""
    content = {
        "problems": {
            row.problem.name: {"group": row.group, "size": row.problem.size}
            | {name: asdict(r) for name, r in row.runs.items()}
            for row in rows
        },
        "summary": {g: summary([r for r in rows if r.group == g]) for g in SETS if any(r.group == g for r in rows)},
    }
    return json.dumps(content, indent=1) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--set", choices=list(SETS), action="append", help="which problems (repeatable; default all)")
    parser.add_argument("--size", choices=["small", "medium"], default="medium", help="of the PDE gallery")
    parser.add_argument("--only", choices=["scipy", "ours"], help="run one of the two solvers")
    parser.add_argument("--budget", type=int, default=100_000, help="residual calls a run may spend (default 100000)")
    parser.add_argument("--write", type=Path, metavar="PATH", help="write the Markdown page there")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the counts there as JSON")
    options = parser.parse_args(arguments)
    rows = measure(options.set or list(SETS), options.size, options.only, options.budget)
    command = ["python -m benchmarks.against_scipy", *(f"--set {name}" for name in options.set or [])]
    command += [f"--size {options.size}"] + ([f"--only {options.only}"] if options.only else [])
    page = report(rows, " ".join(command))
    print(page)
    if options.write:
        write(options.write, page)
    if options.json:
        write(options.json, as_json(rows))


if __name__ == "__main__":
    main()
