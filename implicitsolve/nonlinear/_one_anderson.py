"""One system solved by `Anderson`: its steps in vectors and plain numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.linalg import lapack

from implicitsolve._typing import Array, HostArray
from implicitsolve.globalize._rules import has_halved
from implicitsolve.nonlinear._convergence import CONVERGED, NONFINITE, RUNNING, STAGNATED
from implicitsolve.nonlinear._fixed_point import REJECTIONS, FixedPointLoop
from implicitsolve.nonlinear._history import PLAIN, RENEWALS, first_columns, has_fallen, is_misled, room
from implicitsolve.nonlinear._one_system import OneSystem
from implicitsolve.nonlinear._state import Solution, SolveContext
from implicitsolve.operators import LinearOperator


class OneAnderson(OneSystem):
    """The steps of `AndersonLoop`, for one system in vectors and plain numbers."""

    NEW_BEST, STEPS, LIMITED, RUNS_AWAY = FixedPointLoop.NEW_BEST, FixedPointLoop.STEPS, False, False

    def __init__(self, method: Any, context: SolveContext, solution: Solution, *, is_retry: bool) -> None:
        self.method, self.is_due = method, method.preconditioned and context.evaluator.offers_inverse
        self.newest: LinearOperator | None = None  # J, from which M is to be built
        self.M: LinearOperator | None = None
        self.is_trusted = self.is_due
        super().__init__(context, solution, is_retry=is_retry)
        self.patience, self.damping = method.patience, float(method.damping)
        self.age = self.rejections = self.idle = 0
        self.best_norm = self.mark = self.last_norm = self.norm
        self.promised, self.is_plain = 0.0, True
        self._renew()
        self.image = self._image(self.F)
        self.history = OneHistory(self.F, self.norm, *room(method, self.x.shape, self.unit))

    @staticmethod
    def applies(method: Any, context: SolveContext, x0: Array) -> bool:
        """Whether the system is alone and real, and need not agree with a batch to the last bit."""
        return not context.evaluator.batch_shape and OneSystem.suits(context, x0)

    def _evaluate(self, x: HostArray) -> HostArray:
        if not self.is_due:
            return super()._evaluate(x)
        F, self.newest = self.evaluator.trial(x[None])
        return F[0]

    def _renew(self) -> None:
        """Build M at the newest point, if J was evaluated there."""
        if self.is_due and self.newest is not None:
            self.M = self.newest.approximate_inverse()
            self.is_trusted = self.M is not None
        self.newest = None

    def _image(self, F: HostArray) -> HostArray:
        with np.errstate(all="ignore"):
            return F if self.M is None else self.M.matvec(F[None])[0]

    def _step(self) -> dict[str, HostArray]:
        previous, old_F, length = self.norm, self.F, self.damping
        self.is_due = self.is_trusted and self.age + 1 in RENEWALS
        with np.errstate(all="ignore"):
            step, rest = -length * self.image, 1.0
            if self.history.order:
                mixture, rest = self.history.mixture(previous)
                step -= mixture
            x = self.x + step
            self.promised += rest
            F = self._evaluate(x) if np.isfinite(x).all() else np.full_like(x, np.nan)
            norm = self._norm(F)
        rejected, is_finite = not norm <= self.method.growth_limit * self.best_norm, math.isfinite(norm)
        moved = step
        if rejected:
            x, F, norm, moved = self.best_x, self.best_F, self.best_norm, self.best_x - self.x
            self.is_trusted, self.M = False, None
        self.rejections = self.rejections + 1 if rejected else 0
        self._accept(x, F, norm)
        self.solution.iterations[0] -= rejected  # which is no iteration
        failed = RUNNING if self.rejections < REJECTIONS else STAGNATED if is_finite else NONFINITE
        is_slow = not (rejected or has_halved(norm, previous))
        self._update_status(moved, is_slow=is_slow, failed=failed)
        if self.status != CONVERGED:
            if not rejected:
                self._renew()
            self.age = 0 if rejected else self.age + 1
            whole = self.method.damping
            self.damping = 0.5 * length if rejected else min(2 * length / whole, 1.0) * whole
            with np.errstate(all="ignore"):
                self._learn(step, old_F, rejected)
            if float(self.measure[0]) < self.best_measure:
                self.best_norm = norm
        return {"step_length": np.asarray([0.0 if rejected else length])}

    def _learn(self, step: HostArray, old_F: HostArray, rejected: bool) -> None:
        """Add the step to the history, or drop that where it misleads."""
        self.is_plain = self.is_plain and self.norm <= self.method.contraction * self.last_norm
        self.last_norm, old = self.norm, self.image
        self.image = self._image(self.F)
        if self.is_plain:
            self.mark = self.norm
        elif self._is_misled(rejected) or rejected:
            self.history.clear()
        elif self.history.memory:
            self.history.append(self.F - old_F, step - self.damping * (self.image - old), self.F)

    def _is_misled(self, rejected: bool) -> bool:
        """Whether ||F|| does not fall as the mixtures predict."""
        if rejected or has_fallen(self.norm, self.mark):
            self.mark, self.idle, self.promised = self.norm, 0, 0.0
            return False
        self.idle += 1
        if not is_misled(self.idle, self.promised):
            return False
        self.mark, self.idle, self.promised = self.norm, 0, 0.0
        return True


class OneHistory:
    """`History` of one system of real NumPy numbers, in vectors."""

    def __init__(self, F: HostArray, norm: float, memory: int, least: float) -> None:
        self.memory, self.least, self.seen = memory, least, 0
        self.order: list[int] = []  # places of the columns, newest first
        self.dF, self.dg = np.empty((2, first_columns(memory), F.size), dtype=F.dtype)
        self.gram, self.onto_F = np.zeros((memory, memory)), np.zeros(memory)
        exponent = max(math.frexp(norm)[1], -1000)  # of a number whose reciprocal is one
        self.scale = math.ldexp(1.0, -exponent) if norm > 0 and abs(exponent) > PLAIN else 1.0

    def clear(self) -> None:
        self.seen, self.order = 0, []

    def append(self, dF: HostArray, dg: HostArray, F: HostArray) -> None:
        """Append the last differences and the newer F."""
        if self.scale != 1:
            dF, F = self.scale * dF, self.scale * F
        j, m = self.seen % self.memory, min(self.seen + 1, self.memory)
        if j == len(self.dF):
            room = np.empty((2, min(self.memory, 2 * j), F.size), dtype=F.dtype)
            room[0, :j], room[1, :j] = self.dF, self.dg
            self.dF, self.dg = room
        self.dF[j], self.dg[j], self.seen = dF, dg, self.seen + 1
        self.order = [j, *(i for i in self.order if i != j)]
        onto_F = (self.dF[:m] @ F).astype(float)
        row = onto_F - self.onto_F[:m]
        row[j] = dF.dot(dF)
        self.gram[j, :m] = self.gram[:m, j] = row
        self.onto_F[:m] = onto_F

    def mixture(self, norm: float) -> tuple[HostArray, float]:
        """The combination of dg that belongs to the one of dF nearest to F, which has this norm, and what is left."""
        weights = np.zeros(min(self.seen, self.memory), dtype=self.dg.dtype)
        while self.order:  # each time with one less
            order = np.asarray(self.order)
            right, A = self.onto_F[order], self.gram[order[:, None], order]
            scale = np.sqrt(A.diagonal())
            L, failed = lapack.dpotrf(A / (scale[:, None] * scale), lower=1)
            sound = L.diagonal()[: failed - 1 if failed else order.size] ** 2 > self.least
            if sound.size == order.size and sound.all():
                z = lapack.dpotrs(L, right / scale, lower=1)[0] / scale
                weights[order] = z
                rest = 1.0 - z.dot(right) / (self.scale * norm) ** 2
                return weights @ self.dg[: weights.size], math.sqrt(max(rest, 0.0))
            del self.order[sound.size if sound.all() else int(sound.argmin())]
        return np.zeros_like(self.dg[0]), 1.0
