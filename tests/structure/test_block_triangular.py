"""Block triangular forms: each block needs those of lower levels alone; structural singularity is named."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve.diagnostics import explain
from implicitsolve.structure._block_triangular import BlockTriangular, singularity


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 25), density=st.floats(0, 0.2))
def test_forms_of_random_patterns(seed, n, density):
    random = np.random.default_rng(seed)
    A = random.random((n, n)) < density
    form = BlockTriangular.of(ims.Sparse(A))
    rank = np.linalg.matrix_rank(A * random.uniform(1, 2, (n, n)))
    assert bool(form.levels) == (rank == n)
    assert bool(singularity(ims.Sparse(A))) == (rank < n)
    if rank < n:
        equations, unknowns = form.equations, form.unknowns
        assert A[equations].any(axis=0).sum() < equations.size
        assert A[:, unknowns].any(axis=1).sum() < unknowns.size
        return
    known = np.zeros(n, dtype=bool)
    for blocks in form.levels:
        for block in blocks:
            others = np.setdiff1d(np.flatnonzero(A[block.equations].any(axis=0)), block.unknowns)
            assert known[others].all()
        known[np.concatenate([block.unknowns for block in blocks])] = True
    assert known.all()


def test_a_structurally_singular_system_is_named_before_it_is_evaluated():
    A = np.eye(30, dtype=bool)
    A[4] = A[5] = A[6]  # three equations with x[6] alone
    with pytest.warns(RuntimeWarning, match=r"F\[4\], F\[5\], F\[6\] are more than .*x\[4\], x\[5\] more than"):
        result = ims.root(ims.Problem(lambda x: A @ x - 1.0 * np.arange(30), structure=ims.Sparse(A)), np.zeros(30))
    assert not result.success
    assert "F[4], F[5], F[6]" in str(explain(result))


CURRENTS = np.linspace(0, 8, 61)


@pytest.mark.parametrize("start", [0.0, 0.3, 1.0])
def test_independent_equations_have_their_own_step_lengths(start):
    """As one system with one step length 61 diodes took 50 to 106 evaluations."""

    def diodes(v):
        with np.errstate(over="ignore"):
            return 1e-9 * np.expm1(v / 0.0257) + v / 50 - CURRENTS

    seen = []
    result = ims.root(diodes, np.full(61, start), monitor=lambda step, x, F: seen.append(F))
    assert result.success
    assert result.counts.residuals <= 75
    np.testing.assert_array_equal(result.fun, diodes(result.x))
    np.testing.assert_array_equal(seen[-1], result.fun)


def test_parts_that_a_branch_couples_are_solved_as_a_whole():
    """Each equation depends on the next unknown as well where its own is above 1.5."""

    def F(x):
        return x**3 - 8 + np.where(x > 1.5, (x - 1.5) * np.roll(x, 1) * np.linspace(0.1, 1, x.size), 0.0)

    result = ims.root(F, np.full(40, 1.0))
    assert result.success
    assert np.abs(F(result.x)).max() < 1e-6
