"""Small systems: Powell's hybrid method with a dense J, alone and in batches."""

import numpy as np
import pytest
import scipy.optimize

from benchmarks.benchmarks.problems import burkardt_problems, classic_problems
from implicitsolve import NonlinearStop, Problem, Status, newton_krylov, root
from implicitsolve.nonlinear._dense_newton import DenseNewton

SMALL = [p for p in [*classic_problems(), *burkardt_problems()] if p.size <= 20]
# Watson's functions of nine and more variables and Burkardt's Chebyquad depend on rounding.
MORE = {"mgh06-watson-9", "burkardt-p06", "burkardt-p07"}
UNSTEADY = ("watson", "chebyquad", "almost-linear", "p08")  # parts of the names of systems of which that holds too
TIGHT = NonlinearStop(atol=1e-12)


@pytest.mark.parametrize("problem", [p for p in SMALL if p.name not in MORE], ids=str)
def test_takes_no_more_than_hybr_plus_three(problem):
    with np.errstate(all="ignore"):
        theirs = scipy.optimize.root(problem.residual, problem.x0, method="hybr")
        _, result = newton_krylov(problem.residual, problem.x0, f_tol=1e-8, full_output=True)
    assert result.success
    if np.max(np.abs(problem.residual(theirs.x))) <= 1e-8:
        assert result.nfev <= theirs.nfev + 3


def test_a_short_newton_step_leaves_the_trust_region_as_it_is(rng):
    """Newton's step is short after an update of J by a step that has enlarged F much."""
    (problem,) = (p for p in SMALL if p.name == "mgh08-brown-almost-linear-10")
    x0 = problem.x0 * (1 + 0.02 * rng.standard_normal(problem.size))
    _, result = newton_krylov(problem.residual, x0, f_tol=1e-8, full_output=True)
    assert result.nfev <= 38  # it took 50


RELATIVE = NonlinearStop(rtol=1.5e-8)


@pytest.mark.rounding
@pytest.mark.parametrize("offers_jac", [False, True])
def test_a_system_alone_takes_the_steps_that_it_takes_in_a_batch(offers_jac):
    for problem in SMALL:
        if problem.name in MORE or any(name in problem.name for name in UNSTEADY):
            continue  # their steps depend on rounding: J is nearly singular

        def rows(x, F=problem.residual):
            return np.stack([F(row) for row in x])

        def jac(x, F=problem.residual):
            return np.stack([(F(x + h) - F(x - h)) / 2e-4 for h in 1e-4 * np.eye(x.size)], axis=1)

        def jacs(x, jac=jac):
            return np.stack([jac(row) for row in x])

        x0 = problem.x0
        with np.errstate(all="ignore"):
            single = Problem(problem.residual, jac=jac if offers_jac else None)
            alone = root(single, x0, method=DenseNewton(), stop=RELATIVE)
            batch = Problem(rows, jac=jacs if offers_jac else None, batch_ndim=1)
            both = root(batch, np.stack([x0, x0]), method=DenseNewton(), stop=RELATIVE)
        assert (both.status == alone.status).all(), problem.name
        assert alone.counts.residuals <= both.counts.residuals, problem.name
        found, expected = ([(step.worst, step.factorized.any()) for step in r.steps] for r in (alone, both))
        np.testing.assert_allclose(found, expected, rtol=0.1, atol=1e-9, err_msg=problem.name)


def kepler(M, e, **functions):
    return Problem(lambda E: E - e * np.sin(E) - M, batch_ndim=1, **functions)


def test_keplers_equation():
    """Broyden's update of one equation is the secant method: one derivative, then one evaluation a step."""
    M, e = np.meshgrid(np.linspace(0.1, 6.2, 60), np.linspace(0.0, 0.9, 10))
    M, e = M.reshape(-1, 1), e.reshape(-1, 1)
    result = root(kepler(M, e), M, stop=TIGHT)
    assert result.success.all()
    assert np.abs(result.x - e * np.sin(result.x) - M).max() <= 1e-12
    assert result.counts.residuals <= 13
    exact = root(kepler(M, e, jvp=lambda E, v: v - e * np.cos(E) * v), M, stop=TIGHT)
    assert exact.success.all()
    assert (exact.counts.jvps, exact.counts.residuals <= 12) == (1, True)


@pytest.mark.parametrize("N", [1, 3])
def test_a_batch_is_its_systems(rng, N):
    shift = rng.standard_normal((20, N))

    def F(x, shift):
        return x + 0.4 * np.sin(2 * x[..., ::-1]) + x**3 - shift

    batch = root(Problem(lambda x: F(x, shift), batch_ndim=1), np.zeros((20, N)), stop=TIGHT)
    assert batch.success.all()
    for row, x in zip(shift, batch.x, strict=True):
        alone = root(lambda x, row=row: F(x, row), np.zeros(N), stop=TIGHT)
        np.testing.assert_allclose(x, alone.x, rtol=1e-9, atol=1e-11)


def test_systems_without_a_root_fail_alone():
    """One equation has no root, one a singular J at the start, one is NaN beyond its start; the others converge."""

    def F(x):
        square = x**2 + np.array([[-2.0], [1.0], [-3.0], [0.0]])
        square[3] = np.where(x[3] == 1.0, 1.0, np.nan)
        return square

    with np.errstate(all="ignore"):
        result = root(Problem(F, batch_ndim=1), np.array([[1.0], [1.0], [2.0], [1.0]]))
    assert result.success.tolist() == [True, False, True, False]
    np.testing.assert_allclose(result.x[[0, 2], 0], np.sqrt([2.0, 3.0]), rtol=1e-7)


def test_a_singular_neighbour_changes_no_bit_of_a_solution(rng):
    """Where J of one system is singular, the others are not solved by least squares too."""
    A, b = rng.standard_normal((3, 4, 4)) + 4 * np.eye(4), rng.standard_normal((3, 4))
    A[1, 1] = A[1, 0]

    def solved(rows):
        F = lambda x: (A[rows] @ x[..., None])[..., 0] + 0.1 * x**3 - b[rows]  # noqa: E731
        jvp = lambda x, v: (A[rows] @ v[..., None])[..., 0] + 0.3 * x**2 * v  # noqa: E731
        return root(Problem(F, jvp=jvp, batch_ndim=1), np.zeros((len(rows), 4)), stop=TIGHT)

    whole, others = solved([0, 1, 2]), solved([0, 2])
    assert others.success.all()
    np.testing.assert_array_equal(whole.x[[0, 2]], others.x)


def test_a_root_known_to_rounding_error_is_not_sought_again():
    """With an unreachable tolerance three more methods took 80 evaluations after the first had found the root."""
    result = root(
        lambda x: np.array([x[0] ** 2 + x[1] - 3, x[0] - x[1] ** 3, np.exp(x[2]) - 2 - x[0]]),
        np.ones(3),
        stop=NonlinearStop(atol=1e-30),
    )
    assert result.success or (result.status == Status.STAGNATED and result.residual_norm < 1e-14)
    assert result.counts.residuals < 60


def cubics(rng, systems):
    """Cubics with random coefficients: |F| often has a local minimum between x0 = 3 and the only root."""
    a, b, c, d = rng.standard_normal((4, systems, 1))
    return Problem(lambda x: ((a * x + b) * x + c) * x + d, batch_ndim=1), np.full((systems, 1), 3.0)


def test_cubics_are_solved_from_beyond_a_local_minimum_of_the_residual(rng):
    """0.86 of them were, where SciPy's vectorised `newton`, without a line search, solves 0.93."""
    problem, x0 = cubics(rng, 1000)
    result = root(problem, x0, stop=TIGHT)
    assert result.success.mean() > 0.95
    np.testing.assert_array_less(np.abs(problem.residual(result.x))[result.success], 1.1e-12)


def test_a_single_equation_is_tried_again_from_farther_on():
    points = []

    def F(x):
        points.append(float(x[0]))
        return x**3 - 3 * x + 10

    result = root(Problem(F, bounds=(-4.0, np.inf)), np.array([3.0]), stop=TIGHT)
    assert result.success
    assert min(points) >= -4.0
    assert [retry.method for retry in result.retries] == ["DenseNewton from farther on"]
