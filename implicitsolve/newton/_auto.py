"""Auto: the method that a problem's structure asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._assemble import LARGEST_BLOCK, favors_direct
from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import extension, host_dtype
from implicitsolve._typing import Array
from implicitsolve.direct import BlockLU
from implicitsolve.fixed_point import Anderson
from implicitsolve.monitor import Monitor, silent
from implicitsolve.newton._block import BlockNewton
from implicitsolve.newton._homotopy import Homotopy
from implicitsolve.newton._lagged import Lagged
from implicitsolve.newton._loop import Solution
from implicitsolve.newton._mixed import MixedPrecision
from implicitsolve.newton._solver import NewtonKrylov
from implicitsolve.newton._substitution import Substitution
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop

RETRIED = (Status.SINGULAR, Status.LINE_SEARCH_FAILED, Status.DIVERGED, Status.NONFINITE)
POOR = 1e-3  # reduction of ||F|| short of which a system that stagnated is worth another attempt


@dataclass(frozen=True, kw_only=True)
class Auto:
    """Choose by what the problem declares.

    Notes
    -----
    - A causal problem (`Problem.substitute`): `Substitution`, and `NewtonKrylov` where that was not accurate enough.
    - A fixed-point problem (`Problem.fixed_point`): `Anderson`, which ends systems that do not halve ||F|| in 50 steps;
      for these `Homotopy`, and where that fails too `NewtonKrylov`, each from x0. Before it, `root` eliminates every
      second block where the problem has `halves`. In float64, with blocks of at least 64 unknowns and `Problem.astype`,
      both begin in float32, and Newton's method takes the last step or two (`MixedPrecision`). On implicit GRUs
      Anderson's method needed fewer products than Newton–Krylov wherever it converged, and the homotopy solved nearly
      all of the rest, where Newton's method, tried in between, cost more than it saved.
    - No structure, or extended precision: `NewtonKrylov`.
    - Blocks of k <= 64 unknowns and an assembly of at most 64 products, k (lower + upper + 1), or the problem's own
      `blocks`: `BlockNewton`. Systems on which it fails begin again with `NewtonKrylov`.
    - Blocks of k <= 128 unknowns: `NewtonKrylov`, which is preconditioned by a lagged `BlockLU` as soon as it has spent
      on Krylov products what the assembly takes.
    - Larger blocks: `NewtonKrylov` with products alone; a factorization would cost more than the whole solve.
    """

    eliminates = True

    def solve(self, evaluator: Evaluator, x0: Array, stop: NonlinearStop, monitor: Monitor = silent) -> Solution:
        """Solve on arrays (B, N): the loop behind `root`."""
        problem = evaluator.problem
        if problem.substitute is not None:
            return self._follow([Substitution(), NewtonKrylov()], evaluator, x0, stop, monitor)
        if problem.fixed_point:
            is_split = extension(x0, "IS_SPLIT")  # such arrays hold no vectors of N + 1 numbers
            methods: list[Any] = [Anderson()] if is_split else [Anderson(), Homotopy()]
            if MixedPrecision.suits(evaluator):
                methods = [MixedPrecision(rough=method) for method in methods]
            return self._follow([*methods, NewtonKrylov()], evaluator, x0, stop, monitor)
        structure = problem.structure
        is_factorable = host_dtype(x0.dtype).char in "fdFD"
        if structure is None or structure.block_size > 2 * LARGEST_BLOCK or not is_factorable:
            return NewtonKrylov().solve(evaluator, x0, stop, monitor)
        if not favors_direct(problem, structure.length(evaluator.size)):
            lagged = Lagged(preconditioner=BlockLU(), eager=False)
            return NewtonKrylov(preconditioner=lagged).solve(evaluator, x0, stop, monitor)
        first = BlockNewton().solve(evaluator, x0, stop, monitor)
        if (first.status == Status.CONVERGED).all():
            return first
        with np.errstate(invalid="ignore"):
            is_stuck = (first.status == Status.STAGNATED) & (first.norm > POOR * first.first_norm)
        failed = (np.isin(first.status, RETRIED) | is_stuck) & np.isfinite(first.first_norm)
        rows = np.flatnonzero(failed & (stop.remaining(1, first.iterations) > 0))
        return NewtonKrylov().retry(evaluator, x0, first, rows, stop, monitor) if rows.size else first

    def _follow(
        self, methods: Sequence[Any], evaluator: Evaluator, x0: Array, stop: NonlinearStop, monitor: Monitor
    ) -> Solution:
        """One method after the other, each for the systems on which those before it have failed, from x0."""
        solution = methods[0].solve(evaluator, x0, stop, monitor)
        for method in methods[1:]:
            ended = (solution.status == Status.CONVERGED) | (solution.status == Status.STOPPED)
            failed = ~ended & np.isfinite(solution.first_norm)
            rows = np.flatnonzero(failed & (stop.remaining(1, solution.iterations) > 0))
            if not rows.size:
                break
            solution = method.retry(evaluator, x0, solution, rows, stop, monitor)
        return solution
