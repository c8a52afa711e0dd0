"""Homotopy: follows a path from any point to a solution of a fixed-point problem, where Newton's method fails."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from implicitsolve._arrays.host import from_host, gather, to_host
from implicitsolve._arrays.namespace import array_namespace
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels._norms import Norms, norm2
from implicitsolve.krylov._arnoldi import Arnoldi, Cycle
from implicitsolve.nonlinear._convergence import ITERATION_LIMIT, STAGNATED
from implicitsolve.nonlinear._loop import IterationLoop
from implicitsolve.nonlinear._state import FixedPointMethod, LoopState, Solution, SolveContext
from implicitsolve.operators import LinearOperator
from implicitsolve.operators._wrappers import border_operator
from implicitsolve.stopping import check_fraction, check_limit

ON_PATH = 1e-3  # distance from the path, over the step length, up to which a point is taken to be on it
LONG_CORRECTION = 0.5  # correction over step length beyond which the step was too long
CONTRACTION = 0.5  # of one correction to the next
GROWTH_AFTER = np.asarray([2.0, 2.0, 1.0, 0.7])  # of the step length after 0, 1, 2, 3 corrections
ALIGNED = 0.8  # cosine between the path's directions at two points, below which the second one may be of another path
SHORTEST_ARC = 1e-5  # step that ends the attempt: of 414 paths to solutions none took one below 7e-4
PATH_END = 10.0  # distance from x0, over ||F(x0)|| or ||x0||, beyond which a path is taken to go to infinity


@dataclass(frozen=True, kw_only=True)
class Homotopy(FixedPointMethod):
    """Follow the solutions of (1 - tau) (x - x0) + tau F(x) = 0 from tau = 0, where x = x0, to tau = 1.

    For a fixed-point problem F(x) = x - G(x) whose G maps some ball or box into itself, as the layers of bounded
    states do, such a path exists from almost every x0 inside, never returns to tau = 0, and leads to a solution [1]_.
    It may turn back in tau on the way, and is followed by arc length: slow, but reliable where Newton's method fails.

    Parameters
    ----------
    first_step : float, optional
        First step in arc length, in which tau runs from 0 to 1 and x is measured in units of ||F(x0)||. Default 0.2.
    max_krylov : int, optional
        GMRES iterations of one linear solve. Default 200.
    linear_rtol : float, optional
        Relative tolerance of the linear solves on the way. Default 1e-3: at 1e-2 paths are lost.

    Notes
    -----
    From a point of the path one linear solve, with J bordered by a row and a column, gives its direction; the next
    point is predicted along it, and corrected by Newton's method in the hyperplane across, mostly once or twice: two or
    three residuals and linear solves per point. The step doubles where one correction was enough, and halves where a
    correction is larger than half the step, does not contract, or the path turns by more than 37 degrees. Rarely a
    prediction lands on another path, which may be closed: the system ends at its iteration limit. Each system
    of a batch follows its own path. A system that fails ends at the best of its points.

    Where G does not map such a set into itself, and F has no root, the path goes to infinity: no farther from x0 than
    10 ||F(x0)|| or 10 ||x0||, its points are not charged to a system's budget (`NonlinearStop`), and farther away the
    attempt ends. Paths of bounded maps from x0 = 0 stayed within 4 ||F(x0)||.

    Memory per system: the Krylov space and six vectors.

    References
    ----------
    .. [1] S. N. Chow, J. Mallet-Paret and J. A. Yorke, "Finding zeroes of maps: homotopy methods that are constructive
           with probability one", Math. Comp. 32 (1978) 887-899.

    Examples
    --------
    >>> problem = ims.Problem(lambda x: x - np.cos(3 * x), fixed_point=True)
    >>> ims.root(problem, np.zeros(2), method=ims.Homotopy()).x.round(5)
    array([0.39004, 0.39004])
    """

    first_step: float = 0.2
    max_krylov: int = 200
    linear_rtol: float = 1e-3

    def __post_init__(self) -> None:
        check_limit("Homotopy", "max_krylov", self.max_krylov, least=1)
        check_fraction("Homotopy", "first_step", self.first_step)
        check_fraction("Homotopy", "linear_rtol", self.linear_rtol)

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        return _HomotopyLoop(self, context, start, rows).run()


@dataclass
class _PathState(LoopState):
    """Points of the path, in the coordinates (x / unit, tau): F was last computed at `x` and `tau`."""

    J: LinearOperator | None  # J(x), where it is known
    anchor: Array  # x0
    at: Array  # the last point on the path, with F and tau there
    at_F: Array
    at_tau: HostArray
    slope: Array  # direction of the path there, in x and in tau
    slope_tau: HostArray
    unit: HostArray
    tau: HostArray
    offset: HostArray  # distance of that point from the path
    length: HostArray  # of the next step along it
    last: HostArray  # length of the last correction
    corrections: HostArray  # since the prediction
    is_end: HostArray  # whether tau = 1 was predicted
    charged: HostArray  # evaluations at the start, to which each point near it brings the charge back


class _HomotopyLoop(IterationLoop[_PathState]):
    """Predictions along the path, and corrections back to it."""

    STEPS = PATIENCE = 2000  # ||F|| may grow on the way

    def _first_residual(self, x: Array) -> tuple[Array, LinearOperator | None]:
        return self.evaluator.trial(x)

    def _extend(self, state: LoopState, J: LinearOperator | None) -> _PathState:
        size = state.rows.size
        unit = np.where((state.norms > 0) & np.isfinite(state.norms), state.norms, 1.0)
        with np.errstate(all="ignore"):
            slope = -state.F * from_host(0.5**0.5 / unit, state.F)[:, None]
        return _PathState(
            **vars(state),
            J=J,
            anchor=state.x,
            at=state.x,
            at_F=state.F,
            at_tau=np.zeros(size),
            slope=slope,
            slope_tau=np.full(size, 0.5**0.5),
            unit=unit,
            tau=np.zeros(size),
            offset=np.zeros(size),
            length=np.full(size, self.method.first_step),
            last=np.full(size, np.inf),
            corrections=np.zeros(size, dtype=int),
            is_end=np.zeros(size, dtype=bool),
            charged=self.solution.charged[state.rows],
        )

    def _scale(self, v: Array, factor: HostArray | float = 1.0) -> Array:
        """A direction in x in the path's units."""
        state = self.state
        return v * from_host(factor / state.unit, v)[:, None]

    def _step(self, is_last: HostArray) -> dict[str, HostArray]:
        state = self.state
        if not self.evaluator.has_exact_products:
            self.evaluator.length.follow(self.evaluator.rows, norm2(state.x))
        before, state.norms_before, is_newton = state.x, state.norms, state.is_end.copy()
        with np.errstate(all="ignore"):
            iterations = self._advance()
            is_newton &= state.is_end & (state.corrections > 0)  # points of the path tell nothing of the error
            moved = from_host(is_newton * 1.0, before)[:, None] * (state.x - before)
            state.F, state.J = self.evaluator.attempt(state.x, state.at)
            self.measured = measured = Norms(state.F, moved, state.x)
            state.norms = measured.two(0)
            state.progress.size = np.where(is_newton, state.progress.size, measured.two(2))
            state.measure = self._measured_by_stop(measured, state.x, state.rows)
        self.solution.krylov_iterations[state.rows] += iterations
        self.solution.iterations[state.rows] += 1
        state.status[is_last] = ITERATION_LIMIT
        state.status[state.length < SHORTEST_ARC] = STAGNATED
        self._mark_converged(moved)
        return {"step_length": state.length.copy(), "krylov_iterations": iterations}

    def _advance(self) -> HostArray:
        """Continue from a point on the path, correct another, or return to a shorter step; return Krylov iterations."""
        state = self.state
        displacement = state.x - state.anchor
        tau = from_host(state.tau, state.x)[:, None]
        rho = self._scale((1 - tau) * displacement + tau * state.F)
        distance = norm2(rho)
        is_on_path = ~state.is_end & (distance <= ON_PATH * state.length)
        cycle = self._linear_solve(rho, self._scale(state.F - displacement), tau, is_on_path)
        size, last = norm2(cycle.dx), to_host(cycle.dx[:, -1])
        is_usable = np.isfinite(size) & (size > 0) & ~(cycle.nonfinite | cycle.broken)
        is_taken = is_on_path & is_usable & self._turn(cycle.dx, last, size, is_on_path & is_usable)
        state.offset = np.where(is_taken, distance, state.offset)
        allowed = np.where(state.is_end, 1.0, LONG_CORRECTION * state.length + state.offset)
        allowed = np.where(state.corrections > 0, CONTRACTION * state.last, allowed)
        is_corrected = ~is_on_path & is_usable & (size <= allowed)
        self._correct(cycle.dx, last, is_corrected)
        state.corrections, state.last = state.corrections + 1, size
        is_lost = ~(is_taken | is_corrected)
        state.length = np.where(is_lost, 0.5 * state.length, state.length)
        self._predict(is_taken | is_lost)
        is_near = norm2(state.at - state.anchor) <= PATH_END * np.maximum(state.unit, norm2(state.anchor))
        self.solution.charged[state.rows] = np.where(is_near, state.charged, self.budget.share)
        return cycle.columns

    def _linear_solve(self, rho: Array, column: Array, tau: Array, is_on_path: HostArray) -> Cycle:
        """The path's direction, for points on it, or Newton's step to it in the hyperplane through the prediction."""
        state = self.state
        xp = array_namespace(rho)
        inside = from_host(~state.is_end * 1.0, rho)[:, None]
        corner = from_host(np.where(state.is_end, 1.0, state.slope_tau), rho)[:, None]
        J = self.evaluator.jacobian(state.x, state.F) if state.J is None else state.J
        A = _border(J, tau, column, state.slope * inside, corner)
        ahead = from_host(is_on_path * 1.0, rho)[:, None]
        b = xp.concat([(ahead - 1) * rho, ahead], axis=1)
        norms = norm2(b)
        eta = self.method.linear_rtol
        return Arnoldi(A, b, norms, target=eta * norms, columns=self.method.max_krylov, needs_residual=False).run()

    def _turn(self, direction: Array, last: HostArray, size: HostArray, is_here: HostArray) -> HostArray:
        """Accept points and the direction of the path there, unless it has turned too far since the last ones."""
        state = self.state
        xp = array_namespace(direction)
        size = np.where(is_here, size, 1.0)
        slope, slope_tau = direction[:, :-1] / from_host(size, direction)[:, None], last / size
        along = to_host(xp.vecdot(state.slope, slope)) + state.slope_tau * slope_tau
        taken = is_here & (along >= ALIGNED)
        mask = from_host(taken, direction)[:, None]
        state.slope, state.slope_tau = xp.where(mask, slope, state.slope), np.where(taken, slope_tau, state.slope_tau)
        state.at, state.at_F = xp.where(mask, state.x, state.at), xp.where(mask, state.F, state.at_F)
        state.at_tau = np.where(taken, state.tau, state.at_tau)
        growth = GROWTH_AFTER[np.minimum(state.corrections, len(GROWTH_AFTER) - 1)]
        state.length = np.where(taken, state.length * growth, state.length)
        return taken

    def _correct(self, step: Array, last: HostArray, mask: HostArray) -> None:
        """Newton's step, where it is to be made."""
        state = self.state
        change = step[:, :-1] * from_host(state.unit, step)[:, None]
        state.x = array_namespace(step).where(from_host(mask, step)[:, None], state.x + change, state.x)
        state.tau = np.where(mask, state.tau + last, state.tau)

    def _predict(self, moved: HostArray) -> None:
        """Predict a point along the path from its last one; a step beyond tau = 1 ends there."""
        state = self.state
        with np.errstate(divide="ignore", invalid="ignore"):
            to_end = (1.0 - state.at_tau) / state.slope_tau
        ends = moved & (state.slope_tau > 0) & (to_end <= state.length)
        length = np.where(ends, to_end, state.length)
        xp = array_namespace(state.x)
        ahead = state.at + state.slope * from_host(length * state.unit, state.x)[:, None]
        state.x = xp.where(from_host(moved, state.x)[:, None], ahead, state.x)
        state.tau = np.where(moved, np.where(ends, 1.0, state.at_tau + length * state.slope_tau), state.tau)
        state.is_end = np.where(moved, ends, state.is_end)
        state.corrections = np.where(moved, 0, state.corrections)


def _border(J: LinearOperator, tau: Array, column: Array, row: Array, corner: Array) -> LinearOperator:
    """[[(1 - tau) I + tau J, column], [row, corner]] for each system, on arrays (B, N + 1)."""
    return border_operator(
        lambda x: (1 - tau) * x + tau * J.matvec(x),
        column,
        row,
        corner,
        take=lambda i: _border(J.take(i), *(gather(part, i) for part in (tau, column, row, corner))),
    )
