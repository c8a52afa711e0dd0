"""implicitsolve.petsc where petsc4py is missing: it imports, and its first use says what to install."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import petsc


@pytest.fixture
def without_petsc(monkeypatch):
    """As where it is not installed."""
    monkeypatch.setitem(sys.modules, "petsc4py", None)
    monkeypatch.setitem(sys.modules, "petsc4py.PETSc", None)


@pytest.mark.usefixtures("without_petsc")
def test_the_first_use_names_what_to_install():
    problem = ims.Problem(lambda x: x**2 - 2, structure=ims.BlockBanded(0, 0))
    uses = (
        lambda: ims.root(problem, np.ones(3), method=ims.BlockNewton(factor=petsc.PETScLU())),
        lambda: ims.root(problem, np.ones(3), method=petsc.PETScSNES()),
        lambda: petsc.Mesh((3, 3)),
    )
    for use in uses:
        with pytest.raises(ims.errors.BackendUnavailable, match=r"petsc4py.*pip install"):
            use()


@pytest.mark.usefixtures("without_petsc")
@pytest.mark.parametrize("name", ["distributed_bvp", "distributed_gru"])
def test_the_examples_say_so_and_end(monkeypatch, capsys, name):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "examples"))
    importlib.import_module(name).main([])
    assert "nothing was" in (out := capsys.readouterr().out)
    assert "petsc4py" in out
