"""Broyden's rank-one updates: of a factorized Jacobian until it is renewed, and as a method without a Jacobian.

With H the inverse of the factorized J, and s = x+ - x, y = F(x+) - F(x) of each step since, the inverse is

    H+ = (I + w s^H) H,        w = (s - H y) / (s^H H y)

(Sherman and Morrison), which maps y to s. After a whole step, s = -H F(x), w is the next direction over s^H s [1]_, so
that each step kept costs one vector, and two passes over it, without matrices.

References
----------
.. [1] C. T. Kelley, "Iterative methods for linear and nonlinear equations", SIAM (1995), section 7.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from scipy.linalg import blas

from implicitsolve._arrays.host import from_host, gather, to_host
from implicitsolve._arrays.namespace import array_namespace, is_safe, numpy_namespace, safe_range
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels import rank_one
from implicitsolve.kernels._norms import Norms, norm_max
from implicitsolve.kernels._vectors import vectors_like
from implicitsolve.nonlinear._fixed_point import FixedPointLoop, FixedPointState, scale_rows
from implicitsolve.nonlinear._state import FixedPointMethod, Solution, SolveContext
from implicitsolve.stopping import check_flag, check_limit, check_number, check_positive

MAX_ASSEMBLIES = 5  # at one point, while lengths of differences are guesses
DOT = {"f": blas.sdot, "d": blas.ddot}
AXPY = {"f": blas.saxpy, "d": blas.daxpy, "F": blas.caxpy, "D": blas.zaxpy}


class BroydenInverse:
    """The updates since each system's last factorization."""

    def __init__(self) -> None:
        # s, w and a factor of w for each system (b, 1); s is zero for the systems that were factorized since
        self.pairs: list[tuple[Array, Array, Array]] = []
        self.last: tuple[Array, Array, tuple[Array, Array] | None] | None = None
        # s, s^H d for d = -H F(x), and where not all steps were whole: the rest d - s, and which were

    def correct(self, z: Array) -> Array:
        """-H F at the newest iterate, given z = -H F for the factorized J, which is overwritten."""
        if not self.pairs and self.last is None:
            return z
        newest = [] if self.last is None else [self.last[0]]
        following = [pair[0] for pair in self.pairs[1:]] + newest
        gain = None
        if self.pairs:
            correct = rank_one.select(z, size=z.shape[1])
            gain = _dot(self.pairs[0][0], z)
            for (_, w, factor), s in zip_longest(self.pairs, following):
                gain = correct(z, w, gain * factor, s)
        if self.last is None:
            return z
        s, advance, rest = self.last
        self.last = None
        gain = _dot(s, z) if gain is None else gain
        z, w, factor = _newest(z, gain, advance, rest)
        self.pairs.append((s, w, factor))
        return z

    def step(self, s: Array, d: Array, length: HostArray | None = None, size: HostArray | None = None) -> None:
        """Note the step s, `length` times the direction d; the length is 0 for a rejected step, None for whole steps.

        `size` is ||s||, if s is d and that is known.
        """
        xp = array_namespace(s)
        rest = None
        if length is not None and not (length == 1.0).all():
            rest = d * from_host(1.0 - length, d)[:, None], from_host(length == 1.0, d)[:, None]
        with np.errstate(all="ignore"):
            advance = _dot(s, d)
            size = np.sqrt(np.abs(to_host(advance[:, 0]))) if size is None else size
        is_fit = is_safe(size, xp, s.dtype) if length is None else is_safe(size, xp, s.dtype) | (length == 0)
        if not is_fit.all():  # w s^H is the same for any multiple of s
            size = norm_max(s)
            usable = (size > 0) & np.isfinite(size)
            least = np.frexp(float(xp.finfo(s.dtype).smallest_normal))[1]  # whose reciprocal is finite
            exponent = np.maximum(np.where(usable, np.frexp(size)[1], 0), least)
            s = s * from_host(np.ldexp(1.0, -exponent), s)[:, None]
            advance = _dot(s, d)
        self.last = s, advance, rest

    def forget(self, oldest: int) -> None:
        """Drop pairs that no system uses: those of more than `oldest` steps ago."""
        self.pairs = self.pairs[max(0, len(self.pairs) - oldest) :]

    def reset(self, where: HostArray) -> None:
        if where.all():
            self.pairs, self.last = [], None
        if not where.any() or not (self.pairs or self.last):
            return
        self.pairs = [(_without(s, where), _without(w, where), factor) for s, w, factor in self.pairs]
        if self.last is not None:
            self.last = _without(self.last[0], where), *self.last[1:]

    def take(self, indices: Indices) -> BroydenInverse:
        """The updates of some systems; those of the others are dropped here too."""
        found: dict[int, Array] = {}  # after whole steps w is the next s

        def part_of(x: Array) -> Array:
            if id(x) not in found:
                found[id(x)] = gather(x, indices)
            return found[id(x)]

        pairs = [(part_of(s), part_of(w), part_of(factor)) for s, w, factor in self.pairs]
        if self.last is not None:
            s, advance, rest = self.last
            rest = None if rest is None else (part_of(rest[0]), part_of(rest[1]))
            self.last = part_of(s), part_of(advance), rest
        self.pairs = pairs
        return self


class WholeSteps:
    """`BroydenInverse` for one real system on the host whose steps are whole: w is the next step over the square."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.steps: list[HostArray] = []  # since the factorization
        self.squares: list[float] = []  # s^T s of each
        self.general: BroydenInverse | None = None  # once a step was not whole

    def correct(self, z: HostArray, direction: HostArray | None = None) -> HostArray:
        """Direction at the newest iterate, given z = -H F for the factorized J, which is overwritten.

        With the direction that H has led to last, any z = -H v by the factors becomes that by the same H.
        """
        if self.general is not None:
            return self.general.correct(z[None])[0]
        growth, axpy, dot = 1.0, AXPY[z.dtype.char], DOT[z.dtype.char]
        for s, square, following in zip(self.steps, self.squares, [*self.steps[1:], direction]):
            gain = dot(s, z) / square
            if following is not None:
                axpy(following, z, a=gain)
            else:
                growth = 1 / (1 - gain) if gain != 1 else math.inf
        if self.steps and math.isfinite(growth):
            z *= growth
        return z

    def step(self, s: HostArray, d: HostArray, length: float, square: float) -> None:
        """Note the step s, `length` times the direction d; `square` is d^T d."""
        low, high = safe_range(numpy_namespace, s.dtype)
        if self.general is None and length == 1 and low < math.sqrt(square) < high:
            self.steps.append(s)
            self.squares.append(square)
            return
        if self.general is None:
            self.general = BroydenInverse()
            for step, w, size in zip(self.steps, [*self.steps[1:], d], self.squares):
                self.general.pairs.append((step[None], w[None], np.full((1, 1), 1 / size, dtype=s.dtype)))
        self.general.step(s[None], d[None], np.asarray([length]))


def _newest(z: Array, gain: Array, advance: Array, rest: tuple[Array, Array] | None) -> tuple[Array, Array, Array]:
    """Direction, w and its factor after a step s, from z = -H F, s^H z and s^H d."""
    work: Any = vectors_like(z)
    growth, factor = work.growth(gain, advance)
    if rest is None:
        z *= growth
        return z, z, factor
    # w is (z - rest) growth / advance; where the whole step was taken, z growth is both w and direction
    w = (z - rest[0]) * growth
    return array_namespace(z).where(rest[1], w, z + w * (gain * factor)), w, factor


def _dot(s: Array, z: Array) -> Array:
    """s^H z for each system, as a column."""
    work: Any = vectors_like(z)
    return work.dot(s, z)


def _without(s: Array, where: HostArray) -> Array:
    """Copy of s with zeros for the systems `where`."""
    xp = array_namespace(s)
    return xp.where(from_host(where, s)[:, None], xp.zeros_like(s), s)


@dataclass(frozen=True, kw_only=True)
class Broyden(FixedPointMethod):
    """Broyden's "good" method with limited memory, from J = I, for each system of a batch [1]_.

    Parameters
    ----------
    memory : int, optional
        Rank-one updates after which a system drops them and restarts. Default 50.
    damping : float, optional
        The first J is I / damping. Default 1.
    growth_limit : float, optional
        Largest ||F|| that a step may lead to, over the smallest so far. Default 10.
    patience : int, optional
        Steps in which the norm of F must be halved; a system that takes longer has stagnated. Default 50.
    preconditioned : bool, optional
        As for `Anderson`: the first J is the inverse of that inverse. Default True.

    Raises
    ------
    TypeError, ValueError
        If a setting is not usable.

    Notes
    -----
    Meant for problems whose residual is x - G(x) (``Problem.fixed_point``): J begins as I, whatever the units are.

    Steps are rejected, and limited, as those of `Anderson`; a rejected one drops the updates.

    Cost per step: 1 residual, and 2 passes over 2 vectors for each update. Holds 2 vectors per system for each update,
    and about eight others.

    References
    ----------
    .. [1] C. T. Kelley, "Iterative methods for linear and nonlinear equations", SIAM (1995), section 7.3.

    Examples
    --------
    >>> A = np.array([[0.5, 0.4], [-0.4, 0.5]])
    >>> problem = ims.Problem(lambda x: x - np.tanh(A @ x + 1), fixed_point=True)
    >>> ims.root(problem, np.zeros(2), method=ims.Broyden()).x.round(6)
    array([0.944425, 0.763197])
    """

    memory: int = 50
    damping: float = 1.0
    growth_limit: float = 10.0
    patience: int = 50
    preconditioned: bool = True

    def __post_init__(self) -> None:
        check_limit("Broyden", "memory", self.memory, least=1)
        check_positive("Broyden", "damping", self.damping)
        check_number("Broyden", "growth_limit", self.growth_limit, least=1)
        check_limit("Broyden", "patience", self.patience, least=1)
        check_flag("Broyden", "preconditioned", self.preconditioned)

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        return _BroydenLoop(self, context, start, rows).run()


@dataclass
class _BroydenState(FixedPointState):
    """The systems that iterate, and their updates."""

    updates: BroydenInverse
    first: HostArray  # damping with which each system's updates began


class _BroydenLoop(FixedPointLoop[_BroydenState]):
    """Steps with a J that is updated by the steps so far."""

    ADMITS = None
    size: HostArray | None = None  # length of the last step, where it is known

    def _with_history(self, state: FixedPointState) -> _BroydenState:
        return _BroydenState(**vars(state), updates=BroydenInverse(), first=state.damping)

    def _is_due(self) -> HostArray:
        return (self.state.age + 1) % self.method.memory == 0

    def _proposal(self) -> Array:
        state = self.state
        return state.updates.correct(-scale_rows(state.damping, self._image_step(state, state.F)))

    def _measure(self, F: Array, step: Array, x: Array, *, keeps_inverse: bool) -> Norms:
        measured = Norms(F, step, x)
        self.size = None if isinstance(F, np.ndarray) else measured.two(1)
        return measured

    def _learn(self, step: Array, old_F: Array, rejected: HostArray) -> None:
        state = self.state
        state.updates.step(step, step, np.ones(rejected.size), self.size)
        state.updates.reset(rejected | (state.age % self.method.memory == 0) | (state.damping != state.first))
        state.updates.forget(self.method.memory)
        state.first = state.damping
