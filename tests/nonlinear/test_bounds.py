"""Bounds: kept at every evaluation, by every method that accepts them; a bound is never taken for a root."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, least_squares

import implicitsolve as ims
from implicitsolve.nonlinear._dense_newton import DenseNewton
from tests.helpers.bounded import GALLERY, diffusing_acid
from tests.helpers.physical import stirred_reactors

METHODS = {
    "auto": "auto",
    "dense": DenseNewton(),
    "newton-krylov": ims.NewtonKrylov(),
    "wolfe": ims.NewtonKrylov(line_search=ims.Wolfe()),
    "full step": ims.NewtonKrylov(line_search=ims.FullStep()),
    "dogleg": ims.NewtonKrylov(line_search=ims.Dogleg()),
    "sparse": ims.SparseNewton(),
    "block": ims.BlockNewton(),
}


def recorded(residual, lower, upper, outside):
    """The residual, which counts the points outside the bounds."""

    def evaluated(x):
        outside.append(not bool(((x >= lower) & (x <= upper)).all()))
        with np.errstate(all="ignore"):
            return residual(x)

    return evaluated


@pytest.mark.parametrize("case", GALLERY, ids=lambda case: case.name)
def test_gallery_is_solved_within_the_bounds(case):
    outside: list[bool] = []
    F = recorded(case.residual, case.lower, case.upper, outside)
    x0 = np.array(case.x0, dtype=float)
    result = ims.root(F, x0, bounds=(case.lower, case.upper), stop=ims.NonlinearStop(atol=1e-7))
    assert result.success
    assert np.max(np.abs(case.residual(result.x))) <= 1e-7
    assert not any(outside)


def test_gallery_agrees_with_bounded_least_squares():
    """Both find a root of ||F||: SciPy's from our x too, since several have more than one."""
    for case in GALLERY[::5]:
        x0 = np.array(case.x0, dtype=float)
        lower, upper = (np.broadcast_to(side, x0.shape) for side in (case.lower, case.upper))
        ours = ims.root(case.residual, x0, bounds=(lower, upper), stop=ims.NonlinearStop(atol=1e-10))
        with np.errstate(all="ignore"):
            near = np.clip(ours.x * (1 + 1e-6), lower + 1e-12, upper - 1e-12)
            found = least_squares(case.residual, near, bounds=(lower, upper), xtol=1e-15, ftol=1e-15, gtol=1e-15)
        np.testing.assert_allclose(ours.x, found.x, rtol=1e-3, atol=1e-3, err_msg=case.name)


@settings(max_examples=14, deadline=None)
@given(seed=st.integers(0, 10_000), name=st.sampled_from(sorted(METHODS)), n=st.sampled_from([2, 5, 18]))
def test_no_method_evaluates_outside_the_bounds_properties(seed, name, n):
    rng = np.random.default_rng(seed)
    lower = np.where(rng.random(n) < 0.7, rng.normal(size=n), -np.inf)
    upper = np.where(rng.random(n) < 0.7, np.where(np.isfinite(lower), lower, 0.0) + rng.exponential(size=n), np.inf)
    upper = np.where(rng.random(n) < 0.1, np.where(np.isfinite(lower), lower, 0.0) + 1e-9, upper)
    x0 = np.clip(rng.normal(size=n), lower, upper)
    A = rng.normal(size=(n, n)) + 2 * np.eye(n)
    root = rng.normal(size=n)
    outside: list[bool] = []
    F = recorded(lambda x: A @ (x - root) + 0.3 * np.sin(3 * (x - root)), lower, upper, outside)
    problem = ims.Problem(F, structure=ims.BlockBanded(0, 0, n) if name == "block" else None, bounds=(lower, upper))
    result = ims.root(problem, x0, method=METHODS[name], stop=ims.NonlinearStop(max_iterations=8))
    assert not any(outside)
    assert ((result.x >= lower) & (result.x <= upper)).all()
    assert not result.success or np.max(np.abs(result.fun)) <= result.target


@pytest.mark.parametrize("name", [name for name in METHODS if name != "full step"])
def test_a_root_on_a_bound_is_found_by_the_ordinary_inequality(name):
    """Two of three unknowns are zero at the root, and Newton's first step goes beyond."""
    A = np.array([[4.0, 1.0, -1.0], [1.0, 3.0, 1.0], [-1.0, 0.5, 5.0]])
    z = np.array([0.0, 0.0, 2.0])
    structure = ims.BlockBanded(0, 0, 3) if name == "block" else None
    problem = ims.Problem(lambda x: A @ (x - z) + 0.5 * (x - z) ** 3, structure=structure, bounds=(0.0, np.inf))
    result = ims.root(problem, np.array([3.0, 0.1, 0.1]), method=METHODS[name])
    assert result.success
    assert result.residual_norm <= result.target
    np.testing.assert_allclose(result.x, z, atol=1e-5)


@pytest.mark.parametrize("name", list(METHODS))
def test_a_stationary_point_on_a_bound_is_no_root(name):
    """The only root has x = (-1, 4): the bound x >= 0 excludes it."""
    structure = ims.BlockBanded(0, 0, 2) if name == "block" else None
    problem = ims.Problem(
        lambda x: np.stack([x[0] + 1, x[0] + x[1] - 3]), structure=structure, bounds=([0.0, -np.inf], [5.0, np.inf])
    )
    result = ims.root(problem, np.array([2.0, 2.0]), method=METHODS[name])
    assert not result.success
    if name != "full step":
        assert result.status is ims.Status.STATIONARY_ON_BOUND
        assert "bounds" in result.status.hint


@pytest.mark.parametrize("method", ["auto", "newton-krylov", "sparse-newton"])
def test_each_system_of_a_batch_has_its_own_bounds(method):
    """x^2 = 4 has the root 2 or -2 by the bounds, or none."""
    seen = []

    def F(x):
        seen.append(x.copy())
        return x**2 - 4

    lower, upper = np.array([[0.0], [-9.0], [3.0], [-np.inf]]), np.array([[9.0], [0.0], [9.0], [np.inf]])
    problem = ims.Problem(F, batch_ndim=1, bounds=(lower, upper))
    result = ims.root(problem, np.array([[5.0], [-5.0], [5.0], [5.0]]), method=method)
    np.testing.assert_allclose(result.x[[0, 1, 3], 0], [2.0, -2.0, 2.0], rtol=1e-6)
    assert result.status[2] is ims.Status.STATIONARY_ON_BOUND
    assert all(((x >= lower) & (x <= upper)).all() for x in seen)


def test_every_library_and_precision(xp):
    """Per-system bounds, in the library of x0; none is violated in its precision."""
    lower = np.array([[0.1, 0.0, -np.inf], [2.0, -1.0, 0.3]])
    for dtype in ("float32", "float64"):
        seen = []
        low = xp.asarray(lower, dtype=getattr(xp, dtype))

        def F(x, low=low, seen=seen):
            seen.append(bool(xp.all(x >= low)))
            return x**3 - 1.0 + 0.1 * xp.roll(x, 1, axis=-1)

        problem = ims.Problem(F, batch_ndim=1, bounds=(low, np.inf))
        x0 = xp.asarray([[0.1, 5.0, 1.0], [2.0, -1.0, 3.0]], dtype=getattr(xp, dtype))
        result = ims.root(problem, x0, method="newton-krylov")
        assert result.x.dtype == x0.dtype
        assert all(seen)
        assert result.status[0] is ims.Status.CONVERGED
        assert result.status[1] is ims.Status.STATIONARY_ON_BOUND


def test_matrix_free_fronts_where_both_species_nearly_vanish():
    """Steps shortened by the linear model stagnated, and directions whose error exceeds the smallest unknowns."""
    F = diffusing_acid(300)
    result = ims.root(F, np.full(600, 0.5), bounds=(0.0, 1.0), method="newton-krylov")
    assert result.success
    assert result.counts.residuals < 1500


def test_chunks_and_rivals_keep_the_bounds_of_their_systems():
    """Drivers take the problem of some systems, whose `take` knows nothing of the bounds."""
    outside: list[bool] = []

    def batch(b):
        def F(x):
            outside.append(bool((x < 0).any()))
            return x**2 - b

        return ims.Problem(F, batch_ndim=1, take=lambda rows: batch(b[rows]))

    b = np.array([4.0, 9.0, 16.0])[:, None]
    problem = replace(batch(b), bounds=(np.zeros((3, 1)), np.full((3, 1), 50.0)))
    with ThreadPoolExecutor(1) as threads:
        solved = ims.drivers.solve_batch(problem, np.full((3, 1), 0.1), chunks=2, executor=threads)
    np.testing.assert_allclose(solved.x, b**0.5, rtol=1e-6)
    raced = ims.drivers.race(problem, [np.full((3, 1), 0.1), np.full((3, 1), 1.0)])
    np.testing.assert_allclose(raced.x, b**0.5, rtol=1e-6)
    streamed = ims.drivers.solve_stream(problem, np.full((3, 1), 0.1), batch_size=2)
    np.testing.assert_allclose(streamed.x, b**0.5, rtol=1e-6)
    assert not any(outside)


def test_logarithms_that_exist_inside_the_bounds_alone():
    """No point on the bound itself is evaluated, although Newton's step leads far across it."""
    result = ims.root(lambda x: np.log(x) + 3, np.array([5.0, 20.0]), bounds=(0, np.inf))
    assert result.success
    np.testing.assert_allclose(result.x, np.exp(-3.0), rtol=1e-6)


@pytest.mark.parametrize(
    ("bounds", "x0", "kind", "message"),
    [
        ((1.0, 0.0), [0.5], ValueError, "lower < upper"),
        ((0.0, 0.0), [0.0], ValueError, "lower < upper"),
        ((np.nan, 1.0), [0.5], ValueError, "lower < upper"),
        (3.0, [0.5], TypeError, "`bounds` must be"),
        (("a", "b"), [0.5], TypeError, "real numbers"),
        (([0.0, 0.0], [1.0, 1.0, 1.0]), [0.5], ValueError, "broadcast against each other"),
        (([0.0, 0.0, 0.0], 1.0), [0.5, 0.5], ValueError, "`bounds` must broadcast to the shape"),
        ((0.0, 1.0), [0.5, 1.5], ValueError, "`x0` must lie within `bounds`: 1 of 2"),
        ((0.0, 1.0), [0.5 + 1j], TypeError, "real x0"),
    ],
)
def test_wrong_bounds_raise(bounds, x0, kind, message):
    with pytest.raises(kind, match=message):
        ims.root(lambda x: x - 0.7, np.array(x0), bounds=bounds)


def test_explain_names_the_unknowns_on_bounds_and_evaluates_none_outside():
    outside: list[bool] = []
    F = recorded(lambda x: np.stack([x[1] + 1, x[0] ** 2 + x[1] - 3]), 0.0, 5.0, outside)
    problem = ims.Problem(F, bounds=(0.0, 5.0))
    result = ims.root(problem, np.array([2.0, 2.0]))
    assert "On a bound, or next to it: x[1]" in str(ims.diagnostics.explain(result, problem))
    assert not any(outside)


def test_derivatives_at_a_root_on_a_bound():
    """J by differences between bounds, none of them outside, as accurate as central ones."""
    outside: list[bool] = []
    F = recorded(lambda x: np.array([np.exp(x[0]) - 1 + x[1], np.sin(x[1]) - x[0]]), 0.0, np.inf, outside)
    J = ims.jacobian(ims.Problem(F, bounds=(0.0, np.inf)), np.zeros(2)).todense()
    np.testing.assert_allclose(J, [[1.0, 1.0], [-1.0, 1.0]], atol=1e-9)
    assert not any(outside)


def test_bounds_of_scipy_did_not_fit_a_number():
    result = ims.root(lambda x: x**2 - 2, 1.0, bounds=Bounds(0.0, 5.0))
    assert result.success
    assert result.x.shape == ()


@pytest.mark.parametrize("reactors", [1, 8])
def test_fractions_near_zero_with_fast_reactions_stopped_at_a_bound(reactors):
    """The minimizers of the linear model end at a bound."""
    residual, x0 = stirred_reactors(reactors)
    result = ims.root(residual, x0, bounds=(0, 1))
    assert result.success
    assert result.counts.residuals <= 110  # one more assembly: the updated J misses changes of F fifty times
    np.testing.assert_allclose(result.x[:3].sum(), 1.0, rtol=1e-6)
    np.testing.assert_allclose(residual(result.x), 0.0, atol=1e-7)
    assert "DenseNewton, projected" in str(ims.plan(ims.Problem(residual, bounds=(0, 1)), x0))
