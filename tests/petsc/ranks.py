"""Run by test_ranks.py under mpiexec: solves by every way on the ranks, and prints the solutions and what they took."""

import json
import sys

import numpy as np

import implicitsolve as ims
from implicitsolve.petsc import Mesh, PETScLU, PETScPreconditioner, PETScSNES
from tests.petsc.systems import STOP, brusselator, line

TIGHT = ims.LinearStop(rtol=1e-11)  # rounding errors allow no less


def described(result, whole):
    """The solution and the counts, as JSON has them."""
    return {
        "status": result.status.name,
        "products": int(result.krylov_iterations),
        "steps": int(result.iterations),
        "norm": result.residual_norm,
        "x": np.ravel(whole).tolist(),
    }


def grids():
    """The Brusselator and its adjoint products."""
    mesh = Mesh((24, 20), fields=2, periodic=True)
    residual, jvp, x0 = brusselator(mesh)
    ways = {
        "gamg": (PETScPreconditioner(), None),
        "lu": (PETScLU(), None),
        "asm": (PETScPreconditioner(type="asm"), PETScSNES({"snes_linesearch_type": "basic"})),
    }
    for name, (inverse, method) in ways.items():
        problem = mesh.problem(residual, jvp=jvp, inverse=inverse)
        result = problem.root(x0, method=method, stop=STOP["grid"])
        yield f"grid {name}", described(result, mesh.gathered(result.x))
    rng = np.random.default_rng(0)
    v, w = (mesh.split(rng.standard_normal((24, 20, 2))) for _ in range(2))
    J = problem.jacobian(result.x)
    (x, y), (z, t) = J.createVecs(), J.createVecs()
    x.setArray(v.reshape(-1))
    z.setArray(w.reshape(-1))
    J.mult(x, y)
    J.multTranspose(z, t)
    halo, halo_v = mesh.with_halo(result.x), mesh.with_halo(v)
    exact = float(mesh.total(np.sum(w * jvp(mesh.patch, halo, halo_v))))
    yield "grid products", {"J": [float(z.dot(y)), exact], "J^T": [float(t.dot(x)), exact]}


def lines():
    """Bratu's line: direct solves and preconditioners, and gradients."""
    ways = {"lu": {}, "asm": {"inverse": PETScPreconditioner(type="asm", options={"pc_asm_overlap": 4})}}
    for name, settings in ways.items():
        mesh, problem = line(**settings)
        result = problem.root(mesh.zeros(), stop=STOP["line"])
        yield f"line {name}", described(result, mesh.gathered(result.x))
    adjoint = problem.pull_back(result, np.ones(mesh.state_shape), stop=TIGHT)
    tangent = problem.push_forward(result, {"a": np.ones(1)}, stop=TIGHT)
    assert adjoint.success
    assert tangent.success
    yield "line derivatives", {"a": [float(adjoint.gradients["a"][0]), float(mesh.total(tangent.tangent.sum()))]}


def failing():
    """A residual that fails on the last rank."""
    mesh = Mesh((20,))

    def residual(patch, u):
        if patch.stop == patch.shape:
            raise LookupError("no data here")
        return u[patch.own]

    mesh.problem(residual).root(mesh.zeros())


if __name__ == "__main__":
    if sys.argv[1:] == ["fail"]:
        failing()
    found = dict([*grids(), *lines()], size=Mesh((4,)).size)
    if Mesh((4,)).rank == 0:
        print(json.dumps(found))
    sys.stdout.flush()
