"""Anderson's acceleration of fixed-point iterations."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from implicitsolve._namespace import (
    Norms,
    array_namespace,
    clear,
    empty_vectors,
    eps,
    from_host,
    gather,
    is_complex,
    scatter,
    to_host,
    zero_vectors,
)
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels import vectors
from implicitsolve.linearize._evaluator import FEW
from implicitsolve.nonlinear._fixed_point import (
    FixedPointLoop,
    FixedPointState,
    check_damping,
    check_growth_limit,
    scaled,
)
from implicitsolve.nonlinear._least_squares import newest_first
from implicitsolve.nonlinear._scheduler import SolveContext
from implicitsolve.nonlinear._state import Solution
from implicitsolve.stopping import check_flag, check_limit, check_tolerance

RENEWALS = np.asarray([8, 32, 128])  # ages at which M is built anew, and counted from when a system goes back
ROUNDING = 100  # units of roundoff below which a pivot of the small problem is noise
LARGEST = 2**27  # numbers that the memory of all systems may take: 1 GiB in float64
IDLE = 5  # steps in which ||F|| must fall by a tenth, if the mixtures promise that it is halved in each
FALLEN, PROMISED = 0.9, 0.5
FIRST_COLUMNS = 16  # room at first; it doubles as it fills
PLAIN = 10  # binary orders of magnitude from 1 within which ||F|| needs no scaling before it is squared


@dataclass(frozen=True, kw_only=True)
class Anderson:
    """Anderson's method: each step mixes the last points so that their mixed residual is smallest [1]_, [2]_.

    Parameters
    ----------
    memory : int, optional
        Most earlier steps that are mixed, within 1 GiB; 0 for none, which leaves the iteration itself. Default 60: easy
        problems converge long before, and on hard ones every vector saves residuals.
    damping : float, optional
        Positive factor of the residual in the mixed step (often called beta). Default 1.
    regularization : float, optional
        Steps whose change of F lies in the span of the newer ones', but for this part of its squared length, are left
        out of the mixture. Default 1e-10, and never less than 100 times the unit roundoff.
    growth_limit : float, optional
        Largest ||F|| that a step may lead to, over the smallest so far. Default 10.
    patience : int, optional
        Steps in which the norm of F must be halved; a system that takes longer has stagnated. Default 50.
    preconditioned : bool, optional
        Whether residuals are multiplied by the approximate inverse that J offers
        (`LinearOperator.approximate_inverse`), where the problem has `linearize` and such an inverse. Default True.

    Raises
    ------
    TypeError, ValueError
        If a setting is not usable.

    Notes
    -----
    With g(x) = x - damping M(x) F(x), where M is that inverse or I, the next point is ``g(x) - sum_j c_j dg_j``, with
    ``||F(x) - sum_j c_j dF_j||_2`` smallest; dF_j and dg_j are the changes of F and g in the last steps. Every system
    has its own mixture. On linear problems this is GMRES [2]_, as long as the memory reaches back to the start.

    Meant for problems whose residual is x - G(x) (``Problem.fixed_point``): F is taken for a step of x, whatever its
    units are.

    The history of a system is discarded in two cases. A step after which F is not finite, or has grown beyond
    `growth_limit`, is rejected: the iteration resumes from the best point, without M and with half the damping, which
    recovers step by step; after ten rejections in a row the system has failed (STAGNATED, or NONFINITE). And where the
    mixed residuals average less than half of F over 5 steps, in which F itself does not fall by a tenth, the history
    misleads: on a linear problem only a map that doubles residuals could do that. A system that fails ends at the best
    of its points. At most 500 steps unless `max_iterations` is set.

    M is built at the start and after 8, 32 and 128 steps. Measured on implicit GRUs, this saves as many residuals as
    building it at each point.

    Cost per step: 1 residual, 2 passes over the memory, and a small problem on the host. Holds 2 vectors per system for
    each step in the memory, and about eight others.

    References
    ----------
    .. [1] D. G. Anderson, "Iterative procedures for nonlinear integral equations", J. ACM 12 (1965) 547-560.
    .. [2] H. F. Walker and P. Ni, "Anderson acceleration for fixed-point iterations", SIAM J. Numer. Anal. 49 (2011)
           1715-1735.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> A = np.array([[0.5, 0.4], [-0.4, 0.5]])
    >>> problem = ims.Problem(lambda x: x - np.tanh(A @ x + 1), fixed_point=True)
    >>> result = ims.root(problem, np.zeros(2), method=ims.Anderson())
    >>> result.x.round(6), result.counts.residuals
    (array([0.944425, 0.763197]), 7)
    """

    memory: int = 60
    damping: float = 1.0
    regularization: float = 1e-10
    growth_limit: float = 10.0
    patience: int = 50
    preconditioned: bool = True

    kind: ClassVar[str] = "nonlinear"
    eliminates = True
    rdiff = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_limit("Anderson", "memory", self.memory)
        check_damping("Anderson", self.damping)
        check_tolerance("Anderson", "regularization", self.regularization)
        check_growth_limit("Anderson", self.growth_limit)
        check_limit("Anderson", "patience", self.patience, least=1)
        check_flag("Anderson", "preconditioned", self.preconditioned)

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        """Solve on arrays (B, N); see `NonlinearMethod`."""
        return _AndersonLoop(self, context, start, rows).run()


@dataclass
class _AndersonState(FixedPointState):
    """The systems that iterate, and their last points."""

    history: History
    image_step: Array  # M F
    mark: HostArray  # what ||F|| has to fall below
    idle: HostArray  # steps since it did
    promised: HostArray  # and the sum of the relative residuals that the mixtures promised in them

    def is_misled(self, rejected: HostArray) -> HostArray:
        """Systems in which ||F|| does not follow what the mixtures promise."""
        fallen = rejected | (self.norms < FALLEN * self.mark)
        self.idle = np.where(fallen, 0, self.idle + 1)
        self.promised = np.where(fallen, 0.0, self.promised)
        misled = (self.idle >= IDLE) & (self.promised < PROMISED * self.idle)
        self.mark = np.where(fallen | misled, self.norms, self.mark)
        self.idle, self.promised = np.where(misled, 0, self.idle), np.where(misled, 0.0, self.promised)
        return misled


class _AndersonLoop(FixedPointLoop[_AndersonState]):
    """Steps to the mixture of the last points."""

    stored: tuple[Array, HostArray] | None = None  # M F at a trial point, and inner products of the step there

    def _with_history(self, state: FixedPointState) -> _AndersonState:
        method, (systems, N) = self.method, state.x.shape
        least = max(method.regularization, ROUNDING * eps(array_namespace(state.x), state.x.dtype))
        within = max(FIRST_COLUMNS, LARGEST // max(1, 2 * systems * N))
        return _AndersonState(
            **vars(state),
            history=History(state.F, state.norms, min(method.memory, N, within), least),
            image_step=self._image_step(state, state.F),
            mark=state.norms,
            idle=np.zeros(systems, dtype=int),
            promised=np.zeros(systems),
        )

    def _is_due(self) -> HostArray:
        return (self.state.age[:, None] + 1 == RENEWALS).any(axis=1)

    def _trial(self) -> tuple[Array, Array]:
        state = self.state
        chosen, rest = state.history.chosen(state.norms)
        state.promised = state.promised + rest
        image = scaled(state.damping, state.image_step)
        if chosen is None:
            return -image, state.x - image
        if state.history.places is None:
            return state.history.work.mixed(state.x, image, *chosen)
        step = -image - state.history.combined(*chosen)
        return step, state.x + step

    def _measured(self, F: Array, step: Array, x: Array, *, keeps_inverse: bool) -> Norms:
        """Norms; on a device with what the history will need of this step, so that nothing is read twice."""
        state, self.stored = self.state, None
        history = state.history
        is_plain = history.memory and history.places is None and not history.exponent.any()  # F is stored unscaled
        can_store = keeps_inverse and is_plain and (state.damping == 1.0).all()
        if isinstance(F, np.ndarray) or not can_store:
            return Norms(F, step, x)
        image = self._image_step(state, F)
        numbers = to_host(state.history.store(F, state.F, step, image, state.image_step, x))
        self.stored = image, numbers[:, :-6]
        return Norms(F, step, x, numbers=np.real(numbers[:, [-6, -3, -5, -2, -4, -1]]).astype(np.float64))

    def _learn(self, step: Array, old_F: Array, rejected: HostArray) -> None:
        state = self.state
        old, drops = state.image_step, rejected | state.is_misled(rejected)
        if self.stored is None:
            state.image_step = self._image_step(state, state.F)
            dg = step - scaled(state.damping, state.image_step - old)
            state.history.append(state.F - old_F, dg, state.F, drops)
            return
        image, numbers = self.stored
        state.image_step = self._image_step(state, state.F) if rejected.any() else image
        state.history.record(numbers, drops)


class History:
    """The last differences of F and of its images g, and inner products of the differences of F, per system.

    Columns form a ring that all systems share; a system that has forgotten its past does not hold the older ones.

    Parameters
    ----------
    F : Array (b, N)
        At the start.
    norms : ndarray (b,)
        Its norms.
    memory : int
        Most differences kept.
    least : float
        See `newest_first`.
    """

    def __init__(self, F: Array, norms: HostArray, memory: int, least: float) -> None:
        b, dtype = F.shape[0], np.complex128 if is_complex(F) else np.float64
        self.memory, self.least = memory, least
        self.work: Any = vectors.select(F, size=F.shape[1])
        self.is_host = isinstance(F, np.ndarray)
        self.seen = 0  # columns since the start
        self.dF, self.dg = (empty_vectors(F, b, min(memory, FIRST_COLUMNS)) for _ in range(2))  # a ring of columns
        self.places: Indices | None = None  # of the systems in these, which may hold columns of systems that have left
        self.held = np.zeros((b, memory), dtype=bool)
        self.gram = np.zeros((b, memory, memory), dtype)
        self.onto_F = np.zeros((b, memory), dtype)  # <dF_i, F> at the newest F
        exponent = np.where(np.isfinite(norms) & (norms > 0), np.frexp(norms)[1], 0)
        self.exponent = np.where(np.abs(exponent) > PLAIN, -exponent, 0)

    @property
    def columns(self) -> int:
        """Columns in use."""
        return min(self.seen, self.memory)

    def append(self, dF: Array, dg: Array, F: Array, rejected: HostArray) -> None:
        """Append the last differences and the newer F; where the step was `rejected`, clear the history instead."""
        if not self.memory:
            return
        if self.exponent.any():
            scale = from_host(np.ldexp(1.0, self.exponent), F)[:, None]
            dF, F = scale * dF, scale * F
        if rejected.any():
            xp, mask = array_namespace(F), from_host(rejected, F)[:, None]
            dF, dg = (xp.where(mask, xp.zeros_like(d), d) for d in (dF, dg))
        if self.places is not None:
            dF, dg, F = self._placed(dF), self._placed(dg), self._placed(F)
        j, m = self._next()
        numbers = to_host(self.work.remember(self.dF, self.dg, j, m, dF, dg, F))
        self._note(numbers if self.places is None else numbers[self.places], rejected)

    def store(self, F: Array, old_F: Array, step: Array, image: Array, old_image: Array, x: Array) -> Array:
        """Write the differences of a step that will probably be taken; what `record` needs, and norms: `advance`."""
        j, m = self._next()
        return self.work.advance(self.dF, self.dg, j, m, F, old_F, step, image, old_image, x)

    def record(self, numbers: HostArray, rejected: HostArray) -> None:
        """Append what was stored; where the step was `rejected`, clear the history instead."""
        j, _ = self._next()
        for differences in (self.dF, self.dg):
            clear(differences[:, j, :], rejected)
        self._note(numbers, rejected)

    def _next(self) -> tuple[int, int]:
        """Place of the next column, for which there is room, and columns in use with it."""
        j = self.seen % self.memory
        if j == self.dF.shape[1]:
            self._grow()
        return j, min(self.seen + 1, self.memory)

    def _note(self, numbers: HostArray, rejected: HostArray) -> None:
        """Store the inner products (b, m + 1) of all columns with F, and the newest one's with itself.

        Those with the newest difference follow from them and the older ones.
        """
        j, m = self._next()
        self.seen += 1
        self.held[:, j] = True
        self.held[rejected, :] = False
        onto_F = numbers[:, :m].astype(self.gram.dtype)
        row = onto_F - self.onto_F[:, :m]
        self.gram[:, :m, j], self.gram[:, j, :m], self.gram[:, j, j] = row, np.conj(row), numbers[:, m]
        self.onto_F[:, :m] = onto_F

    def chosen(self, norms: HostArray) -> tuple[tuple[Array, Array] | None, HostArray]:
        """Weights, with the rows of dg, of the combination of dF that is nearest to F, which has these norms.

        Also the part of ||F|| that it leaves. None and ones where no system holds anything.
        """
        m = self.columns
        if not self.held[:, :m].any():
            return None, np.ones(norms.size)
        order = (self.seen - 1 - np.arange(m)) % self.memory
        gram, right = self.gram[:, order[:, None], order[None, :]], self.onto_F[:, order]
        chosen = newest_first(gram, right, self.held[:, order], self.least)
        weights = np.empty(chosen.shape, chosen.dtype)
        weights[:, order] = chosen
        with np.errstate(all="ignore"):
            gain = np.real(np.sum(np.conj(chosen) * right, axis=1)) / np.ldexp(norms, self.exponent) ** 2
            rest = np.sqrt(np.maximum(1.0 - gain, 0.0))
        return (self._placed(from_host(weights, self.dg)), self.dg[:, :m, :]), rest

    def combined(self, weights: Array, rows: Array) -> Array:
        """The combination of the present systems."""
        correction = self.work.combine(weights, rows)
        return correction if self.places is None else gather(correction, self.places)

    def _placed(self, rows: Array) -> Array:
        """Rows of the present systems at their places, zeros elsewhere."""
        if self.places is None:
            return rows
        placed = zero_vectors(rows, self.dF.shape[0])
        scatter(placed, self.places, rows)
        return placed

    def _grow(self) -> None:
        """Make room for twice as many columns."""
        used = self.dF.shape[1]
        columns = min(self.memory, 2 * used)
        self.dF, self.dg = (_copied(old, None, columns, used) for old in (self.dF, self.dg))

    def take(self, rows: Indices) -> History:
        """Return the history of some systems."""
        part = copy.copy(self)
        places = rows if self.places is None else self.places[rows]
        if places.size <= FEW * self.dF.shape[0] or not self.is_host:  # on a device copying beats more launches
            part._gather(places)
        else:
            part.places = places
        part.held, part.gram, part.onto_F = self.held[rows], self.gram[rows], self.onto_F[rows]
        part.exponent = self.exponent[rows]
        return part

    def _gather(self, places: Indices) -> None:
        """Copy the columns of the systems at these places."""
        m = self.columns
        self.dF, self.dg = (_copied(old, places, old.shape[1], m) for old in (self.dF, self.dg))
        self.places = None

    def concat(self, other: History, systems: int) -> History:
        """Return the history of these systems and of others without one; columns that no system uses are dropped."""
        whole = copy.copy(self)
        if whole.places is not None:
            whole._gather(whole.places)
        b = other.held.shape[0]
        oldest_first = (self.seen - self.columns + np.arange(self.columns)) % max(1, self.memory)
        used = oldest_first[self.held[:, oldest_first].any(axis=0)]
        whole.dF, whole.dg = (_extended(old, used, b) for old in (whole.dF, whole.dg))
        order = np.append(used, np.setdiff1d(np.arange(self.memory), used))
        whole.held = np.concatenate([self.held[:, order], other.held])
        whole.onto_F = np.concatenate([self.onto_F[:, order], other.onto_F])
        whole.gram = np.concatenate([self.gram[:, order[:, None], order[None, :]], other.gram])
        whole.exponent = np.concatenate([self.exponent, other.exponent])
        whole.seen = used.size
        return whole


def _copied(old: Array, places: Indices | None, columns: int, used: int) -> Array:
    """The first `used` columns of some systems, or of all, in an array with room for more."""
    room = empty_vectors(old, old.shape[0] if places is None else places.size, columns)
    room[:, :used, :] = old[:, :used, :] if places is None else gather(old[:, :used, :], places)
    return room


def _extended(old: Array, used: Indices, systems: int) -> Array:
    """Some columns of all systems, followed by zeros for further ones."""
    room = empty_vectors(old, old.shape[0] + systems, old.shape[1])
    for to, column in enumerate(used.tolist()):
        room[: old.shape[0], to, :] = old[:, column, :]
    room[old.shape[0] :, : used.size, :] = 0.0
    return room
