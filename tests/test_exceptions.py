"""Exceptions of the caller's functions pass every solver unchanged."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import NewtonKrylov, NonlinearStop, Problem, newton_krylov, root
from tests.helpers.cubic import START, TIGHT, A, N, every_krylov, jvp, matrix, residual, same

pytestmark = pytest.mark.timeout(60)


class Private(BaseException):
    """An exception that nobody should catch."""


EXCEPTIONS = [
    ValueError, TypeError, ZeroDivisionError, FloatingPointError, np.linalg.LinAlgError, MemoryError, RecursionError,
    StopIteration, StopAsyncIteration, AttributeError, KeyError, AssertionError, NotImplementedError, ImportError,
    RuntimeWarning, KeyboardInterrupt, SystemExit, GeneratorExit, Private, ims.NoConvergence,
]  # fmt: skip
FEW = [ValueError, KeyboardInterrupt, StopIteration, Private]


class Bomb:
    """Calls a function, and raises its own exception object at the call with the given number."""

    def __init__(self, function, kind, at):
        self.function, self.error, self.left = function, kind("boom"), at

    def __call__(self, *arguments, **keywords):
        self.left -= 1
        if self.left < 0:
            raise self.error
        return self.function(*arguments, **keywords)


def passes(function, solve, at=0, kinds=EXCEPTIONS):
    """`solve(bomb)` raises the very exception that `function` raises at its call number `at`, of every kind."""
    for kind in kinds:
        bomb = Bomb(function, kind, at)
        with pytest.raises(kind) as info:
            solve(bomb)
        assert info.value is bomb.error
        assert info.value.__cause__ is None


@pytest.mark.parametrize("at", [0, 1, 4, 15])
def test_exceptions_of_the_residual(at):
    passes(residual, lambda bomb: root(bomb, START, stop=TIGHT), at)
    passes(residual, lambda bomb: newton_krylov(bomb, START, f_tol=1e-10), at)


@pytest.mark.parametrize("shape", [(64,), (8, 8)])
def test_exceptions_of_evaluations_that_seek_a_pattern(shape):
    def F(x):
        return 4 * x + sum(x.ravel()[(k * np.arange(x.size)) % x.size] for k in (3, 5)).reshape(shape) + x**3 - 1

    count = root(F, np.zeros(shape)).counts.residuals
    for at in range(count):
        passes(F, lambda bomb: root(bomb, np.zeros(shape)), at, [ValueError, MemoryError, Private][at % 3 :][:1])


def solve_with(**functions):
    """`root` on the cubic system, where one of the functions is given."""
    operator, norm = functions.pop("operator", None), functions.pop("norm", "max")
    method = NewtonKrylov(preconditioner=functions.pop("preconditioner", None))
    monitor = functions.pop("monitor", None)
    if operator is not None:
        functions["jac"] = lambda x: ims.LinearOperator(operator, in_shape=N)
    stop = NonlinearStop(rtol=1e-14, norm=norm)
    return root(Problem(residual, **functions), START, method=method, stop=stop, monitor=monitor)


FUNCTIONS = {
    "jvp": jvp,
    "jac": matrix,
    "linearize": lambda x: (residual(x), matrix(x)),
    "operator": lambda v: A @ v,
    "preconditioner": lambda x, F: np.eye(N),
    "monitor": lambda step, x, F: None,
    "norm": np.linalg.norm,
}


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_exceptions_of_other_functions(name, at):
    passes(FUNCTIONS[name], lambda bomb: solve_with(**{name: bomb}), at)


@pytest.mark.parametrize("name", ["jvp", "jac", "callback", "tol_norm"])
def test_exceptions_through_the_scipy_entry(name):
    function = {"jvp": jvp, "jac": matrix, "callback": lambda x, F: None, "tol_norm": np.linalg.norm}[name]
    at = 0 if name == "jac" else 1  # one matrix serves a small system for several steps
    passes(function, lambda bomb: newton_krylov(residual, START, f_tol=1e-12, **{name: bomb}), at)


@pytest.mark.parametrize("at", [2, 7])
@every_krylov
def test_exceptions_through_every_krylov_method(krylov, at):
    method = NewtonKrylov(krylov=krylov)
    passes(jvp, lambda bomb: root(Problem(residual, jvp=bomb), START, method=method, stop=TIGHT), at, FEW)


@pytest.mark.parametrize("at", [1, 3, 8])
def test_exceptions_through_wolfe(at):
    method = NewtonKrylov(line_search=ims.Wolfe())
    passes(residual, lambda bomb: root(bomb, START, method=method, stop=TIGHT), at, FEW)


def test_exceptions_of_take_and_guess():
    c = np.array([[1.0], [9.0]])
    passes(None, lambda bomb: root(Problem(lambda x: x**2 - c, batch_ndim=1, take=bomb), np.ones((2, 1))))
    passes(None, lambda bomb: root(Problem(residual, initial_guess=bomb)))


def test_a_solve_after_an_exception_is_clean():
    problem = Problem(Bomb(residual, ValueError, 6))
    with pytest.raises(ValueError, match="boom"):
        root(problem, START)
    problem.residual.left = 10**9
    same(root(problem, START), root(residual, START))


def chain(x):
    return 3 * x + 0.3 * np.sin(x) - np.append(x[1:], 0.0) - np.append(0.0, x[:-1]) - 1


UNSOLVED = root(chain, np.zeros(20), stop=NonlinearStop(max_iterations=1))
SEARCHES = {
    "jacobian": lambda F, path: ims.jacobian(F, UNSOLVED.x),
    "explain": lambda F, path: ims.diagnostics.explain(UNSOLVED, Problem(F)),
    "report": lambda F, path: ims.diagnostics.report(UNSOLVED, path, problem=Problem(F)),
    "check_derivatives": lambda F, path: ims.testing.check_derivatives(
        Problem(F, linearize=lambda x: (F(x), ims.jacobian(chain, x))), UNSOLVED.x
    ),
    "parameters": lambda F, path: ims.pull_back(
        Problem(lambda x, c: F(x) - c, parameters=1.0), UNSOLVED.x, np.ones(20)
    ),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_exceptions_of_evaluations_that_explain_or_differentiate(name, tmp_path):
    counted = Bomb(chain, ValueError, 10**9)
    SEARCHES[name](counted, tmp_path / "page.html")
    for at in range(10**9 - counted.left):
        kind = [StopIteration, TypeError, ValueError, np.linalg.LinAlgError, MemoryError][at % 5]
        passes(chain, lambda bomb: SEARCHES[name](bomb, tmp_path / "page.html"), at, [kind])
