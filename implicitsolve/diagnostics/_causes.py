"""Why one system of a nonlinear solve ended as it did, from what was recorded."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.diagnostics._history import History
from implicitsolve.status import Status

ROUNDED = 0.4  # reduction of ||F|| by this power of eps that ends where rounding begins
FEW_UNITS = 100  # rounding units of x that F = x - G(x) cannot fall below for sure
FLAT = 0.9  # factor of a step that is no progress
SHORT = 0.5  # step length that most steps fall to, where J does not belong to F
STEADY = 0.25  # spread of the last factors, relative to their mean
SLOW = 0.9  # factor of a fixed-point step that other methods beat
ACCURATE = 0.1  # linear residual, over the factor of the step, up to which it is not what slows the step down
NEAR = 0.015  # distance to (1 - 1/m)^m, the factor of ||F|| near a root of multiplicity m
POOR = 0.3  # linear residual from which on a direction is a poor one
MANY = 100  # Krylov iterations of one step that ask for a preconditioner


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
    """What happened, and what to try; causes with the same key are told together."""

    key: str
    what: str
    advice: str


def cause_of(case: Case) -> Cause:
    """The cause for a system that has failed."""
    told = CAUSES.get(case.status)
    return Cause(case.status.name, f"{case.status.message}.", case.status.hint) if told is None else told(case)


def _nonfinite(case: Case) -> Cause:
    if not np.isfinite(case.x).all():
        entry = place(case.x, ~np.isfinite(case.x))
        return Cause("x", f"x0 itself is not finite: {entry}.", "Start at finite numbers.")
    if not np.isfinite(case.F).all() and not case.history.steps:
        bad = ~np.isfinite(case.F)
        at = place(case.F, bad)
        here = f", where x is {case.x[bad].flat[0]:.4g}" if case.x.shape == case.F.shape else ""
        what = f"F is not finite at the start: {int(bad.sum())} of {bad.size} entries, the first {at}{here}."
        return Cause("start", what, "Start inside the domain of the residual, or extend it there.")
    if not np.isfinite(case.F).all():
        return Cause("end", f"F is not finite: {place(case.F, ~np.isfinite(case.F))}.", "Check the residual there.")
    what = (
        f"F was finite at x0 and for {_accepted(case)} accepted steps, then not finite wherever step "
        f"{case.history.steps} was tried, down to the shortest; x, the last point, lies between "
        f"{np.real(case.x).min():.4g} and {np.real(case.x).max():.4g}."
    )
    return Cause(
        "later",
        what,
        "Solve for a variable that cannot leave the domain of the residual (log x for positive x), start nearer to the "
        "solution, or look for an overflow in the residual at x.",
    )


def _iteration_limit(case: Case) -> Cause:
    history = case.history
    if not history.steps:
        return Cause("none", "No step was allowed.", "NonlinearStop(max_iterations=...) of at least 1.")
    rounded = _rounding(case)
    if rounded:
        return rounded
    rate, ratios = history.rate, history.ratios
    if not rate < 1:
        best = int(np.nanargmin(history.norms))
        what = (
            f"norm(F) does not fall any more: {case.norm:.3g} after {history.steps} steps{case.aim}; the smallest was "
        )
        return Cause("no progress", f"{what}{history.norms[best]:.3g}, after step {best}.", _another_method(case))
    if ratios[-1] < 0.01 or (ratios.size > 1 and ratios[-1] < 0.1 * ratios[-2]):
        what = (
            f"The solve was converging fast when it ended: the last step reduced norm(F) by {ratios[-1]:.2g}{case.aim}."
        )
        return Cause("fast", what, f"NonlinearStop(max_iterations={history.steps + 5}): a few more steps will do.")
    what = f"Over the last steps norm(F) fell by the factor {rate:.4g} a step, to {case.norm:.3g}{case.aim}."
    more = _more_steps(case, rate)
    advice = f"NonlinearStop(max_iterations={math.ceil(1.1 * (history.steps + more))})" if more else ""
    if more:
        what += f" At that rate {more} more steps reach it."
    slow = slowness(case)
    if slow:
        return Cause(
            f"slow: {slow.key}", f"{what} {slow.what}", f"{slow.advice} Or {advice}." if advice else slow.advice
        )
    faster = _faster(case)
    return Cause("slow", what, f"{advice}, or {faster}." if advice else f"{faster[0].upper()}{faster[1:]}.")


def _stagnated(case: Case) -> Cause:
    rounded = _rounding(case)
    if rounded:
        return rounded
    history = case.history
    lengths = history.part("step_length")
    if history.kind == "homotopy":
        what = f"The path from x0 was lost: its step length fell to {lengths[-1]:.2g}."
        return Cause("path", what, "Homotopy(first_step=0.05, forcing=1e-5), a larger `max_krylov`, or another x0.")
    slow = slowness(case)
    if slow:
        return slow
    if history.kind == "fixed point":
        back = int((lengths[-10:] == 0).sum())
        what = f"The iteration does not converge: norm(F) is {case.norm:.3g} after {history.steps} steps{case.aim}"
        what += f", and {back} of the last {min(10, lengths.size)} steps were taken back." if back else "."
        return Cause("iteration", what, _another_method(case))
    what = (
        f"Neither x nor norm(F), {case.norm:.3g}{case.aim}, changes any more, and F is no rounding error: x may be a "
    )
    advice = f"{_another_method(case)} `explain(result, problem)` tells whether x is a stationary point."
    return Cause("minimum", what + "local minimum of ||F||, or J be singular there.", advice)


def _diverged(case: Case) -> Cause:
    history, rate = case.history, case.history.rate
    what = f"norm(F) grew from {case.first:.3g} to {case.norm:.3g} in {history.steps} steps, by {rate:.3g} a step."
    if history.kind == "fixed point":
        return Cause("iteration", f"{what} x - F(x) is no contraction there.", _another_method(case))
    lengths = history.part("step_length")
    if (lengths == 1).all():
        advice = "NewtonKrylov(line_search=Backtracking()), if it was switched off, or start nearer to the solution."
        return Cause("whole steps", f"{what} All steps were whole.", advice)
    return Cause("steps", what, "Backtracking(growth=1), which lets no step increase ||F||, or start elsewhere.")


def _line_search(case: Case) -> Cause:
    rounded = _rounding(case)
    if rounded:
        return rounded
    history = case.history
    linear = history.part("linear_residual")
    solved = f" though the linear system was solved to {linear[-1]:.2g}" if linear.size and linear[-1] < 0.5 else ""
    what = f"At step {history.steps} no part of the direction reduced norm(F), {case.norm:.3g}{case.aim},{solved}."
    slow = slowness(case)
    if slow and slow.key == "short":
        return Cause("short", f"{what} {slow.what}", slow.advice)
    advice = (
        "Check the derivatives: check_derivatives(problem, result.x), or explain(result, problem). If they are right "
        "x is near a kink, or J nearly singular: start elsewhere, or Homotopy() for a fixed-point problem."
    )
    if linear.size and not linear[-1] < 0.5:
        what += f" The linear solve reached {linear[-1]:.2g} only, so that the direction is a poor one."
        advice = LINEAR_ADVICE
    return Cause("direction", what.replace(",.", "."), advice)


LINEAR_ADVICE = (
    "Precondition (`preconditioner=`, or declare a `structure`, which gives one), or enlarge the space: "
    "NewtonKrylov(max_krylov=...), for a method of your own its `restart`."
)


def _linear_solve(case: Case) -> Cause:
    history = case.history
    reached, asked, spent = (
        float(history.part(name)[-1]) if history.steps else math.nan
        for name in ("linear_residual", "forcing", "krylov_iterations")
    )
    what = (
        f"At step {history.steps} the linear solve brought nothing: its relative residual is {reached:.3g} after "
        f"{spent:.0f} iterations, where {asked:.2g} was asked for."
    )
    return Cause("linear", what, f"{LINEAR_ADVICE} A J that is singular at x has no solution: start elsewhere.")


def _breakdown(case: Case) -> Cause:
    what = f"The Krylov recurrence broke down at step {case.history.steps}, where norm(F) is {case.norm:.3g}."
    return Cause("breakdown", what, "NewtonKrylov(krylov=GMRES()), which breaks down for a singular J only.")


def _singular(case: Case) -> Cause:
    still = int((case.F == 0).sum())
    what = f"J is singular to working precision at step {case.history.steps}, where norm(F) is {case.norm:.3g}."
    if 0 < still < case.F.size:
        what += f" {still} of {case.F.size} entries of F are exactly 0."
    advice = (
        "Start elsewhere, or check that the residual depends on every unknown: explain(result, problem) looks for it."
    )
    return Cause("singular", what, advice)


def _stopped(case: Case) -> Cause:
    return Cause("stopped", "It was stopped as was asked for: this is no failure.", "")


def _unended(case: Case) -> Cause:
    return Cause("running", "The solve has not ended.", "")


CAUSES: dict[Status, Callable[[Case], Cause]] = {
    Status.RUNNING: _unended,
    Status.NONFINITE: _nonfinite,
    Status.ITERATION_LIMIT: _iteration_limit,
    Status.STAGNATED: _stagnated,
    Status.DIVERGED: _diverged,
    Status.LINE_SEARCH_FAILED: _line_search,
    Status.LINEAR_SOLVE_FAILED: _linear_solve,
    Status.BREAKDOWN: _breakdown,
    Status.SINGULAR: _singular,
    Status.STOPPED: _stopped,
}


# ---------------------------------------------------------------------------------------------------------------- parts


def slowness(case: Case) -> Cause | None:
    """Why Newton's steps are slow; None where they are not, or nothing shows it."""
    history = case.history
    if history.kind == "krylov":
        return _limited(case) or _short(case) or _only_linear(case)
    return _short(case) or _only_linear(case) if history.kind == "block" else None


def _limited(case: Case) -> Cause | None:
    """Linear solves that end at their limit."""
    history = case.history
    reached, asked = history.part("linear_residual"), history.part("forcing")
    missed = (history.part("linear_status") == Status.ITERATION_LIMIT) & (reached > np.maximum(asked, POOR))
    last = missed[-5:]
    if not (last.size and last.sum() > last.size / 2):
        return None
    step = int(np.flatnonzero(missed)[-1])
    what = (
        f"{int(missed.sum())} of {history.steps} linear solves ended at their limit: step {step + 1} reached the "
        f"relative residual {reached[step]:.2g} in {history.part('krylov_iterations')[step]:.0f} iterations, where "
        f"{asked[step]:.2g} was asked for."
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
        "J may not belong to F (check_derivatives(problem, result.x) tells), F may have a kink or leave its domain "
        "just beyond x, or x0 be far from any solution."
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
    linear = history.part("linear_residual")[-tail.size :]
    if history.kind == "krylov" and not (linear <= ACCURATE * rate).all():
        what = f"Whole steps reduce norm(F) by {rate:.2g} only, since the linear solves stop at {linear.max():.2g}."
        return Cause("forcing", what, "NewtonKrylov(forcing=ConstantForcing(eta=0.01)).")
    what = (
        f"The last {tail.size} whole steps all reduced norm(F) by about {rate:.2g}, where Newton's method converges "
        "ever faster: "
    )
    order = next((m for m in (2, 3, 4) if abs((1 - 1 / m) ** m - rate) < NEAR), 0)
    if order:
        what += f"J is singular at the solution, as at a root of multiplicity {order}."
        return Cause("singular root", what, "Solve for a form of the equations whose J is regular, or accept the rate.")
    what += "J is not the derivative of F."
    return Cause("inexact", what, "check_derivatives(problem, result.x), or explain(result, problem), says which part.")


def _rounding(case: Case) -> Cause | None:
    """A norm that stopped falling where rounding begins."""
    history, best = case.history, min(case.norm, *case.history.norms) if case.history.norms else case.norm
    recent = np.asarray(history.norms[-4:])
    is_flat = recent.size < 2 or not recent[-1] < FLAT * recent[:-1].min() * FLAT
    is_small = case.reduction < case.precision**ROUNDED
    size = float(np.abs(case.x).max(initial=0.0))
    units = case.norm / (case.precision * size) if size else math.inf
    if not (is_flat and history.steps and (is_small or units < FEW_UNITS)) or case.target > case.norm:
        return None
    holds = 10.0 ** math.floor(math.log10(best)) if best > 0 else 0.0
    holds *= math.ceil(2 * best / holds) if holds else 0.0
    what = f"norm(F) fell from {case.first:.3g} to {best:.3g} and no further"
    what += f", which is {units:.2g} rounding units of max|x|" if units < FEW_UNITS else ""
    what += f"{case.aim}: the target lies below the rounding error of F."
    advice = f"NonlinearStop(atol={holds:.1g}) would hold."
    if case.precision > 1e-10:
        advice += " Or solve in float64."
    if not case.has_products and history.kind == "krylov":
        advice += " Or give `jvp`: products are differences here, whose error is larger."
    return Cause("rounding", what, advice)


def _more_steps(case: Case, rate: float) -> int:
    """Steps to the target at a steady rate; 0 if that is not known."""
    if not (case.target > 0 and 0 < rate < 1 and case.norm > case.target):
        return 0
    return math.ceil(math.log(case.target / case.norm) / math.log(rate))


def _faster(case: Case) -> str:
    if case.history.kind == "fixed point":
        return 'method=Anderson() or "newton-krylov", which need fewer steps where a fixed-point iteration is slow'
    return "start nearer to the solution"


def _another_method(case: Case) -> str:
    if case.history.kind == "fixed point":
        return 'method="newton-krylov", Homotopy() from another x0, or a smaller `damping`.'
    return "Start elsewhere, race() several starts, or Homotopy() for a fixed-point problem."


def _accepted(case: Case) -> int:
    return int((case.history.part("step_length") > 0).sum())


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


def warning_of(case: Case) -> Cause | None:
    """What is suspicious of a system that has converged."""
    history = case.history
    if history.kind in ("krylov", "block"):
        found = _only_linear(case) or _short(case)
        spent = history.part("krylov_iterations")
        if found is None and spent.size and np.nanmax(spent, initial=0) > MANY:
            what = f"Step {int(np.nanargmax(spent)) + 1} took {np.nanmax(spent):.0f} Krylov iterations."
            return Cause("products", what, "Precondition, or declare a `structure`.")
        return found
    if history.kind == "fixed point" and history.steps >= 10 and history.rate > SLOW:
        what = f"norm(F) fell by the factor {history.rate:.3g} a step only, in {history.steps} steps."
        return Cause("slow", what, f"{_faster(case)}.")
    if history.steps == 0 and case.norm > 0:
        return Cause("start", f"x0 already met the target{case.aim.replace(', target', ' of')}.", "Is it small enough?")
    return None
