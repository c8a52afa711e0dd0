"""Substitution: causal systems, block by block in one sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from implicitsolve._namespace import Norms, norm2
from implicitsolve._typing import HostArray, Indices
from implicitsolve.nonlinear._loop import NONFINITE, STAGNATED, IterationLoop
from implicitsolve.nonlinear._scheduler import SolveContext
from implicitsolve.nonlinear._state import LoopState, Solution
from implicitsolve.operators import LinearOperator


@dataclass(frozen=True)
class Substitution:
    """Solve a causal system, each of whose blocks depends on earlier ones only, in one sweep.

    Notes
    -----
    The problem's own `Problem.substitute` does it, for the work of one residual, in T steps that follow each other. The
    residual is then measured. "auto" takes this method for every problem that offers it. Where T is large, and there
    are many cores or a GPU, `BlockNewton` with a `CyclicReduction` needs only log T steps for each Newton step.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> rng = np.random.default_rng(0)
    >>> layer = ims.adapters.elman(ims.adapters.elman_parameters(2, 4, rng=rng), rng.standard_normal((3, 50, 2)))
    >>> ims.root(layer, method=ims.Substitution()).iterations
    array([1, 1, 1])
    """

    kind: ClassVar[str] = "nonlinear"
    keeps_bounds: ClassVar[bool] = False
    eliminates = False
    rdiff = None

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        """Solve on arrays (B, N); see `NonlinearMethod`."""
        if context.evaluator.problem.substitute is None:
            raise ValueError("Substitution: the problem must offer `substitute`, got None")
        return _SubstitutionLoop(self, context, start, rows).run()


class _SubstitutionLoop(IterationLoop[LoopState]):
    """One step, after which every system has ended."""

    def _extended(self, state: LoopState, J: LinearOperator | None) -> LoopState:
        return state

    def _step(self, is_last: HostArray) -> dict[str, HostArray]:
        evaluator, state = self.evaluator, self.state
        state.x = evaluator.substituted()
        state.F = evaluator.residual(state.x)
        state.measure = self._measured_by_stop(Norms(state.F), state.x, state.rows)
        state.norms = norm2(state.F) if callable(self.stop.norm) else state.measure
        self.solution.iterations[state.rows] += 1
        state.status[:] = np.where(np.isfinite(state.norms), STAGNATED, NONFINITE)
        self._mark_converged(None)
        return {"step_length": np.ones(state.rows.size)}
