"""A caller's residual on pytrees as a function of flat arrays, traced once for each form of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer, eval_jaxpr
from jax.flatten_util import ravel_pytree
from jax.tree_util import tree_flatten, tree_leaves, tree_structure, tree_unflatten

from implicitsolve.jax._systems import Nonlinear, Settings, solution_map

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
    return Traced(solve, solution_map(function, start.size, start.dtype, settings), list(closed.consts))


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
