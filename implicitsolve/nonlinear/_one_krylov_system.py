"""One system solved by `NewtonKrylov`: the steps of `KrylovLoop` in vectors and plain numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.globalize._line_search import Backtracking, SearchResult
from implicitsolve.globalize._rules import armijo_ratio, forcing_term, has_halved, has_search_failed, tighten
from implicitsolve.linearize._difference_product import difference_product_of_one
from implicitsolve.nonlinear._convergence import CONVERGED, LINE_SEARCH_FAILED, NONFINITE, RUNNING, SINGULAR
from implicitsolve.nonlinear._direction import LARGEST_ETA, LEAST_KRYLOV, OneRecyclingGMRES
from implicitsolve.nonlinear._loop import WHOLE
from implicitsolve.nonlinear._one_system import NO_STEP, OneSystem
from implicitsolve.nonlinear._state import Solution, SolveContext
from implicitsolve.status import Status


class OneKrylovSystem(OneSystem):
    """The steps of `NewtonKrylov` with recycling GMRES, products by `jvp` or differences, and `Backtracking`."""

    def __init__(
        self, method: Any, linear: OneRecyclingGMRES, context: SolveContext, solution: Solution, *, is_retry: bool
    ) -> None:
        super().__init__(context, solution, is_retry=is_retry)
        self.method, self.linear = method, linear
        self.eta, self.attempts = float(method.forcing.first(1)[0]), 0
        self.J: Any = None

    @staticmethod
    def applies(method: Any, context: SolveContext, x0: Any) -> bool:
        """Whether it has the steps that these settings and this problem require."""
        problem, is_plain = context.evaluator.problem, type(x0) is np.ndarray and x0.dtype.char in "fd"
        is_default = method.krylov is None and method.krylov_dtype is None and method.preconditioner is None
        has_products = problem.jac is None and problem.blocks is None and not context.evaluator.offers_inverse
        searches = type(method.line_search) is Backtracking
        return is_plain and is_default and has_products and searches and OneSystem.suits(context)

    def run(self) -> Solution:
        """Iterate until the system has ended, and leave the Krylov spaces to later solves."""
        solution = super().run()
        if self.memory.keeps and self.status == CONVERGED:
            self.memory.space = self.linear.space
        return solution

    def _step(self) -> dict[str, Any]:
        step, rest, linear_status, iterations = self._direction()
        previous = self.norm
        linear_residual = rest / previous if previous > 0 else rest
        traced = {
            "step_length": NO_STEP,
            "forcing": np.asarray([self.eta]),
            "linear_residual": np.asarray([linear_residual]),
            "krylov_iterations": np.asarray([iterations]),
            "linear_status": np.asarray([linear_status]),
        }
        self.solution.krylov_iterations[0] += iterations
        found = None
        if 0 < self._norm(step) < math.inf:  # no function is called elsewhere
            found = self._search_along(step, linear_residual)
        is_accepted = found is not None and bool(found.accepted[0])
        if found is not None and is_accepted:
            traced["step_length"] = found.length
            self._move(found, step)
        else:
            self._note_failure(found, linear_residual, linear_status, iterations)
        self._choose_eta(previous, linear_residual, is_accepted)
        return traced

    def _move(self, found: SearchResult, step: HostArray) -> None:
        """Take over the point of an accepted step."""
        self.attempts, self.J = 0, None
        x, norm, previous = found.x[0], float(found.norms[0]), self.norm
        if found.length[0] != 1:
            step = x - self.x
        self._accept(x, found.F[0], norm)
        self._update_status(step, is_slow=not has_halved(norm, previous))

    def _direction(self) -> tuple[HostArray, float, int, int]:
        """Solve for Newton's step, never more accurately than the stopping rule needs."""
        evaluator, measure, target = self.evaluator, float(self.measure[0]), float(self.target[0])
        if not evaluator.has_exact_products:
            evaluator.length.follow(int(evaluator.rows[0]), self._norm(self.x))
        if self.J is None:
            self.J = self._products()
        self.eta = forcing_term(self.eta, measure, target, LARGEST_ETA)
        limit = max(LEAST_KRYLOV, self.budget.rest_of_one())
        solved = self.linear.direction(self.J, self.F, self.norm, self.eta, limit)
        self.since -= int(self.linear.grew)  # a larger space may solve what this one could not
        return solved

    def _products(self) -> Callable[[HostArray], HostArray]:
        """``v -> J(x) v``."""
        evaluator, x, F = self.evaluator, self.x, self.F
        if evaluator.has_exact_products:
            matvec = evaluator.jacobian(x[None], F[None]).matvec
            return lambda v: matvec(v[None])[0]
        evaluator.tally.add("linearizations")
        residual = partial(evaluator.residual_of_one, keep=False)
        return difference_product_of_one(residual, evaluator.length, int(evaluator.rows[0]), x, F)

    def _search_along(self, step: HostArray, linear_residual: float) -> SearchResult:
        """Try the whole step, and search along it if that is not acceptable."""
        with np.errstate(all="ignore"):
            x = self.x + step
        F = self.evaluator.residual_of_one(x)
        norm = self._norm(F)
        if norm <= armijo_ratio(1.0, min(linear_residual, 1.0)) * self.norm:  # NaN is not
            is_finite = np.ones(1, dtype=bool)
            return SearchResult(x[None], F[None], np.asarray([norm]), WHOLE, is_finite, is_finite, None)
        return self._search(step, x, F, norm, linear_residual, self.linear.correction)

    def _note_failure(
        self, found: SearchResult | None, linear_residual: float, linear_status: int, iterations: int
    ) -> None:
        """End a system whose line search, or whose linear solve, has failed for good."""
        self.attempts, failed = self.attempts + 1, RUNNING
        if found is None and self.linear.grew:  # GMRES may make no progress before its last vector
            self.budget.refund(self.evaluator.rows * 0, iterations)
        elif found is None:
            failures = {int(Status.BREAKDOWN): SINGULAR, NONFINITE: NONFINITE}
            failed = failures.get(linear_status, int(Status.LINEAR_SOLVE_FAILED))
        elif has_search_failed(self.attempts, linear_residual):
            failed = LINE_SEARCH_FAILED if found.finite[0] else NONFINITE
        self._update_status(np.zeros_like(self.x), is_slow=False, failed=failed)

    def _choose_eta(self, previous: float, linear_residual: float, is_accepted: bool) -> None:
        """Eta of the forcing rule; ten times smaller where an accurate direction did not help."""
        eta = self.eta
        chosen = self.method.forcing.next(np.asarray([eta]), np.asarray([self.norm]), np.asarray([previous]))
        self.eta = float(chosen[0])
        if not is_accepted or (not has_halved(self.norm, previous) and linear_residual <= eta):
            self.eta = tighten(self.eta, eta, self.unit)
