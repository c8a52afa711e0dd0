"""Roots as JAX functions: of residuals written in JAX, and of the adapters, under `jit`, `grad`, `jvp` and `vmap`.

The solver runs on the host; residuals and Jacobian products run where JAX runs them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from implicitsolve.errors import BackendUnavailable

if importlib.util.find_spec("jax") is None:
    raise BackendUnavailable("implicitsolve.jax needs JAX, which is not installed: pip install 'implicitsolve[jax]'")

from implicitsolve.jax._layer import approximate_fixed_point, layer
from implicitsolve.jax._root import RootResult, root

__all__ = ["RootResult", "approximate_fixed_point", "layer", "root"]
__dir__: Callable[[], list[str]] = __all__.copy
