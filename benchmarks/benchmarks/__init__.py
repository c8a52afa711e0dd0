"""What asv measures, by part of the library.

Counts are exact and repeatable; times mean something on an idle machine. The compiled kernels are imported here, once:
asv forks a process for each measurement. `start` measures what that hides.
"""

from __future__ import annotations

import contextlib

with contextlib.suppress(ImportError):
    import implicitsolve.backends.numba  # noqa: F401
