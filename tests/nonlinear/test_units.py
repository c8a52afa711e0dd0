"""Unknowns and equations in units of very different sizes: rows scaled by 10^+-6, columns by 10^+-9."""

from __future__ import annotations

import numpy as np
import pytest

import implicitsolve as ims


def scaled_system(seed, is_linear):
    """F, its Jacobian, the number of unknowns, and the sizes of the equations."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 51))
    A = rng.normal(size=(n, n)) + n**0.5 * np.eye(n)
    rows, columns = 10.0 ** rng.uniform(-6, 6, n), 10.0 ** rng.uniform(-9, 9, n)
    z = rng.normal(size=n)
    cubic = 0.0 if is_linear else 0.3

    def F(x):
        return rows * (A @ (x * columns - z) + cubic * ((x * columns) ** 3 - z**3))

    def J(x):
        return rows[:, None] * (A + np.diag(3 * cubic * (x * columns) ** 2)) * columns

    return F, J, n, rows


def is_solved(result, rows):
    """Every equation, in its own unit."""
    return bool(result.success) and np.max(np.abs(result.fun) / rows) < 1e-4


@pytest.mark.parametrize("seed", range(12))
def test_linear_systems_with_their_jacobian_take_one_or_two_steps(seed):
    F, J, n, rows = scaled_system(seed, is_linear=True)
    result = ims.root(ims.Problem(F, jac=J), np.zeros(n))
    assert is_solved(result, rows)
    assert result.iterations <= 2


def test_nonlinear_systems_with_their_jacobian():
    stop = ims.NonlinearStop(rtol=1e-12)  # of the largest equations: the smallest are 10^-12 of these
    for seed in range(12):
        F, J, n, rows = scaled_system(seed, is_linear=False)
        result = ims.root(ims.Problem(F, jac=J), np.zeros(n), stop=stop)
        assert is_solved(result, rows), seed


@pytest.mark.parametrize("is_linear", [True, False])
def test_nearly_all_are_solved_by_differences(is_linear):
    solved = 0
    for seed in range(20):
        F, _, n, rows = scaled_system(seed, is_linear)
        with np.errstate(all="ignore"):
            solved += is_solved(ims.root(F, np.zeros(n)), rows)
    assert solved >= 17


def test_a_sparse_matrix_from_jac_is_factored():
    """`root` used such a matrix for products only: 125 of them for Bratu's problem in the plane."""
    sp = pytest.importorskip("scipy.sparse")
    n = 30
    D = sp.diags_array([-np.ones(n - 1), 2 * np.ones(n), -np.ones(n - 1)], offsets=[-1, 0, 1])
    A = (sp.kron(D, sp.eye_array(n)) + sp.kron(sp.eye_array(n), D)).tocsr()
    h = 1 / (n + 1)
    problem = ims.Problem(
        lambda u: A @ u - 5 * h**2 * np.exp(u), jac=lambda u: A - sp.diags_array(5 * h**2 * np.exp(u))
    )
    result = ims.root(problem, np.zeros(n * n))
    assert result.success
    assert result.counts.jvps == 0
    assert result.counts.residuals <= 10
