"""Substitution: causal systems, block by block in one sweep."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import norm2
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.monitor import Monitor, silent
from implicitsolve.newton._loop import NewtonLoop, Solution
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop


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

    eliminates = False

    def solve(self, evaluator: Evaluator, x0: Array, stop: NonlinearStop, monitor: Monitor = silent) -> Solution:
        """Solve on arrays (B, N): the loop behind `root`."""
        if evaluator.problem.substitute is None:
            raise ValueError("Substitution: the problem must offer `substitute`, got None")
        return _SubstitutionLoop(self, evaluator, Solution.at(x0), stop, monitor).run()


class _SubstitutionLoop(NewtonLoop):
    """One step, after which every system has ended."""

    def _step(self, iteration: int, is_last: HostArray) -> None:
        evaluator = self.evaluator
        self.x = evaluator.substituted()
        self.F = evaluator.residual(self.x)
        self.measure = self.stop.measure(self.F, self.whole.event_shape)
        self.norms = norm2(self.F) if callable(self.stop.norm) else self.measure
        self.solution.iterations[self.rows] += 1
        self.code[:] = np.where(np.isfinite(self.norms), int(Status.STAGNATED), int(Status.NONFINITE))
        self.code[self.stop.holds(self.measure, self.target, self.x, None) | (self.norms == 0)] = Status.CONVERGED
        self._concede()
        self._report(iteration, step_length=np.ones(self.rows.size))

    def _keep(self, keep: Indices) -> None:
        """Nothing is kept."""
