"""The examples on one rank: the boundary value problem's error, and the layer against the whole sequence's."""

import importlib
from pathlib import Path

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve.petsc import Mesh

pytest.importorskip("petsc4py.PETSc", reason="petsc4py is not installed")
pytestmark = pytest.mark.petsc


@pytest.fixture
def script(monkeypatch):
    """Import a script."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    return importlib.import_module


def test_boundary_value_problem_is_of_order_four(script):
    bvp = script("distributed_bvp")

    def error(points):
        problem = bvp.bratu(points)
        result = problem.root(problem.mesh.zeros(), stop=ims.NonlinearStop(rtol=1e-11)).raise_for_status()
        return bvp.error(problem, result.x)

    coarse, fine = error(21), error(41)
    assert fine < 1e-6
    assert coarse / fine == pytest.approx(16, rel=0.2)


def test_the_layer_on_a_mesh_is_that_of_the_whole_sequence(script, rng):
    gru = script("distributed_gru")
    weights = ims.adapters.gru_parameters(3, 5, rng=rng, scale=0.5)
    inputs, cotangent = rng.normal(size=(14, 3)), rng.normal(size=(14, 5))
    whole = ims.adapters.implicit_gru(weights, inputs)
    stop, linear = ims.NonlinearStop(rtol=1e-13), ims.LinearStop(rtol=1e-13)
    alone = ims.root(whole, np.zeros((14, 5)), stop=stop)
    expected = ims.pull_back(whole, alone, cotangent, stop=linear).gradients
    mesh = Mesh((14,), fields=5)
    problem = gru.implicit_gru(mesh, weights, inputs)
    result = problem.root(mesh.zeros(), stop=stop).raise_for_status()
    adjoint = problem.pull_back(result, cotangent, stop=linear).raise_for_status()
    np.testing.assert_allclose(result.x, alone.x, atol=1e-12)
    for name in weights:
        np.testing.assert_allclose(adjoint.gradients[name], expected[name], atol=1e-10)


def test_training_reduces_the_loss(script, capsys):
    losses = script("distributed_gru").train(40, 4, 2, 3, 0.05)
    assert losses[-1] < losses[0]
    assert capsys.readouterr().out.count("CONVERGED") == 3


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("distributed_bvp", ["--points", "200"]),
        ("distributed_gru", ["--length", "30", "--hidden", "3", "--steps", "2"]),
    ],
)
def test_programs_run(script, capsys, name, arguments):
    script(name).main(arguments)
    out = capsys.readouterr().out
    assert "CONVERGED" in out
    assert "on 1 ranks" in out
