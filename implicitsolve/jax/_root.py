"""`root` for a residual written in JAX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer, eval_jaxpr
from jax.flatten_util import ravel_pytree
from jax.tree_util import tree_flatten, tree_leaves, tree_structure, tree_unflatten

from implicitsolve.jax._compiled import Small, is_solved_in_jax, solution_in_jax
from implicitsolve.jax._exchange import is_traced
from implicitsolve.jax._solves import Nonlinear, Settings, implicit_solution
from implicitsolve.status import Status
from implicitsolve.stopping import LinearStop, NonlinearStop


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
    error : Array
        Estimated error of x, relative to x; NaN where it is not known.
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
    error: Any
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
        What is known of the Jacobian with respect to the flattened x, as in `implicitsolve.Problem`.

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
    A system of at most 200 real unknowns is solved within JAX, if `method` and `structure` are left to the solver: by
    Newton's method with a dense J, whose x is accepted by the same estimate of its error, with a dense solve for each
    tangent or cotangent. Where it does not converge, and for all other systems, the solver runs on the host. Called
    with known arrays it calls the compiled residual; inside a traced program it is a loop with a callback, in which the
    program evaluates what the solver requests, so that no callback calls JAX. Arrays on the CPU share their memory with
    NumPy, those on a CUDA device with CuPy.

    Derivatives of any order come from implicit differentiation, exact to the tolerances of the solves: one linear solve
    at the root for each tangent or cotangent. Where that fails they are NaN. Where `success` is false they are those of
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
    settings = Settings(method, stop, adjoint_method, adjoint_stop, structure).check("root")
    equations, start, parameters, unravel = prepare(residual, x0, args, settings)
    if is_traced(start, *parameters):
        x, status, *numbers = equations.solve(*jax.lax.stop_gradient((start, *parameters)))
        x = equations.solution(x, tuple(parameters))
    else:
        x, status, *numbers = equations.solve(start, *parameters)
    return RootResult(unravel(x), status == int(Status.CONVERGED), status, *numbers)


# A caller's residual on pytrees as a function of flat arrays, traced once for each form of its arguments

NUMBERS = (jax.Array, np.ndarray, np.generic, float, int, complex)
MOST_RESIDUALS = 256  # residuals that are kept


@dataclass(frozen=True)
class Equations:
    """All that determines the equations of a call, except the values of arrays."""

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


def prepare(
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
            if len(_kept) >= MOST_RESIDUALS:
                del _kept[next(iter(_kept))]
            _kept[key] = found
    return found, start, [*parameters, *found.captured], unravel


def trace(equations: Equations, start: Any, parameters: list[Any]) -> Traced:
    closed: Any = jax.make_jaxpr(equations)(start, *parameters)
    count = len(parameters)

    def function(x: Any, *given: Any) -> Any:
        return eval_jaxpr(closed.jaxpr, given[count:], x, *given[:count])[0]

    settings, form = equations.settings, (start.shape, start.dtype)
    if is_solved_in_jax(settings, start):
        return Traced(Small(function, *form, settings), solution_in_jax(function, settings, start), list(closed.consts))
    solution = implicit_solution(function, start.size, start.dtype, settings)
    return Traced(Nonlinear(function, *form, settings), solution, list(closed.consts))


def is_parameter(leaf: Any) -> bool:
    return isinstance(leaf, NUMBERS) and not isinstance(leaf, bool)


def checked_start(x: Any) -> jax.Array:
    """A part of x0 as floating-point array of JAX."""
    try:
        x = jnp.asarray(x)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"root: `x0` must hold real or complex numbers: {error}") from error
    if not jnp.issubdtype(x.dtype, jnp.number):
        raise TypeError(f"root: `x0` must hold real or complex numbers, got dtype {x.dtype}")
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x.astype(float)
    if jnp.finfo(x.dtype).bits < 32:
        raise TypeError(f"root: `x0` must have at least 32 bits, such as x0.astype(jnp.float32), got dtype {x.dtype}")
    return x


def checked_value(F: Any, x: jax.Array) -> jax.Array:
    """A part of F(x) in the dtype of x."""
    F = jnp.asarray(F)
    if F.shape != x.shape:
        raise ValueError(f"root: `residual` must return arrays of the shapes of x, {x.shape}, got {F.shape}")
    if jnp.iscomplexobj(F) and not jnp.iscomplexobj(x):
        raise TypeError("root: `residual` returned complex numbers for a real x0: pass a complex x0")
    return F.astype(x.dtype)
