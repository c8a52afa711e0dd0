"""Dogleg: the path and its model against dense references, the descent in a Krylov space, units, batches."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import lsq_linear
from scipy.sparse.linalg import splu

import implicitsolve as ims
from benchmarks.sparse_problems.planes import minimal_surface
from implicitsolve import BlockNewton, Dogleg, NewtonKrylov, NonlinearStop, Problem, SparseNewton, root
from implicitsolve.globalize._rules import next_radius
from implicitsolve.globalize._searches import least_squares_step, trust_step
from implicitsolve.krylov._arnoldi import Arnoldi
from implicitsolve.krylov._descent import Descent, DescentCollector

seeds = st.integers(0, 10**6)


def linear_model(seed, n, b=1):
    """J (b, n, n) and F (b, n), with the descent and Newton's steps of each system."""
    rng = np.random.default_rng(seed)
    J, F = rng.standard_normal((b, n, n)), rng.standard_normal((b, n))
    products = (partial(np.einsum, text, J) for text in ("bij,bj->bi", "bji,bj->bi"))
    return J, F, Descent.of(*products, F), -np.linalg.solve(J, F[:, :, None])[:, :, 0]


@given(seed=seeds, n=st.integers(1, 8), part=st.floats(1e-6, 2.0))
def test_a_step_minimizes_the_model_on_the_path_within_the_ball(seed, n, part):
    J, F, descent, newton = linear_model(seed, n)
    radius = part * np.linalg.norm(newton, axis=1)
    step, gain = trust_step(descent, newton, radius, np.zeros(1))
    assert np.linalg.norm(step) <= radius[0] * (1 + 1e-9)
    value = np.linalg.norm(F[0] + J[0] @ step[0]) ** 2 / np.linalg.norm(F) ** 2
    assert 1 - gain[0] == pytest.approx(value, abs=1e-8)  # the predicted reduction is that of the model
    turn = descent.unit[0] * descent.length[0]
    t = np.linspace(0, 1, 50)[:, None]
    path = np.concatenate([t * turn, turn + t * (newton[0] - turn)])
    path = path[np.linalg.norm(path, axis=1) <= radius[0]]
    values = np.sum((F[0] + path @ J[0].T) ** 2, axis=1) / np.linalg.norm(F) ** 2
    assert value <= values.min() + 1e-8


@given(seed=seeds, n=st.integers(2, 12), eta=st.floats(1e-8, 0.9))
def test_the_descent_of_a_krylov_space_predicts_its_model(seed, n, eta):
    J, F, exact, _ = linear_model(seed, n)
    norms = np.linalg.norm(F, axis=1)
    collector = DescentCollector(F, norms)
    A = ims.aslinearoperator(J)
    cycle = Arnoldi(A, -F, norms, target=eta * norms, columns=n, on_finish=collector).run()
    found = collector.descent
    value = np.linalg.norm(F[0] + J[0] @ (found.unit[0] * found.length[0])) ** 2 / norms[0] ** 2
    assert 1 - found.gain[0] == pytest.approx(value, abs=1e-8)
    if cycle.columns[0] == n:  # the whole space: the gradient itself
        np.testing.assert_allclose(found.unit, exact.unit, atol=1e-6)
    for part in (0.01, 0.3, 0.9):  # GMRES leaves a residual orthogonal to J s: the second leg is predicted too
        radius = part * np.linalg.norm(cycle.dx, axis=1)
        step, gain = trust_step(found, cycle.dx, radius, cycle.norm / norms)
        value = np.linalg.norm(F[0] + J[0] @ step[0]) ** 2 / norms[0] ** 2
        assert 1 - gain[0] == pytest.approx(value, abs=1e-7)


def test_the_radius_shrinks_after_poor_steps_and_grows_after_good_ones():
    ratio = np.array([-np.inf, -1.0, 0.1, 0.3, 1.0, np.nan])
    after = next_radius(np.full(6, 3.0), np.full(6, 2.0), ratio)
    np.testing.assert_array_equal(after, [1.5, 1.5, 1.5, 4.0, 4.0, 1.5])
    assert [next_radius(3.0, 2.0, number) for number in ratio] == after.tolist()


def powell_chain(x):
    """Curved, coupled, with J singular on the way."""
    y = np.roll(x, 1, axis=-1)
    return np.arctan(x) + 0.1 * x**3 - 0.3 * y + 0.2


METHODS = {
    "krylov": NewtonKrylov(line_search=Dogleg()),
    "gmres": NewtonKrylov(krylov=ims.GMRES(), line_search=Dogleg()),
    "float32": NewtonKrylov(krylov_dtype="float32", line_search=Dogleg()),
    "sparse": SparseNewton(line_search=Dogleg()),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
X0 = 20.0 * np.sin(1.0 + np.arange(12.0))


@every_method
def test_solves_where_whole_steps_diverge(method):
    result = root(powell_chain, X0, method=method, stop=NonlinearStop(atol=1e-9))
    assert result.success
    assert np.max(np.abs(powell_chain(result.x))) <= 1e-9


@pytest.mark.parametrize("declares", ["vjp", "blocks"])
def test_gradients_by_vjp_and_from_blocks(declares):
    def F(x):
        return np.arctan(x) + 0.1 * x**3 + 0.2

    def slope(x):
        return 1 / (1 + x * x) + 0.3 * x**2

    if declares == "vjp":
        exact = {"jvp": lambda x, v: slope(x) * v, "vjp": lambda x, w: slope(x) * w}
        problem, method = Problem(F, **exact), METHODS["gmres"]
    else:
        problem = Problem(F, structure=ims.BlockBanded(0, 0))
        method = BlockNewton(line_search=Dogleg())
    assert root(problem, X0, method=method).success


def test_without_progress_the_search_fails_in_bounded_work():
    result = root(lambda x: 1 + x**2, 1.0, method=NewtonKrylov(line_search=Dogleg()))
    assert result.status.name in {"STAGNATED", "LINE_SEARCH_FAILED", "SINGULAR", "LINEAR_SOLVE_FAILED"}
    assert result.counts.residuals < 200


def test_a_minimal_surface_converges_with_lu_of_the_first_jacobian():
    """Natural steps with these exact directions stagnated; progress in ||F||_2 was not seen in max|F|."""
    surface = minimal_surface(64)
    problem = Problem(surface.residual, structure=ims.Grid(shape=(64, 64), stencil="box"))
    lu = splu(ims.jacobian(problem, surface.x0).to_sparse())
    for method in (NewtonKrylov(preconditioner=lu), NewtonKrylov(), SparseNewton()):
        assert root(surface.residual, surface.x0, method=method, stop=NonlinearStop(rtol=1e-8)).success


@pytest.mark.parametrize("power", [-480, -90, 90, 480])
def test_squares_of_a_large_jacobian_overflowed(power):
    """The gradient in the Krylov space was lost, with a warning."""

    def banana(x, scale=1.0):
        return scale * np.stack([10 * (x[..., 1] - x[..., 0] ** 2), 1 - x[..., 0]], axis=-1)

    method, x0 = NewtonKrylov(line_search=Dogleg()), np.array([-1.2, 1.0])
    result = root(lambda x: banana(x, 2.0**power), x0, method=method)
    assert result.success
    assert result.counts == root(banana, x0, method=method).counts


def test_a_step_within_bounds_takes_few_least_squares_solves(monkeypatch):
    """One for each unknown that left its bound: a retry with 361 unknowns took seven minutes."""
    n, solves = 120, []
    J, F = 4 * np.eye(n) - 2 * np.eye(n, k=1) - 2 * np.eye(n, k=-1), np.random.default_rng(0).standard_normal(n)

    def counted(*args, **options):
        found = lsq_linear(*args, **options)
        solves.append(found.nit)
        return found

    monkeypatch.setattr("implicitsolve.globalize._searches.lsq_linear", counted)
    step = least_squares_step(J, F, np.full(n, -1.0), np.full(n, 1.0), -np.linalg.solve(J, F))
    assert np.abs(step).max() <= 1.0
    assert np.linalg.norm(F + J @ step) < np.linalg.norm(F)
    assert solves[0] <= 10  # 116 to the end
