"""The plan of a solve: its stages as data, and the loop that runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol, runtime_checkable

import numpy as np

from implicitsolve._arrays.host import gather
from implicitsolve._record import Retry
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.globalize._line_search import Backtracking
from implicitsolve.nonlinear._budget import FIRST_SHARE, evaluations_without_progress
from implicitsolve.nonlinear._state import (
    CONVERGED,
    NonlinearMethod,
    Solution,
    SolveContext,
    Standing,
    is_rounding,
    parts,
)
from implicitsolve.status import Status, StatusArray
from implicitsolve.structure import Outcome

NEAR = 0.01  # part of ||F(x0)||: where an attempt that failed has come so far, another continues there


@dataclass(frozen=True)
class Condition:
    """Which systems a stage is for, besides that those before it have failed."""

    words: str
    holds: Callable[[SolveContext, Solution], HostArray]


@dataclass(frozen=True)
class End:
    """What ends a stage before its systems have converged or stagnated, and the status of these then."""

    words: str
    test: Callable[[SolveContext], Callable[[Standing], bool]]
    status: Status = Status.ITERATION_LIMIT


def outcome(words: str, *outcomes: Outcome) -> Condition:
    """The condition that the search for a sparsity pattern has ended in one of these ways."""
    return after(words, lambda context: getattr(context.memory.detection, "how", None) in outcomes)


def after(words: str, is_so: Callable[[SolveContext], bool]) -> Condition:
    """A condition on the solve so far, the same for all systems."""
    return Condition(words, lambda context, solution: np.full(solution.status.size, is_so(context)))


def _is_stuck(context: SolveContext, solution: Solution) -> HostArray:
    """Systems that have moved, by products with J."""
    is_stuck = np.isin(solution.status, (Status.STAGNATED, Status.LINE_SEARCH_FAILED)) & (solution.iterations > 0)
    return is_stuck & (context.jacobians is None)


ANY = Condition("", lambda context, solution: np.ones(solution.status.size, dtype=bool))
NOT_NEAR = Condition("", lambda context, solution: np.zeros(solution.status.size, dtype=bool))
CLOSE = Condition("||F|| has fallen to a hundredth", lambda _, s: s.norm <= NEAR * s.first_norm)
SPARSE = after("the pattern of J is known", lambda context: context.jacobians is not None)
NOT_SPARSE = after("no pattern is known", lambda context: context.jacobians is None)
STUCK = Condition("a search along steps stagnated or failed", _is_stuck)
LEFT = Condition("they were left", lambda context, solution: solution.status == Status.ITERATION_LIMIT)


class Search:
    """Settings of a stage that looks for the sparsity of J; no protocol, of which a test takes as long as F."""

    budget: int | None  # evaluations

    def search(self, context: SolveContext, solution: Solution) -> SolveContext:
        """The context with what was found."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of a plan.

    Attributes
    ----------
    method : object
        A nonlinear method with its settings, or a search for the sparsity of J.
    when : Condition
        Which systems it is for, of those on which the stages before have failed.
    until : End, optional
        What ends it early.
    continues : Condition
        Which of them continue from where they ended; the others begin again at x0.
    """

    method: NonlinearMethod | Search
    when: Condition = ANY
    until: End | None = None
    continues: Condition = NOT_NEAR

    @property
    def is_search(self) -> bool:
        """Whether it looks for the sparsity of J, and takes no step."""
        return isinstance(self.method, Search)

    @property
    def name(self) -> str:
        """The name in `Retry.method`."""
        return label(self.method)


@dataclass(frozen=True)
class Plan:
    """The stages of a solve, in the order in which they run; see `plan`.

    Attributes
    ----------
    stages : tuple of Stage
        Each one's method, its settings, and when it applies.
    """

    stages: tuple[Stage, ...]
    unknowns: int

    @property
    def names(self) -> tuple[str, ...]:
        """The names in `Retry.method` of the stages that take steps."""
        return tuple(stage.name for stage in self.stages if not stage.is_search)

    def __str__(self) -> str:
        """A numbered line for each stage, and the budget."""
        solves = [stage for stage in self.stages if not stage.is_search]
        lines = []
        for number, (stage, share) in enumerate(zip(self.stages, _shares(self.stages, 1.0), strict=True), 1):
            lines.append(f"{number}. {_sentence(stage, share, is_first=stage is solves[0], unknowns=self.unknowns)}")
        whole = evaluations_without_progress(self.unknowns)
        budget = f"Budget: {whole} evaluations without progress for each system; more where J takes many."
        return "\n".join([*lines, budget])


def _sentence(stage: Stage, share: float, *, is_first: bool, unknowns: int) -> str:
    if isinstance(stage.method, Search):
        most = stage.method.budget or evaluations_without_progress(unknowns)
        where = f" where {stage.when.words}" if stage.when.words else ""
        return f"{stage.method}{where}, by at most {most} evaluations."
    parts = [stage.name]
    if stage.when.words:
        parts.append(f" where {stage.when.words}")
    elif not is_first:
        parts.append(" where those before failed")
    if stage.continues is not NOT_NEAR and not is_first:
        parts.append(", from the last point" + (f" where {stage.continues.words}" if stage.continues.words else ""))
    if stage.until is not None:
        parts.append(f", until {stage.until.words}")
    return "".join(parts) + f" ({share:.0%} of the budget)."


@runtime_checkable
class PlannedMethod(NonlinearMethod, Protocol):
    """Settings that stand for several stages."""

    def stages(self, context: SolveContext, x0: Array) -> Sequence[Stage]:
        """The stages for systems like x0 (B, N), found without an evaluation."""
        ...

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        return run(self.stages(context, start.x), context, start, rows)


def run(stages: Sequence[Stage], context: SolveContext, solution: Solution, rows: Indices | None = None) -> Solution:
    """Run the stages one after the other, each for the systems on which those before it have failed."""
    if context.memory.plan is None and len(stages) > 1:
        context.memory.plan = Plan(tuple(stages), context.evaluator.size)
    own = np.ones(solution.status.size, dtype=bool)
    if rows is not None:
        own = np.isin(np.arange(own.size), rows)
    shares, has_begun = _shares(stages, context.share), False
    for stage, share in zip(stages, shares, strict=True):
        is_for = own if stage.when is ANY else own & stage.when.holds(context, solution)
        is_for = is_for & is_unsolved(context, solution) if has_begun else is_for
        if not np.count_nonzero(is_for):
            continue
        if isinstance(stage.method, Search):
            context = stage.method.search(context, solution)
            continue
        leave = context.leave if stage.until is None else stage.until.test(context)
        settings = replace(context, share=share if has_begun else shares[0], leave=leave)
        if has_begun:
            solution = _retry(stage, settings, solution, np.flatnonzero(is_for))
        else:
            solution, has_begun = stage.method.solve(settings, solution, rows), True
        if np.count_nonzero(solution.status == CONVERGED) == own.size:
            break
        if stage.until is not None:
            solution.status[is_unsolved(context, solution) & LEFT.holds(context, solution)] = stage.until.status
    return solution


def _shares(stages: Sequence[Stage], whole: float) -> list[float]:
    """Parts of the budget that may be spent by the end of each stage: half by that of the first, then evenly more."""
    solves = list(accumulate([not isinstance(stage.method, Search) for stage in stages], initial=0))[1:]
    last = solves[-1]
    if last < 2:
        return [whole] * len(stages)
    return [whole * (FIRST_SHARE + (1 - FIRST_SHARE) * max(0, k - 1) / (last - 1)) for k in solves]


def is_unsolved(context: SolveContext, solution: Solution) -> HostArray:
    """Which systems have failed, from a finite start, with iterations left."""
    failed = ~np.isin(solution.status, (Status.CONVERGED, Status.STOPPED, Status.AT_INFINITY))
    return failed & np.isfinite(solution.first_norm) & (context.stop.remaining(1, solution.iterations) > 0)


def _retry(stage: Stage, context: SolveContext, first: Solution, rows: Indices) -> Solution:
    """Solve systems again that have a budget left, and more than rounding errors in F; take over what improved."""
    tally, method = context.evaluator.tally, stage.method
    solution = first
    rows = rows[first.charged[rows] < context.share]
    if not tally.is_spent() and stage.until is None:  # one with an end of its own is brief
        rows = rows[~_is_exhausted(context, first, rows)]
    if rows.size and not tally.is_spent():
        with np.errstate(invalid="ignore"):
            again = first.restart(rows[~stage.continues.holds(context, first)[rows]])
        iteration = first.steps[-1].iteration if first.steps else 0
        reasons = first.status[rows].view(StatusArray)
        found = method.solve(replace(context, first=None), again, rows)  # type: ignore[union-attr]
        status = found.status[rows].view(StatusArray)
        retry = Retry(method=stage.name, iteration=iteration, systems=rows, reasons=reasons, status=status)
        found.retries.insert(len(first.retries), retry)  # before those within it
        solution = first.take_over(rows, found)
    if tally.ended is not None:
        solution.status[rows] = np.where(solution.status[rows] == Status.CONVERGED, Status.CONVERGED, tally.ended)
    return solution


def label(method: object) -> str:
    search = getattr(method, "line_search", None)
    name = getattr(method, "label", type(method).__name__)
    if search is None:
        return name
    is_cautious = isinstance(search, Backtracking) and search == search.cautious()
    return f"{name} with {'cautious ' if is_cautious else ''}{type(search).__name__}"


def _is_exhausted(context: SolveContext, solution: Solution, rows: Indices) -> HostArray:
    """Which systems ended where F is rounding error; takes an evaluation if any may have."""
    exhausted = np.zeros(rows.size, dtype=bool)
    ends = np.flatnonzero(np.isin(solution.status[rows], (Status.STAGNATED, Status.LINE_SEARCH_FAILED)))
    for some in parts(context.scheduler, ends):
        x, part = gather(solution.x, rows[some]), context.evaluator.take(rows[some], solution.x)
        exhausted[some] = is_rounding(part, x, gather(solution.F, rows[some]))
    return exhausted
