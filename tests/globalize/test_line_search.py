"""Line searches: what each accepts, how lengths shrink, and that each system of a batch has its own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve import Backtracking, FullStep, NewtonKrylov, NonlinearStop, Problem, Wolfe, root
from implicitsolve.globalize._line_search import SearchStart, model_minimizer
from implicitsolve.linearize._evaluator import Evaluator

SEARCHES = {"full": FullStep(), "armijo": Backtracking(), "wolfe": Wolfe()}
every_search = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES.keys())


def silent(F):
    def quiet(x):
        with np.errstate(all="ignore"):
            return F(x)

    return quiet


def along(search, F, x, step, linear_residual=0.0, correction=None):
    """Search from one x (N,), or from a batch (B, N), along a given step."""
    x, step = np.atleast_2d(np.asarray(x, float)), np.atleast_2d(np.asarray(step, float))
    evaluator = Evaluator(Problem(silent(F), batch_ndim=1), x)
    Fx = silent(F)(x)
    norms = np.linalg.norm(Fx, axis=1)
    start = x.copy()
    found = search.search(SearchStart(evaluator, x, Fx, norms, step, np.full(len(x), linear_residual), correction))
    np.testing.assert_array_equal(x, start)
    for row in range(len(x)):  # what it says is what is there
        length = found.length[row]
        expected = x[row] + length * step[row] if length else x[row]
        np.testing.assert_allclose(found.x[row], expected, rtol=1e-14)
        if np.isfinite(found.norms[row]):
            np.testing.assert_array_equal(found.F[row], silent(F)(found.x)[row])
            assert found.norms[row] == pytest.approx(np.linalg.norm(found.F[row]))
        assert (length > 0) == found.accepted[row]
    return found, evaluator.tally.residuals


@every_search
def test_a_full_step_that_helps_is_taken_whole(search):
    found, used = along(search, lambda x: x - 1, [0.0, 3.0], [1.0, -2.0])
    assert found.accepted.all()
    assert found.length[0] == pytest.approx(1.0)
    if not isinstance(search, Wolfe):
        assert used == 1


def test_full_step_takes_everything_finite():
    found, used = along(FullStep(), lambda x: x**2, [1.0], [100.0])
    assert (found.accepted[0], found.length[0], used) == (True, 1.0, 1)
    found, _ = along(FullStep(), np.log, [1.0], [-2.0])
    assert not found.accepted[0]
    assert found.x[0, 0] == 1.0


def test_backtracking_shortens_until_the_residual_falls():
    """arctan from 3: the Newton step overshoots far."""
    x, F = 3.0, np.arctan
    found, used = along(Backtracking(growth_limit=1.0), F, [x], [-F(x) * (1 + x * x)])
    assert found.accepted[0]
    assert 0 < found.length[0] < 1
    assert found.norms[0] <= (1 - 1e-4 * found.length[0]) * F(x)
    assert used <= 6


@given(x=st.floats(1.0, 50.0))
def test_sufficient_decrease_holds(x):
    found, _ = along(Backtracking(growth_limit=1.0), np.arctan, [x], [-np.arctan(x) * (1 + x * x)])
    assert found.accepted[0]
    assert found.norms[0] <= (1 - 1e-4 * found.length[0]) * np.arctan(x)


def test_uphill_is_refused_in_bounded_work():
    for search, most in ((Backtracking(), 21), (Backtracking(max_trials=3), 4), (Wolfe(), 60)):
        found, used = along(search, lambda x: x, [1.0], [1.0])
        assert not found.accepted[0]
        assert found.length[0] == 0.0
        assert found.x[0, 0] == found.F[0, 0] == 1.0
        assert found.finite[0]
        assert used <= most


@pytest.mark.parametrize("search", [Backtracking(), Wolfe()], ids=["armijo", "wolfe"])
@pytest.mark.parametrize("boundary", [0.5, 0.1, 1e-3, 1e-6])
def test_recovers_from_outside_the_domain(search, boundary):
    """F is NaN beyond a fraction `boundary` of the step."""
    found, used = along(search, lambda x: np.where(x < boundary, 1 - x, np.nan), [0.0], [1.0])
    assert found.accepted[0]
    assert 0 < found.length[0] < boundary
    assert used < 60


def test_each_system_has_its_own_length():
    def F(x):
        return np.where(x == 1.0, 1.0, np.where(np.abs(x - 1) < 0.9, np.nan, np.arctan(x)))

    x = np.array([[3.0], [-0.5], [10.0], [1.0], [-20.0]])
    step = -np.arctan(x) * (1 + x * x)
    together, _ = along(Backtracking(), F, x, step)
    for row in range(len(x)):
        alone, _ = along(Backtracking(), F, x[row], step[row])
        assert together.length[row] == alone.length[0]
        assert together.accepted[row] == alone.accepted[0]
        assert together.finite[row] == alone.finite[0]
        np.testing.assert_array_equal(together.x[row], alone.x[0])
    assert np.unique(together.length).size >= 3


def test_natural_test_accepts_growth_that_brings_x_closer():
    """With J^-1 known, ||F|| may grow, up to `growth_limit`."""

    def F(x):
        return x * np.array([1.0, 1000.0])

    J_inverse = np.array([1.0, 1e-3])
    arguments = (F, [1.0, 0.0], [-1.0, 0.1], 0.0, lambda v: v * J_inverse)
    assert along(Backtracking(), *arguments)[0].length[0] == 1.0  # ||F|| grows 100-fold, ||J^-1 F|| falls tenfold
    assert along(Backtracking(growth_limit=10.0), *arguments)[0].length[0] < 1.0
    assert along(Backtracking(growth_limit=1.0), *arguments)[0].length[0] < 1.0


def one(*numbers):
    return model_minimizer(*(np.asarray([float(n)]) for n in numbers))[0]


@given(
    length=st.floats(1e-6, 1.0),
    ratio=st.floats(0.0, 1e10) | st.just(np.inf) | st.just(np.nan),
    older=st.floats(1.01, 10.0),
    older_ratio=st.floats(0.0, 1e10) | st.just(np.inf) | st.just(np.nan),
    slope=st.floats(-2.0, 0.0),
)
def test_lengths_stay_between_a_tenth_and_a_half(length, ratio, older, older_ratio, slope):
    shorter = one(length, ratio, length * older, older_ratio, slope)
    assert 0.1 * length * (1 - 1e-12) <= shorter <= 0.5 * length * (1 + 1e-12)


@pytest.mark.parametrize("length", [0.7, 1.0, 2.0])
def test_quadratic_model_is_exact_for_quadratics(length):
    """ratio(l) = 1 + s l + c l^2 has its minimum at -s / (2 c)."""
    slope, c = -2.0, 3.0
    ratio = 1 + slope * length + c * length**2
    assert one(length, ratio, np.nan, np.nan, slope) == pytest.approx(1 / 3)


def test_cubic_model_is_exact_for_cubics():
    """ratio(l) = 1 - 2 l + b l^2 + a l^3 at l = 1 and 0.5."""
    a, b, slope = 4.0, 2.0, -2.0

    def ratio(l):  # noqa: E741
        return 1 + slope * l + b * l**2 + a * l**3

    minimum = (-b + np.sqrt(b * b - 3 * a * slope)) / (3 * a)
    assert 0.05 < minimum < 0.4
    assert one(0.8, ratio(0.8), 1.0, ratio(1.0), slope) == pytest.approx(minimum)


near = st.sampled_from([0.5, 1 - 1e-9, 1 + 1e-9, 2.0])  # where a number lies, over the bound that it is held against


@given(
    length=st.floats(1e-3, 1.0),
    eta=st.floats(0.0, 0.9),
    decrease=near,
    correction=near,
    growth=st.sampled_from([1.0, 3.0, 1e3]),
    grown=near | st.none(),
)
def test_a_length_is_accepted_by_one_of_two_inequalities(length, eta, decrease, correction, growth, grown):
    """With s = 1 and J^-1 F = natural; `ratio` is that of the squares of ||F||."""
    bound = 1 - 1e-4 * length * (1 - eta)
    ratio = (decrease * bound if grown is None else grown * growth) ** 2
    natural = correction * (1 - length / 4)
    zero, one = np.zeros((1, 1)), np.ones((1, 1))
    evaluator = Evaluator(Problem(np.copy, batch_ndim=1), zero)
    start = SearchStart(evaluator, zero, zero, one[0], one, zero[0], lambda F: F + natural)
    numbers = (np.asarray([v]) for v in (ratio, length, eta))
    accepts = Backtracking(growth_limit=growth)._accepts(start, zero, *numbers)
    closer = correction < 1 and ratio < growth**2 and growth > 1
    assert accepts[0] == (ratio**0.5 <= bound or closer)


def test_no_correction_is_computed_where_the_residual_has_decreased():
    def never(F):
        raise AssertionError("not needed")

    found, _ = along(Backtracking(), lambda x: x, [1.0], [-0.5], correction=never)
    assert found.length[0] == 1.0


@pytest.mark.parametrize("x", [0.3, 1.0, 2.0])
def test_accepted_lengths_satisfy_both_wolfe_conditions(x):
    """Both inequalities for f = F^2 / 2 along Newton's step, with the exact slope (Nocedal and Wright, 3.7)."""
    step = -np.arctan(x) * (1 + x**2)
    length = along(Wolfe(), np.arctan, [x], [step])[0].length[0]

    def value_and_slope(l):  # noqa: E741
        y = x + l * step
        return np.arctan(y) ** 2 / 2, np.arctan(y) / (1 + y**2) * step

    (f0, slope0), (f, slope) = value_and_slope(0.0), value_and_slope(length)
    assert f <= f0 + 1e-4 * length * slope0
    assert abs(slope) <= 0.9 * abs(slope0) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"max_trials": -1}, ValueError, "`max_trials`"),
        ({"max_trials": 1.5}, TypeError, "`max_trials`"),
        ({"growth_limit": 0.5}, ValueError, "`growth_limit`"),
        ({"growth_limit": np.nan}, ValueError, "`growth_limit`"),
        ({"growth_limit": "large"}, TypeError, "`growth_limit`"),
    ],
)
def test_wrong_settings_raise(settings, error, match):
    with pytest.raises(error, match=match):
        Backtracking(**settings)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wolfe_refuses_a_steep_slope(dtype):
    """x - 1 from 0 with a step of a fiftieth of the way: it goes farther."""
    x = np.zeros((1, 1), dtype=dtype)
    evaluator = Evaluator(Problem(lambda x: x - 1, batch_ndim=1), x)
    step = np.full((1, 1), 0.02, dtype=dtype)
    found = Wolfe().search(SearchStart(evaluator, x, x - 1, np.ones(1), step, np.asarray([np.sqrt(1 - 0.02)])))
    assert found.accepted[0]
    assert found.length[0] > 4.0  # where the slope has fallen to 0.9 of the first


def test_wolfe_is_for_one_system():
    problem = Problem(lambda x: x**2 - 2, batch_ndim=1)
    with pytest.raises(ValueError, match="wolfe"):
        root(problem, np.ones((2, 1)), method=NewtonKrylov(line_search=Wolfe()))
    assert root(problem, np.ones((1, 1)), method=NewtonKrylov(line_search=Wolfe())).success.all()


@pytest.mark.parametrize("search", [Backtracking(), Wolfe()], ids=["armijo", "wolfe"])
@pytest.mark.parametrize("x0", [3.0, 10.0, -50.0])
def test_globalizes_arctan(search, x0):
    result = root(np.arctan, [x0], method=NewtonKrylov(line_search=search), stop=NonlinearStop(atol=1e-10, rtol=0.0))
    assert result.success


@every_search
def test_linearize_at_trial_points_is_not_wasted(search):
    """J computed with F at an accepted point is used for the next step; a rejected one is not."""
    seen = []

    def linearize(x):
        seen.append(x.copy())
        return np.arctan(x), ims.LinearOperator(lambda v, d=1 / (1 + x**2): d * v, in_shape=x.shape[0])

    x0 = [1.2] if isinstance(search, FullStep) else [4.0]
    result = root(Problem(np.arctan, linearize=linearize), x0, method=NewtonKrylov(line_search=search))
    assert result.success
    points = [p.tobytes() for p in seen]
    if isinstance(search, FullStep):
        assert len(points) == result.iterations + 1
    assert len(points) <= 2 * result.iterations + 1
