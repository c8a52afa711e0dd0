"""PETSc's solvers for implicitsolve's problems, on one process and on the ranks of MPI (extra ``petsc``).

`PETScLU` and `PETScPreconditioner` take the place of `BlockLU` and of the preconditioners; `PETScSNES` is a method of
`root`; `to_petsc` gives F and J to a PETSc program; `Mesh` partitions the points of a line or grid across ranks, and
PETSc solves the problems on it.
"""

from __future__ import annotations

from collections.abc import Callable

from implicitsolve.petsc._mesh import Mesh, MeshProblem
from implicitsolve.petsc._mesh_points import Patch
from implicitsolve.petsc._parts import PETScInverse, PETScLU, PETScPreconditioner
from implicitsolve.petsc._snes import PETScSNES
from implicitsolve.petsc._system import PETScSystem, to_petsc

__all__ = [
    "Mesh",
    "MeshProblem",
    "PETScInverse",
    "PETScLU",
    "PETScPreconditioner",
    "PETScSNES",
    "PETScSystem",
    "Patch",
    "to_petsc",
]
__dir__: Callable[[], list[str]] = __all__.copy
