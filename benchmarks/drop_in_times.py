"""Time of newton_krylov beside the best of SciPy's six, on F as cheap as it is, with detection of sparsity and without.

Usage::

    python -m benchmarks.drop_in_times                                  # about two minutes on one core
    python -m benchmarks.drop_in_times --only bratu                     # names that begin so
    python -m benchmarks.drop_in_times --write docs/performance/drop_in_times.md
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import implicitsolve
from benchmarks.benchmarks.problems import GalleryProblem, burkardt_problems, classic_problems, pde_gallery
from benchmarks.pde import RIVALS, rival, run
from benchmarks.peers._run import processor

LARGE = 500  # unknowns from which a ratio of time shows the method, and not the start of a solve
SHORT = 4  # times as many runs of smaller problems, so that the interpreter has warmed up for both sides
FAR = 1.5  # times the best time, from which on a solver is not run again
WAYS = {"detected": None, "switched off": "none"}


def documentation_example() -> GalleryProblem:
    """The example of SciPy's page on root finding: P'' = 10 cosh(P)^2 averaged over the unit square, 75 x 75."""
    n = 75
    h = 1.0 / (n - 1)

    def residual(P: Any) -> Any:
        second_x, second_y = np.zeros_like(P), np.zeros_like(P)
        second_x[1:-1] = (P[2:] - 2 * P[1:-1] + P[:-2]) / h**2
        second_x[0] = (P[1] - 2 * P[0]) / h**2
        second_x[-1] = (1 - 2 * P[-1] + P[-2]) / h**2
        second_y[:, 1:-1] = (P[:, 2:] - 2 * P[:, 1:-1] + P[:, :-2]) / h**2
        second_y[:, 0] = (P[:, 1] - 2 * P[:, 0]) / h**2
        second_y[:, -1] = (-2 * P[:, -1] + P[:, -2]) / h**2
        return second_x + second_y - 10 * np.cosh(P).mean() ** 2

    source = "scipy.optimize, root finding for large problems"
    return GalleryProblem(name="scipy-documentation", residual=residual, x0=np.zeros((n, n)), rtol=1e-8, source=source)


def problems() -> list[GalleryProblem]:
    """The largest first."""
    found = [documentation_example(), *pde_gallery("medium"), *classic_problems(), *burkardt_problems()]
    return sorted(found, key=lambda p: -p.size)


def ours(residual: Any, x0: Any, tolerance: float, *, structure: str | None) -> Any:
    """The drop-in."""
    return implicitsolve.newton_krylov(residual, x0, f_tol=tolerance, structure=structure)


def compare(problem: GalleryProblem, repeat: int) -> dict[str, Any]:
    """The best of SciPy's that solve, and ours; of more runs where a solve is short.

    The solvers alternate, and the ratio is the median of those of each turn: a machine that runs slower for a while
    slows all of them. Those of SciPy's far behind the best are run once.
    """
    theirs = {f"{m}/{s}": rival(m, s) for m, s in RIVALS}
    solvers = theirs | {name: partial(ours, structure=structure) for name, structure in WAYS.items()}
    turns: dict[str, list[float]] = {name: [] for name in solvers}
    for _ in range(repeat if problem.size >= LARGE else SHORT * repeat):
        for name, solve in solvers.items():
            found = run(solve, problem, 20_000, 20.0, 1)
            turns[name].append(found["seconds"] if found["solved"] else math.inf)
        least = {name: min(seconds) for name, seconds in turns.items()}
        best = min(theirs, key=lambda name: least[name])
        solvers = {name: solve for name, solve in solvers.items() if name in WAYS or least[name] < FAR * least[best]}
    is_solved = least[best] < math.inf
    row = {"problem": problem, "best": best if is_solved else None, "seconds": least[best]}
    for name in WAYS:
        quotients = np.divide(turns[name], turns[best]) if is_solved else [math.nan]
        row |= {name: least[name], f"{name} ratio": float(np.median(quotients))}
    return row


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table; ratios where both solve."""
    theirs = "none solves" if row["best"] is None else f"{row['best']} {1e3 * row['seconds']:.2f}"
    mine = ["failed" if row[name] == math.inf else f"{1e3 * row[name]:.2f}" for name in WAYS]
    ratios = ["" if not math.isfinite(r := row[name] / row["seconds"]) else f"{r:.2f}" for name in WAYS]
    return [row["problem"].name, str(row["problem"].size), theirs, *mine, *ratios]


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Geometric means and the largest ratios."""
    lines = []
    for name in WAYS:
        ratios = {row["problem"].name: row[name] / row["seconds"] for row in rows}
        sizes = {row["problem"].name: row["problem"].size for row in rows}
        ratios = {p: r for p, r in ratios.items() if math.isfinite(r)}
        mean = math.exp(float(np.mean(np.log(list(ratios.values()) or [math.nan]))))
        parts = [f"Sparsity {name}: {mean:.2f} of the best of SciPy's times over {len(ratios)} problems"]
        for title, chosen in (
            (f"with at least {LARGE} unknowns", {p: r for p, r in ratios.items() if sizes[p] >= LARGE}),
            ("with fewer", {p: r for p, r in ratios.items() if sizes[p] < LARGE}),
        ):
            if chosen:
                worst = max(chosen, key=lambda p: chosen[p])
                parts.append(f"at most {chosen[worst]:.2f} {title} ({worst})")
        lines.append(", ".join(parts) + " (geometric mean).")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="beginnings of names, with commas")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--write", type=Path, metavar="PATH", help="write the Markdown page there")
    options = parser.parse_args(arguments)
    chosen = [p for p in problems() if p.name.startswith(tuple(options.only.split(",")))]
    head = ["problem", "N", "best of SciPy, ms", *(f"{name}, {unit}" for unit in ("ms", "ratio") for name in WAYS)]
    lines = [" | ".join(head), " | ".join(["---", "---:", "---"] + ["---:"] * (2 * len(WAYS)))]
    for text in lines:
        print(f"| {text} |")
    rows = []
    for problem in chosen:
        rows.append(compare(problem, options.repeat))
        lines.append(" | ".join(cells(rows[-1])))
        print(f"| {lines[-1]} |", flush=True)
    print("\n" + "\n".join(summary(rows)))
    if options.write:
        parts = [
            "# Time of the drop-in",
            "`newton_krylov` with default options beside the best of SciPy's lgmres, gmres and bicgstab with either\n"
            'line search, to the same max|F|; "switched off" is `structure="none"`. Processor time on one thread, the\n'
            f"least of {options.repeat} runs, below {LARGE} unknowns of {SHORT * options.repeat}; the solvers\n"
            "alternate, and a ratio is the median of those of each turn.\n"
            f"Made by `python -m benchmarks.drop_in_times` on {processor()}.",
            "\n".join(f"| {text} |" for text in lines),
            *summary(rows),
        ]
        options.write.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
