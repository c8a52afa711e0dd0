"""What drivers say of the error of x: what `root` says of each system."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import drivers

RNG = np.random.default_rng(5)
C, X0 = RNG.uniform(1, 5, (7, 2)), RNG.uniform(0.5, 30, (7, 2))


def cubes(c):
    return ims.Problem(lambda x: x**3 + x + 0.3 * x[..., ::-1] - c, batch_ndim=1, take=lambda rows: cubes(c[rows]))


def _on_threads(problem, x0):
    with ThreadPoolExecutor(2) as executor:
        return drivers.solve_batch(problem, x0, chunks=3, executor=executor)


SOLVES = {
    "batch": lambda path: _on_threads(cubes(C), X0),
    "stream": lambda path: drivers.solve_stream(cubes(C), X0, batch_size=3),
    "race": lambda path: drivers.race(cubes(C), [X0, 2 * X0]),
    "legs": lambda path: drivers.checkpointed(cubes(C), X0, path / "file.npz", every=2),
}


@pytest.mark.parametrize("name", SOLVES)
def test_each_system_has_an_estimated_error(name, tmp_path):
    exact = ims.root(cubes(C), X0, stop=ims.NonlinearStop(xtol=1e-14)).x
    result = SOLVES[name](tmp_path)
    assert result.success.all()
    assert result.error.shape == (7,)
    true = (np.abs(result.x - exact) / np.abs(exact)).max(axis=1)
    assert (true <= 10 * result.error + 1e-15).all()
    assert (result.error <= 2e-8).all()


def test_a_file_keeps_errors_and_targets(tmp_path):
    solved = SOLVES["legs"](tmp_path)
    read = SOLVES["legs"](tmp_path)
    np.testing.assert_array_equal(read.error, solved.error)
    np.testing.assert_array_equal(read.target, solved.target)
    assert (solved.residual_norm <= solved.target).all()


def test_systems_that_fail_have_no_error(tmp_path):
    away = ims.Problem(lambda x: np.exp(-x))
    for result in (drivers.race(away, [np.ones(1)]), drivers.checkpointed(away, np.ones(1), tmp_path / "file.npz")):
        assert result.error is None
        assert not result.success
