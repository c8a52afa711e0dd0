"""The budget of a solve: evaluations that each of its systems may take without progress, in all attempts together."""

from __future__ import annotations

import math

import numpy as np

from implicitsolve._record import Tally
from implicitsolve._typing import HostArray, Indices
from implicitsolve.globalize._rules import HALVED, has_halved
from implicitsolve.nonlinear._state import LoopState, Solution
from implicitsolve.precondition._lagged import UNLIMITED

IDLE_EVALUATIONS, IDLE_ASSEMBLIES = 480, 12  # without progress; and so many assemblies, or as many times the root of N
FIRST_SHARE = 0.5  # of the budget, for the first of several attempts


def evaluations_without_progress(unknowns: int, assembly: int = 0) -> int:
    """The budget of a system, one assembly of whose J takes so many evaluations."""
    return int(max(IDLE_EVALUATIONS, IDLE_ASSEMBLIES * max(assembly, unknowns**0.5)))


class Budget:
    """The part of the budget that one attempt may take; see the notes of `NonlinearStop`.

    Of a single system all evaluations are charged; of one in a batch, whose charge must not depend on the others, what
    it would take alone without searches along a direction.
    """

    def __init__(
        self, solution: Solution, tally: Tally, *, share: float = 1.0, is_retry: bool = False, is_limited: bool = True
    ) -> None:
        size = solution.charged.size
        self.charged: HostArray = solution.charged  # parts of the budget
        self.tally, self.share, self.unknowns = tally, share, solution.x.shape[1]
        self.is_charged: bool = tally.most is None
        self.is_limited: bool = is_limited and self.is_charged
        self.is_single: bool = size == 1
        self.assembly, self.whole = 0, evaluations_without_progress(self.unknowns)
        self.norms: HostArray = np.full((2, size), np.nan)  # of F at the last progress of this attempt,
        self.least: HostArray = solution.norm.copy() if is_retry else np.full(size, np.inf)  # and of all before
        if self.is_charged and self.is_single:
            self.charged += tally.charge() / self.whole
        self.before: HostArray = self.charged * is_retry  # to which progress brings the charge back

    def note_assembly(self, evaluations: int) -> None:
        """Note how many evaluations an assembly of J takes; `whole` are those that a system may take in all."""
        self.assembly, self.whole = evaluations, evaluations_without_progress(self.unknowns, evaluations)

    def is_spent(self, rows: Indices) -> HostArray | bool:
        """Where nothing is left to systems in this attempt."""
        if not self.is_limited or self.charged.max() < self.share:
            return False
        return self.charged[rows] >= self.share

    def rest(self, rows: Indices) -> HostArray:
        """What is left to systems in all attempts: no part of a step takes more."""
        if self.is_single:
            return np.full(rows.size, self.rest_of_one())
        if not self.is_limited:
            return np.full(rows.size, UNLIMITED)
        return ((1 - self.charged[rows]) * self.whole).astype(int)

    def rest_of_one(self, share: float = 1.0) -> int:
        """What a single system may still spend of a share of the budget, less the cost of its present step."""
        if not self.is_limited:
            return UNLIMITED
        rest = (share - float(self.charged[0])) * self.whole
        return int(rest) - (self.tally.evaluations - self.tally.charged)

    def charge(self, state: LoopState, details: dict[str, HostArray]) -> None:
        """Charge a step, described by what the trace notes of it; after one with progress nothing is charged."""
        if self.is_single:
            norms = state.measure, state.norms, state.best_measure, state.start_norms
            self.charge_one(*(float(norm[0]) for norm in norms))
        elif self.is_charged:
            rows, cost = state.rows, 1 + details.get("krylov_iterations", 0)
            cost = (cost + self.assembly * details.get("factorized", 0)) / self.whole
            norms = np.stack([state.measure, state.norms])
            last = np.where(np.isnan(self.norms[:, rows]), [state.best_measure, state.start_norms], self.norms[:, rows])
            is_progress = has_halved(norms, last).any(axis=0)
            self.before[rows[has_halved(state.measure, self.least[rows])]] = 0
            self.charged[rows] = np.where(is_progress, self.before[rows], self.charged[rows] + cost)
            self.norms[:, rows] = np.where(is_progress, np.fmin(norms, last), last)

    def charge_one(self, measure: float, norm: float, best: float, start: float) -> bool:
        """Charge a single system, given both norms, and what they were at the start at the latest.

        Returns whether nothing is left to it in this attempt.
        """
        spent = self.tally.charge()
        if not self.is_charged:
            return False
        last = self.norms[:, 0].tolist()
        if math.isnan(last[0]):
            self.norms[:, 0] = last = [best, start]
        if measure < HALVED * self.least[0]:
            self.before[0] = 0
        if measure < HALVED * last[0] or norm < HALVED * last[1]:
            self.charged[0] = self.before[0]
            self.norms[:, 0] = min(measure, last[0]), min(norm, last[1])
        else:
            self.charged[0] += spent / self.whole
        return self.is_limited and (self.share - float(self.charged[0])) * self.whole < 1

    def refund(self, rows: Indices, evaluations: HostArray | int) -> None:
        """Take back what a solve has taken that continues."""
        self.charged[rows] -= evaluations / self.whole
