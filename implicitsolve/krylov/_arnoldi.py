"""One Arnoldi cycle, shared by GMRES, FGMRES and LGMRES: the basis of a Krylov space for each system of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np

from implicitsolve._namespace import (
    array_namespace,
    clear,
    empty_vectors,
    eps,
    from_host,
    gather,
    is_complex,
    is_safe,
    norm2,
    scatter,
    to_host,
)
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels import vectors
from implicitsolve.krylov._hessenberg import HessenbergQR
from implicitsolve.operators import LinearOperator

OnFinish: TypeAlias = Callable[[Indices, Array, Array, HessenbergQR, HostArray], None]

GOOD_GAIN = 0.5  # factor of the residual's norm that the last vector must have gained for a polish to be tried
WORSE = 1.1  # times that is what the polish is expected to gain: measured 1.02 to 1.07 on implicit GRUs
FIRST_COLUMNS = 16  # for which a basis has room at first; it grows by doubling


class Preconditioner(Protocol):
    """What stands for M: a product, and the part of it for some systems."""

    def matvec(self, v: Array) -> Array: ...
    def take(self, indices: Indices) -> Preconditioner: ...


class Cycle:
    """What one Arnoldi cycle found, for every system that entered it.

    Attributes
    ----------
    dx : Array (B, N)
        Correction that minimizes the residual over the space.
    residual : Array (B, N) or None
        Residual that remains, from the recurrence, if it was wanted: no product was spent on it.
    norm : ndarray (B,)
        Its norm.
    columns : ndarray (B,)
        Size of each system's space.
    broken : ndarray (B,) of bool
        Systems whose space ended before the target: A is singular on it.
    nonfinite : ndarray (B,) of bool
        Systems for which a product was not finite.
    """

    def __init__(self, r: Array, norms: HostArray) -> None:
        self.r = r
        self.dx: Array = None
        self.residual: Array = None
        self.norm = norms.copy()
        size = r.shape[0]
        self.columns = np.zeros(size, dtype=int)
        self.broken = np.zeros(size, dtype=bool)
        self.nonfinite = np.zeros(size, dtype=bool)

    def put(self, systems: Indices, dx: Array, residual: Array | None) -> None:
        """Write what some systems have found."""
        if systems.size == self.norm.size:  # all at once, so in their order
            self.dx, self.residual = dx, residual
            return
        if self.dx is None:
            self.complete(wants_residual=residual is not None)
        scatter(self.dx, systems, dx)
        if residual is not None:
            scatter(self.residual, systems, residual)

    def complete(self, *, wants_residual: bool) -> None:
        """No correction, and so the first residual, for the systems of which nothing else is known."""
        xp = array_namespace(self.r)
        if self.dx is None:
            self.dx = xp.zeros_like(self.r)
            self.residual = xp.asarray(self.r, copy=True) if wants_residual else None

    def replace(self, systems: Indices, other: Cycle) -> None:
        """Take over what a second cycle found for some systems."""
        scatter(self.dx, systems, other.dx)
        self.norm[systems], self.broken[systems] = other.norm, other.broken
        self.nonfinite[systems] = other.nonfinite
        self.columns[systems] += other.columns


def arnoldi_cycle(
    A: LinearOperator,
    r: Array,
    norms: HostArray,
    *,
    target: HostArray,
    columns: int,
    limits: HostArray | None = None,
    M: Preconditioner | None = None,
    augment: Array | None = None,
    has_one: HostArray | None = None,
    on_finish: OnFinish | None = None,
    polish: bool = False,
    wants_residual: bool = True,
) -> Cycle:
    """Minimize ||r - A z|| over z in span(M v_1, ..., M v_m), plus the directions of `augment`.

    Parameters
    ----------
    A, M : operators on (B, N)
        M approximates the inverse and may change from one product to the next.
    r : Array (B, N)
        Residuals; `norms` are their 2-norms.
    target : ndarray (B,)
        A system is finished when its residual norm is at most this.
    columns : int
        Most Arnoldi steps.
    limits : ndarray (B,) of int, optional
        Most steps of each system.
    augment : Array (B, p, N), optional
        Directions that take the place of the last p of them.
    has_one : ndarray (B, p) of bool, optional
        Which of these systems have. Default: all.
    on_finish : callable, optional
        Called as ``(systems, V, Z, small, columns)`` before a system's basis is given up.
    polish : bool, optional
        Whether a system may end with a correction M (r - A z), which costs no product, and where M is good gains as
        much as another vector would. Then `norm` is what is expected of it. Default False.
    wants_residual : bool, optional
        Whether the residual that remains is needed, which takes a pass over the basis. Default True.

    Notes
    -----
    Per step: 1 product, 1 preconditioner, 4 passes over the basis (classical Gram-Schmidt, twice) and 1 transfer to the
    host. Holds ``columns + 1`` vectors per system, twice that with M or `augment`; beyond 16 the room for them grows as
    they come. Systems that have finished are fed zeros, and leave the arrays once they are half of those in them.
    """
    cycle, capacity, wants_residual = Cycle(r, norms), max(1, min(columns, r.shape[1])), wants_residual or polish
    given = augment, has_one
    arnoldi = _Arnoldi(cycle, A, M, r, target, capacity, limits, given, on_finish, polish, wants_residual)
    while arnoldi.alive.any() and arnoldi.small.columns < arnoldi.capacity:
        arnoldi.compact()
        arnoldi.expand()
    arnoldi.finish(np.arange(arnoldi.rows.size))
    cycle.complete(wants_residual=wants_residual)
    return cycle


class _Arnoldi:
    """The growing bases; arrays and host arrays hold the systems that have not left, `rows` are their places."""

    def __init__(
        self,
        cycle: Cycle,
        A: LinearOperator,
        M: Preconditioner | None,
        r: Array,
        target: HostArray,
        capacity: int,
        limits: HostArray | None,
        augment: tuple[Array | None, HostArray | None],
        on_finish: OnFinish | None,
        polish: bool,
        wants_residual: bool,
    ) -> None:
        xp = array_namespace(r)
        norms, size = cycle.norm, r.shape[0]
        self.cycle, self.A, self.M, self.target, self.capacity = cycle, A, M, target, capacity
        self.on_finish, self.polish, self.wants_residual = on_finish, polish, wants_residual
        self.augment, self.has_one = augment
        self.given = 0 if self.augment is None else min(self.augment.shape[1], capacity - 1)
        self.precision = eps(xp, r.dtype)
        self.rows = np.arange(size)
        self.limits = np.full(size, capacity) if limits is None else limits
        self.alive = (norms > target) & np.isfinite(norms) & (self.limits > 0)
        self.count = np.zeros(size, dtype=int)
        self.estimate, self.expected = norms.copy(), norms.copy()  # of the residual, and of what a polish would leave
        self.broken, self.nonfinite = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
        columns = min(capacity, FIRST_COLUMNS)
        self.small = HessenbergQR(norms, columns, np.complex128 if is_complex(r) else np.float64)
        self.V = _room(r, size, columns + 1)
        self.work: Any = vectors.select(r, size=r.shape[1])
        self.work.start(self.V, r, norms, self.alive)
        self.is_flexible = M is not None or self.given > 0
        self.Z = _room(r, size, columns + 1) if self.is_flexible else self.V

    def expand(self) -> None:
        """Add one vector to each basis."""
        j = self.small.columns
        if j + 1 == self.V.shape[1]:
            self._grow(min(2 * j, self.capacity))
        z = self._direction(j)
        if self.is_flexible:
            self.Z[:, j, :] = z
        h, length = self._orthonormalize(self.A.matvec(z))
        is_finite = np.isfinite(h).all(axis=1) & np.isfinite(length)
        self.nonfinite |= self.alive & ~is_finite
        self.alive &= is_finite
        h, below = np.where(self.alive[:, None], h, 0.0), np.where(self.alive, length, 0.0)
        with np.errstate(all="ignore"):
            estimate, is_void = self.small.append(h, below, 64 * self.precision)
        # the space is exhausted when what is new in A z is rounding error
        is_exhausted = is_void | (below <= 4 * self.precision * np.maximum(np.abs(h).max(axis=1), below))
        self.count = np.where(self.alive & ~is_void, j + 1, self.count)
        self.broken |= self.alive & is_void & (estimate > self.target)
        clear(self.V[:, j + 1, :], (~self.alive | is_exhausted) & ~(length == 0))  # these get no further vectors
        self._expect(estimate)
        self.alive &= ~is_exhausted & (self.expected > self.target) & (self.count < self.limits)

    def _orthonormalize(self, w: Array) -> tuple[HostArray, HostArray]:
        """Write the next vector; return the parts of w along the others, and the length of the rest."""
        V = self.V[:, : self.small.columns + 2, :]
        with np.errstate(all="ignore"):
            numbers = to_host(self.work.orthonormalize(V, w))
            h, squares = numbers[:, :-1], np.abs(numbers[:, -1])
            below = np.sqrt(squares.astype(np.float64))
            is_good = is_safe(np.sqrt(squares), array_namespace(w), w.dtype)  # in the precision of that kernel
        if not is_good[self.alive].all():
            v = V[:, -1, :]
            below = np.where(is_good, below, norm2(v))
            usable = ~is_good & (below > 0)
            V[:, -1, :] = v / from_host(np.where(usable, below, 1.0), v)[:, None]
        return h, below

    def _expect(self, estimate: HostArray) -> None:
        """Note the residuals' norms; with `polish`, what it would leave, judged by what the last vector has gained."""
        expected = estimate
        if self.polish:
            with np.errstate(all="ignore"):
                gain = estimate / self.estimate
                expected = np.where(gain <= GOOD_GAIN, WORSE * gain * estimate, estimate)
        self.estimate = np.where(self.alive, estimate, self.estimate)
        self.expected = np.where(self.alive, expected, self.expected)

    def _grow(self, columns: int) -> None:
        """Make room for more vectors: few are needed as a rule, and memory never used before is slow."""
        self.small.grow(columns)
        self.V = _resized(self.V, columns + 1)
        self.Z = _resized(self.Z, columns + 1) if self.is_flexible else self.V

    def _direction(self, j: int) -> Array:
        """M v, or one of the given directions in the place of the last ones."""
        v, place = self.V[:, j, :], j - (self.capacity - self.given)
        if self.augment is None or place < 0:
            return v if self.M is None else self.M.matvec(v)
        given, is_given = self.augment[:, place, :], None if self.has_one is None else self.has_one[:, place]
        if is_given is None or is_given.all():
            return given
        own = v if self.M is None else self.M.matvec(v)
        return array_namespace(v).where(from_host(is_given, v)[:, None], given, own)

    def finish(self, which: Indices) -> None:
        """Turn the least-squares solutions of some rows into corrections of their systems."""
        m = self.small.columns
        cycle, systems, count = self.cycle, self.rows[which], self.count[which]
        cycle.columns[systems], cycle.broken[systems] = count, self.broken[which]
        cycle.nonfinite[systems] = self.nonfinite[which]
        if not (which.size and m):
            return
        if which.size == self.rows.size:
            small, V, Z = self.small, self.V[:, : m + 1, :], self.Z[:, :m, :]
        else:
            small, V = self.small.take(which), gather(self.V[:, : m + 1, :], which)
            Z = gather(self.Z[:, :m, :], which) if self.is_flexible else V[:, :m, :]
        with np.errstate(all="ignore"):
            dx = self.work.combine(from_host(small.solve(count), Z), Z)
            is_wanted = self.wants_residual
            residual = self.work.combine(from_host(small.residual_coordinates(count), V), V) if is_wanted else None
            cycle.put(systems, dx, residual)
        cycle.norm[systems] = np.abs(small.g[np.arange(which.size), count])
        self._polish(which)
        if self.on_finish is not None:
            self.on_finish(systems, V, Z, small, count)

    def _polish(self, which: Indices) -> None:
        """Correct the solutions of rows that need no more than that."""
        which = which[(self.expected[which] <= self.target[which]) & (self.estimate[which] > self.target[which])]
        if which.size:
            cycle, systems = self.cycle, self.rows[which]
            if which.size == cycle.norm.size:
                r = cycle.residual
                cycle.dx = cycle.dx + (r if self.M is None else self.M.matvec(r))
            else:
                r = gather(cycle.residual, systems)
                M = self.M if self.M is None or which.size == self.rows.size else self.M.take(which)
                scatter(cycle.dx, systems, gather(cycle.dx, systems) + (r if M is None else M.matvec(r)))
            cycle.norm[systems] = self.expected[which]

    def compact(self) -> None:
        """Let systems that have ended leave, once they are half of those in the arrays."""
        if 2 * self.alive.sum() > self.rows.size:
            return
        self.finish(np.flatnonzero(~self.alive))
        keep, used = np.flatnonzero(self.alive), self.small.columns + 1
        self.V = _shrunk(self.V, keep, used)
        self.Z = _shrunk(self.Z, keep, used) if self.is_flexible else self.V
        self.small, self.A = self.small.take(keep), self.A.take(keep)
        self.M = None if self.M is None else self.M.take(keep)
        self.augment = None if self.augment is None else gather(self.augment, keep)
        self.has_one = None if self.has_one is None else self.has_one[keep]
        for name in ("rows", "alive", "target", "limits", "count", "estimate", "expected", "broken", "nonfinite"):
            setattr(self, name, getattr(self, name)[keep])


def _room(like: Array, systems: int, columns: int) -> Array:
    """Array (systems, columns, N) for a basis; on a device the vectors of one column lie in one piece."""
    if isinstance(like, np.ndarray):
        return np.empty((systems, columns, like.shape[-1]), dtype=like.dtype)
    return array_namespace(like).permute_dims(empty_vectors(like, columns, systems), (1, 0, 2))


def _shrunk(V: Array, keep: Indices, used: int) -> Array:
    """Some systems of V (B, m, N), of which `used` vectors are copied."""
    part = _room(V, keep.size, V.shape[1])
    part[:, :used, :] = gather(V[:, :used, :], keep)
    return part


def _resized(V: Array, columns: int) -> Array:
    """The same vectors, with room for others behind them."""
    wide = _room(V, V.shape[0], columns)
    wide[:, : V.shape[1], :] = V
    return wide
