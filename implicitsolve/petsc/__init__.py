"""PETSc's solvers for implicitsolve's problems, on one process and on the ranks of MPI (extra ``petsc``).

`PETScLU` and `PETScPreconditioner` take the place of `BlockLU` and of the preconditioners, also on matrices whose rows
are partitioned across ranks; `PETScSNES` is a method of `root`; `to_petsc` gives F and J to a PETSc program; `Mesh`
describes a grid whose points are partitioned in all directions.
"""

from __future__ import annotations

from implicitsolve.petsc._library import PETScMatrix
from implicitsolve.petsc._mesh import Mesh, Patch
from implicitsolve.petsc._parts import PETScInverse, PETScLU, PETScPreconditioner
from implicitsolve.petsc._snes import PETScSNES
from implicitsolve.petsc._system import PETScSystem, to_petsc

__all__ = [
    "Mesh",
    "PETScInverse",
    "PETScLU",
    "PETScMatrix",
    "PETScPreconditioner",
    "PETScSNES",
    "PETScSystem",
    "Patch",
    "to_petsc",
]
