"""What derivatives of a solution return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from implicitsolve._summary import derivative_summary
from implicitsolve._typing import Array
from implicitsolve.result import Counts, Ending, LinearResult


@dataclass(frozen=True, kw_only=True, repr=False)
class AdjointResult(Ending):
    """Result of `pull_back`.

    Attributes
    ----------
    gradients : dict of str to Array
        Gradient for each parameter of the problem.
    adjoint : Array
        Solution of J^H adjoint = cotangent, shaped like x.
    status : Status or ndarray of int
        CONVERGED, the linear solve's failure, or FORWARD_NOT_CONVERGED.
    linear : LinearResult
        The adjoint solve.
    counts : Counts
        Calls of the user's functions.
    """

    _best: ClassVar[str] = "adjoint"

    gradients: dict[str, Array]
    adjoint: Array
    status: Any
    linear: LinearResult = field(repr=False)
    counts: Counts

    def summary(self) -> str:
        """Return what is known of the derivative, and of its linear solve, as a table."""
        head = derivative_summary(type(self).__name__, self.status, str(self.counts), self.gradients)
        return head + self.linear.summary()


@dataclass(frozen=True, kw_only=True, repr=False)
class TangentResult(Ending):
    """Result of `push_forward`.

    Attributes
    ----------
    tangent : Array
        Derivative of the solution along the parameters' tangents, shaped like x.
    status : Status or ndarray of int
        CONVERGED, the linear solve's failure, or FORWARD_NOT_CONVERGED.
    linear : LinearResult
        The tangent solve.
    counts : Counts
        Calls of the user's functions.
    """

    _best: ClassVar[str] = "tangent"

    tangent: Array
    status: Any
    linear: LinearResult = field(repr=False)
    counts: Counts

    def summary(self) -> str:
        """Return what is known of the derivative, and of its linear solve, as a table."""
        head = derivative_summary(type(self).__name__, self.status, str(self.counts), {})
        return head + self.linear.summary()
