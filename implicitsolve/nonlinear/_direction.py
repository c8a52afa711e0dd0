"""Newton directions: what solves J s = -F to the forcing term, also in single precision, or for one system alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, Self

import numpy as np
from scipy.linalg.lapack import dtrtri, dtrtrs

from implicitsolve._arrays.host import from_host, gather
from implicitsolve._arrays.namespace import array_namespace, eps, is_complex, numpy_namespace, safe_range
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.globalize._line_search import Correction
from implicitsolve.kernels._norms import norm2
from implicitsolve.kernels._vectors import CANCELS
from implicitsolve.krylov import KrylovMethod, KrylovOutcome
from implicitsolve.krylov._recycling import (
    CHEAP_RECYCLING,
    EASY,
    LARGEST_SPACE,
    RecycledSpace,
    invertible,
    most_kept,
    room_of,
    truncate,
)
from implicitsolve.operators import LinearOperator
from implicitsolve.status import Status

LEAST_FLOAT32_ETA = 1e-5  # smallest relative tolerance with float32 products
LARGEST_ETA = 0.9  # of all forcing terms
CONVERGED, ITERATION_LIMIT = int(Status.CONVERGED), int(Status.ITERATION_LIMIT)
BREAKDOWN, NONFINITE = int(Status.BREAKDOWN), int(Status.NONFINITE)


class LinearSolver(Protocol):
    """Solves one linear system after another, for each system of a batch."""

    @property
    def grew(self) -> Any: ...  # systems for which the next solve has more vectors, and may succeed after a failure

    @property
    def correction(self) -> Correction | None: ...  # approximation of J^-1 from the solves so far, as F -> J^-1 F

    def direction(
        self, J: LinearOperator, F: Array, norms: HostArray, eta: HostArray, M: Any, limit: HostArray | None = None
    ) -> KrylovOutcome:
        """Return s with ||F + J s|| <= eta ||F||, where ||F|| are `norms`, or the best within `limit` iterations."""
        ...

    def take(self, rows: Indices) -> Self: ...

    def concat(self, other: Self, systems: int) -> Self: ...  # of these systems and of others at their start


class FixedMethod:
    """Solves with the Krylov method that the user chose; nothing is kept between solves."""

    correction: Correction | None = None
    grew: Any = False

    def __init__(self, krylov: KrylovMethod, max_iterations: int) -> None:
        self.krylov, self.max_iterations = krylov, max_iterations

    def direction(
        self, J: LinearOperator, F: Array, norms: HostArray, eta: HostArray, M: Any, limit: HostArray | None = None
    ) -> KrylovOutcome:
        """Newton direction, by no more iterations than the largest `limit`."""
        most = self.max_iterations if limit is None else min(self.max_iterations, int(limit.max()))
        return self.krylov.solve(J, -F, target=eta * norms, max_iterations=most, M=M, confirm=False)

    def take(self, rows: Indices) -> FixedMethod:
        return self

    def concat(self, other: FixedMethod, systems: int) -> FixedMethod:
        return self


class SinglePrecision:
    """Another linear method in float32, for right-hand sides of length 1; directions come back in F's own dtype.

    A Jacobian that has no float32 products, or is complex, is used in its own precision.
    """

    def __init__(self, linear: LinearSolver) -> None:
        self.linear = linear
        self.is_single = True

    @property
    def grew(self) -> Any:
        return self.linear.grew

    @property
    def correction(self) -> Correction | None:
        """The method's approximation of J^-1, for vectors in double precision."""
        inner = self.linear.correction
        if inner is None:
            return None

        def correct(F: Array) -> Array:
            if not self.is_single:
                return inner(F)
            unit, norms = normalize(F, norm2(F))
            return restore_norms(inner(unit), norms, F)

        return correct

    def direction(
        self, J: LinearOperator, F: Array, norms: HostArray, eta: HostArray, M: Any, limit: HostArray | None = None
    ) -> KrylovOutcome:
        """Newton direction, no more accurate than float32 can make it."""
        xp = array_namespace(F)
        single = J if is_complex(F) else J.astype(xp.float32)
        self.is_single = single.dtype != F.dtype
        if not self.is_single:
            return self.linear.direction(J, F, norms, eta, M, limit)
        unit, norms = normalize(F, norms)
        eta = np.maximum(eta, LEAST_FLOAT32_ETA)
        outcome = self.linear.direction(single, unit, norm2(unit), eta, _round(M, F), limit)
        return replace(outcome, x=restore_norms(outcome.x, norms, F), residual_norm=outcome.residual_norm * norms)

    def take(self, rows: Indices) -> SinglePrecision:
        return self._around(self.linear.take(rows))

    def concat(self, other: SinglePrecision, systems: int) -> SinglePrecision:
        return self._around(self.linear.concat(other.linear, systems))

    def _around(self, linear: LinearSolver) -> SinglePrecision:
        method = SinglePrecision(linear)
        method.is_single = self.is_single
        return method


def normalize(F: Array, norms: HostArray) -> tuple[Array, HostArray]:
    """Rows, whose norms are known, of length 1 in float32, and what they were divided by."""
    norms = np.where((norms > 0) & np.isfinite(norms), norms, 1.0)
    xp = array_namespace(F)
    return xp.astype(F / from_host(norms, F)[:, None], xp.float32), norms


def restore_norms(x: Array, norms: HostArray, like: Array) -> Array:
    """Solutions for rows that were divided by `norms`, in the precision of `like`."""
    return array_namespace(like).astype(x, like.dtype) * from_host(norms, like)[:, None]


def _round(M: Any, like: Array) -> LinearOperator | None:
    xp = array_namespace(like)
    if M is None or M.dtype == xp.float32:
        return M
    return LinearOperator(
        lambda v: xp.astype(M.matvec(xp.astype(v, like.dtype)), xp.float32),
        in_shape=like.shape[1],
        batch_shape=(like.shape[0],),
        dtype=xp.float32,
        take=lambda indices: _round(M.take(indices), gather(like, indices)),  # type: ignore[arg-type, return-value]
    )


class OneRecyclingGMRES:
    """`RecyclingGMRES` for one real system, in NumPy vectors and plain numbers, with an orthonormal basis C of images.

    Each product adds a row to Z and C, with J Z = R^T C. What the projection on C leaves of F is the residual, and the
    next Krylov vector, which Arnoldi's method would find, lies in the plane of that and the last row of C.
    """

    def __init__(self, size: int, recycle: int, space: RecycledSpace | None) -> None:
        self.size, self.recycle = size, recycle
        self.grew = False  # to a size, after a solve, that may become all of R^N
        self.held = self.new = 0  # pairs that M uses, oldest first, and rows of the last solve behind them
        self.C: HostArray = np.empty((0, 0))
        self.K: HostArray = self.C  # of pairs what M adds, U - C / theta, and Z of the last solve
        self.T: HostArray = self.C
        self.theta, self.largest = 1.0, 0.0
        self.R: HostArray = self.C
        if space is not None:
            space = space.around(None)
            rows = np.flatnonzero(space.held[0])[::-1]
            self.held, self.theta = rows.size, float(space.theta[0])
            self.C, self.K, self.T = space.C[0, rows], space.K[0, rows], space.T[0][np.ix_(rows, rows)]

    @property
    def space(self) -> RecycledSpace | None:
        self._join()
        if not self.held:
            return None
        C, K, T = self.C[: self.held][::-1], self.K[: self.held][::-1], self.T[::-1, ::-1]
        held = np.ones((1, self.held), dtype=bool)
        return RecycledSpace(C[None].copy(), K[None].copy(), T[None].copy(), np.asarray([self.theta]), held)

    @property
    def correction(self) -> Correction | None:
        """Approximation of J^-1 in the recycled space, for arrays (1, N)."""
        self._join()
        return (lambda F: self._precondition(F[0])[None]) if self.held else None

    def direction(
        self, product: Callable[[HostArray], HostArray], F: HostArray, norm: float, eta: float, limit: int | None = None
    ) -> tuple[HostArray, float, int, int]:
        """Newton direction by at most `limit` products, the norm of F + J s, a status, and the number of products."""
        self._join()
        size = min(self.size, room_of(F.size) - self.held)
        size = size if limit is None else min(size, limit)
        least, before = 0 if self.held or F.size <= CHEAP_RECYCLING else EASY, 0
        rest, status = self._solve(product, F / -norm, eta, min(size, F.size))
        if status == BREAKDOWN and self.held:  # what was kept may be singular where J has changed beyond recognition
            self.held, before = 0, self.new
            rest, status = self._solve(product, F / -norm, eta, min(size, F.size))
        step, iterations = self._step(F, norm), before + self.new
        larger = max(self.size, min(2 * self.size, LARGEST_SPACE)) if rest > eta and size == self.size else self.size
        self.grew, self.size = larger > self.size and self.size < F.size <= LARGEST_SPACE, larger
        if not self.recycle or self.new <= least:
            self.new = 0
        return step, rest * norm, status, iterations

    def _solve(
        self, product: Callable[[HostArray], HostArray], r: HostArray, target: float, columns: int
    ) -> tuple[float, int]:
        """Find Z, C and R; return the norm of what is left of r, which had length 1, and a status."""
        precision, (low, high) = eps(numpy_namespace, r.dtype), safe_range(numpy_namespace, r.dtype)

        def length(v: HostArray) -> float:
            size = math.sqrt(v.dot(v))
            return size if low < size < high else float(norm2(v[None])[0])

        self.new, self.largest, self.R, self.gains = 0, 0.0, np.zeros((columns, columns)), np.zeros(columns)
        v, r, rest, status = r, r.copy(), 1.0, ITERATION_LIMIT
        while rest > target and self.new < columns:
            j, place = self.new, self.held + self.new
            self._make_room(place, columns, r)
            z, C = self._precondition(v), self.C[self.held : place]
            w = product(z)
            with np.errstate(all="ignore"):
                size = below = length(w)
                if j:
                    h = C.dot(w)
                    w -= h.dot(C)
                    below = length(w)
                    if not below > math.sqrt(CANCELS) * size:
                        again = C.dot(w)
                        w -= again.dot(C)
                        h += again
                        below = length(w)
                    self.R[:j, j] = h
                if not math.isfinite(below):
                    status = NONFINITE
                    break
                if below <= 64 * precision * max(self.largest, size):  # J z lies in the span of C
                    status = BREAKDOWN
                    break
                self.largest, self.new = max(self.largest, size), j + 1
                self.R[j, j], self.K[place] = below, z
                c = np.divide(w, below, out=self.C[place])
                gain = self.gains[j] = float(c.dot(r))
                r -= gain * c
                before, rest = rest, length(r)
                if not rest > 4 * precision:
                    break
                v = (rest / before) * c - (gain / (before * rest)) * r
        return rest, CONVERGED if rest <= target else status

    def _precondition(self, v: HostArray) -> HostArray:
        if not self.held:
            return v
        with np.errstate(all="ignore"):
            a = self.C[: self.held].dot(v).dot(self.T).astype(v.dtype, copy=False)
            return v / self.theta + a.dot(self.K[: self.held])

    def _step(self, F: HostArray, norm: float) -> HostArray:
        """The step Z^T y, where R y are the gains."""
        q, m = self.held, self.new
        with np.errstate(all="ignore"):
            if not m:
                return np.zeros_like(F)
            y = norm * dtrtrs(self.R[:m, :m], self.gains[:m])[0]
            return y.astype(F.dtype).dot(self.K[q : q + m])

    def _make_room(self, rows: int, columns: int, like: HostArray) -> None:
        """Room for one more row than so many, and for what this solve may need and keep."""
        if rows < len(self.C):
            return
        for name in ("C", "K"):  # one after the other: memory
            whole = np.empty((rows + columns - self.new, like.size), like.dtype)
            if rows:
                whole[:rows] = getattr(self, name)
            setattr(self, name, whole)

    def _join(self) -> None:
        """Make pairs of the rows of the last solve, as `SpaceCollector`, and forget the oldest."""
        q, m = self.held, self.new
        if not m:
            return
        self.new, R, C, Z = 0, self.R[:m, :m], self.C[q : q + m], self.K[q : q + m]
        keep = most_kept(self.recycle, C.shape[1])
        negligible, least = invertible(C.dtype)
        with np.errstate(all="ignore"):
            inverse = dtrtri(R)[0]
            size = m * float(np.abs(inverse).max())
            is_regular = negligible * size * m * self.largest < 1 and least * size < 1
            if m > keep or not is_regular:
                rotation, inverse, theta, held = (x[0] for x in truncate(R[None], keep, negligible, least))
                m, inverse = held.size, inverse * held
                C[:m] = (rotation * held).T.astype(C.dtype).dot(C)
                self.theta = self.theta if q else float(theta)
            elif not q:
                self.theta = _geometric_mean(np.diagonal(R).tolist())
            U, C = inverse.T.astype(C.dtype).dot(Z), C[:m]
            for u, c in zip(U, C):  # one at a time: memory
                u -= c / self.theta
            self.K[q : q + m] = U[::-1]  # the last are kept longest
            U[:] = C
            C[:] = U[::-1]
        T, older = np.eye(q + m), self.C[:q]
        if q:
            T[:q, :q], T[q:, :q] = self.T, -C.dot(older.T).dot(self.T)
        dropped = max(0, q + m - keep)
        self.held, self.T = q + m - dropped, T[dropped:, dropped:]
        if dropped:
            for rows in (self.C, self.K):
                rows[: self.held] = rows[dropped : q + m]


def _geometric_mean(numbers: list[float]) -> float:
    """The geometric mean of positive numbers, exact under scaling by powers of two."""
    mantissas, exponents = zip(*map(math.frexp, numbers))
    whole, rest = divmod(sum(exponents), len(numbers))
    return math.ldexp(2.0 ** ((rest + sum(map(math.log2, mantissas))) / len(numbers)), whole)
