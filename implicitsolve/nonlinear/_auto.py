"""Auto: the method by what the problem declares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from implicitsolve._namespace import host_dtype
from implicitsolve._typing import Array, Indices
from implicitsolve.direct import BlockLU
from implicitsolve.globalize import Backtracking
from implicitsolve.linearize._assemble import LARGEST_BLOCK, favors_direct
from implicitsolve.linearize._detect import SMALLEST_GRAPH
from implicitsolve.nonlinear._anderson import Anderson
from implicitsolve.nonlinear._block_newton import BlockNewton
from implicitsolve.nonlinear._causal import Substitution
from implicitsolve.nonlinear._dense_newton import DenseNewton
from implicitsolve.nonlinear._equilibrated import EquilibratedDogleg
from implicitsolve.nonlinear._homotopy import Homotopy
from implicitsolve.nonlinear._mixed_precision import MixedPrecision
from implicitsolve.nonlinear._newton_krylov import NewtonKrylov
from implicitsolve.nonlinear._sparse_newton import SparseNewton
from implicitsolve.nonlinear._state import NonlinearMethod, SolveContext, retried, unsolved
from implicitsolve.precondition._lagged import Lagged
from implicitsolve.result import Solution

PRODUCTS, CAUTIOUS = NewtonKrylov(), NewtonKrylov(line_search=Backtracking().cautious())
LAGGED = NewtonKrylov(preconditioner=Lagged(preconditioner=BlockLU(), eager=False))
WHOLE_STEPS = {
    backend: BlockNewton(factor=BlockLU(backend=backend), line_search=Backtracking(max_trials=0))
    for backend in ("lapack", "reference")
}
BLOCKS, DENSE, EQUILIBRATED = BlockNewton(), DenseNewton(), EquilibratedDogleg()
SMALL_BLOCK, MOST_BLOCKS = 8, 100  # up to which Newton's steps take 0.5 (one system) to 1.3 (1000) of Anderson's time
MANY_SYSTEMS = 200  # from which a loop over blocks takes less time than LAPACK, system by system
MOST_DENSE = 20  # unknowns up to which a dense J comes first: with more, Krylov methods take fewer evaluations


@dataclass(frozen=True, kw_only=True)
class Auto:
    """Choose by what the problem declares.

    Notes
    -----
    - A causal problem (`Problem.substitute`): `Substitution`, and `NewtonKrylov` where that was not accurate enough.
    - A fixed-point problem (`Problem.fixed_point`): `Anderson`, which ends systems that do not halve ||F|| in 50 steps;
      for these `Homotopy`, and where that fails too `NewtonKrylov`, each from x0. Before it, `root` eliminates every
      second block where the problem has `halves`. In float64, with blocks of at least 64 unknowns and `Problem.astype`,
      both begin in float32, and Newton's method takes the last step or two (`MixedPrecision`). Where the problem has
      at most 100 `blocks` of at most 8 unknowns, on NumPy arrays, whole steps of `BlockNewton` come first, for systems
      in which each of them is acceptable: on layers with 8 states they take 0.6 of the evaluations of Anderson's
      method, and 0.5 (one system) to 1.3 (1000 systems) of its time. On larger implicit GRUs Anderson's method needed
      fewer products than Newton–Krylov wherever it converged, and the homotopy solved nearly all of the rest, where
      Newton's method, tried in between, cost more than it saved.
    - No structure, and at most 20 unknowns, real NumPy numbers, in a batch or not: Powell's hybrid method with a
      dense J (`DenseNewton`), then `NewtonKrylov` with two line searches, and last a trust region for equations that
      are brought to one size at every step (`EquilibratedDogleg`), each for the systems on which those before failed.
    - No structure and no `linearize`, on NumPy arrays with more unknowns: `SparseNewton`, which takes the sparse
      matrix that `jac` returns, or detects diagonals and stencils in some ten evaluations. Graphs take 50 to 250 and
      are detected where `NewtonKrylov` needs more. `NewtonKrylov` follows if the Jacobian is dense, which takes two
      evaluations to see, and for systems on which the factored J fails; up to 100 unknowns both dense methods follow.
    - No structure otherwise, extended precision, or ``structure="none"``: `NewtonKrylov`; up to 100 unknowns, without
      `linearize`, both dense methods follow.
    - Blocks of k <= 64 unknowns and an assembly of at most 64 products, k (lower + upper + 1), or the problem's own
      `blocks`: `BlockNewton`. Systems on which it fails are solved by `NewtonKrylov` from x0.
    - Blocks of k <= 128 unknowns: `NewtonKrylov`, which is preconditioned by a lagged `BlockLU` as soon as it has spent
      on Krylov products what the assembly takes.
    - Larger blocks: `NewtonKrylov` with products alone; a factorization would cost more than the whole solve.
    """

    kind: ClassVar[str] = "nonlinear"
    keeps_bounds: ClassVar[bool] = True
    eliminates = True
    rdiff = None

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        """Solve on arrays (B, N); see `NonlinearMethod`."""
        first, *others = self._methods(context, start.x)
        solution = first.solve(context, start, rows)
        for method in others:
            again = np.flatnonzero(unsolved(context, solution))
            if not again.size:
                break
            # by a dense J even if the allowance is spent: ||F|| shows no progress where equations differ in units
            solution = retried(method, context, solution, again, anyway=method is DENSE)
        return solution

    def _methods(self, context: SolveContext, x0: Array) -> Sequence[NonlinearMethod]:
        """The methods for a problem, each for the systems on which those before it have failed."""
        evaluator, problem = context.evaluator, context.evaluator.problem
        is_bounded = problem.bounds is not None
        if problem.substitute is not None and not is_bounded:
            return [Substitution(), PRODUCTS]
        if problem.fixed_point and not is_bounded:
            methods: list[NonlinearMethod] = [Anderson()] if evaluator.is_partitioned else [Anderson(), Homotopy()]
            if _has_small_blocks(context, x0):
                backend = "lapack" if evaluator.flat_shape[0] < MANY_SYSTEMS else "reference"
                return [WHOLE_STEPS[backend], *methods, PRODUCTS]
            if MixedPrecision.suits(context):
                methods = [MixedPrecision(rough=method) for method in methods]
            return [*methods, PRODUCTS]
        is_dense = problem.structure in (None, "none") and DenseNewton.suits(context, x0)
        dense: list[NonlinearMethod] = [DENSE] if is_dense else []
        last: list[NonlinearMethod] = [EQUILIBRATED] if is_dense and not is_bounded else []
        if dense and evaluator.size <= MOST_DENSE:
            return [*dense, PRODUCTS, CAUTIOUS, *last]
        is_factorable = host_dtype(evaluator.dtype).char in "fdFD"
        if is_factorable and SparseNewton.suits(context):
            if problem.sparse_structure is not None or problem.structure == "detect":
                return [SparseNewton(structure=problem.sparse_structure)]
            if problem.structure is None and problem.linearize is None and problem.blocks is None:
                return [SparseNewton(bisection="late" if evaluator.size >= SMALLEST_GRAPH else False), *dense, *last]
        structure = problem.block_structure
        if structure is None or structure.block_size > 2 * LARGEST_BLOCK or not is_factorable:
            return [PRODUCTS, *dense, *last]
        if not favors_direct(problem, structure.length(evaluator.size)):
            return [LAGGED]
        return [BLOCKS, PRODUCTS]


def _has_small_blocks(context: SolveContext, x0: Array) -> bool:
    """Whether a problem offers the blocks of J, as real NumPy numbers, and they are few and small."""
    problem, structure = context.evaluator.problem, context.evaluator.problem.block_structure
    if problem.blocks is None or structure is None or context.scheduler is not None:
        return False
    is_plain = type(x0) is np.ndarray and x0.dtype.char in "fd"
    is_small = structure.block_size <= SMALL_BLOCK and context.evaluator.size <= MOST_BLOCKS * structure.block_size
    return is_plain and is_small
