"""The recorded steps of one system."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from implicitsolve._record import NewtonStep
from implicitsolve._summary import per_system
from implicitsolve._typing import HostArray
from implicitsolve.result import NonlinearResult
from implicitsolve.status import Status
from implicitsolve.structure._names import entry_name

FIELDS = "step_length", "forcing", "linear_residual", "krylov_iterations", "linear_status", "factorized"
MANY_SYSTEMS = 1000  # systems of a batch that are read one by one, and rows of a table
STOPPED = Status.STOPPED, Status.STOPPED_BY_MONITOR
ENDED_WELL = Status.CONVERGED, *STOPPED


@dataclass
class History:
    """One solve of one system: `norms` begin at x0, `parts` with the first step; unrecorded values are NaN.

    `spent` holds the residuals and Jacobian products that the steps counted.
    """

    norms: list[float] = field(default_factory=list[float])
    spent: list[int] = field(default_factory=list[int])
    parts: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in FIELDS})

    def add(self, step: NewtonStep, place: int) -> None:
        """Append a step's record of the system at this position in it."""
        self.norms.append(float(step.residual_norm[place]))
        self.spent.append(step.counts.evaluations)
        if step.iteration:
            for name, values in self.parts.items():
                recorded: HostArray = getattr(step, name)
                values.append(float(recorded[place]) if recorded.size else np.nan)

    def part(self, name: str) -> HostArray:
        return np.asarray(self.parts[name])

    @property
    def steps(self) -> int:
        return len(self.norms) - 1

    @property
    def kind(self) -> str:
        """The family of methods that took the last step, inferred from its record."""
        last = {name for name, values in self.parts.items() if values and np.isfinite(values[-1])}
        families = {"forcing": "krylov", "factorized": "block", "krylov_iterations": "homotopy"}
        return next((family for name, family in families.items() if name in last), "fixed point" if last else "")

    @property
    def ratios(self) -> HostArray:
        norms = np.asarray(self.norms)
        with np.errstate(all="ignore"):
            return norms[1:] / norms[:-1]

    @property
    def rate(self) -> float:
        """Mean factor of a step over the last half of the steps; NaN if that is not known."""
        count = max(1, self.steps // 2)
        first, last = (self.norms[-1 - count], self.norms[-1]) if self.steps else (math.nan, math.nan)
        return float((last / first) ** (1 / count)) if first > 0 and math.isfinite(last) else math.nan

    @property
    def tail(self) -> HostArray:
        """Factors of the last whole steps, at most 4, that did not end at a zero norm."""
        ratios, lengths = self.ratios, self.part("step_length")
        whole = (lengths == 1.0) & np.isfinite(ratios) & (ratios > 0)
        count = int(np.argmin(np.append(whole[::-1], False)))
        return ratios[ratios.size - min(count, 4) :]


def read_histories(result: NonlinearResult, rows: Sequence[int]) -> list[History]:
    """The solve that led to the result, for some systems of the flattened batch.

    A race, or a method that restarts, records several for each system: the last with the result's norm is taken.
    """
    size, index_of = np.asarray(result.status).size, {row: place for place, row in enumerate(rows)}
    final, first = (per_system(part, result.status) for part in (result.residual_norm, result.initial_norm))
    known: list[dict[int, list[History]]] = [{} for _ in rows]
    for step in result.steps:
        for place in np.flatnonzero(np.isin(step.systems % size, list(index_of))).tolist():
            system = int(step.systems[place])
            attempts = known[index_of[system % size]].setdefault(system, [])
            if not attempts or (step.iteration == 0 and attempts[-1].norms):
                start = History() if step.iteration == 0 else History([float(first[system % size])], [0])
                attempts.append(start)
            attempts[-1].add(step, place)
    return [_choose(by_start, float(first[row]), float(final[row])) for row, by_start in zip(rows, known)]


def _choose(attempts: dict[int, list[History]], first: float, final: float) -> History:
    known = [attempt for each in attempts.values() for attempt in each]
    same = [attempt for attempt in known if final in attempt.norms]
    return (same or known or [History([first], [0])])[-1]


def tabulate_norms(histories: Sequence[History], length: int) -> HostArray:
    """Norms (steps, systems); a system that has ended keeps its last one, and a value is drawn only if positive."""
    table = np.full((length, len(histories)), np.nan)
    for column, history in enumerate(histories):
        used = history.norms[:length]
        table[:, column] = [*used, *[used[-1]] * (length - len(used))]
    return np.where(np.isfinite(table) & (table > 0), table, np.nan)


@dataclass(frozen=True, eq=False)
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
    names: tuple[str, ...] | None = None  # of the unknowns and the equations
    equations: tuple[str, ...] | None = None

    @property
    def reduction(self) -> float:
        return self.norm / self.first if self.first > 0 else math.nan

    @property
    def aim(self) -> str:
        return f"{self.norm:.3g}" + ("" if math.isnan(self.target) else f" (target {self.target:.3g})")

    @property
    def place(self) -> str:
        """The step, and the largest entry of F, or the first that is not finite."""
        if self.status in ENDED_WELL or not self.F.size:
            return ""
        finite = np.isfinite(self.F)
        sizes = np.where(finite, np.abs(self.F), -1.0)
        name, where = ("largest entry", sizes == sizes.max()) if finite.all() else ("entry", ~finite)
        return f"step {self.history.steps}, {name} of F {show_entry(self.F, where, self.equations)}"


def show_entry(values: HostArray, where: HostArray, labels: tuple[str, ...] | None = None) -> str:
    """The first entry of an array where something holds, with its value."""
    entry = int(np.flatnonzero(where)[0])
    name = entry_name("", labels, entry, values.shape) + " = " if values.shape or labels else ""
    return f"{name}{values.flat[entry]:.4g}"
