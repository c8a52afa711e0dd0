"""Work shared out over threads.

The kernels release the GIL, so Python's threads suffice: no threading layer of Numba starts, which would cost compile
time, and must not be entered from two threads at once.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from numba.core import config

LEAST = 2_000_000  # operations below which starting threads costs more than they save


def share(function: Callable[[slice], Any], items: int, operations: float, pieces: int = 1) -> None:
    """Call ``function(slice)`` for slices that make up ``range(items)``: on one thread unless it is much work.

    Each thread gets `pieces` slices, more than one where items may take very different times. Results do not depend on
    the number of threads, since no item depends on another. NUMBA_NUM_THREADS limits them.
    """
    threads = min(getattr(config, "NUMBA_NUM_THREADS", 1), items) if operations >= LEAST else 1
    if threads <= 1:
        function(slice(0, items))
        return
    count = min(items, threads * pieces)
    edges = [items * i // count for i in range(count + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(function, map(slice, edges[:-1], edges[1:])))
