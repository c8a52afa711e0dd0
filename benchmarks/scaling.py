"""Predict how distributed solves scale, from the work of one rank, the messages that it sends, and published networks.

The workload is an implicit recurrent layer on one long sequence, x_t = tanh(P x_{t-1} + N x_{t+1} + u_t), float64,
from x = 0 to max|F| <= 1e-8: by Newton-GMRES, and by Newton's method with `PartitionedLU`. Nothing of it depends on T,
neither Newton steps nor Krylov vectors, so that what many ranks lose is lost to them alone.

What is measured is the CPU time of one rank somewhere in the middle, in one process: `Mirror` is a communicator all of
whose ranks have the same numbers, so that this rank can answer for all the others. It solves the same problem as so
many ranks do, messages and all, on a circle of blocks. The interfaces of `PartitionedLU`, the only work that grows with
the number of ranks, are measured for themselves. Messages are counted, and cost what the alpha-beta model says::

    exchange with both neighbours       alpha + n beta                  n bytes to both
    allreduce (recursive doubling)      ceil(log2 P) (alpha + n beta)   n bytes of each rank
    allgather (Bruck)                   ceil(log2 P) alpha + n beta     n bytes of all ranks

with latency alpha and time per byte beta of a network; the software above it takes CPU time, and is in the measured
work. Each rank is one core with a network of its own. Computing and sending do not overlap; the network is not shared,
and no rank is late.

Usage::

    python benchmarks/scaling.py                                       # tables on the terminal; minutes
    python benchmarks/scaling.py --figure docs/performance/scaling.png
    mpiexec -n 2 python benchmarks/scaling.py --check                  # a real solve beside its prediction
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

import implicitsolve as ims
from implicitsolve import distributed
from implicitsolve.distributed import Communicator, PartitionedLU, Serial
from implicitsolve.distributed._subdomains import Interfaces

STOP = ims.NonlinearStop(atol=1e-8, rtol=0.0)
METHODS = {
    "Newton-GMRES": ims.NewtonKrylov(krylov=ims.GMRES(restart=60)),
    "PartitionedLU": ims.BlockNewton(factor=PartitionedLU(), reuse="none"),
}
LAYERS = {4: (250, 1000, 4000, 16000), 64: (10, 40, 160, 640)}  # block size: blocks of one rank that are measured
WEAK = {4: 10_000, 64: 500}  # blocks of each rank as ranks are added
STRONG = {4: 10_000_000, 64: 500_000}  # blocks of all ranks
RANKS = [*(2**i for i in range(14)), 10_000]
FEW = 4  # ranks among which one is measured
MOST_DIRECT = 1024  # ranks of a direct solve: every rank solves for the interfaces of all


@dataclass(frozen=True)
class Network:
    """A network between ranks: latency of a small MPI message in seconds, and bytes per second."""

    latency: float
    bandwidth: float


# Round numbers of published measurements; docs/how_to/mpi.md has the sources.
NETWORKS = {
    "gigabit Ethernet": Network(30e-6, 0.117e9),
    "AWS EFA, 100 Gb/s": Network(16e-6, 12e9),
    "RoCE, 100 Gb/s": Network(2e-6, 12e9),
    "Slingshot 11": Network(2e-6, 24e9),
    "InfiniBand HDR": Network(1.1e-6, 24e9),
    "InfiniBand NDR": Network(1.0e-6, 48e9),
}


@dataclass(frozen=True)
class Messages:
    """What one rank sends: how often, and bytes in all, by kind; of an allgather, bytes of all ranks."""

    calls: dict[str, int]
    bytes: dict[str, int]

    def add(self, kind: str, size: int) -> None:
        """Count one."""
        self.calls[kind] = self.calls.get(kind, 0) + 1
        self.bytes[kind] = self.bytes.get(kind, 0) + size

    def times(self, factor: int) -> Messages:
        """So many times the same."""
        return Messages(*({kind: factor * n for kind, n in part.items()} for part in (self.calls, self.bytes)))

    def plus(self, other: Messages) -> Messages:
        """These and others."""
        pairs = (self.calls, other.calls), (self.bytes, other.bytes)
        return Messages(*({kind: a.get(kind, 0) + b.get(kind, 0) for kind in {*a, *b}} for a, b in pairs))

    def seconds(self, ranks: int, network: Network) -> float:
        """What they take by the alpha-beta model."""
        if ranks == 1:
            return 0.0
        doublings, total = math.ceil(math.log2(ranks)), 0.0
        for kind, calls in self.calls.items():
            size = self.bytes[kind] * (doublings if kind == "allreduce" else 1)
            total += calls * network.latency * (1 if kind == "exchange" else doublings) + size / network.bandwidth
        return total


class Mirror:
    """A communicator of many ranks that all have the same numbers; this one is in the middle, and counts messages."""

    def __init__(self, size: int) -> None:
        self.size, self.rank = size, size // 2
        self.messages = Messages({}, {})

    def allreduce(self, values: Any, operation: str) -> Any:
        """Sums are `size` times the own numbers."""
        self.messages.add("allreduce", values.nbytes)
        total = np.array(values)
        if operation == "sum":
            total *= self.size
        elif operation == "sum-max":
            total[..., 0] *= self.size
        return total

    def allgather(self, values: Any, shapes: Any = None) -> list[Any]:
        """Everybody who says something says the same; it comes in one piece, as from MPI."""
        shapes = [values.shape] * self.size if shapes is None else shapes
        sizes = [math.prod(shape) for shape in shapes]
        room = np.tile(values.reshape(-1), shapes.count(values.shape))
        self.messages.add("allgather", room.nbytes)
        return [room[end - n : end].reshape(shape) for end, n, shape in zip(accumulate(sizes), sizes, shapes)]

    def exchange(self, to_previous: Any, to_next: Any, *, periodic: bool = False) -> tuple[Any, Any]:
        """The neighbours say what this one says."""
        self.messages.add("exchange", sum(part.nbytes for part in (to_previous, to_next) if part is not None))
        return to_next, to_previous

    def abort(self, error: BaseException) -> None:
        """Raise the error."""
        raise error


@dataclass(frozen=True)
class Layer:
    """x_t = tanh(P x_{t-1} + N x_{t+1} + u_t) with k numbers in x_t; u has the period `period`."""

    k: int
    period: int

    def problem(self, comm: Communicator, length: int, *, periodic: bool) -> ims.Problem:
        """The layer on the ranks of `comm`."""
        rng = np.random.default_rng(self.k)
        P, N = rng.normal(size=(2, self.k, self.k)) * 0.35 / self.k**0.5
        u = rng.normal(size=(self.period, self.k))

        def around(part: Any, x: Any) -> Any:
            ends = (1 - part.before, 1 - part.after)
            return np.pad(x, (ends, (0, 0))) if any(ends) else x

        def state(part: Any, x: Any) -> tuple[Any, Any]:
            x = around(part, x)
            inputs = u[np.arange(part.first, part.stop) % self.period]
            return x, np.tanh(x[:-2] @ P.T + x[2:] @ N.T + inputs)

        def residual(part: Any, x: Any) -> Any:
            x, h = state(part, x)
            return x[1:-1] - h

        def jvp(part: Any, x: Any, v: Any) -> Any:
            _, h = state(part, x)
            v = around(part, v)
            return v[1:-1] - (1 - h * h) * (v[:-2] @ P.T + v[2:] @ N.T)

        def blocks(part: Any, x: Any) -> Any:
            _, h = state(part, x)
            slope = (h * h - 1)[:, :, None]
            own = np.broadcast_to(np.eye(self.k), (part.count, self.k, self.k))
            return np.stack([slope * P, own, slope * N], axis=1)

        return distributed.problem(
            comm, residual, length=length, block_size=self.k, periodic=periodic, jvp=jvp, blocks=blocks
        )

    def solve(self, comm: Communicator, length: int, method: Any, *, periodic: bool) -> ims.NonlinearResult:
        """Solve; the result is that of all ranks."""
        problem = self.problem(comm, length, periodic=periodic)
        counts = distributed.layout(length, comm.size)
        x0 = distributed.from_local(comm, np.zeros((counts[comm.rank], self.k)), axis=0, counts=counts)
        return ims.root(problem, x0, method=method, stop=STOP).raise_for_status()


def best(call: Callable[[], Any], clock: Callable[[], float] = time.process_time, repeat: int = 3) -> float:
    """Least seconds of some calls, after one that counts for nothing."""
    call()
    seconds = []
    for _ in range(repeat):
        begin = clock()
        call()
        seconds.append(clock() - begin)
    return min(seconds)


def affine(sizes: Any, seconds: Any) -> tuple[float, float]:
    """Nonnegative a and b such that a + b size has the least relative errors."""
    from scipy.optimize import nnls

    sizes, seconds = np.asarray(sizes, dtype=float), np.asarray(seconds)
    (a, b), _ = nnls(np.stack([1 / seconds, sizes / seconds], axis=1), np.ones(sizes.size))
    return float(a), float(b)


@dataclass(frozen=True)
class Interface:
    """What finding the values at the ends of a rank takes in a solve, among some ranks: CPU seconds, and messages."""

    seconds: float
    messages: Messages


@dataclass(frozen=True)
class Costs:
    """What a rank does in a solve: seconds (a, b) for a + b blocks, alone and among FEW; messages; and at its ends."""

    alone: tuple[float, float]
    among: tuple[float, float]
    messages: Messages
    interfaces: dict[int, Interface]
    iterations: tuple[int, int]

    def serial(self, length: float) -> float:
        """Seconds on one rank."""
        return self.alone[0] + self.alone[1] * length

    def parallel(self, length: float, ranks: int, network: Network) -> float:
        """Seconds on some ranks."""
        if ranks == 1:
            return self.serial(length)
        seconds = self.among[0] + self.among[1] * length / ranks + self.messages.seconds(ranks, network)
        if self.interfaces and ranks > MOST_DIRECT:
            return math.nan
        if self.interfaces:
            there = self.interfaces[ranks]
            seconds += there.seconds - self.interfaces[FEW].seconds + there.messages.seconds(ranks, network)
        return seconds

    def strong(self, length: float, ranks: int, network: Network) -> float:
        """Efficiency of some ranks on a problem of a fixed length."""
        return self.serial(length) / (ranks * self.parallel(length, ranks, network))

    def weak(self, length: float, ranks: int, network: Network) -> float:
        """Efficiency of some ranks on problems of a fixed length for each rank."""
        return self.serial(length) / self.parallel(length * ranks, ranks, network)


def measure(k: int, method: Any, repeat: int) -> Costs:
    """Measure one rank's work and count its messages."""
    sizes = LAYERS[k]
    alone, among = [], []
    is_direct = hasattr(method, "factor")  # then one rank would fold a circle, which is four times the work
    for T in sizes:
        solve = partial(Layer(k, T).solve, method=method)
        alone.append(best(partial(solve, Serial(), T, periodic=not is_direct), repeat=repeat))
        among.append(best(partial(solve, Mirror(FEW), FEW * T, periodic=True), repeat=repeat))
    mirror = Mirror(FEW)
    result = Layer(k, sizes[-1]).solve(mirror, FEW * sizes[-1], method, periodic=True)
    iterations, messages = (int(result.iterations), int(result.krylov_iterations)), mirror.messages
    interfaces: dict[int, Interface] = {}
    if is_direct:
        solves = messages.calls.pop("allgather") - iterations[0]
        interfaces = {P: interface(k, P, iterations[0], solves, repeat) for P in RANKS[1:] if P <= MOST_DIRECT}
    return Costs(affine(sizes, alone), affine(sizes, among), messages, interfaces, iterations)


def interface(k: int, ranks: int, factorizations: int, solves: int, repeat: int) -> Interface:
    """What one rank does for the interfaces in a solve, by random spikes."""
    mirror, rng = Mirror(ranks), np.random.default_rng(0)
    m = 2 * k
    tips, found = 0.1 * rng.normal(size=(1, m, m)) / k**0.5, np.asarray([[np.inf, 1.0, 0.0]])
    right, places = np.ones((1, m, 1)), np.arange(ranks)
    factor = partial(Interfaces.of, mirror, (k, k), False, tips, found, places)
    between = factor()
    of_factor, mirror.messages = mirror.messages, Messages({}, {})
    between.given(right)
    messages = of_factor.times(factorizations).plus(mirror.messages.times(solves))
    seconds = factorizations * best(factor, repeat=repeat) + solves * best(partial(between.given, right), repeat=repeat)
    return Interface(seconds, messages)


def table(costs: Costs, kind: str, length: float) -> str:
    """Efficiencies in percent, a row for each network."""
    chosen = [2, 16, 128, 1024, 10_000]
    rows = [f"| {kind} | " + " | ".join(f"{P:,}" for P in chosen) + " |", "| --- |" + " ---: |" * len(chosen)]
    for name, network in NETWORKS.items():
        values = [100 * getattr(costs, kind)(length, P, network) for P in chosen]
        rows.append(f"| {name} | " + " | ".join("" if math.isnan(value) else f"{value:.0f}" for value in values) + " |")
    return "\n".join(rows)


def describe(k: int, name: str, costs: Costs) -> str:
    """What was measured and counted."""
    lines = [f"## {name}, k = {k}: {costs.iterations[0]} Newton steps, {costs.iterations[1]} Krylov vectors"]
    for part in ("alone", "among"):
        a, b = getattr(costs, part)
        lines.append(f"- {part}: {1e3 * a:.3f} ms + {1e6 * b:.3f} us per block")
    lines += [f"- {kind}: {n} calls, {costs.messages.bytes[kind]} bytes" for kind, n in costs.messages.calls.items()]
    for P in (16, 128, 1024) if costs.interfaces else ():
        there = costs.interfaces[P]
        sent = ", ".join(f"{n} {kind}s of {there.messages.bytes[kind]}" for kind, n in there.messages.calls.items())
        lines.append(f"- interfaces, {P} ranks: {1e3 * there.seconds:.3f} ms, {sent} bytes")
    return "\n".join(lines)


def draw(found: dict[tuple[int, str], Costs], path: Path) -> None:
    """Efficiency over ranks: a row for each method, two columns for each block size."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(13, 6), sharex=True, sharey=True, layout="constrained")
    for (k, name), costs in found.items():
        row, column = list(METHODS).index(name), 2 * list(LAYERS).index(k)
        for ax, kind, length in zip(axes[row, column:], ("strong", "weak"), (STRONG[k], WEAK[k])):
            for label, network in NETWORKS.items():
                ax.plot(RANKS, [100 * getattr(costs, kind)(length, P, network) for P in RANKS], label=label)
            each = f"T = {length:,}" + ("" if kind == "strong" else " per rank")
            ax.set_title(f"{name}, {kind}\nk = {k}, {each}", fontsize=9)
            ax.set_xscale("log")
            ax.grid(alpha=0.3)
    for ax in axes[-1]:
        ax.set_xlabel("ranks")
    for ax in axes[:, 0]:
        ax.set_ylabel("efficiency, %")
        ax.set_ylim(0, 105)
    axes[0, 0].legend(fontsize=7, loc="lower left")
    figure.savefig(path, dpi=110, metadata={"Software": None})


def check(length: dict[int, int], repeat: int) -> None:
    """Beside what a solve takes on these ranks, print what is predicted from one rank's work and its messages."""
    with distributed.MPI() as comm:
        network = ping(comm)
        if comm.rank == 0:
            print(f"{comm.size} ranks; a message takes {1e6 * network.latency:.1f} us", flush=True)
        for k, T in length.items():
            for name, method in METHODS.items():
                solve, mirror = partial(Layer(k, T // comm.size).solve, method=method, periodic=True), Mirror(comm.size)
                solve(mirror, T)
                messages = mirror.messages
                seconds = best(partial(solve, comm, T), time.perf_counter, repeat)
                among = best(partial(solve, Mirror(comm.size), T), time.perf_counter, repeat)
                seconds, among = comm.allreduce(np.asarray([seconds, among]), "max").tolist()
                predicted = among + messages.seconds(comm.size, network)
                if comm.rank == 0:
                    print(
                        f"k = {k:3d}, T = {T:7d}, {name:14}: measured {1e3 * seconds:8.1f} ms, predicted "
                        f"{1e3 * predicted:8.1f} ms, of which messages {1e3 * (predicted - among):6.1f} ms",
                        flush=True,
                    )


def ping(comm: Communicator) -> Network:
    """The ranks' own machine as a network: what an allreduce of one number takes, and 5 GB/s."""
    if comm.size == 1:
        return Network(0.0, 5e9)
    one = np.ones(1)
    seconds = [best(lambda: comm.allreduce(one, "sum"), time.perf_counter, 50) for _ in range(20)]
    return Network(float(np.median(seconds)) / math.ceil(math.log2(comm.size)), 5e9)


def main() -> None:
    """Print the tables, and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figure", type=Path, help="where to save the figure")
    parser.add_argument("--repeat", type=int, default=3, help="the least of so many times counts")
    parser.add_argument("--check", action="store_true", help="under mpiexec: measure and predict this number of ranks")
    arguments = parser.parse_args()
    if arguments.check:
        check({4: 20_000, 64: 800}, arguments.repeat)
        return
    found: dict[tuple[int, str], Costs] = {}
    for k in LAYERS:
        for name, method in METHODS.items():
            costs = found[k, name] = measure(k, method, arguments.repeat)
            print(describe(k, name, costs), end="\n\n")
            print(table(costs, "strong", STRONG[k]), table(costs, "weak", WEAK[k]), sep="\n\n", end="\n\n", flush=True)
    if arguments.figure:
        draw(found, arguments.figure)


if __name__ == "__main__":
    main()
