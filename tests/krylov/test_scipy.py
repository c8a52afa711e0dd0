"""ScipyKrylov: SciPy's methods behind our contract of stopping, limits, statuses and batches."""

import array_api_strict
import numpy as np
import pytest
import scipy.sparse.linalg as spla

import implicitsolve as ims
from implicitsolve import LinearOperator, LinearStop, ScipyKrylov, Status
from implicitsolve.krylov._scipy import SCIPY_METHODS

STOP = LinearStop(rtol=1e-9)
SYMMETRIC = ("cg", "minres")
COUNT_RESTARTS = ("gmres", "lgmres", "gcrotmk")


def system(rng: np.random.Generator, name: str, n: int = 12, dtype: type = np.float64) -> tuple[np.ndarray, np.ndarray]:
    A, b = rng.standard_normal((n, n)), rng.standard_normal(n)
    if np.dtype(dtype).kind == "c":
        A, b = A + 1j * rng.standard_normal((n, n)), b + 1j * rng.standard_normal(n)
    A = A @ A.conj().T + n * np.eye(n) if name in SYMMETRIC else A + 2 * n**0.5 * np.eye(n)
    return A.astype(dtype), b.astype(dtype)


@pytest.mark.parametrize("name", SCIPY_METHODS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_every_name_solves_what_it_is_for(rng, name, dtype):
    if name == "minres" and np.dtype(dtype).kind == "c":
        pytest.skip("SciPy's MINRES is for real symmetric matrices")
    A, b = system(rng, name, dtype=dtype)
    rtol = 1e-9 if np.finfo(dtype).bits == 64 else 1e-4
    result = ims.linear_solve(A, b, method=ScipyKrylov(function=name), stop=LinearStop(rtol=rtol))
    assert result.status is Status.CONVERGED
    assert result.x.dtype == dtype
    assert np.linalg.norm(A @ result.x - b) <= 1.001 * rtol * np.linalg.norm(b)
    assert result.residual_norm == pytest.approx(np.linalg.norm(A @ result.x - b), rel=1e-3, abs=1e-6 * rtol)


@pytest.mark.parametrize("name", SCIPY_METHODS)
def test_a_callable_with_scipy_s_interface(rng, name):
    A, b = system(rng, name)
    by_name = ims.linear_solve(A, b, method=ScipyKrylov(function=name), stop=STOP)
    by_function = ims.linear_solve(A, b, method=ScipyKrylov(function=getattr(spla, name)), stop=STOP)
    assert by_function.success
    np.testing.assert_allclose(by_function.x, by_name.x, rtol=1e-6, atol=1e-8)


def test_a_callable_of_the_user_s_own(rng):
    A, b = system(rng, "own")
    asked = {}

    def direct(operator, right, **keywords):
        asked.update(keywords)
        return np.linalg.solve(operator @ np.eye(len(right)), right), 0

    result = ims.linear_solve(A, b, method=ScipyKrylov(function=direct, options={"colour": "blue"}), stop=STOP)
    assert result.success
    np.testing.assert_allclose(A @ result.x, b)
    assert asked["colour"] == "blue"
    assert asked["rtol"] == pytest.approx(STOP.rtol)
    assert asked["maxiter"] == STOP.max_iterations


def test_a_callable_that_fails_is_not_believed(rng):
    A, b = system(rng, "own")
    liar = ScipyKrylov(function=lambda operator, right, **keywords: (operator @ right, 0))
    for confirm in (True, False):
        outcome = liar.solve(
            ims.aslinearoperator(A[None]),
            b[None],
            target=1e-9 * np.linalg.norm(b[None], axis=1),
            max_iterations=5,
            confirm=confirm,
        )
        assert outcome.status[0] != Status.CONVERGED
        assert outcome.residual_norm[0] > 1e-3


@pytest.mark.parametrize("name", SCIPY_METHODS)
def test_products_are_counted_and_one_more_confirms(rng, name):
    A, b = system(rng, name)
    calls = []

    def times(matrix):
        return lambda v: (calls.append(None), matrix @ v)[1]

    operator = LinearOperator(times(A), times(A.conj().T), in_shape=len(b))
    result = ims.linear_solve(operator, b, method=ScipyKrylov(function=name), stop=STOP)
    assert result.success
    assert result.matvecs == len(calls)
    assert result.iterations <= result.matvecs - 1


@pytest.mark.parametrize("name", SCIPY_METHODS)
@pytest.mark.parametrize("limit", [0, 1, 2, 7, 30])
def test_the_limit_is_one_of_iterations_never_of_restarts(rng, name, limit):
    A, b = system(rng, name, 40)
    A = np.diag(np.logspace(0, 6, 40)) if name in SYMMETRIC else A @ np.diag(np.logspace(0, 6, 40))
    stop = LinearStop(rtol=1e-14, max_iterations=limit)
    result = ims.linear_solve(A, b, method=ScipyKrylov(function=name), stop=stop)
    assert result.status is Status.ITERATION_LIMIT
    products_an_iteration = 1 if name in COUNT_RESTARTS else 2
    assert result.matvecs <= products_an_iteration * limit + 4
    if not limit:
        assert result.matvecs == 0


@pytest.mark.parametrize("name", ["gmres", "bicgstab", "cgs", "tfqmr", "lgmres", "gcrotmk"])
def test_a_preconditioner_is_used(rng, name):
    d = np.logspace(0, 4, 60)
    A, b = np.diag(d) + np.triu(0.1 * rng.standard_normal((60, 60)), 1), rng.standard_normal(60)
    calls = []
    M = LinearOperator(lambda v: (calls.append(None), v / d)[1], lambda v: v / d, in_shape=60)
    stop = LinearStop(rtol=1e-6, max_iterations=60)
    plain = ims.linear_solve(A, b, method=ScipyKrylov(function=name), stop=stop)
    helped = ims.linear_solve(A, b, M=M, method=ScipyKrylov(function=name), stop=stop)
    assert helped.success
    assert calls
    assert helped.matvecs < plain.matvecs / 2


def test_options_reach_scipy(rng):
    A, b = system(rng, "gmres")
    seen = []
    options = {"callback": seen.append, "callback_type": "pr_norm", "restart": 3}
    result = ims.linear_solve(A, b, method=ScipyKrylov(function="gmres", options=options), stop=STOP)
    assert result.success
    assert len(seen) > 3
    with pytest.raises(TypeError, match="colour"):
        ims.linear_solve(A, b, method=ScipyKrylov(function="gmres", options={"colour": 1}))


def test_the_adjoint_is_requested_only_where_it_is_needed(rng):
    A, b = system(rng, "bicg")
    operator = LinearOperator(lambda v: A @ v, in_shape=12)
    with pytest.raises(TypeError, match="adjoint"):
        ims.linear_solve(operator, b, method=ScipyKrylov(function="bicg"))


def test_other_libraries_are_refused():
    xp = array_api_strict
    with pytest.raises(TypeError, match=r"ScipyKrylov works on NumPy arrays, got some of array_api_strict"):
        ims.linear_solve(xp.eye(3), xp.ones(3), method=ScipyKrylov(function="gmres"))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"function": "foo"}, ValueError, ["ScipyKrylov", "function", "gmres", "'foo'"]),
        ({"function": None}, ValueError, ["ScipyKrylov", "function", "callable", "None"]),
        ({"function": ["gmres"]}, ValueError, ["ScipyKrylov", "function", "gmres"]),
        ({"function": "gmres", "options": None}, TypeError, ["ScipyKrylov", "options", "mapping", "NoneType"]),
        ({}, TypeError, ["function"]),
    ],
    ids=["unknown", "None", "list", "options", "missing"],
)
def test_wrong_settings_are_named(arguments, error, words):
    with pytest.raises(error) as caught:
        ScipyKrylov(**arguments)
    for word in words:
        assert word in str(caught.value)
