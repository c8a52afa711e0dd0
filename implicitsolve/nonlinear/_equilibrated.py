"""EquilibratedDogleg: a trust region for equations brought to one size at every step, where DenseNewton fails."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from implicitsolve._namespace import eps, norm2, numpy_namespace
from implicitsolve._typing import HostArray, Indices
from implicitsolve.globalize._line_search import squared_ratio
from implicitsolve.globalize._searches import ACCEPTED, GOOD, next_radius, trust_step
from implicitsolve.krylov._descent import Descent
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.nonlinear._dense_newton import DenseLoop, DenseNewton, solved, times
from implicitsolve.nonlinear._loop import LINE_SEARCH_FAILED, RUNNING, SINGULAR, STAGNATED
from implicitsolve.nonlinear._state import SolveContext
from implicitsolve.result import Solution

MOST_CENTRAL = 20  # unknowns up to which J comes from central differences
LEAST_ENTRY = 1e-3  # of the largest |x|: what the length of a difference is relative to, at least
IDLE, IDLE_STEPS = 1e-3, 10  # steps that reduce the scaled ||F||^2 by less, after which a system has stagnated


@dataclass(frozen=True, kw_only=True)
class EquilibratedDogleg(DenseNewton):
    """The dogleg on R F, where R brings the rows of J(x) to one size, with a new J at every accepted point.

    ||R F|| does not depend on the units of the equations: far from a root one of them may exceed the others by many
    powers of ten, as the highest of Chebyshev's polynomials does, and a step that reduces ||F|| then follows that one
    alone. The first radius is ||x0||, since such starts are far off. Up to 20 unknowns J comes from central
    differences: the error of one-sided ones exceeds the smallest singular values of Watson's problem.
    """

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        """Solve on arrays (B, N); see `NonlinearMethod`."""
        return _EquilibratedLoop(self, context, start, rows).run()


class _EquilibratedLoop(DenseLoop):
    """Steps in a trust region whose ball is that of x, and whose model that of R F."""

    NEW_BEST = 0.99
    PATIENCE = 100
    STEPS = 200

    def _step(self, is_last: HostArray) -> dict[str, HostArray]:
        state, fresh = self.state, self._assembled()
        with np.errstate(all="ignore"):
            largest = np.abs(state.J).max(axis=2)  # not rounded to powers of 2: ||R F|| is compared from step to step
            R = 1 / np.where(largest > 0, largest, 1.0)
            J, F = state.J * R[:, :, None], state.F * R
            newton, norms, x_norms = -solved(J, F), norm2(F), norm2(state.x)
            size = norm2(newton)
            if self.is_first:
                state.radius = np.where(x_norms > 0, np.fmin(size, x_norms), size)
                self.is_first = False
            descent = Descent.of(partial(times, J), partial(times, np.swapaxes(J, 1, 2)), F)
            step, gain = trust_step(descent, newton, state.radius, np.zeros(size.shape))
            found = self._evaluated(self.evaluator.moved(state.x, step), step)
            reduction = 1 - squared_ratio(norm2(found.F * R), norms)
            length, ratio = norm2(step), np.where(found.finite, reduction / gain, -np.inf)
            state.radius = next_radius(state.radius, length, ratio)
            found.accepted = ratio >= ACCEPTED
            found.length = np.where(found.accepted, 1.0, 0.0)
            moved, is_still = self._accept(found.restored(state.x, state.F, state.norms), step)
            is_idle = (reduction < IDLE) & ~((ratio >= GOOD) & (length < size))  # a short step as predicted is none
            state.idle = np.where(is_idle, state.idle + found.accepted, 0)
            failed = np.where(state.idle < IDLE_STEPS, RUNNING, STAGNATED)
            precision = eps(numpy_namespace, state.x.dtype)
            failed[~found.accepted & (length <= precision * x_norms)] = LINE_SEARCH_FAILED
            failed[~(length > 0)] = SINGULAR
            self._update_status(found.accepted, moved, is_still, is_last, failed)
            state.is_stale = found.accepted
            return {"step_length": np.where(found.accepted, length / size, 0.0), "factorized": fresh}

    def _assemble(self, rows: Indices) -> None:
        part, x, F = self._part(rows)
        is_exact = part.has_exact_products or x.shape[1] > MOST_CENTRAL
        self.state.J[rows] = self._jacobian(part, x, F) if is_exact else _central(part, x)


def _central(part: Evaluator, x: HostArray) -> HostArray:
    """J(x) by central differences."""
    typical = np.abs(x).max(axis=1, keepdims=True)
    typical = np.maximum(np.abs(x), LEAST_ENTRY * np.where(typical > 0, typical, 1.0))
    h, J = eps(numpy_namespace, x.dtype) ** (1 / 3) * typical, np.empty((*x.shape, x.shape[1]), dtype=x.dtype)
    for j in range(x.shape[1]):
        step = np.zeros_like(x)
        step[:, j] = h[:, j]
        ahead, behind = part.moved(x, step), part.moved(x, -step)
        with np.errstate(all="ignore"):
            J[:, :, j] = (part.residual(ahead) - part.residual(behind)) / (ahead - behind)[:, j : j + 1]
    return J
