"""Inverses of assembled Jacobians: iterations where they are cheap, factors where they are not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from benchmarks.sparse_problems import awkward, planes
from implicitsolve import Grid
from implicitsolve.direct import SparseLU
from implicitsolve.nonlinear._sparse_inverse import REDUCTION, SparseInverses, alternatives, bicgstab
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.precondition import AMG, ILU


def laplacian(shape, shift=0.0):
    pattern = Grid(shape=shape).sparse
    diagonal = 2.0 * len(shape) + shift
    return SparseMatrix(np.where(pattern.indices == pattern.columns, diagonal, -1.0)[None, :], pattern)


CUBE, INDEFINITE = laplacian((14, 14, 14)), laplacian((40, 40), -2.0)


@pytest.mark.parametrize(("J", "iterates"), [(CUBE, True), (INDEFINITE, False)], ids=["cube", "indefinite"])
def test_cube_takes_no_factors(J, iterates, rng):
    b = rng.standard_normal((1, J.shape[0]))
    inverses = SparseInverses()
    x = inverses.factor(J).matvec(b)
    assert np.linalg.norm(b - J.matvec(x)) <= (1.01 * REDUCTION if iterates else 1e-8) * np.linalg.norm(b)
    assert (inverses.share == SparseInverses().share) == iterates


@given(st.integers(0, 2**32 - 1), st.booleans(), st.floats(0.5, 20.0))
def test_residual_of_bicgstab(seed, is_complex, shift):
    random = np.random.default_rng(seed)
    n = 40
    A = random.standard_normal((n, n)) / np.sqrt(n) + shift * np.eye(n)
    b = random.standard_normal(n) + (1j * random.standard_normal(n) if is_complex else 0.0)
    x, iterations = bicgstab(A, b, 60, REDUCTION)
    assert iterations <= 60
    if x is not None:
        assert np.linalg.norm(b - A @ x) <= 1.01 * REDUCTION * np.linalg.norm(b)
    else:
        assert shift < 5.0


def test_zero_on_the_diagonal_and_singular_matrix_go_to_the_factors():
    J = laplacian((14, 14, 14), shift=-6.0)
    x = SparseInverses().factor(J).matvec(np.ones((1, J.shape[0])))
    assert x.shape == (1, J.shape[0])
    assert bicgstab(np.zeros((3, 3)), np.ones(3), 50, REDUCTION)[0] is None


def test_incomplete_factors_whose_iterations_stall_give_way_to_complete_ones(monkeypatch):
    """GMRES with ILU ended after 80 iterations far from its target: its directions made the Brusselator stagnate."""
    monkeypatch.setattr("implicitsolve.direct._sparse_lu.DIRECT_LIMIT", 0.0)
    monkeypatch.setattr(SparseInverses, "cheaper", lambda self: 1)
    problem = planes.brusselator(24)
    stop = ims.NonlinearStop(atol=problem.tolerance(), rtol=0.0)
    result = ims.root(ims.Problem(problem.residual), problem.x0, method=ims.SparseNewton(), stop=stop)
    assert result.success
    assert result.counts.residuals <= 40


@pytest.mark.parametrize("is_installed", [True, False])
def test_cubes_with_jumps_take_multigrid_and_keep_it(is_installed, monkeypatch):
    """64,000 unknowns took 21 seconds and a gigabyte for factors, in place of 1.4."""
    pytest.importorskip("pyamg")
    monkeypatch.setattr(SparseInverses, "limit", lambda self: 0)  # iterations of BiCGSTAB
    monkeypatch.setattr("implicitsolve.nonlinear._sparse_inverse.AMG_LIMIT", 0.0)
    monkeypatch.setattr("implicitsolve.direct._sparse_lu.DIRECT_LIMIT", 0.0)
    if not is_installed:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    built = []
    for kind in (AMG, ILU):
        build = kind.build
        monkeypatch.setattr(kind, "build", lambda self, J, build=build: built.append(self) or build(self, J))
    problem = awkward.jumps_cube(12)
    stop = ims.NonlinearStop(atol=problem.tolerance(), rtol=0.0)
    result = ims.root(problem.residual, problem.x0, stop=stop)
    assert result.success
    assert 0 < len(built) <= 2
    assert isinstance(built[0], AMG) == is_installed


def test_linear_systems_are_solved_exactly_enough():
    """Rough directions took 506 evaluations for a membrane in contact, and 300 for a lattice of springs, both 64^2."""
    for problem, most in ((awkward.contact(64), 130), (awkward.spring_lattice(64), 75)):
        stop = ims.NonlinearStop(atol=problem.tolerance(), rtol=0.0)
        result = ims.root(problem.residual, problem.x0, stop=stop)
        assert result.success
        assert result.counts.residuals <= most


@pytest.mark.parametrize("sign", [-1, 1])
def test_multigrid_was_set_up_for_signs_against_which_it_fails(sign, monkeypatch):
    """As those of power flows, where it took half of the time of a solve and printed of zero denominators."""
    pytest.importorskip("pyamg")
    monkeypatch.setattr("implicitsolve.nonlinear._sparse_inverse.AMG_LIMIT", 0.0)
    monkeypatch.setattr("implicitsolve.direct._sparse_lu.DIRECT_LIMIT", 0.0)
    A = laplacian((40, 40))
    J = SparseMatrix(np.where(A.data < 0, -sign * A.data, A.data), A.structure)
    found = alternatives(SparseLU().plan(J), J)
    assert any(isinstance(part, AMG) for part in found) == (sign < 0)


def test_a_solve_prints_nothing(capfd):
    """Classical multigrid on fields that are coupled by second differences: pyamg printed thousands of lines."""
    pytest.importorskip("pyamg")

    def laplacian(u):
        return sum(np.roll(u, shift, axis) for shift in (1, -1) for axis in (0, 1)) - 4 * u

    before = 0.1 * np.random.default_rng(0).normal(size=(128, 128))

    def cahn_hilliard(w):
        u, potential = w
        first = u - before - 0.5 * laplacian(potential)
        return np.stack([first, potential - (u**3 - u) + 1.5 * laplacian(u)])

    assert ims.root(cahn_hilliard, np.zeros((2, 128, 128))).success
    assert capfd.readouterr() == ("", "")
