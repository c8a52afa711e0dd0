"""Every way in which a solve can end."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np


class Status(enum.IntEnum):
    """How the solve of one system ended: `message` describes what happened, and `hint` what to try.

    A status is an int (`CONVERGED` is 1 and `ITERATION_LIMIT` is 2, as in SciPy), so that a batch can
    keep one per system in an integer array and compare it with the members.

    Examples
    --------
    >>> from implicitsolve import Status
    >>> Status(2).message
    'the iteration limit was reached before the stopping criterion was met'
    """

    message: str
    hint: str

    def __new__(cls, value: int, message: str = "", hint: str = "") -> Status:
        """Attach the message and the hint to the integer."""
        member = int.__new__(cls, value)
        member._value_ = value
        member.message = message
        member.hint = hint
        return member

    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        """The name, or the number where the format is one of numbers."""
        return int.__format__(self, spec) if spec[-1:] in tuple("bcdeEfFgGnoxX%") else format(self.name, spec)

    RUNNING = (0, "the solve has not ended", "")
    CONVERGED = (1, "the stopping criterion is met at the returned x, evaluated there", "")
    ITERATION_LIMIT = (
        2,
        "the iteration limit was reached before the stopping criterion was met",
        "Raise `max_iterations`, or precondition if the linear solves take most of the work.",
    )
    STAGNATED = (
        3,
        "the iteration no longer makes progress, and the stopping criterion is not met",
        "The tolerance may lie below the rounding error of the residual (raise `atol`), or x may be a local minimum "
        "of ||F|| (start elsewhere). With finite-difference products, give `jvp` or `rdiff`. `max_evaluations` "
        "replaces the budget of evaluations without progress.",
    )
    DIVERGED = (4, "the residual or x grew without bound", "Use a line search, or start closer to the solution.")
    LINE_SEARCH_FAILED = (
        5,
        "no step along the Newton direction reduced the residual",
        "The tolerance may lie below the rounding error of the residual (raise `atol`), the derivatives may be wrong "
        "(`implicitsolve.testing.check_derivatives`), or the Jacobian singular here (start elsewhere). "
        "`implicitsolve.diagnostics.explain(result, problem)` finds out which.",
    )
    LINEAR_SOLVE_FAILED = (
        6,
        "the linear solve did not reduce its residual",
        "Precondition, enlarge the Krylov space, or check the Jacobian product; `diagnostics.explain(result)` has "
        "the numbers.",
    )
    NONFINITE = (
        7,
        "the residual is not finite",
        "The residual returned NaN or Inf at the initial guess, or at every trial point: start inside its domain.",
    )
    BREAKDOWN = (
        8,
        "the Krylov recurrence broke down",
        "The operator is singular, or the method does not suit it: try GMRES.",
    )
    SINGULAR = (
        9,
        "the Jacobian maps the search space to zero: it is singular to working precision",
        "Start elsewhere, or check that the residual depends on every unknown: `diagnostics.explain(result, "
        "problem)` names those on which it does not.",
    )
    STOPPED = (10, "the requested number of steps was taken", "")
    FORWARD_NOT_CONVERGED = (
        11,
        "the adjoint or tangent equation was solved, but at a point that is not a solution",
        "The derivative is that of the linearization there, not of the solution map: solve forward first.",
    )
    LOST = (
        12,
        "the worker that solved it died or ran out of memory",
        "x is the initial guess; `result.lost` has the errors. Solve these systems again, with more memory per worker "
        "or in smaller chunks.",
    )
    CANCELLED = (
        13,
        "the solve was cancelled before this system was started",
        "x is the initial guess. Solve these systems again.",
    )
    STOPPED_BY_MONITOR = (14, "the monitor ended the solve before the stopping criterion was met", "")
    EVALUATION_LIMIT = (
        15,
        "the limit of evaluations was reached before the stopping criterion was met",
        "x is the best point so far. Raise `max_evaluations`, precondition, or start closer to the solution.",
    )
    TIME_LIMIT = (
        16,
        "the time limit was reached before the stopping criterion was met",
        "x is the best point so far. Raise `max_seconds`, precondition, or start closer to the solution.",
    )
    STATIONARY_ON_BOUND = (
        17,
        "x has come to a bound across which the Newton direction points, and no step within the bounds reduces the "
        "residual: a stationary point of ||F||, no root",
        "There may be no root within `bounds`, or none that this start leads to: start elsewhere, or widen the bounds "
        "that x touches.",
    )
    AT_INFINITY = (
        18,
        "the residual falls while x moves on by steps that do not become shorter: its root may lie at infinity",
        "There may be no root at all, or none that this start leads to: start elsewhere, or set `bounds`.",
    )
    INACCURATE = (
        19,
        "the adjoint or tangent equation was solved, but differences of the residual contradict its J",
        "The derivatives or the declared structure may be wrong (`implicitsolve.testing.check_derivatives`). Where J "
        "comes from differences, F may vary too fast or be too noisy for them: give `x_scale`, or `jvp` and `vjp`.",
    )


CUT = (Status.STOPPED_BY_MONITOR, Status.EVALUATION_LIMIT, Status.TIME_LIMIT)  # ended at the caller's request


class StatusArray(np.ndarray[Any, Any]):
    """Statuses of a batch: an array of integers whose elements are, and print as, members of `Status`."""

    def __getitem__(self, key: Any) -> Any:
        """A `Status`, or an array of them."""
        value = super().__getitem__(key)
        return Status(int(value)) if isinstance(value, np.integer) else value

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Results of arithmetic and comparisons are plain arrays."""
        if "out" in options:
            options["out"] = tuple(_plain(part) for part in options["out"])
        return getattr(ufunc, method)(*(_plain(part) for part in inputs), **options)

    def __str__(self) -> str:
        return np.array2string(_plain(self), formatter={"int": _name})

    def __repr__(self) -> str:
        return f"array({np.array2string(_plain(self), formatter={'int': _name}, separator=', ', prefix='array(')})"


def _plain(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, StatusArray) else x


def _name(code: Any) -> str:
    return Status(int(code)).name
