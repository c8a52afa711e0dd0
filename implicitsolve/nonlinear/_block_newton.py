"""BlockNewton: Newton's method with a factorized block-banded Jacobian, reused while it converges fast enough."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.direct import BlockLU, DirectMethod
from implicitsolve.errors import ChecksKeywords
from implicitsolve.globalize._line_search import Backtracking, LineSearch
from implicitsolve.globalize._rules import MAX_AGE, has_halved, is_fast, largest_ratio, slowest_rate
from implicitsolve.kernels import Factors
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._bisection import DISPLACEMENT
from implicitsolve.linearize._difference_steps import OneSystemDifferences
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._sparse_assemble import SparseAssembler
from implicitsolve.nonlinear._accuracy import Lengths, component_sizes, known_scales, sparse_units, units_of
from implicitsolve.nonlinear._block_loop import NOT_NOISE, BlockLoop, component_count, is_shown, note_sensitivity
from implicitsolve.nonlinear._broyden import MAX_ASSEMBLIES, WholeSteps
from implicitsolve.nonlinear._convergence import CONVERGED, LINE_SEARCH_FAILED, NONFINITE, RUNNING, SINGULAR, STAGNATED
from implicitsolve.nonlinear._loop import WHOLE
from implicitsolve.nonlinear._one_system import FACTORED, NO_STEP, REUSED, ROW, OneInvertedSystem
from implicitsolve.nonlinear._state import JacobianAssembler, Solution, SolveContext, is_rounding
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.precondition._lagged import BatchedInverse
from implicitsolve.stopping import check_choice, check_kind, check_rdiff, kind_of


class OneFactoredSystem(OneInvertedSystem):
    """The steps of `BlockLoop` for one system without batch axes."""

    def __init__(self, method: Any, context: SolveContext, solution: Solution, *, is_retry: bool) -> None:
        super().__init__(context, solution, is_retry=is_retry)
        self.method: Any = method
        self.factor: Any = method.factor
        self.components = component_count(self.evaluator)
        self.assembler: JacobianAssembler = method.assembler(self.evaluator)
        self.budget.note_assembly(self.assembler.cost)
        self.slowest = slowest_rate(self.assembler.cost)
        known = None if is_retry or method.reuse == "none" else context.previous.inverse
        self.inverse = BatchedInverse() if known is None else copy.copy(known)
        self.is_stale, self.age, self.rate = known is None, 0, 1.0
        self.updates = WholeSteps()
        self.predicted: Any = None
        self.units: HostArray | None = None  # of the components, where J shows them
        self.differences: OneSystemDifferences | None = None
        if isinstance(self.factor, BlockLU) and isinstance(self.assembler, Assembler):
            structure = self.assembler.structure
            self.differences = None if self.factor.refine else self.assembler.one_system(self.evaluator)
            self.factor = self.factor.for_one(self.x.size * structure.block_size * structure.width)

    @staticmethod
    def applies(method: Any, context: SolveContext, x0: Array) -> bool:
        """Whether the system is alone and real, and the kernels are the library's choice: sums differ in rounding."""
        is_chosen = getattr(method.factor, "backend", "auto") == "auto" and not context.evaluator.batch_shape
        may_differ = (is_chosen or getattr(method, "rounds_freely", False)) and not method.line_search.needs_descent
        return may_differ and OneInvertedSystem.suits(context, x0) and x0.dtype.isnative

    def run(self) -> Solution:
        """Iterate until the system has ended, and leave the factors to later solves."""
        solution = super().run()
        if self.memory.keeps and self.status == CONVERGED:
            self.memory.inverse = self.inverse
        return solution

    def _step(self) -> dict[str, HostArray]:
        is_fresh, previous = self.is_stale, self.norm
        direction, square, *point = self._trial()
        self.direction = direction
        if is_fresh:
            if self.progress.doubted and self._is_refuted():
                return {"step_length": NO_STEP, "factorized": FACTORED}
            self._note_direction(direction, square)
        x, F, norm, length, failed = self._search_along(direction, *point)
        moved = direction if length == 1 else x - self.x if length else np.zeros_like(x)
        if length:
            self._accept(x, F, norm)
        is_slow = is_fresh and length > 0 and not has_halved(norm, previous)
        self._update_status(moved, is_slow=is_slow, failed=self._failure(failed, is_still=is_slow and length == 1))
        self._age(is_fresh, norm / previous if length and previous else math.inf)
        if not self.is_stale:
            self.updates.step(moved, direction, length, square)
        lengths = WHOLE if length == 1 else np.asarray([length])
        return {"step_length": lengths, "factorized": FACTORED if is_fresh else REUSED}

    def _failure(self, failed: int, *, is_still: bool) -> int:
        """The status after a step: of a search that failed, and of F that is rounding error; by a J at x alone."""
        failed = STAGNATED if is_still and self._is_rounding() else failed
        return failed if self.assembler.is_current else RUNNING

    def _note_direction(self, direction: HostArray, square: float) -> None:
        """Note the length of Newton's step at x, relative to x."""
        size = self._norm(self.x)
        self.progress.direction = math.sqrt(square) / size if size > 0 else math.inf
        if self.units is not None and self.reference is not None:
            self.progress.direction = self._lengths(direction, direction, 0.0, 0.0, 0.0)[1]

    def _trial(self) -> tuple[HostArray, float, HostArray, HostArray, float]:
        """The direction by the stale or new J and its square; x, F and ||F|| where it leads."""
        direction = self._factorize() if self.is_stale else None
        with np.errstate(all="ignore"):
            direction = self._raw() if direction is None else direction
            if self.method.reuse == "broyden":
                direction = self.updates.correct(direction)
            square, x = float(direction.dot(direction)), self.x + direction
        if not (math.isfinite(square) or np.isfinite(x).all()):  # no function is called there
            return direction, square, self.x, self.F, math.inf
        F = self.evaluator.residual_of_one(x)
        return direction, square, x, F, self._norm(F)

    def _raw(self) -> HostArray:
        """-H F at x by the factors alone, which the caller may overwrite."""
        known, self.predicted = self.predicted, None
        if known is not None and known[0] is self.F and not self.is_stale:
            return known[1]
        return self.inverse.negative(self.F[None])[0]

    def _correction(self) -> HostArray:
        with np.errstate(all="ignore"):
            z = self.inverse.negative(self.F[None])[0]
            self.predicted = self.F, z
            return self._update_direction(z.copy())

    def _lengths(self, correction: HostArray, moved: HostArray, step: float, before: float, size: float) -> Lengths:
        points = self.x, self.previous_x, self.reference, correction, moved
        with np.errstate(all="ignore"):
            x, last, first, *vectors = (component_sizes(v[None], self.components) for v in points)  # type: ignore[index]
            scale = known_scales(self.units, x, last, first)
            length, step = float((vectors[0] / scale).max()), float((vectors[1] / scale).max())
        is_known = math.isfinite(length) and (
            not (self.judges_x and length <= self.xtol) or self._confirm(always=False)
        )
        return length if is_known else math.inf, step, 1.0, 1.0

    def _inverse(self, v: HostArray) -> HostArray:
        return self._update_direction(self.inverse.negative(-v)[0])[None]

    def _update_direction(self, z: HostArray) -> HostArray:
        """H v for the inverse H of the last direction, given z = H v by the factors alone, which is overwritten."""
        return self.updates.correct(z, self.direction) if self.method.reuse == "broyden" else z

    def _search_along(
        self, direction: HostArray, x: HostArray, F: HostArray, norm: float
    ) -> tuple[HostArray, HostArray, float, float, int]:
        """Accept the whole step, or search along it from a new J: x, F, ||F||, the length or 0, a failure's status."""
        if norm <= largest_ratio(self.is_stale) * self.norm:
            return x, F, norm, 1.0, RUNNING
        if not self.is_stale:
            return x, F, norm, 0.0, RUNNING
        if not np.isfinite(direction).all():
            return x, F, norm, 0.0, SINGULAR
        if self._is_rounding():
            return x, F, norm, 0.0, STAGNATED
        found = self._search(direction, x, F, norm, 0.0, self.inverse.matvec)
        length, failed = float(found.length[0]), LINE_SEARCH_FAILED if found.finite[0] else NONFINITE
        if not self.assembler.is_current and 0 < self.norm - found.norms[0] <= DISPLACEMENT * self.norm:
            length, failed = 0.0, RUNNING  # J near x has errors of that size: one at x follows
        return found.x[0], found.F[0], float(found.norms[0]), length, RUNNING if length else failed

    def _age(self, is_fresh: bool, rate: float) -> None:
        """Decide whether the next step factors J again, after one that has multiplied ||F|| by `rate`."""
        self.age = 1 if is_fresh else self.age + 1
        is_kept = is_fast(rate, self.rate if self.age > 2 else rate, self.slowest) and self.age < MAX_AGE
        self.is_stale, self.rate = not is_kept or self.progress.doubted or self.method.reuse == "none", rate

    def _factorize(self) -> HostArray | None:
        """Assemble and factorize J; return -J^-1 F where the check of the assembly has computed it."""
        self.updates.reset()
        direction: Any = None
        for _ in range(MAX_ASSEMBLIES):
            self.inverse.parts = []  # its memory first
            self.inverse.parts = [(ROW, self._factor())]
            if self.assembler.is_certain(ROW):
                return None
            with np.errstate(all="ignore"):
                direction = self.inverse.negative(self.F[None])[0]
            if not self.assembler.check(ROW, direction[None]).any():
                break
        return direction

    def _factor(self) -> Any:
        differences = self.differences
        blocks = None if differences is None else differences.differences_at(self.x, self.F, self.norm)
        if differences is None or blocks is None:
            J, known = self.assembler.assemble(self.evaluator, self.x[None], self.F[None]), self.units
            self._note_units(J)
            if isinstance(self.assembler, SparseAssembler):
                self.assembler.units = self.units
                if known is None and self.units is not None:  # in these units lengths of differences may be others
                    J = self.assembler.assemble(self.evaluator, self.x[None], self.F[None])
            note_sensitivity(self.assembler, ROW, J, self.x[None])
            return self.factor.factor(J)
        structure = differences.structure
        self._note_units(blocks)
        return Inverse(self.factor.factors(blocks, structure.lower, structure.upper), blocks.shape)

    def _note_units(self, J: Any) -> None:
        """Note the units of the components that J, or its blocks, show; of unknowns one by one where J is sparse."""
        with np.errstate(all="ignore"):
            if isinstance(J, SparseMatrix):
                self.units = sparse_units(J)
                self.components = self.components if self.units is None else self.x.size
            elif is_shown(self.x[None], self.components):
                self.units = units_of(J if isinstance(J, np.ndarray) else J.blocks)

    def _is_rounding(self) -> bool:
        """Whether F(x) is no larger than its change between neighbouring floating-point numbers."""
        if self.norm > NOT_NOISE * self.unit * float(self.assembler.sensitivity[0]):
            return False
        return bool(is_rounding(self.evaluator, self.x[None], self.F[None])[0])


class Inverse:
    """J^-1 of one system by its factors, on arrays (1, N)."""

    def __init__(self, factors: Factors, shape: tuple[int, ...]) -> None:
        self.factors = factors
        self.shape = 1, shape[1], shape[3], 1

    def matvec(self, F: Array) -> Array:
        with np.errstate(all="ignore"):
            return self.factors.solve(F.reshape(self.shape)).reshape(F.shape)

    def negative(self, F: Array) -> Array:
        in_place = getattr(self.factors, "solve_in_place", None)
        if in_place is None:
            return -self.factors.solve(F.reshape(self.shape)).reshape(F.shape)
        x = -F
        in_place(x.reshape(self.shape))
        return x


REUSES = ("broyden", "chord", "none")


@dataclass(frozen=True, kw_only=True)
class BlockNewton(ChecksKeywords):
    """Newton's method by direct solves: J of the declared structure is assembled, factorized, and reused.

    Parameters
    ----------
    factor : BlockLU or CyclicReduction, optional
        The direct method.
    reuse : {"broyden", "chord", "none"}, optional
        How a stale J is used. "broyden" (the default) corrects it by Broyden's rank-one updates [1]_, which costs no
        evaluation; "chord" does not update it; "none" refactors in every step, which is Newton's method.
    line_search : Backtracking, Dogleg or FullStep, optional
        How far to go along a direction from a new J.
    rdiff : float, optional
        Relative step of the differences, for problems without products or blocks. Default: eps^(1/4), 1.2e-4 in
        float64; ``sqrt(eps) T``, up to 1e-3, for more than 8000 blocks.

    Notes
    -----
    An assembly takes c = k (lower + upper + 1) products or residuals (1 where the problem has a matrix), a step with
    a stale J one residual. J is refactored when the mean rate of ||F|| over the last two steps with the stale one
    exceeds 10^(-1.5/(c+1)), since a new J should bring 1.5 digits for c + 1 evaluations; when a step with a stale J,
    which is then rejected, would reduce ||F|| by less than a tenth; and after 20 steps. Directions from a new J go
    through the line search.

    Differences are longer than the sqrt(eps) that suits one product: all entries of J pass through a direct solve,
    where rounding errors are multiplied by the condition of J (10^9 and more on fine grids), and truncation is not.

    Memory per system, in vectors of T k numbers: k (lower + upper + 1) for J and the factors' (`BlockLU`), and one for
    each step since the last assembly.

    References
    ----------
    .. [1] C. T. Kelley, "Iterative methods for linear and nonlinear equations", SIAM (1995), chapters 5 and 7.

    Examples
    --------
    >>> def bratu(u):
    ...     p = np.pad(u, 1)
    ...     return p[2:] - 2 * u + p[:-2] + 3 * np.exp(u) / 101**2
    >>> problem = ims.Problem(bratu, structure=ims.BlockBanded(1, 1))
    >>> result = ims.root(problem, np.zeros(100), method=ims.BlockNewton())
    >>> result.success, float(result.x.max().round(4)), result.counts.residuals < 12
    (True, 0.6401, True)
    """

    factor: DirectMethod = BlockLU()
    reuse: Literal["broyden", "chord", "none"] = "broyden"
    line_search: LineSearch = Backtracking()
    rdiff: float | None = None

    kind: ClassVar[str] = "nonlinear"
    keeps_bounds: ClassVar[bool] = True
    eliminates = False

    def __post_init__(self) -> None:
        check_choice("BlockNewton", "reuse", self.reuse, REUSES)
        check_rdiff("BlockNewton", self.rdiff)
        if kind_of(self.factor) != "direct":
            raise TypeError(f"BlockNewton: `factor` must be BlockLU() or another direct method, got {self.factor!r}")
        check_kind("BlockNewton", "line_search", self.line_search, "line search")

    def assembler(self, evaluator: Evaluator) -> JacobianAssembler:
        """Assemble J of the problem's structure, for `factor`; guessed lengths are checked by the Newton step."""
        return Assembler(evaluator, self.rdiff, certifies=False)

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        problem = context.evaluator.problem
        if problem.block_structure is None:
            got = repr(problem.structure)
            raise ValueError(f"BlockNewton: the problem must declare its `structure` as BlockBanded, got {got}")
        if OneFactoredSystem.applies(self, context, start.x):
            return OneFactoredSystem(self, context, start, is_retry=rows is not None).run()
        return BlockLoop(self, context, start, rows).run()
