"""The recorded steps of one system, and the causes found in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from implicitsolve._summary import per_system
from implicitsolve._typing import HostArray
from implicitsolve.errors import NoConvergence
from implicitsolve.result import NewtonStep, NonlinearResult
from implicitsolve.status import Status

FIELDS = "step_length", "forcing", "linear_residual", "krylov_iterations", "linear_status", "factorized"
STOPPED = Status.STOPPED, Status.STOPPED_BY_MONITOR
ENDED_WELL = Status.CONVERGED, *STOPPED
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
        self.spent.append(step.counts.evaluations)
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

    A race, or a method that restarts, leaves several for each system: taken is the last one with the
    result's norm.
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


SHORT = 0.5  # median step length below which J may not be the derivative of F
STEADY = 0.25  # spread of the last factors, relative to their mean
SLOW = 0.9  # factor of a fixed-point step that other methods beat
ACCURATE = 0.1  # linear residual, over the factor of the step, up to which it is not what slows the step down
POWER = 0.015  # distance to (1 - 1/m)^m, the factor of ||F|| by which Newton's steps reduce a power m
POOR = 0.3  # linear residual from which on a direction is a poor one
MANY = 100  # Krylov iterations of one step that ask for a preconditioner
NEAR = 1e-6  # reduction of ||F|| below which Newton's method near a nonsingular root takes full steps
LAST = 4  # steps there

LINEAR_ADVICE = (
    "Precondition (`preconditioner=`, or declare a `structure`, which gives one), or enlarge the space: "
    "NewtonKrylov(max_krylov=...), or `restart` of your own method."
)


def slowness(case: Case) -> Cause | None:
    """Why Newton's method is slow; None where it is not, or the steps do not show it."""
    history = case.history
    if history.kind == "krylov":
        return _limited(case) or _short(case) or _only_linear(case)
    return _short(case) or _only_linear(case) if history.kind == "block" else None


def _limited(case: Case) -> Cause | None:
    """Linear solves that end at their limit."""
    history = case.history
    reached, requested = history.part("linear_residual"), history.part("forcing")
    missed = (history.part("linear_status") == Status.ITERATION_LIMIT) & (reached > np.maximum(requested, POOR))
    last = missed[-5:]
    if not (last.size and last.sum() > last.size / 2):
        return None
    step = int(np.flatnonzero(missed)[-1])
    what = (
        f"{int(missed.sum())} of {history.steps} linear solves ended at their limit: step {step + 1} reached the "
        f"relative residual {reached[step]:.2g} in {history.part('krylov_iterations')[step]:.0f} iterations, where "
        f"the tolerance was {requested[step]:.2g}."
    )
    return Cause("linear", what, LINEAR_ADVICE)


def _short(case: Case) -> Cause | None:
    """Steps that the line search always shortens."""
    lengths = case.history.part("step_length")[-10:]
    if lengths.size < 3 or not np.median(lengths) <= SHORT:
        return None
    what = (
        f"The line search shortens nearly every step: the median length of the last {lengths.size} is "
        f"{np.median(lengths):.2g}."
    )
    advice = (
        "F may have a kink or the edge of its domain just beyond x, x0 may be far from any solution, or J may be "
        "wrong: run check_derivatives(problem, result.x)."
    )
    return Cause("short", what, advice)


def _only_linear(case: Case) -> Cause | None:
    """Whole Newton steps that reduce F by the same factor each time, though linear solves are accurate."""
    history, tail = case.history, case.history.tail
    if tail.size < 3 or history.steps < 4:
        return None
    rate = float(np.exp(np.log(tail).mean()))
    if not (rate > 0.05 and np.ptp(tail) <= STEADY * min(rate, 1 - rate)):
        return None
    linear = float(np.median(history.part("linear_residual")[-tail.size :])) if history.kind == "krylov" else 0.0
    if linear <= ACCURATE * rate:
        return _steady(case, tail.size, rate)
    what = f"Full steps reduce norm(F) by only {rate:.2g}, since the linear solves stop at {linear:.2g}."
    cause = Cause("forcing", what, "NewtonKrylov(forcing=ConstantForcing(eta=0.01)).")
    return cause if linear > SHORT * rate else None


def _steady(case: Case, steps: int, rate: float) -> Cause:
    """What makes accurate Newton steps reduce F by the same factor each time."""
    order = next((m for m in (2, 3, 4) if abs((1 - 1 / m) ** m - rate) < POWER), 0)
    what = (
        f"The last {steps} full steps all reduced norm(F) by about {rate:.2g}, where Newton's method near a "
        "nonsingular root converges superlinearly: "
    )
    if order:
        what += f"J is singular at the solution, as at a root of multiplicity {order}, or x is still far from it and F "
        what += f"grows there like the power {order}."
        advice = "Reformulate the equations so that J is nonsingular, or accept the rate."
    else:
        what += "J is not the derivative of F, or x is still far from the solution, and F grows there exponentially."
        advice = "check_derivatives(problem, result.x), or explain(result, problem), tests whether J is right."
    if case.status == Status.CONVERGED:
        advice += " If x is far: a smaller `rtol`."
    return Cause("power" if order else "inexact", what, advice)


def _short_to_the_end(case: Case) -> Cause | None:
    """Steps that are shortened though the norm is small already: not the way to a solution, but the arrival there."""
    last = case.history.part("step_length")[-LAST:]
    is_short = last.size == LAST and bool(np.median(last) <= SHORT) and bool(last[-1] < 1)
    if not (is_short and case.reduction < NEAR):
        return None
    what = f"The line search shortened the last steps (median {np.median(last):.2g}), though norm(F) was small."
    advice = (
        "J may be wrong: run check_derivatives(problem, result.x). Otherwise F may have a kink at x, or x may lie near "
        "the edge of its domain."
    )
    return Cause("short", what, advice)


def faster(case: Case) -> str:
    """What may need fewer steps."""
    if case.history.kind == "fixed point":
        return 'method="newton-krylov", or Anderson() instead of Picard(): fewer steps where an iteration is slow'
    return "start closer to the solution"


def warning_of(case: Case) -> Cause | None:
    """What looks suspicious in a system that has converged."""
    history = case.history
    if history.kind in ("krylov", "block"):
        found = _only_linear(case) or _short_to_the_end(case)
        spent = history.part("krylov_iterations")
        if found is None and spent.size and np.nanmax(spent, initial=0) > MANY:
            what = f"Step {int(np.nanargmax(spent)) + 1} took {np.nanmax(spent):.0f} Krylov iterations."
            return Cause("products", what, "Precondition, or declare a `structure`.")
        return found
    if history.kind == "fixed point" and history.steps >= 10 and history.rate > SLOW:
        what = f"norm(F) fell by a factor of only {history.rate:.3g} per step, in {history.steps} steps."
        return Cause("slow", what, f"{faster(case)}.")
    if history.steps == 0 and case.norm > 0:
        return Cause("start", f"x0 already met the target{case.aim.replace(', target', ' of')}.", "Is it small enough?")
    return None
