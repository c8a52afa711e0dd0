"""NewtonKrylov, and its steps for one system in vectors and plain numbers, as those of `KrylovLoop`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.errors import ChecksKeywords
from implicitsolve.globalize._line_search import Backtracking, EisenstatWalker, Forcing, LineSearch, SearchResult
from implicitsolve.globalize._rules import armijo_ratio, forcing_term, has_halved, tighten
from implicitsolve.globalize._searches import Dogleg
from implicitsolve.krylov import KrylovMethod
from implicitsolve.krylov._recycling import RecycledSpace, RecyclingGMRES
from implicitsolve.linearize._difference_product import difference_product_of_one
from implicitsolve.nonlinear._convergence import CONVERGED, LINE_SEARCH_FAILED, NONFINITE, RUNNING, SINGULAR
from implicitsolve.nonlinear._direction import LARGEST_ETA, OneRecyclingGMRES
from implicitsolve.nonlinear._krylov_loop import MAX_KRYLOV, KrylovLoop, jacobian_at
from implicitsolve.nonlinear._loop import WHOLE
from implicitsolve.nonlinear._one_system import NO_STEP, OneSystem
from implicitsolve.nonlinear._plan import STUCK, Stage, run
from implicitsolve.nonlinear._state import Solution, SolveContext
from implicitsolve.status import Status
from implicitsolve.stopping import check_choice, check_flag, check_kind, check_limit, check_rdiff, kind_of

SMALL = 256  # unknowns up to which a third search is tried: it solves hard small problems
DOGLEG = Dogleg()
FIRST_MEMORY, LEAST_FIRST = 2**16, 40  # entries and vectors of the first space; 60 took up to 2.3 times the products


class OneKrylovSystem(OneSystem):
    """The steps of `NewtonKrylov` with recycling GMRES, products by `jvp` or differences, and `Backtracking`."""

    def __init__(
        self, method: Any, linear: OneRecyclingGMRES, context: SolveContext, solution: Solution, *, is_retry: bool
    ) -> None:
        super().__init__(context, solution, is_retry=is_retry)
        self.method, self.linear = method, linear
        self.eta = float(method.forcing.first(1)[0])
        self.J: Any = None
        self.jacobians = context.jacobians

    @staticmethod
    def applies(method: Any, context: SolveContext, x0: Any) -> bool:
        """Whether it has the steps that these settings and this problem require."""
        problem = context.evaluator.problem
        is_default = method.krylov is None and method.krylov_dtype is None and method.preconditioner is None
        has_products = problem.jac is None and problem.blocks is None and not context.evaluator.offers_inverse
        searches = type(method.line_search) is Backtracking
        return is_default and has_products and searches and OneSystem.suits(context, x0)

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
            self._note_failure(found, linear_status, iterations)
        self._choose_eta(previous, linear_residual, is_accepted)
        return traced

    def _move(self, found: SearchResult, step: HostArray) -> None:
        """Take over the point of an accepted step."""
        self.J = None
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
        limit = max(1, self.budget.rest_of_one())
        solved = self.linear.direction(self.J, self.F, self.norm, self.eta, limit)
        self.since -= int(self.linear.grew)  # a larger space may solve what this one could not
        return solved

    def _products(self) -> Callable[[HostArray], HostArray]:
        evaluator, x, F = self.evaluator, self.x, self.F
        if evaluator.has_exact_products or (self.jacobians is not None and self.jacobians.saves_products):
            matvec = jacobian_at(evaluator, self.jacobians, x[None], F[None]).matvec
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

    def _note_failure(self, found: SearchResult | None, linear_status: int, iterations: int) -> None:
        """End a system whose line search, or whose linear solve, has failed for good."""
        failed = RUNNING
        if found is None and self.linear.grew:  # GMRES may make no progress before its last vector
            self.budget.refund(self.evaluator.rows * 0, iterations)
        elif found is None:
            failures = {int(Status.BREAKDOWN): SINGULAR, NONFINITE: NONFINITE}
            failed = failures.get(linear_status, int(Status.LINEAR_SOLVE_FAILED))
        else:
            failed = LINE_SEARCH_FAILED if found.finite[0] else NONFINITE
        self._update_status(np.zeros_like(self.x), is_slow=False, failed=failed)

    def _choose_eta(self, previous: float, linear_residual: float, is_accepted: bool) -> None:
        """Eta of the forcing rule; ten times smaller where an accurate direction did not help."""
        eta = self.eta
        chosen = self.method.forcing.next(np.asarray([eta]), np.asarray([self.norm]), np.asarray([previous]))
        self.eta = float(chosen[0])
        if not is_accepted or (not has_halved(self.norm, previous) and linear_residual <= eta):
            self.eta = tighten(self.eta, eta, self.unit)


@dataclass(frozen=True, kw_only=True)
class NewtonKrylov(ChecksKeywords):
    """Inexact Newton method whose linear systems are solved by a Krylov method, for each system of a batch.

    Parameters
    ----------
    krylov : GMRES, LGMRES, BiCGSTAB, ... or None, optional
        The linear method. The default None is GMRES whose space grows when it was too small, preconditioned by
        vectors recycled from the Krylov spaces of earlier Newton steps [1]_; it needs the fewest products.
    max_krylov : int, optional
        Krylov iterations of one linear solve. With ``krylov=None`` the first size of the space, which doubles, to at
        most 400 vectors or the room that the notes describe, whenever it did not suffice. Default 60; with
        ``krylov=None`` as many as hold 65,536 entries, between 40 (beyond 1,638 unknowns) and 60.
    recycle : int, optional
        With ``krylov=None``: pairs of vectors kept from earlier steps at most, within 4 MiB or 20 pairs, and a quarter
        of the room; 0 for none. Default 200. Recycling begins once a solve has taken more than 8 iterations (at once
        for at most 256 unknowns).
    forcing : EisenstatWalker or ConstantForcing, optional
        Accuracy of the linear solves.
    line_search : Backtracking, Dogleg, FullStep or Wolfe, optional
        How far to go along each direction.
    preconditioner : optional
        One of `implicitsolve.precondition` or `BlockLU`, for problems with a declared structure: it is built from the
        assembled J and reused while it is effective (`Lagged`). Or what approximates J^-1 on one state or batch of
        states: an operator, an array or a sparse matrix; factors such as ``splu(A)``; a hierarchy of pyamg; a function
        of one argument, ``r -> z``. Or a function of two, ``preconditioner(x, F)``, that returns any of these in each
        step.
    rdiff : float, optional
        Relative step of difference products, for problems without `jvp`. Default sqrt(eps).
    krylov_dtype : {None, "float32"}, optional
        Precision of the Krylov spaces and of products with J, where J can compute them so (`LinearOperator.astype`, as
        the adapters' can): half the time and memory for a float64 x. Residuals and x keep their own precision, and so
        does the solution; only the direction is rough, to 1e-5 at best. Default: that of x.
    retry : bool, optional
        Whether a system that stagnates or whose line search fails begins again at x0: in a trust region (`Dogleg`), and
        then, up to 256 unknowns, with a more cautious line search (`LineSearch.cautious`). Default True: it costs only
        where the first attempt has failed.

    Notes
    -----
    Each system has its own Krylov space, forcing term, step length and status; those that have ended leave the arrays.
    Where a step has not halved ||F|| although its linear system was solved to the forcing term, the next is solved ten
    times as accurately. A system has stagnated after 20 steps in which neither the norm of the stopping rule nor
    ||F||_2 fell to 0.99 of its least value, after 3 such steps that took 200 iterations, and by the rule of
    `NonlinearStop.max_evaluations`.

    Memory: a Krylov vector and a recycled pair take two vectors each, and all of them together 42 million numbers (336
    MB in float64), or 42 vectors if these are more; the loop holds 18 further ones. So a solve with 10^6 unknowns and
    more takes at most 60 vectors. More unknowns leave less room, and the solve takes more products.

    References
    ----------
    .. [1] D. Loghin, D. Ruiz and A. Touhami, "Adaptive preconditioners for nonlinear systems of equations",
           J. Comput. Appl. Math. 189 (2006) 362-374.

    Examples
    --------
    >>> method = ims.NewtonKrylov(krylov=ims.BiCGSTAB(), max_krylov=40)
    >>> ims.root(ims.Problem(lambda x: x**3 - 8), np.ones(2), method=method).x.round(8)
    array([2., 2.])
    """

    krylov: KrylovMethod | None = None
    max_krylov: int | None = None
    recycle: int = 200
    forcing: Forcing = EisenstatWalker()
    line_search: LineSearch = Backtracking()
    preconditioner: Any = None
    rdiff: float | None = None
    krylov_dtype: str | None = None
    retry: bool = True

    kind: ClassVar[str] = "nonlinear"
    keeps_bounds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.max_krylov is not None:
            check_limit("NewtonKrylov", "max_krylov", self.max_krylov, least=1)
        check_limit("NewtonKrylov", "recycle", self.recycle)
        check_flag("NewtonKrylov", "retry", self.retry)
        check_rdiff("NewtonKrylov", self.rdiff)
        check_choice("NewtonKrylov", "krylov_dtype", self.krylov_dtype, (None, "float32"))
        if self.krylov is not None and kind_of(self.krylov) != "krylov":
            raise TypeError(f"NewtonKrylov: `krylov` must be GMRES() or another Krylov method, got {self.krylov!r}")
        check_kind("NewtonKrylov", "forcing", self.forcing, "forcing")
        check_kind("NewtonKrylov", "line_search", self.line_search, "line search")

    @property
    def may_transform(self) -> bool:
        """Whether the linear systems may be preconditioned by the approximate inverse that J offers."""
        return self.krylov is None or self.krylov.may_transform

    @property
    def eliminates(self) -> bool:
        """Whether every second block may be eliminated first; a preconditioner was made for all of them."""
        return self.preconditioner is None and self.may_transform

    def stages(self, context: SolveContext, x0: Array) -> Sequence[Stage]:
        """The search along steps; a trust region where that fails, and for few unknowns a cautious search."""
        once, cautious = replace(self, retry=False), self.line_search.cautious()
        if not self.retry or cautious is None:
            return [Stage(method=once)]
        others = (DOGLEG, cautious) if x0.shape[1] <= SMALL else (DOGLEG,)
        return [Stage(method=once), *(Stage(method=replace(once, line_search=s), when=STUCK) for s in others)]

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        if self.retry and rows is None:
            return run(self.stages(context, start.x), context, start)
        if OneKrylovSystem.applies(self, context, start.x):
            space = context.previous.space if self.recycle and rows is None else None
            linear = OneRecyclingGMRES(self.first_columns(context.evaluator.size), self.recycle, space)
            return OneKrylovSystem(self, linear, context, start, is_retry=rows is not None).run()
        return KrylovLoop(self, context, start, rows).run()

    def first_columns(self, size: int) -> int:
        """Krylov vectors of the first solves of systems of this size."""
        return self.max_krylov or max(LEAST_FIRST, min(MAX_KRYLOV, FIRST_MEMORY // size))

    def recycling(self, size: int, systems: int, space: RecycledSpace | None) -> RecyclingGMRES:
        """The default linear method for systems of this size, with the spaces of an earlier solve."""
        is_single = self.krylov_dtype is not None
        needs_descent = self.line_search.needs_descent and not is_single
        space = space if self.recycle and not is_single else None
        return RecyclingGMRES(self.first_columns(size), self.recycle, systems, space, needs_descent)


PRODUCTS = NewtonKrylov(retry=False)  # a stage of "auto"
