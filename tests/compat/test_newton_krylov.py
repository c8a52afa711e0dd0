"""`newton_krylov`: its signature, what comes back, preconditioners and Jacobians."""

import copy
import inspect
import pickle

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
import scipy.sparse.linalg as spla

import implicitsolve as ims
from implicitsolve import NoConvergence, newton_krylov
from tests.compat.counted import ZERO, A, Counted, N


def test_signature_begins_with_scipys():
    ours = inspect.signature(newton_krylov).parameters
    theirs = inspect.signature(scipy.optimize.newton_krylov).parameters
    positional = [name for name, p in theirs.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert list(ours)[2 : len(positional)] == positional[2:]  # residual and x0 have other names
    for name in positional[2:]:
        assert ours[name].default == theirs[name].default, name


def test_positional_and_scipys_names():
    expected = newton_krylov(Counted(), ZERO)
    np.testing.assert_array_equal(newton_krylov(F=Counted(), xin=ZERO), expected)
    np.testing.assert_array_equal(newton_krylov(Counted(), xin=ZERO), expected)
    np.testing.assert_array_equal(newton_krylov(residual=Counted(), x0=ZERO), expected)
    positional = newton_krylov(
        Counted(), ZERO, None, None, "lgmres", 20, None, 10, False, None, 1e-10, None, None, None, None, "armijo", None
    )
    assert Counted().norm(positional) <= 1e-10


BOTH = Counted(), ZERO
MISSING = [
    ((), {}, "residual"), ((Counted(),), {}, "x0"), (BOTH, {"F": Counted()}, "twice"), (BOTH, {"xin": ZERO}, "twice"),
    (BOTH, {"method": ims.GMRES(), "inner_m": 3}, "inner_m"),
]  # fmt: skip
OF_WRONG_TYPE = [
    ("tolerance", 1e-6), ("inner_tolerance", 1e-6), ("jvp", np.eye(N)), ("jac", np.eye(N)), ("callback", 1),
    ("tol_norm", "max"), ("method", None), ("method", 3), ("iter", 2.5), ("maxiter", True), ("inner_maxiter", "3"),
    ("outer_k", 2.0), ("batch_ndim", None), ("inner_M", 3),
]  # fmt: skip
OF_WRONG_VALUE = [
    ("line_search", [1]), ("line_search", np.ones(2)), ("line_search", {}),
    ("method", "newton"), ("line_search", "strong"), ("maxiter", -1), ("iter", -1), ("inner_maxiter", 0),
    ("outer_k", -1), ("batch_ndim", -1), ("batch_ndim", 2), ("rdiff", 0), ("rdiff", -1e-8), ("rdiff", np.nan),
    ("rdiff", np.inf), ("inner_M", np.eye(3)),
]  # fmt: skip
WRONG = [(BOTH, {name: value}, TypeError, f"{name}`?|`preconditioner`") for name, value in OF_WRONG_TYPE]
WRONG += [(BOTH, {name: value}, ValueError, f"`{name}`|`preconditioner`") for name, value in OF_WRONG_VALUE]
WRONG += [(arguments, options, TypeError, match) for arguments, options, match in MISSING]


@pytest.mark.parametrize(("arguments", "options", "error", "match"), WRONG)
def test_wrong_arguments_are_named(arguments, options, error, match):
    with pytest.raises(error, match=match):
        newton_krylov(*arguments, **options)


@pytest.mark.parametrize("name", ["f_tol", "f_rtol", "x_tol", "x_rtol"])
@pytest.mark.parametrize(
    ("value", "error"),
    [(-1e-6, ValueError), (np.nan, ValueError), (True, TypeError), ("1", TypeError), (1j, TypeError)],
)
def test_tolerances_are_checked(name, value, error):
    with pytest.raises(error, match=f"`{name}`"):
        newton_krylov(Counted(), ZERO, **{name: value})


STARTS = [
    (2, "float64"), (2.0, "float64"), (2j, "complex128"), (True, "float64"), ([1, 2], "float64"),
    ([1, 2j + 1], "complex128"), ((1.0, 2.0), "float64"), (np.int8([1, 2]), "float64"), (np.uint64([1, 2]), "float64"),
    (np.float32(2), "float32"), (np.array([1.0, 2.0], dtype=">f8"), None), (np.ones((4, 1))[:, 0], "float64"),
    (np.array([1.0, 2.0], dtype=np.longdouble), "longdouble"), (np.arange(1.0, 7.0)[::2], "float64"),
    (np.asfortranarray(np.ones((2, 3))), "float64"), (np.broadcast_to(np.ones(1), (5,)), "float64"),
    (np.asarray(np.ones(1)), "float64"), (range(1, 4), "float64"),
]  # fmt: skip


@pytest.mark.parametrize(("x0", "dtype"), STARTS)
def test_any_start(x0, dtype):
    given = copy.deepcopy(x0)
    x = newton_krylov(lambda x: x**2 - 2, x0, f_tol=1e-6 if dtype == "float32" else 1e-10)
    assert isinstance(x, np.ndarray)
    assert x.shape == np.shape(x0)
    assert dtype is None or x.dtype == np.dtype(dtype)
    np.testing.assert_allclose(np.abs(x), np.sqrt(2), rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(x0), np.asarray(given))
    assert not np.shares_memory(x, np.asarray(x0))
    assert x.flags.writeable


def test_full_output_reads_like_scipys_result():
    F = Counted()
    x, result = newton_krylov(F, ZERO, f_tol=1e-9, full_output=True)
    assert isinstance(result, scipy.optimize.OptimizeResult)
    for key in ("x", "fun", "success", "status", "message", "nit", "nfev", "njev", "njvp", "native"):
        assert key in result
        assert getattr(result, key) is result[key]
    np.testing.assert_array_equal(x, result.x)
    np.testing.assert_array_equal(result.fun, Counted()(x))
    assert result.success is True
    assert type(result.status) is int
    assert result.status == 1
    assert isinstance(result.message, str)
    assert result.nfev == F.calls
    assert (result.njev, result.njvp) == (0, 0)
    assert result.nit == result.native.iterations > 0
    assert "success: True" in repr(result)
    again = pickle.loads(pickle.dumps(result))
    np.testing.assert_array_equal(again.native.x, x)
    np.testing.assert_array_equal(copy.deepcopy(result).x, x)


def test_counts_with_exact_products():
    F, products, matrices = Counted(), [0], [0]

    def jvp(x, v):
        products[0] += 1
        return F.jacobian(x) @ v

    def jac(x):
        matrices[0] += 1
        return F.jacobian(x)

    result = newton_krylov(F, ZERO, jvp=jvp, f_tol=1e-9, full_output=True)[1]
    assert (result.nfev, result.njvp, result.njev) == (F.calls, products[0], 0)
    assert result.nfev == result.nit + 1
    F.calls = 0
    result = newton_krylov(F, ZERO, jac=jac, f_tol=1e-9, full_output=True)[1]
    assert (result.nfev, result.njev) == (F.calls, matrices[0])
    assert 1 <= result.njev <= result.nit


def test_no_convergence_is_scipys_and_carries_the_result():
    with pytest.raises(scipy.optimize.NoConvergence) as caught:
        newton_krylov(lambda x: x**2 + 1, np.array([0.5, 2.0]))
    error = caught.value
    assert type(error) is NoConvergence
    assert error.args[0] is error.x
    np.testing.assert_array_equal(error.result.fun, error.x**2 + 1)
    assert not error.result.success
    assert str(error) == error.result.message != ""
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        np.testing.assert_array_equal(again.x, error.x)
        assert again.result.status == error.result.status
        assert str(again) == str(error)


@pytest.mark.parametrize(
    "M",
    [
        np.linalg.inv(A),
        scipy.sparse.csr_matrix(np.linalg.inv(A)),
        spla.aslinearoperator(np.linalg.inv(A)),
        spla.LinearOperator((N, N), spla.splu(scipy.sparse.csc_matrix(A)).solve),  # was called like a function
        ims.aslinearoperator(np.linalg.inv(A)),
    ],
    ids=["dense", "sparse", "scipy", "splu", "ours"],
)
@pytest.mark.parametrize("method", ["lgmres", "gmres", "bicgstab", "gcrotmk"])
def test_inner_M(M, method):
    plain = newton_krylov(Counted(), ZERO, method=method, f_tol=1e-9, full_output=True)[1]
    result = newton_krylov(Counted(), ZERO, method=method, inner_M=M, f_tol=1e-9, full_output=True)[1]
    assert result.success
    assert result.nfev < plain.nfev


class Preconditioner:
    """As in SciPy's documentation: an operator with `setup` and `update`."""

    shape, dtype = (N, N), np.dtype(float)

    def __init__(self):
        self.log, self.inverse = [], None

    def setup(self, x, F, residual):
        np.testing.assert_array_equal(residual(x), F)
        self.see("setup", x, F)

    def update(self, x, F):
        self.see("update", x, F)

    def see(self, name, x, F):
        self.log.append((name, x.shape, F.shape))
        self.inverse = np.linalg.inv(Counted().jacobian(x))
        np.testing.assert_array_equal(Counted()(x), F)

    def matvec(self, v):
        return self.inverse @ v


@pytest.mark.parametrize("shape", [(N,), (2, N // 2)])
def test_preconditioner_with_setup_and_update(shape):
    """They get flat arrays, whatever the shape of x0, as in SciPy."""
    M, theirs = Preconditioner(), Preconditioner()
    result = newton_krylov(Counted(), np.zeros(shape), inner_M=M, f_tol=1e-9, full_output=True)[1]
    assert result.success
    assert all(step.krylov_iterations.max() <= 2 for step in result.native.steps[1:])
    scipy.optimize.newton_krylov(Counted(), np.zeros(shape), inner_M=theirs, f_tol=1e-9)
    assert M.log[0] == theirs.log[0]
    assert [entry[0] for entry in M.log] == ["setup"] + ["update"] * (len(M.log) - 1)
    assert set(M.log) == set(theirs.log)
    assert result.nit - 1 <= len(M.log) - 1 <= result.nit


def test_callback_gets_what_scipys_gets():
    shapes = {}
    for name, solve in (("ours", newton_krylov), ("theirs", scipy.optimize.newton_krylov)):
        seen = shapes.setdefault(name, set())
        solve(Counted(), np.zeros((2, 5)), callback=lambda x, F, seen=seen: seen.add((x.shape, F.shape)))
    assert shapes["ours"] == shapes["theirs"]


@pytest.mark.parametrize("shape", [(N,), (2, 5), (N, 1)])
@pytest.mark.parametrize(
    "kind",
    [
        lambda J: J,
        scipy.sparse.csr_matrix,
        scipy.sparse.csc_array,
        spla.aslinearoperator,
        ims.aslinearoperator,
        lambda J: ims.aslinearoperator(spla.aslinearoperator(J)),
    ],
    ids=["dense", "csr", "csc", "scipy", "ours", "both"],
)
def test_jac(kind, shape):
    F = Counted()
    result = newton_krylov(F, np.zeros(shape), jac=lambda x: kind(F.jacobian(x)), f_tol=1e-9, full_output=True)[1]
    assert result.success
    assert result.nfev == result.nit + 1
    assert result.x.shape == shape
    assert F.shapes == {shape}


def test_batches_raise_unless_all_converge():
    c = np.array([1.0, -1.0, 4.0])[:, None]
    F = lambda x: x**2 - c + 0.01 * x[:, ::-1]  # noqa: E731
    x, result = newton_krylov(F, np.ones((3, 2)), batch_ndim=1, full_output=True)
    assert result.success.tolist() == [True, False, True]
    assert result.status.shape == (3,)
    with pytest.raises(NoConvergence) as caught:
        newton_krylov(F, np.ones((3, 2)), batch_ndim=1, callback=lambda x, F: None)
    np.testing.assert_array_equal(caught.value.x, x)
