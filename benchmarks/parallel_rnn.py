"""Diagonal GRUs in parallel over the sequence, beside loops over it: ``python benchmarks/parallel_rnn.py``.

All contenders compute the same states in float64 on the CPU, one thread: a loop in NumPy, `lax.scan` of JAX, `root`
with `Substitution` and with `CausalNewton` (bounded, and unbounded as in DEER), and pararnn-torch (eager: its fused
kernels need a GPU), where JAX and that package are installed. Times are CPU seconds, medians of turns in one process,
without compilation. An error is the largest one in the states, against the loop; what a contender says is its own
status.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import numpy as np

import implicitsolve as ims
from implicitsolve.adapters import diagonal_gru, diagonal_gru_parameters

SIZES = {"one long sequence": (1, 10_000, 16), "a batch": (8, 1000, 64), "short sequences": (64, 100, 64)}
GAINS = (1.0, 3.0, 20.0)  # of the recurrent weights: changes fade, grow for a while, grow
INPUTS, TOLERANCE, STEPS = 8, 1e-8, 100
Answer = tuple[Any, str]
"""States (B, T, k), and what the contender says."""


def sigma(y: Any) -> Any:
    """The logistic function."""
    return 1 / (1 + np.exp(-y))


def loop(P: dict[str, Any], inputs: Any) -> Answer:
    """One position of all sequences after the other."""
    arguments = [np.moveaxis(inputs @ P["W" + which].T + P["b" + which], 1, 0).copy() for which in ("z", "r", "")]
    h, states = np.zeros_like(arguments[0][0]), np.empty_like(arguments[0])
    for t, (of_z, of_r, of_n) in enumerate(zip(*arguments)):
        z, r = sigma(of_z + P["Uz"] * h), sigma(of_r + P["Ur"] * h)
        h = states[t] = h + z * (np.tanh(of_n + P["U"] * (r * h)) - h)
    return np.moveaxis(states, 0, 1), "-"


def solved(method: Any, P: dict[str, Any], inputs: Any) -> Answer:
    """`root`, the layer's construction included."""
    stop = ims.NonlinearStop(rtol=0, atol=TOLERANCE, max_iterations=STEPS)
    result = ims.root(diagonal_gru(P, inputs), method=method, stop=stop)
    names, counts = np.unique([ims.Status(status).name for status in result.status], return_counts=True)
    said = ", ".join(f"{count} {name}" for count, name in zip(counts, names))
    return result.x, f"{said}, {int(result.iterations.max())} steps"


def jax_scan() -> Callable[..., Answer]:
    """`lax.scan` over positions, compiled."""
    import jax

    jax.config.update("jax_enable_x64", True)

    @jax.jit
    def scan(P: dict[str, Any], inputs: Any) -> Any:
        def step(h: Any, at: Any) -> Any:
            z, r = jax.nn.sigmoid(at[0] + P["Uz"] * h), jax.nn.sigmoid(at[1] + P["Ur"] * h)
            h = h + z * (jax.numpy.tanh(at[2] + P["U"] * (r * h)) - h)
            return h, h

        arguments = [(inputs @ P["W" + which].T + P["b" + which]).swapaxes(0, 1) for which in ("z", "r", "")]
        return jax.lax.scan(step, jax.numpy.zeros_like(arguments[0][0]), tuple(arguments))[1].swapaxes(0, 1)

    return lambda P, inputs: (np.asarray(scan(P, inputs)), "-")


def pararnn_newton() -> Callable[..., Answer]:
    """Newton's method of pararnn-torch with as many steps, for the same GRU."""
    import pararnn
    import torch

    torch.set_num_threads(1)

    def newton(P: dict[str, Any], inputs: Any) -> Answer:
        cell = pararnn.ParaGRU(inputs.shape[-1], P["b"].size, max_recurrent_norm=None).double()
        config = pararnn.NewtonConfig(max_iters=STEPS, residual_atol=TOLERANCE)
        rows = {kind: torch.from_numpy(np.concatenate([P[kind + which] for which in ("z", "r", "")])) for kind in "Wb"}
        stats = pararnn.NewtonStats()
        with torch.no_grad():
            for own, name in ((cell.a_z, "Uz"), (cell.a_r, "Ur"), (cell.a_n, "U")):
                own.copy_(torch.from_numpy(P[name]))
            cell.W_x.weight.copy_(rows["W"])
            cell.W_x.bias.copy_(rows["b"])
            try:
                found = pararnn.newton_apply(cell, torch.from_numpy(inputs), config, stats=stats)
            except pararnn.NewtonDivergenceError:
                return np.full((*inputs.shape[:2], P["b"].size), np.nan), "NewtonDivergenceError for the whole batch"
        return found.numpy(), f"residual {stats.max_residual:.0e}, {stats.iters} steps"

    return newton


CONTENDERS: dict[str, Callable[[], Callable[..., Answer]]] = {
    "loop in NumPy": lambda: loop,
    "lax.scan, compiled": jax_scan,
    "Substitution": lambda: partial(solved, ims.Substitution()),
    "CausalNewton": lambda: partial(solved, ims.CausalNewton()),
    "CausalNewton, bound=inf": lambda: partial(solved, ims.CausalNewton(bound=np.inf)),
    "pararnn-torch, eager": pararnn_newton,
}


def main() -> None:
    """Print a table for each size and gain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="of which the median is taken (default 5)")
    turns = parser.parse_args().turns
    contenders = {}
    for name, make in CONTENDERS.items():
        try:
            contenders[name] = make()
        except ImportError as error:
            print(f"{name}: not here, {error}")
    for size, (B, T, k) in SIZES.items():
        for gain in GAINS:
            rng = np.random.default_rng(0)
            drawn = diagonal_gru_parameters(INPUTS, k, scale=1.0, rng=rng)
            P = {name: gain * part if name[0] == "U" else part for name, part in drawn.items()}
            inputs = rng.standard_normal((B, T, INPUTS))
            expected, answers = loop(P, inputs)[0], {name: run(P, inputs) for name, run in contenders.items()}
            seconds: dict[str, list[float]] = {name: [] for name in contenders}
            for _ in range(turns):
                for name, run in contenders.items():
                    start = time.process_time()
                    run(P, inputs)
                    seconds[name].append(time.process_time() - start)
            print(f"\n{size}: B={B} T={T} k={k}, recurrent weights times {gain:g}")
            print("| contender | ms | over the loop | largest error | says |\n| --- | ---: | ---: | ---: | --- |")
            first = float(np.median(seconds["loop in NumPy"]))
            for name, (states, said) in answers.items():
                median, error = float(np.median(seconds[name])), float(np.abs(states - expected).max())
                print(f"| {name} | {1e3 * median:.1f} | {median / first:.2f} | {error:.0e} | {said} |")


if __name__ == "__main__":
    main()
