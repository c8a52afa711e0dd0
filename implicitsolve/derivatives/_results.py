"""What derivatives of a solution return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from implicitsolve._summary import of_derivative
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

    gradients: dict[str, Array]
    adjoint: Array
    status: Any
    linear: LinearResult = field(repr=False)
    counts: Counts

    def summary(self) -> str:
        """Return what is known of the derivative, and of its linear solve, as a table."""
        return of_derivative(self, self.gradients)

    def raise_for_status(self) -> AdjointResult:
        """Return self, or raise `NoConvergence` that carries it."""
        self._raise_for_status(self.adjoint)
        return self


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

    tangent: Array
    status: Any
    linear: LinearResult = field(repr=False)
    counts: Counts

    def summary(self) -> str:
        """Return what is known of the derivative, and of its linear solve, as a table."""
        return of_derivative(self, {})

    def raise_for_status(self) -> TangentResult:
        """Return self, or raise `NoConvergence` that carries it."""
        self._raise_for_status(self.tangent)
        return self
