"""The search for the sparsity of J, as a stage of a plan; and the assembler that follows from it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

import numpy as np

from implicitsolve._arrays.host import from_host
from implicitsolve._arrays.namespace import is_cupy_array
from implicitsolve._sparse_structure import Grid, Sparse
from implicitsolve._typing import Array, HostArray
from implicitsolve.direct._cudss import load_cudss
from implicitsolve.linearize._detect import MOST_WRONG, detect, random_direction, wrong_rows
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._sparse_assemble import SparseAssembler
from implicitsolve.nonlinear._budget import evaluations_without_progress
from implicitsolve.nonlinear._sparse_inverse import OfferedJacobians
from implicitsolve.nonlinear._state import JacobianAssembler, SolveContext, SolveMemory
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.result import Solution
from implicitsolve.structure import Detection, Outcome

MOST_INCOMPLETE = 2  # assemblies that miss entries, until a detected pattern is sought again: one often suffices
CLEAR = 0.05  # part of |J| |d| by which J d differs from the change of F where a declared pattern misses entries


@dataclass(frozen=True, kw_only=True)
class PatternSearch:
    """Take the pattern that is declared or known, or look for one near the point where the systems are."""

    structure: Sparse | Grid | None = None
    budget: int | None = None
    bisection: bool | Literal["only"] = True
    needs_cudss: bool = False  # on a device

    def __str__(self) -> str:
        """What it does, as a part of a sentence."""
        if self.structure is not None:
            return "Take the declared sparsity of J"
        if self.bisection == "only":
            return "Halve groups of unknowns to find the sparsity of J"
        return "Find the sparsity of J" + (" by halving, too" if self.bisection else "")

    def searched(self, context: SolveContext, solution: Solution) -> SolveContext:
        """The context with what assembles J, and in its memory what was found."""
        evaluator, memory, x = context.evaluator, context.memory, solution.x
        if self.needs_cudss and is_cupy_array(x):
            load_cudss(x)  # raises before the first evaluation
        if self.bisection == "only":
            again = self.detected(evaluator, x)
            if memory.detection is not None:
                again = replace(again, evaluations=memory.detection.evaluations + again.evaluations)
            return self._with(replace(context, first=None), again)
        offered = OfferedJacobians.of(evaluator, x)
        if offered is not None:
            if offered.is_dense:
                return context
            memory.detection = Detection(
                structure=offered.structure, how=Outcome.JAC, evaluations=0, unknowns=evaluator.size
            )
            return replace(context, jacobians=offered)
        if context.scheduler is None and context.truth is None and evaluator.problem.linearize is None:
            context = replace(context, first=evaluator.residual(x))
            if _holds(context, x):
                return context
        found = self.found(evaluator, x, context.previous.detection, context.first)
        return context if found is None else self._with(context, found)

    def _with(self, context: SolveContext, found: Detection) -> SolveContext:
        evaluator, memory = context.evaluator, context.memory
        evaluator.tally.charge()  # to no system
        memory.detection = replace(found, values=None)
        if found.structure is None:
            return context
        again = replace(self, bisection=found.how == Outcome.BISECTION)
        search = None if found.how == Outcome.DECLARED else again.detected
        jacobians = SparseJacobians(evaluator, found, memory, context.previous.assembler, search)
        memory.detection = replace(memory.detection, colors=jacobians.colors)
        return replace(context, jacobians=jacobians)

    def found(
        self, evaluator: Evaluator, x: Array, previous: Detection | None = None, first: Array | None = None
    ) -> Detection | None:
        """The structure that is declared, known, or detected; None where none may be sought."""
        declared = evaluator.problem.sparse_structure if self.structure is None else self.structure
        if declared is not None:
            declared.check_size(evaluator.size)
            return Detection(structure=declared.sparse, how=Outcome.DECLARED, evaluations=0, unknowns=evaluator.size)
        structure = evaluator.problem.structure
        if structure == "none" or (structure != "detect" and not isinstance(x, np.ndarray)):
            return None
        if previous is not None and previous.structure is not None:
            return replace(previous, how=Outcome.PREVIOUS, evaluations=0)
        is_open = self.bisection is not False and previous is not None and previous.how == Outcome.IRREGULAR
        if previous is not None and previous.how.is_lasting and not is_open:
            return replace(previous, evaluations=0)
        return self.detected(evaluator, x, first)

    def detected(self, evaluator: Evaluator, x: Array, first: Array | None = None) -> Detection:
        """Detect the pattern near x, where F is `first` if that is known, within the limits of the solve."""
        search = partial(
            detect,
            lambda x: evaluator.residual(x, keep=True),
            x,
            shape=evaluator.event_shape,
            budget=evaluations_without_progress(evaluator.size) if self.budget is None else self.budget,
            bisection=self.bisection,
            inward=evaluator.inward,
            first=first,
        )
        return evaluator.tally.enforced(search)


def _holds(context: SolveContext, x: Array) -> bool:
    """Whether x, where F is known, solves all systems."""
    stop, F = context.stop, context.first
    norms = stop.measure(F, context.evaluator.event_shape)
    return bool(stop.holds(norms, stop.target(norms, F), x, None).all())


class SparseJacobians(JacobianAssembler):
    """The assembler of `BlockLoop` for a sparsity pattern.

    A pattern that misses entries in two assemblies is detected again, once, by `search`; a declared one, for which
    there is no `search`, is kept with a warning.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        found: Detection,
        memory: SolveMemory,
        known: SparseAssembler | None,
        search: Callable[[Evaluator, HostArray], Detection] | None,
    ) -> None:
        self._found, self._memory, self._known = found, memory, known
        self._search, self._incomplete = search, 0
        self._is_checked = self._is_warned = False
        self.sensitivity: HostArray = np.full(evaluator.rows.size, np.nan)
        is_whole = found.values is not None and not found.full_rows.size
        self._first: HostArray | None = found.values if is_whole else None

    @cached_property
    def assembler(self) -> SparseAssembler:
        """Made when it is needed: J at the start may come from the detection, and serve to the end."""
        self._memory.assembler = assembler = SparseAssembler.of(self._found, self._known)
        return assembler

    @property
    def colors(self) -> HostArray:
        """Colors of the columns: those of the detection, as long as there was no assembly."""
        colors = self._found.colors
        return self.assembler.coloring.colors if colors is None or "assembler" in vars(self) else colors

    @property
    def cost(self) -> int:
        return int(self.colors.max()) + 1

    def assemble(self, evaluator: Evaluator, x: Array, F: Array) -> SparseMatrix:
        first, self._first = self._first, None
        if first is not None and first.shape[0] == x.shape[0]:
            return SparseMatrix(from_host(first, x), self._found.structure)  # type: ignore[arg-type]
        J = self.assembler.assemble(evaluator, x, F)
        if not self.assembler.surprises.size:
            if self._search is None and self._known is None and not self._is_checked:
                self._is_checked = True
                self._compare(evaluator, x, F, J)
            return J
        self._incomplete += 1
        if self._search is None:
            self._warn(self._evidence())
        elif self._incomplete == MOST_INCOMPLETE and self._widened(self._search(evaluator, x)):
            return self.assembler.assemble(evaluator, x, F)
        return J

    def _compare(self, evaluator: Evaluator, x: Array, F: Array, J: SparseMatrix) -> None:
        """Look for entries outside a declared pattern in rows that have another of that color: one evaluation."""
        coloring = self.assembler.coloring
        direction = from_host(random_direction(coloring.colors, x.shape[1], 0), x)
        d = evaluator.inward(x, self.assembler.lengths(x) * direction)
        wrong = wrong_rows(evaluator.residual, x, F, J.structure, J.flat_data, d, coloring.full_rows, CLEAR)
        rows = np.flatnonzero(wrong)
        if rows.size > MOST_WRONG * wrong.size:
            doubt = ", unless the problem's products are wrong" if evaluator.has_exact_products else ""
            evidence = f"J d differs from the change of F along a random d in {rows.size} rows, row {rows[0]} first"
            self._warn(evidence + doubt)

    def _warn(self, evidence: str) -> None:
        if not self._is_warned:
            self._is_warned = True
            advice = 'extend the pattern, or let it be detected by structure="detect"'
            warnings.warn(
                f"SparseNewton: `structure` is too narrow: {evidence}; {advice}", RuntimeWarning, stacklevel=2
            )

    def _widened(self, again: Detection) -> bool:
        """Whether another detection adds entries to the pattern."""
        known, memory = self._found, self._memory
        evaluations = again.evaluations + (memory.detection or again).evaluations
        memory.detection = replace(memory.detection or known, evaluations=evaluations)
        if again.structure is None or known.structure is None:
            return False
        structure, full_rows = known.structure.union(again.structure), np.union1d(known.full_rows, again.full_rows)
        if structure.nnz == known.structure.nnz and full_rows.size == known.full_rows.size:
            return False
        self._found = replace(again, structure=structure, full_rows=full_rows, values=None, colors=None)
        del self.assembler
        memory.detection = replace(self._found, evaluations=evaluations, colors=self.assembler.coloring.colors)
        return True

    def _evidence(self) -> str:
        """What an assembly shows outside the pattern."""
        surprises, colors = self.assembler.surprises, self.assembler.coloring.colors
        color, row = surprises[0]
        rows, members = np.unique(surprises[:, 1]), np.flatnonzero(colors == color)
        columns = ", ".join(map(str, members[:3])) + (", ..." if members.size > 3 else "")
        return (
            f"at least {rows.size} of {colors.size} rows of F change with "
            f"unknowns outside their pattern (row {row} with unknowns of color {color}: {columns})"
        )
