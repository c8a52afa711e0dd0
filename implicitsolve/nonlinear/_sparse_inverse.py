"""Inverses of assembled sparse Jacobians: by iterations while these cost less than factors, which follow then."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import scipy.sparse

from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.direct._sparse_lu import SparseLU, SparsePlan
from implicitsolve.krylov import GMRES
from implicitsolve.operators import LinearOperator
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.precondition._sparse import ILU

REDUCTION = 1e-2  # of the linear residual by BiCGSTAB: a Newton step on an old J gains hardly more
REDUCTION_ILU = 1e-4  # by GMRES with ILU
MOST_ITERATIONS = 20  # of a first solve with ILU, to half of the digits: where there are more, factors are cheaper
ITERATION, ENTRY, UNKNOWN = 33e3, 1.3, 4.0  # nanoseconds: of an iteration of BiCGSTAB, and more for each ...
SOLVES = 6  # that factors serve: an iterative solve may cost that part of what is left
LEAST, MOST = 4, 100  # iterations of BiCGSTAB that are worth a trial, and that one solve may take


class SparseInverses:
    """Inverses of matrices of one pattern, for the Newton steps of one solve.

    A single system is solved by BiCGSTAB with the assembled J, scaled by its diagonal, until the iterations have cost
    what a factorization is estimated to: so the two never cost more than about twice the better one. Time steps need a
    few iterations, and in the cube they take a small part of the time of LU. Where factors would fill too much
    (`FillEstimate`), GMRES with `ILU` is tried before.
    """

    def __init__(self) -> None:
        self.plan: SparsePlan | None = None
        self.spent: float = 0.0  # nanoseconds of iterations, as estimated
        self.hopeless: float = np.inf  # operations from which on ILU is not tried: 0 once it took too many iterations

    def factor(self, J: SparseMatrix) -> Any:
        """The inverse of J."""
        if self.plan is None or self.plan.structure is not J.structure:
            self.plan = SparsePlan(J.structure)
        if J.batch_shape == (1,) and not self.plan.is_direct and self.limit(J) >= LEAST:
            return _Iterative(J, self)
        return self.factored(J)

    def factored(self, J: SparseMatrix) -> Any:
        """The inverse of J by its factors, complete or not."""
        plan: Any = self.plan
        if plan.fill.prefers_direct or plan.fill.operations > self.hopeless:
            return SparseLU().factor(J, plan)
        inverse = _KrylovInverse(J, ILU(drop_tolerance=0.1, fill=2.0).build(J))
        if inverse.suits():
            return inverse
        self.hopeless = 0.0
        return SparseLU().factor(J, plan)

    def limit(self, J: SparseMatrix) -> int:
        """Iterations that the estimate leaves."""
        left: float = self.plan.fill.operations - self.spent  # type: ignore[union-attr]
        return int(min(MOST, left / (SOLVES * self.cost(J)))) if left > 0 else 0

    @staticmethod
    def cost(J: SparseMatrix) -> float:
        """Nanoseconds of an iteration of BiCGSTAB."""
        return ITERATION + ENTRY * J.structure.nnz + UNKNOWN * J.shape[0]


class _Iterative:
    """J^-1 of one system by BiCGSTAB, and by factors from the first solve on that takes too many iterations."""

    def __init__(self, J: SparseMatrix, owner: SparseInverses) -> None:
        self._J, self._owner = J, owner
        self._factors: Any = None
        with np.errstate(all="ignore"):
            d = 1.0 / J.diagonal()[0]
        if not np.isfinite(d).all():
            self._factors = owner.factored(J)
            return
        data = J.flat_data[0] * np.repeat(d, np.diff(J.structure.indptr))
        self._scale, n = d, d.size
        self._scaled = scipy.sparse.csc_array((data, J.structure.indices, J.structure.indptr), shape=(n, n))

    def matvec(self, F: Array) -> Array:
        """J^-1 F for F (1, N)."""
        owner = self._owner
        if self._factors is None:
            y, iterations = bicgstab(self._scaled, F[0], owner.limit(self._J))
            owner.spent += iterations * owner.cost(self._J)
            if y is not None:
                return (y * self._scale)[None, :]
            owner.spent = np.inf  # further iterations are not worth it
            self._factors = owner.factored(self._J)
        return self._factors.matvec(F)

    def negative(self, F: Array) -> Array:
        """-J^-1 F."""
        return -self.matvec(F)

    def __copy__(self) -> _Iterative:
        """The same with an account of its own, for another solve."""
        other = object.__new__(_Iterative)
        vars(other).update(vars(self), _owner=copy.copy(self._owner))
        return other

    def take(self, indices: Indices) -> _Iterative:
        """The inverse itself, of the only system."""
        return self


def bicgstab(A: Any, b: HostArray, limit: int) -> tuple[HostArray | None, int]:
    """A^-1 b to `REDUCTION` by BiCGSTAB for one system, None where that needs more iterations; and their number.

    `krylov.BiCGSTAB` is the one for batches, arrays on devices, and confirmed residuals; this one has a third of its
    cost for some thousands of unknowns, and gives up as soon as the residual falls too slowly for the limit.
    """
    x, r, p, shadow = np.zeros_like(b), b, b, np.conj(b)
    rho = first = np.dot(shadow, r)
    target = REDUCTION**2 * abs(first)
    with np.errstate(all="ignore"):
        for k in range(1, limit + 1):
            v = A @ p
            alpha = rho / np.dot(shadow, v)
            s = r - alpha * v
            t = A @ s
            t_conj = np.conj(t)
            omega = np.dot(t_conj, s) / np.dot(t_conj, t)
            x += alpha * p + omega * s
            r = s - omega * t
            size = np.vdot(r, r).real
            if size <= target:
                return x, k
            is_slow = k >= LEAST and 2 * limit * np.log(size / abs(first)) > k * np.log(REDUCTION**2)
            if is_slow or not 0 < size < np.inf:
                return None, k
            rho, old = np.dot(shadow, r), rho
            p = r + (rho / old) * (alpha / omega) * (p - omega * v)
    return None, limit


class _KrylovInverse(LinearOperator):
    """J^-1 by GMRES with incomplete factors."""

    def __init__(self, J: SparseMatrix, M: LinearOperator) -> None:
        self._J, self._M = J, M

        def solved(b: Array) -> Array:
            target = REDUCTION_ILU * np.linalg.norm(b, axis=1)
            return (
                GMRES(restart=60).solve(J, b, target=target, max_iterations=4 * MOST_ITERATIONS, M=M, confirm=False).x
            )

        super().__init__(
            solved,
            in_shape=J.in_shape,
            batch_shape=J.batch_shape,
            dtype=J.dtype,
            take=lambda rows: _KrylovInverse(J.take(rows), M.take(rows)),  # type: ignore[arg-type]
        )

    def suits(self) -> bool:
        """Whether a solve to half of the digits takes few iterations."""
        b = np.random.default_rng(0).uniform(-1.0, 1.0, (self._J.batch_shape[0], self._J.shape[0]))
        target = REDUCTION_ILU**0.5 * np.linalg.norm(b, axis=1)
        x = (
            GMRES(restart=60)
            .solve(self._J, b, target=target, max_iterations=MOST_ITERATIONS, M=self._M, confirm=False)
            .x
        )
        return bool((np.linalg.norm(b - self._J.matvec(x), axis=1) <= 2 * target).all())

    def negative(self, F: Array) -> Array:
        """-J^-1 F for F (B, N)."""
        return -self.matvec(F)
