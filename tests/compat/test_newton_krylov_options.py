"""`newton_krylov` with SciPy's keywords, and the answers of both compared."""

import re
import warnings

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
import scipy.sparse.linalg as spla

import implicitsolve as ims
from implicitsolve import NoConvergence, newton_krylov
from tests.compat.counted import ZERO, A, Counted, N


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_iter_makes_that_many_steps(steps):
    seen = []
    x, result = newton_krylov(Counted(), ZERO, iter=steps, callback=lambda x, F: seen.append(x), full_output=True)
    assert result.nit == len(seen) == steps
    np.testing.assert_array_equal(newton_krylov(Counted(), ZERO, iter=steps), x)  # raises nothing


def test_iter_goes_on_below_the_tolerance():
    x = newton_krylov(Counted(), ZERO, iter=8, f_tol=1.0)
    assert Counted().norm(x) < 1e-12


@pytest.mark.parametrize("maxiter", [0, 1, 2, 3])
def test_maxiter_takes_as_many_steps_as_scipy_and_the_exception_carries_the_last_iterate(maxiter):
    """maxiter=1 took no step, and maxiter=0 was an error."""
    ours, theirs = [ZERO], []
    with pytest.raises(NoConvergence) as caught:
        newton_krylov(Counted(), ZERO, f_tol=1e-14, maxiter=maxiter, callback=lambda x, F: ours.append(x))
    with pytest.raises(scipy.optimize.NoConvergence):
        scipy.optimize.newton_krylov(
            Counted(), ZERO, f_tol=1e-14, maxiter=maxiter, callback=lambda x, F: theirs.append(x)
        )
    assert len(ours) - 1 == len(theirs) == maxiter
    np.testing.assert_array_equal(caught.value.args[0], ours[-1])


def test_iter_and_maxiter():
    result = newton_krylov(Counted(), ZERO, iter=10, maxiter=3, full_output=True)[1]
    assert result.nit == 3


@pytest.mark.parametrize(
    "tolerances",
    [
        {"f_tol": 1e-3},
        {"f_tol": 1e-11},
        {"f_rtol": 1e-4},
        {"f_tol": 1e-3, "f_rtol": 1e-9},
        {"x_tol": 1e-8},
        {"x_rtol": 1e-8},
        {"f_tol": np.inf, "x_tol": 1e-4},
        {"f_tol": np.inf, "f_rtol": 1e-5},
    ],
    ids=str,
)
def test_tolerances_hold_together(tolerances):
    points = [ZERO]
    x = newton_krylov(Counted(), ZERO, callback=lambda x, F: points.append(x), **tolerances)
    f_tol = tolerances.get("f_tol", np.finfo(float).eps ** (1 / 3))
    step = points[-1] - points[-2]
    assert Counted().norm(x) <= f_tol
    assert Counted().norm(x) <= tolerances.get("f_rtol", np.inf) * Counted().norm(ZERO)
    assert np.max(np.abs(step)) <= tolerances.get("x_tol", np.inf)
    assert np.max(np.abs(step)) <= tolerances.get("x_rtol", np.inf) * np.max(np.abs(x))


def test_tol_norm_gets_flat_arrays():
    shapes = []

    def norm(F):
        shapes.append(F.shape)
        return np.linalg.norm(F)

    x = newton_krylov(Counted(), ZERO.reshape(2, 5), tol_norm=norm, f_tol=1e-9)
    assert set(shapes) == {(10,)}
    assert np.linalg.norm(Counted()(x)) <= 1e-9


def test_callback_gets_copies_after_each_step():
    seen = []

    def callback(x, F):
        seen.append((x.copy(), F.copy()))
        x[...], F[...] = np.nan, np.nan

    x, result = newton_krylov(Counted(), ZERO, callback=callback, f_tol=1e-10, full_output=True)
    np.testing.assert_array_equal(x, newton_krylov(Counted(), ZERO, f_tol=1e-10))
    assert len(seen) == result.nit
    for point, value in seen:
        np.testing.assert_array_equal(value, Counted()(point))
    np.testing.assert_array_equal(seen[-1][0], x)


def test_verbose_prints_a_line_per_step(capsys):
    newton_krylov(Counted(), ZERO)
    assert capsys.readouterr().out == ""
    result = newton_krylov(Counted(), ZERO, verbose=True, full_output=True)[1]
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == result.nit + 2  # head and starting point
    assert printed.err == ""


@pytest.mark.parametrize("line_search", [None, False, "armijo", True, "wolfe"])
@pytest.mark.parametrize("exact", [False, True])
def test_line_searches(line_search, exact):
    F = Counted()
    x, result = newton_krylov(
        F,
        ZERO,
        line_search=line_search,
        jvp=(lambda x, v: F.jacobian(x) @ v) if exact else None,
        f_tol=1e-9,
        full_output=True,
    )
    assert F.norm(x) <= 1e-9
    assert result.nfev == F.calls
    if line_search in (None, False) and exact:
        assert result.nfev == result.nit + 1


@pytest.mark.parametrize("rdiff", [1e-5, 1e-7, 1e-9])
def test_rdiff_is_the_relative_step(rdiff):
    x0 = np.full(N, 3.0)
    points = []
    newton_krylov(lambda x: (points.append(x.copy()), Counted()(x))[1], x0, rdiff=rdiff, iter=1)
    assert np.linalg.norm(points[1] - x0) == pytest.approx(rdiff * np.linalg.norm(x0), rel=1e-3)


OWN = ["lgmres", "gmres", "fgmres", "bicgstab"]
SCIPYS = ["cgs", "tfqmr", "gcrotmk", "minres", "cg"]
OBJECTS = {"function gcrotmk": spla.gcrotmk, "function lgmres": spla.lgmres, "object": ims.GMRES(restart=5)}


@pytest.mark.parametrize(
    "method", [*OWN, *SCIPYS, *(pytest.param(method, id=name) for name, method in OBJECTS.items())]
)
@pytest.mark.parametrize("exact", [False, True])
def test_every_method(method, exact):
    F = Counted(A + A.T)  # symmetric, for MINRES and CG
    jac = F.jacobian if exact else None
    x, result = newton_krylov(F, ZERO, method=method, jac=jac, f_tol=1e-8, full_output=True)
    assert result.success, result.message
    assert F.norm(x) <= 1e-8
    assert result.nfev == F.calls


@pytest.mark.parametrize("method", ["bicg", "qmr"])
def test_methods_with_adjoint_products(method):
    F = Counted()
    x = newton_krylov(F, ZERO, method=method, jac=F.jacobian, f_tol=1e-8)
    assert F.norm(x) <= 1e-8
    with pytest.raises(TypeError, match="adjoint"):
        newton_krylov(F, ZERO, method=method)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("lgmres", {"inner_inner_m": 5}),
        ("lgmres", {"inner_outer_k": 2}),
        ("gmres", {"inner_restart": 5}),
        ("gcrotmk", {"inner_m": 5, "inner_k": 3}),
        ("bicgstab", {"inner_atol": 1e-12}),
        ("lgmres", {"inner_callback": lambda x: None}),
    ],
)
def test_inner_options(method, options):
    F = Counted()
    assert F.norm(newton_krylov(F, ZERO, method=method, f_tol=1e-8, **options)) <= 1e-8


def test_a_class_in_place_of_settings_was_called_with_the_options_of_scipy():
    with pytest.raises(TypeError, match=r"`method` must be .* got the class: write LGMRES\(\)"):
        newton_krylov(lambda x: x - 1, np.zeros(2), method=ims.LGMRES)


def test_inner_option_of_another_method_warns_as_in_scipy():
    with pytest.warns(UserWarning, match=re.escape("Option 'inner_restart' is invalid for the inner method: tfqmr")):
        newton_krylov(Counted(), ZERO, method="tfqmr", inner_restart=3)


def test_outer_k_zero_keeps_nothing():
    """Then nothing is learnt: never fewer evaluations than with a memory, on a problem with a hard linear part."""
    n = 60

    def F(x):
        return 2 * x - np.roll(x, 1) - np.roll(x, -1) + 1e-3 * x**3 - np.sin(np.arange(n))

    kept = newton_krylov(F, np.zeros(n), f_tol=1e-9, full_output=True)[1]
    forgot = newton_krylov(F, np.zeros(n), f_tol=1e-9, outer_k=0, full_output=True)[1]
    assert kept.success
    assert forgot.success
    assert kept.nfev <= forgot.nfev


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("is_complex", [False, True])
def test_same_root_as_scipy_from_no_more_evaluations(seed, is_complex):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 60))

    def random(*shape):
        return rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if is_complex else 0)

    matrix = np.eye(n) * rng.uniform(1, 3) + 0.4 * random(n, n) / np.sqrt(n)
    right, calls = random(n), {"ours": 0, "theirs": 0}

    def F(x, name):
        calls[name] += 1
        return matrix @ x + 0.2 * np.sin(x) - right

    ours = newton_krylov(lambda x: F(x, "ours"), np.zeros_like(right), f_tol=1e-9)
    theirs = scipy.optimize.newton_krylov(lambda x: F(x, "theirs"), np.zeros_like(right), f_tol=1e-9)
    np.testing.assert_allclose(ours, theirs, atol=1e-7)
    assert calls["ours"] <= calls["theirs"]


@pytest.mark.parametrize(
    "options", [{}, {"method": "gmres"}, {"line_search": None}, {"f_tol": 1e-10}, {"x_rtol": 1e-6}], ids=str
)
def test_same_root_with_options(options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = newton_krylov(Counted(), ZERO, **options)
    theirs = scipy.optimize.newton_krylov(Counted(), ZERO, **options)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
