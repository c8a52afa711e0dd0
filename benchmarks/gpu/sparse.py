"""Bratu's problem in the plane with a declared stencil: assembly by colors and factors of cuDSS, beside the host."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import implicitsolve as ims
from benchmarks.gpu.layers import on_device, on_host
from benchmarks.gpu.rows import Row, timed
from benchmarks.gpu.sizes import Sizes

STOP = ims.NonlinearStop(rtol=1e-8)


def rows(sizes: Sizes, seconds: float) -> Iterator[Row]:
    """A whole solve, analysis of the pattern included, and one that continues from it."""
    if importlib.util.find_spec("nvmath") is None:
        return
    for n in sizes.planes:
        problem, x0 = ims.Problem(bratu, structure=ims.Grid(shape=(n, n))), np.zeros((n, n))
        begin = time.perf_counter()
        host = ims.root(problem, x0, stop=STOP)
        facts: dict[str, Any] = {"host ms": 1e3 * (time.perf_counter() - begin)}
        start = on_device(x0)

        def solve(previous: Any = None, problem: Any = problem, start: Any = start) -> Any:
            return ims.root(problem, start, stop=STOP, previous=previous)

        first = solve()
        facts |= {"evaluations": first.counts.residuals, "of the host": host.counts.residuals}
        name = f"Bratu {n} x {n} float64"
        for what, previous in (("root", None), ("root, previous=", first)):
            x = on_host(solve(previous).x)
            error = float(np.max(np.abs(bratu(x))) / np.max(np.abs(bratu(x0))))
            ms = timed(lambda previous=previous, solve=solve: solve(previous), seconds)
            yield Row(name, what, ms, error, 2e-8, None, facts)


def bratu(u: Any) -> Any:
    """-Laplace u = 5 exp(u) on a square, times h^2, of NumPy or CuPy arrays."""
    out = 4.0 * u - 5.0 / (u.shape[0] + 1) ** 2 * np.exp(u)
    out[1:, :] -= u[:-1, :]
    out[:-1, :] -= u[1:, :]
    out[:, 1:] -= u[:, :-1]
    out[:, :-1] -= u[:, 1:]
    return out
