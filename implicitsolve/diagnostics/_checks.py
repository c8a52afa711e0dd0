"""Checks of the problem at the point where its solve ended."""

from __future__ import annotations

import math

import numpy as np

from implicitsolve._arrays.host import to_host
from implicitsolve._arrays.namespace import eps
from implicitsolve._typing import HostArray
from implicitsolve.diagnostics._causes import ELSEWHERE, Cause, round_up
from implicitsolve.diagnostics._history import Case
from implicitsolve.diagnostics._system import MOST_WRITTEN, Condition, System, measure_condition
from implicitsolve.kernels._norms import norm2
from implicitsolve.status import Status
from implicitsolve.structure._names import few_names
from implicitsolve.testing import check_derivatives

NOISY = 0.1  # change of F between neighbouring numbers, over F, from which on F is rounding error; F over F(x0)
TRIAL_LENGTHS = 10.0 ** -np.arange(14)  # of trial steps, over Newton's
MINIMUM_SHARE = 0.05  # share of ||F|| that no trial step removes where x is practically a minimum of it
MOST_UNITS = 1000  # units above which a change is not rounding error
SMOOTH = 1.5  # order in the length of a step from which on a change of ||F|| is smooth, without a kink
FOLD_HINT = (
    "If F has a parameter, its solutions may end at a fold before this value of it: `continuation` follows them "
    f"there from a value that has a solution. {ELSEWHERE}"
)


def examine(system: System, case: Case) -> tuple[Cause | None, list[str]]:
    status = case.status
    if not (np.isfinite(norm2(system.x)).all() and np.isfinite(norm2(system.F)).all()):
        return None, ["F(x) is not finite there, so that derivatives could not be checked."]
    notes: list[str] = []
    cause = _derivatives(system, notes)
    if cause or status == Status.DIVERGED:  # far from any solution, where other checks mean little
        return cause, notes
    if status != Status.CONVERGED:
        cause = (_bounds(system) if status == Status.STATIONARY_ON_BOUND else None) or _noise(system, case)
    return cause or _jacobian(system, status, notes), notes


def _derivatives(system: System, notes: list[str]) -> Cause | None:
    """`check_derivatives` for that system alone, where it can be taken from the batch."""
    evaluator, problem = system.evaluator, system.problem
    x = system.given if evaluator.problem is problem else evaluator.unflatten(system.x)
    with np.errstate(all="ignore"):
        F = evaluator.problem.residual(system.xp.asarray(x, copy=True))
        if not system.xp.all(system.xp.isfinite(system.xp.asarray(F))):
            notes.append("Derivatives were not checked: F is not finite in other systems, and there is no `take`.")
            return None
    report = check_derivatives(evaluator.problem, x)
    wrong = [check for check in report.checks if not check.passed]
    if wrong:
        detail = f": {wrong[0].hint}" if wrong[0].hint else ""
        what = f"check_derivatives: `{wrong[0].name}` is wrong{detail} (mismatch {wrong[0].measured:.2g})."
        also = ", ".join(f"`{check.name}`" for check in wrong[1:])
        return Cause("derivatives", what + (f" Also wrong: {also}." if also else ""), "Correct it first.")
    notes.append(f"check_derivatives: {len(report.checks)} checks passed at x.")
    return None


def _bounds(system: System) -> Cause | None:
    box = system.evaluator.box
    if box is None:
        return None
    near = eps(system.xp, system.x.dtype) ** 0.5 * system.xp.max(system.xp.abs(system.x))
    touches = to_host((system.x - box.lower <= near) | (box.upper - system.x <= near))[0]
    what = f"On a bound, or next to it: {_names(system, np.flatnonzero(touches))}."
    advice = "Widen these bounds, if the model allows that, or start elsewhere."
    return Cause("bounds", what, advice) if touches.any() else None


def _noise(system: System, case: Case) -> Cause | None:
    """Whether F is as large as its change between neighbouring floating-point numbers."""
    xp, unit = system.xp, eps(system.xp, system.x.dtype)
    sign = xp.asarray(1 - 2 * (np.arange(system.size) % 2), dtype=system.x.dtype, device=system.x.device)
    change, size = (float(norm2(v)[0]) for v in (system.residual(system.x * (1 + unit * sign)) - system.F, system.F))
    if not (size > 0 and change >= NOISY * size):
        return None
    changes = f"it changes by {change / size:.2g} of its norm when x does by one unit roundoff."
    if case.reduction < NOISY:
        advice = f"NonlinearStop(atol={round_up(2 * case.norm):.1g}) would be met."
        return Cause("noise", f"F(x) is rounding error: {changes}", advice)
    what = f"x has run away, to max|x| = {np.abs(case.x).max():.2g}, where F is not small but rounding error: {changes}"
    return Cause("far", what, f"{ELSEWHERE} Or `bounds`.")


def _jacobian(system: System, status: Status, notes: list[str]) -> Cause | None:
    """Whether J is singular, or F does not fall along Newton's step."""
    if system.size > MOST_WRITTEN and system.factors is None and system.adjoint is None:
        notes.append("The condition of J was not estimated: there are no products with J^H, and no `structure`.")
        return None
    known = measure_condition(system)
    if math.isnan(known.number):
        why = "a linear solve with it did not end" if math.isfinite(known.norm) else "J is not finite at x"
        notes.append(f"The condition of J was not estimated: {why}.")
        return None
    unit, is_exact = eps(system.xp, system.x.dtype), system.evaluator.has_exact_products
    if not known.number < 0.1 / unit:
        return _singular(system, status, 0.1 / unit)
    cause = None if status == Status.CONVERGED else _descent(system, known)
    if cause is None and status != Status.CONVERGED and not is_exact and known.number > unit**-0.5:
        return _singular(system, status, unit**-0.5)  # which is as much as differences show
    if cause is None:
        notes.append(f"The condition number of J at x is {known.number:.2g}.")
    if status == Status.CONVERGED and math.isfinite(known.error):
        notes.append(f"The solution lies at about ||J^-1 F(x)|| = {known.error:.2g} from x.")
    return cause


def _descent(system: System, known: Condition) -> Cause | None:
    """Why no multiple of Newton's step reduces ||F||; None where one does."""
    size, unit = float(norm2(system.F)[0]), eps(system.xp, system.x.dtype)
    if not size > 0 or not known.error > 0:
        return None
    ahead, behind = [
        np.concatenate([norm2(system.residual(system.x - float(t) * system.step)) for t in side * TRIAL_LENGTHS]) / size
        for side in (1, -1)
    ]
    if not np.isfinite(ahead[MOST_UNITS * unit < TRIAL_LENGTHS]).any():
        what = "F is not finite just beyond x, along Newton's step: x lies at the edge of its domain."
        return Cause("edge", what, "Solve for a variable that cannot leave the domain (log x for positive x).")
    most = max(1 - float(np.nanmin(ahead)), 0.0)
    if most > MINIMUM_SHARE:
        return None
    with np.errstate(all="ignore"):
        bend = np.abs(ahead**2 + behind**2 - 2)  # of the order of the length's square where F is smooth, else of it
    length = float(norm2(system.x)[0])
    rounding = unit * (1 + (length + TRIAL_LENGTHS * known.error) * known.norm / size)
    seen = np.flatnonzero(np.isfinite(bend) & (bend > MOST_UNITS * rounding))
    half = seen[(seen.size - 1) // 2 :]  # of the shorter lengths
    if half.size > 1 and math.log10(bend[half[0]] / bend[half[-1]]) < SMOOTH * (half[-1] - half[0]):
        what = "F has a kink or a jump at x: no step along Newton's, however short, reduces ||F|| as J predicts."
        return Cause("kink", what, f"Smooth F there. {ELSEWHERE}")
    share = f" by more than {100 * most:.1g} %" if most > unit**0.5 else ""
    what = (
        "x is close to a minimum of ||F|| that is not a root: J is nearly singular there, so that a Newton step has "
        f"the length {known.error:.2g} (||x|| is {length:.2g}), and no part of it reduces ||F||{share}."
    )
    return Cause("minimum", what, FOLD_HINT)


def _singular(system: System, status: Status, limit: float) -> Cause:
    """Whether a J with a large condition number is singular, or only badly scaled."""
    scaled = _scaled_condition(system) if system.size <= MOST_WRITTEN else math.inf
    if scaled < limit:
        what = f"J is badly scaled at x: with rows and columns of size 1 its condition number is {scaled:.2g}."
        return Cause("scale", what, '`x_scale="auto"` and `f_scale="auto"`, or units in which all are of size 1.')
    advice = "Remove what is undetermined: x is not the only solution, and has no derivative."
    if status != Status.CONVERGED:
        advice = "Start elsewhere, or remove what is undetermined."
    return Cause("singular", f"J is singular to working precision at x. {_kernel(system)}".strip(), advice)


def _scaled_condition(system: System) -> float:
    J = system.dense
    with np.errstate(all="ignore"):
        J = J / np.abs(J).max(axis=1, keepdims=True)
        J = J / np.abs(J).max(axis=0)
    return float(np.linalg.cond(J, 1)) if np.isfinite(J).all() else math.inf


def _kernel(system: System) -> str:
    """Unknowns that the residual does not depend on, or the combination of them that is undetermined."""
    if system.size > MOST_WRITTEN:
        return ""
    J = system.dense
    columns = np.flatnonzero(~J.any(axis=0))
    if columns.size:
        return f"To first order F does not depend on {_names(system, columns)}."
    vector = np.abs(np.linalg.svd(J)[2][-1])
    largest = np.flatnonzero(vector > 0.5 * vector.max())
    return f"It maps a direction to zero whose largest entries are those of {_names(system, largest)}."


def _names(system: System, entries: HostArray) -> str:
    return few_names("x", system.problem.names, entries, system.evaluator.event_shape)
