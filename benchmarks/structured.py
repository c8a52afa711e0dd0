"""Time structured problems against Newton's method written by hand on scipy.linalg.solve_banded, in one run.

The user's side of each problem is the same NumPy residual for all; ours is told the structure besides, the hand-written
method has the exact Jacobian in band storage. Rivals take turns, medians of CPU seconds are compared (of elapsed
seconds with more than one thread), and max|F| is measured here at what was returned. Every solver stops by the same
absolute tolerance.

- W2: 1-D Bratu (lambda = 3) and steady Burgers (nu = 0.05), 10^4 and 10^5 unknowns, tridiagonal.
- W3: Brusselator steady states, 2 * 10^4 cells, one chemistry per cell (k = 2) and four that exchange (k = 8).
- W4: 10^4 Brusselators of 8 cells (k = 2): as one NumPy batch, and with a residual compiled by Numba.

Usage::

    python benchmarks/structured.py                   # table on the terminal
    python benchmarks/structured.py --threads 2 --write docs/benchmarks/structured.md
"""

from __future__ import annotations

import os
import sys

THREADS = sys.argv[sys.argv.index("--threads") + 1] if "--threads" in sys.argv else "1"
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = THREADS

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from scipy.linalg import solve_banded

import implicitsolve as ims

CLOCK = time.process_time if THREADS == "1" else time.perf_counter
TRIDIAGONAL = ims.BlockBanded(1, 1)
Solver = Callable[[], tuple[Any, Any]]


@dataclass(frozen=True)
class Case:
    """One workload: residual and start, and its solvers, the rival first; each returns x and what `told` describes."""

    name: str
    residual: Callable[[Any], Any]
    solvers: dict[str, Solver]


def newton_on_band(
    residual: Callable[[Any], Any], band: Callable[[Any], Any], x: Any, widths: tuple[int, int], atol: float
) -> tuple[Any, str]:
    """Newton's method as one writes it: full steps, exact Jacobian `band(x)`, LAPACK through solve_banded."""
    x = x.copy()
    for step in range(50):
        F = residual(x)
        if np.abs(F).max() <= atol:
            return x, f"{step + 1} residuals, {step} LU"
        x -= solve_banded(widths, band(x), F.ravel(), overwrite_ab=True, check_finite=False).reshape(x.shape)
    return x, "failed: 50 steps"


def structured(
    residual: Callable[[Any], Any], structure: ims.BlockBanded, x0: Any, atol: float, **options: Any
) -> Solver:
    """Ours: the residual and the structure."""
    problem = ims.Problem(residual, structure=structure, **options)

    def solve() -> tuple[Any, ims.NonlinearResult]:
        result = ims.root(problem, x0, stop=ims.NonlinearStop(atol=atol, rtol=0.0))
        return result.x, result

    return solve


def told(took: Any) -> str:
    """What a solve took, in words; those of a result are found when the clock has stopped."""
    if not isinstance(took, ims.NonlinearResult):
        return str(took)
    lus = sum(bool(step.factorized.any()) for step in took.steps)
    failed = "" if np.all(took.success) else f", {np.sum(~np.asarray(took.success))} failed"
    return f"{took.counts.residuals} residuals, {lus} LU{failed}"


def second_difference(u: Any, left: Any = 0.0, right: Any = 0.0) -> Any:
    """u_{i-1} - 2 u_i + u_{i+1} along the first axis."""
    d = -2 * u
    d[1:] += u[:-1]
    d[:-1] += u[1:]
    d[0] += left
    d[-1] += right
    return d


def bratu(n: int) -> Case:
    """u'' + 3 exp(u) = 0, times h^2."""
    h2 = 1 / (n + 1) ** 2

    def residual(u: Any) -> Any:
        return second_difference(u) + 3 * h2 * np.exp(u)

    def band(u: Any) -> Any:
        ab = np.ones((3, n))
        ab[1] = 3 * h2 * np.exp(u) - 2
        return ab

    x0, atol = np.zeros(n), max(1e-8 * 3 * h2, 4e-15)
    return Case(
        f"W2 Bratu, {n}",
        residual,
        {
            "solve_banded": lambda: newton_on_band(residual, band, x0, (1, 1), atol),
            "ours": structured(residual, TRIDIAGONAL, x0, atol),
        },
    )


def burgers(n: int, nu: float = 0.05) -> Case:
    """nu u'' = u u' on (-1, 1), u(-1) = 1, u(1) = -1, times h^2."""
    h = 2 / (n + 1)

    def slope(u: Any) -> Any:
        d = np.empty_like(u)
        d[1:-1] = u[2:] - u[:-2]
        d[0], d[-1] = u[1] - 1.0, -1.0 - u[-2]
        return d

    def residual(u: Any) -> Any:
        return nu * second_difference(u, 1.0, -1.0) - 0.5 * h * u * slope(u)

    def band(u: Any) -> Any:
        ab = np.empty((3, n))
        ab[0, 1:] = nu - 0.5 * h * u[:-1]
        ab[1] = -2 * nu - 0.5 * h * slope(u)
        ab[2, :-1] = nu + 0.5 * h * u[1:]
        return ab

    x0 = 1 - h * np.arange(1, n + 1)
    atol = max(1e-8 * float(np.abs(residual(x0)).max()), 4e-15)
    return Case(
        f"W2 Burgers, {n}",
        residual,
        {
            "solve_banded": lambda: newton_on_band(residual, band, x0, (1, 1), atol),
            "ours": structured(residual, TRIDIAGONAL, x0, atol),
        },
    )


A, B, DIFFUSION = 1.0, 1.5, 0.02


def brusselator(cells: int, chemistries: int) -> Case:
    """u and v of each chemistry in every cell, times h^2; neighbours in a ring of chemistries exchange u."""
    p, k, h2 = chemistries, 2 * chemistries, 1 / (cells + 1) ** 2
    rest = np.r_[np.full(p, A), np.full(p, B / A)]

    def residual(x: Any) -> Any:
        u, v = x[:, :p], x[:, p:]
        F = DIFFUSION * second_difference(x, rest, rest)
        uuv = u * u * v
        F[:, :p] += h2 * (A - (B + 1) * u + uuv)
        F[:, p:] += h2 * (B * u - uuv)
        if p > 1:
            F[:, :p] += 0.1 * h2 * (np.roll(u, 1, axis=1) - u)
        return F

    def band(x: Any) -> Any:
        u, v = x[:, :p], x[:, p:]
        ab = np.zeros((2 * k + 1, cells * k))
        entries = ab.reshape(2 * k + 1, cells, k)
        ab[0, k:] = ab[2 * k, :-k] = DIFFUSION
        entries[k, :, :p] = h2 * (2 * u * v - (B + 1) - (0.1 if p > 1 else 0.0))
        entries[k, :, p:] = -h2 * u * u
        entries[k] -= 2 * DIFFUSION
        entries[k + p, :, :p] = h2 * (B - 2 * u * v)
        entries[k - p, :, p:] = h2 * u * u
        for c in range(p if p > 1 else 0):  # the equation of u_c contains u_{c-1}
            entries[k + c - (c - 1) % p, :, (c - 1) % p] += 0.1 * h2
        return ab

    wave = np.sin(np.pi * np.arange(1, cells + 1) / (cells + 1))[:, None]
    x0 = rest + wave * np.r_[np.linspace(0.3, 0.6, p), np.full(p, 0.3)]
    atol = max(1e-8 * float(np.abs(residual(x0)).max()), 1e-14)
    return Case(
        f"W3 Brusselator, k = {k}",
        residual,
        {
            "solve_banded": lambda: newton_on_band(residual, band, x0, (k, k), atol),
            "ours": structured(residual, ims.BlockBanded(1, 1, k), x0, atol),
        },
    )


def many(systems: int = 10_000, cells: int = 8) -> Case:
    """Brusselators of a few cells, which differ in their B and in their starts."""
    rng = np.random.default_rng(0)
    feed = rng.uniform(1.2, 2.2, systems)
    h2 = 1 / (cells + 1) ** 2
    x0 = np.stack([np.full((systems, cells), A), np.broadcast_to(feed[:, None] / A, (systems, cells))], axis=-1)
    x0 = x0 + rng.uniform(-0.3, 0.3, x0.shape)

    def residual(x: Any, feed: Any = feed) -> Any:
        u, v, b = x[..., 0], x[..., 1], feed[:, None]
        F = -2 * x
        F[:, 1:] += x[:, :-1]
        F[:, :-1] += x[:, 1:]
        F[:, [0, -1], 0] += A
        F[:, [0, -1], 1] += b / A
        F *= DIFFUSION
        uuv = u * u * v
        F[..., 0] += h2 * (A - (b + 1) * u + uuv)
        F[..., 1] += h2 * (b * u - uuv)
        return F

    atol = 1e-10

    def band(x: Any) -> Any:
        u, v, b = x[..., 0], x[..., 1], feed[:, None]
        ab = np.zeros((5, systems, cells, 2))
        ab[0, :, 1:], ab[4, :, :-1] = DIFFUSION, DIFFUSION
        ab[2, ..., 0] = h2 * (2 * u * v - (b + 1)) - 2 * DIFFUSION
        ab[2, ..., 1] = -h2 * u * u - 2 * DIFFUSION
        ab[3, ..., 0] = h2 * (b - 2 * u * v)
        ab[1, ..., 1] = h2 * u * u
        return ab.reshape(5, -1)

    def take(rows: Any) -> ims.Problem:
        return problem(feed[rows])

    def problem(feed: Any) -> ims.Problem:
        return ims.Problem(
            lambda x: residual(x, feed),
            structure=ims.BlockBanded(1, 1, 2),
            batch_ndim=1,
            take=lambda rows: problem(feed[rows]),
        )

    solvers: dict[str, Solver] = {
        "solve_banded": lambda: newton_on_band(residual, band, x0, (2, 2), atol),
        "ours": structured(residual, ims.BlockBanded(1, 1, 2), x0, atol, batch_ndim=1, take=take),
    }
    try:
        solvers["ours, compiled"] = compiled(x0, feed, h2, atol)
    except ImportError:
        print("Numba is not installed: no compiled residual", file=sys.stderr)
    return Case("W4 10^4 Brusselators of 8 cells", residual, solvers)


def compiled(x0: Any, feed: Any, h2: float, atol: float) -> Solver:
    """The same systems with a residual of one system that Numba compiles."""
    import numba

    from implicitsolve.backends.numba import newton_batch

    @numba.njit
    def residual(x: Any, p: Any, out: Any) -> None:
        last = x.shape[0] - 1
        for i in range(last + 1):
            u, v = x[i, 0], x[i, 1]
            left_u, left_v = (x[i - 1, 0], x[i - 1, 1]) if i > 0 else (A, p[0] / A)
            right_u, right_v = (x[i + 1, 0], x[i + 1, 1]) if i < last else (A, p[0] / A)
            uuv = u * u * v
            out[i, 0] = DIFFUSION * (left_u - 2 * u + right_u) + h2 * (A - (p[0] + 1) * u + uuv)
            out[i, 1] = DIFFUSION * (left_v - 2 * v + right_v) + h2 * (p[0] * u - uuv)

    def solve() -> tuple[Any, str]:
        stop = ims.NonlinearStop(atol=atol, rtol=0.0)
        result = newton_batch(residual, x0, feed[:, None], structure=ims.BlockBanded(1, 1, 2), stop=stop)
        failed = "" if result.success else f", {np.sum(result.status != 1)} failed"
        return result.x, f"{result.evaluations.mean():.1f} residuals a system{failed}"

    return solve


def measure(case: Case, repeat: int) -> list[str]:
    """Rows of the table: solvers take turns, and medians are compared with the first."""
    endings = {name: solve() for name, solve in case.solvers.items()}
    seconds: dict[str, list[float]] = {name: [] for name in case.solvers}
    for _ in range(repeat):
        for name, solve in case.solvers.items():
            begin = CLOCK()
            solve()
            seconds[name].append(CLOCK() - begin)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    first = next(iter(medians.values()))
    rows: list[str] = []
    for name, (x, took) in endings.items():
        times = f"{1e3 * medians[name]:.2f} | {medians[name] / first:.2f}"
        rows.append(f"| {case.name} | {name} | {times} | {told(took)} | {np.abs(case.residual(x)).max():.1e} |")
    return rows


HEAD = """| workload | solver | median ms | over the rival | took | max\\|F\\| at the end |
| --- | --- | ---: | ---: | --- | ---: |"""


PAGE = """# Structured problems against solve_banded

Written by `python benchmarks/structured.py --write docs/benchmarks/structured.md` ({versions}, {threads} thread(s), two
cores of an AMD EPYC, medians of {clock} time in one run).

{table}

The rival is Newton's method written by hand for each problem on `scipy.linalg.solve_banded`, with the exact Jacobian in
LAPACK's band storage. "ours" is given the residual and the structure, nothing else: its Jacobians are differences.
"ours, compiled" is `newton_batch` with a residual of one system, which Numba compiles.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1", help="BLAS and Numba threads")
    parser.add_argument("--repeat", type=int, default=21, help="timed calls of each solver")
    parser.add_argument("--write", type=Path, help="Markdown file for the table")
    arguments = parser.parse_args(argv)
    cases = [f(n) for n in (10_000, 100_000) for f in (bratu, burgers)]
    cases += [brusselator(20_000, 1), brusselator(20_000, 4), many()]
    rows = [HEAD]
    print(HEAD)
    for case in cases:
        new = measure(case, arguments.repeat)
        print("\n".join(new), flush=True)
        rows += new
    if arguments.write:
        versions = f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}"
        clock = "CPU" if arguments.threads == "1" else "elapsed"
        text = PAGE.format(table="\n".join(rows), versions=versions, threads=arguments.threads, clock=clock)
        arguments.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
