"""Nonlinear preconditioning: a method solves another system with the same roots, and F alone decides when it ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from implicitsolve._arrays.host import from_host, gather, scatter
from implicitsolve._arrays.namespace import array_namespace, copy_array
from implicitsolve._record import LimitReached, Tally
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels._norms import norm_max
from implicitsolve.linearize._checks import checked_array
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.monitor import Monitor, map_monitor
from implicitsolve.nonlinear._anderson import Anderson
from implicitsolve.nonlinear._state import CONVERGED, NonlinearMethod, Solution, SolveContext, SolveMemory
from implicitsolve.operators import LinearOperator
from implicitsolve.problem import Problem
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop, check_choice, check_kind, check_limit, kind_of

Inner: TypeAlias = Callable[[Array], Array] | NonlinearMethod
ANDERSON = Anderson()


@dataclass(frozen=True, kw_only=True)
class Preconditioned(NonlinearMethod):
    """Precondition nonlinearly: an inner solver M maps x to a better point M(x), and an outer method accelerates it.

    From the left, the outer method solves ``x - M(x) = 0`` [1]_; from the right, ``F(M(y)) = 0``, and x is M(y). With
    `Anderson` outside and from the left this is NGMRES [2]_ up to the residual that is mixed; with `NewtonKrylov`
    outside and a Schwarz method inside, ASPIN [3]_ or RASPEN [4]_; from the right, nonlinear elimination.

    Parameters
    ----------
    inner : callable, Problem, a nonlinear method, or a tuple of methods and callables
        The inner solver M, which must leave the solutions where they are. A callable ``inner(x)`` returns M(x), of the
        shape of x, for the whole batch. A `Problem` has the residual x - M(x) and, with `jvp`, `jac` or `linearize`,
        its exact products; from the left, its residual may be any function with the roots of F, such as G(F(x)). A
        method, such as ``Picard()`` or ``NewtonKrylov()``, takes `sweeps` steps on the problem itself from x. The parts
        of a tuple are applied one after another: ``(SparseNewton(line_search=FullStep()), sweep)`` with ``Picard()``
        outside is a hybrid Newton method for nested models, a Newton step and then a sweep through their parts [1]_.
    outer : nonlinear method, optional
        What solves the preconditioned system. Default ``Anderson()``, which needs no derivatives of M.
    side : {"left", "right"}, optional
        Default "left".
    sweeps : int, optional
        Steps of an inner method in one M(x). Default 1.

    Raises
    ------
    TypeError, ValueError
        If a setting is not usable, `inner` returns something else than an array like x, or it has another `batch_ndim`.

    Notes
    -----
    Whatever is iterated, `stop` is tested on the problem's own F, and a system has converged when a fresh residual at
    the returned x satisfies it. A root of the preconditioned system that is not one of F ends as STAGNATED. The trace
    and the monitor show the norms of F; systems that fail end at the best point by that norm, never one worse than x0.

    Gradients by `pull_back` and `push_forward` are those of the problem: `inner` takes no part in them.

    Products with the preconditioned Jacobian are exact where `inner` offers them (from the right, where the problem
    does too), else differences, which an inner solver's own tolerance limits: solve it accurately, or raise ``rdiff``
    of the outer method. Inner systems without `Problem.take` are evaluated with the whole batch to the end.

    Cost: one residual of F for each outer step from the left, one for the start, and one for each step shown to a
    monitor. `result.counts` counts each evaluation of M as a residual, and the residuals of an inner method too.

    References
    ----------
    .. [1] P. R. Brune, M. G. Knepley, B. F. Smith and X. Tu, "Composing scalable nonlinear algebraic solvers", SIAM
           Rev. 57 (2015) 535-565.
    .. [2] C. W. Oosterlee and T. Washio, "Krylov subspace acceleration of nonlinear multigrid with application to
           recirculating flows", SIAM J. Sci. Comput. 21 (2000) 1670-1690.
    .. [3] X.-C. Cai and D. E. Keyes, "Nonlinearly preconditioned inexact Newton algorithms", SIAM J. Sci. Comput. 24
           (2002) 183-200.
    .. [4] V. Dolean, M. J. Gander, W. Kheriji, F. Kwok and R. Masson, "Nonlinear preconditioning: how to use a
           nonlinear Schwarz method to precondition Newton's method", SIAM J. Sci. Comput. 38 (2016) A3357-A3380.

    Examples
    --------
    Nonlinear Jacobi sweeps, each unknown from its own equation x_i^3 + 4 x_i = 1 + neighbours, accelerated:

    >>> def neighbours(x):
    ...     return np.pad(x, 1)[:-2] + np.pad(x, 1)[2:]
    >>> def F(x):
    ...     return x**3 + 4 * x - neighbours(x) - 1
    >>> def jacobi(x):
    ...     s = neighbours(x) + 1
    ...     for _ in range(8):
    ...         x = (2 * x**3 + s) / (3 * x**2 + 4)
    ...     return x
    >>> result = ims.root(F, np.zeros(50), method=ims.Preconditioned(inner=jacobi))
    >>> result.success, bool(np.abs(F(result.x)).max() <= result.target)
    (True, True)
    """

    inner: Inner | Problem | tuple[Inner, ...]
    outer: NonlinearMethod = ANDERSON
    side: Literal["left", "right"] = "left"
    sweeps: int = 1
    keeps_bounds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        parts = self.inner if isinstance(self.inner, tuple) else (self.inner,)
        usable = [kind_of(part) == "nonlinear" or (callable(part) and not isinstance(part, type)) for part in parts]
        if not (isinstance(self.inner, Problem) or (parts and all(usable))):
            expected = "callable, a Problem, a nonlinear method, or a tuple of methods and callables"
            raise TypeError(f"Preconditioned: `inner` must be {expected}, got {self.inner!r}")
        check_kind("Preconditioned", "outer", self.outer, "nonlinear")
        check_choice("Preconditioned", "side", self.side, ("left", "right"))
        check_limit("Preconditioned", "sweeps", self.sweeps, least=1)

    @property
    def rdiff(self) -> float | None:
        return self.outer.rdiff

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        return _Solve(self, context, start, rows).run()


class _Solve:
    """One preconditioned solve: the caller's system in `whole`, the displacement x - M(x) in `inner`."""

    def __init__(
        self, method: Preconditioned, context: SolveContext, start: Solution, rows: Indices | None = None
    ) -> None:
        self.method, self.context, self.start, self.rows = method, context, start, rows
        self.whole, self.is_left = context.evaluator, method.side == "left"
        self.systems: Indices = np.arange(start.status.size) if rows is None else rows
        self.displacement = _displacement(method, self.whole.problem, self.whole.tally)
        self.inner = self._evaluator(self.displacement)
        self.part: Evaluator = self.whole
        self.part_rows: Indices = self.whole.rows
        self.x0, self.x, self.F = start.x, copy_array(start.x), copy_array(start.F)  # the best points, and F there
        self.norm: HostArray = np.full(start.status.size, np.nan)

    def _evaluator(self, problem: Problem) -> Evaluator:
        like = self.whole.unflatten(self.start.x)
        return Evaluator(problem, like, self.method.rdiff, few=self.whole.few, tally=self.whole.tally)

    def run(self) -> Solution:
        """Solve within the limits, and test F at the best of the points where it was evaluated."""
        start, rows, stop, outer = self.start, self.systems, self.context.stop, self.inner
        F = self._residual(gather(self.x0, rows), rows)
        self.note(gather(self.x0, rows), F, rows)
        start.first_norm[rows] = np.where(np.isnan(start.first_norm[rows]), self.norm[rows], start.first_norm[rows])
        start.target[rows] = stop.target(start.first_norm[rows], F)
        if not self.is_left:
            outer = self._evaluator(_compose(self.whole.problem, self.displacement, self.note, self.whole.rows))
        context = replace(
            self.context,
            evaluator=outer,
            monitor=self._monitor(self.context.monitor),
            previous=SolveMemory(),
            memory=SolveMemory(declared=outer.problem.structure),
            truth=self._truth if self.is_left else None,
        )
        solution = start
        with suppress(LimitReached):  # which a method raises only where it starts
            solution = self.whole.tally.enforce(self.method.outer.solve, context, start, self.rows)
        self._end(solution)
        return solution

    def note(self, x: Array, F: Array, rows: Indices) -> HostArray:
        """Keep the best points of some systems by the norm of the caller's F, and return that norm."""
        norm = np.where(np.isfinite(norm_max(x)), self.context.stop.measure(F, self.whole.event_shape), np.nan)
        better = np.flatnonzero((norm < self.norm[rows]) | np.isnan(self.norm[rows]))
        scatter(self.x, rows[better], gather(x, better))
        scatter(self.F, rows[better], gather(F, better))
        self.norm[rows[better]] = norm[better]
        return norm

    def _residual(self, x: Array, rows: Indices) -> Array:
        """The caller's F for some systems, which are taken when they change."""
        if not np.array_equal(rows, self.part_rows):
            self.part, self.part_rows = self.whole.take(rows, self.start.start), rows.copy()
        return self.part.residual(x)

    def _truth(self, x: Array, rows: Indices) -> HostArray:
        return self.norm[rows] if x is self.x0 else self.note(x, self._residual(x, rows), rows)

    def _end(self, solution: Solution) -> None:
        """Put the systems at the best of their points; F there alone determines which have converged."""
        rows, ended = self.systems, self.whole.tally.ended
        within = self.whole.move(self.x)  # by rounding, or an outer method, it may lie beyond the bounds
        x, F, norm, status = gather(within, rows), gather(self.F, rows), self.norm[rows], solution.status[rows]
        holds = self.context.stop.holds(norm, solution.target[rows], x, None) | (norm == 0)
        failed = np.where(status == CONVERGED, int(Status.STAGNATED), status)
        failed[failed == Status.RUNNING] = Status.RUNNING if ended is None else ended
        solution.status[rows], solution.norm[rows] = np.where(holds, CONVERGED, failed), norm
        solution.x, solution.F = copy_array(solution.x), copy_array(solution.F)
        scatter(solution.x, rows, x)
        scatter(solution.F, rows, F)

    def _monitor(self, monitor: Monitor) -> Monitor:
        """A monitor that is shown the caller's x and F."""
        every = self.whole.rows

        def change(x: Array, F: Array) -> tuple[Array, Array]:
            y = self.whole.flatten(x)
            point = y if self.is_left else y - self.inner.take(every, self.start.start).residual(y)
            F = self.whole.unflatten(self.whole.residual(point)) if self.is_left else F
            return self.whole.unflatten(point), F

        return map_monitor(monitor, change)


def _displacement(method: Preconditioned, problem: Problem, tally: Tally) -> Problem:
    """The problem x - M(x) = 0 on the states of `problem`."""
    inner: Any = method.inner
    if isinstance(inner, Problem):
        if inner.batch_ndim != problem.batch_ndim:
            expected = f"Preconditioned: `inner` must have the problem's `batch_ndim`, {problem.batch_ndim}"
            raise ValueError(f"{expected}, got {inner.batch_ndim}")
        return replace(inner, bounds=problem.bounds)
    parts = inner if isinstance(inner, tuple) else (inner,)
    moves: list[Any] = [
        partial(_swept, part, method.sweeps, problem, tally) if kind_of(part) == "nonlinear" else part for part in parts
    ]

    def residual(x: Array) -> Array:
        whole, end = Evaluator(problem, x), x
        for move in moves:
            moved = checked_array(move(copy_array(end)), "inner", whole.xp, x.dtype, tuple(x.shape))
            end = whole.unflatten(whole.move(whole.flatten(moved)))
        return x - end

    def take(indices: Indices) -> Problem:
        return _displacement(method, problem.take(indices), tally)  # type: ignore[misc]

    takes = take if problem.take is not None and all(kind_of(part) == "nonlinear" for part in parts) else None
    return Problem(residual, batch_ndim=problem.batch_ndim, take=takes, fixed_point=True, bounds=problem.bounds)


@dataclass(frozen=True, kw_only=True)
class _Sweeps(NonlinearStop):
    """A number of steps, whatever they lead to."""

    @property
    def keeps_last(self) -> bool:
        return True


def _swept(inner: NonlinearMethod, sweeps: int, problem: Problem, tally: Tally, x: Array) -> Array:
    """Where a few steps of a method lead from x; NaN where F is not finite there."""
    evaluator = Evaluator(problem, x, inner.rdiff, tally=tally)
    stop = _Sweeps(rtol=0.0, max_iterations=sweeps)
    end = inner.solve(SolveContext(evaluator, stop), Solution.at(evaluator.flatten(x)))
    if tally.ended is not None:  # before the sweeps did
        raise LimitReached
    lost = np.where(np.isfinite(end.norm), 0.0, np.nan)
    return evaluator.unflatten(end.x + from_host(lost, end.x)[:, None])


def _compose(
    problem: Problem, displacement: Problem, note: Callable[[Array, Array, Indices], Any], rows: Indices
) -> Problem:
    """F(M(y)) = 0, with M(y) = y - displacement(y), for systems `rows`; `note` is called with M(y) and F there."""

    def residual(y: Array) -> Array:
        x = y - array_namespace(y).reshape(displacement.residual(copy_array(y)), y.shape)
        part = Evaluator(problem, y)
        flat = part.flatten(x)
        F = part.attempt(flat, part.flatten(y), jacobian=False)[0]
        note(flat, F, rows)
        return part.unflatten(F)

    def linearize(y: Array) -> tuple[Array, LinearOperator]:
        batch_shape = tuple(y.shape[: problem.batch_ndim])
        step, D = _linearize(displacement, y, y)
        F, J = _linearize(problem, y - step, y)
        flat = partial(array_namespace(y).reshape, shape=(rows.size, -1))
        note(flat(y - step), flat(F), rows)
        return F, _chain(J, D, batch_shape)

    def take(indices: Indices) -> Problem:
        takes: Any = problem.take, displacement.take
        return _compose(takes[0](indices), takes[1](indices), note, rows[indices])

    takes = None if problem.take is None or displacement.take is None else take
    is_exact = all(part.linearize or part.jac or part.jvp for part in (problem, displacement))
    offered = linearize if is_exact else None
    return Problem(residual, linearize=offered, batch_ndim=problem.batch_ndim, take=takes, bounds=problem.bounds)


def _linearize(problem: Problem, x: Array, inside: Array) -> tuple[Array, LinearOperator]:
    """F(x) and J(x), on arrays (B, N); where x has overflowed NaN, and J at `inside`."""
    evaluator = Evaluator(problem, x)
    x, inside = evaluator.flatten(x), evaluator.flatten(inside)
    F, J = evaluator.attempt(x, inside)
    if J is None:
        xp = evaluator.xp
        J = evaluator.jacobian(xp.where(xp.isfinite(x), x, inside), F)
    return evaluator.unflatten(F), J


def _chain(J: LinearOperator, D: LinearOperator, batch_shape: tuple[int, ...]) -> LinearOperator:
    """J (I - D) for systems of this batch shape."""

    def matvec(v: Array) -> Array:
        xp = array_namespace(v)
        w = xp.reshape(v, (J.batch_shape[0], J.shape[1]))
        return xp.reshape(J.matvec(w - D.matvec(w)), v.shape)

    return LinearOperator(
        matvec,
        in_shape=J.shape[1],
        batch_shape=batch_shape,
        dtype=J.dtype,
        take=(lambda i: _chain(J.take(i), D.take(i), (len(i),))) if batch_shape else None,
    )
