"""Derivatives of a solution with respect to the parameters: reverse mode and forward mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from implicitsolve._assemble import Assembler
from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import array_namespace, as_inexact, is_complex, norm2
from implicitsolve._typing import Array
from implicitsolve.direct import BlockLU, DirectMethod
from implicitsolve.direct._solve import solve_factored
from implicitsolve.elimination import halves_of, merge, reduced_jacobian, split
from implicitsolve.krylov import LGMRES, KrylovMethod
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.operators._guard import guarded
from implicitsolve.problem import Problem
from implicitsolve.result import (
    AdjointResult,
    LinearResult,
    NonlinearResult,
    TangentResult,
    per_system,
    status_per_system,
)
from implicitsolve.solve import check_linear, linear_solve
from implicitsolve.status import Status
from implicitsolve.stopping import LinearStop, is_settings


def pull_back(
    problem: Problem,
    result: NonlinearResult | Any,
    cotangent: Any,
    *,
    method: KrylovMethod | DirectMethod | None = None,
    M: Any = None,
    x0: Any = None,
    stop: LinearStop | None = None,
) -> AdjointResult:
    """Gradients of a loss through the solution of F(x, theta) = 0.

    Solves the adjoint system ``J^H lam = cotangent`` at the solution, once for all parameters, and returns
    ``d loss / d theta = -(dF / d theta)^H lam`` for each. The loss's direct dependence on theta is the caller's to add.

    Parameters
    ----------
    problem : Problem
        Needs `vjp`, `linearize` or `jac` (with adjoint products), or `structure`, and `parameter_vjp` if it has
        parameters. With a structure and nothing but the residual, J is assembled from central differences, and the
        gradients are accurate to about eps^(2/3).
    result : NonlinearResult or array_like
        What `root` returned, or a solution.
    cotangent : array_like
        d loss / d x, of the shape of x.
    method : Krylov method, BlockLU or CyclicReduction, optional
        Default: `BlockLU`, of the assembled J, where `root` would take it by "auto" (a declared structure of small
        blocks), else that of `linear_solve`.
    M : LinearOperator, array or sparse matrix, optional
        Approximates the inverse of J^H. With a declared structure it may be `BlockLU` or one of
        `implicitsolve.precondition`: built from the assembled J, and used transposed. Without it a problem with
        `halves` is solved for every second block alone (`even_odd`).
    x0 : array_like, optional
        Start for lam, such as the adjoint of an earlier, similar solve.
    stop : LinearStop, optional
        Default: ||cotangent - J^H lam||_2 <= 1e-6 ||cotangent||_2.

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
        If `cotangent` does not have the shape of x.

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
    point = _Point(problem, result, needs_adjoint=True)
    evaluator, x = point.evaluator, point.x
    linear = point.solve(cotangent, "cotangent", method, M, x0, stop)
    lam = linear.x
    gradients: dict[str, Array] = {}
    if problem.parameter_vjp is not None:
        xp = evaluator.xp
        raw: Any = problem.parameter_vjp(xp.asarray(x, copy=True), xp.asarray(lam, copy=True))
        gradients = gradients_of("pull_back", problem, raw)
    elif problem.parameters:
        raise TypeError("pull_back: the problem has parameters but no `parameter_vjp`")
    return AdjointResult(
        gradients=gradients,
        adjoint=lam,
        status=_status(result, linear),
        linear=linear,
        counts=evaluator.tally.counts(),
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
        If the problem has no `parameter_jvp`.
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
    if problem.parameter_jvp is None:
        raise TypeError("push_forward: the problem has no `parameter_jvp`")
    unknown = sorted(set(tangents) - set(problem.parameters or tangents))
    if unknown:
        raise ValueError(f"push_forward: `tangents` must name parameters of the problem, got {unknown}")
    point = _Point(problem, result, needs_adjoint=False)
    evaluator, x = point.evaluator, point.x
    right: Any = problem.parameter_jvp(evaluator.xp.asarray(x, copy=True), dict(tangents))
    if right is None:
        raise TypeError("push_forward: `parameter_jvp` returned None; it must return an array of the shape of x")
    linear = point.solve(-right, "parameter_jvp", method, M, x0, stop)
    return TangentResult(
        tangent=linear.x, status=_status(result, linear), linear=linear, counts=evaluator.tally.counts()
    )


class _Point:
    """The linear system of a derivative at a solution: J, or J^H where `needs_adjoint`."""

    def __init__(self, problem: Problem, result: Any, *, needs_adjoint: bool) -> None:
        if not isinstance(problem, Problem):
            raise TypeError(f"`problem` must be a Problem, got {type(problem).__name__}")
        self.x = as_inexact(result.x if isinstance(result, NonlinearResult) else result, "result")
        self.evaluator = evaluator = Evaluator(problem, self.x)
        self.needs_adjoint = needs_adjoint
        self.J: BlockBandedMatrix | None = None
        if needs_adjoint and all(
            part is None for part in (problem.vjp, problem.linearize, problem.jac, problem.structure, problem.halves)
        ):
            raise TypeError(
                "pull_back: the problem needs `vjp`, `linearize`, `jac` or `structure` for products with J^H"
            )
        self.flat = evaluator.flatten(self.x)
        evaluator.length.follow(evaluator.rows, norm2(self.flat))
        self.F = evaluator.flatten(result.fun) if isinstance(result, NonlinearResult) else None

    def solve(self, right: Any, name: str, method: Any, M: Any, x0: Any, stop: LinearStop | None) -> LinearResult:
        """Solve with J, or J^H, by the chosen method."""
        evaluator, x = self.evaluator, self.x
        right = as_inexact(right, name)
        if right.shape != x.shape:
            raise ValueError(f"`{name}` must have the shape of x, {x.shape}, got {right.shape}")
        flat = evaluator.flatten(_like(right, x, name))
        start = None if x0 is None else _like(as_inexact(x0, "x0"), x, "x0")
        if start is not None and start.shape != x.shape:
            raise ValueError(f"`x0` must have the shape of x, {tuple(x.shape)}, got {tuple(start.shape)}")
        start = None if start is None else evaluator.flatten(start)
        problem = evaluator.problem
        is_unaided = is_settings(method, "factor") or getattr(method, "is_unaided", False)
        if problem.halves is not None and M is None and not is_unaided:
            return self._eliminated(flat, start, method, LinearStop() if stop is None else stop)
        assembler = None if problem.structure is None else Assembler(evaluator, central=True)
        is_free = method is None and M is None and x0 is None and problem.substitute is None
        if is_free and assembler is not None and assembler.favors_direct:
            method = BlockLU()
        if is_settings(method, "factor"):
            if M is not None or x0 is not None:
                raise ValueError("`M` and `x0` must be None for a direct `method`, which would not use them")
            result = self._direct(assembler, flat, method, LinearStop() if stop is None else stop)
        else:
            M = self._preconditioner(assembler, M)
            result = linear_solve(self._operator(assembler), flat, method=method, M=M, x0=start, stop=stop)
        return self._shaped(result)

    def _shaped(self, result: LinearResult) -> LinearResult:
        """A result on arrays (B, N) in the problem's shapes."""
        evaluator = self.evaluator
        batch_shape = evaluator.batch_shape
        return replace(
            result,
            x=evaluator.unflatten(result.x),
            status=status_per_system(result.status, batch_shape),
            residual_norm=per_system(result.residual_norm, batch_shape),
            iterations=per_system(result.iterations, batch_shape),
        )

    def _eliminated(self, b: Array, start: Array | None, method: Any, stop: LinearStop) -> LinearResult:
        """Solve for every second block alone: the others follow from them."""
        evaluator, problem = self.evaluator, self.evaluator.problem
        solver = LGMRES() if method is None else method
        check_linear("linear_solve", solver, stop)
        halves, axis = halves_of("pull_back", problem), problem.batch_ndim
        eliminated, kept = split(self.x, axis)
        _, first = halves.eliminated.linearize(kept)
        _, second = halves.kept.linearize(eliminated)
        from_eliminated, to_eliminated = (
            (first.rmatvec, second.rmatvec) if self.needs_adjoint else (second.matvec, first.matvec)
        )
        tally = evaluator.tally
        before = tally.counts()
        for kind in ("residuals", "linearizations"):
            tally.add(kind)
        J = guarded(reduced_jacobian(first, second, kept, axis), "linearize", tally.add)
        b_eliminated, b_kept = split(evaluator.unflatten(b), axis)
        right = b_kept + from_eliminated(b_eliminated)
        A = J.H if self.needs_adjoint else J
        xp, flat = evaluator.xp, (A.batch_shape[0], A.shape[1])
        outcome = solver.solve(
            A,
            xp.reshape(right, flat),
            target=stop.target(norm2(b), b),
            max_iterations=stop.max_iterations,
            M=A.approximate_inverse(),
            x0=None if start is None else xp.reshape(split(evaluator.unflatten(start), axis)[1], flat),
        )
        solved = xp.reshape(outcome.x, right.shape)
        x = merge(b_eliminated + to_eliminated(solved), solved, axis)
        spent = tally.counts() - before
        solution = evaluator.flatten(x)
        is_finite = np.isfinite(norm2(solution))  # an eliminated block may not be where no kept one depends on it
        return self._shaped(
            LinearResult(
                x=solution,
                status=np.where(is_finite, outcome.status, int(Status.NONFINITE)),
                residual_norm=outcome.residual_norm,
                iterations=outcome.iterations,
                matvecs=spent.jvps + spent.vjps + 1,
            )
        )

    def _matrix(self, assembler: Assembler) -> BlockBandedMatrix:
        """The assembled J."""
        if self.J is None:
            self.J = assembler.assemble(self.evaluator, self.flat, self._residual())
        return self.J

    def _residual(self) -> Array:
        """F at the solution, which differences need."""
        evaluator = self.evaluator
        if self.F is None and not evaluator.has_exact_products:
            self.F = evaluator.residual(self.flat)
        return self.F

    def _operator(self, assembler: Assembler | None) -> LinearOperator:
        """J, or J^H: by the problem's own products, else assembled, else by differences."""
        problem, evaluator = self.evaluator.problem, self.evaluator
        own = problem.vjp if self.needs_adjoint else problem.jvp
        if assembler is not None and all(part is None for part in (own, problem.linearize, problem.jac)):
            J = self._matrix(assembler).flat()
        else:
            J = evaluator.jacobian(self.flat, None if self.needs_adjoint else self._residual())
        return J.H if self.needs_adjoint else J

    def _direct(self, assembler: Assembler | None, b: Array, method: Any, stop: LinearStop) -> LinearResult:
        if assembler is None:
            raise ValueError("a direct `method` needs a problem that declares its `structure`, got None")
        J = self._matrix(assembler)
        outcome = solve_factored(self._exact(J), method.factor(J), b, stop, adjoint=self.needs_adjoint)
        return LinearResult(
            x=outcome.x,
            status=outcome.status,
            residual_norm=outcome.residual_norm,
            iterations=outcome.iterations,
            matvecs=int(outcome.iterations.max(initial=0)),
        )

    def _exact(self, J: BlockBandedMatrix) -> LinearOperator:
        """The problem's own products, which correct a J that was assembled from differences; else J."""
        problem = self.evaluator.problem
        own = problem.vjp if self.needs_adjoint else problem.jvp
        has_own = own is not None and problem.linearize is None and problem.jac is None
        return self.evaluator.jacobian(self.flat, None) if has_own else J.flat()

    def _preconditioner(self, assembler: Assembler | None, M: Any) -> LinearOperator | None:
        if M is None:
            return None
        if not is_settings(M, "build"):
            return self.evaluator.operator(M, "M")
        if assembler is None:
            raise ValueError("this `M` needs a problem that declares its `structure`, got None")
        inverse = M.build(self._matrix(assembler))
        return (inverse.H if self.needs_adjoint else inverse).flat()


def gradients_of(caller: str, problem: Problem, raw: Any) -> dict[str, Array]:
    """Check what `parameter_vjp` returned; give d loss / d theta."""
    if not isinstance(raw, Mapping):
        raise TypeError(f"{caller}: `parameter_vjp` must return a mapping, got {type(raw).__name__}")
    gradients = {name: -value for name, value in raw.items()}
    for name, value in (problem.parameters or {}).items():
        if name not in gradients:
            raise ValueError(f"{caller}: `parameter_vjp` must return a gradient for {name!r}")
        if tuple(gradients[name].shape) != tuple(np.shape(value)):
            shapes = f"{tuple(np.shape(value))}, got {tuple(gradients[name].shape)}"
            raise ValueError(f"{caller}: `parameter_vjp` must return for {name!r} the parameter's shape {shapes}")
    return gradients


def _like(value: Array, x: Array, name: str) -> Array:
    """Return `value` in the dtype of x."""
    if is_complex(value) and not is_complex(x):
        raise TypeError(f"`{name}` must be real, since x is, got dtype {value.dtype}")
    return array_namespace(value, x).astype(value, x.dtype)


def _status(result: Any, linear: LinearResult) -> Any:
    """The linear solve's status, or FORWARD_NOT_CONVERGED where it converged at no solution."""
    if not isinstance(result, NonlinearResult):
        return linear.status
    wrong = (np.asarray(result.status) != Status.CONVERGED) & (np.asarray(linear.status) == Status.CONVERGED)
    if wrong.ndim == 0:
        return Status.FORWARD_NOT_CONVERGED if wrong else linear.status
    return np.where(wrong, int(Status.FORWARD_NOT_CONVERGED), linear.status)
