"""Checks of the problem at the point where its solve failed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from implicitsolve._arrays.host import to_host
from implicitsolve._arrays.namespace import as_inexact, eps
from implicitsolve._typing import Array, HostArray
from implicitsolve.diagnostics._condition import DENSE, Condition, System, condition_of
from implicitsolve.diagnostics._spectrum import spectrum_of
from implicitsolve.kernels._norms import norm2
from implicitsolve.problem import Problem
from implicitsolve.status import Status
from implicitsolve.testing import check_derivatives

STATIONARY = 1e-6  # ||J^H F|| over ||J|| ||F||
STATIONARY_ADVICE = "No descent leads away from it: start elsewhere, or race() several initial guesses."
FAR = 1e6  # length of a Newton step over ||x||
TOUCHING = 1e-9  # distance of an unknown from a bound, over max|x|, up to which it counts as being there
NOISE = 0.1  # change of F between neighbouring numbers, over F, from which on F is rounding error


@dataclass(frozen=True)
class Probe:
    """What was found; `remarks` are pairs of what and advice."""

    remarks: list[tuple[str, str]]
    notes: list[str]


def probe(problem: Problem, x: Array, index: tuple[int, ...] | None, status: Status, kind: str, norm: float) -> Probe:
    """Look at one system of a problem, whose F has this norm in the stopping rule."""
    x = as_inexact(x, "x")
    part = System("explain", problem, x, index)
    if not (np.isfinite(norm2(part.x)).all() and np.isfinite(norm2(part.F)).all()):
        return Probe([], ["F(x) is not finite there, so that derivatives could not be checked."])
    found = Probe([], [])
    _derivatives(found, part, problem, x)
    if status == Status.CONVERGED:
        _conditions(found, part, status)
        return found
    if status == Status.DIVERGED:  # far from any solution, where these checks mean little
        return found
    if status == Status.STATIONARY_ON_BOUND:
        _on_bounds(found, part)
    _noise(found, part, norm)
    _conditions(found, part, status)
    if kind == "fixed point":
        found.notes.append(_radius(part))
    return found


def _radius(part: System) -> str:
    """Whether fixed-point iterations converge near x."""
    try:
        radius = spectrum_of("explain", part).radius
    except ValueError:
        return "The spectral radius of I - J was not estimated: a product with J is not finite."
    outcome = "fixed-point iterations converge" if radius < 1 else "Picard's iteration diverges"
    return f"The spectral radius of I - J at x is {radius:.3g}: near such a point {outcome}."


def _derivatives(found: Probe, part: System, problem: Problem, x: Array) -> None:
    """`check_derivatives` of that system alone, where it can be had alone."""
    if part.evaluator.problem is not problem:  # by `take`
        report = check_derivatives(part.evaluator.problem, part.evaluator.unflatten(part.x))
    elif _is_finite(part, problem, x):
        report = check_derivatives(problem, x)
    else:
        found.notes.append("Derivatives were not checked: F is not finite in other systems, and there is no `take`.")
        return
    wrong = [check for check in report.checks if not check.passed]
    for check in wrong:
        detail = f": {check.hint}" if check.hint else ""
        what = f"check_derivatives: `{check.name}` is wrong{detail} (mismatch {check.measured:.2g})."
        found.remarks.append((what, "Correct it first: other findings depend on it."))
    if not wrong:
        found.notes.append(f"check_derivatives: {len(report.checks)} checks passed at x.")


def _is_finite(part: System, problem: Problem, x: Array) -> bool:
    """Whether F is finite in the whole batch."""
    with np.errstate(all="ignore"):
        return bool(part.xp.all(part.xp.isfinite(problem.residual(part.xp.asarray(x, copy=True)))))


def _on_bounds(found: Probe, part: System) -> None:
    """The unknowns that lie on a bound."""
    box = part.evaluator.box
    if box is None:
        return
    near = TOUCHING * part.xp.max(part.xp.abs(part.x))
    touches = to_host((part.x - box.lower <= near) | (box.upper - part.x <= near))[0]
    if touches.any():
        what = f"On a bound, or next to it: {_unknowns(part, np.flatnonzero(touches))}."
        found.remarks.append((what, "Widen these bounds, if the model allows that, or start elsewhere."))


def _noise(found: Probe, part: System, norm: float) -> None:
    """Whether F is as large as its change between neighbouring floating-point numbers."""
    xp, unit = part.xp, eps(part.xp, part.x.dtype)
    sign = xp.asarray(1 - 2 * (np.arange(part.size) % 2), dtype=part.x.dtype, device=part.x.device)
    with np.errstate(all="ignore"):
        change = float(norm2(part.evaluator.residual(part.x * (1 + unit * sign)) - part.F)[0])
    size = float(norm2(part.F)[0])
    if size > 0 and change >= NOISE * size:
        what = (
            f"F(x) is rounding error: it changes by {change / size:.2g} of its norm when x does by one unit roundoff."
        )
        found.remarks.append((what, f"NonlinearStop(atol={2 * norm:.1g}) would be met."))


def _conditions(found: Probe, part: System, status: Status) -> None:
    """Condition, distance to the solution, and what makes J singular."""
    try:
        known = condition_of(part)
    except TypeError:
        found.notes.append("The condition of J was not estimated: there are no products with J^H.")
        return
    if np.isnan(known.number):
        why = "a linear solve with it did not end" if np.isfinite(known.norm) else "J is not finite at x"
        found.notes.append(f"The condition of J was not estimated: {why}.")
        return
    found.notes.append(f"The condition number of J at x is {known.number:.2g}.")
    if status == Status.CONVERGED and np.isfinite(known.error):
        size = float(norm2(part.x)[0])
        relative = f", {known.error / size:.1g} of ||x||" if size > 0 else ""
        found.notes.append(f"The solution lies at about ||J^-1 F(x)|| = {known.error:.2g} from x{relative}.")
    if not known.number < 0.1 / eps(part.xp, part.x.dtype):
        found.remarks.append(_singular(part, status))
    elif status != Status.CONVERGED:
        _stationary(found, part, known)


def _singular(part: System, status: Status) -> tuple[str, str]:
    """Whether a J with a large condition number is singular, or only badly scaled."""
    scaled = _scaled_condition(part) if part.size <= DENSE else math.inf
    if scaled < 0.1 / eps(part.xp, part.x.dtype):
        what = f"J is badly scaled at x: with rows and columns of size 1 its condition number is {scaled:.2g}."
        return what, "Scale unknowns and equations to size 1: norm(F) is dominated by the largest."
    undetermined = "Remove what is undetermined: x is not the only solution, and has no derivative."
    advice = undetermined if status == Status.CONVERGED else "Start elsewhere, or remove what is undetermined."
    return f"J is singular to working precision at x. {_kernel(part)}".strip(), advice


def _scaled_condition(part: System) -> float:
    """Condition number of J after its rows, and then its columns, were divided by their largest entries."""
    J = part.dense
    with np.errstate(all="ignore"):
        J = J / np.abs(J).max(axis=1, keepdims=True)
        J = J / np.abs(J).max(axis=0)
    return float(np.linalg.cond(J, 1)) if np.isfinite(J).all() else math.inf


def _stationary(found: Probe, part: System, known: Condition) -> None:
    """Whether x is a stationary point of ||F||, or nearly one."""
    size, length = float(norm2(part.F)[0]), float(norm2(part.x)[0])
    if known.error > FAR * length > 0:
        what = (
            f"A Newton step from x has the length {known.error:.2g}, where ||x|| is {length:.2g}: J nearly vanishes, "
            "and x is close to a stationary point of ||F||."
        )
        found.remarks.append((what, STATIONARY_ADVICE))
        return
    adjoint = part.adjoint()
    if not size > 0 or (adjoint is None and part.size > DENSE):
        return
    pulled = part.dense.conj().T @ to_host(part.F)[0] if adjoint is None else to_host(adjoint.matvec(part.F))[0]
    slope = float(np.linalg.norm(pulled)) / (known.norm * size)
    if slope < STATIONARY:
        what = f"x is a stationary point of ||F||: ||J^H F|| is {slope:.1g} of ||J|| ||F||."
        found.remarks.append((what, STATIONARY_ADVICE))


def _kernel(part: System) -> str:
    """Unknowns that the residual does not depend on, or the combination of them that is undetermined."""
    adjoint = part.adjoint()
    if adjoint is not None:
        columns = to_host(adjoint.matvec(part.random(np.random.default_rng(0))))[0] == 0
    elif part.size <= DENSE:
        columns = ~part.dense.any(axis=0)
    else:
        return ""
    if columns.any():
        return f"To first order F does not depend on {_unknowns(part, np.flatnonzero(columns))}."
    if part.size > DENSE:
        return ""
    vector = np.abs(np.linalg.svd(part.dense)[2][-1])
    chosen = np.flatnonzero(vector > 0.5 * vector.max())
    return f"It maps a direction to zero whose largest entries are those of {_unknowns(part, chosen)}."


def _unknowns(part: System, entries: HostArray) -> str:
    """Names of unknowns, the first few."""
    shape = part.evaluator.event_shape or (1,)
    names = [f"x[{', '.join(str(int(i)) for i in np.unravel_index(entry, shape))}]" for entry in entries[:4]]
    more = len(entries) - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")
