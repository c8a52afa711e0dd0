"""The linear system of a derivative at a solution, for every second block alone: the others follow from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import Norms
from implicitsolve._typing import Array, HostArray
from implicitsolve.elimination import halves_of, merge, reduced_jacobian, split
from implicitsolve.krylov import GMRES
from implicitsolve.krylov._base import KrylovOutcome
from implicitsolve.operators import LinearOperator
from implicitsolve.operators._guard import guarded
from implicitsolve.result import LinearResult
from implicitsolve.status import Status
from implicitsolve.stopping import LinearStop

ROUNDS = 4  # of a Krylov solve and a product that measures what it achieved
CAREFUL = 0.5  # part of the target that is asked for where rounding made a recurrence believe too much


class Swept(NamedTuple):
    """What kept blocks make of the eliminated ones, these of the kept ones, and the gradients if they can be had."""

    eliminated: Array
    back: Array
    gradients: Callable[[], Mapping[str, Array]] | None


class HalfSystem:
    """J x = b, or J^H x = b, of a problem with `halves`, at one point.

    The kept blocks are found by corrections d, ``A d = b_kept - x_kept + back``, until this residual is small. Each one
    is measured by a product, and gradients are made of the last of these products.
    """

    def __init__(self, evaluator: Evaluator, x: Array, *, needs_adjoint: bool, wrt: Collection[str] | None) -> None:
        problem = evaluator.problem
        self.evaluator, self.axis, self.needs_adjoint, self.wrt = evaluator, problem.batch_ndim, needs_adjoint, wrt
        self.halves = halves_of("pull_back", problem)
        eliminated, kept = self.states = split(x, self.axis)
        tally = evaluator.tally
        for kind in ("residuals", "linearizations"):
            tally.add(kind)
        _, self.first = self.halves.eliminated.linearize(kept)
        _, self.second = self.halves.kept.linearize(eliminated)
        J = guarded(
            reduced_jacobian(self.first, self.second, kept, self.axis), "linearize", tally.add, copies=not problem.pure
        )
        self.A = J.H if needs_adjoint else J
        self.M: LinearOperator | None = None

    def solve(
        self, b: Array, start: Array | None, solver: Any, stop: LinearStop
    ) -> tuple[LinearResult, Mapping[str, Array] | None]:
        """The solution for b (B, N) and, from an adjoint system with `Halves.pull`, the gradients."""
        self.b, spent = split(self.evaluator.unflatten(b), self.axis), self._products()
        self._measure(None if start is None else self._start(start, b), b)
        self.target = stop.target(self.measured.two(-1), b)
        status, iterations = _judged(self.norms, self.target, None), np.zeros(self.norms.shape, dtype=int)
        for is_first in (True, *[False] * (ROUNDS - 1)):
            active = status == Status.RUNNING
            if not active.any():
                break
            left = stop.max_iterations - int(iterations[active].max())
            outcome = self._correct(active, solver, left, is_first=is_first)
            iterations = iterations + np.where(active, outcome.iterations, 0)
            status = np.where(active, _judged(self.norms, self.target, outcome.status), status)
        if self.kept is None:  # zero is good enough
            self._measure(self.evaluator.xp.zeros_like(self.b[1]))
        status = np.where(status == Status.RUNNING, int(Status.STAGNATED), status)
        x = self.evaluator.flatten(merge(self.swept.eliminated, self.kept, self.axis))
        # an eliminated block may not be where no kept one depends on it
        is_finite = np.isfinite(self.measured.largest(1)) & np.isfinite(self.measured.largest(2))
        linear = LinearResult(
            x=x,
            status=np.where(is_finite, status, int(Status.NONFINITE)),
            residual_norm=self.norms,
            target=self.target,
            iterations=iterations,
            matvecs=self._products() - spent + (start is None),
        )
        return linear, None if self.swept.gradients is None else self.swept.gradients()

    def _correct(self, active: HostArray, solver: Any, limit: int, *, is_first: bool) -> KrylovOutcome:
        """Correct the kept blocks of active systems; what that achieved is measured."""
        if self.M is None:
            self.M = self.A.approximate_inverse()
        aim = np.where(active, self.target if is_first else CAREFUL * self.target, np.inf)
        polish = {"polish": True} if is_first and isinstance(solver, GMRES) else {}
        outcome = solver.solve(
            self.A, self.residual, target=aim, max_iterations=limit, M=self.M, confirm=False, **polish
        )
        d = self.evaluator.xp.reshape(outcome.x, self.b[1].shape)
        self._measure(d if self.kept is None else self.kept + d)
        return outcome

    def _measure(self, kept: Array | None, *others: Array) -> None:
        """Take over the kept blocks, None for zero, and see what remains; measure other arrays with it."""
        self.kept = kept
        self.swept = self._sweep(self.b[0], kept)
        with np.errstate(all="ignore"):
            residual = self.b[1] + self.swept.back
            if kept is not None:
                residual -= kept
        xp, systems = self.evaluator.xp, math.prod(self.evaluator.batch_shape)
        parts = [part for part in (residual, self.swept.eliminated, kept) if part is not None]
        self.residual, *state = (xp.reshape(part, (systems, math.prod(part.shape[self.axis :]))) for part in parts)
        self.measured = Norms(self.residual, *state, *others)
        self.norms = self.measured.two(0)

    def _start(self, start: Array, b: Array) -> Array:
        """The kept blocks of a start, but zero where b is zero."""
        xp = self.evaluator.xp
        start = xp.where(xp.any(b != 0, axis=1, keepdims=True), start, xp.zeros_like(start))
        return split(self.evaluator.unflatten(start), self.axis)[1]

    def _sweep(self, b: Array, kept: Array | None) -> Swept:
        """From the kept blocks to the eliminated ones, whose right-hand side is b, and back; None stands for zero."""
        first, second = self.first, self.second
        if not self.needs_adjoint:
            eliminated = b if kept is None else b + self._product("jvps", first.matvec, kept)
            return Swept(eliminated, second.matvec(eliminated), None)
        if kept is None:
            return Swept(b, first.rmatvec(b), None)
        if self.halves.pull is not None:
            self.evaluator.tally.add("vjps")
            return Swept(*self.halves.pull((first, second), self.states, b, kept, self.wrt))
        eliminated = b + self._product("vjps", second.rmatvec, kept)
        return Swept(eliminated, first.rmatvec(eliminated), None)

    def _product(self, kind: str, function: Callable[[Array], Array], kept: Array) -> Array:
        """The first half of a product, which counts as the whole."""
        self.evaluator.tally.add(kind)
        return function(kept)

    def _products(self) -> int:
        tally = self.evaluator.tally
        return tally.jvps + tally.vjps


def _judged(norms: HostArray, target: HostArray, claimed: HostArray | None) -> HostArray:
    """Status by measured residuals; a solver's claim of convergence that they refute leaves a system running."""
    running = np.full(norms.shape, int(Status.RUNNING))
    status = running if claimed is None else np.where(claimed == Status.CONVERGED, running, claimed)
    status = np.where(np.isfinite(norms), status, int(Status.NONFINITE))
    return np.where(norms <= target, int(Status.CONVERGED), status)
