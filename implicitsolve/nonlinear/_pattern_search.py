"""The search for the sparsity of J, as a stage of a plan; and the assembler that follows from it."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from implicitsolve._arrays.host import from_host, to_host
from implicitsolve._arrays.namespace import is_cupy_array
from implicitsolve._record import LimitReached
from implicitsolve._typing import Array, HostArray
from implicitsolve.direct._cudss import load_cudss
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._bisection import DISPLACEMENT
from implicitsolve.linearize._detect import detect, extend
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._group_sums import LENGTH
from implicitsolve.linearize._sparse_assemble import SparseAssembler, random_direction, wrong_rows
from implicitsolve.nonlinear._budget import evaluations_without_progress
from implicitsolve.nonlinear._newton_krylov import LEAST_FIRST
from implicitsolve.nonlinear._offered_jacobians import OfferedJacobians
from implicitsolve.nonlinear._plan import Search
from implicitsolve.nonlinear._state import JacobianAssembler, Solution, SolveContext, SolveMemory
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.structure import Detection, Outcome
from implicitsolve.structure._block_triangular import singularity
from implicitsolve.structure._grid import Grid
from implicitsolve.structure._sparse import Sparse

MOST_SEARCHES = 3  # more in a solve, where evidence requires them
MANY = 0.1  # part of the rows that are wrong: diagonals are missing
DIGIT = 0.1  # part of ||F|| that a J leaves at most unless its pattern is in doubt
SURROGATE = 0.5  # part of (J^2 d^2)^(1/2) by which J d differs at most in full rows whose means are known
WRONG, CLEAR = 0.01, 0.05  # part of |J| |d| by which J d differs from the change of F where entries are missing


@dataclass(frozen=True, kw_only=True)
class PatternSearch(Search):
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

    def search(self, context: SolveContext, solution: Solution) -> SolveContext:
        """The context with what assembles J, and in its memory what was found."""
        evaluator, memory, x = context.evaluator, context.memory, solution.x
        if self.needs_cudss and is_cupy_array(x):
            load_cudss(x)  # raises before the first evaluation
        if self.bisection == "only":
            again = self.detection_near(evaluator, x)
            if memory.detection is not None:
                again = replace(again, evaluations=memory.detection.evaluations + again.evaluations)
            return self._with(replace(context, first=None), again, x)
        own = self._take_own(context, x)
        if own is not None:
            return own
        if context.scheduler is None and context.truth is None and evaluator.problem.linearize is None:
            context = replace(context, first=evaluator.residual(x))
            if _holds(context, x):
                return context
        found = self.find_structure(evaluator, x, context.previous.detection, context.first)
        return context if found is None else self._with(context, found, x)

    def _take_own(self, context: SolveContext, x: Array) -> SolveContext | None:
        """The context with the problem's own matrices, or as it is where J is an operator; None where J is neither."""
        evaluator, problem = context.evaluator, context.evaluator.problem
        if problem.linearize is None and problem.jac is None:
            return None
        earlier = context.previous.detection if context.previous.inverse is not None else None
        pattern = earlier.structure if earlier is not None and earlier.how == Outcome.JAC else None
        found = OfferedJacobians.of(evaluator, x, pattern)
        if found is not None:
            known = Detection(structure=found.structure, how=Outcome.JAC, evaluations=0, unknowns=evaluator.size)
            context.memory.detection = known
            return replace(context, jacobians=found)
        is_open = problem.structure is None and self.structure is None  # for products, which are exact
        return context if problem.linearize is not None and is_open else None

    def _with(self, context: SolveContext, found: Detection, x: Array) -> SolveContext:
        evaluator, memory = context.evaluator, context.memory
        evaluator.tally.charge()  # to no system
        memory.detection = replace(found, values=None)
        if found.structure is None:
            return context
        budget = None if found.how == Outcome.DECLARED else self._budget(evaluator)
        jacobians = SparseJacobians(evaluator, found, memory, context.previous.assembler, budget)
        memory.detection = replace(memory.detection, colors=jacobians.colors)
        local: Sparse | None = None
        with suppress(LimitReached):
            local = evaluator.tally.enforce(jacobians.begin, evaluator, x, context.first)
        if local is not None:
            memory.detection = replace(found, structure=None, values=None, how=Outcome.FULL, large=local)
            return context
        return replace(context, jacobians=jacobians)

    def find_structure(
        self, evaluator: Evaluator, x: Array, previous: Detection | None = None, first: Array | None = None
    ) -> Detection | None:
        """The structure that is declared, known, or detected; None where none may be sought."""
        declared = evaluator.problem.sparse_structure if self.structure is None else self.structure
        if declared is not None:
            declared.check_size(evaluator.size)
            if reason := singularity(declared.sparse, evaluator.problem):
                warnings.warn(f"SparseNewton: by the declared `structure` {reason}", RuntimeWarning, stacklevel=2)
            return Detection(structure=declared.sparse, how=Outcome.DECLARED, evaluations=0, unknowns=evaluator.size)
        structure = evaluator.problem.structure
        if structure == "none" or (structure != "detect" and not isinstance(x, np.ndarray)):
            return None
        traced = getattr(evaluator.problem.derivatives, "detection", None)
        if traced is not None:
            return traced
        if previous is not None and previous.structure is not None:
            return replace(previous, how=Outcome.PREVIOUS, evaluations=0)
        is_open = self.bisection is not False and previous is not None and previous.how == Outcome.IRREGULAR
        if previous is not None and previous.how.is_lasting and not is_open:
            return replace(previous, evaluations=0)
        return self.detection_near(evaluator, x, first)

    def _budget(self, evaluator: Evaluator) -> int:
        return evaluations_without_progress(evaluator.size) if self.budget is None else self.budget

    def detection_near(self, evaluator: Evaluator, x: Array, first: Array | None = None) -> Detection:
        """Detect the pattern near x, where F is `first` if that is known, within the limits of the solve."""
        settings = {"shape": evaluator.event_shape, "budget": self._budget(evaluator), "bisection": self.bisection}
        known = {"inward": evaluator.inward, "first": first}
        return evaluator.tally.enforce(detect, evaluator.residual, x, **settings, **known)


def _holds(context: SolveContext, x: Array) -> bool:
    """Whether x, where F is known, solves all systems."""
    stop, F = context.stop, context.first
    norms = stop.measure(F, context.evaluator.event_shape)
    return bool(stop.holds(norms, stop.target(norms, F), x, None).all())


class SparseJacobians(JacobianAssembler):
    """The assembler of `BlockLoop` for a sparsity pattern, which evidence against it may widen.

    J d is compared with the change of F along a random d, as `SparseNewton` says. Where they differ the pattern is
    extended, by `budget` evaluations at most; a declared one, for which there are none, is kept with a warning.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        found: Detection,
        memory: SolveMemory,
        known: SparseAssembler | None,
        budget: int | None,
    ) -> None:
        self._memory, self._known = memory, known
        self._budget, self.searches = budget, 0
        self._is_new = found.how == Outcome.PREVIOUS or (budget is None and known is None)
        self._is_refuted = False  # by evidence that no search has explained; of a declared pattern after a warning
        self._norms: HostArray = np.full(evaluator.rows.size, np.inf)  # of F at the last assembly
        self.sensitivity: HostArray = np.full(evaluator.rows.size, np.nan)
        is_whole = found.values is not None and not found.full_rows.size and not evaluator.has_exact_products
        self._first: HostArray | None = found.values if is_whole else None
        self._found = replace(found, values=None)

    @cached_property
    def assembler(self) -> SparseAssembler:
        """Made when it is needed: J at the start may come from the detection, and be enough to the end."""
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

    @property
    def saves_products(self) -> bool:  # type: ignore[override]
        return not (self._is_refuted or self._found.full_rows.size) and self.cost <= LEAST_FIRST

    def assemble(self, evaluator: Evaluator, x: Array, F: Array) -> SparseMatrix:
        (first, self._first), norms = (self._first, None), norm2(F)
        is_slow = bool((norms > DIGIT * self._norms[evaluator.rows]).any())
        self._norms[evaluator.rows] = norms
        self.is_current = first is None or first.shape[0] != x.shape[0]
        if not self.is_current:
            return SparseMatrix(from_host(first, x), self._found.structure)  # type: ignore[arg-type]
        J = self.assembler.assemble(evaluator, x, F)
        is_new, self._is_new = self._is_new, False
        rows = np.unique(self.assembler.surprises[:, 1])
        if self._budget is None:
            if rows.size:
                self._warn(self._evidence())
            elif is_new and (wrong := self._wrong(evaluator, x, F, J, CLEAR)).size:
                doubt = ", unless the problem's products are wrong" if evaluator.has_exact_products else ""
                where = f"in {wrong.size} rows, row {wrong[0]} first{doubt}"
                self._warn(f"J d differs from the change of F along a random d {where}")
            return J
        if not (is_new or is_slow):
            return J
        rows = self._wrong(evaluator, x, F, J, WRONG)
        while self._widens(evaluator, x, J, rows):
            J = self.assembler.assemble(evaluator, x, F)
            rows = self._wrong(evaluator, x, F, J, WRONG)
        self._is_refuted = bool(rows.size) and self.searches >= MOST_SEARCHES
        return J

    def _widens(self, evaluator: Evaluator, x: Array, J: SparseMatrix, rows: HostArray) -> bool:
        """Whether more entries are found in some rows of the pattern: by few searches in a solve, cheap ones first."""
        known, budget, inward = self._found.structure, self._budget, evaluator.inward
        if not rows.size or self.searches >= MOST_SEARCHES or known is None or budget is None:
            return False
        self.searches += 1
        residual, shape = evaluator.residual, evaluator.event_shape
        if self.searches == 1 and known.diagonals.size and rows.size > MANY * known.unknowns:
            if not known.is_symmetric:  # upwind differences
                guess = known.with_diagonals(-known.diagonals)
                return self._widen(Detection(structure=guess, how=self._found.how, evaluations=0, unknowns=x.shape[1]))
            if self._widen(detect(residual, x, shape=shape, bisection=False, budget=budget, inward=inward)):
                return True
        values = scale = None
        if x.shape[0] == 1 and x.dtype == np.float64 and J.structure.nnz == known.nnz:
            values, scale = to_host(J.flat_data), np.abs(to_host(self.assembler.lengths(x))) / (LENGTH * DISPLACEMENT)
        return self._widen(extend(residual, x, known, rows, budget=budget, inward=inward, values=values, scale=scale))

    def _wrong(self, evaluator: Evaluator, x: Array, F: Array, J: SparseMatrix, mismatch: float) -> HostArray:
        """Rows that show by a product that the pattern misses entries there."""
        coloring = self.assembler.coloring
        direction = from_host(random_direction(coloring.colors, x.shape[1], 0), x)
        d = evaluator.inward(x, self.assembler.lengths(x) * direction)
        return np.flatnonzero(
            wrong_rows(evaluator.residual, x, F, J.structure, J.flat_data, d, coloring.full_rows, mismatch)
        )

    def begin(self, evaluator: Evaluator, x: Array, F: Array | None) -> Sparse | None:
        """Assemble J with full rows where these are known by their means alone; the local part where that misses much.

        Krylov methods need few more products than there are full rows, if the local part preconditions them.
        """
        full = self._found.full_rows
        if not full.size or evaluator.problem.vjp is not None:
            return None
        F, coloring = evaluator.residual(x) if F is None else F, self.assembler.coloring
        J = self.assembler.assemble(evaluator, x, F)
        d = evaluator.inward(x, self.assembler.lengths(x) * random_direction(coloring.colors, x.shape[1], 0))
        missed = np.abs(evaluator.residual(x + d) - F - J.matvec(d))
        usual = SparseMatrix(J.flat_data**2, J.structure).matvec(d**2) ** 0.5  # of sums whose terms have any signs
        if (missed <= SURROGATE * usual)[:, full].all():
            self._first, self._found = J.flat_data, replace(self._found, structure=J.structure)
            return None
        keep = coloring.local
        return Sparse((J.structure.rows[keep], J.structure.columns[keep]), unknowns=x.shape[1])

    def _warn(self, evidence: str) -> None:
        if not self._is_refuted:
            self._is_refuted = True
            advice = 'extend the pattern, or let it be detected by structure="detect"'
            warnings.warn(
                f"SparseNewton: `structure` is too narrow: {evidence}; {advice}", RuntimeWarning, stacklevel=2
            )

    def _widen(self, again: Detection) -> bool:
        """Whether another detection adds entries to the pattern."""
        known, memory = self._found, self._memory
        evaluations = again.evaluations + (memory.detection or again).evaluations
        memory.detection = replace(memory.detection or known, evaluations=evaluations)
        if again.structure is None or known.structure is None:
            return False
        structure, full_rows = known.structure.union(again.structure), np.union1d(known.full_rows, again.full_rows)
        if structure.nnz == known.structure.nnz and full_rows.size == known.full_rows.size:
            return False
        self._found = replace(known, structure=structure, full_rows=full_rows, values=None, colors=None)
        self._first = None
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
