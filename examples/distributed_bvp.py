"""A boundary value problem on many processes: Bratu's equation u'' + lambda exp(u) = 0, u = 0 at both ends.

    mpiexec -n 4 python examples/distributed_bvp.py --points 1000000
    python examples/distributed_bvp.py                                  # one process, without MPI

Every process owns a contiguous part of the mesh, and the program provides only the equations there. Newton's method
with a direct solve (`PartitionedLU`) sends one message to each neighbour for F and one for a new J. The factorization
and each solve take an allgather of a few numbers, and each norm an allreduce. The answer is compared with the closed
form.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

import implicitsolve as ims
from _ranks import communicator
from implicitsolve import distributed
from implicitsolve.distributed import Communicator, Part

Array = NDArray[Any]
LAMBDA = 2.0


def f(y: Array) -> Array:
    """y' for y = (u, u') of shape (points, 2)."""
    return np.stack([y[:, 1], -LAMBDA * np.exp(y[:, 0])], axis=1)


def residual(part: Part, y: Array) -> Array:
    """Collocation of order 4 at a rank's own points, given y (points, 2) there and at their neighbours.

    Point t has the second defect of the interval left of it, and the first defect of the one right of it; at the ends
    of the whole, where there is no such interval, the boundary values.
    """
    h = 1 / (part.length - 1)
    slopes = f(y)
    middle = 0.5 * (y[1:] + y[:-1]) - h / 8 * np.diff(slopes, axis=0)
    defects = np.diff(y, axis=0) - h / 6 * (slopes[1:] + 4 * f(middle) + slopes[:-1])
    left, right = defects[:, 1], defects[:, 0]
    left = np.append(y[0, 0], left) if part.is_first else left
    right = np.append(right, y[-1, 0]) if part.is_last else right
    return np.stack([left[: part.count], right[-part.count :]], axis=1)


def exact(x: Array) -> Array:
    """The lower of the two solutions."""
    theta: float = brentq(lambda t: t - np.sqrt(2 * LAMBDA) * np.cosh(t / 4), 0.0, 4.7987, xtol=1e-14)
    return -2 * np.log(np.cosh((x - 0.5) * theta / 2) / np.cosh(theta / 4))


def solve(comm: Communicator, points: int, method: str) -> ims.NonlinearResult:
    """Solve from u = 0 on the ranks of `comm`, with J from finite differences of each rank's own residual."""
    problem = distributed.problem(comm, residual, length=points, block_size=2, name="Bratu")
    start = distributed.split(comm, np.zeros((points, 2)), axis=0)
    return ims.root(problem, start, method=method, stop=ims.NonlinearStop(rtol=1e-9))


def error(y: distributed.DistributedArray) -> float:
    """Largest error of u at the points of all ranks."""
    own = np.arange(y.start, y.start + y.local.shape[0]) / (y.shape[0] - 1)
    right = distributed.from_local(y.comm, exact(own), 0, y.counts)
    xp = y.__array_namespace__()
    return float(xp.max(xp.abs(y[:, 0] - right)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Solve and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=20_000, help="points of the mesh (default: 20000)")
    parser.add_argument(
        "--method", default="auto", help='a method of `root` (default: "auto", Newton\'s with a direct solve)'
    )
    options = parser.parse_args(arguments)
    with communicator() as ranks:
        comm = distributed.Counted(ranks)
        began = time.perf_counter()
        result = solve(comm, options.points, options.method)
        seconds = time.perf_counter() - began
        calls = ", ".join(f"{count} {kind}" for kind, count in sorted(comm.calls.items()))
        largest = error(result.x)
        if comm.rank == 0:
            print(f"{options.points} points on {comm.size} ranks: {result.status.name} in {result.iterations} steps")
            print(f"largest error {largest:.2e}, {seconds:.2f} s")
            print(f"communication: {calls}; {sum(comm.bytes.values())} bytes from this rank")


if __name__ == "__main__":
    main(sys.argv[1:])
