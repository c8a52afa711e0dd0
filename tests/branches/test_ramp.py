"""A ramp: solutions are followed in a named parameter to where the solve begins."""

import numpy as np
import pytest
import scipy.sparse as sp

import implicitsolve as ims

N = 40
L = (N + 1) ** 2 * sp.diags_array([1.0, -2.0, 1.0], offsets=[-1, 0, 1], shape=(N, N)).tocsr()
D = (N + 1) / 2 * sp.diags_array([-1.0, 1.0], offsets=[-1, 1], shape=(N, N)).tocsr()


def burgers(u, viscosity):
    wall = np.zeros(N)
    wall[0], wall[-1] = viscosity * (N + 1) ** 2, -viscosity * (N + 1) ** 2
    slope = D @ u
    slope[0] -= (N + 1) / 2
    slope[-1] -= (N + 1) / 2
    return viscosity * (L @ u) + wall - u * slope


def test_it_leads_to_the_last_value_and_counts_everything():
    calls = []

    def F(u, viscosity):
        calls.append(viscosity)
        return burgers(u, viscosity)

    result = ims.root(F, np.zeros(N), ramp=("viscosity", 1.0, 0.1))
    assert result.success
    assert result.counts.residuals == len(calls) < 120  # with points as accurate as those of a branch 155
    assert np.abs([burgers(result.x, 0.1), result.problem.residual(result.x)]).max() < 1e-6  # of the last value
    limited = ims.root(F, np.zeros(N), ramp=("viscosity", 1.0, 0.1), stop=ims.NonlinearStop(max_evaluations=20))
    assert limited.status == ims.Status.EVALUATION_LIMIT
    assert limited.counts.residuals <= 21  # F at the end of the branch


def test_jac_has_the_parameter_and_a_fold_ends_in_a_status():
    def fold(x, lam):
        return x**2 + lam

    def jac(x, lam):
        return np.diag(2 * x)

    assert ims.root(fold, np.ones(1), jac=jac, ramp=("lam", -4.0, -0.25)).x[0] == pytest.approx(0.5)
    assert not ims.root(fold, np.ones(1), jac=jac, ramp=("lam", -1.0, 1.0)).success


@pytest.mark.parametrize("ramp", ["Re", ("Re", 1.0), (1.0, 2.0, 3.0)])
def test_mistakes_raise(ramp):
    with pytest.raises(TypeError, match="`ramp` must be"):
        ims.root(burgers, np.zeros(N), ramp=ramp)
