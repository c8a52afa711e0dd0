"""The user's residual as a C function, which the compiled Newton methods call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import carray, types  # pyright: ignore[reportPrivateImportUsage]
from numba.core.errors import NumbaError

from implicitsolve.backends.numba._jit import inner
from implicitsolve.backends.numba._lanes import pointer_to_lanes


@functools.lru_cache(maxsize=64)
def compiled(residual: Callable[..., Any], char: str, ndim: int, has_parameters: bool) -> Any:
    """C function ``(x, p, out, n0, n1, q) -> 1``, or 0 where `residual` raised, for one dtype and number of axes."""
    return _c_function(_evaluation(residual, has_parameters), inner(lambda pointer: pointer), char, ndim)


@functools.lru_cache(maxsize=64)
def compiled_for_lanes(residual: Callable[..., Any], char: str, ndim: int, has_parameters: bool) -> Any:
    """The same for the numbers of all lanes, or None: a residual may do what `Lanes` do not, such as branch on x."""
    try:
        return _c_function(_evaluation(residual, has_parameters), pointer_to_lanes, char, ndim)
    except (NumbaError, NotImplementedError):
        return None


def _c_function(evaluate: Any, view: Any, char: str, ndim: int) -> Any:
    """Compile ``evaluate(x, p, out)`` for what `view` makes of a pointer."""
    pointer = types.CPointer(numba.from_dtype(np.dtype(char)))
    signature = types.intc(pointer, pointer, pointer, types.intp, types.intp, types.intp)
    if ndim == 1:

        def wrapper(x: Any, p: Any, out: Any, n0: int, n1: int, q: int) -> int:
            evaluate(carray(view(x), (n0,)), carray(view(p), (q,)), carray(view(out), (n0,)))
            return 1
    else:

        def wrapper(x: Any, p: Any, out: Any, n0: int, n1: int, q: int) -> int:
            evaluate(carray(view(x), (n0, n1)), carray(view(p), (q,)), carray(view(out), (n0, n1)))
            return 1

    return numba.cfunc(signature)(wrapper)


def _evaluation(residual: Callable[..., Any], has_parameters: bool) -> Any:
    """One form, ``(x, p, out)``, for the four that `residual` may have."""
    if not callable(residual):
        raise TypeError(f"newton_batch: `residual` must be callable, got {type(residual).__name__}")
    function = getattr(residual, "py_func", residual)
    options: Any = {**getattr(residual, "targetoptions", {}), "error_model": "numpy", "parallel": False}
    options.pop("nopython", None)
    user = numba.njit(**options)(function)
    arguments = len(inspect.signature(function).parameters)
    least = 2 if has_parameters else 1
    if arguments not in (least, least + 1):
        names = "(x, p, out) or (x, p)" if has_parameters else "(x, out) or (x)"
        raise TypeError(f"newton_batch: `residual` must take {names}, got {arguments} arguments")
    if arguments == 3:
        return user
    if has_parameters:

        def evaluate(x: Any, p: Any, out: Any) -> None:
            out[:] = user(x, p)
    elif arguments > least:

        def evaluate(x: Any, p: Any, out: Any) -> None:
            user(x, out)
    else:

        def evaluate(x: Any, p: Any, out: Any) -> None:
            out[:] = user(x)

    return numba.njit(error_model="numpy")(evaluate)
