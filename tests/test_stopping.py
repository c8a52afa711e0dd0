"""Stopping rules: the inequality, at its edges, and the checks of its settings."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve import LinearStop, NonlinearStop

numbers = st.floats(0, 1e300, allow_nan=False)
norms = st.one_of(st.floats(0), st.just(math.nan))


@given(rtol=st.floats(0, 1e8), atol=numbers, b=st.floats(0, 1e300))
def test_the_linear_target_is_the_larger_of_the_two(rtol, atol, b):
    target = LinearStop(rtol=rtol, atol=atol).target(np.asarray([b]))
    expected = max(atol, rtol * b)
    assert target.tolist() == [expected]


@pytest.mark.parametrize("b", [math.nan, math.inf])
@pytest.mark.parametrize("rtol", [0.0, 1e-6])
def test_a_right_hand_side_that_is_not_finite_moves_no_linear_target(b, rtol):
    target = LinearStop(rtol=rtol, atol=0.5).target(np.asarray([b, 4.0]))
    assert not target[0] > 0.5
    assert target[1] == max(0.5, rtol * 4)


@given(rtol=st.floats(0, 1e8), atol=numbers, first=st.floats(0, 1e300))
def test_the_nonlinear_target_is_the_larger_of_the_two(rtol, atol, first):
    target = NonlinearStop(rtol=rtol, atol=atol).target(np.asarray([first]), np.zeros((1, 2)))
    assert target.tolist() == [max(atol, rtol * first)]


def test_default_tolerances_follow_the_precision(xp, any_dtype):
    F = xp.zeros((1, 3), dtype=any_dtype)
    precision = 2**-23 if xp.finfo(any_dtype).bits == 32 else 2**-52
    assert NonlinearStop().target(np.asarray([4.0]), F)[0] == pytest.approx(4 * math.sqrt(precision))
    assert LinearStop().target(np.asarray([4.0]), F)[0] == pytest.approx(4 * max(1e-6, 100 * precision))


@pytest.mark.parametrize("first", [math.nan, math.inf])
def test_a_start_that_is_not_finite_leaves_the_absolute_tolerance(first):
    assert NonlinearStop(rtol=0.5, atol=0.25).target(np.asarray([first]), np.zeros((1, 1))).tolist() == [0.25]


@given(norm=norms, target=st.floats(0, 1e300))
def test_the_rule_holds_where_the_inequality_does_and_never_for_nan(norm, target):
    x = np.zeros((1, 1))
    held = NonlinearStop().holds(np.asarray([norm]), np.asarray([target]), x, None)
    assert held.tolist() == [norm <= target]


@pytest.mark.parametrize(("norm", "expected"), [("max", [4.0, 1.0]), ("2", [5.0, 1.0])])
def test_norms_by_name(xp, norm, expected):
    F = xp.asarray([[3.0, -4.0], [0.0, 1.0]])
    np.testing.assert_array_equal(NonlinearStop(norm=norm).measure(F, (2,)), expected)


def test_a_norm_of_the_user_sees_each_system_in_its_own_shape(xp):
    seen = []

    def norm(F):
        seen.append(F.shape)
        return xp.sum(xp.abs(F))

    F = xp.asarray(np.arange(12.0).reshape(2, 6))
    measured = NonlinearStop(norm=norm).measure(F, (2, 3))
    assert seen == [(2, 3), (2, 3)]
    assert measured.tolist() == [15.0, 51.0]


@pytest.mark.parametrize("kind", [LinearStop, NonlinearStop])
@pytest.mark.parametrize("name", ["rtol", "atol"])
@pytest.mark.parametrize("value", [-1e-30, -1, math.nan, math.inf, -math.inf, np.float32("nan")])
def test_tolerances_must_be_finite_and_not_negative(kind, name, value):
    with pytest.raises(ValueError, match=rf"{kind.__name__}: `{name}` must be finite and not negative, got {value}"):
        kind(**{name: value})


@pytest.mark.parametrize("kind", [LinearStop, NonlinearStop])
@pytest.mark.parametrize("value", ["1e-6", True, 1e-6j, [1e-6], np.asarray([1e-6])], ids=str)
def test_tolerances_must_be_numbers(kind, value):
    with pytest.raises(TypeError, match=rf"{kind.__name__}: `atol` must be a real number, got {type(value).__name__}"):
        kind(atol=value)


@pytest.mark.parametrize("kind", [LinearStop, NonlinearStop])
@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (-1, ValueError, "at least 0, got -1"),
        (1.0, TypeError, "integer, got float"),
        (True, TypeError, "integer, got bool"),
        ("10", TypeError, "integer, got str"),
        (math.inf, TypeError, "integer, got float"),
    ],
    ids=["negative", "float", "bool", "str", "inf"],
)
def test_limits_must_be_whole_numbers(kind, value, error, words):
    with pytest.raises(error, match=rf"{kind.__name__}: `max_iterations` must be.*{words}"):
        kind(max_iterations=value)


@pytest.mark.parametrize("norm", ["inf", None, 2, "Max"])
def test_norms_must_be_known(norm):
    with pytest.raises(ValueError, match=r"`norm` must be one of 'max', '2' or a function, got"):
        NonlinearStop(norm=norm)


def test_numbers_of_numpy_are_numbers():
    stop = LinearStop(rtol=np.float32(0.5), atol=np.int64(3), max_iterations=np.int32(7))
    assert (stop.rtol, stop.atol, stop.max_iterations) == (0.5, 3, 7)


@pytest.mark.parametrize("make", [LinearStop, NonlinearStop])
def test_settings_are_values(make):
    stop = make(rtol=1e-3)
    assert stop == make(rtol=1e-3) != make()
    assert hash(stop) == hash(make(rtol=1e-3))
    assert pickle.loads(pickle.dumps(stop)) == stop
    with pytest.raises(AttributeError):
        stop.rtol = 1
    with pytest.raises(TypeError, match="positional"):
        make(1e-6)
    with pytest.raises(TypeError, match="tol"):
        make(tol=1e-6)


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (LinearStop(rtol=1e-8, atol=2), "||b - A x||_2 <= max(2, 1e-08 * ||b||_2)"),
        (LinearStop(), "||b - A x||_2 <= max(1e-06, 100 eps) * ||b||_2"),
        (LinearStop(atol=2), "||b - A x||_2 <= 2"),
        (NonlinearStop(), "error(x) <= sqrt(eps)"),
        (NonlinearStop(xtol=1e-6, norm="2"), "error(x) <= 1e-06"),
        (NonlinearStop(xtol=1e-6, atol=2), "error(x) <= 1e-06 and max|F(x)| <= 2"),
        (NonlinearStop(rtol=0.5, norm="2"), "||F(x)||_2 <= 0.5 * ||F(x0)||_2"),
        (NonlinearStop(norm=abs, atol=1), "norm(F(x)) <= 1"),
        (NonlinearStop(rtol=0.0), "max|F(x)| <= 0"),
    ],
    ids=["linear", "linear default", "linear absolute", "default", "of x", "of both", "2-norm", "callable", "zero"],
)
def test_the_rule_reads_as_the_inequality(stop, text):
    assert str(stop) == text


def test_a_tolerance_given_alone_is_the_whole_rule():
    """atol=1e-12 kept rtol = sqrt(eps), and was silently not reached."""
    first, F, b = np.asarray([4.0]), np.ones((1, 2)), np.ones((1, 3))
    assert NonlinearStop(atol=1e-12).target(first, F) == 1e-12
    assert NonlinearStop(rtol=1e-3).target(first, F) == 4e-3
    assert NonlinearStop(atol=1e-12, rtol=1e-3).target(first, F) == 4e-3
    assert NonlinearStop().target(first, F) == 4 * np.finfo(float).eps ** 0.5
    assert LinearStop(atol=1e-12).target(first, b) == 1e-12
    assert LinearStop(rtol=1e-3).target(first, b) == 4e-3
    result = ims.root(lambda x: x**2 - 2, np.ones(3), stop=NonlinearStop(atol=1e-14))
    assert result.success
    assert np.max(np.abs(result.fun)) <= 1e-14


@pytest.mark.parametrize("value", [np.ones(2), 2, None, ["max"]])
def test_a_norm_that_is_no_name_is_reported_as_such(value):
    with pytest.raises(ValueError, match="NonlinearStop: `norm` must be"):
        NonlinearStop(norm=value)


@pytest.mark.parametrize("method", ["auto", "newton-krylov", "anderson", "block-newton"])
@pytest.mark.parametrize("batch_ndim", [0, 1])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_norm_that_is_no_number_where_F_is_zero_was_convergence(method, batch_ndim, value):
    def norm(F):
        return np.abs(F).max() if F.any() else value

    problem = ims.Problem(lambda x: x - 3.0, structure=ims.BlockBanded(0, 0), batch_ndim=batch_ndim)
    x0 = np.zeros((2, 3))[0 if batch_ndim == 0 else slice(None)]
    for start in (x0, x0 + 3.0):
        result = ims.root(problem, start, method=method, stop=NonlinearStop(norm=norm, rtol=1e-12))
        assert not np.any(np.asarray(result.success) & ~np.isfinite(result.residual_norm))


def test_a_negative_norm_is_no_convergence():
    with pytest.raises(ValueError, match="norm of the stopping rule must not be negative"):
        ims.root(lambda x: x**3 - 8, np.ones(3), stop=NonlinearStop(norm=lambda F: float(F.sum())))
