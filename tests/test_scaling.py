"""Nothing depends on units: F and x scaled over the whole gallery, with the tolerance scaled along."""

from __future__ import annotations

import numpy as np
import pytest

from implicitsolve import NonlinearStop, Problem, newton_krylov, root
from implicitsolve.testing._gallery import everything

ALL = everything("small")
WITH_JVP = [p for p in ALL if p.jvp is not None]
every_problem = pytest.mark.parametrize("problem", ALL, ids=str)

# Rounding decides here whether another step is needed: their Jacobians are ill conditioned and the products differences,
# so that evaluations differ as much when one entry of x0 is changed in its last bit.
CHAOTIC = {"mgh06-watson-9", "burkardt-p01", "burkardt-p06", "burgers"}


def solve(problem, F_scale=1.0, x_scale=1.0):
    """Evaluations of newton_krylov for F_scale F(x_scale y), counted here; 0 if it fails."""
    calls = [0]

    def F(y):
        calls[0] += 1
        return F_scale * problem.residual(y * x_scale)

    x, result = newton_krylov(F, problem.x0 / x_scale, f_tol=F_scale * problem.tolerance(), full_output=True)
    assert result.nfev == calls[0]
    assert result.success == bool(np.max(np.abs(F(x))) <= F_scale * problem.tolerance())
    return result.nfev if result.success else 0


BASE: dict[str, int] = {}


def base(problem):
    if problem.name not in BASE:
        BASE[problem.name] = solve(problem)
    return BASE[problem.name]


@pytest.mark.parametrize("power", [1, -300])
@every_problem
def test_powers_of_two_on_F_change_nothing(problem, power):
    assert solve(problem, F_scale=2.0**power) == base(problem)


@pytest.mark.parametrize("power", [-30, 1])
@pytest.mark.parametrize("problem", [p for p in ALL if np.any(p.x0)], ids=str)
def test_powers_of_two_on_x_change_nothing(problem, power):
    assert solve(problem, x_scale=2.0**power) == base(problem)


@pytest.mark.parametrize(
    ("F_scale", "x_scale"), [(1e-6, 1.0), (1e6, 1.0), (1.0, 1e9), (1e-3, 1e9), (1e-150, 1.0)]
)
@every_problem
def test_units_change_evaluations_by_at_most_a_tenth(problem, F_scale, x_scale):
    """y in units in which x is 1e-9 of what it was (1e9 scales y to x), and the other way round."""
    used = solve(problem, F_scale, x_scale)
    assert used > 0
    limit = 3.0 if problem.name in CHAOTIC else 0.1
    assert abs(used - base(problem)) <= max(1, limit * base(problem))


def test_the_chaotic_ones_are():
    """A last bit of x0 changes their counts as much as units do: no units are needed for it."""
    for problem in ALL:
        if problem.name in CHAOTIC:
            rng, counts = np.random.default_rng(0), []
            for _ in range(12):
                x0 = problem.x0 * (1 + 4e-16 * rng.standard_normal(problem.x0.shape))
                x0 = x0 + 1e-16 * rng.standard_normal(x0.shape)
                counts.append(newton_krylov(problem.residual, x0, f_tol=problem.tolerance(), full_output=True)[1].nfev)
            assert max(counts) > 1.1 * min(counts), problem.name


@pytest.mark.parametrize(("F_scale", "x_scale"), [(1e-6, 1.0), (1e6, 1e9)])
@pytest.mark.parametrize("problem", WITH_JVP, ids=str)
def test_exact_products_hardly_notice_units(problem, F_scale, x_scale):
    """Relative tolerance, exact products: one product more or less."""

    def run(f, s):
        problem_ = Problem(
            lambda y: f * problem.residual(y * s), jvp=lambda y, v: f * problem.jvp(y * s, v * s)
        )
        return root(problem_, problem.x0 / s, stop=NonlinearStop(rtol=1e-8))

    plain, scaled = run(1.0, 1.0), run(F_scale, x_scale)
    assert plain.success
    assert scaled.success
    assert scaled.iterations == plain.iterations
    assert abs(scaled.counts.jvps - plain.counts.jvps) <= max(1, 0.05 * plain.counts.jvps)
    np.testing.assert_allclose(scaled.x * x_scale, plain.x, rtol=1e-5, atol=1e-6)
