"""One Arnoldi cycle for each system of a batch: the basis of a Krylov space, and the least-squares problem in it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from scipy.linalg.lapack import dtrtrs

from implicitsolve._arrays.host import clear, from_host, gather, scatter, to_host
from implicitsolve._arrays.namespace import array_namespace, eps, is_complex, safe_range
from implicitsolve._typing import Array, DType, HostArray, Indices
from implicitsolve.kernels._norms import norm2
from implicitsolve.kernels._vectors import resize, room, vectors_like
from implicitsolve.krylov._base import ApproximateInverse, classify, part_of
from implicitsolve.operators import LinearOperator

GOOD_GAIN = 0.5  # reduction by the last vector from which on a polish is tried: tests/krylov/test_gmres_cost.py
POLISH = 1.16  # reduction expected of a polish, relative to that of the last vector: at most 1.155 on implicit GRUs
SYSTEMWISE = "rows", "alive", "target", "limits", "count", "estimate", "expected", "broken", "nonfinite"
FIRST_COLUMNS = 8  # room of a basis at first; it doubles as needed


class Hessenberg:
    """The least-squares problems min ||beta e_1 - H y||, for each system, with room for some columns; see `grow`."""

    def __init__(self, beta: HostArray, columns: int, dtype: DType) -> None:
        size = beta.shape[0]
        self.H = np.zeros((size, columns + 1, columns), dtype)
        self.beta = self.norm = beta  # (B,) of the residuals before and after the columns so far
        self.null = np.zeros((size, columns + 1), dtype)  # unit vector with null^T H = 0: the residual's direction
        self.null[:, 0] = 1
        self.largest: HostArray = np.zeros(size)  # entry of H, or a bound of it
        self.columns = 0

    def grow(self, columns: int) -> None:
        more = columns - self.H.shape[2]
        self.H, self.null = np.pad(self.H, ((0, 0), (0, more), (0, more))), np.pad(self.null, ((0, 0), (0, more)))

    def append(self, h: HostArray, below: HostArray, negligible: float) -> tuple[HostArray, HostArray]:
        """Add the column (h, below); return the residual norms of the larger problems, and where it added nothing.

        A column whose component outside the span of the others is at most `negligible` times the largest entry of H
        is a direction that A maps into the space already spanned: it is dropped, and the residual is unchanged.
        """
        j, null = self.columns, self.null[:, : self.columns + 1]
        last = (null * h).sum(axis=1)
        radius = np.hypot(np.abs(last), below)
        largest = np.maximum(self.largest, np.abs(h).max(axis=1))
        is_void = radius <= negligible * largest
        if is_void.any():
            used = ~is_void
            h, below, largest = h * used[:, None], below * used, np.where(used, largest, self.largest)
            last, radius = np.where(used, last, 0.0), np.where(used, radius, 1.0)
        self.H[:, : j + 1, j], self.H[:, j + 1, j] = h, below
        self.largest = np.maximum(largest, below)
        sine = below / radius
        null *= -sine[:, None]
        self.null[:, j + 1] = last / radius
        self.norm = np.where(is_void, self.norm, sine * self.norm)
        self.columns = j + 1
        return self.norm, is_void

    def append_one(self, h: HostArray, below: float, size: float) -> HostArray:
        """Append a column for one real system, where it is not negligible; `size` is ||h||."""
        j, null = self.columns, self.null[0, : self.columns + 1]
        last = float(null.dot(h))
        radius = math.hypot(last, below)
        self.H[0, : j + 1, j], self.H[0, j + 1, j] = h, below
        self.largest[0] = max(float(self.largest[0]), size, below)
        null *= -below / radius
        self.null[0, j + 1] = last / radius
        self.norm, self.columns = below / radius * self.norm, j + 1
        return self.norm

    def solve(self, columns: HostArray) -> HostArray:
        """Minimizers y (B, m) for the first `columns` (B,) of each system, zero beyond them; keeps H = Q R of these."""
        m = self.columns
        self.Q, self.R = np.linalg.qr(self.H[:, : m + 1, :m])
        used = np.arange(m)[None, :] < columns[:, None]
        if not used.all():
            self.Q = np.where(used[:, None, :], self.Q, 0.0)
            self.R = np.where(used[:, :, None] & used[:, None, :], self.R, np.eye(m))
        g = np.conj(self.Q[:, 0, :]) * self.beta[:, None]
        if columns.size == 1 and self.H.dtype.kind == "f":
            return dtrtrs(self.R[0], g[0])[0][None]
        return np.linalg.solve(self.R, g[:, :, None])[:, :, 0]

    def residual_coordinates(self, y: HostArray) -> HostArray:
        """Coordinates (B, m+1) in the basis of the residual of y."""
        coordinates = -np.matmul(self.H[:, : self.columns + 1, : self.columns], y[:, :, None])[:, :, 0]
        coordinates[:, 0] += self.beta
        return coordinates

    def take(self, indices: Indices) -> Hessenberg:
        part = copy.copy(self)
        for name in ("H", "beta", "norm", "null", "largest"):
            setattr(part, name, getattr(self, name)[indices])
        return part


class Cycle:
    def __init__(self, r: Array, norms: HostArray) -> None:
        size = r.shape[0]
        self.r = r
        self.dx: Any = None  # the correction that minimizes the residual over the space
        self.residual: Any = None  # what remains by the recurrence, without a product, if requested
        self.norm = norms.copy()  # of that
        self.columns = np.zeros(size, dtype=int)  # of each system's space
        self.broken = np.zeros(size, dtype=bool)  # whose space was exhausted before the target: A is singular on it
        self.nonfinite = np.zeros(size, dtype=bool)  # for which a product was not finite

    def put(self, systems: Indices, dx: Array, residual: Array | None) -> None:
        if systems.size == self.norm.size:  # all at once, so in their order
            self.dx, self.residual = dx, residual
            return
        self.complete(needs_residual=residual is not None)
        scatter(self.dx, systems, dx)
        if residual is not None:
            scatter(self.residual, systems, residual)

    def status(self, target: HostArray) -> HostArray:
        """Status codes of the systems, for which this was the only cycle."""
        return classify(self.norm, target, broken=self.broken, nonfinite=self.nonfinite)

    def complete(self, *, needs_residual: bool) -> None:
        """Allocate the arrays: no correction, and the first residual, for systems without a result yet."""
        xp = array_namespace(self.r)
        if self.dx is None:
            self.dx = xp.zeros_like(self.r)
            self.residual = xp.asarray(self.r, copy=True) if needs_residual else None


OnFinish: TypeAlias = Callable[[Indices, Array, Array, Hessenberg, HostArray], None]


class Arnoldi:
    """Minimizes ||r - A z|| over z in span(M v_1, ..., M v_m), plus the directions of `augment`.

    A system is finished when the norm of its residual is at most `target`, or after `columns` steps, or its own
    `limits`. M may vary from one product to the next (flexible GMRES).

    - `augment` (B, p, N) are used in place of the last p Krylov directions; `has_one` (B, p) says which a system has.
    - `on_finish` is called as ``(systems, V, Z, small, columns)`` before the bases of these systems are discarded.
    - `polish`: a system may end with a correction M (r - A z), which costs no product and, with a good M, reduces the
      residual as much as another vector. `norm` is then the expected norm.
    - `needs_residual`: the remaining residual is computed, by a pass over the basis.
    - `storage` are V and Z of an earlier cycle, overwritten if they fit: touching fresh memory is slow.

    Per step: 1 product, 1 preconditioner, 1 transfer to the host, and 4 passes over the basis (Gram-Schmidt, twice; for
    one real system on NumPy 2, where the first cancels little). Holds ``columns + 1`` vectors per system, twice that
    with M or `augment`; storage doubles from 8. Finished systems are multiplied as zeros, and leave in halves.
    """

    def __init__(
        self,
        A: LinearOperator,
        r: Array,
        norms: HostArray,
        *,
        target: HostArray,
        columns: int,
        limits: HostArray | None = None,
        M: ApproximateInverse | None = None,
        augment: Array | None = None,
        has_one: HostArray | None = None,
        on_finish: OnFinish | None = None,
        polish: bool = False,
        needs_residual: bool = True,
        storage: tuple[Array | None, Array | None] = (None, None),
    ) -> None:
        xp, size, capacity = array_namespace(r), r.shape[0], max(1, min(columns, r.shape[1]))
        self.cycle, self.A, self.M, self.target, self.capacity = Cycle(r, norms), A, M, target, capacity
        self.on_finish, self.polish, self.needs_residual = on_finish, polish, needs_residual or polish
        self.augment, self.has_one = augment, has_one
        self.given = 0 if self.augment is None else min(self.augment.shape[1], capacity - 1)
        self.precision, self.safe_range = eps(xp, r.dtype), safe_range(xp, r.dtype)
        self.rows = np.arange(size)
        self.limits = np.full(size, capacity) if limits is None else limits
        self.alive = (norms > target) & np.isfinite(norms) & (self.limits > 0)
        self.count = np.zeros(size, dtype=int)
        self.estimate, self.expected = norms.copy(), norms.copy()  # of the residual norm, without and with a polish
        self.broken, self.nonfinite = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
        V, Z = storage
        if V is None or (V.shape[0], V.shape[2], V.dtype) != (*r.shape, r.dtype):
            V = room(r, size, min(capacity, FIRST_COLUMNS) + 1)
        self.V: Array = V
        columns = min(capacity, V.shape[1] - 1)
        self.small = Hessenberg(norms, columns, np.complex128 if is_complex(r) else np.float64)
        self.work: Any = vectors_like(r)
        self.work.start(self.V, r, norms, self.alive)
        self.is_flexible = M is not None or self.given > 0
        if not self.is_flexible:
            Z = V
        elif Z is None or (Z.shape, Z.dtype) != (V.shape, V.dtype):
            Z = room(r, size, V.shape[1])
        self.Z: Array = Z

    def run(self) -> Cycle:
        """Extend the bases until every system has finished, and return the corrections."""
        while self.alive.any() and self.small.columns < self.capacity:
            if self.rows.size > 1 and 2 * self.alive.sum() <= self.rows.size:
                self.compact()
            self.expand()
        self.finish(np.arange(self.rows.size))
        self.cycle.complete(needs_residual=self.needs_residual)
        return self.cycle

    def expand(self) -> None:
        j = self.small.columns
        if j + 1 == self.V.shape[1]:
            self._grow(min(2 * j, self.capacity))
        z = self.V[:, j, :]
        if self.is_flexible:
            self.Z[:, j, :] = z = self._direction(j)
        w = self.A.matvec(z)
        with np.errstate(all="ignore"):
            numbers = to_host(self.work.orthonormalize(self.V[:, : j + 2, :], w))
            if self._takes_one(numbers):
                return
            h, below = h, length = self._check(numbers)
            is_regular = self.alive.all() and np.isfinite(h.sum() + length.sum())
            if not is_regular:
                is_finite = np.isfinite(h).all(axis=1) & np.isfinite(length)
                self.nonfinite |= self.alive & ~is_finite
                self.alive &= is_finite
                h, below = np.where(self.alive[:, None], h, 0.0), np.where(self.alive, length, 0.0)
            estimate, is_void = self.small.append(h, below, 64 * self.precision)
        # the space is exhausted when what is new in A z is rounding error
        is_exhausted = is_void | (below <= 4 * self.precision * np.abs(h).max(axis=1))
        expected = self._after_polish(estimate) if self.polish else estimate
        if is_regular and not is_exhausted.any():
            self.count[:], self.estimate, self.expected = j + 1, estimate, expected
        else:
            self.count = np.where(self.alive & ~is_void, j + 1, self.count)
            self.broken |= self.alive & is_void & (estimate > self.target)
            ended = (~self.alive | is_exhausted) & ~(length == 0)  # their bases end here
            if ended.any():
                clear(self.V[:, j + 1, :], ended)
            self.estimate = np.where(self.alive, estimate, self.estimate)
            self.expected = np.where(self.alive, expected, self.expected)
            self.alive &= ~is_exhausted
        self.alive &= (self.expected > self.target) & (self.count < self.limits)

    def _takes_one(self, numbers: HostArray) -> bool:
        """Extend the problem of one real system by a column, in plain numbers; return whether that was ordinary."""
        if numbers.shape[0] > 1 or numbers.dtype.kind == "c":
            return False
        h, below, (low, high) = numbers[0, :-1], math.sqrt(abs(numbers[0, -1])), self.safe_range
        size = math.sqrt(h.dot(h))
        is_ordinary = low < below < high and 64 * self.precision * max(size, float(self.small.largest[0])) < below
        if not (is_ordinary and self.alive[0]):
            return False
        estimate = self.small.append_one(h, below, size)
        self.expected = self._after_polish(estimate) if self.polish else estimate
        self.estimate, self.count[0] = estimate, self.small.columns
        self.alive[0] = self.expected[0] > self.target[0] and self.count[0] < self.limits[0]
        return True

    def _check(self, numbers: HostArray) -> tuple[HostArray, HostArray]:
        """The coefficients of A z in the basis, and the norm of the rest, computed again where its square is unsafe."""
        h, squares = numbers[:, :-1], np.abs(numbers[:, -1])
        sizes, (low, high) = np.sqrt(squares), self.safe_range  # in the precision of that kernel
        is_good, below = (sizes > low) & (sizes < high), sizes.astype(np.float64)
        if not (is_good | ~self.alive).all():
            v = self.V[:, self.small.columns + 1, :]
            below = np.where(is_good, below, norm2(v))
            usable = ~is_good & (below > 0)
            self.V[:, self.small.columns + 1, :] = v / from_host(np.where(usable, below, 1.0), v)[:, None]
        return h, below

    def _after_polish(self, estimate: HostArray) -> HostArray:
        """Residual norms expected after a polish, from the last vector's reduction."""
        with np.errstate(all="ignore"):
            gain = estimate / self.estimate
            return np.where(gain <= GOOD_GAIN, POLISH * gain * estimate, estimate)

    def _grow(self, columns: int) -> None:
        """Enlarge the storage: mostly few vectors are needed, and touching fresh memory is slow."""
        self.small.grow(columns)
        self.V = resize(self.V, columns + 1)
        self.Z = resize(self.Z, columns + 1) if self.is_flexible else self.V

    def _direction(self, j: int) -> Array:
        """M v, or one of the augmenting directions."""
        v, place = self.V[:, j, :], j - (self.capacity - self.given)
        if self.augment is None or place < 0:
            return v if self.M is None else self.M.matvec(v)
        given, is_given = self.augment[:, place, :], None if self.has_one is None else self.has_one[:, place]
        if is_given is None or is_given.all():
            return given
        own = v if self.M is None else self.M.matvec(v)
        return array_namespace(v).where(from_host(is_given, v)[:, None], given, own)

    def finish(self, which: Indices) -> None:
        """Compute the corrections of some rows from their least-squares solutions."""
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
            y = small.solve(count)
            dx = self.work.combine(from_host(y, Z), Z)
            r = self.work.combine(from_host(small.residual_coordinates(y), V), V) if self.needs_residual else None
            cycle.put(systems, dx, r)
        cycle.norm[systems] = self.estimate[which]
        self._polish(which)
        if self.on_finish is not None:
            self.on_finish(systems, V, Z, small, count)

    def _polish(self, which: Indices) -> None:
        which = which[(self.expected[which] <= self.target[which]) & (self.estimate[which] > self.target[which])]
        if which.size:
            cycle, systems = self.cycle, self.rows[which]
            r = part_of(cycle.residual, systems)
            M = self.M if self.M is None or which.size == self.rows.size else self.M.take(which)
            scatter(cycle.dx, systems, part_of(cycle.dx, systems) + (r if M is None else M.matvec(r)))
            cycle.norm[systems] = self.expected[which]

    def compact(self) -> None:
        """Compact the arrays to the systems that have not finished."""
        self.finish(np.flatnonzero(~self.alive))
        keep, used = np.flatnonzero(self.alive), self.small.columns + 1
        room = self.V.shape[1]
        self.V = resize(gather(self.V[:, :used, :], keep), room)
        self.Z = resize(gather(self.Z[:, :used, :], keep), room) if self.is_flexible else self.V
        self.small, self.A = self.small.take(keep), self.A.take(keep)
        self.M = None if self.M is None else self.M.take(keep)
        self.augment = None if self.augment is None else gather(self.augment, keep)
        self.has_one = None if self.has_one is None else self.has_one[keep]
        for name in SYSTEMWISE:
            setattr(self, name, getattr(self, name)[keep])
