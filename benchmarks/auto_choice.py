"""Processor time of "auto" beside that of each single method, on layers and systems of all sizes.

Every solve starts at zero, or at the problem's x0, and stops at max|F| <= 1e-8; one that does not converge for all
systems does not count. The least time of some runs in turn is taken, after one that compiles.

Usage::

    python -m benchmarks.auto_choice                  # minutes
    python -m benchmarks.auto_choice --only gru       # problems whose names begin so
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import math
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

import implicitsolve as ims
from benchmarks.sparse_problems import sparse_gallery
from implicitsolve.adapters import gru_parameters, implicit_gru, implicit_lstm, implicit_rnn
from implicitsolve.nonlinear import SparseNewton
from implicitsolve.nonlinear._dense_newton import DenseNewton

TOLERANCE = 1e-8
STOP = ims.NonlinearStop(atol=TOLERANCE, rtol=0.0, max_evaluations=20_000)
SECONDS = 0.5  # that the runs of one method on one problem take, if one does not take longer
METHODS: dict[str, Any] = {
    "auto": "auto",
    "anderson": "anderson",
    "picard": "picard",
    "newton-krylov": "newton-krylov",
    "block-newton": "block-newton",
    "block-newton, LAPACK": ims.BlockNewton(factor=ims.BlockLU(backend="lapack")),
    "dense": DenseNewton(),
    "sparse": SparseNewton(),
}


def layer(kind: str, blocks: int, size: int, weight: float, systems: int) -> tuple[ims.Problem, Any]:
    """A layer with as many inputs as unknowns in a block, and recurrent weights `weight` times as large as those."""
    rng = np.random.default_rng(1)
    inputs = rng.standard_normal((systems, blocks, size))
    if kind == "gru":
        params = gru_parameters(size, size, rng=rng)
        params = {name: weight * value if name[0] == "U" else value for name, value in params.items()}
        return implicit_gru(params, inputs), np.zeros((systems, blocks, size))
    bound = weight / math.sqrt(size)
    square = {name: rng.uniform(-bound, bound, (size, size)) for name in ("P", "N", "V")}
    if kind == "rnn":
        own = {"P": square["P"][None], "N": square["N"][None], "V": square["V"], "b": np.zeros(size)}
        return implicit_rnn(own, inputs), np.zeros((systems, blocks, size))
    gates = {
        part + gate: rng.uniform(-bound, bound, (size,) if part == "b" else (size, size))
        for gate in "ifogpn"
        for part in "WUb"
    }
    return implicit_lstm(gates, inputs), np.zeros((systems, blocks, 2 * size))


def problems() -> Iterator[tuple[str, ims.Problem, Any]]:
    """Names, problems and starts."""
    for kind, blocks, size, weight, systems in [
        ("rnn", 20, 8, 0.3, 1),
        ("rnn", 100, 8, 0.3, 1),
        ("rnn", 100, 8, 0.7, 1),
        ("rnn", 100, 8, 0.3, 16),
        ("rnn", 100, 32, 0.5, 8),
        ("rnn", 40, 128, 0.5, 8),
        ("gru", 20, 8, 1.0, 1),
        ("gru", 100, 8, 1.0, 1),
        ("gru", 100, 8, 3.0, 1),
        ("gru", 100, 8, 3.0, 16),
        ("gru", 100, 8, 10.0, 4),
        ("gru", 40, 32, 1.0, 8),
        ("gru", 40, 32, 3.0, 8),
        ("gru", 40, 128, 1.0, 8),
        ("gru", 40, 128, 3.0, 8),
        ("lstm", 50, 8, 0.5, 1),
        ("lstm", 50, 8, 0.5, 16),
        ("lstm", 40, 32, 0.5, 8),
    ]:
        yield f"{kind} T={blocks} k={size} s={weight:g} B={systems}", *layer(kind, blocks, size, weight, systems)
    chosen = ("bratu-1d", "bratu-2d", "allen-cahn-step", "brusselator", "food-web", "h-equation", "cosh-with-mean")
    for problem in sparse_gallery("quick"):
        if problem.name in chosen:
            yield f"{problem.name} N={problem.size}", ims.Problem(problem.residual), problem.x0


def solved(problem: ims.Problem, x0: Any, method: Any) -> tuple[float, int] | None:
    """Time and evaluations of a solve; None where the method fails or does not apply."""
    begin = time.process_time()
    try:
        result = ims.root(problem, x0, method=method, stop=STOP)
    except (ValueError, TypeError, NotImplementedError):
        return None
    took = time.process_time() - begin
    return (took, result.counts.residuals + result.counts.jvps) if np.all(result.success) else None


def least(problem: ims.Problem, x0: Any, methods: dict[str, Any]) -> dict[str, tuple[float, int]]:
    """Least time of some solves by each method in turn, after one that compiles, and evaluations."""
    spent = {key: 0.0 for key, method in methods.items() if solved(problem, x0, method)}
    best: dict[str, tuple[float, int]] = dict.fromkeys(spent, (math.inf, 0))
    while spent:
        for key in list(spent):
            found = solved(problem, x0, methods[key]) or best[key]
            best[key] = min(best[key], found)
            spent[key] += found[0]
            if not spent[key] < SECONDS:
                del spent[key]
    return best


def main() -> None:
    """Print a line for each problem."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="first letters of the names")
    options = parser.parse_args()
    ratios = []
    print("problem | " + " | ".join(f"{name}, ms (evaluations)" for name in METHODS) + " | auto over best")
    for name, problem, x0 in problems():
        if not name.startswith(options.only):
            continue
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            is_small = math.prod(x0.shape[problem.batch_ndim :]) <= 200
            times = least(problem, x0, {key: METHODS[key] for key in METHODS if key != "dense" or is_small})
        cells = [f"{1e3 * times[key][0]:.2f} ({times[key][1]})" if times.get(key) else "" for key in METHODS]
        others = [found[0] for key, found in times.items() if key != "auto"]
        ratios.append(times["auto"][0] / min(others) if "auto" in times and others else math.nan)
        print(" | ".join([name, *cells, f"{ratios[-1]:.2f}"]), flush=True)
    print(f"largest ratio {np.nanmax(ratios):.2f}")


if __name__ == "__main__":
    main()
