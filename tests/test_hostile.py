"""Hostile callers: functions that mutate, reuse, keep or recurse, odd environments, threads and pickles."""

import copy
import itertools
import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import NewtonKrylov, NonlinearStop, Problem, newton_krylov, root
from tests.helpers.cubic import KRYLOV, LINE_SEARCHES, START, TIGHT, A, B, N, every_krylov, jvp, matrix, residual, same

pytestmark = pytest.mark.timeout(60)


class Hostile:
    """Wraps a function: spoils its arguments, returns one buffer for all calls, and keeps everything it was given."""

    def __init__(self, function, *, spoil=True, reuse=True):
        self.function, self.spoil, self.reuse, self.kept, self.buffer = function, spoil, reuse, [], None

    def __call__(self, *arguments):
        value = self.function(*arguments)
        if self.reuse:
            self.buffer = np.empty_like(value) if self.buffer is None else self.buffer
            self.buffer[...] = value
            value = self.buffer
        self.kept += [*arguments, value]
        if self.spoil:
            for argument in arguments:
                argument[...] = np.nan
            for old in self.kept[:-1]:
                if old is not value:
                    old[...] = -1e30  # whatever was handed out before is spoilt again at every call
        return value


@every_krylov
@pytest.mark.parametrize("line_search", LINE_SEARCHES.values(), ids=LINE_SEARCHES.keys())
@pytest.mark.parametrize("exact", [False, True])
def test_spoiling_functions_change_nothing(krylov, line_search, exact):
    method = NewtonKrylov(krylov=krylov, line_search=line_search)
    clean = root(Problem(residual, jvp=jvp if exact else None), START, method=method, stop=TIGHT)
    assert clean.success
    hostile = Problem(Hostile(residual), jvp=Hostile(jvp) if exact else None)
    same(root(hostile, START, method=method, stop=TIGHT), clean)


@every_krylov
def test_spoiling_operators_change_nothing(krylov):
    def hostile(x):
        J = matrix(x)
        x[...] = np.nan
        return ims.LinearOperator(Hostile(lambda v: J @ v), in_shape=N)

    inverse = np.linalg.inv(A)
    for M in (None, inverse):
        spoiling = None if M is None else ims.LinearOperator(Hostile(lambda v: inverse @ v), in_shape=N)
        clean = root(
            Problem(residual, jac=matrix), START, method=NewtonKrylov(krylov=krylov, preconditioner=M), stop=TIGHT
        )
        assert clean.success
        method = NewtonKrylov(krylov=krylov, preconditioner=spoiling)
        result = root(Problem(residual, jac=hostile), START, method=method, stop=TIGHT)
        same(result, clean)
        linearized = Problem(residual, linearize=lambda x: (residual(x), hostile(x)))
        result = root(linearized, START, method=method, stop=TIGHT)
        np.testing.assert_array_equal(result.x, clean.x)


@pytest.mark.parametrize("method", [ims.GMRES(), ims.LGMRES(restart=3), ims.BiCGSTAB()], ids=str)
@pytest.mark.parametrize("with_M", [False, True])
@pytest.mark.parametrize("with_x0", [False, True])
def test_spoiling_operators_in_linear_solve(method, with_M, with_x0):
    def solve(wrap):
        operator = ims.LinearOperator(wrap(lambda v: A @ v), in_shape=N)
        M = ims.LinearOperator(wrap(lambda v: v / np.diag(A)), in_shape=N) if with_M else None
        return ims.linear_solve(operator, B, method=method, M=M, x0=START if with_x0 else None)

    clean, result = solve(lambda function: function), solve(Hostile)
    assert clean.success
    np.testing.assert_array_equal(result.x, clean.x)
    assert np.linalg.norm(A @ result.x - B) <= 1e-6 * np.linalg.norm(B)
    assert result.residual_norm == pytest.approx(np.linalg.norm(A @ result.x - B), abs=1e-14)


def test_residual_that_returns_its_argument():
    assert np.max(np.abs(root(lambda x: x, START).x)) < 1e-8

    def doubles(x):
        x *= 2
        x -= B
        return x

    np.testing.assert_allclose(root(doubles, START).x, B / 2, atol=1e-7)


def test_residual_that_returns_a_view_of_state_it_changes():
    state = np.empty((2, N))

    def F(x):
        state[0], state[1] = residual(x), 0.0
        return state[0]

    same(root(F, START), root(residual, START))


@pytest.mark.parametrize(
    "make",
    [list, tuple, lambda F: F.astype(np.float32)],
    ids=["list", "tuple", "float32"],
)
def test_residuals_of_another_kind(make):
    result = root(lambda x: make(residual(x)), START, stop=NonlinearStop(rtol=1e-3))
    assert result.success
    assert result.x.dtype == result.fun.dtype == np.float64
    assert result.fun.shape == (N,)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (None, TypeError),
        ("zero", TypeError),
        ({}, TypeError),
        (np.array([None] * N), TypeError),
        (np.zeros(N, dtype="M8[s]"), TypeError),
        (np.zeros(N, dtype=complex), TypeError),
        (0.0, ValueError),
        (np.zeros(N - 1), ValueError),
        (np.zeros((N, N)), ValueError),
        (np.zeros((2, N)), ValueError),
        (np.zeros(0), ValueError),
        ([[1.0], [1.0, 2.0]], (TypeError, ValueError)),
        (np.ma.masked_array(np.ones(N), np.arange(N) == 1), TypeError),
    ],
    ids=range(13),
)
def test_wrong_values_are_named(value, error):
    with pytest.raises(error, match="`residual`"):
        root(lambda x: value, START)
    calls = itertools.count()
    with pytest.raises(error, match="`residual`"):  # also later than at the start
        root(lambda x: residual(x) if next(calls) < 4 else value, START)


@pytest.mark.parametrize("layout", ["read-only", "strided", "fortran", "negative", "broadcast", "big-endian"])
def test_memory_layouts(layout):
    x0 = np.full((3, 3), 0.3)
    start = {
        "read-only": x0.copy(),
        "strided": np.full((6, 9), 0.3)[::2, ::3],
        "fortran": np.asfortranarray(x0),
        "negative": x0[::-1, ::-1],
        "broadcast": np.broadcast_to(0.3, (3, 3)),
        "big-endian": x0.astype(">f8"),
    }[layout]
    if layout == "read-only":
        start.flags.writeable = False

    def F(x):
        assert x.flags.writeable
        return residual(x.reshape(-1)).reshape(3, 3)

    before = start.copy()
    result = root(Problem(F), start)
    np.testing.assert_array_equal(start, before)
    assert result.success
    np.testing.assert_array_equal(result.x, root(Problem(F), x0).x)
    assert result.x.flags.writeable
    for array in (result.x, result.fun):
        assert not np.shares_memory(array, start)


class Subclass(np.ndarray):
    """An array of a class of its own."""


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_array_subclasses(tmp_path):
    x0 = np.full(3, 0.3)
    mapped = np.memmap(tmp_path / "x0", dtype=float, mode="w+", shape=3)
    mapped[:] = x0
    clean = root(lambda x: x**2 - 2, x0)
    for start in (x0.view(Subclass), mapped, x0.view(np.recarray)):
        result = root(lambda x: x**2 - 2, start)
        np.testing.assert_array_equal(result.x, clean.x)
        assert result.x.dtype == np.float64
    np.testing.assert_array_equal(root(lambda x: (x**2 - 2).view(Subclass), x0).x, clean.x)
    with pytest.raises(ValueError, match=r"`residual`.*\(3,\).*\(1, 3\)"):
        root(lambda x: np.asmatrix(x**2 - 2), x0)
    with pytest.raises(TypeError, match="`x0`"):
        root(lambda x: x**2 - 2, np.ma.masked_array(x0, [True, False, False]))


def test_results_are_the_callers():
    """No array of a result is shared with what a function was given or returned."""
    F, J = Hostile(residual, spoil=False, reuse=False), Hostile(jvp, spoil=False, reuse=False)
    result = root(Problem(F, jvp=J), START)
    for kept in F.kept + J.kept:
        assert not np.shares_memory(kept, result.x)
        assert not np.shares_memory(kept, result.fun)


@pytest.mark.parametrize("line_search", LINE_SEARCHES.values(), ids=LINE_SEARCHES.keys())
@pytest.mark.parametrize("krylov", [None, ims.GMRES(), ims.BiCGSTAB()], ids=["own", "gmres", "bicgstab"])
def test_error_state_is_the_callers(line_search, krylov):
    """The residual runs under the caller's error state, and no setting leaks out of a solve."""
    seen = set()

    def F(x):
        seen.add(tuple(sorted(np.geterr().items())))
        return residual(x)

    with np.errstate(over="raise", divide="call", invalid="warn", under="ignore"):
        mine = tuple(sorted(np.geterr().items()))
        root(F, START, method=NewtonKrylov(line_search=line_search, krylov=krylov))
        assert tuple(sorted(np.geterr().items())) == mine
    assert seen == {mine}


@every_krylov
@pytest.mark.parametrize("scale", [1.0, 1e150, 1e-150])
def test_works_where_floating_point_errors_raise(krylov, scale):
    with np.errstate(all="raise"):
        result = root(lambda x: scale * residual(x), START, method=NewtonKrylov(krylov=krylov))
    assert result.success


def test_users_warnings_reach_the_user():
    def F(x):
        return x - 1 + 0 * np.log(-x)

    with pytest.warns(RuntimeWarning, match="invalid value"):
        root(F, np.ones(2))


def test_random_state_and_filters_are_left_alone():
    before, filters = np.random.get_state()[1].copy(), list(warnings.filters)  # noqa: NPY002
    root(residual, START, method=NewtonKrylov(line_search=ims.Wolfe()))
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    assert list(warnings.filters) == filters


def test_threads_give_identical_results():
    cases = [(seed, name) for seed in range(4) for name in ("own", "gmres", "bicgstab")]
    problem = Problem(residual)

    def solve(case):
        seed, name = case
        x0 = np.random.default_rng(seed).standard_normal(N)
        return root(problem, x0, method=NewtonKrylov(krylov=KRYLOV[name]), stop=TIGHT)

    alone = [solve(case) for case in cases]
    barrier = threading.Barrier(4)

    def together(case):
        barrier.wait(timeout=600)
        return solve(case)

    with ThreadPoolExecutor(4) as pool:
        for clean, result in zip(alone, pool.map(together, cases), strict=True):
            same(result, clean)


def test_residual_that_solves_inside():
    """F(x) = y(x) - 1 with y^3 + y = x solved inside, two deep."""

    def inner(x, depth):
        if depth == 0:
            return x
        return newton_krylov(lambda y: y**3 + y - inner(x, depth - 1), np.zeros_like(x), f_tol=1e-12)

    x = newton_krylov(lambda x: inner(x, 2) - 1, np.array([8.0]), f_tol=1e-6)
    np.testing.assert_allclose(x, [10.0], rtol=1e-4)


def test_exceptions_of_inner_solves_are_distinguished():
    with pytest.raises(ims.NoConvergence) as info:
        newton_krylov(lambda x: newton_krylov(lambda y: y**2 + 1 + 0 * x, np.ones(1)), np.ones(1))
    assert info.value.result.initial_norm == 2.0


def test_callback_that_solves():
    answers = []
    newton_krylov(residual, START, callback=lambda x, F: answers.append(newton_krylov(residual, START, f_tol=1e-10)))
    assert len(answers) > 1
    assert all(np.array_equal(a, answers[0]) for a in answers)


@pytest.mark.parametrize(
    "value",
    [
        NewtonKrylov(krylov=ims.LGMRES(), preconditioner=np.eye(2)),
        NonlinearStop(rtol=1e-3, norm=np.linalg.norm),
        ims.LinearStop(atol=1.0),
        ims.EisenstatWalker(),
        ims.ConstantForcing(eta=0.2),
        ims.Wolfe(),
        ims.Backtracking(growth_limit=2.0),
        ims.ScipyKrylov(function="cgs", options={"atol": 0.0}),
        ims.Status.SINGULAR,
        ims.Counts(residuals=3),
        Problem(residual, jvp=jvp, batch_ndim=1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_settings_pickle_copy_and_print(value):
    for again in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
        assert type(again) is type(value)
        assert repr(again) == repr(value)
    assert pickle.loads(pickle.dumps(ims.Status.SINGULAR)) is ims.Status.SINGULAR


def test_results_and_errors_pickle():
    for result in (root(residual, START), root(lambda x: x**2 + 1, START)):
        again = pickle.loads(pickle.dumps(result))
        same(again, result)
        assert again.message == result.message
    error = ims.NoConvergence(START, "no", result)
    again = pickle.loads(pickle.dumps(error))
    np.testing.assert_array_equal(again.args[0], START)
    assert (str(again), again.result.status) == ("no", result.status)
    linear = ims.linear_solve(A, B)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(linear)).x, linear.x)
