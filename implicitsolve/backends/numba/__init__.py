"""Compiled kernels for NumPy arrays: the module of a kernel is loaded by name when the kernel is first selected.

`newton_batch` is for direct use: Newton's method for many small systems, all of it compiled.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from implicitsolve.errors import BackendUnavailable

if importlib.util.find_spec("numba") is None:
    raise BackendUnavailable("newton_batch needs Numba, which is not installed: pip install 'implicitsolve[numba]'")

if TYPE_CHECKING:
    from implicitsolve.backends.numba._newton import newton_batch

__all__ = ["newton_batch"]


def __getattr__(name: str) -> Any:
    """Load `newton_batch` on first use: other kernels need little of what it imports."""
    if name in __all__:
        return importlib.import_module("implicitsolve.backends.numba._newton").newton_batch
    raise AttributeError(f"module 'implicitsolve.backends.numba' has no attribute {name!r}")
