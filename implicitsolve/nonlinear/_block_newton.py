"""BlockNewton: Newton's method with a factorized block-banded Jacobian, reused while it converges fast enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.direct import BlockLU, DirectMethod
from implicitsolve.globalize._line_search import Backtracking, LineSearch
from implicitsolve.kernels import Factors
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._difference_steps import OneSystemDifferences
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.nonlinear._block_loop import BlockLoop, JacobianAssembler
from implicitsolve.nonlinear._broyden import MAX_ASSEMBLIES, WholeSteps
from implicitsolve.nonlinear._state import SolveContext
from implicitsolve.result import Solution
from implicitsolve.stopping import check_kind, check_rdiff, kind_of

ROW, FRESH = np.zeros(1, dtype=int), np.ones(1, dtype=bool)
for shared in (ROW, FRESH):
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
        if self.method.reuse == "broyden":
            self.state.updates = WholeSteps()
        self.differences: OneSystemDifferences | None = None
        factor, assembler = self.method.factor, self.assembler
        if isinstance(factor, BlockLU) and isinstance(assembler, Assembler):
            structure = assembler.structure
            self.factor = factor.for_one(self.whole.size * structure.block_size * structure.width)
            self.differences = None if factor.refine else assembler.one_system(self.evaluator)

    def _factorize(self, fresh: HostArray) -> None:
        if self.differences is None or not self._factorize_by(self.differences):
            super()._factorize(fresh)

    def _factorize_by(self, differences: OneSystemDifferences) -> bool:
        """Assemble and factorize J; return False, without factors, where a difference must be repeated."""
        structure = differences.structure
        self.state.updates.reset(FRESH)
        for _ in range(MAX_ASSEMBLIES):
            make = differences.taken(self.state.x, self.state.F, float(self.state.norms[0]))
            if make is None:
                return False
            blocks = make()
            factors = self.factor.factors(blocks, structure.lower, structure.upper, again=make)
            inverse = Inverse(factors, blocks.shape)
            self.state.inverse.parts = [(ROW, inverse)]
            if self.assembler.is_certain(ROW):
                break
            with np.errstate(all="ignore"):
                direction = inverse.negative(self.state.F)
            if not self.assembler.check(ROW, direction).any():
                self.first_direction = direction
                break
        return True


class Inverse:
    """J^-1 of one system by its factors, on arrays (1, N)."""

    def __init__(self, factors: Factors, shape: tuple[int, ...]) -> None:
        self.factors = factors
        self.shape = 1, shape[1], shape[3], 1

    def matvec(self, F: Array) -> Array:
        """J^-1 F."""
        with np.errstate(all="ignore"):
            return self.factors.solve(F.reshape(self.shape)).reshape(F.shape)

    def negative(self, F: Array) -> Array:
        """-J^-1 F."""
        in_place = getattr(self.factors, "solve_in_place", None)
        if in_place is None:
            return -self.factors.solve(F.reshape(self.shape)).reshape(F.shape)
        x = -F
        in_place(x.reshape(self.shape))
        return x


REUSES = ("broyden", "chord", "none")


@dataclass(frozen=True, kw_only=True)
class BlockNewton:
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
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> def bratu(u):
    ...     p = np.pad(u, 1)
    ...     return p[2:] - 2 * u + p[:-2] + 3 * np.exp(u) / 101**2
    >>> problem = ims.Problem(bratu, structure=ims.BlockBanded(1, 1))
    >>> result = ims.root(problem, np.zeros(100), method=ims.BlockNewton())
    >>> result.success, float(result.x.max().round(4)), result.counts.residuals < 12
    (True, 0.6401, True)
    """

    factor: DirectMethod = BlockLU()
    reuse: str = "broyden"
    line_search: LineSearch = Backtracking()
    rdiff: float | None = None

    kind: ClassVar[str] = "nonlinear"
    keeps_bounds: ClassVar[bool] = True
    eliminates = False

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.reuse not in REUSES:
            raise ValueError(f"BlockNewton: `reuse` must be one of {REUSES}, got {self.reuse!r}")
        check_rdiff("BlockNewton", self.rdiff)
        if kind_of(self.factor) != "direct":
            raise TypeError(f"BlockNewton: `factor` must be BlockLU() or another direct method, got {self.factor!r}")
        check_kind("BlockNewton", "line_search", self.line_search, "line search")

    def assembler(self, evaluator: Evaluator) -> JacobianAssembler:
        """Assemble J of the problem's structure, for `factor`; guessed lengths are checked by the Newton step."""
        return Assembler(evaluator, self.rdiff, certifies=False)

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        """Solve on arrays (B, N); see `NonlinearMethod`."""
        problem = context.evaluator.problem
        if problem.block_structure is None:
            got = repr(problem.structure)
            raise ValueError(f"BlockNewton: the problem must declare its `structure` as BlockBanded, got {got}")
        suits = context.scheduler is None and not self.line_search.needs_descent
        suits = suits and OneSystemLoop.suits(context.evaluator, start.x, self.factor)
        return (OneSystemLoop if suits else BlockLoop)(self, context, start, rows).run()
