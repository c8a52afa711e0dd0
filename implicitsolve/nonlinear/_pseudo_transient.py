"""PseudoTransient: steady states by implicit Euler steps whose length grows as ||F|| falls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from implicitsolve._arrays.host import from_host, gather, scatter, to_host
from implicitsolve._arrays.namespace import array_namespace, as_inexact, copy_array, is_cupy_array
from implicitsolve._typing import Array, Indices
from implicitsolve.errors import ChecksKeywords
from implicitsolve.globalize._line_search import ConstantForcing, SearchResult, SearchStart
from implicitsolve.globalize._searches import FullStep
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.nonlinear._block_newton import BlockNewton
from implicitsolve.nonlinear._newton_krylov import NewtonKrylov
from implicitsolve.nonlinear._plan import NOT_SPARSE, SPARSE, Stage, run
from implicitsolve.nonlinear._sparse_newton import FactoredNewton, SparseNewton
from implicitsolve.nonlinear._state import NonlinearMethod, Solution, SolveContext
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.stopping import check_choice, check_number, check_positive

STEPS = 500  # at most, where the caller set no limit
SHORTER, TRIALS = 0.1, 6  # of a step to where F is not finite, and how often
MOST_GROWTH = 10.0  # of the time step from one step to the next
LINEAR, SHRINKAGE = 0.5, 0.5  # part of ||F|| by which it may differ from F + J s; change of delta where it does more


@dataclass(frozen=True, kw_only=True)
class PseudoTransient(ChecksKeywords, NonlinearMethod):
    """Pseudo-transient continuation: follow V dx/dt = +F(x) or -F(x) to its steady state, a root of F.

    Each step solves ``(J - sign V / delta) s = -F``, an implicit Euler step of length delta, without a line search.
    delta grows by switched evolution relaxation, ``delta *= increment ||F_old|| / ||F||`` [1]_, so that the last steps
    are Newton's; where F differs from F_old + J s by more than half of the larger of both norms, it changes by 0.5 in
    place of `increment`. ||F|| may grow on the way: where Newton's method is caught by a minimizer of ||F||, or finds
    an unstable state, time steps lead from an initial state to the stable one that evolves from it.

    Parameters
    ----------
    sign : {None, 1, -1}, optional
        1 if F is the right-hand side, V dx/dt = F(x); -1 for V dx/dt = -F(x), as for x - G(x), or for discretized
        -u_xx - f(u). Default None: the one in whose direction ||F|| falls at x0, by the sign of <F, J F>.
    mass : array_like, optional
        The diagonal V, of the shape of one state, or a number. Default 1. Zeros are algebraic equations.
    first_step : float, optional
        First delta, over ``||V F|| / ||J F||``, the time in which F changes by about its own size. Default 0.1: a
        delta beyond the reciprocal of a positive eigenvalue would lead to the unstable state.
    increment : float, optional
        Growth of delta while ||F|| stays the same and F is nearly linear. Default 2.
    newton : NewtonKrylov, SparseNewton or BlockNewton, optional
        How linear systems are solved: by products, with a `preconditioner` that is one for the shifted J too; by
        factors of the sparse J, declared or detected; or of the blocks. Default None: `BlockNewton` for problems with a
        `BlockBanded` structure, else `SparseNewton`, which uses products where J is not sparse. Of its settings
        `line_search`, `forcing` (0.01), `reuse` ("none") and `retry` have no effect.

    Notes
    -----
    delta belongs to each system of a batch. A step to where F is not finite is shortened tenfold, up to six times.
    Units of F, of x and of time change no decision: the first delta is a ratio of norms. At most 500 steps unless
    `max_iterations` is set.

    References
    ----------
    .. [1] C. T. Kelley and D. E. Keyes, "Convergence analysis of pseudo-transient continuation", SIAM J. Numer. Anal.
           35 (1998) 508-523, (1.3) and (1.6); increment as in PETSc's TSPSEUDO, where it is 1.1.

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
        clock = _Clock(self, evaluator, start.x)
        stop = replace(stop, max_iterations=STEPS) if stop.max_iterations is None else stop
        context = replace(context, stop=stop, shift=clock.shift)
        if newton is None:
            newton = BlockNewton() if evaluator.problem.block_structure is not None else SparseNewton()
        if isinstance(newton, BlockNewton):
            return replace(newton, line_search=FINITE, reuse="none").solve(context, start, rows)
        products = newton if isinstance(newton, NewtonKrylov) else NewtonKrylov()
        products = replace(products, line_search=FINITE, forcing=ConstantForcing(eta=0.01), retry=False)
        if isinstance(newton, NewtonKrylov) or not (isinstance(start.x, np.ndarray) or is_cupy_array(start.x)):
            return products.solve(context, start, rows)
        search = SparseNewton(structure=newton.structure, budget=newton.budget).search
        factored = FactoredNewton(line_search=FINITE, reuse="none")
        stages = Stage(method=search), Stage(method=factored, when=SPARSE), Stage(method=products, when=NOT_SPARSE)
        return run(stages, context, start, rows)


class _Clock:
    """Time steps of all systems, in the places of the whole batch."""

    def __init__(self, method: PseudoTransient, evaluator: Evaluator, x0: Array) -> None:
        systems = x0.shape[0]
        self.method, self.x = method, copy_array(x0)
        self.delta, self.norms = np.full(systems, np.nan), np.full(systems, np.nan)
        self.sign = np.ones(systems) * (method.sign or np.nan)
        self.mass: Array = 1.0
        if method.mass is not None:
            xp = array_namespace(x0)
            mass = as_inexact(method.mass, "mass")
            if tuple(mass.shape) not in ((), evaluator.event_shape):
                raise ValueError(
                    f"PseudoTransient: `mass` must be a number or have the shape {evaluator.event_shape} of a state, "
                    f"got {tuple(mass.shape)}"
                )
            mass = xp.astype(xp.asarray(mass, device=x0.device), x0.dtype)
            self.mass = xp.reshape(xp.broadcast_to(mass, evaluator.event_shape), (1, evaluator.size))

    def shift(self, rows: Indices, J: LinearOperator, x: Array, F: Array) -> LinearOperator:
        """J of the next step for systems `rows` of the whole batch."""
        return _with_diagonal(J, self._diagonal(rows, J, x, F))

    def _diagonal(self, rows: Indices, J: LinearOperator, x: Array, F: Array) -> Array:
        """What is added to the diagonals of J, (b, N)."""
        method, norms = self.method, norm2(F)
        new = np.isnan(self.norms[rows])
        with np.errstate(all="ignore"):
            if new.any():
                image = J.matvec(F)
                first = method.first_step * norm2(self.mass * F) / norm2(image)
                falls = np.where(np.real(to_host(array_namespace(F).vecdot(F, image))) > 0, -1.0, 1.0)
                self.delta[rows] = np.where(new, first, self.delta[rows])
                self.sign[rows] = np.where(np.isnan(self.sign[rows]), falls, self.sign[rows])
            else:
                old, rate = self.norms[rows], from_host(self.sign[rows] / self.delta[rows], F)[:, None]
                predicted = rate * self.mass * (x - gather(self.x, rows))  # F + J s
                is_linear = norm2(F - predicted) <= LINEAR * np.fmax(norms, old)
                growth = np.fmin(np.where(is_linear, method.increment, SHRINKAGE) * old / norms, MOST_GROWTH)
                self.delta[rows] *= np.where(norms == old, 1.0, growth)
            self.norms[rows] = norms
            scatter(self.x, rows, x)
            shift = -self.sign[rows] / self.delta[rows]
        return from_host(np.where(np.isfinite(shift), shift, 0.0), F)[:, None] * (self.mass + 0 * F)


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


class _Finite(FullStep):
    """Whole steps, shortened where F is not finite."""

    def search(self, start: SearchStart) -> SearchResult:
        found = start.full_step()
        for _ in range(TRIALS):
            if found.finite.all():
                break
            found.length = np.where(found.finite, found.length, SHORTER * found.length)
            start.try_length(found, found.length)
            found.finite = np.isfinite(found.norms)
        found.accepted = found.finite.copy()
        return found.restored(start.x, start.F, start.norms)


FINITE = _Finite()
