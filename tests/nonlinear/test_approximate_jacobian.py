"""An approximate Jacobian: few evaluations where it is good, and the same root where it is not."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims

N = 150
A = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(N, N)).tocsc()
X0 = np.zeros(N)


def bratu(u):
    with np.errstate(over="ignore"):  # bad approximations lead far
        return A @ u - 3 * np.exp(u) / (N + 1) ** 2


def derivative(u):
    return A - sp.diags_array(3 * np.exp(u) / (N + 1) ** 2)


FORMS = {
    "sparse": A,
    "dense": A.toarray(),
    "splu": sla.splu(A),
    "lu_factor": scipy.linalg.lu_factor(A.toarray()),
    "operator": sla.aslinearoperator(A),
    "function": derivative,
    "function of factors": lambda u: sla.splu(derivative(u).tocsc()),
}
REFERENCE = ims.root(bratu, X0)


@pytest.mark.parametrize("form", FORMS)
def test_each_form_takes_few_evaluations(form):
    result = ims.root(bratu, X0, jac_approx=FORMS[form])
    assert result.success
    assert result.counts.residuals <= 16
    np.testing.assert_allclose(result.x, REFERENCE.x, rtol=1e-6)


@given(st.integers(0, 2**32 - 1), st.floats(0.0, 0.7))
def test_never_worse_than_simplified_newton(seed, size):
    rng, n = np.random.default_rng(seed), 30
    J = np.eye(n) + 0.5 * rng.standard_normal((n, n)) / n**0.5
    H = J @ (np.eye(n) + size * rng.standard_normal((n, n)) / (2 * n**0.5))
    b = rng.standard_normal(n)

    def F(x):
        return J @ x + 0.02 * x**2 - b

    x, steps = np.zeros(n), 0
    while abs(F(x)).max() > 1e-9 and steps < 200:
        x, steps = x - np.linalg.solve(H, F(x)), steps + 1
    result = ims.root(F, np.zeros(n), jac_approx=H, tol=1e-9)
    assert result.success
    assert result.counts.residuals <= steps + 2


BAD = {"identity": np.eye(N), "negative": -A, "zero, sparse": 0 * A, "square": A.T @ A}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_approximation_is_left(bad):
    plain = REFERENCE.counts.residuals
    result = ims.root(bratu, X0, jac_approx=BAD[bad])
    assert result.success
    assert result.counts.residuals <= plain + 180
    np.testing.assert_allclose(result.x, REFERENCE.x, rtol=1e-6)


def test_scales_and_bounds():
    scale = np.geomspace(1e-3, 1e3, N)
    D, f = sp.diags_array(scale), np.linspace(1.0, 100.0, N)
    scaled = {"x_scale": scale, "f_scale": f}
    for approximation in ((D @ A @ D).tocsc(), lambda y: (D @ derivative(scale * y) @ D).tocsc()):
        result = ims.root(lambda y: scale * bratu(scale * y), X0, jac_approx=approximation, **scaled)
        assert result.success
        assert result.counts.residuals <= 16
    bounded = ims.root(bratu, X0, jac_approx=A, bounds=(0, 10))
    assert bounded.success
    assert bounded.counts.residuals <= 16


def test_named_methods_use_it_and_plan_shows_it():
    for method in ("newton-krylov", "anderson"):
        assert ims.root(bratu, X0, jac_approx=A, method=method).counts.residuals <= 16
    assert "without `jac_approx`" in str(ims.plan(ims.Problem(bratu, jac_approx=A), X0))


def test_mistakes_raise():
    with pytest.raises(ValueError, match="`jac_approx` must have shape"):
        ims.root(bratu, X0, jac_approx=np.eye(3))
    with pytest.raises(ValueError, match="`jac_approx` is for one system"):
        ims.Problem(bratu, jac_approx=A, batch_ndim=1)
    with pytest.raises(TypeError, match="jac_approx"):
        ims.root(bratu, X0, jac_approx="good")
