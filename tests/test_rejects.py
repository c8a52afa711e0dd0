"""`Problem(rejects=...)`: exceptions that F raises outside of its domain."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import Problem, root


class OutOfRangeError(ValueError):
    """What a property package raises."""


def law(T):
    """ln(T / 300) and a little more, for T from 200 to 1500."""
    if np.any((T < 200) | (T > 1500)):
        raise OutOfRangeError("T is outside of the fit")
    return np.log(T / 300) + 1e-4 * (T - 300)


def F(T):
    return law(T) - np.linspace(-0.2, 1.2, T.size)


def J(T):
    slope = 1 / T + 1e-4
    return ims.LinearOperator(lambda v: slope * v, lambda w: slope * w, in_shape=T.shape, dtype=float)


def coupled(T):
    f = law(T) - 0.5
    f[1:] += 1e-3 * T[:-1] / 300
    return f


PROBLEMS = {
    "differences": {},
    "jac": {"jac": J},
    "linearize": {"linearize": lambda T: (F(T), J(T))},
    "jvp": {"jvp": lambda T, v: v / T + 1e-4 * v},
    "diagonal": {"structure": ims.BlockBanded(0, 0)},
    "no structure": {"structure": "none"},
}


@pytest.mark.parametrize("n", [1, 3, 40])
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_step_out_of_the_domain_is_shortened(name, n):
    problem = Problem(F, rejects=OutOfRangeError, **PROBLEMS[name])
    result = root(problem, np.full(n, 1400.0))  # whole steps of Newton's method lead below zero
    assert result.success
    assert result.counts.rejected > 0
    assert "rejected" in str(result.counts)
    np.testing.assert_allclose(F(result.x), 0, atol=1e-7)


@pytest.mark.parametrize("method", ["newton-krylov", "anderson", "broyden"])
def test_methods_by_name_take_nan_for_it(method):
    result = root(Problem(F, rejects=(KeyError, OutOfRangeError)), np.full(5, 500.0), method=method)
    assert not result.success or np.abs(F(result.x)).max() < 1e-6


def test_a_detected_pattern_survives_the_exceptions():
    result = root(Problem(coupled, rejects=OutOfRangeError), np.full(300, 1450.0))
    assert result.success
    np.testing.assert_allclose(coupled(result.x), 0, atol=1e-6)


@pytest.mark.parametrize("options", PROBLEMS.values(), ids=PROBLEMS)
def test_at_x0_the_exception_passes(options):
    with pytest.raises(OutOfRangeError, match="outside of the fit"):
        root(Problem(F, rejects=OutOfRangeError, **options), np.full(3, 100.0))


def test_other_exceptions_pass():
    with pytest.raises(OutOfRangeError):
        root(F, np.full(3, 1400.0))
    with pytest.raises(OutOfRangeError):
        root(Problem(F, rejects=(ZeroDivisionError,)), np.full(3, 1400.0))


@pytest.mark.parametrize("rejects", ["ValueError", (ValueError, 3), KeyboardInterrupt, ValueError("x"), None])
def test_wrong_classes_raise(rejects):
    with pytest.raises(TypeError, match="`rejects` must be a class of exceptions"):
        Problem(F, rejects=rejects)
