"""Run by the campaign `ranks` under mpiexec: a random line or plane on a `Mesh`, against the whole in one process."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import implicitsolve as ims
from benchmarks.adversary.systems import Array
from implicitsolve.petsc import Mesh, PETScLU, PETScPreconditioner


def around(patch: Any, u: Array) -> Array:
    """The points of a patch with those around them, and zeros beyond the ends."""
    return np.pad(u, [*((1 - b, 1 - a) for b, a in zip(patch.before, patch.after, strict=True)), (0, 0)])


def spread(p: Array, c: float, a: float) -> Array:
    """(2 d + 1) u - neighbors + c sin(u) - a at the inner points of p, whose last axis is of fields."""
    axes = p.ndim - 1
    inner = (slice(1, -1),) * axes
    F = (2 * axes + 1) * p[inner] + c * np.sin(p[inner]) - a
    for axis in range(axes):
        for side in (slice(2, None), slice(None, -2)):
            F = F - p[(*inner[:axis], side, *inner[axis + 1 :])]
    return F


def main(seed: int) -> int:
    """Solve the system of a seed on all ranks, compare, and return how many have been solved."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(rng.integers(5, 30)) for _ in range(int(rng.integers(1, 3))))
    c, a = rng.uniform(0, 2), np.array([rng.uniform(0.5, 3)])
    mesh = Mesh(shape)
    problem = mesh.problem(
        lambda patch, u: spread(around(patch, u), c, a[0]),
        inverse=(PETScLU(), PETScPreconditioner(type="asm"))[rng.integers(2)],
        parameters={"a": a},
        parameter_vjp=lambda patch, u, w: {"a": -np.sum(w).reshape(1)},
        parameter_jvp=lambda patch, u, t: -t["a"][0] * np.ones_like(u[patch.own]),
    )
    result = problem.root(mesh.zeros(), stop=ims.NonlinearStop(rtol=1e-11))
    whole = np.asarray(mesh.gathered(result.x)).reshape(shape)
    adjoint = problem.pull_back(result, np.ones(mesh.state_shape), stop=ims.LinearStop(rtol=1e-9))

    def F(u: Array) -> Array:
        return spread(np.pad(u[..., None], [*((1, 1) for _ in shape), (0, 0)]), c, a[0])[..., 0]

    alone = ims.root(
        ims.Problem(F, structure=ims.Grid(shape=shape)), np.zeros(shape), stop=ims.NonlinearStop(rtol=1e-11)
    )
    assert result.success == alone.success, (result.status, alone.status)
    if result.success:
        assert np.abs(whole - alone.x).max() <= 1e-8 * np.abs(alone.x).max(), np.abs(whole - alone.x).max()
        J = ims.jacobian(ims.Problem(F, structure=ims.Grid(shape=shape)), alone.x)
        expected = np.linalg.solve(np.asarray(J.todense()).T, np.ones(alone.x.size)).sum()
        found = float(adjoint.gradients["a"][0])
        assert adjoint.success, adjoint.status
        assert abs(found - expected) <= 3e-4 * abs(expected), (found, expected)
    return 2 if mesh.rank == 0 else 0


if __name__ == "__main__":
    solved = main(int(sys.argv[1]))
    if solved:
        print(solved, flush=True)
