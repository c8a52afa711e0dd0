"""Inverses of assembled sparse Jacobians: by iterations while these cost less than factors, which follow then."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import math
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse
from scipy.linalg import blas

from implicitsolve._arrays.host import index_dtype
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.direct._cudss import CuDSSPlan
from implicitsolve.direct._sparse_lu import FillEstimate, SparseLU, SparsePlan
from implicitsolve.krylov import GMRES
from implicitsolve.operators import LinearOperator
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.precondition._parts import Preconditioner
from implicitsolve.precondition._sparse import AMG, ILU
from implicitsolve.structure._sparse import Sparse

REDUCTION = 1e-3  # of the linear residual by BiCGSTAB: by 1e-2 springs took 1.6 times the evaluations
REDUCTION_ILU = 1e-4  # by GMRES
CYCLE = 40  # nanoseconds an entry of J, that an iteration of GMRES takes with multigrid, which takes 200 to set up
AMG_LIMIT = 2e3  # ... that factors may take
ITERATION, UNKNOWN = 10e3, 1.5  # nanoseconds: of an iteration of BiCGSTAB, and more for each unknown,
ENTRY, CELL = 1.6, 0.3  # ... each entry in compressed columns, and each place on a diagonal
LEAST_FILLED = 0.3  # part of their places that diagonals fill if products by them are faster: 3 times where all are
MOST_OPERATIONS = 3e10  # of complete factors that follow: half a minute, 524,288 unknowns in the plane
SOLVES = 4  # that factors serve: an iterative solve may cost that part of what is left
LEAST_ITERATIONS, MOST_ITERATIONS = 4, 100  # iterations that are worth a trial, and that one solve may take
VECTOR_KERNELS = {"f": (blas.saxpy, blas.sdot, blas.sscal), "d": (blas.daxpy, blas.ddot, blas.dscal)}
VECTOR_KERNELS |= {"F": (blas.caxpy, blas.cdotc, blas.cscal), "D": (blas.zaxpy, blas.zdotc, blas.zscal)}
HEADWAY = 2  # part of the limit after which the residual must have fallen half as fast as the limit asks


class SparseInverses:
    """Inverses of matrices of one pattern, for the Newton steps of one solve.

    A single system is solved by BiCGSTAB with the assembled J, scaled by its diagonal, until the iterations have cost
    what a factorization is estimated to, beyond what its solves would (a nanosecond for each entry of the factors): so
    the two never cost more than about twice the better one. Each J is expected to be used in as many solves as the last
    one; after one that was factored the iterations may cost half. Where factors would fill too much (`FillEstimate`),
    GMRES is tried before, as long, with `AMG` for signs as in diffusion, if pyamg is installed, and with `ILU`; their
    preconditioners are kept for further J as long as iterations do not double. On a device all are factorized at once.
    """

    def __init__(self, lu: SparseLU | None = None) -> None:
        self.lu: SparseLU = lu or SparseLU()
        self.iterates: bool = lu is None
        self.plan: SparsePlan | CuDSSPlan | None = None
        self.diagonals: tuple[HostArray, HostArray] | None = None
        self.spent: float = 0.0  # nanoseconds of iterations with the last J, as estimated
        self.served: int = 0  # solves with the last J
        self.expected: int = SOLVES  # solves with it
        self.share: float = 1.0  # of `FillEstimate.operations`, that iterations with one J may cost
        self.preconditioners: tuple[Preconditioner, ...] = ()  # that are likely to cost less than factors
        self.M: LinearOperator | None = None  # the first of them, of an earlier J
        self.usual: int = 0  # iterations of GMRES with M when it was new

    def factor(self, J: SparseMatrix) -> Any:
        if self.plan is None or self.plan.structure is not J.structure:
            self.plan, self.diagonals = self.lu.plan(J), diagonals(J.structure)
            self.preconditioners, self.M = alternatives(self.plan, J) if self.iterates else (), None
        is_one = J.batch_shape == (1,) and J.dtype.char in VECTOR_KERNELS
        if self.iterates and is_one and not self.plan.is_direct:
            self.expected = min(self.served, SOLVES) or self.expected
            self.spent, self.served = 0.0, 0
            if self.limit() >= LEAST_ITERATIONS:
                return _Iterative(J, self)
        return self.factorize(J)

    @property
    def fill(self) -> FillEstimate:
        """The estimated fill of the pattern."""
        return self.plan.fill  # type: ignore[union-attr]

    def factorize(self, J: SparseMatrix) -> Any:
        """The inverse of J by its factors, or by GMRES with what is likely to cost less."""
        return _KrylovInverse(J, self) if self.preconditioners else self.lu.factor(J, self.plan)

    def cheaper(self) -> int:
        """Iterations of GMRES with one J that cost no more than factors."""
        return int(self.fill.operations / (CYCLE * self.plan.structure.nnz))  # type: ignore[union-attr]

    def otherwise(self, J: SparseMatrix) -> Any:
        """The inverse of J without the preconditioner that took too many iterations; None: factors take too long."""
        if len(self.preconditioners) == 1 and self.fill.operations > MOST_OPERATIONS:
            return None
        self.preconditioners, self.M = self.preconditioners[1:], None
        return self.factorize(J)

    def limit(self) -> int:
        """Iterations that the estimate leaves for the next solve."""
        left = self.share * self.fill.operations - self.spent
        allowed = left / max(1, self.expected - self.served) + self.fill.entries
        return int(min(MOST_ITERATIONS, allowed / self.cost)) if left > 0 else 0

    @property
    def cost(self) -> float:
        """Nanoseconds of an iteration of BiCGSTAB."""
        structure: Sparse = self.plan.structure  # type: ignore[union-attr]
        n, places = structure.unknowns, self.diagonals
        return ITERATION + UNKNOWN * n + (ENTRY * structure.nnz if places is None else CELL * places[0].size * n)


def diagonals(structure: Sparse) -> tuple[HostArray, HostArray] | None:
    """Offsets (K,) of diagonals, and places of the entries in an array (K, N) of them; None if that is mostly empty."""
    n, of_entries = structure.unknowns, structure.offsets
    used = np.zeros(2 * n, dtype=np.int64)
    used[of_entries] = 1
    offsets = np.flatnonzero(used)
    if structure.nnz < LEAST_FILLED * offsets.size * n:
        return None
    used[offsets] = np.arange(offsets.size) * n
    places = (used[of_entries] + structure.columns).astype(index_dtype(offsets.size * n))
    return np.where(offsets < n, offsets, offsets - 2 * n), places


class _Iterative:
    """J^-1 of one system by BiCGSTAB, and by factors from the first solve on that takes too many iterations."""

    def __init__(self, J: SparseMatrix, owner: SparseInverses) -> None:
        self._J, self._owner = J, owner
        self._factors: Any = None
        data, structure = J.flat_data[0], J.structure
        if owner.diagonals is None:
            self._scaled: Any = structure.with_entries(data.copy())
        else:
            offsets, places = owner.diagonals
            full = np.zeros((offsets.size, structure.unknowns), dtype=data.dtype)
            full.reshape(-1)[places] = data
            self._scaled = scipy.sparse.dia_array((full, offsets), shape=J.shape)
        with np.errstate(all="ignore"):
            self._scale: HostArray = 1.0 / self._scaled.diagonal()
        if not np.isfinite(self._scale).all():
            self._factors = owner.factorize(J)
            return
        is_full = owner.diagonals is not None
        self._scaled.data *= self._scale if is_full else np.repeat(self._scale, np.diff(structure.indptr))

    def matvec(self, F: Array) -> Array:
        owner = self._owner
        if self._factors is None:
            y, iterations = bicgstab(self._scaled, F[0], owner.limit(), REDUCTION)
            owner.spent += max(0.0, iterations * owner.cost - owner.fill.entries)
            if y is not None:
                owner.served += 1
                y *= self._scale
                return y[None, :]
            owner.share *= 0.5
            self._scaled = None  # its memory first
            self._factors = owner.factorize(self._J)
        owner.served += 1
        return self._factors.matvec(F)

    def negative(self, F: Array) -> Array:
        return -self.matvec(F)

    def __copy__(self) -> _Iterative:
        """A copy with an account of its own, for another solve."""
        other = object.__new__(_Iterative)
        vars(other).update(vars(self), _owner=copy.copy(self._owner))
        return other

    def take(self, indices: Indices) -> _Iterative:
        return self


def bicgstab(A: Any, b: HostArray, limit: int, eta: float) -> tuple[HostArray | None, int]:
    """A^-1 b to ||r|| <= eta ||b|| by BiCGSTAB for one system, and the number of iterations.

    None where that needs more than `limit`, or the residual falls too slowly for that.
    `krylov.BiCGSTAB` is the one for batches, arrays on devices, and confirmed residuals; this one has a fifth of its
    cost for some thousands of unknowns.
    """
    x, r, p = np.zeros_like(b), b.copy(), b.copy()
    axpy, dot, scal = VECTOR_KERNELS[b.dtype.char]
    rho = dot(b, r)
    first, soon, k = abs(rho), max(LEAST_ITERATIONS, limit // HEADWAY), 0
    with contextlib.suppress(ArithmeticError):
        for k in range(1, limit + 1):
            v = A @ p
            alpha = rho / dot(b, v)
            axpy(v, r, a=-alpha)
            t = A @ r
            omega = dot(t, r) / dot(t, t)
            axpy(p, x, a=alpha)
            axpy(r, x, a=omega)
            axpy(t, r, a=-omega)
            size = dot(r, r).real / first
            if size <= eta**2:
                return x, k
            if not 0 < size < math.inf or (k >= soon and limit * math.log(size) > k * math.log(eta)):
                break
            rho, old = dot(b, r), rho
            axpy(v, p, a=-omega)
            scal((rho / old) * (alpha / omega), p)
            axpy(r, p)
    return None, k


def alternatives(plan: SparsePlan | CuDSSPlan, J: SparseMatrix) -> tuple[Preconditioner, ...]:
    """What is likely to cost less than factors with the estimated fill."""
    if not isinstance(plan, SparsePlan) or plan.is_direct:
        return ()
    is_long = plan.fill.operations > AMG_LIMIT * plan.structure.nnz and plan.is_symmetric
    has_amg = is_long and J.dtype.char == "d" and importlib.util.find_spec("pyamg") is not None
    amg = [AMG(coarsening="classical")] if has_amg and is_diffusive(J) else []
    return (*amg, *([] if plan.fill.prefers_direct else [ILU(drop_tolerance=0.1, fill=2.0)]))


def is_diffusive(J: SparseMatrix) -> bool:
    """Whether in most rows no other entry has the sign of the diagonal one: elsewhere pyamg fails, and prints so."""
    own = J.diagonal()[0]
    alike = J.flat_data[0] * own[J.structure.indices] > 0
    return bool(own.all() and np.median(np.bincount(J.structure.indices, alike)) <= 1)


class _KrylovInverse(LinearOperator):
    """J^-1 by GMRES with a preconditioner, an earlier one as long as it is good, and otherwise once a solve stalls."""

    def __init__(self, J: SparseMatrix, owner: SparseInverses, M: Any = None, instead: Any = None) -> None:
        self._J, self._owner, self._instead = J, owner, instead
        self._is_kept = M is None and owner.M is not None and J.batch_shape == (1,)
        self._M = owner.M if self._is_kept else M
        self._left: int = owner.cheaper()  # iterations
        super().__init__(self._solve, in_shape=J.in_shape, batch_shape=J.batch_shape, dtype=J.dtype, take=self._take)

    def _take(self, rows: Indices) -> _KrylovInverse:
        J: Any = self._J.take(rows)
        M, instead = (None if part is None else part.take(rows) for part in (self._M, self._instead))
        return _KrylovInverse(J, self._owner, M, instead)

    def _solve(self, b: Array) -> Array:
        owner = self._owner
        if self._instead is not None:
            return self._instead.matvec(b)
        if self._is_kept:
            x, iterations, is_good = self._iterate(b, 2 * owner.usual + LEAST_ITERATIONS)
            if is_good:
                return x
            self._is_kept, self._M = False, None
        if self._M is None:
            self._M = owner.M = owner.preconditioners[0].build(self._J)
            owner.usual = MOST_ITERATIONS
        x, iterations, is_good = self._iterate(b, self._left, HEADWAY)
        owner.usual = min(owner.usual, iterations)
        if not is_good:
            self._instead = owner.otherwise(self._J)
        return x if self._instead is None else self._instead.matvec(b)

    def _iterate(self, b: Array, limit: int, headway: int = 1) -> tuple[Array, int, bool]:
        """J^-1 b, iterations, and whether these were enough; those without `HEADWAY` end as in `bicgstab`."""
        norm = np.linalg.norm(b, axis=1)
        target, limit = REDUCTION_ILU * norm, max(1, min(limit, self._left, MOST_ITERATIONS))
        soon = min(limit, max(LEAST_ITERATIONS, limit // headway))
        solve = partial(GMRES(restart=60).solve, self._J, b, target=target, M=self._M, confirm=False)
        found, least = solve(max_iterations=soon), norm * REDUCTION_ILU ** (0.5 * soon / limit)
        iterations, size = int(np.max(found.iterations)), found.residual_norm
        if soon < limit and (size > target).any() and (size <= least).all():
            found = solve(max_iterations=limit - soon, x0=found.x)
            iterations += int(np.max(found.iterations))
        self._left -= iterations
        return found.x, iterations, bool((found.residual_norm <= target).all())

    def negative(self, F: Array) -> Array:
        return -self.matvec(F)
