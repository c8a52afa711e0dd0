"""The gallery's definitions: known values, known roots, derivatives, portability. No solver of the package is used."""

import math

import array_api_strict
import numpy as np
import pytest
from scipy.optimize import brentq

from benchmarks.benchmarks.problems import (
    GalleryProblem,
    burkardt_problems,
    everything,
    get,
    pde_gallery,
)
from benchmarks.benchmarks.problems.differential import (
    bratu,
    brusselator,
    burgers,
    convection_diffusion,
    h_equation,
    pendulum,
    real_business_cycle,
    troesch,
)

ALL = everything("small")
every_problem = pytest.mark.parametrize("problem", ALL, ids=str)
every_pde = pytest.mark.parametrize("problem", pde_gallery("small"), ids=str)

# ||F(x0)||_2 as printed by the programs that define the sets
BURKARDT_START_NORMS = [
    4.91935, 14.6629, 1.06549, 8550.557408730732, 50.0, 94.9722, 0.169950, 16.5302, 0.0280806, 0.251827, 0.0841175,
    2.24021e6, 4.58258, 18.9737, 1.73194, 1.99985, 17.2627, 2.19511, 76.3675, 16.0, 20.0124960961895, 2.0, 1.02037,
]  # fmt: skip
# Roots as printed there, six digits
BURKARDT_PRINTED_ROOTS = {
    9: [-0.0431650, -0.0815772, -0.114486, -0.140974, -0.159909, -0.169877, -0.16909, -0.15525, -0.125356, -0.0754165],
    11: [0.0479119, 0.0491845, 0.0506087, 0.0522230, 0.0540831, 0.0562733, 0.0589321, 0.186397, 0.154342, 0.124625],
    13: [-0.570722, -0.681807, -0.702210, -0.705511, -0.704906, -0.701497, -0.691889, -0.665797, -0.596035, -0.416412],
    14: [-0.428303, -0.476596, -0.519652, -0.558099, -0.592506, -0.624504, -0.623239, -0.621394, -0.620454, -0.586469],
    23: [1.09674, 1.23348, 1.34236, 1.43565, 1.51787, 1.59149, 1.65811, 1.71884, 1.77454, 1.82587],
}


def near_start(problem: GalleryProblem) -> np.ndarray:
    """A point off the start, so that nothing vanishes by symmetry."""
    rng = np.random.default_rng(7)
    return problem.x0 + 0.05 * rng.uniform(0.5, 1.5, problem.x0.shape)


def dense_newton(problem: GalleryProblem, iterations: int = 12) -> np.ndarray:
    """Full Newton steps with the matrix of the hand-written jvp."""
    x = problem.x0.copy()
    basis = np.eye(x.size)
    for _ in range(iterations):
        J = np.stack([problem.jvp(x, e.reshape(x.shape)).ravel() for e in basis], axis=1)
        x = x - np.linalg.solve(J, problem.residual(x).ravel()).reshape(x.shape)
    return x


def test_names_are_unique_and_found():
    names = [p.name for p in ALL]
    assert len(names) == len(set(names)) == 20 + 23 + 15
    assert all(get(name).name == name for name in names[::7])
    assert get("bratu-2d", "medium").size == 31**2


@every_problem
def test_residual_is_pure_and_deterministic(problem):
    x = near_start(problem)
    given = x.copy()
    first = problem.residual(x)
    assert np.array_equal(x, given)
    assert first is not x
    assert not np.shares_memory(first, x)
    assert first.shape == problem.x0.shape
    assert np.array_equal(first, problem.residual(given))
    assert np.all(np.isfinite(problem.residual(problem.x0)))


@every_problem
def test_start_is_read_only_and_not_the_root(problem):
    assert not problem.x0.flags.writeable
    assert problem.x0.dtype == np.float64
    assert np.max(np.abs(problem.residual(problem.x0))) > 1e-5
    assert 0.0 < problem.tolerance() < np.max(np.abs(problem.residual(problem.x0)))


@pytest.mark.parametrize("problem", [p for p in ALL if p.root is not None], ids=str)
def test_root_is_a_root(problem):
    assert problem.root.shape == problem.x0.shape
    assert np.max(np.abs(problem.residual(problem.root))) <= problem.root_residual


@every_problem
def test_dtype_is_kept(problem):
    x = near_start(problem)
    single = problem.residual(x.astype(np.float32))
    double = problem.residual(x)
    assert (single.dtype, double.dtype) == (np.float32, np.float64)
    assert np.max(np.abs(single - double)) <= 2e-4 * max(1.0, np.max(np.abs(double)))


@every_problem
def test_other_array_libraries(problem):
    x = near_start(problem)
    strict = problem.residual(array_api_strict.asarray(x))
    assert array_api_strict.asarray(x).__array_namespace__() is strict.__array_namespace__()
    np.testing.assert_allclose(np.from_dlpack(strict), problem.residual(x), rtol=1e-13, atol=1e-13)
    if problem.jvp is not None:
        v = np.cos(np.arange(x.size)).reshape(x.shape)
        product = problem.jvp(array_api_strict.asarray(x), array_api_strict.asarray(v))
        np.testing.assert_allclose(np.from_dlpack(product), problem.jvp(x, v), rtol=1e-13, atol=1e-13)


@every_pde
@pytest.mark.parametrize("seed", [0, 1])
def test_jvp_against_central_differences(problem, seed):
    rng = np.random.default_rng(seed)
    x, v = near_start(problem), rng.standard_normal(problem.x0.shape)
    exact = problem.jvp(x, v)
    errors = []
    for step in (1e-3, 5e-4):
        difference = (problem.residual(x + step * v) - problem.residual(x - step * v)) / (2.0 * step)
        errors.append(np.max(np.abs(difference - exact)) / np.max(np.abs(exact)))
    assert errors[1] <= max(0.3 * errors[0], 1e-10)
    assert errors[1] <= 1e-4


@pytest.mark.parametrize(("problem", "norm"), list(zip(burkardt_problems(), BURKARDT_START_NORMS)), ids=str)
def test_start_norms_of_burkardt(problem, norm):
    assert np.linalg.norm(problem.residual(problem.x0)) == pytest.approx(norm, rel=5e-6)


@pytest.mark.parametrize(("number", "printed"), BURKARDT_PRINTED_ROOTS.items())
def test_printed_roots_of_burkardt(number, printed):
    assert np.max(np.abs(get(f"burkardt-p{number:02d}").residual(np.array(printed)))) < 2e-5


def test_discrete_boundary_value_and_integral_equation_have_the_same_root():
    boundary, integral = get("mgh09-discrete-boundary-value"), get("mgh10-discrete-integral-equation")
    x = boundary.x0.copy()
    for _ in range(60):  # the integral form is a contraction
        x = x - integral.residual(x)
    assert np.max(np.abs(integral.residual(x))) < 1e-14
    assert np.max(np.abs(boundary.residual(x))) < 1e-14


def test_bratu_1d_approaches_the_closed_form():
    """u = -2 log(cosh((x - 1/2) theta / 2) / cosh(theta / 4)), theta = sqrt(2 lam) cosh(theta / 4), smaller theta."""
    theta = brentq(lambda s: s - math.sqrt(6.0) * math.cosh(s / 4.0), 1.0, 4.5)
    errors = []
    for points in (31, 63):
        x = np.arange(1, points + 1) / (points + 1)
        exact = -2.0 * np.log(np.cosh((x - 0.5) * theta / 2.0) / math.cosh(theta / 4.0))
        errors.append(np.max(np.abs(dense_newton(bratu(1, points, 3.0)) - exact)))
    assert errors[1] < 1e-3
    assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.05)  # second order


def test_burgers_approaches_the_closed_form():
    """u = -a tanh(a x / (2 nu)), a tanh(a / (2 nu)) = 1."""
    nu = 0.2
    a = brentq(lambda s: s * math.tanh(s / (2.0 * nu)) - 1.0, 0.5, 2.0)
    errors = []
    for points in (31, 63):
        x = 2.0 * np.arange(1, points + 1) / (points + 1) - 1.0
        errors.append(np.max(np.abs(dense_newton(burgers(points, nu)) + a * np.tanh(a * x / (2.0 * nu)))))
    assert errors[1] < 5e-3
    assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize("c", [0.5, 0.9, 0.99, 0.9999, 1.0])
def test_h_equation_mean(c):
    """The mean of H is 2 (1 - sqrt(1 - c)) / c, exactly in the discrete form too."""
    root = dense_newton(h_equation(20, c), iterations=25)
    assert np.mean(root) == pytest.approx(2.0 * (1.0 - math.sqrt(1.0 - c)) / c, abs=1e-6 if c == 1.0 else 1e-11)


def test_convection_diffusion_right_hand_side():
    """It approaches that of the differential equation, and the root is the one it was made from."""

    def derivatives(f, x, step=1e-3):
        return (f(x + step) - f(x - step)) / (2.0 * step), (f(x + step) - 2.0 * f(x) + f(x - step)) / step**2

    def p(x):
        return 10.0 * x * (1.0 - x) * np.exp(x**4.5)

    def q(y):
        return y * (1.0 - y)

    errors = []
    for points in (31, 63):
        problem = convection_diffusion(points, 20.0)
        x = np.arange(1, points + 1) / (points + 1)
        (dp, ddp), (dq, ddq) = derivatives(p, x), derivatives(q, x)
        u = np.outer(p(x), q(x))
        f = -np.outer(ddp, q(x)) - np.outer(p(x), ddq) + 20.0 * u * (np.outer(dp, q(x)) + np.outer(p(x), dq))
        error = np.abs(-problem.residual(problem.x0) * (points + 1) ** 2 - f) / np.max(np.abs(f))
        every = (points + 1) // 32  # the points that both grids have
        errors.append(np.max(error[every - 1 :: every, every - 1 :: every]))
        assert problem.root == pytest.approx(u)
    assert errors[1] < 1e-2
    assert errors[0] / errors[1] > 3.5  # second order
    assert dense_newton(convection_diffusion(9, 20.0)) == pytest.approx(convection_diffusion(9, 20.0).root, abs=1e-12)


def test_troesch_and_pendulum_keep_their_first_integral():
    u = np.concatenate([[0.0], dense_newton(troesch(63, 3.0)), [1.0]])
    slope = (u[2:] - u[:-2]) * 32.0
    energy = 0.5 * slope**2 - np.cosh(3.0 * u[1:-1])
    assert np.ptp(energy) < 5e-3 * np.max(np.cosh(3.0 * u))
    theta = np.concatenate([[0.7], dense_newton(pendulum(63)), [0.7]])
    slope = (theta[2:] - theta[:-2]) * 64.0 / (4.0 * math.pi)
    assert np.ptp(0.5 * slope**2 - np.cos(theta[1:-1])) < 5e-3


def test_brusselator_equilibrium_and_symmetry():
    problem = brusselator(31)
    assert np.max(np.abs(problem.residual(problem.x0)[1:-1])) < 1e-15  # uniform inside: only the ends do not fit
    root = dense_newton(problem)
    assert np.max(np.abs(problem.residual(root))) < 1e-12
    assert root == pytest.approx(root[::-1, :])


def test_business_cycle_steady_state_and_path():
    assert np.max(np.abs(real_business_cycle(10, shock=0.0).residual(np.ones((10, 2))))) < 1e-14
    problem = real_business_cycle(40)
    path = dense_newton(problem)
    assert np.max(np.abs(problem.residual(path))) < 1e-12
    assert path[0, 1] > 0.9  # capital is rebuilt from 10 % below
    assert np.all(np.diff(path[:20, 1]) > 0.0)
