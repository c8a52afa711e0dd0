"""Counts of the calls of the user's functions, and the limits of one solve."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from implicitsolve.result import Counts
from implicitsolve.status import Status

Result = TypeVar("Result")
FIRST_ALLOWANCE, PER_PROGRESS = 450, 20  # evaluations, and more for each step that made progress


class LimitReached(Exception):  # noqa: N818 (a condition: it ends the step of a solve, and never leaves the solve)
    """The next evaluation would exceed a limit of the solve."""


class Tally:
    """Running counts of calls, shared by an evaluator and its subsets, and what ends the solve that makes them.

    Parameters
    ----------
    max_evaluations : int, optional
        Most residuals and products.
    max_seconds : float, optional
        Most time, from now.
    like : Array, optional
        Where it is partitioned across ranks, they decide together.
    """

    def __init__(self, max_evaluations: int | None = None, max_seconds: float | None = None, like: Any = None) -> None:
        self.residuals = self.jvps = self.vjps = self.linearizations = 0
        self.progress: int = 0  # steps of Newton's methods with progress
        self.begin: int = 0  # evaluations before these began
        self.most = max_evaluations
        self.until: float | None = None if max_seconds is None else time.monotonic() + max_seconds
        self.ended: Status | None = None  # why systems that still run are given up
        self._comm: Any = getattr(like, "comm", None)
        self._is_enforced = False

    def add(self, kind: str) -> None:
        """Count one call, unless it would exceed a limit that is enforced."""
        if self._is_enforced and kind != "linearizations" and self.is_spent():
            raise LimitReached
        setattr(self, kind, getattr(self, kind) + 1)

    def counts(self) -> Counts:
        """Return a snapshot."""
        return Counts(residuals=self.residuals, jvps=self.jvps, vjps=self.vjps, linearizations=self.linearizations)

    @property
    def evaluations(self) -> int:
        """Residuals and products so far."""
        return self.residuals + self.jvps + self.vjps

    @property
    def allowance(self) -> int:
        """Evaluations left to a single system, which depend on its progress; a limit of the caller replaces them."""
        spent = self.evaluations - self.begin if self.most is None else 0
        return FIRST_ALLOWANCE + PER_PROGRESS * self.progress - spent

    def renew_allowance(self) -> None:
        """Count evaluations and progress from here on."""
        self.begin = self.evaluations
        self.progress = 0

    def is_spent(self) -> bool:
        """Whether the solve has to end; `ended` is why."""
        if self.ended is None and self.most is not None and self.evaluations >= self.most:
            self.ended = Status.EVALUATION_LIMIT
        if self.ended is None and self.until is not None and self.agreed(time.monotonic() >= self.until):
            self.ended = Status.TIME_LIMIT
        return self.ended is not None

    def agreed(self, decision: bool) -> bool:
        """Whether any rank has decided so."""
        return decision if self._comm is None else bool(self._comm.allreduce(np.asarray(int(decision)), "max"))

    def enforced(self, function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
        """Call a function whose evaluations respect the limits: LimitReached ends it."""
        before, self._is_enforced = self._is_enforced, self.most is not None or self.until is not None
        try:
            return function(*arguments, **options)
        finally:
            self._is_enforced = before
