"""Take turns, keep medians, and measure every answer from outside."""

from __future__ import annotations

import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

BUDGET = 2.0  # seconds: what has taken as long is not called again; ours, beside every rival, ten times as long


@dataclass(frozen=True)
class Answer:
    """What a solver returns: the solution, and the products (residuals, JVPs, VJPs) that it took, if it tells."""

    x: Any
    products: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Solver:
    """A solver of one workload.

    `solve` takes a tolerance in the solver's own norm. `tolerances` are multiples of the workload's target, the loosest
    first: the first one by which the target is met, as measured from outside, is the one that is timed.
    """

    package: str
    method: str
    solve: Callable[[float], Answer]
    tolerances: Sequence[float] = (1.0,)
    is_ours: bool = False


@dataclass(frozen=True)
class Row:
    """A line of the table. `ratio` is the median over that of ours, `status` "solved" or why it is not."""

    package: str
    method: str
    is_ours: bool
    status: str
    residual: float | None = None
    tolerance: float | None = None
    products: float | None = None
    note: str = ""
    seconds: list[float] = field(default_factory=list)
    ratio: float | None = None

    @property
    def median(self) -> float | None:
        """Median of the seconds."""
        return statistics.median(self.seconds) if self.seconds else None

    def record(self) -> dict[str, Any]:
        """For JSON, which knows no infinity."""
        size = self.residual if self.residual is not None and np.isfinite(self.residual) else None
        return asdict(self) | {"median": self.median, "residual": size}


class TimeLimit(Exception):  # noqa: N818
    """A solver took too long."""


@contextmanager
def limited(seconds: float) -> Generator[None]:
    """Raise `TimeLimit` in the block after so many CPU seconds, when it is next in Python; on the main thread only."""
    if not hasattr(signal, "SIGPROF") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise TimeLimit

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def settle(limit: float = 60.0) -> None:
    """Wait until threads that compute what nobody waits for any more have ended: their CPU time would be counted."""
    begin = time.monotonic()
    while time.monotonic() - begin < limit:
        spent = time.process_time()
        time.sleep(0.1)
        if time.process_time() - spent < 0.02:
            return


@dataclass(frozen=True)
class Stopwatch:
    """CPU seconds of the process with one thread, elapsed seconds with more."""

    threads: int = 1

    @property
    def clock(self) -> str:
        """What is read."""
        return "CPU" if self.threads == 1 else "elapsed"

    def __call__(self, run: Callable[[], Any]) -> float:
        """Seconds of one call."""
        if self.threads > 1:
            time.sleep(0.01)  # thread pools of the one before fall asleep
        read = time.process_time if self.threads == 1 else time.perf_counter
        begin = read()
        run()
        return read() - begin


@dataclass(frozen=True)
class Race:
    """How a workload is measured."""

    stopwatch: Stopwatch = Stopwatch()
    repeat: int = 7
    limit: float = 60.0

    def try_out(self, workload: Any, solver: Solver) -> tuple[Row, Callable[[], Any] | None]:
        """Run a solver until it meets the target, which also compiles and warms it; its row and what to time."""
        print(f"{solver.package} {solver.method}", file=sys.stderr, flush=True)
        row, best = Row(solver.package, solver.method, solver.is_ours, "failed"), np.inf
        for factor in solver.tolerances:
            tolerance = factor * workload.target
            if row.tolerance and tolerance > 1.5 * row.tolerance * workload.target / best:
                continue  # it would miss the target again
            try:
                with limited(self.limit):
                    answer = solver.solve(tolerance)
            except TimeLimit:
                settle()
                return replace(row, status=f"longer than {self.limit:g} s"), None
            except Exception as error:  # noqa: BLE001
                return replace(row, status=f"{type(error).__name__}: {error}".split("\n")[0][:80]), None
            size = workload.size(answer.x) if np.all(np.isfinite(answer.x)) else np.inf
            if size >= best and row.tolerance:
                break
            best = size
            products = None if answer.products is None else float(answer.products)
            row = replace(row, residual=float(size), tolerance=tolerance, products=products, note=answer.note)
            if workload.solved(answer.x):
                return replace(row, status="solved"), lambda tolerance=tolerance: solver.solve(tolerance)
        return row, None

    def run(self, workload: Any, solvers: Sequence[Solver]) -> list[Row]:
        """Rows of all solvers. The first one is ours; it runs in turn with each of the others."""
        tried = [self.try_out(workload, solver) for solver in solvers]
        seconds: list[list[float]] = [[] for _ in solvers]
        runs = [(i, run) for i, (_, run) in enumerate(tried) if run is not None]
        for turn in range(self.repeat):
            for i, run in runs:
                if not turn or sum(seconds[i]) < BUDGET:
                    seconds[i].append(self.stopwatch(run))
                    if i and tried[0][1] is not None and sum(seconds[0]) < 10 * BUDGET:
                        seconds[0].append(self.stopwatch(tried[0][1]))
        rows = [replace(row, seconds=times) for (row, _), times in zip(tried, seconds)]
        base = rows[0].median
        return [replace(row, ratio=None if base is None or row.median is None else row.median / base) for row in rows]
