"""Why a linear solve ended as it did."""

from __future__ import annotations

import math
from typing import Any

from implicitsolve.result import AdjointResult, LinearResult
from implicitsolve.status import Status

CLOSE = 10  # residual over target that a few more iterations may close


def linear_cause(status: Status, norm: float, target: float, iterations: float, result: Any) -> tuple[str, str]:
    """What happened, and what to try, for the system that is farthest from its target."""
    matrix, transposed = "A" if isinstance(result, LinearResult) else "J", ""
    if isinstance(result, AdjointResult):
        matrix, transposed = "J^H", " An operator `M` must approximate J^-H here."
    asked = "" if math.isnan(target) else f", where {target:.3g} was asked for"
    reached = f"||b - {matrix} x|| is {norm:.3g} after {iterations:.0f} iteration{'s' * (iterations != 1)}{asked}."
    if status == Status.FORWARD_NOT_CONVERGED:
        what = "The linear system was solved, but x is not a solution, so that this is no derivative of the solution."
        return what, "Solve forward first: explain() of that result says what it lacks."
    if status == Status.ITERATION_LIMIT:
        more = "LinearStop(max_iterations=...)" if norm <= CLOSE * target else "a larger `restart` of the method"
        return reached, f"`M`, a preconditioner, then {more}.{transposed}"
    if status == Status.STAGNATED:
        what = f"{reached} It does not fall any more: {matrix} is nearly singular, or the target below rounding."
        return what, f"A larger `restart` of the method, `M`, or LinearStop(rtol=...) of a larger value.{transposed}"
    if status in (Status.BREAKDOWN, Status.SINGULAR):
        what = f"{reached} {matrix} is singular on the space that b spans, or the method does not suit it."
        condition = "" if matrix == "A" else " condition() of the problem estimates how singular J is."
        return what, f"GMRES, with which only a singular {matrix} ends so; then check b and the operator.{condition}"
    if status == Status.NONFINITE:
        return f"A product with {matrix} or `M`, or b, is not finite.", "Check them with finite vectors: dot_test(A)."
    return f"{reached} {status.message[0].upper()}{status.message[1:]}.", status.hint
