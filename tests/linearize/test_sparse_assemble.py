"""Colored assembly equals the dense Jacobian; full rows; what the pattern misses is counted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve.linearize._sparse_assemble import SparseAssembler
from implicitsolve.structure._grid import Grid
from implicitsolve.structure._sparse import Sparse


def coupled(pattern, seed):
    """``F = A sin(x) + x^2 / 10`` and its Jacobian."""
    A = np.random.default_rng(seed).uniform(0.5, 2.0, pattern.shape) * pattern
    return lambda x: np.sin(x) @ A.T, lambda x: A * np.cos(x)[:, None, :]


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40), density=st.floats(0, 0.5), systems=st.integers(1, 3))
def test_assembly_is_the_dense_jacobian(seed, n, density, systems):
    random = np.random.default_rng(seed)
    pattern = random.random((n, n)) < density
    F, J = coupled(pattern, seed)
    x = random.normal(size=(systems, n))
    assembler = SparseAssembler(Sparse(pattern))
    differenced = assembler.differences(F, x, F(x)).todense()
    assert np.allclose(differenced, J(x), atol=2e-3)
    assert assembler.surprises.size == 0
    exact = assembler.products(lambda v: np.einsum("bij,bj->bi", J(x), v), x).todense()
    assert np.allclose(exact, J(x), rtol=0, atol=1e-14)


def test_cost_is_the_number_of_colors():
    calls = []

    def F(x):
        calls.append(1)
        return x**2

    assembler = SparseAssembler(Grid(shape=(20, 20)).sparse)
    x = np.ones((1, 400))
    assembler.differences(F, x, F(x))
    assert len(calls) - 1 == assembler.cost == 5


def test_too_narrow_a_pattern_is_noticed():
    x = np.ones((1, 30))
    assembler = SparseAssembler(Grid(shape=(30,), stencil=0).sparse)
    assembler.differences(lambda x: x + 0.1 * np.roll(x, 1) * (np.arange(30) == 4), x, x)
    assert assembler.surprises.size == 0  # one color: nothing tells it apart
    assembler = SparseAssembler(Grid(shape=(30,)).sparse)
    F = x**2 + 0.1 * np.roll(x, 8)
    assembler.differences(lambda x: x**2 + 0.1 * np.roll(x, 8), x, F)
    assert assembler.surprises.size > 0
    color, row = assembler.surprises[0]
    assert assembler.coloring.colors[(row - 8) % 30] == color


def test_full_rows_from_adjoint_products_or_spread():
    n = 200
    pattern = np.eye(n, dtype=bool) | np.eye(n, k=1, dtype=bool)
    A = np.random.default_rng(0).normal(size=(n, n)) * pattern
    A[n - 1] = 1.0 / n
    x = np.ones((1, n))
    assembler = SparseAssembler(Sparse(pattern), np.array([n - 1]))
    assert assembler.cost == 3
    assert not assembler.is_exact
    spread = assembler.differences(lambda x: x @ A.T, x, x @ A.T).todense()[0]
    assert np.allclose(spread, A, atol=1e-10)
    A[n - 1] = np.arange(n)
    exact = assembler.products(lambda v: v @ A.T, x, lambda w: w @ A).todense()[0]
    assert np.allclose(exact, A, atol=1e-14)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_steps_turn_round_where_F_is_not_finite(sign):
    def F(x):
        return np.sqrt(sign * x + 1.0)

    x = np.full((1, 20), -sign)  # at the edge of the domain
    with np.errstate(invalid="ignore"):
        J = SparseAssembler(Grid(shape=(20,), stencil=0).sparse).differences(F, x, F(x))
    assert np.isfinite(J.data).all()


def test_complex_unknowns():
    x = (1.0 + 0.5j) * np.ones((1, 12))
    J = SparseAssembler(Grid(shape=(12,)).sparse).differences(lambda x: x * x, x, x * x)
    assert np.allclose(J.todense()[0], 2 * np.diag(x[0]), atol=1e-3)


def test_angles_of_zero_beside_magnitudes_of_one_were_lost_in_rounding():
    """A flat start of a power flow: large terms cancel in F, and differences of 5e-13 left four digits of J."""
    n, x = 40, np.r_[np.zeros(40), np.ones(40)][None]
    assembler = SparseAssembler(Sparse(np.tile(np.eye(n, dtype=bool), (2, 2))))

    def F(x):
        angles, sizes = x[:, :n], x[:, n:]
        return np.hstack([1e4 * (np.sin(angles) + sizes**2 - 0.9), sizes - 1])

    J = assembler.differences(F, x, F(x)).todense()[0]
    np.testing.assert_allclose(J[:n, :n], 1e4 * np.eye(n), rtol=1e-5)
