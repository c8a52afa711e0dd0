"""Exceptions of the caller's functions pass every solver unchanged."""

from __future__ import annotations

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import NewtonKrylov, NonlinearStop, Problem, newton_krylov, root
from tests.cubic import START, TIGHT, A, N, every_krylov, jvp, matrix, residual, same

pytestmark = pytest.mark.timeout(60)


class Private(BaseException):
    """An exception that nobody should catch."""


EXCEPTIONS = [
    ValueError, TypeError, ZeroDivisionError, FloatingPointError, np.linalg.LinAlgError, MemoryError, RecursionError,
    StopIteration, StopAsyncIteration, AttributeError, KeyError, AssertionError, NotImplementedError, ImportError,
    RuntimeWarning, KeyboardInterrupt, SystemExit, GeneratorExit, Private, ims.NoConvergence,
]  # fmt: skip
every_exception = pytest.mark.parametrize("kind", EXCEPTIONS)


class Bomb:
    """Calls a function, and raises its own exception object at the call with the given number."""

    def __init__(self, function, kind, at):
        self.function, self.error, self.left = function, kind("boom"), at

    def __call__(self, *arguments, **keywords):
        self.left -= 1
        if self.left < 0:
            raise self.error
        return self.function(*arguments, **keywords)


def caught(bomb, call):
    with pytest.raises(type(bomb.error)) as info:
        call()
    assert info.value is bomb.error
    assert info.value.__cause__ is None
    return info


@every_exception
@pytest.mark.parametrize("at", [0, 1, 4, 15])
def test_exceptions_of_the_residual(kind, at):
    bomb = Bomb(residual, kind, at)
    caught(bomb, lambda: root(bomb, START, stop=TIGHT))
    bomb = Bomb(residual, kind, at)
    caught(bomb, lambda: newton_krylov(bomb, START, f_tol=1e-10))


@every_exception
@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("name", ["jvp", "jac", "linearize", "operator", "preconditioner", "monitor", "norm"])
def test_exceptions_of_other_functions(kind, at, name):
    functions = {
        "jvp": jvp,
        "jac": matrix,
        "linearize": lambda x: (residual(x), matrix(x)),
        "operator": lambda v: A @ v,
        "preconditioner": lambda x, F: np.eye(N),
        "monitor": lambda step, x, F: None,
        "norm": np.linalg.norm,
    }
    bomb = Bomb(functions[name], kind, at)
    problem = Problem(
        residual,
        jvp=bomb if name == "jvp" else None,
        jac=bomb if name == "jac" else (lambda x: ims.LinearOperator(bomb, in_shape=N)) if name == "operator" else None,
        linearize=bomb if name == "linearize" else None,
    )
    method = NewtonKrylov(preconditioner=bomb if name == "preconditioner" else None)
    stop = NonlinearStop(rtol=1e-14, norm=bomb if name == "norm" else "max")
    monitor = bomb if name == "monitor" else None
    caught(bomb, lambda: root(problem, START, method=method, stop=stop, monitor=monitor))


@every_exception
@pytest.mark.parametrize("name", ["jvp", "jac", "callback", "tol_norm"])
def test_exceptions_through_the_scipy_entry(kind, name):
    function = {"jvp": jvp, "jac": matrix, "callback": lambda x, F: None, "tol_norm": np.linalg.norm}[name]
    bomb = Bomb(function, kind, 1)
    caught(bomb, lambda: newton_krylov(residual, START, f_tol=1e-12, **{name: bomb}))


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, StopIteration, Private])
@every_krylov
def test_exceptions_through_every_krylov_method(kind, krylov):
    for at in (2, 7):
        bomb = Bomb(jvp, kind, at)
        caught(
            bomb,
            lambda bomb=bomb: root(Problem(residual, jvp=bomb), START, method=NewtonKrylov(krylov=krylov), stop=TIGHT),
        )


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, StopIteration, Private])
def test_exceptions_through_wolfe(kind):
    for at in (1, 3, 8):
        bomb = Bomb(residual, kind, at)
        method = NewtonKrylov(line_search=ims.Wolfe())
        caught(bomb, lambda bomb=bomb, method=method: root(bomb, START, method=method, stop=TIGHT))


@every_exception
def test_exceptions_of_take_and_guess(kind):
    c = np.array([[1.0], [9.0]])
    bomb = Bomb(None, kind, 0)
    problem = Problem(lambda x: x**2 - c, batch_ndim=1, take=bomb)
    caught(bomb, lambda: root(problem, np.ones((2, 1))))
    bomb = Bomb(None, kind, 0)
    caught(bomb, lambda: root(Problem(residual, initial_guess=bomb)))


def test_a_solve_after_an_exception_is_clean():
    problem = Problem(Bomb(residual, ValueError, 6))
    with pytest.raises(ValueError, match="boom"):
        root(problem, START)
    problem.residual.left = 10**9
    same(root(problem, START), root(residual, START))
