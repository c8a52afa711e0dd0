"""The problem sets solved with default options: Moré-Garbow-Hillstrom, Burkardt, and the PDE gallery against SciPy."""

import functools
import math

import numpy as np
import pytest
import scipy.optimize

from benchmarks.benchmarks.problems import burkardt_problems, classic_problems, pde_gallery
from implicitsolve import newton_krylov, root

CLASSIC, BURKARDT, PDE = classic_problems(), burkardt_problems(), pde_gallery("small")
SMALL = [*CLASSIC, *BURKARDT]


class Counted:
    """A residual that counts its calls."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, x):
        self.calls += 1
        return self.function(x)


@functools.cache
def solve(problem, solver=newton_krylov, **options):
    """Calls until max|F| <= the problem's tolerance, measured at the returned x; infinite if it is not."""
    F = Counted(problem.residual)
    with np.errstate(all="ignore"):
        try:
            x = solver(F, problem.x0, f_tol=problem.tolerance(), **options)
        except scipy.optimize.NoConvergence:
            return math.inf
        assert np.max(np.abs(problem.residual(x))) <= problem.tolerance()
    return F.calls


@pytest.mark.parametrize("problem", SMALL, ids=str)
def test_small_problems_are_solved_to_1e_8(problem):
    assert problem.tolerance() == 1e-8
    assert solve(problem) < 1000


def test_an_unknown_that_the_first_step_left_at_zero_had_no_size():
    """Burkardt's p15 took 665 evaluations, and ended STAGNATED with exact products."""
    assert root(BURKARDT[14].residual, BURKARDT[14].x0).raise_for_status().nfev < 150


@pytest.mark.parametrize("problem", SMALL, ids=str)
def test_small_problems_by_root(problem):
    """The native entry with its default rule."""
    with np.errstate(all="ignore"):
        result = root(problem.residual, problem.x0)
        assert result.success
        np.testing.assert_array_equal(result.fun, problem.residual(result.x))
        assert result.error <= 1e-7
        assert np.max(np.abs(result.fun)) <= 1e-6 * np.max(np.abs(problem.residual(problem.x0)))


@pytest.mark.parametrize("problem", PDE, ids=str)
def test_pde_gallery_takes_no_more_than_scipy(problem):
    ours, theirs = solve(problem), solve(problem, scipy.optimize.newton_krylov)
    assert ours <= theirs
    assert ours < math.inf


def test_pde_gallery_takes_half_of_scipy():
    """In the geometric mean over the problems that SciPy solves."""
    ratios = [solve(p) / solve(p, scipy.optimize.newton_krylov) for p in PDE]
    finite = [r for r in ratios if r > 0]
    assert len(finite) >= 12
    assert math.exp(sum(map(math.log, finite)) / len(finite)) <= 0.5


@pytest.mark.parametrize("problem", [p for p in PDE if p.root is not None], ids=str)
def test_known_roots_are_found(problem):
    x = newton_krylov(problem.residual, problem.x0, f_tol=problem.tolerance())
    assert np.max(np.abs(x - problem.root)) <= 1e-4 * np.max(np.abs(problem.root))


@pytest.mark.parametrize("problem", PDE, ids=str)
def test_pde_gallery_with_exact_products(problem):
    """No more calls than differences take, of which few see that J is dense, but one assembly of J at x0.

    Differences have J at x0 from the search for its pattern; exact products do not take these inexact entries.
    """
    F = Counted(problem.residual)
    x, result = newton_krylov(F, problem.x0, jvp=problem.jvp, f_tol=problem.tolerance(), full_output=True)
    assert result.success
    assert np.max(np.abs(problem.residual(x))) <= problem.tolerance()
    assert result.nfev == F.calls
    found = result.native.detection
    colors = 0 if found is None or found.structure is None else int(found.colors.max()) + 1
    assert result.nfev + result.njvp <= 1.2 * min(solve(problem, structure="none") + 2, solve(problem)) + colors


@pytest.mark.parametrize("problem", PDE, ids=str)
def test_pde_gallery_in_single_precision(problem):
    x0 = problem.x0.astype(np.float32)
    with np.errstate(all="ignore"):
        result = root(problem.residual, x0)
    assert result.success
    assert result.x.dtype == np.float32


METHODS = ["gmres", "fgmres", "bicgstab"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "problem", [p for p in PDE if p.name in {"bratu-2d", "h-equation-0.9", "troesch", "brusselator"}], ids=str
)
def test_other_methods_on_pdes(method, problem):
    F = Counted(problem.residual)
    x = newton_krylov(F, problem.x0, method=method, inner_maxiter=60, f_tol=problem.tolerance())
    assert np.max(np.abs(problem.residual(x))) <= problem.tolerance()


@pytest.mark.parametrize("line_search", ["wolfe", None])
@pytest.mark.parametrize("problem", PDE, ids=str)
def test_other_line_searches_on_pdes(line_search, problem):
    x, result = newton_krylov(
        problem.residual, problem.x0, line_search=line_search, f_tol=problem.tolerance(), full_output=True
    )
    assert result.success
    assert np.max(np.abs(problem.residual(x))) <= problem.tolerance()


def test_wolfe_on_the_small_ones():
    """Fewer than by default: the second acceptance test and the second attempt belong to backtracking."""
    solved = 0
    for problem in BURKARDT:
        with np.errstate(all="ignore"):
            x, result = newton_krylov(problem.residual, problem.x0, line_search="wolfe", f_tol=1e-8, full_output=True)
            assert result.success == bool(np.max(np.abs(problem.residual(x))) <= 1e-8)
        solved += result.success
    assert solved >= 22


def test_a_batch_of_bratu_problems():
    """Six right-hand sides at once, each as alone."""
    problem = next(p for p in PDE if p.name == "bratu-1d")
    forces = 1e-5 * np.arange(6)[:, None]

    def F(u):
        return np.stack([problem.residual(row) for row in u]) - forces

    x, result = newton_krylov(F, np.zeros((6, problem.size)), batch_ndim=1, f_tol=1e-9, full_output=True)
    assert result.success.all()
    for row, force in zip(x, forces, strict=True):
        alone = newton_krylov(lambda u, force=force: problem.residual(u) - force, problem.x0, f_tol=1e-9)
        np.testing.assert_allclose(row, alone, atol=1e-6)
