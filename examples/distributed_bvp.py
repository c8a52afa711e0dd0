"""A boundary value problem on many processes: Bratu's equation u'' + lambda exp(u) = 0, u = 0 at both ends.

    mpiexec -n 4 python examples/distributed_bvp.py --points 1000000
    python examples/distributed_bvp.py                                  # one process

Needs petsc4py, and mpi4py for more than one process: without petsc4py the program says so and ends. Every process owns
a contiguous part of the mesh, and the program provides only the equations there; halos, Newton's method and the direct
solves (MUMPS) are PETSc's. The answer is compared with the closed form.
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
from implicitsolve.petsc import Mesh, MeshProblem, Patch

Array = NDArray[Any]
LAMBDA = 2.0


def f(y: Array) -> Array:
    """y' for y = (u, u') of shape (points, 2)."""
    return np.stack([y[:, 1], -LAMBDA * np.exp(y[:, 0])], axis=1)


def residual(patch: Patch, y: Array) -> Array:
    """Collocation of order 4 at a rank's own points, given y (points, 2) there and at their neighbours.

    Point t has the first defect of the interval right of it, and the second defect of the one left of it; at the ends
    of the whole, where there is no such interval, the boundary values.
    """
    (points,), (count,) = patch.shape, patch.own_shape
    h = 1 / (points - 1)
    slopes = f(y)
    middle = 0.5 * (y[1:] + y[:-1]) - h / 8 * np.diff(slopes, axis=0)
    defects = np.diff(y, axis=0) - h / 6 * (slopes[1:] + 4 * f(middle) + slopes[:-1])
    left, right = defects[:, 1], defects[:, 0]
    left = np.append(y[0, 0], left) if patch.first == (0,) else left
    right = np.append(right, y[-1, 0]) if patch.stop == patch.shape else right
    return np.stack([right[-count:], left[:count]], axis=1)


def exact(x: Array) -> Array:
    """The lower of the two solutions."""
    theta: float = brentq(lambda t: t - np.sqrt(2 * LAMBDA) * np.cosh(t / 4), 0.0, 4.7987, xtol=1e-14)
    return -2 * np.log(np.cosh((x - 0.5) * theta / 2) / np.cosh(theta / 4))


def bratu(points: int) -> MeshProblem:
    """The problem on all processes, with J from differences of each rank's own residual."""
    return Mesh((points,), fields=2).problem(residual, name="Bratu")


def error(problem: MeshProblem, y: Array) -> float:
    """Largest error of u at the points of all ranks."""
    mesh = problem.mesh
    (points,), (first,), (stop,) = mesh.patch.shape, mesh.patch.first, mesh.patch.stop
    wrong = np.abs(y[:, 0] - exact(np.arange(first, stop) / (points - 1)))
    of_ranks = np.zeros(mesh.size)
    of_ranks[mesh.rank] = wrong.max()
    return float(mesh.total(of_ranks).max())


def main(arguments: Sequence[str] | None = None) -> None:
    """Solve and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=20_000, help="points of the mesh (default: 20000)")
    options = parser.parse_args(arguments)
    try:
        problem = bratu(options.points)
    except ims.errors.BackendUnavailable as missing:
        print(f"nothing was solved: {missing}")
        return
    mesh = problem.mesh
    began = time.perf_counter()
    result = problem.root(mesh.zeros(), stop=ims.NonlinearStop(rtol=1e-9))
    seconds = time.perf_counter() - began
    largest = error(problem, result.x)
    if mesh.rank == 0:
        print(f"{options.points} points on {mesh.size} ranks: {result.status.name} in {result.iterations} steps")
        print(f"largest error {largest:.2e}, {seconds:.2f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
