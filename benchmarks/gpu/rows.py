"""Timing with the device idle before and after, and what a row of the table holds."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

HEADER = (
    f"{'workload':44} {'what':34} {'ms':>10} {'asked':>10} {'error':>9} {'bound':>9}  facts",
    "-" * 140,
)
FEWEST = 5


@dataclass
class Row:
    """One measurement.

    Attributes
    ----------
    workload, what : str
        What is solved, and what of it is timed.
    ms : float
        Median of elapsed milliseconds.
    error, bound : float
        Measured outside the solver, and the most that is allowed.
    asked : float, optional
        Milliseconds that the project aims at.
    more : dict
        Other facts.
    """

    workload: str
    what: str
    ms: float
    error: float
    bound: float
    asked: float | None = None
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        """Whether the error, which must be a number, is within its bound."""
        return self.error <= self.bound

    def line(self) -> str:
        """The row as text."""
        asked = "" if self.asked is None else f"{self.asked:.3g}"
        facts = ", ".join(f"{name} {_short(value)}" for name, value in self.more.items())
        numbers = f"{self.ms:10.3f} {asked:>10} {self.error:9.1e} {self.bound:9.1e}"
        return f"{self.workload:44} {self.what:34} {numbers}  {facts}" + ("" if self.is_right else "  WRONG")

    def facts(self) -> dict[str, Any]:
        """The row as plain values, for JSON."""
        facts = asdict(self) | {"right": self.is_right}
        return facts | {"error": self.error if math.isfinite(self.error) else str(self.error)}


class Failures:
    """Rows that are wrong, and rows slower than asked."""

    def __init__(self) -> None:
        self.count = self.slow = 0

    def note(self, row: Row) -> None:
        """Look at one."""
        self.count += not row.is_right
        self.slow += row.asked is not None and row.ms > row.asked

    def summary(self, total: int) -> str:
        """The last line."""
        return f"{total} rows, {self.count} wrong, {self.slow} slower than asked"


def timed(run: Callable[[], Any], seconds: float) -> float:
    """Median milliseconds of calls for about so long, at least a few, after two that are not counted."""
    import cupy

    wait = cupy.cuda.Device().synchronize
    run()
    run()
    wait()
    times, end = [], time.perf_counter() + seconds
    while len(times) < FEWEST or time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        wait()
        times.append(1e3 * (time.perf_counter() - begin))
        if seconds == 0:
            break
    return statistics.median(times)


def relative(found: Any, expected: Any) -> float:
    """Largest difference over the largest magnitude, as float64; NaN if there is one."""
    found, expected = (np.asarray(x, np.float64) for x in (found, expected))
    return float(np.max(np.abs(found - expected)) / max(np.max(np.abs(expected)), 1e-300))


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
