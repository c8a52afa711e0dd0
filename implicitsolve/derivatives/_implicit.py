"""Derivatives of a solution with respect to the parameters: reverse mode and forward mode."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from implicitsolve._arrays.namespace import array_namespace, as_inexact, is_complex
from implicitsolve._typing import Array
from implicitsolve.derivatives._systems import (
    AdjointResult,
    HalfSystem,
    TangentResult,
    as_given,
    by_substitution,
    checked_gradients,
    checked_wrt,
    gradients_of,
    long_krylov,
    marked_singular,
)
from implicitsolve.direct import BlockLU, DirectMethod, Factored, solve_factored
from implicitsolve.direct._sparse_lu import SparseLU
from implicitsolve.kernels._norms import norm2
from implicitsolve.krylov import LGMRES, KrylovMethod
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._evaluator import Evaluator, JacobianProducts
from implicitsolve.linearize._sparse_assemble import sparse_jacobian
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.precondition._parts import build_inverse, builds_inverse, takes_sparse
from implicitsolve.problem import Problem
from implicitsolve.result import LinearResult, NonlinearResult, per_system, status_per_system
from implicitsolve.solve import check_linear, linear_solve
from implicitsolve.status import Status
from implicitsolve.stopping import LinearStop


def pull_back(
    problem: Problem,
    result: NonlinearResult | Any,
    cotangent: Any,
    *,
    method: KrylovMethod | DirectMethod | None = None,
    M: Any = None,
    x0: Any = None,
    stop: LinearStop | None = None,
    wrt: Collection[str] | None = None,
) -> AdjointResult:
    """Gradients of a loss through the solution of F(x, theta) = 0.

    Solves the adjoint system ``J^H lam = cotangent`` at the solution, once for all parameters, and returns
    ``d loss / d theta = -(dF / d theta)^H lam`` for each. The loss's direct dependence on theta is the caller's to add.

    Parameters
    ----------
    problem : Problem
        Needs `vjp`, `linearize` or `jac` (with adjoint products), or `structure`, or a `result` whose solve has
        detected the sparsity of J, and `parameter_vjp` if it has parameters. With a structure and nothing but the
        residual, J is assembled from central differences, and the gradients are accurate to about eps^(2/3) times its
        condition number; where that leaves no digit the status is SINGULAR.
    result : NonlinearResult or array_like
        What `root` returned, or a solution.
    cotangent : array_like
        d loss / d x, of the shape of x.
    method : Krylov method, BlockLU or CyclicReduction, optional
        Default: factors of the assembled J, by `BlockLU` where `root` would take it by "auto" (a declared structure of
        small blocks), by sparse LU with a `Sparse` or `Grid` structure or "detect"; else `LGMRES` with as many vectors,
        up to 200, as fit into 1 GiB: a restart can cost more products than the whole solve without it. With `halves`,
        blocks of at least 64 unknowns and float64 it begins in float32, where products take half the time; the residual
        is measured in float64, and what is left of it is solved there.
    M : LinearOperator, array or sparse matrix, optional
        Approximates the inverse of J^H. With a declared structure it may be `BlockLU` or one of
        `implicitsolve.precondition`: built from the assembled J, and used transposed. Without it a problem with
        `halves` is solved for every second block alone (`even_odd`).
    x0 : array_like, optional
        Start for lam, such as the adjoint of an earlier, similar solve. With one the default method is `LGMRES`.
    stop : LinearStop, optional
        Default: ||cotangent - J^H lam||_2 <= 1e-6 ||cotangent||_2.
    wrt : collection of str, optional
        Names of the parameters whose gradients are requested; if empty only lam is computed. Default: all. A
        layer's gradient by its inputs, for example, takes as much work as that by its input weights.

    Returns
    -------
    AdjointResult
        Gradients by name, lam, and a status for each system. FORWARD_NOT_CONVERGED marks gradients that were
        taken at a point which is not a solution.

    Raises
    ------
    TypeError
        If the problem cannot multiply with J^H.
    ValueError
        If `cotangent` does not have the shape of x, or `wrt` names an unknown parameter.

    References
    ----------
    .. [1] M. Kazi and B. Thompson, "Implicitly-defined neural networks for sequence labeling", ACL (2017), (1).

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> a = np.array([4.0, 9.0])
    >>> sqrt = ims.Problem(
    ...     lambda x: x**2 - a,
    ...     jvp=lambda x, v: 2 * x * v,
    ...     vjp=lambda x, w: 2 * x * w,
    ...     parameters={"a": a},
    ...     parameter_vjp=lambda x, w: {"a": -w},
    ... )
    >>> solution = ims.root(sqrt, np.ones(2), stop=ims.NonlinearStop(atol=1e-12))
    >>> ims.pull_back(sqrt, solution, np.ones(2), stop=ims.LinearStop(rtol=1e-12)).gradients["a"].round(6)
    array([0.25    , 0.166667])
    """
    point = _Point(problem, result, needs_adjoint=True, wrt=wrt)
    linear = point.solve(cotangent, "cotangent", method, M, x0, stop)
    return AdjointResult(
        gradients=point.gradients(linear.x),
        adjoint=linear.x,
        status=_status(result, linear),
        linear=linear,
        counts=point.evaluator.tally.counts(),
    )


def push_forward(
    problem: Problem,
    result: NonlinearResult | Any,
    tangents: Mapping[str, Any],
    *,
    method: KrylovMethod | DirectMethod | None = None,
    M: Any = None,
    x0: Any = None,
    stop: LinearStop | None = None,
) -> TangentResult:
    """Directional derivative of the solution of F(x, theta) = 0.

    Solves ``J dx = -(dF / d theta) d theta`` at the solution.

    Parameters
    ----------
    problem : Problem
        Needs `parameter_jvp`; products with J are exact where the problem offers them, else differences.
    result : NonlinearResult or array_like
        What `root` returned, or a solution.
    tangents : mapping of str to array_like
        d theta for some of the problem's parameters.
    method, M, x0, stop : optional
        As in `pull_back`, for J in place of J^H.

    Returns
    -------
    TangentResult
        dx, shaped like x, and a status for each system.

    Raises
    ------
    TypeError
        If the problem has no `parameter_jvp`, or `tangents` is no mapping.
    ValueError
        If `tangents` names an unknown parameter.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> a = np.array([4.0, 9.0])
    >>> sqrt = ims.Problem(
    ...     lambda x: x**2 - a,
    ...     jvp=lambda x, v: 2 * x * v,
    ...     parameters={"a": a},
    ...     parameter_jvp=lambda x, tangents: -tangents["a"],
    ... )
    >>> ims.push_forward(sqrt, np.array([2.0, 3.0]), {"a": np.ones(2)}).tangent.round(6)
    array([0.25    , 0.166667])
    """
    _check_problem("push_forward", problem)
    if problem.parameter_jvp is None:
        raise TypeError("push_forward: the problem has no `parameter_jvp`")
    if not isinstance(tangents, Mapping):
        raise TypeError(f"push_forward: `tangents` must map names to arrays, got {type(tangents).__name__}")
    unknown = sorted(set(tangents) - set(problem.parameters or tangents))
    if unknown:
        raise ValueError(f"push_forward: `tangents` must name parameters of the problem, got {unknown}")
    point = _Point(problem, result, needs_adjoint=False)
    evaluator, x = point.evaluator, point.x
    given = {name: as_given(value, f"tangents[{name!r}]") for name, value in tangents.items()}
    right: Any = problem.parameter_jvp(evaluator.xp.asarray(x, copy=True), given)
    if right is None:
        raise TypeError("push_forward: `parameter_jvp` returned None; it must return an array of the shape of x")
    linear = point.solve(-right, "parameter_jvp", method, M, x0, stop)
    return TangentResult(
        tangent=linear.x, status=_status(result, linear), linear=linear, counts=evaluator.tally.counts()
    )


def _check_problem(caller: str, problem: Any) -> None:
    if not isinstance(problem, Problem):
        raise TypeError(f"{caller}: `problem` must be a Problem, got {type(problem).__name__}")


class _Point:
    """The linear system of a derivative at a solution: J, or J^H where `needs_adjoint`."""

    def __init__(
        self, problem: Problem, result: Any, *, needs_adjoint: bool, wrt: Collection[str] | None = None
    ) -> None:
        self.caller = "pull_back" if needs_adjoint else "push_forward"
        _check_problem(self.caller, problem)
        self.x = as_inexact(result.x if isinstance(result, NonlinearResult) else result, "result")
        self.evaluator = evaluator = Evaluator(problem, self.x)
        self.needs_adjoint = needs_adjoint
        self.J: BlockBandedMatrix | None = None
        structure = None if problem.structure == "none" else problem.structure
        found = (
            result.detection if isinstance(result, NonlinearResult) and problem.structure in (None, "detect") else None
        )
        self.found = None if found is None or found.structure is None else found
        ways = problem.vjp, problem.linearize, problem.jac, structure, problem.halves, self.found
        if needs_adjoint and all(way is None for way in ways):
            raise TypeError("pull_back: the problem needs `vjp`, `linearize`, `jac` or `structure` for J^H")
        self.flat = evaluator.flatten(self.x)
        if not evaluator.has_exact_products:
            evaluator.length.follow(evaluator.rows, norm2(self.flat))
        self.F = evaluator.flatten(result.fun) if isinstance(result, NonlinearResult) else None
        self.wrt = checked_wrt(problem, wrt) if needs_adjoint else None
        self.pulled: Mapping[str, Array] | None = None  # gradients, if the adjoint solve has computed them

    def solve(self, right: Any, name: str, method: Any, M: Any, x0: Any, stop: LinearStop | None) -> LinearResult:
        """Solve with J, or J^H, by the chosen method."""
        b = self._flatten(right, name)
        stop = LinearStop() if stop is None else stop
        check_linear(self.caller, LGMRES() if method is None else method, stop)
        start = None if x0 is None else self._flatten(x0, "x0")
        return self._shape_of(self._solved(b, start, method, M, stop))

    def _flatten(self, value: Any, name: str) -> Array:
        """An argument like x, of its dtype, on arrays (B, N)."""
        value = as_inexact(value, name)
        if value.shape != self.x.shape:
            raise ValueError(f"{self.caller}: `{name}` must have the shape of x, {self.x.shape}, got {value.shape}")
        if is_complex(value) and not is_complex(self.x):
            raise TypeError(f"{self.caller}: `{name}` must be real, since x is, got dtype {value.dtype}")
        return self.evaluator.flatten(array_namespace(value, self.x).astype(value, self.x.dtype))

    def _solved(self, b: Array, start: Array | None, method: Any, M: Any, stop: LinearStop) -> LinearResult:
        """Solve for b (B, N), with the default method where `method` is None."""
        problem, assembler = self.evaluator.problem, self.assembler
        if problem.halves is not None and M is None and (method is None or method.may_transform):
            system = HalfSystem(self.evaluator, self.x, needs_adjoint=self.needs_adjoint, wrt=self.wrt)
            linear, self.pulled = system.solve(b, start, method, stop)
            return linear
        is_free = method is None and M is None and start is None
        if is_free and problem.substitute is None and assembler is not None and assembler.favors_direct:
            method = BlockLU()
        sparse = self._sparse() if is_free and problem.substitute is None else None
        if sparse is not None:
            return self._factored(sparse, SparseLU().factor(sparse), b, stop)
        if method is not None and method.kind == "direct":
            for name, value in (("M", M), ("x0", start)):
                if value is not None:
                    got = type(value).__name__
                    raise ValueError(f"{self.caller}: `{name}` must be None for a direct method, got {got}")
            J = self._matrix("a direct `method`", method)
            return self._factored(J.flat(), method.factor(J), b, stop)
        M, A = self._preconditioner(M), self._operator()
        if is_free and problem.substitute is not None:
            start, known = by_substitution(A, b, stop)
            if known is not None:
                return known
        linear = linear_solve(A, b, method=long_krylov(b) if method is None else method, M=M, x0=start, stop=stop)
        return self._marked(linear, A, b)

    def _shape_of(self, result: LinearResult) -> LinearResult:
        """A result on arrays (B, N) in the problem's shapes."""
        evaluator = self.evaluator
        batch_shape = evaluator.batch_shape
        return replace(
            result,
            x=evaluator.unflatten(result.x),
            status=status_per_system(result.status, batch_shape),
            residual_norm=per_system(result.residual_norm, batch_shape),
            target=per_system(np.asarray(result.target), batch_shape) if np.ndim(result.target) else result.target,
            iterations=per_system(result.iterations, batch_shape),
        )

    def gradients(self, lam: Array) -> dict[str, Array]:
        """Return d loss / d theta for the parameters in `wrt`, or all."""
        problem, xp = self.evaluator.problem, self.evaluator.xp
        if self.pulled is not None:
            return checked_gradients("pull_back", problem, dict(self.pulled), self.wrt)
        function: Any = problem.parameter_vjp
        if function is None or (self.wrt is not None and not self.wrt):
            return {}
        wanted = {} if self.wrt is None or "wrt" not in inspect.signature(function).parameters else {"wrt": self.wrt}
        raw = function(xp.asarray(self.x, copy=True), xp.asarray(lam, copy=True), **wanted)
        return gradients_of("pull_back", problem, raw, self.wrt)

    @cached_property
    def assembler(self) -> Assembler | None:
        """What assembles J, from central differences where there are no exact products; None without a structure."""
        return None if self.evaluator.problem.block_structure is None else Assembler(self.evaluator, central=True)

    def _sparse(self) -> SparseMatrix | None:
        """J as a sparse matrix, where a sparse structure is declared or was detected, or is to be."""
        problem = self.evaluator.problem
        if problem.sparse_structure is None and problem.structure != "detect" and self.found is None:
            return None
        return sparse_jacobian(
            self.caller, self.evaluator, self.flat, self._residual(), self.found, by_columns=self.needs_adjoint
        )

    def _matrix(self, wanted_by: str, settings: Any = None) -> Any:
        """The assembled J; a sparse one, or a matrix of the problem's own, where the settings take those."""
        if self.assembler is None and takes_sparse(settings):
            own = self.evaluator.matrix(self.flat) if self.evaluator.problem.jac is not None else self._sparse()
            if own is not None:
                return own
        if self.assembler is None:
            structure = self.evaluator.problem.structure
            raise ValueError(
                f"{self.caller}: {wanted_by} needs a problem that declares its `structure`, got {structure!r}"
            )
        if self.J is None:
            self.J = self.assembler.assemble(self.evaluator, self.flat, self._residual())
        return self.J

    def _residual(self) -> Any:
        """F at the solution, which differences need; None where products are exact."""
        evaluator = self.evaluator
        if self.F is None and not evaluator.has_exact_products:
            self.F = evaluator.residual(self.flat)
        return self.F

    def _operator(self) -> LinearOperator:
        """J, or J^H: by the problem's own products, else assembled, else by differences."""
        assembled: Any = None
        if self._own_product is None and not self._has_own_matrix:
            if self.assembler is not None:
                assembled = self._matrix("the operator").flat()
            elif self.needs_adjoint:
                assembled = self._sparse()
        if assembled is None:
            assembled = self.evaluator.jacobian(self.flat, None if self.needs_adjoint else self._residual())
        if self.needs_adjoint and assembled._rmatvec is None:
            raise TypeError(f"{self.caller}: no sparse J was found, and its products are none with J^H: give `vjp`")
        return assembled.H if self.needs_adjoint else assembled

    @property
    def _own_product(self) -> Any:
        """The problem's own product with J, or J^H; None if it has none."""
        problem = self.evaluator.problem
        return problem.vjp if self.needs_adjoint else problem.jvp

    @property
    def _has_own_matrix(self) -> bool:
        """Whether the problem gives J as an operator."""
        problem = self.evaluator.problem
        return problem.linearize is not None or problem.jac is not None

    def _factored(self, J: LinearOperator, inverse: Factored, b: Array, stop: LinearStop) -> LinearResult:
        """Solve by factors of J, refined with the problem's own products where it has some."""
        is_own = self._own_product is not None and not self._has_own_matrix
        A = self.evaluator.jacobian(self.flat, None) if is_own else J
        outcome = solve_factored(A, inverse, b, stop, adjoint=self.needs_adjoint)
        linear = LinearResult(**vars(outcome), matvecs=int(outcome.iterations.max(initial=0)))
        return self._marked(linear, A, b)

    def _marked(self, linear: LinearResult, A: LinearOperator, b: Array) -> LinearResult:
        """The result of a solve with A, SINGULAR where A was assembled from differences that do not determine it."""
        is_exact = self._own_product is not None or self.evaluator.has_exact_products
        return linear if is_exact or isinstance(A, JacobianProducts) else marked_singular(linear, A, b)

    def _preconditioner(self, M: Any) -> LinearOperator | None:
        """M on arrays (B, N); settings are built from the assembled J, and transposed for J^H."""
        if not builds_inverse(M):
            return None if M is None else self.evaluator.operator(M, "M")
        inverse = build_inverse(M, self._matrix("this `M`", M))
        return (inverse.H if self.needs_adjoint else inverse).flat()


def _status(result: Any, linear: LinearResult) -> Any:
    """The linear solve's status, or FORWARD_NOT_CONVERGED where it converged but the nonlinear solve had not."""
    if not isinstance(result, NonlinearResult):
        return linear.status
    wrong = (np.asarray(result.status) != Status.CONVERGED) & (np.asarray(linear.status) == Status.CONVERGED)
    if wrong.ndim == 0:
        return Status.FORWARD_NOT_CONVERGED if wrong else linear.status
    return np.where(wrong, int(Status.FORWARD_NOT_CONVERGED), linear.status)
