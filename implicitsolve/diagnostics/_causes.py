"""Why one system of a nonlinear solve ended as it did, from what was recorded."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from implicitsolve.diagnostics._case import Case, Cause, place
from implicitsolve.diagnostics._slowness import LINEAR_ADVICE, faster, slowness
from implicitsolve.status import Status

ROUNDED = 0.4  # reduction of ||F|| by this power of eps that ends where rounding begins
FEW_UNITS = 100  # rounding units of x that F = x - G(x) cannot fall below for sure
FLAT = 0.8  # factor of a step that is no progress
FAST = 0.2  # factor of a step that ends a solve soon, if it is half the one before
SOON = 5  # steps that a fast solve may still need
FOREVER = 10_000  # steps that nobody waits for
STILL = 1e-8  # step length with which x hardly moves


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
    accepted = int((case.history.part("step_length") > 0).sum())
    after = f" and after {accepted} step{'s' * (accepted > 1)}" if accepted else ""
    what = (
        f"F was finite at x0{after}, then not finite wherever a step from there was tried, down to the shortest; x, "
        f"the last point, lies between {np.real(case.x).min():.4g} and {np.real(case.x).max():.4g}."
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
    rate, ratios, slow = history.rate, history.ratios, slowness(case)
    more = _more_steps(case, rate)
    if not rate < 1 or more > FOREVER:
        if slow:
            return slow
        best = int(np.nanargmin(history.norms))
        what = (
            f"norm(F) hardly falls any more: {case.norm:.3g} after {history.steps} steps{case.aim}; the smallest was "
        )
        return Cause("no progress", f"{what}{history.norms[best]:.3g}, after step {best}.", _another_method(case))
    if ratios[-1] < FAST and (ratios.size == 1 or ratios[-1] < 0.5 * ratios[-2]):
        what = (
            f"The solve was converging fast when it ended: the last step reduced norm(F) by {ratios[-1]:.2g}{case.aim}."
        )
        return Cause("fast", what, f"NonlinearStop(max_iterations={history.steps + SOON}): a few more steps will do.")
    what = f"Over the last steps norm(F) fell by the factor {rate:.4g} a step, to {case.norm:.3g}{case.aim}."
    advice = "NonlinearStop(max_iterations=...) of a larger value"
    if more:
        what += f" At that rate {more} more steps reach it."
        advice = f"NonlinearStop(max_iterations={math.ceil(1.1 * (history.steps + more))})"
    if slow:
        return Cause(f"slow: {slow.key}", f"{what} {slow.what}", f"{slow.advice} Or {advice}.")
    return Cause("slow", what, f"{advice}, or {faster(case)}.")


def _stagnated(case: Case) -> Cause:
    rounded = _rounding(case)
    if rounded:
        return rounded
    history = case.history
    lengths = history.part("step_length")
    if history.kind == "homotopy":
        what = f"The path from x0 was lost: its step length fell to {lengths[-1]:.2g}."
        return Cause("path", what, "Homotopy(first_step=0.05, forcing=1e-5), a larger `max_krylov`, or another x0.")
    if history.kind in ("krylov", "block") and lengths.size and lengths[-1] < STILL:
        return _edge(case, lengths[-1])
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


def _edge(case: Case, length: float) -> Cause:
    """Steps so short that x does not move, though they are accepted."""
    what = (
        f"norm(F), {case.norm:.3g}{case.aim}, is reduced by steps alone that are too short to move x: the last was "
        f"{length:.1g} of the direction."
    )
    advice = (
        "See whether F is finite, and continuous, just beyond x: x may lie at the edge of its domain. Else x may be a "
        "local minimum of ||F||, or J not belong to F: explain(result, problem) looks for both."
    )
    return Cause("edge", what, advice)


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


def _rounding(case: Case) -> Cause | None:
    """A norm that stopped falling where rounding begins."""
    history, best = case.history, min(case.norm, *case.history.norms) if case.history.norms else case.norm
    recent = np.asarray(history.norms[-4:])
    is_flat = recent.size < 2 or not recent[-1] < FLAT * recent[:-1].min()
    is_small = case.reduction < case.precision**ROUNDED
    size = float(np.abs(case.x).max(initial=0.0))
    is_difference = history.kind in ("fixed point", "homotopy")
    units = case.norm / (case.precision * size) if size and is_difference else math.inf
    if not (is_flat and history.steps and (is_small or units < FEW_UNITS)) or case.target > case.norm:
        return None
    holds = 10.0 ** math.floor(math.log10(best)) if best > 0 else 0.0
    holds *= math.ceil(2 * best / holds) if holds else 0.0
    what = f"norm(F) fell from {case.first:.3g} to {best:.3g} and no further"
    what += f", which is {units:.2g} rounding units of max|x|" if units < FEW_UNITS else ""
    what += f"{case.aim}: the target seems to lie below the rounding error of F."
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


def _another_method(case: Case) -> str:
    if case.history.kind == "fixed point":
        return 'method="newton-krylov", Homotopy() from another x0, or a smaller `damping`.'
    return "Start elsewhere, race() several starts, or Homotopy() for a fixed-point problem."
