"""implicitsolve.petsc where petsc4py is missing: it imports, and its first use says what to install."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import petsc


def test_the_first_use_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "petsc4py", None)
    monkeypatch.setitem(sys.modules, "petsc4py.PETSc", None)
    problem = ims.Problem(lambda x: x**2 - 2, structure=ims.BlockBanded(0, 0))
    uses = (
        lambda: ims.root(problem, np.ones(3), method=ims.BlockNewton(factor=petsc.PETScLU())),
        lambda: ims.root(problem, np.ones(3), method=petsc.PETScSNES()),
        lambda: petsc.Mesh(ims.distributed.Serial(), (3, 3)),
    )
    for use in uses:
        with pytest.raises(ims.errors.BackendUnavailable, match=r"petsc4py.*pip install"):
            use()
