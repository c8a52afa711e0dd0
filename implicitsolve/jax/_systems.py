"""The two solves on the host: of F(x) = 0, and of the linear systems of its derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from implicitsolve.derivatives import pull_back, push_forward
from implicitsolve.jax._exchange import Ask, HostSolve
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


def push(function: Function) -> Function:
    """``(x, v, *parameters) -> J(x) v``."""
    return lambda x, v, *parameters: jax.jvp(lambda x: function(x, *parameters), (x,), (v,))[1]


def pull(function: Function) -> Function:
    """``(x, w, *parameters) -> J(x)^H w``."""
    return lambda x, w, *parameters: jax.vjp(lambda x: function(x, *parameters), x)[1](w.conj())[0].conj()


class Nonlinear(HostSolve):
    """F(x, *parameters) = 0."""

    def __init__(self, function: Function, shape: tuple[int, ...], dtype: Any, settings: Settings) -> None:
        super().__init__(shape, dtype, settings)
        self.function = function

    @property
    def functions(self) -> Sequence[Function]:
        """F, J v and J^H w."""
        return lambda x, _, *parameters: self.function(x, *parameters), push(self.function), pull(self.function)

    @property
    def outcome(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """x, status, norm, target, iterations, residuals and products."""
        norm, count = np.finfo(self.dtype).dtype, np.dtype(np.int32)
        rest = (count, norm, norm, count, count, count)
        vector = jax.ShapeDtypeStruct(self.shape, self.dtype)
        return vector, *(jax.ShapeDtypeStruct(self.batch_shape, dtype) for dtype in rest)

    def over(self, size: int, axes: tuple[int | None, ...]) -> Nonlinear:
        """For a batch."""
        function = jax.vmap(self.function, in_axes=(0, *axes))
        return Nonlinear(function, (size, *self.shape), self.dtype, self.settings)

    def run(self, ask: Ask, start: Any) -> tuple[Any, ...]:
        """`implicitsolve.root`."""
        problem = Problem(
            lambda x: ask(0, x),
            jvp=lambda x, v: ask(1, x, v),
            vjp=lambda x, w: ask(2, x, w),
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
    """A(*parameters) v = b for a linear function A, or A^T v = b; the solution is NaN where the solve fails."""

    def __init__(
        self, function: Function, shape: tuple[int, ...], dtype: Any, settings: Settings, transposed: bool
    ) -> None:
        super().__init__(shape, dtype, settings)
        self.function = function
        self.transposed = transposed

    @property
    def functions(self) -> Sequence[Function]:
        """A v and A^H w."""
        return lambda v, _, *parameters: self.function(v, *parameters), pull(self.function)

    @property
    def outcome(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The solution."""
        return (jax.ShapeDtypeStruct(self.shape, self.dtype),)

    def over(self, size: int, axes: tuple[int | None, ...]) -> Linear:
        """For a batch."""
        function = jax.vmap(self.function, in_axes=(0, *axes))
        return Linear(function, (size, *self.shape), self.dtype, self.settings, self.transposed)

    def run(self, ask: Ask, start: Any) -> tuple[Any, ...]:
        """`implicitsolve.push_forward` or `pull_back`, for b = `start`."""
        settings = self.settings
        problem = Problem(
            lambda v: ask(0, v),
            jvp=lambda _, v: ask(0, v),
            vjp=lambda _, w: ask(1, w, w),
            structure=settings.structure or "detect",
            batch_ndim=len(self.batch_shape),
            parameter_jvp=lambda *_: -start,
        )
        options = {"method": settings.adjoint_method, "stop": settings.adjoint_stop}
        at = np.zeros(self.shape, self.dtype)
        if self.transposed:
            outcome: Any = pull_back(problem, at, start.conj(), wrt=(), **options)
            found = outcome.adjoint.conj()
        else:
            outcome = push_forward(problem, at, {}, **options)
            found = outcome.tangent
        return (np.where(np.asarray(outcome.success)[..., None], found, np.nan),)


def solution_map(function: Function, size: int, dtype: Any, settings: Settings) -> Callable[..., Any]:
    """``(x, parameters) -> x`` at a root x of one system, whose derivatives by the parameters are those of the root."""
    A = push(function)
    solves = [Linear(lambda v, *given: A(given[0], v, *given[1:]), (size,), dtype, settings, t) for t in (False, True)]

    @jax.custom_jvp
    def solution(x: Any, parameters: Any) -> Any:
        return x

    @solution.defjvp
    def derivative(primals: Any, tangents: Any) -> Any:
        parameters = primals[1]
        x = solution(*primals)  # it has derivatives of its own
        right = jax.jvp(lambda parameters: function(x, *parameters), (parameters,), (tangents[1],))[1]
        forward, backward = (
            lambda _, b, solve=solve: solve(b, jax.lax.stop_gradient(x), *jax.lax.stop_gradient(parameters))[0]
            for solve in solves
        )
        return x, jax.lax.custom_linear_solve(lambda v: A(x, v, *parameters), -right, forward, backward)

    return solution
