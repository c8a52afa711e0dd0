"""NewtonKrylov: the outer loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import array_namespace, eps, gather, norm2, norm_max, scatter
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.krylov import KrylovMethod, KrylovOutcome
from implicitsolve.monitor import Monitor, silent
from implicitsolve.newton._direction import FixedMethod, GrowingSpace
from implicitsolve.newton._forcing import EisenstatWalker, Forcing
from implicitsolve.newton._line_search import Backtracking, FullStep, LineSearch, Searched
from implicitsolve.operators import LinearOperator
from implicitsolve.result import NewtonStep
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop, check_limit, check_tolerance

PATIENCE = 20  # accepted steps without a new best residual after which a system has stagnated
NEW_BEST = 0.99  # fraction of the best norm so far that counts as a new best
POOR_STEP = 0.5  # reduction of ||F|| that an accurate direction ought to bring: Newton's is quadratic near a root
ACCURATE = 1e-3  # relative linear residual below which a better direction would not help a failed line search
DIVERGED = 1e12  # growth of ||F|| over its start that is called divergence
CAUTIOUS_GROWTH = 10.0**0.5  # of ||F|| that the second attempt at a system may accept
PER_SYSTEM = ("rows", "norms", "start_norms", "measure", "target", "eta", "best", "since", "attempts", "limit", "code")
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
    preconditioner : LinearOperator, array or callable, optional
        Approximates J^-1 on one state or batch of states; or ``preconditioner(x, F)`` returns such an operator in each
        step.
    rdiff : float, optional
        Relative step of difference products, for problems without `jvp`. Default sqrt(eps).
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
    restarts: int = 1

    def __post_init__(self) -> None:
        """Check the settings."""
        check_limit("NewtonKrylov", "max_krylov", self.max_krylov, least=1)
        check_limit("NewtonKrylov", "recycle", self.recycle)
        check_limit("NewtonKrylov", "restarts", self.restarts)
        if self.rdiff is not None:
            check_tolerance("NewtonKrylov", "rdiff", self.rdiff)
            if self.rdiff == 0:
                raise ValueError("NewtonKrylov: `rdiff` must be positive, got 0")
        for name, method in (("krylov", "solve"), ("forcing", "next"), ("line_search", "search")):
            part = getattr(self, name)
            if part is None and name == "krylov":
                continue
            if isinstance(part, type) or not callable(getattr(part, method, None)):
                raise TypeError(f"NewtonKrylov: `{name}` must have a method `{method}`, got {part!r}")

    def solve(self, evaluator: Evaluator, x0: Array, stop: NonlinearStop, monitor: Monitor = silent) -> Solution:
        """Solve on arrays (B, N): the loop behind `root`."""
        start = Solution.at(x0)
        first = _Loop(self, evaluator, start, stop, monitor).run()
        again = np.isin(first.status, (Status.STAGNATED, Status.LINE_SEARCH_FAILED)) & (first.iterations > 0)
        if not again.any() or not self.restarts or isinstance(self.line_search, FullStep):
            return first
        rows = np.flatnonzero(again)
        search = Backtracking()
        if isinstance(self.line_search, Backtracking):
            search = replace(self.line_search, growth=CAUTIOUS_GROWTH)
        other = replace(self, line_search=search)
        second = _Loop(other, evaluator, first.restarted(rows, x0), stop, monitor, rows).run()
        return first.improved(rows, second)


@dataclass
class Solution:
    """Where every system of a batch ended, or begins, on arrays (B, N) and host arrays (B,)."""

    x: Array
    F: Array
    status: HostArray
    norm: HostArray
    first_norm: HostArray
    iterations: HostArray
    krylov_iterations: HostArray
    steps: list[NewtonStep]

    @classmethod
    def at(cls, x0: Array) -> Solution:
        """Every system at its start."""
        xp, B = array_namespace(x0), x0.shape[0]
        return cls(
            x=xp.asarray(x0, copy=True),
            F=xp.zeros_like(x0),
            status=np.zeros(B, dtype=int),
            norm=np.zeros(B),
            first_norm=np.zeros(B),
            iterations=np.zeros(B, dtype=int),
            krylov_iterations=np.zeros(B, dtype=int),
            steps=[],
        )

    def restarted(self, rows: Indices, x0: Array) -> Solution:
        """Some systems back at their start, the others where they ended."""
        xp = array_namespace(x0)
        x, F = xp.asarray(self.x, copy=True), xp.asarray(self.F, copy=True)
        scatter(x, rows, gather(x0, rows))
        host = {
            name: getattr(self, name).copy()
            for name in ("status", "norm", "first_norm", "iterations", "krylov_iterations")
        }
        return Solution(x=x, F=F, steps=list(self.steps), **host)

    def improved(self, rows: Indices, other: Solution) -> Solution:
        """Take over what a second attempt at some systems made better."""
        with np.errstate(invalid="ignore"):
            is_better = (other.norm[rows] < self.norm[rows]) | (other.status[rows] == Status.CONVERGED)
        better = rows[is_better]
        scatter(self.x, better, gather(other.x, better))
        scatter(self.F, better, gather(other.F, better))
        self.norm[better], self.status[better] = other.norm[better], other.status[better]
        self.iterations, self.krylov_iterations = other.iterations, other.krylov_iterations
        self.steps = other.steps
        return self


class _Loop:
    """State of one solve. Arrays hold the running systems only; `rows` are their places in the batch."""

    def __init__(
        self,
        method: NewtonKrylov,
        evaluator: Evaluator,
        solution: Solution,
        stop: NonlinearStop,
        monitor: Monitor,
        rows: Indices | None = None,
    ) -> None:
        self.method, self.stop, self.monitor = method, stop, monitor
        self.whole, self.solution = evaluator, solution
        self.is_retry = rows is not None
        self.rows = np.arange(solution.status.size) if rows is None else rows
        self.evaluator = evaluator if rows is None else evaluator.take(rows, solution.x)
        self.x = gather(solution.x, self.rows)
        self.F, self.J = self.evaluator.trial(self.x)
        self.norms = norm2(self.F)
        self.measure = stop.measure(self.F, evaluator.event_shape)
        size = self.rows.size
        self.target = stop.target(self.measure, self.F)
        self.eta = method.forcing.first(size)
        self.start_norms = self.norms.copy()
        self.best, self.since = self.measure.copy(), np.zeros(size, dtype=int)
        self.attempts = np.zeros(size, dtype=int)
        self.limit = stop.max_iterations - solution.iterations[self.rows]  # a second attempt has what the first left
        self.code = np.where(np.isfinite(self.norms), int(Status.RUNNING), int(Status.NONFINITE))
        self.code[(self.limit <= 0) & (self.code == Status.RUNNING)] = Status.ITERATION_LIMIT
        self.code[stop.holds(self.measure, self.target, self.x, None) | (self.norms == 0)] = Status.CONVERGED
        solution.first_norm[self.rows] = self.measure
        self.linear = (
            GrowingSpace(method.max_krylov, method.recycle, size)
            if method.krylov is None
            else FixedMethod(method.krylov, method.max_krylov)
        )

    def run(self) -> Solution:
        """Step until every system has ended."""
        before = iteration = self.solution.steps[-1].iteration if self.is_retry else 0
        if not self.is_retry:
            self._report(0)
        self._retire()
        while self.rows.size:
            iteration += 1
            self._step(iteration, is_last=iteration - before >= self.limit)
            self._retire()
        return self.solution

    def _step(self, iteration: int, is_last: HostArray) -> None:
        """Direction, line search and verdict, for all running systems."""
        evaluator = self.evaluator
        evaluator.length.follow(evaluator.rows, norm2(self.x))
        if self.J is None:
            self.J = evaluator.jacobian(self.x, self.F)
        eta = self._forcing()
        M = self._preconditioner()
        outcome = self.linear.direction(self.J, self.F, self.norms, eta, M)
        linear_residual = outcome.residual_norm / np.where(self.norms > 0, self.norms, 1.0)
        found = self.method.line_search.search(
            evaluator, self.x, self.F, self.norms, outcome.x, linear_residual, self.linear.correction
        )
        with np.errstate(all="ignore"):
            moved = found.x - self.x
            is_still = norm_max(moved) <= eps(evaluator.xp, self.x.dtype) * norm_max(found.x)
        previous, self.norms = self.norms, found.norms
        self.x, self.F = found.x, found.F
        self.J = found.jacobian if found.accepted.any() else self.J
        self.measure = self.stop.measure(self.F, evaluator.event_shape)
        self.solution.iterations[self.rows] += found.accepted
        self.solution.krylov_iterations[self.rows] += outcome.iterations
        self._judge(found, outcome, moved, is_still, linear_residual, is_last)
        self.eta = self._next_eta(eta, previous, linear_residual, found)
        self._report(iteration, found.length, eta, linear_residual, outcome)

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

    def _judge(
        self,
        found: Searched,
        outcome: KrylovOutcome,
        moved: Array,
        is_still: HostArray,
        linear_residual: HostArray,
        is_last: HostArray,
    ) -> None:
        """Set the status of systems that have ended; a later line overrules an earlier one, and convergence all."""
        is_best = self.measure < NEW_BEST * self.best
        self.since = np.where(is_best, 0, self.since + 1)
        self.best = np.minimum(self.best, self.measure)
        self.attempts = np.where(found.accepted, 0, self.attempts + 1)
        code = self.code
        code[is_last] = Status.ITERATION_LIMIT
        code[self.since >= PATIENCE] = Status.STAGNATED
        code[found.accepted & is_still] = Status.STAGNATED
        with np.errstate(over="ignore"):
            code[self.norms > DIVERGED * self.start_norms] = Status.DIVERGED
        hopeless = ~found.accepted & ((self.attempts > RETRIES) | (linear_residual <= ACCURATE))
        code[hopeless] = np.where(found.finite, int(Status.LINE_SEARCH_FAILED), int(Status.NONFINITE))[hopeless]
        empty = ~(norm_max(outcome.x) > 0)
        code[empty] = Status.LINEAR_SOLVE_FAILED
        code[empty & (outcome.status == Status.BREAKDOWN)] = Status.SINGULAR
        code[empty & (outcome.status == Status.NONFINITE)] = Status.NONFINITE
        code[self.stop.holds(self.measure, self.target, self.x, moved) | (self.norms == 0)] = Status.CONVERGED

    def _retire(self) -> None:
        """Store the systems that have ended and go on with the others."""
        ended = np.flatnonzero(self.code != Status.RUNNING)
        if not ended.size:
            return
        rows, solution = self.rows[ended], self.solution
        scatter(solution.x, rows, gather(self.x, ended))
        scatter(solution.F, rows, gather(self.F, ended))
        solution.status[rows], solution.norm[rows] = self.code[ended], self.measure[ended]
        keep = np.flatnonzero(self.code == Status.RUNNING)
        if keep.size:
            self.evaluator = self.evaluator.take(keep, self.x)
            self.J = None if self.J is None else self.J.take(keep)
            self.linear.take(keep)
            self.x, self.F = gather(self.x, keep), gather(self.F, keep)
        for name in PER_SYSTEM:
            setattr(self, name, getattr(self, name)[keep])

    def _preconditioner(self) -> LinearOperator | None:
        """The user's M for the running systems, on arrays (b, N)."""
        M = self.method.preconditioner
        if M is None:
            return None
        whole = self.whole
        if callable(M) and not hasattr(M, "matvec"):
            x, F = self._everything()
            M = M(whole.unflatten(x), whole.unflatten(F))
        flat = whole.operator(M, "preconditioner")
        return flat if self.rows.size == self.solution.status.size else flat.take(self.rows)

    def _everything(self) -> tuple[Array, Array]:
        """Copies of x and F of the whole batch."""
        xp = array_namespace(self.x)
        x, F = xp.asarray(self.solution.x, copy=True), xp.asarray(self.solution.F, copy=True)
        scatter(x, self.rows, self.x)
        scatter(F, self.rows, self.F)
        return x, F

    def _report(
        self,
        iteration: int,
        length: HostArray | None = None,
        eta: HostArray | None = None,
        linear_residual: HostArray | None = None,
        outcome: KrylovOutcome | None = None,
    ) -> None:
        """Add a step to the trace and show it to the monitor."""
        details: dict[str, HostArray] = {}
        if length is not None and eta is not None and linear_residual is not None and outcome is not None:
            details = {
                "step_length": length,
                "forcing": eta,
                "linear_residual": linear_residual,
                "krylov_iterations": outcome.iterations,
                "linear_status": outcome.status,
            }
        step = NewtonStep(
            iteration=iteration,
            systems=self.rows.copy(),
            residual_norm=self.measure.copy(),
            running=int((self.code == Status.RUNNING).sum()),
            counts=self.evaluator.tally.counts(),
            **details,
        )
        self.solution.steps.append(step)
        if self.monitor is not silent:
            x, F = self._everything()
            self.monitor(step, self.whole.unflatten(x), self.whole.unflatten(F))
