"""DenseNewton: Powell's hybrid method with a dense Jacobian, for systems of few unknowns and batches of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from implicitsolve._typing import Array, Indices
from implicitsolve.nonlinear._dense_loop import DenseLoop
from implicitsolve.nonlinear._offered_jacobians import LARGEST_DENSE
from implicitsolve.nonlinear._one_dense_system import OneDenseSystem
from implicitsolve.nonlinear._state import NonlinearMethod, Solution, SolveContext

MOST_ENTRIES = 2**25  # of the Jacobians of a batch


@dataclass(frozen=True, kw_only=True)
class DenseNewton(NonlinearMethod):
    """Powell's hybrid method, as MINPACK's hybrd, with a second test for steps and for all systems of a batch at once.

    J is assembled by N differences or products, corrected by Broyden's updates, and assembled again after two steps in
    succession that do not reduce ||F|| as predicted, or one that enlarges it. A step is Newton's within the trust
    region, else Powell's dogleg [1]_. One that ||F|| rejects is accepted where ||J^-1 F|| has become smaller, since
    that does not depend on how the equations are scaled against each other, and ||F|| has grown by less than sqrt(10)
    (`Backtracking`). Over the problems of Moré, Garbow and Hillstrom, and Burkardt, it takes 0.59 of hybrd's
    evaluations.

    Parameters
    ----------
    equilibrated : bool, optional
        Take the dogleg on R F, where R brings the rows of J(x) to one size, with a new J at every accepted point.
        ||R F|| does not depend on the units of the equations: far from a root one of them may exceed the others by many
        powers of ten, as the highest of Chebyshev's polynomials does, and a step that reduces ||F|| then follows that
        one alone. The first radius is ||x0||, since such starts are far off. Up to 20 unknowns J comes from central
        differences: the error of one-sided ones exceeds the smallest singular values of Watson's problem.
    projected : bool, optional
        Next to bounds, take the point nearest to that of Newton's step, unknown by unknown, in place of the minimizer
        of the linear model: where unknowns near zero belong to large entries of J, that leaves ||F|| little to gain.

    References
    ----------
    .. [1] M. J. D. Powell, "A hybrid method for nonlinear equations", in P. Rabinowitz (ed.), "Numerical methods for
           nonlinear algebraic equations", Gordon and Breach (1970) 87-114.
    """

    equilibrated: bool = False
    projected: bool = False

    keeps_bounds: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return "DenseNewton" + ", equilibrated" * self.equilibrated + ", projected" * self.projected

    @staticmethod
    def suits(context: SolveContext, x0: Array, most: int = LARGEST_DENSE) -> bool:
        """Whether the method applies: few unknowns, as real NumPy numbers, in one solve."""
        evaluator = context.evaluator
        is_plain = type(x0) is np.ndarray and x0.dtype.char in "fd" and context.scheduler is None
        return is_plain and evaluator.size <= most and evaluator.size * x0.size <= MOST_ENTRIES

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        if not self.equilibrated and OneDenseSystem.suits(context, start.x):
            return OneDenseSystem(context, start, is_retry=rows is not None).run()
        return DenseLoop(self, context, start, rows).run()
