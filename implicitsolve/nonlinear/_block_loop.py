"""The iteration of `BlockNewton`: directions from a factorized J and Broyden's updates of it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from implicitsolve._arrays.host import gather, scatter, to_host
from implicitsolve._arrays.namespace import array_namespace, copy_array, eps
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.globalize._line_search import SearchResult, SearchStart
from implicitsolve.globalize._rules import MAX_AGE, has_halved, is_fast, largest_ratio, slowest_rate
from implicitsolve.globalize._searches import kept_part
from implicitsolve.kernels._norms import Norms, norm2, norm_max
from implicitsolve.krylov._descent import Descent
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.nonlinear._accuracy import MODEL, MOST_LEFT, Lengths, component_sizes, known_scales, units_of
from implicitsolve.nonlinear._broyden import MAX_ASSEMBLIES, BroydenInverse
from implicitsolve.nonlinear._certificate import MOST_UNKNOWNS
from implicitsolve.nonlinear._convergence import LINE_SEARCH_FAILED, NONFINITE, RUNNING, SINGULAR, STAGNATED
from implicitsolve.nonlinear._loop import IterationLoop
from implicitsolve.nonlinear._state import (
    JacobianAssembler,
    LoopState,
    Solution,
    SolveContext,
    SolveMemory,
    is_rounding,
)
from implicitsolve.operators import LinearOperator
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.precondition._lagged import BatchedInverse

NOT_NOISE = 1e6  # times the change that J predicts between neighbouring numbers: an F above it is no rounding error


@dataclass
class BlockState(LoopState):
    """The systems that iterate, and what is kept of their Jacobians."""

    is_stale: HostArray
    age: HostArray  # steps since the last assembly
    rate: HostArray  # ||F|| over ||F|| one step before, of the last step
    is_exhausted: HostArray  # F(x) is rounding error
    inverse: BatchedInverse
    updates: BroydenInverse
    radius: HostArray  # of trust regions
    solved: Array | None  # -H F at x by the factors alone, where it is known
    reference: Array  # the larger of x0 and the first step, (b, k) for k components
    units: HostArray | None  # of the components, where J shows them


def component_count(evaluator: Evaluator) -> int:
    """Components of a state that may differ in units: the unknowns of a block, one where no blocks are declared."""
    structure = evaluator.problem.block_structure
    return 1 if structure is None else structure.block_size


def is_shown(x: Array, components: int) -> bool:
    """Whether the units of these components of x (b, N) are read from J: not where that is large."""
    return isinstance(x, np.ndarray) and components > 1 and x.shape[1] <= MOST_UNKNOWNS


def note_sensitivity(assembler: JacobianAssembler, rows: Indices, J: LinearOperator, x: Array) -> None:
    """Note how much F changes with x (b, N), where a sparse J shows it."""
    if isinstance(J, SparseMatrix) and isinstance(x, np.ndarray):
        places, columns, n = J.structure.indices, J.structure.columns, x.shape[1]
        with np.errstate(all="ignore"):
            sizes = np.abs(J.flat_data * x[:, columns])
            sums = [np.bincount(places, weights=row, minlength=n) for row in sizes]  # integers where J has no entries
            assembler.sensitivity[rows] = norm2(np.asarray(sums, dtype=sizes.dtype))


class BlockLoop(IterationLoop[BlockState]):
    """Steps whose directions come from a factorized J and the updates since."""

    CERTIFIES = False  # factors tell the error

    def __init__(self, method: Any, context: SolveContext, solution: Solution, rows: Indices | None = None) -> None:
        self.components = component_count(context.evaluator)
        super().__init__(method, context, solution, rows)
        self.assembler: JacobianAssembler = method.assembler(self.whole)
        self.factor: Any = method.factor
        self.budget.note_assembly(self.assembler.cost)
        self.newton: Array | None = None  # the last direction, before it was shortened at bounds
        self.descents: list[tuple[Indices, Descent]] = []  # of the new J, where the line search needs them

    def _extend(self, state: LoopState, J: LinearOperator | None) -> BlockState:
        size = state.rows.size
        known = None if self.method.reuse == "none" else self.previous.inverse
        return BlockState(
            **vars(state),
            is_stale=np.full(size, known is None),
            age=np.zeros(size, dtype=int),
            rate=np.ones(size),
            is_exhausted=np.zeros(size, dtype=bool),
            inverse=BatchedInverse() if known is None else copy.copy(known),
            updates=BroydenInverse(),
            radius=np.full(size, np.inf),
            solved=None,
            reference=component_sizes(0 * state.x, self.components),
            units=np.ones((size, self.components)) if is_shown(state.x, self.components) else None,
        )

    def _keep(self, memory: SolveMemory) -> None:
        memory.inverse = self.state.inverse

    def _step(self, is_last: HostArray) -> dict[str, HostArray]:
        fresh = self.state.is_stale.copy()
        if np.count_nonzero(fresh):
            self.state.solved = None
            self._factorize(fresh)
        direction, x = self._trial()
        self.lost = self._confirm(np.flatnonzero(fresh & self.state.progress.doubted))
        measured = Norms(self.evaluator.residual(x), direction, x)
        norms = measured.two(0)
        return {"step_length": self._take(measured, norms, fresh, is_last), "factorized": fresh}

    def _trial(self) -> tuple[Array, Array]:
        """The direction -J^-1 F by the stale or new J, and the trial point."""
        state, box = self.state, self.evaluator.box
        with np.errstate(all="ignore"):
            direction = state.inverse.negative(state.F) if state.solved is None else state.solved
            state.solved = None
            if self.method.reuse == "broyden":
                direction = state.updates.correct(direction)
            self.newton = direction
            if box is not None:
                direction = box.shorten(state.x, direction, kept_part(state.norms, state.start_norms))
            x, xp = self.evaluator.move(state.x, direction), array_namespace(direction)
            if isinstance(x, np.ndarray) and np.isfinite(x).all():
                return direction, x
            is_point = xp.all(xp.isfinite(x), axis=1)  # no function is called elsewhere
            return direction, xp.where(is_point[:, None], x, state.x)

    def _take(self, measured: Norms, norms: HostArray, fresh: HostArray, is_last: HostArray) -> HostArray:
        """Accept full steps, or the results of a line search along them; return the step lengths."""
        (F, direction, x), previous, finite = measured.arrays, self.state.norms, np.isfinite(norms)
        whole = SearchResult(x, F, norms, np.ones(fresh.size), finite.copy(), finite, None, measured)
        found = self._search(whole, direction, fresh)
        moved, is_still = self._accept(found, direction)
        failed = self._failures(found, direction, fresh, previous)
        lost = np.flatnonzero(fresh & ~found.accepted)
        if lost.size:
            self.state.progress.direction[lost] = self._relative_length(direction, lost)
        self._update_status(found.accepted, moved, is_still & fresh, is_last, failed, self.newton)
        self._age(fresh, found.accepted, previous)
        if self.evaluator.box is not None:  # the updates are of Newton's steps
            self.state.is_stale |= to_host(array_namespace(x).any(direction != self.newton, axis=1))
        if self.descents:  # ... and not of steps that a trust region has bent
            self.state.is_stale |= fresh & (found.length < 1)
            np.maximum(self.state.radius, 2 * measured.two(1), out=self.state.radius, where=found.length == 1)
        if not self.state.is_stale.all():
            self.state.updates.step(moved, direction, found.length)
        return found.length

    def _prediction(self, moved: Array, steps: HostArray, before: HostArray, sizes: HostArray) -> Lengths:
        state, (lengths, is_near) = self.state, self._by_contraction(steps, before, sizes)
        sizes_of = partial(component_sizes, k=self.components)
        self._note_first(moved)
        if is_near.any():
            with np.errstate(all="ignore"):
                scale = known_scales(state.units, sizes_of(state.x), sizes_of(state.x - moved), state.reference)
                theta = state.norms / state.norms_before
                state.solved = solved = state.inverse.negative(state.F)
                if self.method.reuse == "broyden":
                    solved = state.updates.correct(copy_array(solved))
                least = np.where(theta > MOST_LEFT, 1.0, MODEL)
                length, step = (norm_max(sizes_of(v) / scale) for v in (solved, moved))
                length = np.maximum(length, least * theta * step)
                if self.stop.judges_x:
                    self._confirm(np.flatnonzero(is_near & (length <= self.xtol)), state.x - moved)
                is_known = np.isfinite(length) & ~state.progress.doubted
                lengths = np.where(is_near, np.where(is_known, length, np.inf), lengths)
                steps, before = np.where(is_near, step, steps), np.where(is_near, 1.0, before)
                sizes = np.where(is_near, 1.0, sizes)
        return lengths, steps, before, sizes

    def _inverse(self, rows: Indices, v: Array) -> Array:
        z = array_namespace(v).zeros_like(self.state.x)
        scatter(z, rows, -v)
        z = self.state.inverse.negative(z)
        return gather(self.state.updates.correct(z) if self.method.reuse == "broyden" else z, rows)

    def _failures(self, found: SearchResult, direction: Array, fresh: HostArray, previous: HostArray) -> HostArray:
        """Status of systems whose step with a new J was rejected or reached rounding error."""
        failed = np.full(fresh.size, RUNNING)
        lost = fresh & ~found.accepted
        if lost.any():
            failed[lost] = np.where(found.finite, LINE_SEARCH_FAILED, NONFINITE)[lost]
            failed[lost & ~np.isfinite(norm_max(direction))] = SINGULAR
            failed[lost & self.state.is_exhausted] = STAGNATED
        failed[self.lost] = SINGULAR
        idle = np.flatnonzero(fresh & (found.length == 1.0) & ~has_halved(found.norms, previous))
        if idle.size:
            failed[idle[self._is_rounding(idle)]] = STAGNATED
        return failed if self.assembler.is_current else np.full(fresh.size, RUNNING)

    def _factorize(self, fresh: HostArray) -> None:
        self.state.updates.reset(fresh)
        self.descents = []
        rows = np.flatnonzero(fresh)
        for _ in range(MAX_ASSEMBLIES):
            if not rows.size:
                break
            part, x, F = self._part(rows)
            assembler, J = self.assembler, self._jacobian_of(part, x, F)
            if self.method.line_search.needs_descent:
                self.descents.append((rows, Descent.of(J.matvec, J.rmatvec, F)))
            if self.state.units is not None:
                self.state.units[rows] = units_of(J.blocks)  # type: ignore[attr-defined]
            self.state.inverse.release(rows)  # its memory first
            inverse = self.factor.factor(J)
            self.state.inverse.replace(rows, inverse)
            if assembler.is_certain(part.rows):
                break
            with np.errstate(all="ignore"):
                direction = inverse.negative(F)
            rows = rows[assembler.check(part.rows, direction)]

    def _jacobian_of(self, part: Evaluator, x: Array, F: Array) -> LinearOperator:
        J = self.assembler.assemble(part, x, F)
        note_sensitivity(self.assembler, part.rows, J, x)
        return J if self.shift is None else self.shift(part.rows, J, x, F)

    def _search(self, found: SearchResult, direction: Array, fresh: HostArray) -> SearchResult:
        """Accept full steps that reduce ||F||; of the others, search where J is new, reject where it is stale."""
        x, F, norms = self.state.x, self.state.F, self.state.norms
        with np.errstate(invalid="ignore"):
            found.accepted = (found.norms <= largest_ratio(fresh) * norms) & (fresh | (norms > 0))
        if found.accepted.all():
            return found
        rejected = np.flatnonzero(~found.accepted)
        rows = rejected[fresh[rejected] & np.isfinite(norm_max(direction))[rejected]]
        rows = rows[~self._is_rounding(rows)] if rows.size else rows
        if rows.size == fresh.size:
            found = self._search_along(rows, direction, found)
            found.jacobian = None
            return found
        whole = found.take(rows)
        scatter(found.x, rejected, gather(x, rejected))
        scatter(found.F, rejected, gather(F, rejected))
        found.norms[rejected], found.length[rejected], found.measured = norms[rejected], 0.0, None
        if rows.size:
            again = self._search_along(rows, gather(direction, rows), whole)
            scatter(found.x, rows, again.x)
            scatter(found.F, rows, again.F)
            for name in ("norms", "length", "accepted", "finite"):
                getattr(found, name)[rows] = getattr(again, name)
        found.jacobian = None
        return found

    def _search_along(self, rows: Indices, direction: Array, whole: SearchResult) -> SearchResult:
        """Line search for some systems, whose full steps have been evaluated."""
        part, x, F = self._part(rows)
        inverse, exact = self.state.inverse.take(rows), np.zeros(rows.size)
        descent = self._descent(rows) if self.descents and part.box is None else None
        found = self.method.line_search.search(
            SearchStart(part, x, F, self.state.norms[rows], direction, exact, inverse.matvec, whole, descent)
        )
        if descent is not None:
            self.state.radius[rows] = descent.radius
        return found

    def _descent(self, rows: Indices) -> Descent:
        """Steepest descent of some systems with a new J, and their trust regions."""
        size, x = self.state.rows.size, self.state.x
        whole = Descent(array_namespace(x).zeros_like(x), np.zeros(size), np.zeros(size), self.state.radius)
        for systems, part in self.descents:
            scatter(whole.unit, systems, part.unit)
            whole.length[systems], whole.gain[systems] = part.length, part.gain
        return whole.take(rows)

    def _is_rounding(self, rows: Indices) -> HostArray:
        """Whether F(x) is no larger than its change between neighbouring floating-point numbers."""
        with np.errstate(invalid="ignore"):
            precision = eps(self.evaluator.xp, self.state.x.dtype)
            sensitivity = self.assembler.sensitivity[self.evaluator.rows[rows]]
            is_far = self.state.norms[rows] > NOT_NOISE * precision * sensitivity
        if is_far.all():
            return ~is_far
        part, x, F = self._part(rows)
        self.state.is_exhausted[rows] = found = is_rounding(part, x, F)
        return found

    def _age(self, fresh: HostArray, accepted: HostArray, previous: HostArray) -> None:
        """Decide which systems refactor at the next step."""
        with np.errstate(all="ignore"):
            rate = np.where(accepted, self.state.norms / previous, 1.0)
        self.state.age = np.where(fresh, 1, self.state.age + 1)
        previous = np.where(self.state.age > 2, self.state.rate, rate)
        fast = is_fast(rate, previous, slowest_rate(self.assembler.cost))
        self.state.rate = rate
        self.state.is_stale = ~fast | ~accepted | (self.state.age >= MAX_AGE) | self.state.progress.doubted
        if self.method.reuse == "none":
            self.state.is_stale[:] = True
        self.state.updates.forget(int(self.state.age.max()))
