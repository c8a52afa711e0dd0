"""Time of an adapter's residual, linearization and products over the time of their matrix products alone.

Usage::

    OMP_NUM_THREADS=1 python benchmarks/adapters.py                         # every adapter, both sizes and precisions
    OMP_NUM_THREADS=1 python benchmarks/adapters.py --only implicit_gru --sizes 20x40x200 --dtypes float64
    OMP_NUM_THREADS=2 python benchmarks/adapters.py --wall                  # several threads: wall-clock time

The matrix products alone are GEMMs on all B T positions, into memory that is there: one for all weights that multiply
the same states. What is compared takes turns, and the least time of each counts: processor time of the thread, so that
a busy machine disturbs little, or wall-clock time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from implicitsolve import Problem
from implicitsolve.adapters import (
    elman,
    elman_parameters,
    gru_parameters,
    implicit_gru,
    implicit_lstm,
    implicit_rnn,
    lstm_parameters,
    rnn_parameters,
    stencil_gru,
    stencil_gru_parameters,
)

SCALE = 0.1  # weights are uniform in [-SCALE, SCALE]

# The layer, and the numbers that its GEMMs take and return at one position, in units of k.
Adapter = tuple[Callable[..., Problem], list[tuple[int, int]]]


def layer(build: Callable[..., Problem], draw: Callable[..., Any]) -> Callable[..., Problem]:
    """A function of the inputs (B, T, k) that returns the problem."""

    def made(inputs: Any, rng: np.random.Generator) -> Problem:
        k = inputs.shape[-1]
        return build(draw(k, k, scale=SCALE, rng=rng, dtype=inputs.dtype), inputs)

    return made


ADAPTERS: dict[str, Adapter] = {
    "implicit_gru": (layer(implicit_gru, gru_parameters), [(1, 2), (1, 2), (1, 1)]),
    "implicit_lstm": (layer(implicit_lstm, lstm_parameters), [(1, 2), (1, 4)]),
    "implicit_rnn": (layer(implicit_rnn, rnn_parameters), [(1, 2)]),
    "elman": (layer(elman, elman_parameters), [(1, 1)]),
    "stencil_gru": (layer(partial(stencil_gru, offsets=(-1, 1)), stencil_gru_parameters), [(1, 2), (1, 2), (1, 1)]),
}


def least(runs: dict[str, Callable[[], Any]], clock: Callable[[], float], seconds: float) -> dict[str, float]:
    """Least milliseconds of each, taking turns for about so long, at least 10 times."""
    for run in runs.values():
        run()
    times = dict.fromkeys(runs, float("inf"))
    end, turns = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or turns < 10:
        for name, run in runs.items():
            begin = clock()
            run()
            times[name] = min(times[name], 1e3 * (clock() - begin))
        turns += 1
    return times


def products(shapes: list[tuple[int, int]], rows: int, k: int, dtype: Any, adjoint: bool) -> Callable[[], None]:
    """The matrix products of a residual, or of an adjoint product."""
    rng = np.random.default_rng(1)
    weights = [rng.uniform(-SCALE, SCALE, (k * outputs, k * inputs)).astype(dtype) for inputs, outputs in shapes]
    weights = weights if adjoint else [weight.T for weight in weights]
    states = {n: rng.uniform(-1, 1, (rows, n)).astype(dtype) for weight in weights for n in weight.shape}
    results = [np.empty((rows, weight.shape[1]), dtype) for weight in weights]

    def run() -> None:
        for weight, result in zip(weights, results):
            np.matmul(states[weight.shape[0]], weight, out=result)

    return run


def measure(name: str, B: int, T: int, k: int, dtype: str, clock: Callable[[], float], seconds: float) -> str:
    """One line of the table."""
    build, shapes = ADAPTERS[name]
    rng = np.random.default_rng(0)
    problem = build(rng.standard_normal((B, T, k)).astype(dtype), rng)
    size = problem.block_structure.block_size  # type: ignore[union-attr]
    H, v = (rng.uniform(-1, 1, (B, T, size)).astype(dtype) for _ in range(2))
    J = problem.linearize(H)[1]  # type: ignore[misc]
    times = least(
        {
            "GEMMs": products(shapes, B * T, k, dtype, adjoint=False),
            "adjoint GEMMs": products(shapes, B * T, k, dtype, adjoint=True),
            "residual": lambda: problem.residual(H),
            "linearize": lambda: problem.linearize(H),  # type: ignore[misc]
            "matvec": lambda: J.matvec(v),
            "rmatvec": lambda: J.rmatvec(v),
        },
        clock,
        seconds,
    )
    alone, adjoint = times.pop("GEMMs"), times.pop("adjoint GEMMs")
    ratios = "  ".join(f"{what} {t / (adjoint if what == 'rmatvec' else alone):5.2f}" for what, t in times.items())
    return f"{name:14s} {dtype} B={B} T={T} k={k}:  GEMMs {alone:7.2f} ms  ratios  {ratios}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=ADAPTERS, default=list(ADAPTERS), help="adapters")
    parser.add_argument("--sizes", nargs="+", default=["20x40x200", "20x25x448"], help="BxTxk")
    parser.add_argument("--dtypes", nargs="+", default=["float64", "float32"])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each line")
    parser.add_argument("--wall", action="store_true", help="wall-clock time")
    arguments = parser.parse_args()
    clock = time.perf_counter if arguments.wall else time.thread_time
    for size in arguments.sizes:
        B, T, k = (int(n) for n in size.split("x"))
        for dtype in arguments.dtypes:
            for name in arguments.only:
                print(measure(name, B, T, k, dtype, clock, arguments.seconds), flush=True)


if __name__ == "__main__":
    main()
