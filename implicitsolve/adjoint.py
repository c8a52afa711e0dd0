"""Derivatives of a solution with respect to the parameters: reverse mode and forward mode."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from implicitsolve._assemble import Assembler
from implicitsolve._evaluate import Evaluator
from implicitsolve._half_system import HalfSystem
from implicitsolve._namespace import array_namespace, as_inexact, is_complex, norm2
from implicitsolve._typing import Array
from implicitsolve.direct import BlockLU, DirectMethod
from implicitsolve.direct._solve import solve_factored
from implicitsolve.krylov import LGMRES, KrylovMethod
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
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

LARGEST = 2**27  # numbers that the vectors of a Krylov space may take by default: 1 GiB in float64
LONGEST = 200  # vectors of one system, by default


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
        Needs `vjp`, `linearize` or `jac` (with adjoint products), or `structure`, and `parameter_vjp` if it has
        parameters. With a structure and nothing but the residual, J is assembled from central differences, and the
        gradients are accurate to about eps^(2/3).
    result : NonlinearResult or array_like
        What `root` returned, or a solution.
    cotangent : array_like
        d loss / d x, of the shape of x.
    method : Krylov method, BlockLU or CyclicReduction, optional
        Default: `BlockLU`, of the assembled J, where `root` would take it by "auto" (a declared structure of small
        blocks), else `LGMRES` with as many vectors, up to 200, as fit into 1 GiB: a restart can cost more products than
        the whole solve without it.
    M : LinearOperator, array or sparse matrix, optional
        Approximates the inverse of J^H. With a declared structure it may be `BlockLU` or one of
        `implicitsolve.precondition`: built from the assembled J, and used transposed. Without it a problem with
        `halves` is solved for every second block alone (`even_odd`).
    x0 : array_like, optional
        Start for lam, such as the adjoint of an earlier, similar solve. With one the default method is `LGMRES`.
    stop : LinearStop, optional
        Default: ||cotangent - J^H lam||_2 <= 1e-6 ||cotangent||_2.
    wrt : collection of str, optional
        Names of the parameters whose gradients are wanted; with none of them only lam is computed. Default: all. A
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

    def __init__(
        self, problem: Problem, result: Any, *, needs_adjoint: bool, wrt: Collection[str] | None = None
    ) -> None:
        self.caller = "pull_back" if needs_adjoint else "push_forward"
        if not isinstance(problem, Problem):
            raise TypeError(f"{self.caller}: `problem` must be a Problem, got {type(problem).__name__}")
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
        if not evaluator.has_exact_products:
            evaluator.length.follow(evaluator.rows, norm2(self.flat))
        self.F = evaluator.flatten(result.fun) if isinstance(result, NonlinearResult) else None
        self.wrt = _checked_wrt(problem, wrt) if needs_adjoint else None
        self.pulled: Mapping[str, Array] | None = None  # gradients, where the adjoint solve has left them

    def solve(self, right: Any, name: str, method: Any, M: Any, x0: Any, stop: LinearStop | None) -> LinearResult:
        """Solve with J, or J^H, by the chosen method."""
        evaluator, x = self.evaluator, self.x
        right = as_inexact(right, name)
        if right.shape != x.shape:
            raise ValueError(f"{self.caller}: `{name}` must have the shape of x, {x.shape}, got {right.shape}")
        flat = evaluator.flatten(self._like_x(right, name))
        start = None if x0 is None else self._like_x(as_inexact(x0, "x0"), "x0")
        if start is not None and start.shape != x.shape:
            raise ValueError(f"{self.caller}: `x0` must have the shape of x, {x.shape}, got {start.shape}")
        start = None if start is None else evaluator.flatten(start)
        problem = evaluator.problem
        is_unaided = is_settings(method, "factor") or getattr(method, "is_unaided", False)
        if problem.halves is not None and M is None and not is_unaided:
            return self._shaped(self._halved(flat, start, method, LinearStop() if stop is None else stop))
        assembler = None if problem.structure is None else Assembler(evaluator, central=True)
        is_free = method is None and M is None and x0 is None and problem.substitute is None
        if is_free and assembler is not None and assembler.favors_direct:
            method = BlockLU()
        if is_settings(method, "factor"):
            for unused, value in (("M", M), ("x0", x0)):
                if value is not None:
                    got = type(value).__name__
                    raise ValueError(f"{self.caller}: `{unused}` must be None for a direct method, got {got}")
            result = self._direct(assembler, flat, method, LinearStop() if stop is None else stop)
        else:
            M = self._preconditioner(assembler, M)
            A = self._operator(assembler)
            if problem.substitute is not None and method is None and M is None and start is None:
                start, known = _substituted(A, flat, LinearStop() if stop is None else stop)
                if known is not None:
                    return self._shaped(known)
            method = long_krylov(flat) if method is None else method
            result = linear_solve(A, flat, method=method, M=M, x0=start, stop=stop)
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
            target=per_system(np.asarray(result.target), batch_shape) if np.ndim(result.target) else result.target,
            iterations=per_system(result.iterations, batch_shape),
        )

    def _halved(self, b: Array, start: Array | None, method: Any, stop: LinearStop) -> LinearResult:
        """Solve for every second block alone."""
        solver = long_krylov(b) if method is None else method
        check_linear("linear_solve", solver, stop)
        system = HalfSystem(self.evaluator, self.x, needs_adjoint=self.needs_adjoint, wrt=self.wrt)
        linear, self.pulled = system.solve(b, start, solver, stop)
        return linear

    def gradients(self, lam: Array) -> dict[str, Array]:
        """d loss / d theta for the parameters that are wanted."""
        problem, xp = self.evaluator.problem, self.evaluator.xp
        if self.pulled is not None:
            return checked_gradients("pull_back", problem, dict(self.pulled), self.wrt)
        function: Any = problem.parameter_vjp
        if function is None or (self.wrt is not None and not self.wrt):
            return {}
        wanted = {} if self.wrt is None or "wrt" not in inspect.signature(function).parameters else {"wrt": self.wrt}
        raw = function(xp.asarray(self.x, copy=True), xp.asarray(lam, copy=True), **wanted)
        return gradients_of("pull_back", problem, raw, self.wrt)

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

    def _like_x(self, value: Array, name: str) -> Array:
        """Return `value` in the dtype of x."""
        if is_complex(value) and not is_complex(self.x):
            raise TypeError(f"{self.caller}: `{name}` must be real, since x is, got dtype {value.dtype}")
        return array_namespace(value, self.x).astype(value, self.x.dtype)

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
            raise ValueError(
                f"{self.caller}: a direct `method` needs a problem that declares its `structure`, got None"
            )
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
            raise ValueError(f"{self.caller}: this `M` needs a problem that declares its `structure`, got None")
        inverse = M.build(self._matrix(assembler))
        return (inverse.H if self.needs_adjoint else inverse).flat()


def _substituted(A: LinearOperator, b: Array, stop: LinearStop) -> tuple[Array | None, LinearResult | None]:
    """The solution of a causal problem's system by the exact inverse of J, and the result if a product confirms it."""
    inverse = A.approximate_inverse()
    if inverse is None:
        return None, None
    with np.errstate(all="ignore"):
        x = inverse.matvec(b)
        norms = norm2(b - A.matvec(x))
    target = stop.target(norm2(b), b)
    if not (norms <= target).all():
        return (x, None) if np.isfinite(norms).all() else (None, None)
    status, once = np.full(norms.shape, int(Status.CONVERGED)), np.ones(norms.shape, dtype=int)
    return x, LinearResult(x=x, status=status, residual_norm=norms, target=target, iterations=once, matvecs=1)


def long_krylov(b: Array) -> LGMRES:
    """A method for right-hand sides b (B, N) that restarts only where its vectors would not fit into `LARGEST`."""
    systems, N = max(1, b.shape[0]), max(1, b.shape[1])
    columns = min(LARGEST // (2 * systems * N), math.isqrt(LARGEST // (3 * systems)))
    return LGMRES(restart=max(LGMRES().restart, min(LONGEST, columns)))


def gradients_of(caller: str, problem: Problem, raw: Any, wrt: Collection[str] | None = None) -> dict[str, Array]:
    """Check what `parameter_vjp` returned; give d loss / d theta, for the parameters of `wrt` or for all."""
    if not isinstance(raw, Mapping):
        raise TypeError(f"{caller}: `parameter_vjp` must return a mapping, got {type(raw).__name__}")
    gradients = {name: -value for name, value in raw.items() if wrt is None or name in wrt}
    return checked_gradients(caller, problem, gradients, wrt)


def checked_gradients(
    caller: str, problem: Problem, gradients: dict[str, Array], wrt: Collection[str] | None
) -> dict[str, Array]:
    """Raise unless there is a gradient of the right shape for each parameter that is wanted."""
    for name, value in (problem.parameters or {}).items():
        if wrt is not None and name not in wrt:
            continue
        if name not in gradients:
            raise ValueError(f"{caller}: `parameter_vjp` must return a gradient for {name!r}")
        if tuple(gradients[name].shape) != tuple(np.shape(value)):
            shapes = f"{tuple(np.shape(value))}, got {tuple(gradients[name].shape)}"
            raise ValueError(f"{caller}: `parameter_vjp` must return for {name!r} the parameter's shape {shapes}")
    return gradients


def _checked_wrt(problem: Problem, wrt: Collection[str] | None) -> frozenset[str] | None:
    """Raise unless `wrt` names parameters of the problem, whose gradients can be had."""
    if wrt is None:
        if problem.parameters and problem.parameter_vjp is None:
            raise TypeError("pull_back: the problem has parameters but no `parameter_vjp`")
        return None
    if isinstance(wrt, str):
        raise TypeError(f"pull_back: `wrt` must be a collection of names, got the string {wrt!r}")
    unknown = sorted(set(wrt) - set(problem.parameters or wrt))
    if unknown:
        raise ValueError(f"pull_back: `wrt` must name parameters of the problem, got {unknown}")
    if wrt and problem.parameter_vjp is None:
        raise TypeError("pull_back: the problem has no `parameter_vjp` for the gradients of `wrt`")
    return frozenset(wrt)


def _status(result: Any, linear: LinearResult) -> Any:
    """The linear solve's status, or FORWARD_NOT_CONVERGED where it converged at no solution."""
    if not isinstance(result, NonlinearResult):
        return linear.status
    wrong = (np.asarray(result.status) != Status.CONVERGED) & (np.asarray(linear.status) == Status.CONVERGED)
    if wrong.ndim == 0:
        return Status.FORWARD_NOT_CONVERGED if wrong else linear.status
    return np.where(wrong, int(Status.FORWARD_NOT_CONVERGED), linear.status)
