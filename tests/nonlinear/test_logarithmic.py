"""Positive unknowns of very different sizes."""

import numpy as np
import pytest
import scipy.sparse as sps

import implicitsolve as ims
from tests.helpers.equilibria import equilibria

CASES = equilibria()
HARD = {f"{name}, quotients" for name in ("cadmium and cyanide", "mercury and chloride", "iron and cyanide")}


def reference(name):
    """The solution, by hand: two forms of a system have the same."""
    F, x0 = CASES[name.partition(",")[0] + ", logarithms"]
    with np.errstate(all="ignore"):
        return np.exp(ims.root(lambda y: F(np.exp(y)), np.log(x0)).raise_for_status().x)


@pytest.mark.parametrize("name", sorted(set(CASES) - HARD))
def test_amounts_of_all_sizes_are_accurate(name):
    """Each unknown to its own digits."""
    F, x0 = CASES[name]
    result = ims.root(F, x0, x_scale="log")
    assert result.success
    np.testing.assert_allclose(result.x, reference(name), rtol=3e-6)


def test_bounds_at_zero_alone_are_enough():
    """They ended STAGNATED, or stationary on a bound, where x = exp(y) was solved; quotients are harder."""
    solved = {"quotients": 0, "logarithms": 0}
    for name, (F, x0) in CASES.items():
        x = reference(name)
        with np.errstate(all="ignore"):
            result = ims.root(F, x0, bounds=(0, np.inf))
        is_near = np.allclose(result.x, x, rtol=1e-6, atol=1e-7 * x.max())
        solved[name.partition(", ")[2]] += bool(result.success and is_near)
    assert solved["logarithms"] == 10
    assert solved["quotients"] >= 8


@pytest.mark.parametrize("name", ["citrate", "phosphate"])
def test_a_tiny_unknown_that_doubles_is_not_taken_for_accurate(name):
    """They ended as converged far above the smallest norm of F, with one amount a thousandth of the right one."""
    F, x0 = CASES[f"{name}, quotients"]
    with np.errstate(all="ignore"):
        result = ims.root(F, x0, bounds=(0, np.inf))
    assert not result.success or np.allclose(result.x, reference(name), rtol=1e-5)


def quotients(x):
    with np.errstate(all="ignore"):
        return np.stack([x[..., 0] / x[..., 1] - 1e6, x[..., 0] * x[..., 1] - 1e-4, x[..., 2] - 3], axis=-1)


def jacobian(x):
    with np.errstate(all="ignore"):
        return np.array([[1 / x[1], -x[0] / x[1] ** 2, 0], [x[1], x[0], 0], [0, 0, 1]])


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"jac": jacobian},
        {"jac": lambda x: sps.csr_array(jacobian(x))},
        {"jvp": lambda x, v: jacobian(x) @ v, "vjp": lambda x, w: jacobian(x).T @ w},
        {"linearize": lambda x: (quotients(x), ims.aslinearoperator(jacobian(x)))},
    ],
    ids=["differences", "jac", "sparse jac", "products", "linearize"],
)
@pytest.mark.parametrize("bounds", [None, ([0, 0, -np.inf], np.inf), ([0, 0, 1], [100, 1, 9])], ids=repr)
def test_derivatives_and_bounds_follow(given, bounds):
    seen = []
    problem = ims.Problem(quotients, x_scale="log", bounds=bounds, **given)
    result = ims.root(problem, [1.0, 1.0, 2.0], monitor=lambda step, x, F: seen.append((x, F)))
    assert result.success
    np.testing.assert_allclose(result.x, [10, 1e-5, 3], rtol=1e-6)
    np.testing.assert_allclose(seen[-1][0], result.x)
    np.testing.assert_allclose(result.jacobian().todense(), jacobian(result.x), rtol=1e-5, atol=1e-8)


def test_a_batch_in_logarithms():
    problem = ims.Problem(quotients, batch_ndim=1, x_scale="log")
    result = ims.root(problem, np.array([[1.0, 1.0, 2.0], [20.0, 1e-4, 2.0]]))
    np.testing.assert_allclose(result.x, [[10, 1e-5, 3]] * 2, rtol=1e-6)


@pytest.mark.parametrize(("x0", "bounds"), [([0.0, 1, 1], None), ([-1.0, 1, 1], (-2, 2)), ([1.0, 1, 1], (0.5, 2))])
def test_logarithms_need_positive_numbers(x0, bounds):
    with pytest.raises(ValueError, match=r'x_scale="log"|within `bounds`'):
        ims.root(quotients, x0, x_scale="log", bounds=bounds)


def test_a_jacobian_that_is_not_finite_stays_from_lapack(capfd):
    """lsq_linear handed it over, which printed 507 lines."""
    with np.errstate(all="ignore"):
        ims.root(lambda x: 1e300 / x - 1e308 * x**2, [1e-5, 2e-5], bounds=(0, np.inf))
    out, err = capfd.readouterr()
    assert out + err == ""
