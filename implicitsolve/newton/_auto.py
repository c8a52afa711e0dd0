"""Auto: the method that a problem's structure asks for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from implicitsolve._assemble import LARGEST_BLOCK, Assembler
from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import host_dtype
from implicitsolve._typing import Array
from implicitsolve.direct import BlockLU
from implicitsolve.monitor import Monitor, silent
from implicitsolve.newton._block import BlockNewton
from implicitsolve.newton._lagged import Lagged
from implicitsolve.newton._loop import Solution
from implicitsolve.newton._solver import NewtonKrylov
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop

RETRIED = (Status.SINGULAR, Status.LINE_SEARCH_FAILED, Status.DIVERGED, Status.NONFINITE)
POOR = 1e-3  # reduction of ||F|| short of which a system that stagnated is worth another attempt


@dataclass(frozen=True, kw_only=True)
class Auto:
    """Choose by what the problem declares.

    Notes
    -----
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
        structure = evaluator.problem.structure
        is_factorable = host_dtype(x0.dtype).char in "fdFD"
        if structure is None or structure.block_size > 2 * LARGEST_BLOCK or not is_factorable:
            return NewtonKrylov().solve(evaluator, x0, stop, monitor)
        if not Assembler(evaluator).favors_direct:
            lagged = Lagged(preconditioner=BlockLU(), eager=False)
            return NewtonKrylov(preconditioner=lagged).solve(evaluator, x0, stop, monitor)
        first = BlockNewton().solve(evaluator, x0, stop, monitor)
        with np.errstate(invalid="ignore"):
            is_stuck = (first.status == Status.STAGNATED) & (first.norm > POOR * first.first_norm)
        failed = (np.isin(first.status, RETRIED) | is_stuck) & np.isfinite(first.first_norm)
        rows = np.flatnonzero(failed & (stop.remaining(1, first.iterations) > 0))
        return NewtonKrylov().retry(evaluator, x0, first, rows, stop, monitor) if rows.size else first
