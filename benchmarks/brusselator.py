"""The Brusselator in the plane, nothing declared, beside published times and a hand-written Newton method.

The benchmark of NonlinearSolve.jl: N x N cells on a torus, 2 fields, until max|F| <= 1e-6.

Usage::

    python -m benchmarks.brusselator
    python -m benchmarks.brusselator --write docs/performance/brusselator.md
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import implicitsolve as ims
from benchmarks.sparse_problems.planes import brusselator

PUBLISHED = {32: "0.028 (Newton–Krylov)", 64: "0.51 (Newton–Krylov)", 128: "15.6 (Newton–Krylov), 1.10 (with AMG)"}
PUBLISHED[200] = "2.99 (sparse LU)"
TOLERANCE = 1e-6


def newton(n: int) -> tuple[Any, int]:
    """Newton's method with the exact J, factored by SuperLU at every step, and its steps."""
    problem, ring = brusselator(n), sp.diags_array([1.0, 1.0], offsets=[-1, 1], shape=(n, n)).tolil()
    ring[0, -1] = ring[-1, 0] = 1.0
    one = sp.eye_array(n)
    plane = 10.0 * (n - 1) ** 2 * (sp.kron(ring, one) + sp.kron(one, ring) - 4.0 * sp.eye_array(n * n))
    x, steps = problem.x0.copy(), 0
    while np.abs(F := problem.residual(x)).max() > TOLERANCE:
        u, v = x.reshape(2, -1)
        a, b = sp.diags_array(2 * u * v - 4.4), sp.diags_array(u**2)
        J = sp.block_array([[plane + a, b], [sp.diags_array(3.4 - 2 * u * v), plane - b]], format="csc")
        lu = spla.splu(J, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.1, options={"SymmetricMode": True})
        x, steps = x - lu.solve(F.ravel()).reshape(x.shape), steps + 1
    return x, steps


def seconds(solve: Callable[[], Any], repeat: int) -> float:
    """The shortest of some runs, in CPU time of one thread."""
    times: list[float] = []
    for _ in range(repeat):
        begin = time.process_time()
        solve()
        times.append(time.process_time() - begin)
    return min(times)


def table(sizes: Sequence[int], repeat: int) -> str:
    """A row for each number of cells."""
    lines = ["| N | unknowns | evaluations | max abs F | seconds | by hand | ratio | published, seconds |"]
    lines.append("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for n in sizes:
        problem, stop = brusselator(n), ims.NonlinearStop(atol=TOLERANCE, rtol=0.0)
        result = ims.root(problem.residual, problem.x0, stop=stop)
        size = float(np.abs(problem.residual(result.x)).max())
        ours = seconds(lambda p=problem, s=stop: ims.root(p.residual, p.x0, stop=s), repeat)
        hand = seconds(lambda n=n: newton(n), repeat)
        cells = [n, problem.size, result.counts.residuals, f"{size:.0e}", f"{ours:.3f}", f"{hand:.3f}"]
        lines.append("| " + " | ".join(map(str, [*cells, f"{ours / hand:.2f}", PUBLISHED.get(n, "")])) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 64, 128, 200])
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--write", type=Path, metavar="PATH", help="write the Markdown page there")
    options = parser.parse_args(arguments)
    page = f"""# The Brusselator in the plane

The steady Brusselator on N x N cells of a torus, two fields, from the start of the published benchmark of
NonlinearSolve.jl (arXiv 2403.16341) until max|F| <= 1e-6, with nothing declared: the evaluations include
those that find the sparsity. "By hand" is Newton's method with the exact J, which SuperLU factors at every
step. Seconds are CPU time of one thread, the shortest of {options.repeat} runs. The published times are from
another machine with 128 threads; they were not measured here. Made by `python -m benchmarks.brusselator`.

{table(options.sizes, options.repeat)}
"""
    print(page)
    if options.write:
        options.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
