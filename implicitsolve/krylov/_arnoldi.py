"""One Arnoldi cycle, shared by GMRES, FGMRES and LGMRES: the basis of a Krylov space for each system of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np

from implicitsolve._namespace import (
    array_namespace,
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
    residual : Array (B, N)
        Residual that remains, from the recurrence: no product was spent on it.
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
        xp = array_namespace(r)
        self.dx = xp.zeros_like(r)
        self.residual = xp.asarray(r, copy=True)
        self.norm = norms.copy()
        size = r.shape[0]
        self.columns = np.zeros(size, dtype=int)
        self.broken = np.zeros(size, dtype=bool)
        self.nonfinite = np.zeros(size, dtype=bool)

    def replace(self, systems: Indices, other: Cycle) -> None:
        """Take over what a second cycle found for some systems."""
        scatter(self.dx, systems, other.dx)
        scatter(self.residual, systems, other.residual)
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
    on_finish: OnFinish | None = None,
    polish: bool = False,
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
    on_finish : callable, optional
        Called as ``(systems, V, Z, small, columns)`` before a system's basis is given up.
    polish : bool, optional
        Whether a system may end with a correction M (r - A z), which costs no product, and where M is good gains as
        much as another vector would. Then `norm` is what is expected of it. Default False.

    Notes
    -----
    Per step: 1 product, 1 preconditioner, 4 passes over the basis (classical Gram-Schmidt, twice) and 1 transfer to the
    host. Holds ``columns + 1`` vectors per system, twice that with M or `augment`; beyond 16 the room for them grows as
    they come. Systems that have finished are fed zeros, and leave the arrays once they are half of those in them.
    """
    cycle = Cycle(r, norms)
    arnoldi = _Arnoldi(cycle, A, M, r, target, max(1, min(columns, r.shape[1])), limits, augment, on_finish, polish)
    while arnoldi.alive.any() and arnoldi.small.columns < arnoldi.capacity:
        arnoldi.compact()
        arnoldi.expand()
    arnoldi.finish(np.arange(arnoldi.rows.size))
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
        augment: Array | None,
        on_finish: OnFinish | None,
        polish: bool,
    ) -> None:
        xp = array_namespace(r)
        norms, size = cycle.norm, r.shape[0]
        self.cycle, self.A, self.M, self.target, self.capacity = cycle, A, M, target, capacity
        self.augment, self.on_finish, self.polish = augment, on_finish, polish
        self.given = 0 if augment is None else min(augment.shape[1], capacity - 1)
        # saves products with M, for one transfer a cycle
        self.is_given_everywhere = bool(self.given) and M is not None and bool(xp.all(xp.any(augment != 0, axis=2)))
        self.precision = eps(xp, r.dtype)
        self.rows = np.arange(size)
        self.limits = np.full(size, capacity) if limits is None else limits
        self.alive = (norms > target) & np.isfinite(norms) & (self.limits > 0)
        self.count = np.zeros(size, dtype=int)
        self.estimate, self.expected = norms.copy(), norms.copy()  # of the residual, and of what a polish would leave
        self.broken, self.nonfinite = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
        columns = min(capacity, FIRST_COLUMNS)
        self.small = HessenbergQR(norms, columns, np.complex128 if is_complex(r) else np.float64)
        self.V = xp.empty((size, columns + 1, r.shape[1]), dtype=r.dtype, device=r.device)
        self.V[:, 0, :] = _unit(r, norms, self.alive)
        self.is_flexible = M is not None or self.given > 0
        self.Z = xp.empty_like(self.V) if self.is_flexible else self.V

    def expand(self) -> None:
        """Add one vector to each basis."""
        j = self.small.columns
        if j + 1 == self.V.shape[1]:
            self._grow(min(2 * j, self.capacity))
        z = self._direction(j)
        if self.is_flexible:
            self.Z[:, j, :] = z
        w, h, below = _orthogonalize(self.V[:, : j + 1, :], self.A.matvec(z), self.alive)
        is_finite = np.isfinite(h).all(axis=1) & np.isfinite(below)
        self.nonfinite |= self.alive & ~is_finite
        self.alive &= is_finite
        h, below = np.where(self.alive[:, None], h, 0.0), np.where(self.alive, below, 0.0)
        with np.errstate(all="ignore"):
            estimate, is_void = self.small.append(h, below, 64 * self.precision)
        # the space is exhausted when what is new in A z is rounding error
        is_exhausted = is_void | (below <= 4 * self.precision * np.maximum(np.abs(h).max(axis=1), below))
        self.count = np.where(self.alive & ~is_void, j + 1, self.count)
        self.broken |= self.alive & is_void & (estimate > self.target)
        self.V[:, j + 1, :] = _unit(w, below, self.alive & ~is_exhausted)
        self._expect(estimate)
        self.alive &= ~is_exhausted & (self.expected > self.target) & (self.count < self.limits)

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
        v = self.V[:, j, :]
        if self.augment is None or j < self.capacity - self.given:
            return v if self.M is None else self.M.matvec(v)
        given = self.augment[:, j - (self.capacity - self.given), :]
        xp = array_namespace(v)
        if self.is_given_everywhere:
            return given
        is_given = xp.any(given != 0, axis=1, keepdims=True)  # a system may have none yet
        return xp.where(is_given, given, v if self.M is None else self.M.matvec(v))

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
            scatter(cycle.dx, systems, combine(from_host(small.solve(count), Z), Z))
            scatter(cycle.residual, systems, combine(from_host(small.residual_coordinates(count), V), V))
        cycle.norm[systems] = np.abs(small.g[np.arange(which.size), count])
        self._polish(which)
        if self.on_finish is not None:
            self.on_finish(systems, V, Z, small, count)

    def _polish(self, which: Indices) -> None:
        """Correct the solutions of rows that need no more than that."""
        which = which[(self.expected[which] <= self.target[which]) & (self.estimate[which] > self.target[which])]
        if which.size:
            cycle, systems = self.cycle, self.rows[which]
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
        for name in ("rows", "alive", "target", "limits", "count", "estimate", "expected", "broken", "nonfinite"):
            setattr(self, name, getattr(self, name)[keep])


def _shrunk(V: Array, keep: Indices, used: int) -> Array:
    """Some systems of V (B, m, N), of which `used` vectors are copied."""
    xp = array_namespace(V)
    part = xp.empty((keep.size, *V.shape[1:]), dtype=V.dtype, device=V.device)
    part[:, :used, :] = gather(V[:, :used, :], keep)
    return part


def _resized(V: Array, columns: int) -> Array:
    """The same vectors, with room for others behind them."""
    xp = array_namespace(V)
    wide = xp.empty((V.shape[0], columns, V.shape[2]), dtype=V.dtype, device=V.device)
    wide[:, : V.shape[1], :] = V
    return wide


def _orthogonalize(V: Array, w: Array, alive: HostArray) -> tuple[Array, HostArray, HostArray]:
    """Remove from w (b, N) its parts along V (b, j, N): classical Gram-Schmidt, twice."""
    xp = array_namespace(w)
    with np.errstate(all="ignore"):
        h = project(V, w)
        w = w - combine(h, V)
        again = project(V, w)
        w = w - combine(again, V)
        square = xp.vecdot(w, w)[:, None]
        numbers = to_host(xp.concat([h + again, xp.astype(square, h.dtype)], axis=1))
        h_host, below = numbers[:, :-1], np.sqrt(np.abs(numbers[:, -1]).astype(np.float64))
    if not is_safe(below[alive], xp, w.dtype).all():
        below = norm2(w)
    return w, h_host, below


def project(C: Array, v: Array) -> Array:
    """<C_i, v> for each system: (b, q, N), (b, N) -> (b, q)."""
    xp = array_namespace(v)
    if is_complex(v):
        return xp.conj(xp.matmul(C, xp.conj(v)[:, :, None]))[:, :, 0]
    return xp.matmul(C, v[:, :, None])[:, :, 0]


def combine(a: Array, rows: Array) -> Array:
    """sum_i a_i rows_i for each system: (b, q), (b, q, N) -> (b, N)."""
    xp = array_namespace(rows)
    return xp.matmul(a[:, None, :], rows)[:, 0, :]


def _unit(w: Array, norms: HostArray, where: HostArray) -> Array:
    """w / ||w||, and zero where a system must get no further vector."""
    xp = array_namespace(w)
    good = where & (norms > 0)
    unit = w / from_host(np.where(good, norms, 1.0), w)[:, None]
    return unit if good.all() else xp.where(from_host(good, w)[:, None], unit, xp.zeros_like(w))
