"""The examples without MPI: the boundary value problem's error, and the layer against the whole sequence's."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import distributed
from implicitsolve.distributed import Serial, threads

SIZES = [1, 3]


@pytest.fixture
def script(monkeypatch):
    """Import a script; its program runs without MPI."""

    def without_mpi():
        raise ImportError("no MPI here")

    monkeypatch.setattr(distributed, "MPI", without_mpi)
    return importlib.import_module


@pytest.mark.parametrize("size", SIZES)
def test_boundary_value_problem_is_of_order_four(script, size):
    bvp = script("distributed_bvp")

    def program(comm):
        return [bvp.error(bvp.solve(comm, points, "auto").raise_for_status().x) for points in (21, 41)]

    for coarse, fine in threads(size, program):
        assert fine < 1e-6
        assert coarse / fine == pytest.approx(16, rel=0.2)


@pytest.mark.parametrize("size", SIZES)
def test_the_layer_on_ranks_is_that_of_the_whole_sequence(script, rng, size):
    gru = script("distributed_gru")
    weights = ims.adapters.gru_parameters(3, 5, rng=rng, scale=0.5)
    inputs, cotangent = rng.normal(size=(14, 3)), rng.normal(size=(14, 5))
    whole = ims.adapters.implicit_gru(weights, inputs)
    stop, linear = ims.NonlinearStop(rtol=1e-13), ims.LinearStop(rtol=1e-13)
    alone = ims.root(whole, np.zeros((14, 5)), stop=stop)
    expected = ims.pull_back(whole, alone, cotangent, stop=linear).gradients

    def program(comm):
        problem = gru.implicit_gru(comm, weights, inputs)
        result = ims.root(problem, distributed.split(comm, np.zeros((14, 5)), axis=0), stop=stop)
        adjoint = ims.pull_back(problem, result, distributed.split(comm, cotangent, axis=0), stop=linear)
        assert result.success
        assert adjoint.success
        return result.x.gathered(), adjoint.gradients

    for x, gradients in threads(size, program):
        np.testing.assert_allclose(x, alone.x, atol=1e-12)
        for name in weights:
            np.testing.assert_allclose(gradients[name], expected[name], atol=1e-10)


def test_training_takes_the_same_steps_on_any_number_of_ranks(script, capsys):
    gru = script("distributed_gru")
    losses = [threads(size, lambda comm: gru.train(comm, 40, 4, 2, 3, 0.05))[-1] for size in SIZES]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
    assert losses[0][-1] < losses[0][0]
    assert capsys.readouterr().out.count("CONVERGED") == 3 * len(SIZES)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("distributed_bvp", ["--points", "200"]),
        ("distributed_gru", ["--length", "30", "--hidden", "3", "--steps", "2"]),
    ],
)
def test_programs_run_without_mpi(script, capsys, name, arguments):
    program = script(name)
    with program.communicator() as comm:
        assert isinstance(comm, Serial)
    program.main(arguments)
    out = capsys.readouterr().out
    assert "CONVERGED" in out
    assert "on 1 ranks" in out
