"""Homotopy: follows a path from any point to a solution of a fixed-point problem, where Newton's method fails."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import Norms, array_namespace, check_whole, from_host, gather, norm2, to_host
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.krylov._arnoldi import Cycle, arnoldi_cycle
from implicitsolve.monitor import Monitor, silent
from implicitsolve.newton._loop import NewtonLoop, Solution
from implicitsolve.operators import LinearOperator
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop, check_limit, check_number

ON_PATH = 1e-3  # distance from the path, over the step length, up to which a point is taken to be on it
FAR = 0.5  # correction over step length beyond which the step was too long
CONTRACTION = 0.5  # of one correction to the next
GROWTH = np.asarray([2.0, 2.0, 1.0, 0.7])  # of the step length after 0, 1, 2, 3 corrections
ALIGNED = 0.8  # cosine between the path's directions at two points, below which the second one may be of another path
CORRECTIONS = 6  # of one predicted point
SHORTEST = 1e-7  # step that ends the attempt
BEYOND = -0.1  # the path starts at tau = 0 and does not come back
END_ACCURACY = 1e-2  # of linear solves at tau = 1, where Newton's method is to converge


@dataclass(frozen=True, kw_only=True)
class Homotopy:
    """Follow the solutions of (1 - tau) (x - x0) + tau F(x) = 0 from tau = 0, where x = x0, to tau = 1.

    For a fixed-point problem F(x) = x - G(x) whose G maps some ball or box into itself, as the layers of bounded
    states do, such a path exists from almost every x0 inside, never returns to tau = 0, and leads to a solution [1]_.
    It may turn back in tau on the way, and is followed by arc length: slow, and sure where Newton's method is not.

    Parameters
    ----------
    first_step : float, optional
        First step in arc length, in which tau runs from 0 to 1 and x is measured in units of ||F(x0)||. Default 0.2.
    max_krylov : int, optional
        GMRES iterations of one linear solve. Default 200.
    forcing : float, optional
        Accuracy of the linear solves on the way. Default 1e-3: at 1e-2 paths are lost.

    Notes
    -----
    From a point of the path one linear solve, with J bordered by a row and a column, gives its direction; the next
    point is predicted along it, and corrected by Newton's method in the hyperplane across, mostly once or twice: two or
    three residuals and linear solves a point. The step doubles where one correction was enough, and halves where a
    correction is larger than half the step, does not contract, or the path turns by more than 37 degrees. Systems of a
    batch each go their own way. A system that fails ends at its last point of the path.

    Memory per system: the Krylov space and six vectors.

    References
    ----------
    .. [1] S. N. Chow, J. Mallet-Paret and J. A. Yorke, "Finding zeroes of maps: homotopy methods that are constructive
           with probability one", Math. Comp. 32 (1978) 887-899.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> problem = ims.Problem(lambda x: x - np.cos(3 * x), fixed_point=True)
    >>> ims.root(problem, np.zeros(2), method=ims.Homotopy()).x.round(5)
    array([0.39004, 0.39004])
    """

    first_step: float = 0.2
    max_krylov: int = 200
    forcing: float = 1e-3
    eliminates = True

    def __post_init__(self) -> None:
        """Check the settings."""
        check_limit("Homotopy", "max_krylov", self.max_krylov, least=1)
        for name in ("first_step", "forcing"):
            value = getattr(self, name)
            check_number("Homotopy", name, value)
            if not 0 < value < 1:
                raise ValueError(f"Homotopy: `{name}` must be between 0 and 1, got {value}")

    def solve(self, evaluator: Evaluator, x0: Array, stop: NonlinearStop, monitor: Monitor = silent) -> Solution:
        """Solve on arrays (B, N): the loop behind `root`."""
        check_whole("Homotopy", x0, "NewtonKrylov or Anderson")
        return _HomotopyLoop(self, evaluator, Solution.at(x0), stop, monitor).run()

    def retry(
        self, evaluator: Evaluator, x0: Array, first: Solution, rows: Indices, stop: NonlinearStop, monitor: Monitor
    ) -> Solution:
        """Begin again at x0 with some systems of a solve, and take over what became better."""
        return first.improved(
            rows, _HomotopyLoop(self, evaluator, first.restarted(rows, x0), stop, monitor, rows).run()
        )


class _HomotopyLoop(NewtonLoop):
    """Points of the path. `x` and `tau` are where the residual was last computed; `at` is the last point on the path.

    Lengths are in the scaled coordinates (x / unit, tau).
    """

    STEPS = 2000
    PER_SYSTEM = (
        *NewtonLoop.PER_SYSTEM,
        "unit",
        "tau",
        "at_tau",
        "slope_tau",
        "length",
        "corrections",
        "offset",
        "last",
        "is_end",
    )

    def __init__(
        self,
        method: Homotopy,
        evaluator: Evaluator,
        solution: Solution,
        stop: NonlinearStop,
        monitor: Monitor,
        rows: Indices | None = None,
    ) -> None:
        super().__init__(method, evaluator, solution, stop, monitor, rows)
        self.anchor = self.at = self.x
        self.at_F = self.F
        self.unit = np.where((self.norms > 0) & np.isfinite(self.norms), self.norms, 1.0)
        self.slope_tau = np.full(self.rows.size, 0.5**0.5)
        with np.errstate(all="ignore"):
            self.slope = -self._scaled(self.F, 0.5**0.5)
        self.tau, self.at_tau, self.offset = (np.zeros(self.rows.size) for _ in range(3))
        self.length = np.full(self.rows.size, method.first_step)
        self.last = np.full(self.rows.size, np.inf)
        self.corrections = np.zeros(self.rows.size, dtype=int)
        self.is_end = np.zeros(self.rows.size, dtype=bool)

    def _first_residual(self) -> Array:
        F, self.J = self.evaluator.trial(self.x)
        return F

    def _scaled(self, v: Array, factor: HostArray | float = 1.0) -> Array:
        """A direction in x in the path's units."""
        return v * from_host(factor / self.unit, v)[:, None]

    def _step(self, iteration: int, is_last: HostArray) -> None:
        if not self.evaluator.has_exact_products:
            self.evaluator.length.follow(self.evaluator.rows, norm2(self.x))
        with np.errstate(all="ignore"):
            iterations = self._advance()
            self.F, self.J = self.evaluator.trial(self.x)
            measured = Norms(self.F)
            self.norms, self.measure = measured.two(0), self.stop.measured(measured, self.whole.event_shape)
        self.solution.krylov_iterations[self.rows] += iterations
        self.solution.iterations[self.rows] += 1
        code = self.code
        code[is_last] = Status.ITERATION_LIMIT
        code[(self.length < SHORTEST) | (self.at_tau < BEYOND)] = Status.STAGNATED
        code[self.stop.holds(self.measure, self.target, self.x, None) | (self.norms == 0)] = Status.CONVERGED
        self._concede()
        self._end_on_path()
        self._report(iteration, step_length=self.length.copy(), krylov_iterations=iterations)

    def _end_on_path(self) -> None:
        """Put systems that have failed at their last point of the path."""
        failed = ~np.isin(self.code, (Status.RUNNING, Status.CONVERGED))
        if failed.any():
            xp, mask = array_namespace(self.x), from_host(failed, self.x)[:, None]
            self.x, self.F = xp.where(mask, self.at, self.x), xp.where(mask, self.at_F, self.F)
            self.measure = self.stop.measure(self.F, self.whole.event_shape)

    def _advance(self) -> HostArray:
        """Go on from a point on the path, correct another, or go back to a shorter step; return Krylov iterations."""
        displacement = self.x - self.anchor
        tau = from_host(self.tau, self.x)[:, None]
        rho = self._scaled((1 - tau) * displacement + tau * self.F)
        distance = norm2(rho)
        is_on_path = ~self.is_end & (distance <= ON_PATH * self.length)
        cycle = self._linear_solve(rho, self._scaled(self.F - displacement), tau, is_on_path)
        size, last = norm2(cycle.dx), to_host(cycle.dx[:, -1])
        is_usable = np.isfinite(size) & (size > 0) & ~(cycle.nonfinite | cycle.broken)
        is_taken = is_on_path & is_usable & self._turn(cycle.dx, last, size, is_on_path & is_usable)
        self.offset = np.where(is_taken, distance, self.offset)
        allowed = np.where(self.is_end, 1.0, FAR * self.length + self.offset)
        allowed = np.where(self.corrections > 0, CONTRACTION * self.last, allowed)
        is_corrected = ~is_on_path & is_usable & (size <= allowed) & (self.corrections < CORRECTIONS)
        self._correct(cycle.dx, last, is_corrected)
        self.corrections, self.last = self.corrections + 1, size
        is_lost = ~(is_taken | is_corrected)
        self.length = np.where(is_lost, 0.5 * self.length, self.length)
        self._predict(is_taken | is_lost)
        return cycle.columns

    def _linear_solve(self, rho: Array, column: Array, tau: Array, is_on_path: HostArray) -> Cycle:
        """The path's direction, for points on it, or Newton's step to it in the hyperplane through the prediction."""
        xp = array_namespace(rho)
        inside = from_host(~self.is_end * 1.0, rho)[:, None]
        corner = from_host(np.where(self.is_end, 1.0, self.slope_tau), rho)[:, None]
        J = self.evaluator.jacobian(self.x, self.F) if self.J is None else self.J
        A = _bordered(J, tau, column, self.slope * inside, corner)
        ahead = from_host(is_on_path * 1.0, rho)[:, None]
        b = xp.concat([(ahead - 1) * rho, ahead], axis=1)
        norms = norm2(b)
        eta = np.where(self.is_end, END_ACCURACY, self.method.forcing)
        return arnoldi_cycle(A, b, norms, target=eta * norms, columns=self.method.max_krylov, wants_residual=False)

    def _turn(self, direction: Array, last: HostArray, size: HostArray, is_here: HostArray) -> HostArray:
        """Take points as points of the path, and its direction there, unless it has turned too far since the last."""
        xp = array_namespace(direction)
        size = np.where(is_here, size, 1.0)
        slope, slope_tau = direction[:, :-1] / from_host(size, direction)[:, None], last / size
        along = to_host(xp.vecdot(self.slope, slope)) + self.slope_tau * slope_tau
        taken = is_here & (along >= ALIGNED)
        mask = from_host(taken, direction)[:, None]
        self.slope, self.slope_tau = xp.where(mask, slope, self.slope), np.where(taken, slope_tau, self.slope_tau)
        self.at, self.at_F = xp.where(mask, self.x, self.at), xp.where(mask, self.F, self.at_F)
        self.at_tau = np.where(taken, self.tau, self.at_tau)
        growth = GROWTH[np.minimum(self.corrections, len(GROWTH) - 1)]
        self.length = np.where(taken, self.length * growth, self.length)
        return taken

    def _correct(self, step: Array, last: HostArray, mask: HostArray) -> None:
        """Newton's step, where it is to be made."""
        change = step[:, :-1] * from_host(self.unit, step)[:, None]
        self.x = array_namespace(step).where(from_host(mask, step)[:, None], self.x + change, self.x)
        self.tau = np.where(mask, self.tau + last, self.tau)

    def _predict(self, moved: HostArray) -> None:
        """Go along the path from its last point; a step beyond tau = 1 ends there."""
        with np.errstate(divide="ignore", invalid="ignore"):
            to_end = (1.0 - self.at_tau) / self.slope_tau
        ends = moved & (self.slope_tau > 0) & (to_end <= self.length)
        length = np.where(ends, to_end, self.length)
        xp = array_namespace(self.x)
        ahead = self.at + self.slope * from_host(length * self.unit, self.x)[:, None]
        self.x = xp.where(from_host(moved, self.x)[:, None], ahead, self.x)
        self.tau = np.where(moved, np.where(ends, 1.0, self.at_tau + length * self.slope_tau), self.tau)
        self.is_end = np.where(moved, ends, self.is_end)
        self.corrections = np.where(moved, 0, self.corrections)

    def _keep(self, keep: Indices) -> None:
        self.J = None if self.J is None else self.J.take(keep)
        for name in ("anchor", "at", "at_F", "slope"):
            setattr(self, name, gather(getattr(self, name), keep))


def _bordered(J: LinearOperator, tau: Array, column: Array, row: Array, corner: Array) -> LinearOperator:
    """[[(1 - tau) I + tau J, column], [row, corner]] for each system, on arrays (B, N + 1)."""
    xp = array_namespace(column)

    def matvec(v: Array) -> Array:
        x, last = v[:, :-1], v[:, -1:]
        top = (1 - tau) * x + tau * J.matvec(x) + column * last
        bottom = xp.sum(row * x, axis=1, keepdims=True) + corner * last
        return xp.concat([top, bottom], axis=1)

    return LinearOperator(
        matvec,
        in_shape=column.shape[1] + 1,
        batch_shape=(column.shape[0],),
        dtype=column.dtype,
        take=lambda i: _bordered(J.take(i), *(gather(part, i) for part in (tau, column, row, corner))),
    )
