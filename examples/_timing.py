"""Timing of calls, for the examples that compare solvers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["median_times"]


def median_times(functions: Mapping[str, Callable[[], Any]], repeats: int = 7) -> dict[str, tuple[Any, float]]:
    """Return what each function returns, and the median time in seconds of so many calls after a first one.

    The first call may compile or fill caches. The functions alternate, so that other work on the machine slows all of
    them alike. With no repeats the first call is the only one.
    """
    results = dict.fromkeys(functions)
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats + 1):
        for name, function in functions.items():
            began = time.perf_counter()
            results[name] = function()
            times[name].append(time.perf_counter() - began)
    return {name: (results[name], float(np.median(times[name][1:] or times[name]))) for name in functions}
