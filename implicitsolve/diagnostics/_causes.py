"""Why one system of a solve ended as it did, from its recorded steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from implicitsolve.derivatives import AdjointResult
from implicitsolve.diagnostics._history import LINEAR_ADVICE, STOPPED, Case, Cause, faster, place, slowness
from implicitsolve.result import LinearResult
from implicitsolve.status import Status

ROUNDED = 0.4  # reduction of ||F|| by this power of eps that ends where rounding begins
FEW_UNITS = 100  # rounding units of x that F = x - G(x) cannot fall below for sure
FLAT = 0.8  # factor of a step that is no progress
FAST = 0.2  # factor of a step that ends a solve soon, if it is half the one before
SOON = 5  # steps that a fast solve may still need
FOREVER = 10_000  # more steps than anyone would wait for
STILL = 1e-8  # step length with which x hardly moves
AT_ROUNDING = Status.ITERATION_LIMIT, Status.STAGNATED, Status.LINE_SEARCH_FAILED  # how a norm of rounding error ends


def cause_of(case: Case) -> Cause:
    """The cause for a system that has failed."""
    if case.status in STOPPED:
        return Cause("stopped", "It was stopped as requested: this is not a failure.", "")
    rounded = _rounding(case) if case.status in AT_ROUNDING else None
    return rounded or CAUSES.get(case.status, _described)(case)


def _described(case: Case) -> Cause:
    message = case.status.message
    return Cause(case.status.name, f"{message[0].upper()}{message[1:]}.", case.status.hint)


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
        f"F was finite at x0{after}, then not finite at any trial point of the next step, down to the shortest; the "
        f"entries of x, the last iterate, lie between {np.real(case.x).min():.4g} and {np.real(case.x).max():.4g}."
    )
    return Cause(
        "later",
        what,
        "Solve for a variable that cannot leave the domain of the residual (log x for positive x), start closer to the "
        "solution, or look for an overflow in the residual at x.",
    )


def _iteration_limit(case: Case) -> Cause:
    history = case.history
    if not history.steps:
        return Cause("none", "No step was allowed.", "NonlinearStop(max_iterations=...) of at least 1.")
    rate, ratios, slow = history.rate, history.ratios, slowness(case)
    more = _more_steps(case, rate)
    if not rate < 1 or more > FOREVER:
        if slow:
            return slow
        best = int(np.nanargmin(history.norms))
        what = (
            f"norm(F) hardly falls any further: {case.norm:.3g} after {history.steps} steps{case.aim}; the least was "
        )
        return Cause("no progress", f"{what}{history.norms[best]:.3g}, after step {best}.", _another_method(case))
    if ratios[-1] < FAST and (ratios.size == 1 or ratios[-1] < 0.5 * ratios[-2]):
        what = (
            f"The solve was converging fast when it ended: the last step reduced norm(F) by {ratios[-1]:.2g}{case.aim}."
        )
        return Cause("fast", what, f"NonlinearStop(max_iterations={history.steps + SOON}): a few more steps suffice.")
    what = f"Over the last steps norm(F) fell by a factor of {rate:.4g} per step, to {case.norm:.3g}{case.aim}."
    advice = "NonlinearStop(max_iterations=...) of a larger value"
    if more:
        what += f" At that rate {more} more steps reach it."
        advice = f"NonlinearStop(max_iterations={math.ceil(1.1 * (history.steps + more))})"
    if slow:
        return Cause(f"slow: {slow.key}", f"{what} {slow.what}", f"{slow.advice} Or {advice}.")
    return Cause("slow", what, f"{advice}, or {faster(case)}.")


def _stagnated(case: Case) -> Cause:
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
        what += f", and {back} of the last {min(10, lengths.size)} steps were rejected." if back else "."
        return Cause("iteration", what, _another_method(case))
    what = f"norm(F), {case.norm:.3g}{case.aim}, no longer falls, and F is not rounding error: x may be a "
    advice = f"{_another_method(case)} `explain(result, problem)` tests whether x is a stationary point."
    return Cause("minimum", what + "local minimum of ||F||, or J may be singular there.", advice)


def _edge(case: Case, length: float) -> Cause:
    """Steps so short that x does not move, though they are accepted."""
    what = (
        f"norm(F), {case.norm:.3g}{case.aim}, is reduced only by steps that are too short to move x: the last was "
        f"{length:.1g} of the direction."
    )
    advice = (
        "Check whether F is finite, and continuous, just beyond x: x may lie at the edge of its domain. Otherwise x "
        "may be a local minimum of ||F||, or J may not be the derivative of F: explain(result, problem) tests both."
    )
    return Cause("edge", what, advice)


def _diverged(case: Case) -> Cause:
    history, rate = case.history, case.history.rate
    what = f"norm(F) grew from {case.first:.3g} to {history.norms[-1]:.3g} in {history.steps} steps, "
    what += f"by a factor of {rate:.3g} per step."
    if history.kind == "fixed point":
        return Cause("iteration", f"{what} x - F(x) is not a contraction there.", _another_method(case))
    lengths = history.part("step_length")
    if (lengths == 1).all():
        advice = "NewtonKrylov(line_search=Backtracking()), if it was switched off, or start closer to the solution."
        return Cause("whole steps", f"{what} All steps were full steps.", advice)
    return Cause("steps", what, "Backtracking(growth_limit=1), which lets no step increase ||F||, or start elsewhere.")


def _line_search(case: Case) -> Cause:
    history = case.history
    linear = history.part("linear_residual")
    solved = f" though the linear system was solved to {linear[-1]:.2g}" if linear.size and linear[-1] < 0.5 else ""
    what = f"At step {history.steps} no step along the direction reduced norm(F), {case.norm:.3g}{case.aim},{solved}."
    slow = slowness(case)
    if slow and slow.key == "short":
        return Cause("short", f"{what} {slow.what}", slow.advice)
    advice = (
        "Check the derivatives: check_derivatives(problem, result.x), or explain(result, problem). If they are right "
        "x is near a kink, or J is nearly singular: start elsewhere, or Homotopy() for a fixed-point problem."
    )
    if linear.size and not linear[-1] < 0.5:
        what += f" The linear solve reached only {linear[-1]:.2g}, so that the direction is poor."
        advice = LINEAR_ADVICE
    return Cause("direction", what.replace(",.", "."), advice)


def _linear_solve(case: Case) -> Cause:
    history = case.history
    reached, requested, spent = (
        float(history.part(name)[-1]) if history.steps else math.nan
        for name in ("linear_residual", "forcing", "krylov_iterations")
    )
    what = (
        f"At step {history.steps} the linear solve made no progress: its relative residual is {reached:.3g} after "
        f"{spent:.0f} iterations, tolerance {requested:.2g}."
    )
    return Cause("linear", what, f"{LINEAR_ADVICE} If J is singular at x there may be no solution: start elsewhere.")


def _singular(case: Case) -> Cause:
    still = int((case.F == 0).sum())
    what = f"J is singular to working precision at step {case.history.steps}, where norm(F) is {case.norm:.3g}."
    if 0 < still < case.F.size:
        what += f" {still} of {case.F.size} entries of F are exactly 0."
    advice = (
        "Start elsewhere, or check that the residual depends on every unknown: explain(result, problem) tests this."
    )
    return Cause("singular", what, advice)


CAUSES: dict[Status, Callable[[Case], Cause]] = {
    Status.NONFINITE: _nonfinite,
    Status.ITERATION_LIMIT: _iteration_limit,
    Status.STAGNATED: _stagnated,
    Status.DIVERGED: _diverged,
    Status.LINE_SEARCH_FAILED: _line_search,
    Status.LINEAR_SOLVE_FAILED: _linear_solve,
    Status.SINGULAR: _singular,
}


# ---------------------------------------------------------------------------------------------------------------- parts


def _rounding(case: Case) -> Cause | None:
    """A norm that stagnates at the level of rounding."""
    history, best = case.history, min(case.norm, *case.history.norms) if case.history.norms else case.norm
    recent = np.asarray(history.norms[-4:])
    ended = case.status is not Status.ITERATION_LIMIT  # a step after the last one reduced the norm no further
    is_flat = ended or recent.size < 2 or not recent[-1] < FLAT * recent[:-1].min()
    is_small = case.reduction < case.precision**ROUNDED
    size = float(np.abs(case.x).max(initial=0.0))
    is_difference = history.kind in ("fixed point", "homotopy")
    units = case.norm / (case.precision * size) if size and is_difference else math.inf
    if not (is_flat and history.steps and (is_small or units < FEW_UNITS)) or case.target > case.norm:
        return None
    holds = 10.0 ** math.floor(math.log10(best)) if best > 0 else 0.0
    holds *= math.ceil(2 * best / holds) if holds else 0.0
    what = f"norm(F) fell from {case.first:.3g} to {best:.3g} and no further"
    what += f", which is {units:.2g} units of roundoff of max|x|" if units < FEW_UNITS else ""
    what += f"{case.aim}: the target seems to lie below the rounding error of F."
    advice = f"NonlinearStop(atol={holds:.1g}) would be met."
    if case.precision > 1e-10:
        advice += " Or solve in float64."
    if not case.has_products and history.kind == "krylov":
        advice += " Or give `jvp`: products are finite differences here, whose error is larger."
    return Cause("rounding", what, advice)


def _more_steps(case: Case, rate: float) -> int:
    """Steps to the target at a steady rate; 0 if that is not known."""
    if not (case.target > 0 and 0 < rate < 1 and case.norm > case.target):
        return 0
    return math.ceil(math.log(case.target / case.norm) / math.log(rate))


def _another_method(case: Case) -> str:
    if case.history.kind == "fixed point":
        return 'method="newton-krylov", Homotopy() from another x0, or a smaller `damping`.'
    return "Start elsewhere, race() several initial guesses, or Homotopy() for a fixed-point problem."


CLOSE = 10  # residual over target that a few more iterations may close


def linear_cause(status: Status, norm: float, target: float, iterations: float, result: Any) -> tuple[str, str]:
    """What happened, and what to try, for the system that is farthest from its target."""
    matrix, transposed = "A" if isinstance(result, LinearResult) else "J", ""
    if isinstance(result, AdjointResult):
        matrix, transposed = "J^H", " An operator `M` must approximate J^-H here."
    requested = "" if math.isnan(target) else f", target {target:.3g}"
    reached = f"||b - {matrix} x|| is {norm:.3g} after {iterations:.0f} iteration{'s' * (iterations != 1)}{requested}."
    if status == Status.FORWARD_NOT_CONVERGED:
        what = "The linear system was solved, but x is not a solution, so this is not a derivative of the solution."
        return what, "Converge the forward solve first: explain() of its result describes why it failed."
    if status == Status.ITERATION_LIMIT:
        more = "LinearStop(max_iterations=...)" if norm <= CLOSE * target else "a larger `restart` of the method"
        return reached, f"`M`, a preconditioner, then {more}.{transposed}"
    if status == Status.STAGNATED:
        what = f"{reached} It no longer falls: {matrix} is nearly singular, or the target below rounding."
        return what, f"A larger `restart` of the method, `M`, or LinearStop(rtol=...) of a larger value.{transposed}"
    if status in (Status.BREAKDOWN, Status.SINGULAR):
        what = f"{reached} {matrix} is singular on the space that b spans, or the method does not suit it."
        condition = "" if matrix == "A" else " condition() of the problem estimates how singular J is."
        return what, f"GMRES, which breaks down only for a singular {matrix}; then check b and the operator.{condition}"
    if status == Status.NONFINITE:
        return f"A product with {matrix} or `M`, or b, is not finite.", "Check them with finite vectors: dot_test(A)."
    return f"{reached} {status.message[0].upper()}{status.message[1:]}.", status.hint
