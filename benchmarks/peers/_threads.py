"""Limit all libraries to some threads, and keep freed memory. Nothing here may import NumPy."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
KEPT = 1 << 30  # bytes
VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def wanted(arguments: Sequence[str]) -> int:
    """The number behind --threads; 1 without it."""
    for i, argument in enumerate(arguments):
        if argument == "--threads" and i + 1 < len(arguments):
            return int(arguments[i + 1])
        if argument.startswith("--threads="):
            return int(argument.split("=", 1)[1])
    return 1


def limit(threads: int) -> None:
    """Set what the libraries read, and pin the process, whose cores XLA counts, to as many of its cores."""
    for variable in VARIABLES:
        os.environ[variable] = str(threads)
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # a pool that waits must not slow the others
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[-threads:])


def keep_memory() -> None:
    """Let glibc return freed memory to the system only beyond `KEPT`; other allocators stay as they are."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(TRIM_THRESHOLD, KEPT)
        mallopt(MMAP_THRESHOLD, KEPT)
