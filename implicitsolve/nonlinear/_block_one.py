"""The steps of `BlockNewton` for one system of NumPy numbers, in few calls.

Most steps are whole ones that at least halve ||F||. Then few of the rules of `BlockLoop` have anything to decide, and
are applied to plain numbers here; every other step goes the way of a batch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from implicitsolve._namespace import Norms, from_host, is_safe, norm2
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.direct import BlockLU
from implicitsolve.kernels import Factors
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._assemble_one import OneSystemDifferences
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.monitor import silent
from implicitsolve.nonlinear._block_loop import BlockLoop
from implicitsolve.nonlinear._broyden_inverse import BroydenInverse, broyden_direction
from implicitsolve.nonlinear._loop import HALVED, RUNNING, STAGNATED
from implicitsolve.nonlinear._refactor_rule import MAX_AGE, MAX_ASSEMBLIES, is_fast, slowest_rate
from implicitsolve.nonlinear._state import Solution
from implicitsolve.result import NewtonStep
from implicitsolve.stopping import NonlinearStop

FEW = 8  # directions for which there is room at first, where
SMALL = 2**25  # bytes are not enough for all
WHOLE, ROW = np.ones(1), np.zeros(1, dtype=int)
FRESH, KEPT = np.ones(1, dtype=bool), np.zeros(1, dtype=bool)
for shared in (WHOLE, ROW, FRESH, KEPT):
    shared.flags.writeable = False


class OneSystemLoop(BlockLoop):
    """A `BlockLoop` for one system without batch axes."""

    @staticmethod
    def suits(evaluator: Evaluator, x0: Array, factor: object) -> bool:
        """Whether the system is alone and real, and the kernels are the library's choice: sums differ in rounding."""
        is_chosen = getattr(factor, "backend", "auto") == "auto"
        return (
            is_chosen
            and not evaluator.batch_shape
            and type(x0) is np.ndarray
            and x0.dtype.char in "fd"
            and x0.dtype.isnative
            and evaluator.box is None
        )

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.steps = WholeSteps()
        if self.method.reuse == "broyden":
            self.state.updates = self.steps
        self.differences: OneSystemDifferences | None = None
        factor, assembler = self.method.factor, self.assembler
        is_block_lu = isinstance(factor, BlockLU) and not factor.refine
        if is_block_lu and isinstance(assembler, Assembler) and OneSystemDifferences.suits(assembler):
            self.differences = OneSystemDifferences(assembler, self.evaluator)

    def _factorize(self, fresh: HostArray) -> None:
        if self.differences is None or not self._factorize_by(self.differences):
            super()._factorize(fresh)

    def _factorize_by(self, differences: OneSystemDifferences) -> bool:
        """Assemble and factorize J; return False, without factors, where a difference must be repeated."""
        structure = differences.assembler.structure
        self.state.updates.reset(FRESH)
        for _ in range(MAX_ASSEMBLIES):
            make = differences.taken(self.state.x, self.state.F, float(self.state.norms[0]))
            if make is None:
                return False
            blocks = make()
            factors = self.method.factor.factors(blocks, structure.lower, structure.upper, again=make)
            inverse = Inverse(factors, blocks.shape)
            self.state.inverse.parts = [(ROW, inverse)]
            if self.assembler.is_certain(ROW):
                break
            direction = inverse.negative(self.state.F)
            if not self.assembler.check(ROW, direction).any():
                self.first_direction = direction
                break
        return True

    def run(self) -> Solution:
        """Step until the system has ended."""
        self._record(0)
        self._compact()
        iteration = 0
        while self.state.rows.size:
            iteration = self._within_limits(self._several_steps, iteration + 1) or iteration
            self._note_progress()
            self._note_best()
            self._compact()
        return self._remembered()

    def _several_steps(self, iteration: int) -> int:
        """Steps with one factorized J; return the number of the last."""
        fresh = self.state.is_stale.copy()
        if fresh[0]:
            self._factorize(fresh)
        if self.steps.is_whole:
            return self._whole_steps(iteration, fresh)
        self._any_step(iteration, fresh, *self._trial())
        return iteration

    def _any_step(self, iteration: int, fresh: HostArray, direction: Array, x: Array, F: Array = None) -> None:
        """Any other step, by the rules of a batch."""
        F = self.evaluator.residual(x) if F is None else F
        length = self._take(x, F, Norms(F, direction, x), direction, fresh, iteration >= self.state.limit)
        self._record(iteration, step_length=length, factorized=fresh)

    def _whole_steps(self, iteration: int, fresh: HostArray) -> int:
        """Take full steps until J is stale or a step fails to halve ||F||; return the number of the last."""
        steps, stop, size = self.steps, self.stop, float(self.state.norms[0])
        is_simple = type(stop) is NonlinearStop
        while True:
            self._solve_into(steps.room(self.state.x))
            direction, x = steps.trial(self.state.x)
            F = self.evaluator.residual(x)
            norms = norm2(F)
            previous, size = size, float(norms[0])
            if not size <= HALVED * previous or iteration >= self.state.limit[0]:
                self._any_step(iteration, fresh, direction, x, F)
                return iteration
            self.state.x, self.state.F, self.state.norms, self.state.measure = (
                x,
                F,
                norms,
                self._measured_by_stop(Norms(F), x, self.state.rows),
            )
            self.solution.iterations[0] += 1
            held = (
                self.state.measure <= self.state.target
                if is_simple
                else stop.holds(self.state.measure, self.state.target, x, direction)
            )
            self._note_converged(self.state.status, norms, held)
            if self.state.status[0] == RUNNING:
                self._grow_old(size / previous, direction, fresh)
            self._record(iteration, step_length=WHOLE, factorized=fresh)
            is_ended = self.state.status[0] != RUNNING or self.whole.tally.ended is not None
            if is_ended or self.state.is_stale[0] or not steps.is_whole:
                return iteration
            iteration, fresh = iteration + 1, KEPT

    def _solve_into(self, row: Array) -> None:
        """Write -J^-1 F with the factorized J."""
        inverse = self.state.inverse.parts[0][1]
        if self.first_direction is None and isinstance(inverse, Inverse):
            inverse.negative(self.state.F, row)
        else:
            row[...] = self._solved()

    def _grow_old(self, rate: float, direction: Array, fresh: HostArray) -> None:
        """Record a full step that reduced ||F|| by the factor `rate`; decide whether to refactor."""
        measure, reuse = self.state.measure[0], self.method.reuse
        if reuse == "broyden":
            self.steps.step(direction, direction, WHOLE)
        if measure < self.NEW_BEST * self.state.best[0]:
            self.state.since[0], self.state.best[0] = 0, measure
        else:
            self.state.since[0] += 1
            if self.state.since[0] >= self.patience:
                self.state.status[0] = STAGNATED
        age = 1 if fresh[0] else int(self.state.age[0]) + 1
        fast = is_fast(rate, float(self.state.rate[0]) if age > 2 else rate, slowest_rate(self.assembler.cost))
        self.state.age[0], self.state.rate[0] = age, rate
        self.state.is_stale[0] = not fast or age >= MAX_AGE or reuse == "none"

    def _record(self, iteration: int, **details: Any) -> None:
        if self.monitor is not silent:
            super()._record(iteration, **details)
            return
        running, counts = int(self.state.status[0] == RUNNING), self.evaluator.tally.counts()
        self.solution.steps.append(
            NewtonStep(
                iteration=iteration,
                systems=ROW,
                residual_norm=self.state.measure,
                target=self.state.target,
                running=running,
                counts=counts,
                sparsity="" if iteration else self.memory.described,
                **details,
            )
        )


class Inverse:
    """J^-1 of one system by its factors, on arrays (1, N)."""

    def __init__(self, factors: Factors, shape: tuple[int, ...]) -> None:
        self.factors = factors
        self.shape = 1, shape[1], shape[3], 1

    def matvec(self, F: Array) -> Array:
        """J^-1 F."""
        with np.errstate(all="ignore"):
            return self.factors.solve(F.reshape(self.shape)).reshape(F.shape)

    def negative(self, F: Array, out: Array = None) -> Array:
        """-J^-1 F, in `out`."""
        in_place = getattr(self.factors, "solve_in_place", None)
        if in_place is None:
            return np.negative(self.matvec(F), out=out)
        x = np.negative(F, out=out)
        in_place(x.reshape(self.shape))
        return x


class WholeSteps(BroydenInverse):
    """Broyden's updates of one system as long as its steps are whole: each is the direction that the next one needs.

    So one array holds all that an update needs, and one kernel goes through it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_whole = True
        self.count = 0  # steps taken since the last factorization
        self.directions: Array = None  # (rows, N): those steps, and the newest direction
        self.squares = np.zeros(MAX_AGE + 1)  # s^T s of each

    def room(self, like: Array) -> Array:
        """Where -H F for the factorized J is to be written, (1, N)."""
        known = self.directions
        if known is None or self.count == known.shape[0]:
            is_small = like.nbytes * (MAX_AGE + 1) <= SMALL
            rows = MAX_AGE + 1 if is_small or known is not None else FEW
            self.directions = S = np.empty((rows, like.shape[1]), dtype=like.dtype)
            if known is not None:
                S[: known.shape[0]] = known
        return self.directions[self.count : self.count + 1]

    def trial(self, x: Array) -> tuple[Array, Array]:
        """Direction and x + direction, from what was written."""
        new_x = np.empty_like(x)
        broyden_direction(self.directions, self.count, self.squares, x[0], new_x[0])
        return self.directions[self.count : self.count + 1], new_x

    def step(self, s: Array, d: Array, length: HostArray | None = None, size: HostArray | None = None) -> None:
        """See the step s that was taken along the direction d."""
        if self.is_whole and length is not None and length[0] == 1.0:
            square = math.sqrt(self.squares[self.count])
            if is_safe(np.asarray(square), np, s.dtype):
                self.count += 1
                return
        if self.is_whole:
            self._give_up()
        super().step(s, d, length, size)

    def reset(self, where: HostArray) -> None:
        """Forget everything."""
        super().reset(where)
        self.is_whole, self.count = True, 0

    def take(self, indices: Indices) -> WholeSteps:
        """Forget the system when it has ended."""
        self.reset(np.ones(1, dtype=bool))
        return self

    def _give_up(self) -> None:
        """Go on as for any steps."""
        self.is_whole = False
        S = self.directions
        factors = from_host(1 / self.squares[: self.count], S)
        for j in range(self.count):
            self.pairs.append((S[j : j + 1], S[j + 1 : j + 2], factors[j : j + 1, None]))
