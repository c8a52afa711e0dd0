"""What every workload offers to those who solve it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import implicitsolve as ims

Array = Any


@dataclass(frozen=True, kw_only=True, eq=False)
class Workload(ABC):
    """A nonlinear system, its start, and max|residual(x)| that a solution must not exceed.

    The residual is plain NumPy and shares no code with implicitsolve, so that it measures every solver from outside.
    """

    name: str
    x0: Array
    target: float

    @abstractmethod
    def residual(self, x: Array) -> Array:
        """F(x), in the shape of x0."""

    @abstractmethod
    def problem(self) -> ims.Problem:
        """The same system as a user of implicitsolve writes it."""

    def size(self, x: Array) -> float:
        """max|F(x)|, computed in double precision; NaN if x is not finite."""
        with np.errstate(all="ignore"):
            return float(np.abs(self.residual(np.asarray(x, dtype=np.float64))).max())

    def solved(self, x: Array) -> bool:
        """Whether x is as good as asked for, up to the rounding of one residual."""
        return self.size(x) <= 1.0001 * self.target


@dataclass(frozen=True, kw_only=True, eq=False)
class Banded(Workload):
    """A workload whose Jacobian is a narrow band, for solvers that are given one."""

    @property
    @abstractmethod
    def widths(self) -> tuple[int, int]:
        """Diagonals below and above the main one."""

    @abstractmethod
    def band(self, x: Array) -> Array:
        """The exact Jacobian at x, as `scipy.linalg.solve_banded` takes it: entry (i, j) in row upper + i - j."""
