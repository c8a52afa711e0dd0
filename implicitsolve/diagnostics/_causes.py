"""Why one system of a solve ended as it did, from its recorded steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from implicitsolve.derivatives import AdjointResult, TangentResult
from implicitsolve.diagnostics._history import STOPPED, Case, show_entry
from implicitsolve.result import LinearResult
from implicitsolve.status import Status

ROUNDED = 0.4  # reduction of ||F|| by this power of eps that ends where rounding begins
FLAT_STEP = 0.9  # factor of a step that is hardly progress
STEADY = 0.25  # spread of the last factors, relative to their mean
POWER = 0.015  # distance to (1 - 1/m)^m, the factor of ||F|| by which Newton's steps reduce a power m
POOR = 0.5  # linear residual from which on a direction is a poor one, and length of steps below which it seems to be
MANY_ITERATIONS = 100  # Krylov iterations of one step that suggest a preconditioner
AT_ROUNDING = Status.ITERATION_LIMIT, Status.STAGNATED, Status.LINE_SEARCH_FAILED  # how a norm of rounding error ends
PRECONDITION = (
    "Precondition (`preconditioner=`, or declare a `structure`, which gives one), or enlarge the space: "
    "NewtonKrylov(max_krylov=...), or `restart` of your own method."
)
ELSEWHERE = "Start elsewhere, or race() several initial guesses."
CHECK = "explain(result, problem) finds out which."


@dataclass(frozen=True)
class Cause:
    """What happened, and what to try; causes with the same key are reported together."""

    key: str
    what: str
    advice: str


def sentence(status: Status) -> str:
    return status.message[0].upper() + status.message[1:]


def find_cause(case: Case) -> Cause | None:
    """Why a system has failed, or what looks suspicious in one that has converged."""
    if case.status == Status.CONVERGED:
        return _suspicion(case)
    if case.status in STOPPED:
        return Cause("stopped", "It was stopped as requested: this is not a failure.", "")
    other = Cause(case.status.name, f"{sentence(case.status)}.", case.status.hint)
    rule = CAUSES.get(case.status)
    return (_rounding(case) if case.status in AT_ROUNDING else None) or (rule(case) if rule else other)


def _nonfinite(case: Case) -> Cause:
    bad = ~np.isfinite(case.F)
    if not np.isfinite(case.x).all():
        entry = show_entry(case.x, ~np.isfinite(case.x), case.names)
        return Cause("x", f"x0 itself is not finite: {entry}.", "Start at finite numbers.")
    if bad.any():
        here = f", where x is {case.x[bad].flat[0]:.4g}" if case.x.shape == case.F.shape else ""
        start = "at the start" if not case.history.steps else "at x"
        what = f"F is not finite {start}: {int(bad.sum())} of {bad.size} entries, the first"
        advice = "Start inside the domain of the residual, or extend it there."
        return Cause("start", f"{what} {show_entry(case.F, bad, case.equations)}{here}.", advice)
    what = "F was finite up to x, the last iterate, but at no trial point of the next step, down to the shortest."
    advice = (
        "Solve for a variable that cannot leave the domain of the residual (log x for positive x), start closer to the "
        "solution, or look for an overflow in the residual at x."
    )
    return Cause("later", what, advice)


def _iteration_limit(case: Case) -> Cause:
    history, rate, slow = case.history, case.history.rate, _slowness(case)
    if not history.steps:
        return Cause("none", "No step was allowed.", "NonlinearStop(max_iterations=...) of at least 1.")
    is_falling = case.target > 0 and 0 < rate < 1 and case.norm > case.target
    more = math.ceil(math.log(case.target / case.norm) / math.log(rate)) if is_falling else 0
    if not rate < 1:
        what = f"norm(F) hardly falls any further: {case.aim} after {history.steps} steps."
        return slow or Cause("no progress", what, _another_method(case))
    ratios = history.ratios
    if ratios[-1] < POOR * ratios[-2:-1].min(initial=POOR):
        what = f"The solve was converging fast when it ended: the last step reduced norm(F) by {ratios[-1]:.2g}"
        advice = f"NonlinearStop(max_iterations={history.steps + 5}): a few more steps suffice."
        return Cause("fast", f"{what}, to {case.aim}.", advice)
    what = f"Over the last steps norm(F) fell by a factor of {rate:.4g} per step, to {case.aim}."
    limit = math.ceil(1.1 * (history.steps + more)) if more else "..."
    advice = f"NonlinearStop(max_iterations={limit})"
    what += f" At that rate {more} more steps reach it." if more else ""
    if slow:
        return Cause(f"slow: {slow.key}", f"{what} {slow.what}", f"{slow.advice} Or {advice}.")
    return Cause("slow", what, f"{advice}, or {_faster(case)}.")


def _stuck(case: Case) -> Cause:
    """Why a solve made no further progress, whatever the reason for which the method stopped."""
    history, steps = case.history, f"{case.history.steps} step{'s' * (case.history.steps != 1)}"
    if history.kind == "homotopy":
        what = f"The path from x0 was lost: its step length fell to {history.part('step_length')[-1]:.2g}."
        return Cause("path", what, "Homotopy(first_step=0.05, forcing=1e-5), a larger `max_krylov`, or another x0.")
    if history.kind == "fixed point":
        what = f"The iteration does not converge: norm(F) is {case.aim} after {steps}."
        return Cause("iteration", what, _another_method(case))
    limited = _limit(case) if history.kind == "krylov" else None
    what = f"norm(F) no longer falls: {case.aim} after {steps}"
    if limited:
        return Cause("linear", f"{what}. {limited.what}", limited.advice)
    wrong = ", or J may not be the derivative of F" if case.has_products else ""
    found = "x may be a minimum of ||F|| that is not a root, as beyond a fold; F may have a kink or the edge of its "
    advice = f"{CHECK} {ELSEWHERE}"
    return Cause("stuck", f"{what}, along any direction that was tried. {found}domain just beyond x{wrong}.", advice)


def _divergence(case: Case) -> Cause:
    history = case.history
    what = f"norm(F) grew from {case.first:.3g} to {history.norms[-1]:.3g} in {history.steps} steps, "
    what += f"by a factor of {history.rate:.3g} per step."
    if history.kind == "fixed point":
        return Cause("iteration", f"{what} x - F(x) is not a contraction there.", _another_method(case))
    if (history.part("step_length") == 1).all():
        advice = "NewtonKrylov(line_search=Backtracking()), if it was switched off, or start closer to the solution."
        return Cause("whole steps", f"{what} All steps were full steps.", advice)
    return Cause("steps", what, "Backtracking(growth_limit=1), which lets no step increase ||F||, or start elsewhere.")


def _linear_solve(case: Case) -> Cause:
    names = "linear_residual", "krylov_iterations", "forcing"
    known = [case.history.part(name)[-1] if case.history.steps else math.nan for name in names]
    what = (
        f"At step {case.history.steps} the linear solve made no progress: its relative residual is {known[0]:.3g} "
        f"after {known[1]:.0f} iterations, tolerance {known[2]:.2g}."
    )
    return Cause("linear", what, f"{PRECONDITION} If J is singular at x there may be no solution: start elsewhere.")


def _singular(case: Case) -> Cause:
    what = f"J was singular to working precision on the way, to step {case.history.steps}: a minimum of ||F|| that is "
    advice = f"Start elsewhere, or remove what is undetermined. {CHECK}"
    return Cause("singular", f"{what}not a root, or an unknown without equation. norm(F) is {case.aim}.", advice)


def _rounding(case: Case) -> Cause | None:
    history, best = case.history, min(case.norm, *case.history.norms) if case.history.norms else case.norm
    recent = np.asarray(history.norms[-4:])
    ended = case.status is not Status.ITERATION_LIMIT  # a step after the last one reduced the norm no further
    is_flat = ended or recent.size < 2 or not recent[-1] < FLAT_STEP * recent[:-1].min()
    is_small = case.reduction < case.precision**ROUNDED
    if not (is_flat and history.steps and is_small) or case.target > case.norm:
        return None
    what = f"norm(F) fell from {case.first:.3g} to {case.aim} and no further: the target seems to lie below the "
    advice = f"NonlinearStop(atol={round_up(2 * best):.1g}) would be met."
    advice += " Or solve in float64." if case.precision > 1e-10 else ""
    if not case.has_products and history.kind == "krylov":
        advice += " Or give `jvp`: products are finite differences here, whose error is larger."
    return Cause("rounding", f"{what}rounding error of F.", advice)


CAUSES: dict[Status, Callable[[Case], Cause]] = {
    Status.NONFINITE: _nonfinite,
    Status.ITERATION_LIMIT: _iteration_limit,
    Status.STAGNATED: _stuck,
    Status.LINE_SEARCH_FAILED: _stuck,
    Status.DIVERGED: _divergence,
    Status.LINEAR_SOLVE_FAILED: _linear_solve,
    Status.SINGULAR: _singular,
}


def round_up(value: float) -> float:
    """Round up to one significant digit."""
    unit = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return unit * math.ceil(value / unit)


def _another_method(case: Case) -> str:
    if case.history.kind == "fixed point":
        return 'method="newton-krylov", Homotopy() from another x0, or a smaller `damping`.'
    return f"{ELSEWHERE} Homotopy() suits fixed-point problems."


def _faster(case: Case) -> str:
    if case.history.kind == "fixed point":
        return 'method="newton-krylov", or Anderson() instead of Picard(): fewer steps where an iteration is slow'
    return "start closer to the solution"


def _slowness(case: Case) -> Cause | None:
    """Why Newton's method is slow; None where it is not, or the steps do not show it."""
    kind, lengths = case.history.kind, case.history.part("step_length")[-10:]
    if kind not in ("krylov", "block"):
        return None
    limited = _limit(case) if kind == "krylov" else None
    if limited or not (lengths.size >= 3 and np.median(lengths) <= POOR):
        return limited or _linear_convergence(case)
    what = f"The line search shortens nearly every step: the median length of the last {lengths.size} is "
    advice = f"x0 may be far from any solution, or F have a kink, or J be wrong. {CHECK}"
    return Cause("short", f"{what}{np.median(lengths):.2g}.", advice)


def _limit(case: Case) -> Cause | None:
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
    return Cause("linear", what, PRECONDITION)


def _linear_convergence(case: Case) -> Cause | None:
    """Whole Newton steps that reduce F by the same factor each time."""
    history, tail = case.history, case.history.tail
    if tail.size < 3 or history.steps < 4:
        return None
    rate = float(np.exp(np.log(tail).mean()))
    if not (rate > 0.05 and np.ptp(tail) <= STEADY * min(rate, 1 - rate)):
        return None
    linear = float(np.median(history.part("linear_residual")[-tail.size :])) if history.kind == "krylov" else 0.0
    if linear > 0.1 * rate:
        what = f"Full steps reduce norm(F) by only {rate:.2g}, since the linear solves stop at {linear:.2g}."
        cause = Cause("forcing", what, "NewtonKrylov(forcing=ConstantForcing(eta=0.01)).")
        return cause if linear > 0.5 * rate else None
    what = f"The last {tail.size} full steps all reduced norm(F) by about {rate:.2g}: "
    order = next((m for m in (2, 3, 4) if abs((1 - 1 / m) ** m - rate) < POWER), 0)
    if order:
        what += f"J is singular at the solution, as at a root of multiplicity {order}, or x is still far from it and F "
        what += f"grows there like the power {order}."
        return Cause("power", what, "Reformulate the equations so that J is nonsingular, or accept the rate.")
    what += "J is not the derivative of F, or x is still far from the solution, and F grows there exponentially."
    return Cause("inexact", what, CHECK)


def _suspicion(case: Case) -> Cause | None:
    history, spent = case.history, case.history.part("krylov_iterations")
    if history.kind in ("krylov", "block"):
        last = history.part("step_length")[-4:]
        short = np.count_nonzero((last > 0) & (last < 1))
        found = _linear_convergence(case)
        if found is None and short >= 2 and case.reduction < case.precision**ROUNDED:
            what = f"The line search shortened {short} of the last four steps, though norm(F) was small."
            return Cause("short", what, f"J may be wrong, or F have a kink at x. {CHECK}")
        if found is None and spent.size and np.nanmax(spent, initial=0) > MANY_ITERATIONS:
            what = f"Step {int(np.nanargmax(spent)) + 1} took {np.nanmax(spent):.0f} Krylov iterations."
            return Cause("products", what, "Precondition, or declare a `structure`.")
        return found
    if history.kind == "fixed point" and history.steps >= 10 and history.rate > FLAT_STEP:
        what = f"norm(F) fell by a factor of only {history.rate:.3g} per step, in {history.steps} steps."
        return Cause("slow", what, f"{_faster(case)}.")
    if history.steps == 0 and case.norm > 0:
        return Cause("start", f"x0 already met the target: norm(F) is {case.aim}.", "Is it small enough?")
    return None


def find_linear_cause(
    status: Status, norm: float, target: float, iterations: float, result: LinearResult | AdjointResult | TangentResult
) -> tuple[str, str]:
    """What happened, and what to try, for the system that is farthest from its target."""
    matrix = "A" if isinstance(result, LinearResult) else "J^H" if isinstance(result, AdjointResult) else "J"
    transposed = " An operator `M` must approximate J^-H here." if matrix == "J^H" else ""
    requested = "" if math.isnan(target) else f", target {target:.3g}"
    reached = f"||b - {matrix} x|| is {norm:.3g} after {iterations:.0f} iteration{'s' * (iterations != 1)}{requested}."
    if status == Status.ITERATION_LIMIT:
        more = "LinearStop(max_iterations=...) or a larger `restart` of the method"
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
    return f"{reached} {sentence(status)}.", status.hint
