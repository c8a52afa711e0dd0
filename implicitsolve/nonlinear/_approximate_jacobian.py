"""An approximate Jacobian of the caller: its inverse makes steps of F, preconditions, and is left where it fails."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
import scipy.linalg
import scipy.sparse

from implicitsolve._arrays.namespace import array_namespace
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.direct import BlockLU
from implicitsolve.direct._sparse_lu import SparseLU
from implicitsolve.kernels._norms import norm2
from implicitsolve.krylov import GMRES
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._jacobian import Scales
from implicitsolve.linearize._shifts import toeplitz_blocks
from implicitsolve.nonlinear._anderson import Anderson
from implicitsolve.nonlinear._budget import evaluations_without_progress
from implicitsolve.nonlinear._newton_krylov import NewtonKrylov
from implicitsolve.nonlinear._plan import ANY, CLOSE, End, Stage, label
from implicitsolve.nonlinear._sparse_newton import REJECTED
from implicitsolve.nonlinear._state import NonlinearMethod, Solution, SolveContext, Standing
from implicitsolve.operators import BlockBandedMatrix, LinearOperator, aslinearoperator
from implicitsolve.operators._sparse import SparseMatrix

ACCURACY, OPERATOR_PRODUCTS = 1e-3, 200  # of solves with an operator, which take no residuals, and its products at most
AIDED = 0.25  # part of the budget in evaluations, after which a preconditioner is left
HALVING_STEPS = 5  # steps in which Anderson's method must halve ||F||


def _is_dear(context: SolveContext) -> Callable[[Standing], bool]:
    tally = context.evaluator.tally
    most = tally.evaluations + AIDED * evaluations_without_progress(context.evaluator.size)
    return lambda standing: tally.evaluations > most


DEAR = End("products have taken a quarter of the budget", _is_dear)


def offer_inverse(evaluator: Evaluator, given: Any, scales: Scales | None = None) -> None:
    """Have J come with the inverse of `given`, a `jac_approx`, or function of x, in the units of `scales`."""

    def inverse(A: Any) -> LinearOperator:
        M = evaluator.operator(_invert(A), "jac_approx")
        if scales is None:
            return M
        x, F = (evaluator.flatten(sizes) for sizes in (scales.x, scales.F))
        return LinearOperator(lambda v: M.matvec(v * F) / x, in_shape=M.in_shape, batch_shape=M.batch_shape)

    def at(x: Array) -> LinearOperator:
        x = evaluator.unflatten(x)
        return inverse(given(x if scales is None else x * scales.x))

    @cache
    def constant() -> LinearOperator:
        return inverse(given)

    is_function = callable(given) and not hasattr(given, "matvec")
    evaluator.approximate = at if is_function else lambda x: constant()


def _invert(A: Any) -> Any:
    """Factors, or what approximates A^-1 by products with A."""
    if hasattr(A, "solve"):
        return A
    if isinstance(A, tuple) and len(A) == 2 and np.ndim(A[0]) == 2:
        return LinearOperator(lambda b: scipy.linalg.lu_solve(A, b), in_shape=A[0].shape[0])
    if scipy.sparse.issparse(A) or isinstance(A, SparseMatrix):
        return SparseLU().factor(A)
    operator = aslinearoperator(A, "jac_approx")
    if operator.shape[0] != operator.shape[1]:
        raise ValueError(f"`jac_approx` must be square, got shape {operator.shape}")
    if isinstance(A, np.ndarray):
        A = BlockBandedMatrix(A[None, None], lower=0, upper=0)
    return BlockLU().factor(A) if isinstance(A, BlockBandedMatrix) else _by_products(operator.flat())


def _by_products(A: LinearOperator) -> LinearOperator:
    M = A.approximate_inverse()

    def solve(b: Array) -> Array:
        rows = array_namespace(b).reshape(b, (1, -1))
        return GMRES().solve(A, rows, target=ACCURACY * norm2(rows), max_iterations=OPERATOR_PRODUCTS, M=M).x[0, :]

    return LinearOperator(solve, in_shape=A.shape[0])


class Damped(Anderson):
    """Anderson's method with mixing from the second step on, which takes 0.4 to 0.9 of the evaluations."""

    contraction: ClassVar[float] = 0.0


def approximated_stages(method: NonlinearMethod, context: SolveContext) -> list[Stage]:
    """The inverse alone, the inverse as preconditioner, and a method without it."""
    mixing = [] if context.evaluator.box is not None else [Stage(method=Damped(patience=HALVING_STEPS), until=REJECTED)]
    krylov = Stage(method=NewtonKrylov(retry=False), until=DEAR, continues=ANY)
    return [*mixing, krylov, Stage(method=Aided(method=method), continues=CLOSE)]


@dataclass(frozen=True, kw_only=True)
class Aided(NonlinearMethod):
    """A method for the problem without its `jac_approx`, or with one that the search for a pattern has found."""

    method: NonlinearMethod
    words: str = " without `jac_approx`"
    matrix: Callable[[SolveContext], Any] = lambda context: None
    keeps_bounds = True

    @property
    def label(self) -> str:
        return label(self.method) + self.words

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        evaluator = copy.copy(context.evaluator)
        evaluator.approximate = None
        if (matrix := self.matrix(context)) is not None:
            offer_inverse(evaluator, matrix)
        return self.method.solve(replace(context, evaluator=evaluator), start, rows)


def _shifts(context: SolveContext) -> HostArray:
    return toeplitz_blocks(context.memory.detection.kernels)  # type: ignore[union-attr, arg-type]


BY_SHIFTS = Aided(method=NewtonKrylov(retry=False), words=", preconditioned by shifts of few columns,", matrix=_shifts)
