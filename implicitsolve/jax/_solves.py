"""Systems that the host solves for JAX, and the derivatives of their solutions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from implicitsolve._linear_solve import check_linear
from implicitsolve._root import check_settings
from implicitsolve._root import root as root_on_host
from implicitsolve.derivatives import pull_back, push_forward
from implicitsolve.jax._exchange import Ask, HostSolve, Request
from implicitsolve.problem import Problem
from implicitsolve.stopping import LinearStop, NonlinearStop

Function = Callable[..., Any]


@dataclass(frozen=True)
class Settings:
    """How the systems are solved."""

    method: Any
    stop: NonlinearStop | None
    adjoint_method: Any
    adjoint_stop: LinearStop | None
    structure: Any = None

    def check(self, caller: str) -> Settings:
        check_settings(caller, self.method, self.stop, None)
        check_linear(caller, self.adjoint_method, self.adjoint_stop, prefix="adjoint_")
        return self

    def solve_root(self, problem: Problem, start: Any = None) -> tuple[Any, ...]:
        """Find a root of a problem, and return what `outcome` describes."""
        result = root_on_host(problem, start, method=self.method, stop=self.stop)
        status, counts = np.asarray(result.status), result.counts
        calls = (count * np.ones_like(status) for count in (counts.residuals, counts.jvps + counts.vjps))
        error = np.full(status.shape, np.nan) if result.error is None else result.error
        return result.x, status, result.residual_norm, result.target, error, result.iterations, *calls

    def tangent(self, problem: Problem, x: Any, b: Any) -> Any:
        """The solution v of J v = b at x, NaN where the solve fails."""
        problem = replace(problem, parameter_jvp=lambda *_: -b, halves=None, parameters=None)
        found = push_forward(problem, x, {}, method=self.adjoint_method, stop=self.adjoint_stop)
        return _or_nan(found.tangent, found.success)

    def adjoint(self, problem: Problem, x: Any, b: Any) -> Any:
        """The solution of J^H v = b."""
        found = pull_back(problem, x, b, wrt=(), method=self.adjoint_method, stop=self.adjoint_stop)
        return _or_nan(found.adjoint, found.success)


def _or_nan(values: Any, success: Any) -> Any:
    batch_shape = np.shape(success)
    return np.where(np.reshape(success, batch_shape + (1,) * (values.ndim - len(batch_shape))), values, np.nan)


def outcome(shape: tuple[int, ...], batch_shape: tuple[int, ...], dtype: Any) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Forms of x, status, norm, target, error, iterations, residuals and products."""
    norm, count = np.finfo(dtype).dtype, np.dtype(np.int32)
    rest = (count, norm, norm, norm, count, count, count)
    return jax.ShapeDtypeStruct(shape, dtype), *(jax.ShapeDtypeStruct(batch_shape, kind) for kind in rest)


class Nonlinear(HostSolve):
    """F(x, *parameters) = 0."""

    @property
    def outcome(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return outcome(self.shape, self.batch_shape, self.dtype)

    def run(self, ask: Ask, start: Any) -> tuple[Any, ...]:
        problem = Problem(
            lambda x: ask(Request.VALUE, x),
            jvp=lambda x, v: ask(Request.PUSH, x, v),
            vjp=lambda x, w: ask(Request.PULL, x, w),
            structure=self.settings.structure,
            batch_ndim=len(self.batch_shape),
        )
        return self.settings.solve_root(problem, start)


class Linear(HostSolve):
    """A(*parameters) v = b for a linear function A; the solution is NaN where the solve fails."""

    is_linear = True
    is_transposed = False

    @property
    def outcome(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return (jax.ShapeDtypeStruct(self.shape, self.dtype),)

    def run(self, ask: Ask, start: Any) -> tuple[Any, ...]:
        """`implicitsolve.push_forward` or `pull_back`, for b = `start`."""
        settings, at = self.settings, np.zeros(self.shape, self.dtype)
        problem = Problem(
            lambda v: ask(Request.PUSH, at, v),
            jvp=lambda x, v: ask(Request.PUSH, at, v),
            vjp=lambda x, w: ask(Request.PULL, at, w),
            structure=settings.structure or "detect",
            batch_ndim=len(self.batch_shape),
        )
        if self.is_transposed:
            return (settings.adjoint(problem, at, start.conj()).conj(),)
        return (settings.tangent(problem, at, start),)


class Transposed(Linear):
    """A(*parameters)^T v = b."""

    is_transposed = True


def implicit_solution(function: Function, size: int, dtype: Any, settings: Settings) -> Callable[..., Any]:
    """`solution_map` of one system F(x, *parameters) = 0, whose linear systems are solved like F's."""

    def A(v: Any, x: Any, *parameters: Any) -> Any:
        return jax.jvp(lambda x: function(x, *parameters), (x,), (v,))[1]

    def linear(kind: type[Linear]) -> Callable[..., Any]:
        solve = kind(A, (size,), dtype, settings)
        return lambda b, x, parameters: solve(b, x, *parameters)[0]

    return solution_map(lambda x, parameters: function(x, *parameters), linear(Linear), linear(Transposed))


def solution_map(function: Function, forward: Function, backward: Function) -> Callable[..., Any]:
    """``(x, parameters) -> x`` at a root x of F(x, parameters), with the derivatives of the root by the parameters.

    ``forward(b, x, parameters)`` solves J v = b, `backward` J^T v = b.
    """

    @jax.custom_jvp
    def solution(x: Any, parameters: Any) -> Any:
        return x

    @solution.defjvp
    def derivative(primals: Any, tangents: Any) -> Any:
        parameters = primals[1]
        x = solution(*primals)  # it has derivatives of its own
        right = jax.jvp(lambda parameters: function(x, parameters), (parameters,), (tangents[1],))[1]
        at = jax.lax.stop_gradient((x, parameters))

        def J(v: Any) -> Any:
            return jax.jvp(lambda x: function(x, parameters), (x,), (v,))[1]

        found = jax.lax.custom_linear_solve(J, -right, lambda _, b: forward(b, *at), lambda _, b: backward(b, *at))
        return x, found

    return solution
