"""What a solve records: calls, whose counts and limits end it, steps, and further attempts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, TypeVar

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.status import Status

Result = TypeVar("Result")
NOTHING, NO_COUNTS, NOWHERE = np.zeros(0), np.zeros(0, dtype=int), np.zeros(0, dtype=bool)  # shared, read-only


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Calls of the user's functions; one call evaluates the whole batch (or its active systems).

    Attributes
    ----------
    residuals : int
        Calls of the residual, those of difference products and of `linearize` included.
    jvps, vjps : int
        Exact products J v and J^H w.
    linearizations : int
        Points at which J was prepared.
    rejected : int
        Points at which F raised one of `Problem.rejects`, among the residuals.
    """

    residuals: int = 0
    jvps: int = 0
    vjps: int = 0
    linearizations: int = 0
    rejected: int = 0

    @property
    def evaluations(self) -> int:
        """Residuals and products."""
        return self.residuals + self.jvps + self.vjps

    def __str__(self) -> str:
        """Every count with its name; rejected points where there are any."""
        return ", ".join(f"{calls} {name}" for name, calls in vars(self).items() if calls or name != "rejected")

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{name: calls + getattr(other, name) for name, calls in vars(self).items()})

    def __sub__(self, other: Counts) -> Counts:
        return Counts(**{name: calls - getattr(other, name) for name, calls in vars(self).items()})


class LimitReached(Exception):  # noqa: N818 (a condition: it ends the step of a solve, and never leaves the solve)
    """The next evaluation would exceed a limit of the solve."""


class Tally:
    """Running counts of calls, shared by an evaluator and its subsets, and what ends the solve that makes them.

    The limits are those of `NonlinearStop`, seconds from now on.
    """

    def __init__(self, max_evaluations: int | None = None, max_seconds: float | None = None) -> None:
        self.residuals: int = 0
        self.jvps: int = 0
        self.vjps: int = 0
        self.linearizations: int = 0
        self.rejected: int = 0
        self.charged: int = 0  # evaluations that have been charged to a system, or to none
        self.has_taken: bool = False  # whether a problem of some systems has been compared with that of all
        self.most = max_evaluations
        self.until: float | None = None if max_seconds is None else time.monotonic() + max_seconds
        self.ended: Status | None = None  # why systems that still run are given up
        self.is_enforced: bool = False  # whether evaluations respect the limits

    def add(self, kind: str) -> None:
        """Count one call, unless it would exceed a limit that is enforced."""
        if self.is_enforced and kind != "linearizations" and self.is_spent():
            raise LimitReached
        setattr(self, kind, getattr(self, kind) + 1)

    def counts(self) -> Counts:
        return Counts(
            residuals=self.residuals,
            jvps=self.jvps,
            vjps=self.vjps,
            linearizations=self.linearizations,
            rejected=self.rejected,
        )

    @property
    def evaluations(self) -> int:
        return self.residuals + self.jvps + self.vjps

    def charge(self) -> int:
        before, self.charged = self.charged, self.residuals + self.jvps + self.vjps
        return self.charged - before

    def is_spent(self) -> bool:
        """Whether the solve has to end; `ended` is why."""
        if self.ended is None and self.most is not None and self.evaluations >= self.most:
            self.ended = Status.EVALUATION_LIMIT
        if self.ended is None and self.until is not None and time.monotonic() >= self.until:
            self.ended = Status.TIME_LIMIT
        return self.ended is not None

    def enforce(self, function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
        """Call a function whose evaluations respect the limits: LimitReached ends it."""
        before, self.is_enforced = self.is_enforced, self.most is not None or self.until is not None
        try:
            return function(*arguments, **options)
        finally:
            self.is_enforced = before


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class NewtonStep:
    """One attempt of a Newton step, for the systems that were still running.

    Attributes
    ----------
    iteration : int
        0 for the starting point, then 1, 2, ...
    systems : ndarray of int
        Positions of those systems in the flattened batch; the arrays below follow it.
    residual_norm : ndarray of float
        Norm of F after the step, in the norm of the stopping rule.
    target : ndarray of float
        What it must fall to; empty where the method does not record it.
    error : ndarray of float
        Estimated error of x after the step, relative to x; infinite where it is not known yet, empty where the method
        does not record it.
    left : ndarray of float
        In a continuation the share of the work that may be ahead; empty elsewhere.
    step_length : ndarray of float
        Accepted fraction of the Newton step; 0 where none was.
    forcing : ndarray of float
        Relative tolerance eta of the linear solve.
    linear_residual : ndarray of float
        Relative residual that the linear solve reached.
    krylov_iterations : ndarray of int
        Products the linear solve took for each system.
    linear_status : ndarray of int
        How the linear solve ended (`Status`); ITERATION_LIMIT is ordinary for an inexact step.
    factorized : ndarray of bool
        Where J was assembled and factorized for this step; `BlockNewton` fills it.
    running : int
        Systems that still run after the step, those that wait or start included.
    started, waiting : int
        In a stream: systems whose F(x0) was computed in the same calls as the step, and systems that waited.
    sparsity : str
        In step 0: the sparsity of J that the solve uses, or why it uses none; empty where it looked for none.
    counts : Counts
        Calls since the solve began.
    """

    iteration: int
    systems: HostArray
    residual_norm: HostArray
    target: HostArray = field(default_factory=repeat(NOTHING).__next__)
    error: HostArray = field(default_factory=repeat(NOTHING).__next__)
    left: HostArray = field(default_factory=repeat(NOTHING).__next__)
    step_length: HostArray = field(default_factory=repeat(NOTHING).__next__)
    forcing: HostArray = field(default_factory=repeat(NOTHING).__next__)
    linear_residual: HostArray = field(default_factory=repeat(NOTHING).__next__)
    krylov_iterations: HostArray = field(default_factory=repeat(NO_COUNTS).__next__)
    linear_status: HostArray = field(default_factory=repeat(NO_COUNTS).__next__)
    factorized: HostArray = field(default_factory=repeat(NOWHERE).__next__)
    running: int = 0
    started: int = 0
    waiting: int = 0
    counts: Counts = Counts()
    sparsity: str = ""

    @property
    def worst(self) -> float:
        """Largest norm among the systems of this step."""
        return float(self.residual_norm.max()) if self.residual_norm.size else 0.0

    def __repr__(self) -> str:
        return f"<NewtonStep: {self}>"

    def __str__(self) -> str:
        """One line for a log."""
        return (
            f"step {self.iteration}: norm(F) {self.worst:.6g}, {self.running} running, "
            f"{self.counts.residuals} residuals, {self.counts.jvps} jvps"
        ) + (f"; J: {self.sparsity}" if self.sparsity else "")


@dataclass(frozen=True, kw_only=True, eq=False)
class Retry:
    """A further attempt at systems on which all methods before it had failed, from x0.

    Attributes
    ----------
    method : str
        What was tried, with its line search.
    iteration : int
        Step of the trace after which it began.
    systems : ndarray of int
        Positions of those systems in the flattened batch.
    reasons : ndarray of int
        How they had ended before, at the best of their points: `Status` codes with names.
    status : ndarray of int
        How they ended in this attempt.
    """

    method: str
    iteration: int
    systems: HostArray
    reasons: HostArray
    status: HostArray

    def __str__(self) -> str:
        return f"{self.method} from step {self.iteration}, after {_name(self.reasons)}: {_name(self.status)}"


def _name(codes: HostArray) -> str:
    found, counts = np.unique(codes, return_counts=True)
    names = [Status(code).name for code in found.tolist()]
    return ", ".join(names if codes.size == 1 else [f"{n} {name}" for n, name in zip(counts, names, strict=True)])
