"""How the suite counts and times: peak bytes, transfers to the host, least times of calls that take turns."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

CPU = time.process_time  # the timer of every class: seconds of one thread, which a busy machine changes little
READS = ("__bool__", "__int__", "__float__", "__complex__", "__dlpack__")


def peak_bytes(call: Callable[[], Any]) -> int:
    """Most bytes that Python and NumPy held at a time during a call, more than before it."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@dataclass
class Transfers:
    """How often an array's values were asked for by the host."""

    count: int = 0


@contextmanager
def transfers() -> Iterator[Transfers]:
    """Count what would be a transfer from a GPU: reads of numbers and exports of array-api-strict's arrays."""
    import array_api_strict as xp

    counted = Transfers()

    def counting(read: Callable[..., Any]) -> Callable[..., Any]:
        def counts(*arguments: Any, **options: Any) -> Any:
            counted.count += 1
            return read(*arguments, **options)

        return counts

    array = type(xp.zeros(1))
    with mock.patch.multiple(array, **{name: counting(getattr(array, name)) for name in READS}):
        yield counted


def least(calls: dict[str, Callable[[], Any]], turns: int = 10) -> dict[str, float]:
    """Least CPU seconds of each call. They take turns, so that a busy machine disturbs all of them."""
    seconds = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(turns):
        for name, call in calls.items():
            begin = time.process_time()
            call()
            seconds[name] = min(seconds[name], time.process_time() - begin)
    return seconds


def unit(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Say what the numbers of a `track_` are."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        function.unit = name  # type: ignore[attr-defined]
        return function

    return mark
