"""Forcing terms: Eisenstat and Walker's formula and safeguards, and how the solver uses them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve import ConstantForcing, EisenstatWalker, NewtonKrylov, NonlinearStop, Problem, root

fractions = st.floats(1e-6, 0.999)


def next_eta(rule, eta, norm, previous):
    return rule.next(np.asarray([eta]), np.asarray([norm]), np.asarray([previous]))[0]


def test_choice_2():
    rule = EisenstatWalker(gamma=0.9, alpha=2.0)
    assert next_eta(rule, 0.01, 1.0, 10.0) == pytest.approx(0.9 * 0.1**2)
    rule = EisenstatWalker(gamma=0.5, alpha=1.5)
    assert next_eta(rule, 0.01, 1.0, 4.0) == pytest.approx(0.5 * 0.25**1.5)


def test_safeguard_holds_eta_up_while_it_is_large():
    rule = EisenstatWalker(gamma=0.9, alpha=2.0)
    assert next_eta(rule, 0.8, 1e-6, 1.0) == pytest.approx(0.9 * 0.8**2)
    assert next_eta(rule, 0.3, 1e-6, 1.0) == pytest.approx(0.9e-12)  # 0.9 * 0.3^2 <= 0.1: no safeguard


@pytest.mark.parametrize(
    ("norm", "previous"), [(np.nan, 1.0), (1.0, np.nan), (np.inf, 1.0), (1.0, 0.0), (0.0, 0.0), (1e300, 1e-300)]
)
def test_numbers_that_say_nothing(norm, previous):
    eta = next_eta(EisenstatWalker(), 0.1, norm, previous)
    assert 0 <= eta <= 0.9


@given(eta=fractions, ratio=st.floats(1e-6, 2.0), power=st.integers(-200, 200))
def test_eta_has_no_units(eta, ratio, power):
    rule = EisenstatWalker()
    assert next_eta(rule, eta, ratio, 1.0) == next_eta(rule, eta, ratio * 2.0**power, 2.0**power)


def test_each_system_has_its_own():
    rule = EisenstatWalker()
    eta, now, before = np.array([0.1, 0.9, 0.5]), np.array([0.1, 1e-9, 2.0]), np.array([1.0, 1.0, 1.0])
    together = rule.next(eta, now, before)
    assert together.tolist() == [next_eta(rule, *row) for row in zip(eta, now, before, strict=True)]
    assert rule.first(4).shape == (4,)


@pytest.mark.parametrize(
    ("kind", "settings", "match"),
    [
        (ConstantForcing, {"eta": 0.0}, "`eta`"),
        (ConstantForcing, {"eta": 1.0}, "`eta`"),
        (ConstantForcing, {"eta": np.nan}, "`eta`"),
        (EisenstatWalker, {"eta0": -0.1}, "`eta0`"),
        (EisenstatWalker, {"eta_max": 1.5}, "`eta_max`"),
        (EisenstatWalker, {"gamma": 0}, "`gamma`"),
        (EisenstatWalker, {"gamma": np.inf}, "`gamma`"),
        (EisenstatWalker, {"alpha": 1.0}, "`alpha`"),
        (EisenstatWalker, {"alpha": 2.5}, "`alpha`"),
        (EisenstatWalker, {"alpha": np.nan}, "`alpha`"),
    ],
)
def test_wrong_settings_raise(kind, settings, match):
    with pytest.raises(ValueError, match=match):
        kind(**settings)


N = 40
RNG = np.random.default_rng(0)
A = np.diag(np.linspace(1, 30, N)) + RNG.standard_normal((N, N)) / np.sqrt(N)
PROBLEM = Problem(lambda x: A @ x + x**3 - 5, jvp=lambda x, v: A @ v + 3 * x**2 * v)


@pytest.mark.parametrize("eta", [0.5, 0.1, 1e-3])
@pytest.mark.parametrize("krylov", [None, ims.GMRES(restart=40), ims.BiCGSTAB()], ids=["own", "gmres", "bicgstab"])
def test_the_linear_residual_meets_it(eta, krylov):
    method = NewtonKrylov(forcing=ConstantForcing(eta=eta), krylov=krylov)
    result = root(PROBLEM, np.zeros(N), method=method, stop=NonlinearStop(rtol=1e-12))
    assert result.success
    for step in result.steps[1:]:
        assert step.linear_residual[0] <= step.forcing[0] * (1 + 1e-9)
        assert step.forcing[0] >= 1e-6


def test_the_last_solve_is_not_more_accurate_than_the_rule_needs():
    """No linear residual below half of the target."""
    method = NewtonKrylov(forcing=ConstantForcing(eta=1e-8))
    stop = NonlinearStop(rtol=1e-6)
    result = root(PROBLEM, np.zeros(N), method=method, stop=stop)
    assert result.success
    target = stop.rtol * result.initial_norm
    for before, step in zip(result.steps, result.steps[1:]):
        assert step.forcing[0] >= min(0.9, 0.499 * target / before.worst)


def test_adaptive_forcing_takes_fewer_products_than_a_tight_one():
    loose = root(PROBLEM, np.zeros(N), method=NewtonKrylov(recycle=0), stop=NonlinearStop(rtol=1e-10))
    tight = NewtonKrylov(recycle=0, forcing=ConstantForcing(eta=1e-10))
    tight = root(PROBLEM, np.zeros(N), method=tight, stop=NonlinearStop(rtol=1e-10))
    assert loose.success
    assert tight.success
    assert loose.counts.jvps < tight.counts.jvps
