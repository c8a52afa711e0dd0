"""BlockNewton: Newton's method with a factorized block-banded Jacobian, kept while it serves."""

from __future__ import annotations

from dataclasses import dataclass

from implicitsolve._evaluate import Evaluator
from implicitsolve._typing import Array
from implicitsolve.direct import BlockLU, DirectMethod
from implicitsolve.monitor import Monitor, silent
from implicitsolve.newton._block_loop import BlockLoop
from implicitsolve.newton._block_one import OneSystemLoop
from implicitsolve.newton._line_search import Backtracking, LineSearch
from implicitsolve.newton._loop import Solution
from implicitsolve.stopping import NonlinearStop, check_part, check_rdiff

REUSES = ("broyden", "chord", "none")


@dataclass(frozen=True, kw_only=True)
class BlockNewton:
    """Newton's method for problems with a declared structure: J is assembled, factorized, and kept while it serves.

    Parameters
    ----------
    factor : BlockLU or CyclicReduction, optional
        The direct method.
    reuse : {"broyden", "chord", "none"}, optional
        What happens between assemblies. "broyden" (the default) corrects the factorized J by Broyden's rank-one updates
        [1]_, which costs no evaluation; "chord" uses it as it is; "none" assembles J in every step, which is Newton's
        method.
    line_search : Backtracking or FullStep, optional
        How far to go along a direction from a new J.
    rdiff : float, optional
        Relative step of the differences, for problems without products or blocks. Default: eps^(1/4), 1.2e-4 in
        float64; ``sqrt(eps) T``, up to 1e-3, for more than 8000 blocks.

    Notes
    -----
    An assembly takes c = k (lower + upper + 1) products or residuals (1 where the problem has a matrix), a step with
    a kept J one residual. J is assembled anew where the last two steps with the old one brought ||F|| down by less
    than a factor 10^(-1.5/(c+1)) each in the mean: a new J should bring 1.5 digits for c + 1 evaluations. So it is
    where a step with a kept J reduced ||F|| by less than a tenth, which is not taken, and after 20 steps. A direction
    from a new J goes through the line search.

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

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.reuse not in REUSES:
            raise ValueError(f"BlockNewton: `reuse` must be one of {REUSES}, got {self.reuse!r}")
        check_rdiff("BlockNewton", self.rdiff)
        check_part("BlockNewton", "factor", self.factor, "factor")
        check_part("BlockNewton", "line_search", self.line_search, "search")

    def solve(self, evaluator: Evaluator, x0: Array, stop: NonlinearStop, monitor: Monitor = silent) -> Solution:
        """Solve on arrays (B, N): the loop behind `root`."""
        if evaluator.problem.structure is None:
            raise ValueError("BlockNewton: the problem must declare its `structure`, got None")
        loop = OneSystemLoop if OneSystemLoop.suits(evaluator, x0, self.factor) else BlockLoop
        return loop(self, evaluator, Solution.at(x0), stop, monitor).run()
