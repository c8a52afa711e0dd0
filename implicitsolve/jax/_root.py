"""Roots for JAX: the solves on the host with their derivatives, and `root` for a residual written in JAX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer, eval_jaxpr
from jax.flatten_util import ravel_pytree
from jax.tree_util import tree_flatten, tree_leaves, tree_structure, tree_unflatten

from implicitsolve.derivatives import pull_back, push_forward
from implicitsolve.jax._exchange import PULL, PUSH, VALUE, Ask, HostSolve, is_traced
from implicitsolve.krylov import LGMRES
from implicitsolve.problem import Problem
from implicitsolve.solve import check_linear, check_settings
from implicitsolve.solve import root as root_on_host
from implicitsolve.status import Status
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

    def checked(self, caller: str) -> Settings:
        """The same, if they are usable."""
        check_settings(caller, self.method, self.stop, None)
        if self.adjoint_stop is not None or self.adjoint_method is not None:
            check_linear(caller, self.adjoint_method or LGMRES(), self.adjoint_stop or LinearStop())
        return self

    def solved(self, problem: Problem, start: Any = None) -> tuple[Any, ...]:
        """What `outcome` describes, for a root of a problem."""
        result = root_on_host(problem, start, method=self.method, stop=self.stop)
        status, counts = np.asarray(result.status), result.counts
        calls = (count * np.ones_like(status) for count in (counts.residuals, counts.jvps + counts.vjps))
        return result.x, status, result.residual_norm, result.target, result.iterations, *calls

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
    """Forms of x, status, norm, target, iterations, residuals and products."""
    norm, count = np.finfo(dtype).dtype, np.dtype(np.int32)
    rest = (count, norm, norm, count, count, count)
    return jax.ShapeDtypeStruct(shape, dtype), *(jax.ShapeDtypeStruct(batch_shape, kind) for kind in rest)


class Nonlinear(HostSolve):
    """F(x, *parameters) = 0."""

    @property
    def outcome(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return outcome(self.shape, self.batch_shape, self.dtype)

    def run(self, ask: Ask, start: Any) -> tuple[Any, ...]:
        """`implicitsolve.root`."""
        problem = Problem(
            lambda x: ask(VALUE, x),
            jvp=lambda x, v: ask(PUSH, x, v),
            vjp=lambda x, w: ask(PULL, x, w),
            structure=self.settings.structure,
            batch_ndim=len(self.batch_shape),
        )
        return self.settings.solved(problem, start)


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


class RootResult(NamedTuple):
    """What `root` returns, a pytree; below `jax.vmap` everything has the axis of the batch.

    Attributes
    ----------
    x : pytree
        The solution, in the form of x0.
    success : Array of bool
        Whether the stopping criterion holds at x.
    status : Array of int32
        How the solve ended, a code of `implicitsolve.Status`.
    residual_norm, target : Array
        Norm of F at x, and what it had to fall to; where the error of x decides, the norm at which it is expected to
        be `xtol`.
    iterations : Array of int32
        Steps.
    residuals, products : Array of int32
        Calls of the residual, and products with J or J^H; below `jax.vmap` each is one for the whole batch.
    """

    x: Any
    success: Any
    status: Any
    residual_norm: Any
    target: Any
    iterations: Any
    residuals: Any
    products: Any


def root(
    residual: Callable[..., Any],
    x0: Any,
    *args: Any,
    method: Any = "auto",
    stop: NonlinearStop | None = None,
    adjoint_method: Any = None,
    adjoint_stop: LinearStop | None = None,
    structure: Any = None,
) -> RootResult:
    """Solve ``residual(x, *args) = 0``, under `jax.jit`, `grad`, `jvp`, `vmap` and their compositions.

    Parameters
    ----------
    residual : callable
        ``residual(x, *args)`` returns a pytree like x, by operations of JAX. It is compiled once for each form of its
        arguments, and like any function under `jax.jit` must be pure.
    x0 : pytree of arrays
        Start, real or complex (then the residual must be holomorphic in x). Under `jax.vmap` the start of each system.
        The root does not depend on it: it gets no gradient.
    *args : pytrees
        What else the residual is given. Leaves that are arrays or numbers are parameters, others constants, which must
        be hashable: an Equinox module may be passed as it is.
    method : NewtonKrylov, BlockNewton or str, optional
        That of `implicitsolve.root`. Default "auto".
    stop : NonlinearStop, optional
        When a system has converged. Default: the estimated error of x is at most sqrt(eps) of x.
    adjoint_method, adjoint_stop : optional
        `method` and `stop` of `implicitsolve.pull_back`, for reverse mode, and of `push_forward`, for forward mode.
        Default: ||c - J^H lam||_2 <= 1e-6 ||c||_2 (1.2e-5 in float32) for the cotangent c.
    structure : BlockBanded, Sparse, Grid, "detect" or "none", optional
        What is known of the Jacobian by the flattened x, as of `implicitsolve.Problem`.

    Returns
    -------
    RootResult
        Solution, status and counts. A numerical failure is a status, never an exception, also under `jax.jit`.

    Raises
    ------
    TypeError, ValueError
        If an argument, or what the residual returns, is not usable.

    Notes
    -----
    The solver runs on the host. Called with known arrays it calls the compiled residual; inside a traced program it is
    a loop with a callback, in which the program evaluates what the solver asks for, so that no callback calls JAX.
    Arrays on the CPU share their memory with NumPy, those on a CUDA device with CuPy.

    Derivatives of any order are by implicit differentiation, exact to the tolerances of the solves: one linear solve at
    the root for each tangent or cotangent. Where that fails they are NaN. Where `success` is false they are those of
    the linearization at x, without a warning: mask them with ``jnp.where(success, x, ...)``. Tracers that the residual
    captures from its scope are parameters like `args`, but such a residual is traced again in each call.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import implicitsolve.jax as imj
    >>> def square(x, a):
    ...     return x**2 - a
    >>> def square_root(a):
    ...     return imj.root(square, jnp.ones(()), a).x
    >>> round(float(jax.jit(square_root)(9.0)), 3)
    3.0
    >>> jax.vmap(jax.grad(square_root))(jnp.array([4.0, 16.0])).round(3)
    Array([0.25 , 0.125], dtype=float32)
    """
    if not callable(residual):
        raise TypeError(f"root: `residual` must be callable, got {type(residual).__name__}")
    settings = Settings(method, stop, adjoint_method, adjoint_stop, structure).checked("root")
    equations, start, parameters, unravel = traced(residual, x0, args, settings)
    if is_traced(start, *parameters):
        x, status, *numbers = equations.solve(*jax.lax.stop_gradient((start, *parameters)))
        x = equations.solution(x, tuple(parameters))
    else:
        x, status, *numbers = equations.solve(start, *parameters)
    return RootResult(unravel(x), status == int(Status.CONVERGED), status, *numbers)


# A caller's residual on pytrees as a function of flat arrays, traced once for each form of its arguments

NUMBERS = (jax.Array, np.ndarray, np.generic, float, int, complex)
MOST = 256  # residuals that are kept


@dataclass(frozen=True)
class Equations:
    """What determines the equations of a call, but for the values of arrays."""

    residual: Callable[..., Any]
    unravel: Callable[[Any], Any] = field(compare=False)
    form_of_x: Any
    shapes_of_x: tuple[Any, ...]
    form: Any
    constants: tuple[Any, ...]  # None where a parameter belongs
    settings: Settings

    def __call__(self, x: Any, *parameters: Any) -> Any:
        """F of a flat x, flat."""
        given = iter(parameters)
        leaves = [next(given) if constant is None else constant for constant in self.constants]
        x = self.unravel(x)
        F = self.residual(x, *tree_unflatten(self.form, leaves))
        if tree_structure(F) != self.form_of_x:
            raise TypeError(f"root: `residual` must return a pytree like x, {self.form_of_x}, got {tree_structure(F)}")
        return ravel_pytree(jax.tree.map(checked_value, F, x))[0]


@dataclass(frozen=True)
class Traced:
    """Equations as a JAX function of x, the parameters and the `captured` arrays."""

    solve: Nonlinear
    solution: Callable[..., Any]
    captured: list[Any]


_kept: dict[Any, Traced] = {}


def traced(
    residual: Callable[..., Any], x0: Any, args: Any, settings: Settings
) -> tuple[Traced, Any, list[Any], Callable[[Any], Any]]:
    """The equations of a call, with its flat start, its parameters, and the function that gives x its form."""
    x0 = jax.tree.map(checked_start, x0)
    start, unravel = ravel_pytree(x0)
    if not start.size:
        raise ValueError("root: `x0` must hold at least one number")
    leaves, form = tree_flatten(args)
    constants = tuple(None if is_parameter(leaf) else leaf for leaf in leaves)
    parameters = [jnp.asarray(leaf, jnp.result_type(leaf)) for leaf in leaves if is_parameter(leaf)]
    shapes = tuple((part.shape, part.dtype) for part in tree_leaves(x0))
    equations = Equations(residual, unravel, tree_structure(x0), shapes, form, constants, settings)
    key = equations, tuple((part.shape, part.dtype) for part in (start, *parameters))
    try:
        found = _kept.get(key)
        is_kept = True
    except TypeError:  # something is not hashable
        found, is_kept = None, False
    if found is None:
        found = trace(equations, start, parameters)
        if is_kept and not any(isinstance(part, Tracer) for part in found.captured):
            if len(_kept) >= MOST:
                del _kept[next(iter(_kept))]
            _kept[key] = found
    return found, start, [*parameters, *found.captured], unravel


def trace(equations: Equations, start: Any, parameters: list[Any]) -> Traced:
    """Trace the residual."""
    closed: Any = jax.make_jaxpr(equations)(start, *parameters)
    count = len(parameters)

    def function(x: Any, *given: Any) -> Any:
        return eval_jaxpr(closed.jaxpr, given[count:], x, *given[:count])[0]

    settings = equations.settings
    solve = Nonlinear(function, start.shape, start.dtype, settings)
    return Traced(solve, implicit_solution(function, start.size, start.dtype, settings), list(closed.consts))


def is_parameter(leaf: Any) -> bool:
    """Whether a leaf of the arguments is an array or a number."""
    return isinstance(leaf, NUMBERS) and not isinstance(leaf, bool)


def checked_start(x: Any) -> Any:
    """A part of x0 as floating-point array of JAX."""
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.number):
        raise TypeError(f"root: `x0` must hold real or complex numbers, got dtype {x.dtype}")
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x.astype(float)
    if jnp.finfo(x.dtype).bits < 32:
        raise TypeError(f"root: `x0` must have at least 32 bits, such as x0.astype(jnp.float32), got dtype {x.dtype}")
    return x


def checked_value(F: Any, x: Any) -> Any:
    """A part of F(x) in the dtype of x."""
    F = jnp.asarray(F)
    if F.shape != x.shape:
        raise ValueError(f"root: `residual` must return arrays of the shapes of x, {x.shape}, got {F.shape}")
    if jnp.iscomplexobj(F) and not jnp.iscomplexobj(x):
        raise TypeError("root: `residual` returned complex numbers for a real x0: pass a complex x0")
    return F.astype(x.dtype)
