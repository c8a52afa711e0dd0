"""Nonlinear preconditioning: whatever is iterated, F at the returned x decides."""

import math

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve import Preconditioned, Status
from implicitsolve.nonlinear._preconditioned import _compose

SIDES = ("left", "right")
OUTER = [ims.Anderson(), ims.NewtonKrylov(), ims.Picard(), ims.Broyden(), ims.SparseNewton()]


def neighbors(x):
    p = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(1, 1)])
    return p[..., :-2] + p[..., 2:]


def F(x):
    return x**3 + 4 * x - neighbors(x) - 1


def jvp(x, v):
    return (3 * x**2 + 4) * v - neighbors(v)


def jacobi(x):
    """Each unknown from its own equation, by Newton's method."""
    s = neighbors(x) + 1
    for _ in range(12):
        x = (2 * x**3 + s) / (3 * x**2 + 4)
    return x


JACOBI = ims.Problem(lambda x: x - jacobi(x), jvp=lambda x, v: v - neighbors(v) / (3 * jacobi(x) ** 2 + 4))


def holds(result, residual=F):
    """Whether each system's status says of it what F at its x says."""
    norm = np.abs(residual(result.x)).max(axis=-1)
    np.testing.assert_array_equal(np.asarray(result.residual_norm), norm)
    return np.array_equal(np.asarray(result.status) == Status.CONVERGED, norm <= result.target)


@pytest.mark.parametrize("inner", [jacobi, JACOBI, ims.Picard(damping=0.2)])
@pytest.mark.parametrize(("outer", "side"), [*((outer, "left") for outer in OUTER), (OUTER[1], "right")])
def test_solves(inner, outer, side):
    result = ims.root(F, np.zeros(30), method=Preconditioned(inner=inner, outer=outer, side=side))
    assert result.success
    assert holds(result)
    assert result.steps[-1].residual_norm == result.residual_norm
    assert result.initial_norm == 1.0


@given(a=st.floats(-2, 2), b=st.floats(-2, 2), side=st.sampled_from(SIDES), outer=st.sampled_from(OUTER[:4]))
def test_an_inner_solver_with_other_solutions_never_gives_a_false_success_properties(a, b, side, outer):
    result = ims.root(F, np.zeros(4), method=Preconditioned(inner=lambda x: a * x + b, outer=outer, side=side))
    assert holds(result)
    assert result.residual_norm <= 1.0


@pytest.mark.parametrize("side", SIDES)
def test_the_best_point_by_the_norm_of_F_is_returned(side):
    method = Preconditioned(inner=lambda x: 3 * x + 1, outer=ims.Picard(), side=side)
    result = ims.root(F, np.zeros(4), method=method, stop=ims.NonlinearStop(max_iterations=5))
    assert not result.success
    assert result.residual_norm <= result.initial_norm
    assert holds(result)


@pytest.mark.parametrize("side", SIDES)
def test_an_inner_method_where_F_is_not_finite_is_no_root(side):
    def residual(x):
        with np.errstate(invalid="ignore"):
            return np.sqrt(x) - 0.5

    method = Preconditioned(inner=ims.Picard(), outer=ims.NewtonKrylov(), side=side)
    result = ims.root(residual, np.full(3, -1.0), method=method)
    assert result.status is Status.NONFINITE


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("takes", [False, True])
@pytest.mark.parametrize("inner", [jacobi, JACOBI, ims.Picard(damping=0.1)])
def test_each_system_of_a_batch_as_alone(side, takes, inner, rng):
    def problem(c):
        take = (lambda rows: problem(c[rows])) if takes else None
        return ims.Problem(lambda x: F(x) - c, jvp=jvp, batch_ndim=1, take=take)

    def shifted(c):
        def sweep(x):
            s = neighbors(x) + 1 + c
            for _ in range(12):
                x = (2 * x**3 + s) / (3 * x**2 + 4)
            return x

        def product(x, v):
            return v - neighbors(v) / (3 * sweep(x) ** 2 + 4)

        if inner is jacobi:
            return sweep
        if inner is not JACOBI:
            return inner
        take = (lambda rows: shifted(c[rows])) if takes else None
        return ims.Problem(lambda x: x - sweep(x), jvp=product, batch_ndim=1, take=take)

    c, x0 = np.linspace(0, 1, 4)[:, None], 0.1 * rng.standard_normal((4, 8))
    outer = ims.NewtonKrylov()
    together = ims.root(problem(c), x0, method=Preconditioned(inner=shifted(c), outer=outer, side=side))
    assert together.success.all()
    assert holds(together, lambda x: F(x) - c)
    for i in range(4):
        part = slice(i, i + 1)
        method = Preconditioned(inner=shifted(c[part]), outer=outer, side=side)
        alone = ims.root(problem(c[part]), x0[part], method=method)
        np.testing.assert_allclose(together.x[i], alone.x[0], atol=1e-6)
        assert together.iterations[i] == alone.iterations[0]


@pytest.mark.parametrize("shape", [(6,), (2, 3, 6)])
def test_products_from_the_right_are_exact_where_both_offer_them(shape, rng):
    batch_ndim = len(shape) - 1
    displacement = ims.Problem(JACOBI.residual, jvp=JACOBI.jvp, batch_ndim=batch_ndim)
    composed = _compose(
        ims.Problem(F, jvp=jvp, batch_ndim=batch_ndim), displacement, lambda *_: None, np.arange(math.prod(shape[:-1]))
    )
    y, v = rng.standard_normal((2, *shape))
    value, J = composed.linearize(y)
    np.testing.assert_allclose(value, F(jacobi(y)), atol=1e-12)
    difference = (F(jacobi(y + 1e-6 * v)) - F(jacobi(y - 1e-6 * v))) / 2e-6
    np.testing.assert_allclose(J.matvec(v), difference, atol=1e-7)


@pytest.mark.parametrize("side", SIDES)
def test_a_budget_covers_the_inner_method(side):
    calls = [0]

    def counted(x):
        calls[0] += 1
        return F(x)

    method = Preconditioned(inner=ims.Picard(damping=0.05), sweeps=4, outer=ims.NewtonKrylov(), side=side)
    result = ims.root(counted, np.zeros(30), method=method, stop=ims.NonlinearStop(max_evaluations=40))
    assert result.status is Status.EVALUATION_LIMIT
    assert result.residual_norm < 1.0
    assert calls[0] <= result.counts.residuals == 40


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("limit", [1, 3])
def test_the_start_and_the_end_of_a_solve_exceeded_the_limit_of_evaluations(side, outer, limit):
    method = Preconditioned(inner=ims.NewtonKrylov(), outer=outer, side=side)
    stop = ims.NonlinearStop(max_evaluations=limit, rtol=1e-12)
    for problem, x0 in ((F, np.zeros(9)), (ims.Problem(F, batch_ndim=1), np.zeros((2, 9)))):
        result = ims.root(problem, x0, method=method, stop=stop)
        assert np.all(np.asarray(result.status) == Status.EVALUATION_LIMIT)
        assert result.counts.evaluations == limit
        assert holds(result)


@pytest.mark.parametrize("side", SIDES)
def test_a_monitor_sees_the_callers_system(side):
    seen = []

    def monitor(step, x, value):
        np.testing.assert_array_equal(value, F(x))
        np.testing.assert_allclose(step.worst, np.abs(value).max())
        seen.append(step.iteration)
        return len(seen) == 3

    method = Preconditioned(inner=jacobi, outer=ims.NewtonKrylov(), side=side)
    result = ims.root(F, np.zeros(30), method=method, monitor=monitor)
    assert seen == [0, 1, 2]
    assert result.status is Status.STOPPED_BY_MONITOR
    assert holds(result)


@pytest.mark.parametrize("side", SIDES)
def test_gradients_are_those_of_the_problem(side):
    problem = ims.Problem(
        lambda x: F(x) - 2,
        jvp=jvp,
        vjp=jvp,
        parameters={"c": np.asarray(2.0)},
        parameter_vjp=lambda x, w: {"c": -w.sum()},
    )
    stop = ims.NonlinearStop(rtol=1e-12)
    plain = ims.root(problem, np.zeros(9), stop=stop)
    method = Preconditioned(inner=ims.Picard(damping=0.2), outer=ims.NewtonKrylov(), side=side)
    result = ims.root(problem, np.zeros(9), method=method, stop=stop)
    w = np.arange(9.0)
    gradients = [ims.pull_back(problem, r, w).gradients["c"] for r in (plain, result)]
    np.testing.assert_allclose(*gradients, rtol=1e-6)


@pytest.mark.parametrize("offered", [{}, {"jvp": jvp}])
def test_the_residual_was_called_where_the_inner_solver_had_overflowed(offered):
    def finite(x):
        assert np.isfinite(x).all()
        return F(x)

    inner = ims.Problem(lambda x: np.where(np.abs(x) > 0, np.inf, -1.0), **({"jvp": lambda x, v: v} if offered else {}))
    method = Preconditioned(inner=inner, outer=ims.NewtonKrylov(), side="right")
    result = ims.root(ims.Problem(finite, **offered), np.zeros(4), method=method)
    assert not result.success
    assert result.residual_norm <= 1.0


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"inner": 3}, TypeError, "`inner` must be callable"),
        ({"inner": ims.Picard}, TypeError, "`inner` must be callable"),
        ({"inner": ()}, TypeError, "a tuple of methods and callables"),
        ({"inner": (ims.Picard(), JACOBI)}, TypeError, "a tuple of methods and callables"),
        ({"inner": jacobi, "outer": "anderson"}, TypeError, "`outer` must be settings"),
        ({"inner": jacobi, "side": "both"}, ValueError, "`side` must be one of 'left', 'right'"),
        ({"inner": jacobi, "sweeps": 0}, ValueError, "`sweeps` must be at least 1"),
    ],
)
def test_settings_are_checked(settings, error, words):
    with pytest.raises(error, match=words):
        Preconditioned(**settings)


@pytest.mark.parametrize(
    ("inner", "error", "words"),
    [
        (lambda x: None, TypeError, "`inner` returned None"),
        (lambda x: x[:2], ValueError, "`inner` must return an array of shape"),
        (ims.Problem(F, batch_ndim=1), ValueError, "`inner` must have the problem's `batch_ndim`"),
    ],
)
def test_what_the_inner_solver_returns_is_checked(inner, error, words):
    with pytest.raises(error, match=words):
        ims.root(F, np.zeros(4), method=Preconditioned(inner=inner))


def test_newton_steps_and_sweeps_solve_a_chain_of_explicit_parts_within_bounds():
    def part(y):
        return y + 0.3 * np.sin(3 * y) * np.exp(-y)

    def residual(x):
        assert ((x >= 0) & (x <= 5)).all()
        return np.append(x[1:] - part(x[:-1]), x[-1] - 0.7)

    def jac(x):
        slope = 1 + 0.3 * np.exp(-x[:-1]) * (3 * np.cos(3 * x[:-1]) - np.sin(3 * x[:-1]))
        return scipy.sparse.diags_array([np.append(-slope, 1.0), np.ones(x.size - 1)], offsets=[0, 1], format="csc")

    def sweep(x):
        for i in range(1, x.size):
            x[i] = part(x[i - 1])
        return x

    problem, x0 = ims.Problem(residual, jac=jac, bounds=(0, 5)), np.full(30, 0.5)
    inner = ims.SparseNewton(line_search=ims.FullStep()), sweep
    result = ims.root(problem, x0, method=Preconditioned(inner=inner, outer=ims.Picard()))
    assert result.success
    assert result.counts.linearizations <= 20


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("outer", [ims.Anderson(), ims.Picard(), ims.NewtonKrylov()])
@pytest.mark.parametrize("inner", [lambda x: 2 * jacobi(x) - x, ims.Problem(lambda x: 2 * (x - jacobi(x)))])
def test_an_inner_solver_that_leaves_the_bounds_is_brought_back(inner, outer, side):
    lower, upper = 0.3, 0.6

    def residual(x):
        assert ((x >= lower) & (x <= upper)).all()
        return F(x)

    problem = ims.Problem(residual, bounds=(lower, upper))
    result = ims.root(problem, np.full(20, 0.31), method=Preconditioned(inner=inner, outer=outer, side=side))
    assert ((result.x >= lower) & (result.x <= upper)).all()
    assert holds(result)
