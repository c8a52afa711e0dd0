"""What the rivals on JAX share: precision, a start on the device, and calls that wait for their result."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from benchmarks.peers._measure import Answer, Solver


def precise(x0: Any) -> Any:
    """A context in which JAX keeps the precision of x0."""
    return jax.enable_x64(np.asarray(x0).dtype == np.float64)


def jitted(make: Callable[[], Callable[[Any, Any], tuple[Any, Any]]], x0: Any) -> Callable[[float], Answer]:
    """The solver of ``make()(x0, tol) -> (x, products)``, compiled once; the tolerance is an argument."""
    made: list[Any] = []

    def solve(tol: float) -> Answer:
        with precise(x0):
            start = jax.numpy.asarray(x0)
            if not made:
                made.append(jax.jit(make()).lower(start, tol).compile())
            x, products = jax.block_until_ready(made[0](start, tol))
        return Answer(np.asarray(x), None if products is None else float(products))

    return solve


def solver(package: str, name: str, make: Any, x0: Any, tolerances: tuple[float, ...] = (1.0,)) -> Solver:
    """A jitted solver."""
    return Solver(package, name, jitted(make, x0), tolerances)


named = partial(solver, "JAX")
