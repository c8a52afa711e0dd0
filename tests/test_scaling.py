"""Nothing depends on units: F and x scaled over the whole gallery, with the tolerance scaled along."""

import functools

import numpy as np
import pytest

from benchmarks.benchmarks.problems import everything
from implicitsolve import BlockBanded, NonlinearStop, Problem, Sparse, jacobian, newton_krylov, root

pytestmark = pytest.mark.rounding

ALL = everything("small")
WITH_JVP = [p for p in ALL if p.jvp is not None]
every_problem = pytest.mark.parametrize("problem", ALL, ids=str)

# Their Jacobians are so ill conditioned, and the differences so noisy, that rounding decides which way they go.
CHAOTIC = {"mgh06-watson-9", "mgh08-brown-almost-linear-10", "burkardt-p06", "burkardt-p08"}


def solve(problem, F_scale=1.0, x_scale=1.0, structure=None):
    """Evaluations of newton_krylov for F_scale F(x_scale y), counted here; 0 if it fails."""
    calls = [0]

    def F(y):
        calls[0] += 1
        return F_scale * problem.residual(y * x_scale)

    options = {"f_tol": F_scale * problem.tolerance(), "structure": structure}
    x, result = newton_krylov(F, problem.x0 / x_scale, full_output=True, **options)
    assert result.nfev == calls[0]
    assert result.success == bool(np.max(np.abs(F(x))) <= F_scale * problem.tolerance())
    return result.nfev if result.success else 0


@functools.cache
def base(problem, structure=None):
    return solve(problem, structure=structure)


@every_problem
def test_powers_of_two_change_nothing(problem):
    assert solve(problem, F_scale=2.0**-300) == base(problem)
    if np.any(problem.x0):
        assert solve(problem, x_scale=2.0**-30) == base(problem)


@pytest.mark.parametrize(("F_scale", "x_scale"), [(1e6, 1.0), (1e-3, 1e9), (1e-150, 1.0)])
@every_problem
def test_units_change_evaluations_by_at_most_a_tenth(problem, F_scale, x_scale):
    """y in units in which x is 1e-9 of what it was (1e9 scales y to x), and the other way round."""
    # where x0 is zero nothing tells the units of x, in which the search for sparsity displaces the unknowns
    structure = None if x_scale == 1.0 or np.any(problem.x0) else "none"
    used, expected = solve(problem, F_scale, x_scale, structure), base(problem, structure)
    assert used > 0
    is_lost = problem.name == "burkardt-p07" and F_scale < 1e-100  # products of J and the last F are subnormal
    limit = 2.0 if problem.name in CHAOTIC or is_lost else 0.1
    # at x0 = 0 differences for a dense J find their lengths
    searched = 3 * problem.size if structure == "none" else 0
    assert abs(used - expected) <= max(6, limit * expected) + searched  # another processor's BLAS rounds otherwise


@pytest.mark.parametrize("name", sorted(CHAOTIC))
def test_rounding_alone_moves_the_chaotic_ones(name):
    """No units are needed: a change of F in its last bits does it."""
    problem, counts = next(p for p in ALL if p.name == name), []
    for seed in range(20):
        noise = np.random.default_rng(seed)

        def F(x, noise=noise):
            return problem.residual(x) * (1 + 2e-16 * noise.standard_normal(x.shape))

        counts.append(newton_krylov(F, problem.x0, f_tol=problem.tolerance(), full_output=True)[1].nfev)
    assert max(counts) > min(counts)


@pytest.mark.parametrize("problem", WITH_JVP, ids=str)
def test_exact_products_hardly_notice_units(problem):
    """Relative tolerance, exact products: one product more or less."""

    def run(f, s):
        def residual(y):
            return f * problem.residual(y * s)

        def jvp(y, v):
            return f * problem.jvp(y * s, v * s)

        return root(Problem(residual, jvp=jvp, structure="none"), problem.x0 / s, stop=NonlinearStop(rtol=1e-8))

    plain, scaled = run(1.0, 1.0), run(1e6, 1e9)
    assert plain.success
    assert scaled.success
    assert scaled.iterations == plain.iterations
    assert abs(scaled.counts.jvps - plain.counts.jvps) <= max(1, 0.05 * plain.counts.jvps)
    np.testing.assert_allclose(scaled.x * 1e9, plain.x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("structure", [None, BlockBanded(1, 1), Sparse(np.eye(4)), "detect"], ids=str)
def test_scales_were_sought_in_empty_batches(structure):
    problem = Problem(np.cos, structure=structure, batch_ndim=1, x_scale="auto", f_scale="auto")
    assert root(problem, np.zeros((0, 4))).x.shape == (0, 4)
    assert jacobian(problem, np.zeros((0, 4))).batch_shape == (0,)


def test_points_in_the_units_of_the_caller_overflowed_with_a_warning():
    def constant(x):
        return np.full_like(x, 1e6)

    for options in ({"x_scale": 1e4}, {"x_scale": "auto"}, {"f_scale": "auto"}):
        result = root(constant, np.ones(8, np.float32), method="newton-krylov", **options)
        assert not result.success
