"""Compiled kernels for NumPy arrays: the module of a kernel is loaded by name when the kernel is first selected.

`newton_batch` is for direct use: Newton's method for many small systems, all of it compiled.
"""

from __future__ import annotations

import importlib.util

from implicitsolve.errors import BackendUnavailable

if importlib.util.find_spec("numba") is None:
    raise BackendUnavailable("newton_batch needs Numba, which is not installed: pip install 'implicitsolve[numba]'")

from implicitsolve.backends.numba._newton import newton_batch

__all__ = ["newton_batch"]
