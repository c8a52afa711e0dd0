"""Small systems against SciPy: evaluations of hybr and ours, own time of one solve, and Kepler's equation in a batch.

Usage::

    python -m benchmarks.small_systems
    python -m benchmarks.small_systems --write docs/performance/small_systems.md
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize

import implicitsolve as ims
from benchmarks.benchmarks.problems import GalleryProblem, burkardt_problems, classic_problems
from benchmarks.peers._run import processor

REPEATS, LEAST = 5, 1.0  # runs, and seconds of them
STARTS = 100


def seconds(function: Callable[[], Any]) -> float:
    """The shortest of a few runs, of more where they are short: some machines run slower for a while."""
    times, end = [math.inf], time.perf_counter() + LEAST
    while len(times) <= REPEATS or time.perf_counter() < end:
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def evaluations(problem: GalleryProblem, x0: Any) -> tuple[float, float]:
    """Calls of F by hybr and by `newton_krylov` until max|F| <= 1e-8; infinite without that."""
    calls = 0

    def F(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return np.asarray(problem.residual(x))

    def solved(x: Any) -> bool:
        return bool(np.max(np.abs(problem.residual(x))) <= problem.tolerance())

    with np.errstate(all="ignore"):
        theirs = scipy.optimize.root(F, x0, method="hybr")
        counts = [calls if solved(theirs.x) else math.inf]
        calls = 0
        x, result = ims.newton_krylov(F, x0, f_tol=problem.tolerance(), full_output=True)
        counts.append(calls if result.success and solved(x) else math.inf)
    return counts[0], counts[1]


def table_of_counts() -> list[str]:
    """Evaluations over the classic sets, a problem that is in both of them once."""
    lines = ["| problem | N | hybr | implicitsolve |", "| --- | ---: | ---: | ---: |"]
    ratios: list[float] = []
    for problem in [*classic_problems(), *burkardt_problems()]:
        theirs, ours = evaluations(problem, problem.x0)
        cells = [f"{count:.0f}" if count < math.inf else "failed" for count in (theirs, ours)]
        lines.append(f"| {problem.name} | {problem.size} | {cells[0]} | {cells[1]} |")
        if max(theirs, ours) < math.inf:
            ratios.append(ours / theirs)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return [*lines, "", f"Over the {len(ratios)} that both solve: {mean:.2f} of hybr's evaluations (geometric mean)."]


def counts_nearby() -> str:
    """Evaluations from starts near that of Watson's function with ten unknowns."""
    problem = next(problem for problem in burkardt_problems() if problem.name == "burkardt-p06")
    rng = np.random.default_rng(0)
    starts = [problem.x0 + 1e-6 * rng.standard_normal(problem.size) for _ in range(STARTS)]
    theirs, ours = np.quantile([evaluations(problem, x0) for x0 in starts], (0.25, 0.5, 0.75), axis=0).T
    return (
        "Watson's function with ten unknowns (burkardt-p06): the count depends on rounding. "
        f"From {STARTS} starts that differ by about\n1e-6 in every unknown hybr takes {theirs[1]:.0f} evaluations "
        f"(median; quartiles {theirs[0]:.0f} and {theirs[2]:.0f}), implicitsolve {ours[1]:.0f} "
        f"({ours[0]:.0f} and {ours[2]:.0f})."
    )


def table_of_own_time() -> list[str]:
    """What a solve takes beyond its calls of F."""
    lines = ["| N | steps | calls of F | beyond them, ms | SciPy's newton_krylov, ms | ratio |"]
    lines.append("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for N in (3, 10, 20):
        A = 0.9 / math.sqrt(N) * np.random.default_rng(0).standard_normal((N, N))

        def F(x: Any, A: Any = A) -> Any:
            return x - np.tanh(A @ x) - 0.5 * np.cos(x)

        x0 = np.zeros(N)
        _, result = ims.newton_krylov(F, x0, f_tol=1e-10, full_output=True)
        ours = seconds(partial(ims.newton_krylov, F, x0, f_tol=1e-10))
        theirs = seconds(partial(scipy.optimize.newton_krylov, F, x0, f_tol=1e-10))
        calls = result.nfev * seconds(partial(F, x0))
        own = 1e3 * (ours - calls)
        lines.append(f"| {N} | {result.nit} | {result.nfev} | {own:.2f} | {1e3 * theirs:.2f} | {ours / theirs:.2f} |")
    return lines


def table_of_kepler(systems: int) -> list[str]:
    """E - e sin E = M for many e and M."""
    rng = np.random.default_rng(0)
    M, e = rng.uniform(0, 2 * np.pi, (systems, 1)), rng.uniform(0, 0.9, (systems, 1))
    m, c = M[:, 0], e[:, 0]
    batch = ims.Problem(lambda E: E - e * np.sin(E) - M, batch_ndim=1)
    exact = ims.Problem(lambda E: E - e * np.sin(E) - M, jvp=lambda E, v: v - e * np.cos(E) * v, batch_ndim=1)
    stop = ims.NonlinearStop(atol=1e-12)
    times = {
        "scipy.optimize.newton": seconds(lambda: scipy.optimize.newton(lambda E: E - c * np.sin(E) - m, m)),
        "the same with fprime": seconds(
            lambda: scipy.optimize.newton(lambda E: E - c * np.sin(E) - m, m, fprime=lambda E: 1 - c * np.cos(E))
        ),
        "root": seconds(lambda: ims.root(batch, M, stop=stop)),
        "root with jvp": seconds(lambda: ims.root(exact, M, stop=stop)),
    }
    base = times["scipy.optimize.newton"]
    rows = [f"| {name} | {value:.2f} | {value / base:.2f} |" for name, value in times.items()]
    return [f"| {systems:,} values | seconds | ratio |", "| --- | ---: | ---: |", *rows]


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--systems", type=int, default=10**6, help="of Kepler's equation (default 10^6)")
    parser.add_argument("--write", type=Path, metavar="PATH", help="write the Markdown page there")
    options = parser.parse_args(arguments)
    parts = [
        "# Small systems",
        "Systems of at most 20 unknowns, with default options and without anything declared. Made by\n"
        "`python -m benchmarks.small_systems`; times are the shortest of at least five in one run, on one thread of\n"
        f"{processor()}.",
        "## Evaluations to max|F| <= 1e-8",
        "\n".join(table_of_counts()),
        counts_nearby(),
        "## Own time of one solve",
        "\n".join(table_of_own_time()),
        "## Kepler's equation as a batch",
        "\n".join(table_of_kepler(options.systems)),
    ]
    page = "\n\n".join(parts) + "\n"
    print(page)
    if options.write:
        options.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
