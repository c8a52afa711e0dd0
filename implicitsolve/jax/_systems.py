"""The two solves on the host: of F(x) = 0, and of the linear systems of its derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from implicitsolve.derivatives import pull_back, push_forward
from implicitsolve.jax._exchange import PULL, PUSH, VALUE, Ask, HostSolve
from implicitsolve.problem import Problem
from implicitsolve.solve import root
from implicitsolve.stopping import LinearStop, NonlinearStop

Function = Callable[..., Any]


@dataclass(frozen=True)
class Settings:
    """How the systems are solved."""

    method: Any
    stop: NonlinearStop | None
    adjoint_method: Any
    adjoint_stop: LinearStop | None
    structure: Any


class Nonlinear(HostSolve):
    """F(x, *parameters) = 0."""

    @property
    def outcome(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """x, status, norm, target, iterations, residuals and products."""
        norm, count = np.finfo(self.dtype).dtype, np.dtype(np.int32)
        rest = (count, norm, norm, count, count, count)
        vector = jax.ShapeDtypeStruct(self.shape, self.dtype)
        return vector, *(jax.ShapeDtypeStruct(self.batch_shape, dtype) for dtype in rest)

    def run(self, ask: Ask, start: Any) -> tuple[Any, ...]:
        """`implicitsolve.root`."""
        problem = Problem(
            lambda x: ask(VALUE, x),
            jvp=lambda x, v: ask(PUSH, x, v),
            vjp=lambda x, w: ask(PULL, x, w),
            structure=self.settings.structure,
            batch_ndim=len(self.batch_shape),
        )
        result = root(problem, start, method=self.settings.method, stop=self.settings.stop)
        counts = result.counts
        every = np.ones(self.batch_shape, dtype=np.int32)
        return (
            result.x,
            np.asarray(result.status),
            result.residual_norm,
            result.target,
            result.iterations,
            counts.residuals * every,
            (counts.jvps + counts.vjps) * every,
        )


class Linear(HostSolve):
    """A(*parameters) v = b for a linear function A; the solution is NaN where the solve fails."""

    is_linear = True
    is_transposed = False

    @property
    def outcome(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The solution."""
        return (jax.ShapeDtypeStruct(self.shape, self.dtype),)

    def run(self, ask: Ask, start: Any) -> tuple[Any, ...]:
        """`implicitsolve.push_forward` or `pull_back`, for b = `start`."""
        settings, at = self.settings, np.zeros(self.shape, self.dtype)
        problem = Problem(
            lambda v: ask(PUSH, at, v),
            jvp=lambda x, v: ask(PUSH, at, v),
            vjp=lambda x, w: ask(PULL, at, w),
            structure=settings.structure or "detect",
            batch_ndim=len(self.batch_shape),
            parameter_jvp=lambda *_: -start,
        )
        options = {"method": settings.adjoint_method, "stop": settings.adjoint_stop}
        if self.is_transposed:
            outcome: Any = pull_back(problem, at, start.conj(), wrt=(), **options)
            found = outcome.adjoint.conj()
        else:
            outcome = push_forward(problem, at, {}, **options)
            found = outcome.tangent
        return (np.where(np.asarray(outcome.success)[..., None], found, np.nan),)


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
