"""PseudoTransient: stable states, signs, units, batches, masses, and each kind of linear solve."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import BlockBanded, NonlinearStop, Problem, PseudoTransient, root

STOP = NonlinearStop(atol=1e-10)
N = 40


def allen_cahn(u):
    """u' = u_xx + u - u^3, whose state 0 is unstable; insulated ends."""
    p = np.pad(u, [(0, 0)] * (u.ndim - 1) + [(1, 1)], mode="edge")
    return 0.5 * (p[..., 2:] - 2 * u + p[..., :-2]) + u - u**3


X0 = 0.1 + 0.05 * np.sin(np.arange(N))
METHODS = {
    "auto": (None, None),
    "krylov": (ims.NewtonKrylov(), None),
    "preconditioned": (ims.NewtonKrylov(preconditioner=ims.BlockLU()), BlockBanded(1, 1)),
    "gmres": (ims.NewtonKrylov(krylov=ims.GMRES()), None),
    "sparse": (ims.SparseNewton(), None),
    "blocks": (None, BlockBanded(1, 1)),
}
every_solver = pytest.mark.parametrize(("newton", "structure"), METHODS.values(), ids=METHODS.keys())


@every_solver
def test_time_steps_lead_to_the_stable_state(newton, structure):
    method = PseudoTransient(sign=1, newton=newton)
    result = root(Problem(allen_cahn, structure=structure), X0, method=method, stop=STOP)
    assert result.success
    np.testing.assert_allclose(result.x, 1.0, atol=1e-8)
    assert np.max(np.abs(allen_cahn(result.x))) <= 1e-10


@every_solver
def test_systems_of_a_batch_have_their_own_time_steps(newton, structure):
    starts, options = np.stack([X0, -2 * X0, 5 * X0]), {"method": PseudoTransient(sign=1, newton=newton), "stop": STOP}
    batch = root(Problem(allen_cahn, structure=structure, batch_ndim=1), starts, **options)
    assert batch.success.all()
    for i, x0 in enumerate(starts):
        alone = root(Problem(allen_cahn, structure=structure), x0, **options)
        assert alone.iterations == batch.iterations[i]
        np.testing.assert_allclose(alone.x, batch.x[i], atol=1e-8)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_sign_was_wrong_where_the_residual_grows_at_first(sign):
    A = sign * np.array([[1.0, -10.0], [0.0, 2.0]])  # not normal: <F, A F> < 0
    result = root(lambda x: A @ np.tanh(x - 2), [-2.0, 1.5], method="pseudo-transient", stop=STOP)
    assert result.success
    np.testing.assert_allclose(result.x, 2.0, atol=1e-8)


def test_a_time_step_too_long_is_repeated_from_the_same_jacobian():
    method = PseudoTransient(first_step=1e6)
    result = root(lambda x: np.arctan(x - 2), np.linspace(5, 30, 6), method=method, stop=STOP)  # Newton's diverges
    assert result.success
    assert 7 * result.iterations + 1 < result.counts.residuals < 9 * result.iterations  # 7 without repetitions


def test_algebraic_equations_have_no_mass():
    def dae(x):  # x0' = -x0 + x1, 0 = x1 - cos(x0)
        return np.stack([x[1] - x[0], x[1] - np.cos(x[0])])

    result = root(dae, [3.0, 0.0], method=PseudoTransient(sign=1, mass=[1.0, 0.0]), stop=STOP)
    assert result.success
    np.testing.assert_allclose(result.x, 0.7390851332, atol=1e-8)


def test_steps_are_shortened_to_where_the_residual_is_finite():
    def F(x):
        return np.where(x > 0, np.log(np.where(x > 0, x, 1.0)), np.nan)

    result = root(F, np.full(3, 20.0), method=PseudoTransient(first_step=100.0), stop=STOP)
    assert result.success
    np.testing.assert_allclose(result.x, 1.0)


@pytest.mark.parametrize("newton", [None, ims.NewtonKrylov()])
@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_the_residual_was_called_where_x_had_overflowed(newton, shape):
    def F(x):
        assert np.isfinite(x).all()
        return np.log(np.abs(x) + 1e-300) + 800.0

    method = PseudoTransient(sign=1, newton=newton)
    assert not np.any(root(Problem(F, batch_ndim=len(shape) - 1), np.full(shape, -1e300), method=method).success)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sign": 2}, "`sign` must be one of None, 1, -1"),
        ({"first_step": 0.0}, "`first_step` must be positive"),
        ({"increment": 0.5}, "`increment` must be at least 1"),
        ({"newton": "sparse"}, "`newton` must be"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        PseudoTransient(**settings)
