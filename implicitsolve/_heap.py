"""Large arrays that stay mapped.

The C library of Linux gives freed memory at the top of its heap back to the system, and maps large blocks one by one,
so that every temporary of a residual is filled through page faults: measured on 10^5 unknowns, a whole solve took twice
as long. Both limits adapt themselves to the largest mapped block that was freed. Freeing one of 32 MB, which is never
touched, sets them to 32 and 64 MB for the process; at most so much stays with it.
"""

from __future__ import annotations

import functools

import numpy as np

LARGEST_ADAPTED = 32 * 2**20 - 2**16  # bytes: the C library adapts to blocks below 32 MiB


@functools.cache
def keep_large_blocks() -> None:
    """Let the C library keep large freed blocks, once per process; elsewhere than on Linux this does nothing."""
    np.empty(LARGEST_ADAPTED, dtype=np.uint8)
