"""GMRES for the linear systems of Newton steps, preconditioned by the Krylov spaces of earlier steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from implicitsolve._arrays.host import from_host, gather, scatter, to_host, zero_vectors
from implicitsolve._arrays.namespace import array_namespace, is_complex, numpy_namespace
from implicitsolve._typing import Array, DType, HostArray, Indices, Namespace
from implicitsolve.kernels._vectors import vectors_like
from implicitsolve.krylov._arnoldi import Arnoldi, Hessenberg
from implicitsolve.krylov._base import KrylovOutcome
from implicitsolve.krylov._descent import Descent, DescentCollector
from implicitsolve.operators import LinearOperator

BASIS_MEMORY = 42 * 10**6  # entries that both bases of all systems may take, 336 MB in float64,
LEAST_ROWS = 21  # ... but at least so many vectors each: with 10^6 unknowns a solve holds 60 in all
RECYCLED_MEMORY = 2**17  # entries of U, C, D each, of which a product reads two: 2**19 takes a fifth more time
ROWS_PER_VECTOR = 4  # rows for each recycled one, where there is room for few: from 3 to 2 the products hardly differ
LARGEST_SPACE = 400  # vectors; beyond it orthogonalization costs more than it saves
EASY = 8  # iterations up to which a solve gains less by recycling than the recycled vectors cost
SOLVED = 1  # iterations of a solve by a preconditioner that leaves nothing to learn
CHEAP_RECYCLING = 256  # unknowns up to which recycled vectors cost next to nothing
RANK_TOLERANCE = 1e-8  # relative size under which a singular value is rounding error


def room_of(entries: int) -> int:
    """Number of rows of `entries` numbers that each of two bases may have."""
    return max(LEAST_ROWS, BASIS_MEMORY // max(2, 2 * entries))


def most_kept(recycle: int, entries: int) -> int:
    """Number of pairs of rows of this size that are kept from earlier solves."""
    return min(recycle, max(20, RECYCLED_MEMORY // max(1, entries)), room_of(entries) // ROWS_PER_VECTOR)


class RecyclingGMRES:
    """GMRES for a sequence of systems J s = -F: one cycle each, preconditioned by what earlier cycles found.

    The first solves take up to `size` Krylov vectors; a system's number doubles where it did not suffice. At most
    `recycle` pairs (direction, image) are kept from earlier solves. If `needs_descent`, every solve finds the steepest
    `descent` in its Krylov space.
    """

    def __init__(
        self, size: int, recycle: int, systems: int, space: RecycledSpace | None = None, needs_descent: bool = False
    ) -> None:
        self.sizes: HostArray = np.full(systems, size)
        self.grew: HostArray = np.zeros(systems, dtype=bool)  # to a size, after a solve, that may become all of R^N
        self._space = space
        self._new: tuple[SpaceCollector, Any] | None = None  # of the last solve, and its M
        self._storage: tuple[Any, Any] = None, None  # of the last basis
        self.recycle: int = recycle
        self.needs_descent: bool = needs_descent
        self.descent: Descent | None = None

    @property
    def space(self) -> RecycledSpace | None:
        """The recycled space; that of the last solve joins it only when needed, as that of the final solve never is."""
        if self._new is not None:
            collector, M = self._new
            self._space, self._new = collector.join(self._space, M), None
        return self._space

    @property
    def correction(self) -> Callable[[Array], Array] | None:
        """Approximation of J^-1 in the recycled spaces."""
        return None if self._space is None and self._new is None else self._correct

    def _correct(self, F: Array) -> Array:
        space: Any = self.space
        return space.matvec(F)

    def direction(
        self, J: LinearOperator, F: Array, norms: HostArray, eta: HostArray, M: Any, limit: HostArray | None = None
    ) -> KrylovOutcome:
        """Newton direction, for each system by no more iterations than its `limit`."""
        length, rows, space = F.shape[1], room_of(F.shape[0] * F.shape[1]), self.space
        largest = rows - rows // ROWS_PER_VECTOR
        if space is not None and space.base is not M:
            space = self._space = space.around(M)
        collector = self._collector(F, 0 if M is None else SOLVED)
        descents = DescentCollector(F, norms) if self.needs_descent else None
        target, sizes = eta * norms, np.minimum(self.sizes, largest if limit is None else np.minimum(limit, largest))

        def process(J: LinearOperator, b: Array, at: Any, M: Any, on_finish: Any, **others: Any) -> Arnoldi:
            limits = {"target": target[at], "columns": int(sizes[at].max()), "limits": sizes[at]}
            return Arnoldi(J, b, norms[at], **limits, M=M, on_finish=on_finish, needs_residual=False, **others)

        watch = watched_by(descents, collector)
        first = process(J, -F, slice(None), M if space is None else space, watch, storage=self._storage)
        cycle = first.run()
        self._storage = first.V, first.Z if first.is_flexible else None
        lost = np.flatnonzero(cycle.broken & (cycle.norm > target))
        if lost.size and space is not None:
            # what was kept may be singular where J has changed beyond recognition: those systems begin afresh
            self._space = space.limit(space.held & ~np.isin(np.arange(sizes.size), lost)[:, None])
            part, inverse = J.take(lost), None if M is None else M.take(lost)
            again = process(part, gather(-F, lost), lost, inverse, watched_by(descents, collector, places=lost)).run()
            scatter(cycle.dx, lost, again.dx)
            cycle.norm[lost], cycle.broken[lost], cycle.nonfinite[lost] = again.norm, again.broken, again.nonfinite
            cycle.columns[lost] += again.columns
        self.descent = None if descents is None else descents.descent
        self._grow((cycle.norm > target) & (sizes == self.sizes), length)
        if collector is not None and collector.bases:
            self._new = collector, M
        return KrylovOutcome(cycle.dx, cycle.norm, cycle.status(target), cycle.columns)

    def _grow(self, falls_short: HostArray, length: int) -> None:
        larger = np.maximum(self.sizes, np.minimum(2 * self.sizes, LARGEST_SPACE))
        sizes = np.where(falls_short, larger, self.sizes)
        self.grew, self.sizes = (sizes > self.sizes) & (self.sizes < length) & (length <= LARGEST_SPACE), sizes

    def _collector(self, F: Array, least: int) -> SpaceCollector | None:
        if not self.recycle:
            return None
        has_some = np.zeros(F.shape[0], dtype=bool) if self._space is None else self._space.held.any(axis=1)
        keep = most_kept(self.recycle, F.shape[0] * F.shape[1])
        return SpaceCollector(F, keep, np.where(has_some | (F.shape[1] <= CHEAP_RECYCLING), least, EASY))

    def take(self, rows: Indices) -> RecyclingGMRES:
        part = copy.copy(self)
        part.sizes, part.grew = self.sizes[rows], self.grew[rows]
        part._space = None if self.space is None else self.space.take(rows)
        part._new = None
        return part

    def concat(self, other: RecyclingGMRES, systems: int) -> RecyclingGMRES:
        whole = copy.copy(self)
        whole.sizes = np.concatenate([self.sizes, other.sizes])
        whole.grew = np.concatenate([self.grew, other.grew])
        whole._space = None if self.space is None else self.space.extend(other.sizes.size)
        whole._new = None
        return whole


class RecycledSpace:
    """M = P + (U - P C) T C^H from pairs with J U = C, that is M_1 = U_1 C_1^H + M_2 (I - C_1 C_1^H), newest first.

    P, the innermost M, is 1 / theta or the user's preconditioner. The C of one Newton step are orthonormal; T projects
    out what newer images span, so that one product with C^H and one with U and C apply the whole nest. As long as J
    changes little, J M is the identity on what the last Krylov spaces spanned, and a new one continues where they
    ended. It costs no product.

    C and K (B, q, N) hold, as rows, newest first, C and what is added: U with the user's preconditioner `base`, else
    U - C / theta, where theta (B,) is the size of J on the rest. A system has the rows that are `held` (B, q), others
    are zero. T (B, q, q) is transposed, an upper triangle.
    """

    def __init__(self, C: Array, K: Array, T: HostArray, theta: HostArray, held: HostArray, base: Any = None) -> None:
        self.C: Array = C
        self.K: Array = K
        self.T: HostArray = T
        self.base: Any = base
        self.theta: HostArray = theta
        self.held: HostArray = held
        self._scale = from_host(theta, C)[:, None]
        self._triangle = from_host(T, C)
        self._work: Any = vectors_like(C)

    def matvec(self, v: Array) -> Array:
        """Product with M."""
        work = self._work
        with np.errstate(all="ignore"):
            a = work.combine(work.project(self.C, v), self._triangle)
            rest = v / self._scale if self.base is None else self.base.matvec(work.without(v, a, self.C))
            return rest + work.combine(a, self.K)

    def around(self, base: Any) -> RecycledSpace:
        """Return the space for another preconditioner, or none."""
        K = self.K
        if (base is None) != (self.base is None):
            scaled = self.C / self._scale[:, :, None]
            K = K - scaled if base is None else K + scaled
        return RecycledSpace(self.C, K, self.T, self.theta, self.held, base)

    def limit(self, held: HostArray) -> RecycledSpace:
        """Return the space with the rows `held` alone: the newest ones of each system, or none."""
        rows = np.flatnonzero(held.any(axis=0))
        xp, held = array_namespace(self.C), held[:, rows]
        C, K = (xp.take(x, from_host(rows, x), axis=1) for x in (self.C, self.K))
        if not held.all():
            factor = from_host(held.astype(np.float64), self.C)[:, :, None]
            C, K = C * factor, K * factor
        return RecycledSpace(C, K, self.T[:, rows[:, None], rows], self.theta, held, self.base)

    def take(self, indices: Indices) -> RecycledSpace:
        base = None if self.base is None else self.base.take(indices)
        C, K = gather(self.C, indices), gather(self.K, indices)
        return RecycledSpace(C, K, self.T[indices], self.theta[indices], self.held[indices], base)

    def extend(self, systems: int) -> RecycledSpace:
        """Return the space with further systems, which have no rows yet."""
        xp = array_namespace(self.C)
        empty = zero_vectors(self.C, systems, self.C.shape[1])
        C, K = (xp.concat([rows, empty], axis=0) for rows in (self.C, self.K))
        T, held = (np.pad(x, ((0, systems), *[(0, 0)] * (x.ndim - 1))) for x in (self.T, self.held))
        return RecycledSpace(C, K, T, np.append(self.theta, np.ones(systems)), held)


class SpaceCollector:
    """Gathers `keep` pairs (U, C) of each system from the bases of a solve with more columns than `least` (B,)."""

    def __init__(self, like: Array, keep: int, least: HostArray) -> None:
        self.like, self.keep, self.least = like, keep, least
        self.theta = np.ones(like.shape[0])
        self.bases: list[tuple[Indices, Array, Array, Hessenberg, HostArray]] = []

    def __call__(self, systems: Indices, V: Array, Z: Array, small: Hessenberg, columns: HostArray) -> None:
        columns = np.where(columns > self.least[systems], columns, 0)
        if columns.any():
            self.bases.append((systems, V, Z, small, columns))

    def _pairs(
        self, systems: Indices, V: Array, Z: Array, small: Hessenberg, columns: HostArray
    ) -> tuple[Indices, Array, Array, HostArray]:
        """The pairs of some systems: J Z = V H, and with H = Q R, U = Z R^-1 and C = V Q, or as `truncate` says."""
        m, Q, R = small.columns, small.Q, small.R
        chosen = np.arange(m)[None, :] < columns[:, None]
        xp = array_namespace(V)
        negligible, least = invertible(V.dtype, xp)
        with np.errstate(all="ignore"):
            inverse, S = np.linalg.inv(R), np.abs(np.diagonal(R, axis1=1, axis2=2))
            largest, size = (m * np.abs(x).max(axis=(1, 2)) for x in (R, inverse))
            is_regular = (negligible * size * largest < 1) & (least * size < 1)
        if m > self.keep or not is_regular.all():
            R = np.where(chosen[:, None, :], R, 0.0)
            rotation, inverse, self.theta[systems], chosen = truncate(R, self.keep, negligible, least)
            Q = Q @ rotation
        else:
            self.theta[systems] = geometric_mean(S, chosen)
        with np.errstate(all="ignore"):
            U, C = (
                xp.matmul(from_host(np.swapaxes(x * chosen[:, None, :], 1, 2), V), rows)
                for x, rows in ((inverse, Z[:, :m, :]), (Q, V[:, : m + 1, :]))
            )
        return systems, U, C, chosen

    def join(self, old: RecycledSpace | None, base: Any) -> RecycledSpace:
        """Put the new pairs before the older ones, and forget the oldest."""
        xp = array_namespace(self.like)
        U, C, held = self._gather()
        (b, q), theta = held.shape, self.theta
        if old is not None:
            theta = np.where(old.held.any(axis=1), old.theta, theta)
        K = U if base is not None else U - C / from_host(theta, C)[:, None, None]
        if old is None:
            return RecycledSpace(C, K, np.tile(np.eye(q), (b, 1, 1)), theta, held, base)
        if q + old.held.shape[1] > self.keep:
            wanted = old.held & (held.sum(axis=1)[:, None] + np.cumsum(old.held, axis=1) <= self.keep)
            old = old if wanted.all() else old.limit(wanted)
        held = np.concatenate([held, old.held], axis=1)
        overlap = to_host(xp.matmul(C, xp.matrix_transpose(xp.conj(old.C) if is_complex(C) else old.C)))  # <C_old, C>
        T = np.zeros((b, held.shape[1], held.shape[1]), np.result_type(overlap, old.T))
        T[:, :q, :q], T[:, :q, q:], T[:, q:, q:] = np.eye(q), -overlap @ old.T, old.T
        return RecycledSpace(xp.concat([C, old.C], axis=1), xp.concat([K, old.K], axis=1), T, theta, held, base)

    def _gather(self) -> tuple[Array, Array, HostArray]:
        found = [self._pairs(*basis) for basis in self.bases]
        if len(found) == 1 and found[0][0].size == self.like.shape[0]:
            return found[0][1:]
        size = self.like.shape[0]
        rank = max(held.shape[1] for *_, held in found)
        pair = tuple(zero_vectors(self.like, size, rank) for _ in range(2))
        all_held = np.zeros((size, rank), dtype=bool)
        for systems, *parts, held in found:
            for whole, part in zip(pair, parts, strict=True):
                padded = zero_vectors(whole, systems.size, rank)
                padded[:, : held.shape[1], :] = part
                scatter(whole, systems, padded)
            all_held[systems] = False
            all_held[systems, : held.shape[1]] = held
        return pair[0], pair[1], all_held


@lru_cache(maxsize=32)
def invertible(dtype: DType, xp: Namespace = numpy_namespace) -> tuple[float, float]:
    """Bounds of the singular values that are inverted: relative to the largest, and absolute."""
    info = xp.finfo(dtype)
    return max(RANK_TOLERANCE, 16 * float(info.eps)), float(info.smallest_normal) / float(info.eps)


def truncate(
    R: HostArray, keep: int, negligible: float, least: float
) -> tuple[HostArray, HostArray, HostArray, HostArray]:
    """P, W / S, the mean of S, and which columns are held, of the smallest singular values of R = P S W^H.

    Those directions are what a Krylov space is slow to find. With J Z = C R, the pairs are U = Z W / S and C P.
    """
    P, S, Wh = np.linalg.svd(R)
    good = (negligible * S[:, :1] < S) & (least < S)
    order = np.argsort(np.where(good, S, np.inf), axis=1)[:, :keep]
    each = np.arange(len(order))[:, None]
    theta, held, S = geometric_mean(S, good), good[each, order], S[each, order]
    inverse = np.conj(Wh[each, order]) / np.where(held, S, 1.0)[:, :, None]
    return np.swapaxes(P[each, :, order], 1, 2), np.swapaxes(inverse, 1, 2), theta, held


def geometric_mean(S: HostArray, good: HostArray) -> HostArray:
    """Geometric mean of the good entries of each row, 1 where there are none; exact under scaling by powers of two."""
    mantissa, exponent = np.frexp(np.where(good, S, 0.5))
    count = np.maximum(good.sum(axis=1), 1)
    whole, rest = np.divmod((exponent * good).sum(axis=1), count)
    return np.ldexp(np.exp2((rest + (np.log2(mantissa) * good).sum(axis=1)) / count), whole)


def watched_by(*collectors: Any, places: Indices | None = None) -> Any:
    """Call each collector that is not None, for a part of the batch whose systems have these places in the whole."""
    some = [collector for collector in collectors if collector is not None]

    def collect(systems: Indices, *bases: Any) -> None:
        for collector in some:
            collector(systems if places is None else places[systems], *bases)

    return collect if some else None
