"""Count and time the methods for fixed-point problems on implicit GRUs, from easy to hard ones.

- "methods": a layer on 20 sequences of T positions with k states and k inputs; weights and biases uniform in
  [-0.1, 0.1], recurrent weights s times as large, inputs standard normal, boundaries zero, float64. All methods start at
  zero and stop at max|F| <= 1e-8; the same is measured again, outside, by a new residual of the whole system.
- "starts": small layers with all weights uniform in [-3, 3], from zero and from random states uniform in [-1, 1].
- "gradients": `pull_back` at a solution, on every second block, on all of them, and by truncated inverses.
- "hard" (`--hard`, minutes): s = 3.5 and 4, where Newton's and fixed-point methods fail.

A product is one call of a residual, or of a Jacobian product, for all systems that still run: of the whole layer, or of
its two halves in turn, which is the same work. Medians of CPU seconds are compared, methods taking turns.

Usage::

    python benchmarks/fixed_points.py                              # tables on the terminal
    python benchmarks/fixed_points.py --write docs/benchmarks/fixed_points.md
    python benchmarks/fixed_points.py --parts hard --hard --write docs/benchmarks/fixed_points.md   # replaces this part
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from scipy.optimize import NoConvergence, newton_krylov

import implicitsolve as ims
from implicitsolve.adapters import gru_parameters, implicit_gru

TOLERANCE = 1e-8
STOP = ims.NonlinearStop(atol=TOLERANCE, rtol=0.0)
SYSTEMS = 20
CASES = [(40, 200, 1.0), (40, 200, 2.0), (40, 200, 3.0), (25, 448, 1.0)]
TARGETS = {(40, 200, 1.0): 17, (40, 200, 2.0): 32, (40, 200, 3.0): 140, (25, 448, 1.0): 23}
STARTS = 48
Solver = Callable[[ims.Problem, Any], Any]


@dataclass(frozen=True)
class Outcome:
    """What a solver reports, and what it left."""

    converged: int
    residuals: int
    jvps: int
    x: Any


def ours(method: Any = "auto", *, steps: int | None = None, eliminate: bool = True) -> Solver:
    """`root` with a method, perhaps on all blocks."""
    stop = STOP if steps is None else replace(STOP, max_iterations=steps)

    def solve(problem: ims.Problem, x0: Any) -> Outcome:
        result = ims.root(problem if eliminate else replace(problem, halves=None), x0, method=method, stop=stop)
        counts = result.counts
        return Outcome(int(result.success.sum()), counts.residuals, counts.jvps, result.x)

    return solve


def truncated(order: int) -> Solver:
    """x <- x - P_n F(x)."""
    method = ims.NewtonKrylov(krylov=ims.TruncatedInverse(order=order), line_search=ims.FullStep())
    return ours(method, steps=500)


def scipys(problem: ims.Problem, x0: Any) -> Outcome:
    """SciPy's newton_krylov with its defaults: all sequences are one system, products are differences."""
    calls = 0

    def residual(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return problem.residual(x)

    try:
        x = newton_krylov(residual, x0, f_tol=TOLERANCE)
    except NoConvergence as error:
        x = error.args[0]
    size = np.abs(problem.residual(x)).max(axis=(1, 2))
    return Outcome(int((size <= TOLERANCE).sum()), calls, 0, x)


SOLVERS: dict[str, Solver] = {
    "auto": ours(),
    "Anderson": ours("anderson"),
    "Anderson, no M": ours(ims.Anderson(preconditioned=False)),
    "Anderson, all blocks": ours("anderson", eliminate=False),
    "Broyden": ours("broyden"),
    "Picard": ours("picard"),
    "P_0, all blocks": truncated(0),
    "P_1, all blocks": truncated(1),
    "P_3, all blocks": truncated(3),
    "NewtonKrylov": ours("newton-krylov"),
    "NewtonKrylov, float32 products": ours(ims.NewtonKrylov(products="float32")),
    "NewtonKrylov, all blocks": ours("newton-krylov", eliminate=False),
    "BiCGSTAB, 40/40": ours(ims.NewtonKrylov(krylov=ims.BiCGSTAB(), max_krylov=40), steps=40),
    "Homotopy": ours("homotopy"),
    "SciPy's newton_krylov": scipys,
}
FAILS = {"SciPy's newton_krylov", "Homotopy", "Picard", "P_0, all blocks", "P_1, all blocks", "P_3, all blocks"}


def layer(T: int, k: int, s: float, systems: int = SYSTEMS) -> ims.Problem:
    """The workload; fewer systems are the first ones of more."""
    rng = np.random.default_rng(0)
    params = {name: s * value if name[0] == "U" else value for name, value in gru_parameters(k, k, rng=rng).items()}
    return implicit_gru(params, rng.standard_normal((systems, T, k)))


def table(title: str, columns: str, rows: list[str]) -> list[str]:
    """A Markdown table, all but the first `title` columns right-aligned, which is also printed."""
    names = columns.split(" | ")
    left = int(title)
    rule = " | ".join("---" if i < left else "---:" for i in range(len(names)))
    lines = [f"| {columns} |", f"| {rule} |", *rows]
    print("\n".join(lines), flush=True)
    return lines
