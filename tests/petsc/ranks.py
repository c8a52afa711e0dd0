"""Run by test_ranks.py under mpiexec: solves by every way on the ranks, and prints the solutions and what they took."""

from __future__ import annotations

import json
import sys

import numpy as np

import implicitsolve as ims
from implicitsolve import distributed
from implicitsolve.petsc import Mesh, PETScLU, PETScPreconditioner, PETScSNES, to_petsc
from tests.petsc.systems import STOP, brusselator, line

TIGHT = ims.LinearStop(rtol=1e-12)


def described(result, whole):
    """The solution and the counts, as JSON has them."""
    counts = result.counts
    return {
        "status": result.status.name,
        "products": int(result.krylov_iterations) + counts.jvps + counts.vjps,
        "iterations": int(result.iterations),
        "x": np.ravel(whole).tolist(),
    }


def grids(comm):
    """The Brusselator and its derivatives of Newton's method, by PETSc's parts."""
    mesh = Mesh(comm, (24, 20), fields=2, periodic=True)
    residual, jvp, x0 = brusselator(mesh)
    ways = {
        "gamg": (PETScPreconditioner(), ims.NewtonKrylov()),
        "lu": (PETScLU(), ims.NewtonKrylov()),
        "gmres": (PETScPreconditioner(type="asm"), ims.NewtonKrylov(krylov=ims.GMRES())),
        "snes": (PETScPreconditioner(), PETScSNES({"pc_type": "gamg", "ksp_rtol": 1e-8, "snes_linesearch_type": "bt"})),
    }
    for name, (inverse, method) in ways.items():
        problem = mesh.problem(residual, jvp=jvp, inverse=inverse)
        result = ims.root(problem, x0, method=method, stop=STOP["grid"])
        yield f"grid {name}", described(result, mesh.gathered(result.x))
    J = problem.jac(result.x)
    rng = np.random.default_rng(0)
    v, w = (mesh.split(rng.standard_normal((24, 20, 2))) for _ in range(2))
    xp = v.__array_namespace__()
    inverse = PETScLU().factor(J)
    pairs = {
        "J": (xp.sum(w * J.matvec(v)), xp.sum(J.rmatvec(w) * v)),
        "inverse": (xp.sum(w * inverse.matvec(v)), xp.sum(inverse.rmatvec(w) * v)),
    }
    yield "grid adjoints", {name: [float(a), float(b)] for name, (a, b) in pairs.items()}


def lines(comm):
    """Bratu's line: direct solves and preconditioners of partitioned block-banded matrices, and gradients."""
    problem, x0 = line(comm)
    ways = {
        "block newton": ims.BlockNewton(factor=PETScLU()),
        "preconditioned": ims.NewtonKrylov(preconditioner=PETScLU()),
        "asm": ims.NewtonKrylov(preconditioner=PETScPreconditioner(type="asm", options={"pc_asm_overlap": 4})),
        "snes": PETScSNES({"pc_type": "lu", "pc_factor_mat_solver_type": PETScLU()._package(comm.size)}),
    }
    for name, method in ways.items():
        result = ims.root(problem, x0, method=method, stop=STOP["line"])
        yield f"line {name}", described(result, result.x.gathered())
    cotangent = distributed.split(comm, np.ones((200, 1)), axis=0)
    adjoint = ims.pull_back(problem, result, cotangent, method=PETScLU(), stop=TIGHT)
    tangent = ims.push_forward(problem, result, {"a": np.ones(1)}, M=PETScLU(), stop=TIGHT)
    gradient, total = float(adjoint.gradients["a"][0]), float(tangent.tangent.gathered().sum())
    yield "line derivatives", {"a": [gradient, total]}
    system = to_petsc(problem, result.x)
    snes = _petsc().SNES().create(comm=system.comm)
    system.attach(snes)
    snes.computeFunction(system.x, system.F)
    yield "line program", {"F": [float(system.F.norm()) < 1e-10, True]}


def _petsc():
    from petsc4py import PETSc

    return PETSc


if __name__ == "__main__":
    with distributed.MPI() as comm:
        found = dict([*grids(comm), *lines(comm)], size=comm.size)
        if comm.rank == 0:
            print(json.dumps(found))
        sys.stdout.flush()
