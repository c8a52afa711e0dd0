"""PseudoTransient: steady states by implicit Euler steps whose length grows as ||F|| falls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from implicitsolve._arrays.host import from_host, gather, scatter, to_host
from implicitsolve._arrays.namespace import array_namespace, as_inexact, copy_array, is_cupy_array
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.direct._sparse_lu import SparseLU
from implicitsolve.errors import ChecksKeywords
from implicitsolve.globalize._line_search import ConstantForcing, SearchResult, SearchStart
from implicitsolve.globalize._searches import FullStep
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.nonlinear._block_newton import BlockNewton
from implicitsolve.nonlinear._newton_krylov import NewtonKrylov
from implicitsolve.nonlinear._plan import NOT_SPARSE, SPARSE, Stage, run
from implicitsolve.nonlinear._sparse_inverse import SparseInverses
from implicitsolve.nonlinear._sparse_newton import FactoredNewton, SparseNewton
from implicitsolve.nonlinear._state import NonlinearMethod, Solution, SolveContext
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.stopping import check_choice, check_number, check_positive
from implicitsolve.structure._sparse import Sparse

MOST_TIME_STEPS = 500  # at most, where the caller set no limit
SHORTER, MOST_TRIALS = 0.1, 20  # the least part of a time step that is tried next, and how often
TIME_STEP_GROWTH = 10.0  # of the time step from one step to the next
LINEAR_PART = 0.5  # part of a step, or of ||F||, by which that may differ from its linear model; else delta is halved
MOST_FULL_UNKNOWNS = 200  # unknowns for which a full J is assembled, column by column


@dataclass(frozen=True, kw_only=True)
class PseudoTransient(ChecksKeywords, NonlinearMethod):
    """Pseudo-transient continuation: follow V dx/dt = +F(x) or -F(x) to its steady state, a root of F.

    Each step solves ``(J - sign V / delta) s = -F``, an implicit Euler step of length delta, without a line search.
    delta grows by switched evolution relaxation, ``delta *= increment ||F_old|| / ||F||`` [1]_, so that the last steps
    are Newton's; where F differs from F_old + J s by more than half of the larger of both norms, it changes by 0.5 in
    place of `increment`. Where ||F|| has grown, and the next simplified Newton step for the same delta is longer than
    half of s [2]_, the step is repeated from the same factored J with a shorter delta. ||F|| may grow on the way: where
    Newton's method is caught by a minimizer of ||F||, or finds an unstable state, time steps lead from an initial state
    to the stable one that evolves from it.

    Parameters
    ----------
    sign : {None, 1, -1}, optional
        1 if F is the right-hand side, V dx/dt = F(x); -1 for V dx/dt = -F(x), as for x - G(x), or for discretized
        -u_xx - f(u). Default None: the one in whose direction the fastest modes decay at x0, by the trace of J; where
        products alone are known, ||F||, by the sign of <F, J F>.
    mass : array_like, optional
        The diagonal V, of the shape of one state, or a number. Default 1. Zeros are algebraic equations.
    first_step : float, optional
        First delta, over ``||V F|| / ||J F||``, the time in which F changes by about its own size. Default 0.1: a
        delta beyond the reciprocal of a positive eigenvalue would lead to the unstable state.
    increment : float, optional
        Growth of delta while ||F|| stays the same and F is nearly linear. Default 2.
    newton : NewtonKrylov, SparseNewton or BlockNewton, optional
        How linear systems are solved: `NewtonKrylov` by products with J, and a `preconditioner` that serves the shifted
        J too; `SparseNewton` by factors of the sparse J, declared or detected; `BlockNewton` by factors of the blocks.
        Default None: `BlockNewton` for problems with a `BlockBanded` structure, else `SparseNewton`. Where J is not
        sparse, one system of at most 200 unknowns is solved by factors of the full J, and others by products. The
        settings `line_search`, `forcing` (0.01), `reuse` ("none") and `retry` have no effect.

    Notes
    -----
    delta belongs to each system of a batch. Where F is not finite, delta, or with products the step, becomes a tenth,
    up to 20 times. Units of F, of x and of time change no decision: the first delta is a ratio of norms. At most 500
    steps unless `max_iterations` is set.

    References
    ----------
    .. [1] C. T. Kelley and D. E. Keyes, "Convergence analysis of pseudo-transient continuation", SIAM J. Numer. Anal.
           35 (1998) 508-523, (1.3) and (1.6); increment as in PETSc's TSPSEUDO, where it is 1.1.
    .. [2] P. Deuflhard, "Newton methods for nonlinear problems", Springer (2011), section 6.4.

    Examples
    --------
    >>> def reaction(u):  # u' = u - u^3: 0 is unstable, 1 and -1 are stable
    ...     return u - u**3
    >>> ims.root(reaction, np.array([0.1, -0.4]), method=ims.PseudoTransient(sign=1)).x.round(6)
    array([ 1., -1.])
    """

    sign: int | None = None
    mass: Any = None
    first_step: float = 0.1
    increment: float = 2.0
    newton: NewtonKrylov | SparseNewton | BlockNewton | None = None

    def __post_init__(self) -> None:
        check_choice("PseudoTransient", "sign", self.sign, (None, 1, -1))
        check_positive("PseudoTransient", "first_step", self.first_step)
        check_number("PseudoTransient", "increment", self.increment, least=1)
        if not isinstance(self.newton, NewtonKrylov | SparseNewton | BlockNewton | None):
            expected = "NewtonKrylov(), SparseNewton(), BlockNewton() or None"
            raise TypeError(f"PseudoTransient: `newton` must be {expected}, got {self.newton!r}")

    @property
    def rdiff(self) -> float | None:
        return self.newton.rdiff if isinstance(self.newton, NewtonKrylov) else None

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        evaluator, newton, stop = context.evaluator, self.newton, context.stop
        if newton is None:
            newton = BlockNewton() if evaluator.problem.block_structure is not None else SparseNewton()
        factor = getattr(newton, "factor", None)
        factor = SparseInverses(factor) if isinstance(factor, SparseLU | None) else factor
        clock = _Clock(self, evaluator, start.x, factor)
        stop = replace(stop, max_iterations=MOST_TIME_STEPS) if stop.max_iterations is None else stop
        context = replace(context, stop=stop, shift=clock.shift)
        if isinstance(newton, BlockNewton):
            return replace(newton, line_search=_TimeSteps(clock=clock), reuse="none").solve(context, start, rows)
        products = newton if isinstance(newton, NewtonKrylov) else NewtonKrylov()
        products = replace(products, line_search=_TimeSteps(), forcing=ConstantForcing(eta=0.01), retry=False)
        if isinstance(newton, NewtonKrylov) or not (isinstance(start.x, np.ndarray) or is_cupy_array(start.x)):
            return products.solve(context, start, rows)
        search = SparseNewton(structure=newton.structure, budget=newton.budget).search
        factored = FactoredNewton(line_search=_TimeSteps(clock=clock), reuse="none")
        stages = [Stage(method=search), Stage(method=factored, when=SPARSE), Stage(method=products, when=NOT_SPARSE)]
        if evaluator.size == start.x.size <= MOST_FULL_UNKNOWNS:  # one system: stiff equations need accurate directions
            full = Sparse(np.ones((evaluator.size, evaluator.size), dtype=bool))
            stages.insert(1, Stage(method=replace(search, structure=full), when=NOT_SPARSE))
        return run(stages, context, start, rows)


class _Clock:
    """Time steps of all systems, in the places of the whole batch."""

    def __init__(self, method: PseudoTransient, evaluator: Evaluator, x0: Array, factor: Any) -> None:
        systems = x0.shape[0]
        self.method, self.direct, self.x = method, factor, copy_array(x0)
        self.delta, self.norms = np.full((2, systems), np.nan)
        self.rows: Indices = np.empty(0, dtype=int)  # of the last J
        self.J: Any = None
        self.sign = np.ones(systems) * (method.sign or np.nan)
        self.mass: Array = 1.0
        if method.mass is not None:
            xp, mass = array_namespace(x0), as_inexact(method.mass, "mass")
            if tuple(mass.shape) not in ((), evaluator.event_shape):
                expected = f"a number or have the shape {evaluator.event_shape} of a state"
                raise ValueError(f"PseudoTransient: `mass` must be {expected}, got {tuple(mass.shape)}")
            mass = xp.astype(xp.asarray(mass, device=x0.device), x0.dtype)
            self.mass = xp.reshape(xp.broadcast_to(mass, evaluator.event_shape), (1, evaluator.size))

    def shift(self, rows: Indices, J: LinearOperator, x: Array, F: Array) -> LinearOperator:
        """J of the next step for systems `rows` of the whole batch."""
        with np.errstate(all="ignore"):
            self._begin(rows, J, F) if np.isnan(self.norms[rows]).any() else self._advance(rows, x, F)
        self.norms[rows] = norm2(F)
        scatter(self.x, rows, x)
        self.rows, self.J = rows, J
        return self._matrix(rows, J, F)

    def shorter(self, rows: Indices, F: Array) -> tuple[Array, Any]:
        """Steps of some systems by their shorter time steps, and the inverse."""
        places = np.flatnonzero(np.isin(self.rows, rows))
        inverse = self.direct.factor(self._matrix(rows, self.J.take(places), F))
        return inverse.negative(F), inverse.matvec

    def contraction(self, rows: Indices, F: Array, step: Array, correction: Any) -> HostArray:
        """||A^-1 (F(x + s) - F - J s)|| / ||s||, A = J - sign V / delta: infinite where F is not finite."""
        with np.errstate(all="ignore"):
            rate = from_host(self.sign[rows] / self.delta[rows], F)[:, None]
            theta = norm2(correction(F - rate * self.mass * step)) / norm2(step)
        return np.where(np.isfinite(theta), theta, np.inf)

    def _begin(self, rows: Indices, J: LinearOperator, F: Array) -> None:
        """The first time steps, and the signs."""
        method, new, image = self.method, np.isnan(self.norms[rows]), J.matvec(F)
        first = method.first_step * norm2(self.mass * F) / norm2(image)
        slope, trace = np.real(to_host(array_namespace(F).vecdot(F, image))), _trace(J)
        sign = np.where(np.where(trace == 0, slope, trace) > 0, -1.0, 1.0)  # the fastest modes decay
        self.delta[rows] = np.where(new, first, self.delta[rows])
        self.sign[rows] = np.where(np.isnan(self.sign[rows]), sign, self.sign[rows])

    def _advance(self, rows: Indices, x: Array, F: Array) -> None:
        """The next time steps."""
        norms, old, step = norm2(F), self.norms[rows], x - gather(self.x, rows)
        rate = from_host(self.sign[rows] / self.delta[rows], F)[:, None]
        is_linear = norm2(F - rate * self.mass * step) <= LINEAR_PART * np.fmax(norms, old)  # F + J s
        growth = np.fmin(np.where(is_linear, self.method.increment, LINEAR_PART) * old / norms, TIME_STEP_GROWTH)
        self.delta[rows] *= np.where(norms == old, 1.0, growth)

    def _matrix(self, rows: Indices, J: LinearOperator, F: Array) -> LinearOperator:
        """J - sign V / delta."""
        with np.errstate(all="ignore"):
            shift = -self.sign[rows] / self.delta[rows]
        return _with_diagonal(J, from_host(np.where(np.isfinite(shift), shift, 0.0), F)[:, None] * (self.mass + 0 * F))


def _trace(J: LinearOperator) -> HostArray:
    """The traces of matrices; zeros of operators without entries."""
    if isinstance(J, BlockBandedMatrix):
        return np.real(np.einsum("btii->b", to_host(J.diagonal)))
    return np.real(to_host(J.diagonal())).sum(axis=1) if isinstance(J, SparseMatrix) else np.zeros(1)


def _with_diagonal(J: LinearOperator, d: Array) -> LinearOperator:
    """J + diag(d) as a matrix of the same kind."""
    if isinstance(J, BlockBandedMatrix):
        xp, T, k = array_namespace(d), J.length, J.block_size
        blocks = xp.asarray(J.blocks, copy=True)
        eye = xp.eye(k, dtype=blocks.dtype, device=d.device)
        blocks[:, :, J.lower, :, :] += xp.reshape(d, (d.shape[0], T, k, 1)) * eye
        return BlockBandedMatrix(blocks, lower=J.lower, upper=J.upper, periodic=J.periodic)
    if isinstance(J, SparseMatrix):
        return J.plus_diagonal(d)
    return J._alike(lambda v: J.matvec(v) + d * v, take=lambda rows: _with_diagonal(J.take(rows), gather(d, rows)))


@dataclass(frozen=True, kw_only=True)
class _TimeSteps(FullStep):
    """Whole steps; where F is not finite or far from its linear model, with a shorter time step and the same J.

    Directions by products, without a clock, are shortened where F is not finite.
    """

    clock: _Clock | None = None

    def search(self, start: SearchStart) -> SearchResult:
        found, clock, step, correction = start.full_step(), self.clock, start.step, start.correction
        part, rows = start.evaluator, np.arange(found.norms.size)
        for _ in range(MOST_TRIALS):
            theta = np.where(np.isfinite(found.norms[rows]), 0.0, np.inf)
            if clock is not None:
                theta = clock.contraction(part.rows, gather(found.F, rows), step, correction)
            found.accepted[rows] = theta <= LINEAR_PART
            rows, theta = rows[theta > LINEAR_PART], theta[theta > LINEAR_PART]
            if not rows.size:
                break
            part, x, ratio = start.evaluator.take(rows, start.x), gather(start.x, rows), LINEAR_PART / 2 / theta
            found.length[rows] *= np.clip(ratio, SHORTER, LINEAR_PART)
            if clock is None:
                step = gather(start.step, rows) * from_host(found.length[rows], x)[:, None]
            else:
                clock.delta[part.rows] *= np.clip(ratio, SHORTER, LINEAR_PART)
                step, correction = clock.shorter(part.rows, gather(start.F, rows))
            moved = part.move(x, step)
            F = part.attempt(moved, x, jacobian=False)[0]
            scatter(found.x, rows, moved)
            scatter(found.F, rows, F)
            found.norms[rows], found.measured, found.jacobian = norm2(F), None, None
            found.finite[rows] |= np.isfinite(found.norms[rows])
        return found.restore(start.x, start.F, start.norms)
