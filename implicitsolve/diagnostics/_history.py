"""The recorded steps of one system, and the causes found in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from implicitsolve._summary import flat, total
from implicitsolve._typing import HostArray
from implicitsolve.errors import NoConvergence
from implicitsolve.result import NewtonStep, NonlinearResult
from implicitsolve.status import Status

FIELDS = "step_length", "forcing", "linear_residual", "krylov_iterations", "linear_status", "factorized"
WINDOW = 20  # steps over which a rate is measured, at most


@dataclass
class History:
    """One solve of one system: `norms` begin at x0, `parts` with the first step; NaN is what was not recorded.

    `spent` are residuals and Jacobian products, as the steps count them.
    """

    norms: list[float] = field(default_factory=list[float])
    spent: list[int] = field(default_factory=list[int])
    parts: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in FIELDS})

    def add(self, step: NewtonStep, place: int) -> None:
        """Append a step's record of the system at this position in it."""
        self.norms.append(float(step.residual_norm[place]))
        self.spent.append(total(step.counts))
        if step.iteration:
            for name, values in self.parts.items():
                recorded: HostArray = getattr(step, name)
                values.append(float(recorded[place]) if recorded.size else np.nan)

    def part(self, name: str) -> HostArray:
        """One of the arrays."""
        return np.asarray(self.parts[name])

    @property
    def steps(self) -> int:
        """Steps that were tried."""
        return len(self.norms) - 1

    @property
    def kind(self) -> str:
        """Which family of methods took the last step, by what it recorded."""
        last = {name for name, values in self.parts.items() if values and np.isfinite(values[-1])}
        if "forcing" in last:
            return "krylov"
        if "factorized" in last:
            return "block"
        return "homotopy" if "krylov_iterations" in last else "fixed point" if last else ""

    @property
    def ratios(self) -> HostArray:
        """Factors of the norm from one step to the next."""
        norms = np.asarray(self.norms)
        with np.errstate(all="ignore"):
            return norms[1:] / norms[:-1]

    @property
    def rate(self) -> float:
        """Mean factor of a step over the last half of the steps, at most `WINDOW`; NaN if that is not known."""
        count = min(WINDOW, max(1, self.steps // 2))
        norms = np.asarray(self.norms)
        first, last = (norms[-1 - count], norms[-1]) if self.steps else (np.nan, np.nan)
        return float((last / first) ** (1 / count)) if first > 0 and np.isfinite(last) else float("nan")

    @property
    def tail(self) -> HostArray:
        """Factors of the last whole steps, at most 4, at the end of which the norm is not zero."""
        ratios, lengths = self.ratios, self.part("step_length")
        whole = (lengths == 1.0) & np.isfinite(ratios) & (ratios > 0)
        count = int(np.argmin(np.append(whole[::-1], False)))
        return ratios[ratios.size - min(count, 4) :]


def native(result: Any) -> Any:
    """The native result of what a solve returned, or the exception that it raised."""
    result = result.result if isinstance(result, NoConvergence) else result
    return getattr(result, "native", result)


def histories(result: NonlinearResult, rows: Sequence[int]) -> list[History]:
    """The solve that led to the result, for some systems of the flattened batch.

    A race, or a method that begins again, leaves several for each system: taken is the last one with the
    result's norm.
    """
    size, wanted = np.asarray(result.status).size, {row: place for place, row in enumerate(rows)}
    final, first = (flat(part, result.status) for part in (result.residual_norm, result.initial_norm))
    known: list[dict[int, list[History]]] = [{} for _ in rows]
    for step in result.steps:
        for place in np.flatnonzero(np.isin(step.systems % size, list(wanted))).tolist():
            system = int(step.systems[place])
            attempts = known[wanted[system % size]].setdefault(system, [])
            if not attempts or (step.iteration == 0 and attempts[-1].norms):
                start = History() if step.iteration == 0 else History([float(first[system % size])], [0])
                attempts.append(start)
            attempts[-1].add(step, place)
    chosen: list[History] = []
    for row, by_start in zip(rows, known):
        attempts = [attempt for each in by_start.values() for attempt in each]
        same = [attempt for attempt in attempts if final[row] in attempt.norms]
        chosen.append((same or attempts or [History([float(first[row])], [0])])[-1])
    return chosen


@dataclass(frozen=True)
class Case:
    """One system, on the host."""

    status: Status
    history: History
    x: HostArray
    F: HostArray
    norm: float
    first: float
    target: float
    precision: float
    has_products: bool  # whether exact products were counted

    @property
    def reduction(self) -> float:
        """The norm over the first one."""
        return self.norm / self.first if self.first > 0 else math.nan

    @property
    def aim(self) -> str:
        """The target in words, where it is known."""
        return "" if math.isnan(self.target) else f", target {self.target:.3g}"


@dataclass(frozen=True)
class Cause:
    """What happened, and what to try; causes with the same key are reported together."""

    key: str
    what: str
    advice: str


def place(values: HostArray, where: HostArray) -> str:
    """The first entry of an array where something holds, with its value."""
    index = tuple(int(i) for i in np.argwhere(where)[0])
    name = f"[{', '.join(map(str, index))}] = " if index else ""
    return f"{name}{values[index]:.4g}"


def largest(values: HostArray) -> str:
    """The largest entry of an array, or the first that is not finite."""
    if not values.size:
        return ""
    finite = np.isfinite(values)
    magnitudes = np.where(finite, np.abs(values), -1.0)
    return place(values, ~finite if not finite.all() else magnitudes == magnitudes.max())
