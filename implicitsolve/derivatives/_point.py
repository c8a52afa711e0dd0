"""The linear system of a derivative at a solution: its solve, and whether the derivative is accurate."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from implicitsolve._arrays.host import from_host
from implicitsolve._arrays.namespace import array_namespace, as_inexact, eps, is_complex
from implicitsolve._linear_solve import check_linear, linear_solve
from implicitsolve._typing import Array, HostArray
from implicitsolve.derivatives._accuracy import TRUST, Differences, Equation, GivenSteps, Lengths, lengths
from implicitsolve.derivatives._parameter_differences import with_parameter_differences
from implicitsolve.derivatives._systems import (
    HalfSystem,
    by_substitution,
    checked_gradients,
    checked_wrt,
    gradients_of,
    long_krylov,
    marked_singular,
)
from implicitsolve.direct import BlockLU, Factored, solve_factored
from implicitsolve.direct._sparse_lu import SparseLU
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._evaluator import Evaluator, JacobianProducts
from implicitsolve.linearize._sparse_assemble import random_direction
from implicitsolve.linearize._sparse_jacobian import sparse_jacobian
from implicitsolve.nonlinear._solve import problem_in_state
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.precondition._parts import build_inverse, builds_inverse, takes_sparse
from implicitsolve.problem import Problem, with_derivatives
from implicitsolve.result import LinearResult, NonlinearResult, per_system, status_per_system
from implicitsolve.status import Status
from implicitsolve.stopping import LinearStop, kind_of

TINY_LENGTH = 1e-6  # of a difference, over the root mean square of all
DIFFERENCES = 8  # relative residual of a default solve by differences, over their rounding


class Point:
    """The linear system of a derivative at a solution: J, or J^H where `needs_adjoint`."""

    def __init__(
        self, problem: Problem, result: Any, *, needs_adjoint: bool, wrt: Collection[str] | None = None
    ) -> None:
        self.caller = "pull_back" if needs_adjoint else "push_forward"
        self.x = as_inexact(result.x if isinstance(result, NonlinearResult) else result, "result")
        problem = with_derivatives(problem, self.x)
        problem = with_parameter_differences(problem, self.x, needs_adjoint=needs_adjoint)
        problem = problem_in_state(dict(np.geterr()), problem)
        self.evaluator = evaluator = Evaluator(problem, self.x)
        self.needs_adjoint = needs_adjoint
        self.own_product = problem.vjp if needs_adjoint else problem.jvp
        self.has_own_matrix = not (problem.linearize is problem.jac is None)
        self.J: BlockBandedMatrix | None = None
        structure = None if problem.structure == "none" else problem.structure
        found = getattr(result, "detection", None) if problem.structure in (None, "detect") else None
        found = getattr(problem.derivatives, "detection", None) or found
        self.found = None if found is None or found.structure is None else found
        ways = problem.vjp, problem.linearize, problem.jac, structure, problem.halves, self.found
        if needs_adjoint and all(way is None for way in ways):
            raise TypeError('pull_back: J^H needs `vjp`, `jac`, `structure` (such as "detect"), or derivatives="trace"')
        self.flat = evaluator.flatten(self.x)
        is_measured = isinstance(result, NonlinearResult) and problem.halves is None
        self.F = evaluator.flatten(result.fun) if is_measured else None
        self.wrt = checked_wrt(problem, wrt) if needs_adjoint else None
        self.pulled: Mapping[str, Array] | None = None  # gradients, if the adjoint solve has computed them

    def forward(self, *, is_free: bool) -> Point:
        """The system of J, where this is that of J^H; both use the same factors, where the method is free."""
        other = copy.copy(self)
        vars(other).update({"_default": self._default} if is_free else {})
        other.caller, other.needs_adjoint, other.own_product = "push_forward", False, self.evaluator.problem.jvp
        return other

    def solve(self, right: Any, name: str, method: Any, M: Any, x0: Any, stop: LinearStop | None) -> LinearResult:
        b = self._flatten(right, name)
        stop = LinearStop() if stop is None else stop
        check_linear(self.caller, method, stop)
        start = None if x0 is None else self._flatten(x0, "x0")
        with np.errstate(all="ignore"):
            if self.lengths is not None:
                self.evaluator.length.follow(self.evaluator.rows, norm2(self.flat) * self.lengths.factor)
            return self._shape_of(self._mark_inaccurate(self._solve(b, start, method, M, stop), b))

    @cached_property
    def lengths(self) -> Lengths | None:
        """Lengths of the differences for J; None where the solve takes exact products."""
        if self.own_product is not None or self.has_own_matrix or self.evaluator.problem.halves is not None:
            return None
        return None if self.evaluator.has_exact_products else Lengths(self.evaluator, self.flat, self.F)

    def _mark_inaccurate(self, linear: LinearResult, b: Array) -> LinearResult:
        """The result, INACCURATE where the derivative does not satisfy its equation by differences of F."""
        evaluator, x, along = self.evaluator, self.flat, self.lengths
        asked = (linear.status == Status.CONVERGED) & (norm2(b) > 0)
        if not asked.any():
            return linear
        h = lengths(evaluator, x) if along is None else along.h
        if self.needs_adjoint:
            random = random_direction(None, x.shape[1], 0)
            d = evaluator.inward(x, h * from_host(random, x)) if along is None else along.along.d
            equation = Equation.of_adjoint(linear.x, b, d, linear.residual_norm)
        else:
            equation = Equation.of_tangent(linear.x, b, h, linear.residual_norm)
        if along is None:
            holds: HostArray = equation.holds_for_some(Differences(evaluator, x, equation.d, self.F), asked)
        elif self.needs_adjoint:
            holds = equation.holds(along.derivative, along.distance, along.are_good)
        else:
            holds = equation.holds(*Differences(evaluator, x, equation.d, self.F).pair((0, 0)), along.are_good)
            holds = holds & (along.error <= eps(evaluator.xp, evaluator.dtype) ** 0.25)
        wrong = asked & ~(holds & ~self._is_contradicted(linear, b, h))
        return replace(linear, status=np.where(wrong, int(Status.INACCURATE), linear.status)) if wrong.any() else linear

    def _is_contradicted(self, linear: LinearResult, b: Array, h: Array) -> HostArray:
        """Whether a derivative is wrong along a d in which tiny unknowns move as far as others; four evaluations."""
        evaluator, x, xp = self.evaluator, self.flat, self.evaluator.xp
        size = from_host(norm2(h) / math.sqrt(max(1, x.shape[1])), x)[:, None]
        if not bool(xp.any(xp.abs(h) < TINY_LENGTH * size)):
            return np.zeros(x.shape[0], dtype=bool)
        farther = xp.maximum(xp.abs(h), size)
        if self.needs_adjoint:
            d = evaluator.inward(x, farther * from_host(random_direction(None, x.shape[1], 1), x))
            equation = Equation.of_adjoint(linear.x, b, d, linear.residual_norm)
        else:
            equation = Equation.of_tangent(linear.x, b, farther, linear.residual_norm)
        return equation.fails(*Differences(evaluator, x, equation.d, self.F).pair((0, 0)))

    def _flatten(self, value: Any, name: str) -> Array:
        return self.evaluator.flatten(self.like_x(value, name))

    def like_x(self, value: Any, name: str) -> Array:
        """An argument of the shape of x, in its dtype."""
        value = as_inexact(value, name)
        if value.shape != self.x.shape:
            raise ValueError(f"{self.caller}: `{name}` must have the shape of x, {self.x.shape}, got {value.shape}")
        if is_complex(value) and not is_complex(self.x):
            raise TypeError(f"{self.caller}: `{name}` must be real, since x is, got dtype {value.dtype}")
        return array_namespace(value, self.x).astype(value, self.x.dtype)

    def _solve(self, b: Array, start: Array | None, method: Any, M: Any, stop: LinearStop) -> LinearResult:
        """Solve for b (B, N), with the default method where `method` is None."""
        problem = self.evaluator.problem
        if problem.halves is not None and M is None and (method is None or method.may_transform):
            system = HalfSystem(self.evaluator, self.x, needs_adjoint=self.needs_adjoint, wrt=self.wrt)
            linear, self.pulled = system.solve(b, start, method, stop)
            return linear
        is_free = method is None and M is None and start is None
        is_causal = problem.substitute is not None
        if is_free and not is_causal:
            method, factors = self._default
            if factors is not None:
                return self._solve_by_factors(*factors, b, stop)
        if kind_of(method) == "direct":
            return self._direct(method, b, {"M": M, "x0": start}, stop)
        M, A = self._preconditioner(M), self._operator()
        if is_free and is_causal:
            start, known = by_substitution(A, b, stop)
            if known is not None:
                return known
        stop = self._rule(A, stop)
        linear = linear_solve(A, b, method=long_krylov(b) if method is None else method, M=M, x0=start, stop=stop)
        return self._mark(linear, A, b)

    def _rule(self, A: LinearOperator, stop: LinearStop) -> LinearStop:
        """The stopping rule; by default no stricter than the rounding errors of differences allow."""
        is_exact = not isinstance(A, JacobianProducts) or self.lengths is None
        if is_exact or stop.rtol is not None or stop.atol:
            return stop
        return replace(stop, rtol=max(1e-6, DIFFERENCES * eps(self.evaluator.xp, self.evaluator.dtype) ** 0.5))

    @cached_property
    def _default(self) -> tuple[BlockLU | None, tuple[SparseMatrix, Factored] | None]:
        """The direct method of a declared structure that favors one, or a sparse J and its factors."""
        if self.assembler is not None and self.assembler.favors_direct:
            return BlockLU(), None
        sparse = self._sparse()
        return None, None if sparse is None else (sparse, SparseLU().factor(sparse))

    def _direct(self, method: Any, b: Array, unused: dict[str, Any], stop: LinearStop) -> LinearResult:
        for name, value in unused.items():
            if value is not None:
                got = type(value).__name__
                raise ValueError(f"{self.caller}: `{name}` must be None for a direct method, got {got}")
        J = self._matrix("a direct `method`", method)
        return self._solve_by_factors(J.flat(), method.factor(J), b, stop)

    def _shape_of(self, result: LinearResult) -> LinearResult:
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
        structure = self.evaluator.problem.block_structure
        if structure is None:
            return None
        steps = None if self.lengths is None else GivenSteps(self.lengths.h, structure.block_size)
        return Assembler(self.evaluator, central=True, steps=steps)

    def _sparse(self) -> SparseMatrix | None:
        """J as a sparse matrix, where a sparse structure is declared, was detected, or is to be detected."""
        problem = self.evaluator.problem
        if problem.sparse_structure is None and problem.structure != "detect" and self.found is None:
            return None
        return sparse_jacobian(
            self.caller,
            self.evaluator,
            self.flat,
            self._residual(),
            self.found,
            by_columns=self.needs_adjoint,
            dense=self.needs_adjoint,
            h=None if self.lengths is None else self.lengths.h,
            error=0.0 if self.lengths is None else TRUST * float(self.lengths.error.max(initial=0.0)),
        )

    def _matrix(self, wanted_by: str, settings: Any = None) -> Any:
        """The assembled J; a sparse one, or a matrix of the problem's own, where the settings take those."""
        if self.assembler is None and takes_sparse(settings):
            own = self.evaluator.matrix(self.flat) if self.evaluator.problem.jac is not None else self._sparse()
            if own is not None:
                return own
        if self.assembler is None:
            structure = self.evaluator.problem.structure
            raise ValueError(f"{self.caller}: {wanted_by} needs a problem that declares `structure`, got {structure!r}")
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
        if self.own_product is None and not self.has_own_matrix:
            if self.assembler is not None:
                assembled = self._matrix("the operator").flat()
            elif self.needs_adjoint:
                assembled = self._sparse()
        if assembled is None:
            assembled = self.evaluator.jacobian(self.flat, None if self.needs_adjoint else self._residual())
        if self.needs_adjoint and assembled._rmatvec is None:
            raise TypeError(f"{self.caller}: no sparse J was found, and its products are none with J^H: give `vjp`")
        return assembled.H if self.needs_adjoint else assembled

    def _solve_by_factors(self, J: LinearOperator, inverse: Factored, b: Array, stop: LinearStop) -> LinearResult:
        """Solve by factors of J, refined with the problem's own products where it has any."""
        is_own = self.own_product is not None and not self.has_own_matrix
        A = self.evaluator.jacobian(self.flat, None) if is_own else J
        outcome = solve_factored(A, inverse, b, stop, adjoint=self.needs_adjoint)
        linear = LinearResult(**vars(outcome), matvecs=int(outcome.iterations.max(initial=0)))
        return self._mark(linear, A, b)

    def _mark(self, linear: LinearResult, A: LinearOperator, b: Array) -> LinearResult:
        """The result of a solve with A, SINGULAR where A was assembled from differences that do not determine it."""
        is_exact = self.own_product is not None or self.evaluator.has_exact_products
        return linear if is_exact or isinstance(A, JacobianProducts) else marked_singular(linear, A, b)

    def _preconditioner(self, M: Any) -> LinearOperator | None:
        """M on arrays (B, N); settings are built from the assembled J, and transposed for J^H."""
        if not builds_inverse(M):
            return None if M is None else self.evaluator.operator(M, "M")
        inverse = build_inverse(M, self._matrix("this `M`", M))
        return (inverse.H if self.needs_adjoint else inverse).flat()
