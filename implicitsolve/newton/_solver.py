"""NewtonKrylov: the outer loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import eps, norm2, norm_max
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.krylov import KrylovMethod, KrylovOutcome
from implicitsolve.monitor import Monitor, silent
from implicitsolve.newton._direction import FixedMethod, GrowingSpace, SinglePrecision
from implicitsolve.newton._forcing import EisenstatWalker, Forcing
from implicitsolve.newton._lagged import lagged
from implicitsolve.newton._line_search import Backtracking, FullStep, LineSearch, Searched
from implicitsolve.newton._loop import NewtonLoop, Solution
from implicitsolve.operators import LinearOperator
from implicitsolve.operators._stacked import stacked
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop, check_limit, check_part, check_rdiff

POOR_STEP = 0.5  # reduction of ||F|| that an accurate direction ought to bring: Newton's is quadratic near a root
ACCURATE = 1e-3  # relative linear residual below which a better direction would not help a failed line search
CAUTIOUS_GROWTH = 10.0**0.5  # of ||F|| that the second attempt at a system may accept
RETRIES = 3  # more accurate directions that are tried at one point before its line search has failed


@dataclass(frozen=True, kw_only=True)
class NewtonKrylov:
    """Inexact Newton method whose linear systems are solved by a Krylov method, for each system of a batch.

    Parameters
    ----------
    krylov : GMRES, LGMRES, BiCGSTAB, ... or None, optional
        The linear method. The default None is GMRES whose space grows when it was too small, preconditioned by what
        the Krylov spaces of earlier Newton steps have learnt of J [1]_; it needs the fewest products.
    max_krylov : int, optional
        Krylov iterations of one linear solve. With ``krylov=None`` it is where the space begins, and it doubles, to at
        most 400 vectors or 1 GiB, whenever that did not suffice. Default 60.
    recycle : int, optional
        With ``krylov=None``: most pairs of vectors kept from earlier steps, within 16 MiB; 0 for none. Default 200.
        It begins once a solve has taken more than 8 iterations (at once for at most 256 unknowns).
    forcing : EisenstatWalker or ConstantForcing, optional
        Accuracy of the linear solves.
    line_search : Backtracking, FullStep or Wolfe, optional
        How far to go along each direction.
    preconditioner : optional
        One of `implicitsolve.precondition` or `BlockLU`, for problems with a declared structure: it is built from the
        assembled J and kept while it serves (`Lagged`). Or an operator or array that approximates J^-1 on one state or
        batch of states; or a function ``preconditioner(x, F)`` that returns such an operator in each step.
    rdiff : float, optional
        Relative step of difference products, for problems without `jvp`. Default sqrt(eps).
    products : {None, "float32"}, optional
        Precision of the Krylov spaces and of products with J, where J can compute them so (`LinearOperator.astype`, as
        the adapters' can): half the time and memory for a float64 x. Residuals and x keep their own precision, and so
        does the solution; only the direction is rough, to 1e-5 at best. Default: that of x.
    restarts : int, optional
        When a system stagnates or its line search fails, begin again at x0 with another line search, this many times (0
        or 1); not after `FullStep`. Default 1: hard small problems need it, and it costs only where all was lost.

    Notes
    -----
    Each system has its own Krylov space, forcing term, step length and status; those that have ended leave the arrays.
    Where a step has not halved ||F|| although its linear system was solved as asked, the next one is solved ten times
    as accurately.

    Memory per system with the defaults, in vectors: 2 m for a space of m, and 4 r for r recycled pairs.

    References
    ----------
    .. [1] D. Loghin, D. Ruiz and A. Touhami, "Adaptive preconditioners for nonlinear systems of equations",
           J. Comput. Appl. Math. 189 (2006) 362-374.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> method = ims.NewtonKrylov(krylov=ims.BiCGSTAB(), max_krylov=40)
    >>> ims.root(ims.Problem(lambda x: x**3 - 8), np.ones(2), method=method).x.round(8)
    array([2., 2.])
    """

    krylov: KrylovMethod | None = None
    max_krylov: int = 60
    recycle: int = 200
    forcing: Forcing = EisenstatWalker()
    line_search: LineSearch = Backtracking()
    preconditioner: Any = None
    rdiff: float | None = None
    products: str | None = None
    restarts: int = 1

    def __post_init__(self) -> None:
        """Check the settings."""
        check_limit("NewtonKrylov", "max_krylov", self.max_krylov, least=1)
        check_limit("NewtonKrylov", "recycle", self.recycle)
        check_limit("NewtonKrylov", "restarts", self.restarts)
        check_rdiff("NewtonKrylov", self.rdiff)
        if self.products not in (None, "float32"):
            raise ValueError(f'NewtonKrylov: `products` must be None or "float32", got {self.products!r}')
        if self.krylov is not None:
            check_part("NewtonKrylov", "krylov", self.krylov, "solve")
        check_part("NewtonKrylov", "forcing", self.forcing, "next")
        check_part("NewtonKrylov", "line_search", self.line_search, "search")

    @property
    def eliminates(self) -> bool:
        """Whether every second block may be eliminated first; a preconditioner was made for all of them."""
        return self.preconditioner is None and not getattr(self.krylov, "is_unaided", False)

    def solve(self, evaluator: Evaluator, x0: Array, stop: NonlinearStop, monitor: Monitor = silent) -> Solution:
        """Solve on arrays (B, N): the loop behind `root`."""
        start = Solution.at(x0)
        first = _KrylovLoop(self, evaluator, start, stop, monitor).run()
        again = (first.status == Status.STAGNATED) | (first.status == Status.LINE_SEARCH_FAILED)
        again &= first.iterations > 0
        if not again.any() or not self.restarts or isinstance(self.line_search, FullStep):
            return first
        rows = np.flatnonzero(again)
        search = Backtracking()
        if isinstance(self.line_search, Backtracking):
            search = replace(self.line_search, growth=CAUTIOUS_GROWTH)
        return replace(self, line_search=search).retry(evaluator, x0, first, rows, stop, monitor)

    def retry(
        self, evaluator: Evaluator, x0: Array, first: Solution, rows: Indices, stop: NonlinearStop, monitor: Monitor
    ) -> Solution:
        """Begin again at x0 with some systems of a solve, and take over what became better."""
        second = _KrylovLoop(self, evaluator, first.restarted(rows, x0), stop, monitor, rows).run()
        return first.improved(rows, second)


class _KrylovLoop(NewtonLoop):
    """A Newton loop whose directions come from a Krylov method."""

    PER_SYSTEM = (*NewtonLoop.PER_SYSTEM, "eta", "attempts")
    JOINS = True

    def __init__(
        self,
        method: NewtonKrylov,
        evaluator: Evaluator,
        solution: Solution,
        stop: NonlinearStop,
        monitor: Monitor,
        rows: Indices | None = None,
    ) -> None:
        self.J: LinearOperator | None = None
        self.x_norms: HostArray | None = None  # ||x||_2, where they have come with other numbers
        super().__init__(method, evaluator, solution, stop, monitor, rows)
        self.eta = method.forcing.first(self.rows.size)
        self.attempts = np.zeros(self.rows.size, dtype=int)
        self.lagged = lagged(method.preconditioner, evaluator, self.rows.size)
        linear = (
            GrowingSpace(method.max_krylov, method.recycle, self.rows.size)
            if method.krylov is None
            else FixedMethod(method.krylov, method.max_krylov)
        )
        self.linear = linear if method.products is None else SinglePrecision(linear)

    def _first_residual(self) -> Array:
        F, self.J = self.evaluator.trial(self.x)
        return F

    def _step(self, iteration: int, is_last: HostArray) -> None:
        evaluator = self.evaluator
        if not evaluator.has_exact_products:
            evaluator.length.follow(evaluator.rows, norm2(self.x) if self.x_norms is None else self.x_norms)
        if self.J is None:
            self.J = evaluator.jacobian(self.x, self.F)
        eta = self._forcing()
        M = self._preconditioner()
        limit = None if self.lagged is None else self.lagged.limit
        outcome = self.linear.direction(self.J, self.F, self.norms, eta, M, limit)
        linear_residual = outcome.residual_norm / np.where(self.norms > 0, self.norms, 1.0)
        previous = self.norms
        found = self.method.line_search.search(
            evaluator, self.x, self.F, previous, outcome.x, linear_residual, self.linear.correction
        )
        size = norm_max(outcome.x) if found.measured is None else found.measured.largest(1)
        found.accepted &= size > 0  # no step is none, though ||F|| has not grown
        self.J = found.jacobian if found.accepted.any() else self.J
        measured = None if isinstance(self.x, np.ndarray) else found.measured
        self.x_norms = None if measured is None else measured.two(2)
        moved, is_still = self._move(found, outcome.x)
        self.solution.krylov_iterations[self.rows] += outcome.iterations
        self._judge(found, moved, is_still, is_last, self._failed(found, outcome, size, linear_residual))
        if self.lagged is not None:
            self.lagged.see(outcome.iterations)
        self.eta = self._next_eta(eta, previous, linear_residual, found)
        self._report(
            iteration,
            step_length=np.where(found.accepted, found.length, 0.0),
            forcing=eta,
            linear_residual=linear_residual,
            krylov_iterations=outcome.iterations,
            linear_status=outcome.status,
        )

    def _failed(
        self, found: Searched, outcome: KrylovOutcome, size: HostArray, linear_residual: HostArray
    ) -> HostArray:
        """Status of systems whose line search or linear solve failed for good."""
        self.attempts = np.where(found.accepted, 0, self.attempts + 1)
        failed = np.full(self.rows.size, int(Status.RUNNING))
        hopeless = ~found.accepted & ((self.attempts > RETRIES) | (linear_residual <= ACCURATE))
        failed[hopeless] = np.where(found.finite, int(Status.LINE_SEARCH_FAILED), int(Status.NONFINITE))[hopeless]
        empty = ~(size > 0)
        if self.lagged is not None:
            old = self.lagged.expire(empty | hopeless)
            failed[old] = Status.RUNNING
            empty &= ~old
        growing = empty & self.linear.grew  # GMRES may bring nothing before its last vector
        failed[growing] = Status.RUNNING
        empty &= ~growing
        failed[empty] = Status.LINEAR_SOLVE_FAILED
        failed[empty & (outcome.status == Status.BREAKDOWN)] = Status.SINGULAR
        failed[empty & (outcome.status == Status.NONFINITE)] = Status.NONFINITE
        return failed

    def _keep(self, keep: Indices) -> None:
        if self.lagged is not None:
            self.lagged.take(keep)
        self.J = None if self.J is None else self.J.take(keep)
        self.x_norms = None if self.x_norms is None else self.x_norms[keep]
        self.linear.take(keep)

    def _join(self, other: Any) -> None:
        if self.lagged is not None:
            self.lagged.join(other.lagged)
        self.J, self.x_norms = None if self.J is None or other.J is None else stacked([self.J, other.J]), None
        self.linear.join(other.linear)

    def _forcing(self) -> HostArray:
        """Eta, but never more accuracy than the stopping rule needs."""
        with np.errstate(all="ignore"):
            floor = np.where(self.measure > self.target, 0.5 * self.target / self.measure, 0.0)
        return np.minimum(np.maximum(self.eta, floor), 0.9)

    def _next_eta(self, eta: HostArray, previous: HostArray, linear_residual: HostArray, found: Searched) -> HostArray:
        """Eta of the forcing rule; ten times smaller where an accurate direction did not help."""
        chosen = self.method.forcing.next(eta, self.norms, previous)
        slow = ~(self.norms < POOR_STEP * previous) & (linear_residual <= eta)
        least = max(1e-6, 100 * eps(self.evaluator.xp, self.x.dtype))
        tighter = np.maximum(0.1 * np.minimum(eta, 0.1), least)
        return np.where(slow | ~found.accepted, np.minimum(chosen, tighter), chosen)

    def _preconditioner(self) -> LinearOperator | None:
        """The user's M for the running systems, on arrays (b, N)."""
        if self.lagged is not None:
            return self.lagged.operator(self.evaluator, self.x, self.F)
        M, whole = self.method.preconditioner, self.whole
        if M is None:
            if self.J is None or getattr(self.method.krylov, "is_unaided", False):
                return None
            return self.J.approximate_inverse()
        if callable(M) and not hasattr(M, "matvec"):
            x, F = self._everything()
            M = M(whole.unflatten(x), whole.unflatten(F))
        flat = whole.operator(M, "preconditioner")
        return flat if self.rows.size == self.solution.status.size else flat.take(self.rows)
