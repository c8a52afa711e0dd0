"""The bordered matrix [[J, dF/dlam], [row]] at a point of a branch: factored where J is assembled, else by products."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph

from implicitsolve._sparse_structure import Sparse, compressed
from implicitsolve._typing import HostArray
from implicitsolve.branches._family import ExtendedSystem
from implicitsolve.direct._sparse_lu import SparseFactorization, SparseLU, SparsePlan
from implicitsolve.krylov import LGMRES
from implicitsolve.operators import LinearOperator
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.operators._wrappers import bordered

ROOT_EPS = float(np.finfo(float).eps) ** 0.5
ROUNDING = 64 * float(np.finfo(float).eps)  # of |J| |x|, below which no F is asked for
STRICT = 1e-4  # tolerance of special points over that of others
LINEAR_RTOL = 1e-4  # of Krylov solves; at 1e-2 paths are lost
MOST_KRYLOV = 400


class BorderedPlan:
    """Where the entries of a pattern stand after a dense row and column have been added."""

    def __init__(self, structure: Sparse) -> None:
        n, nnz = structure.unknowns, structure.nnz
        self.structure = structure
        numbers = np.arange(1, nnz + 2 * n + 2)
        J = scipy.sparse.csc_array((numbers[:nnz], structure.indices, structure.indptr), shape=(n, n))
        column, row, corner = numbers[nnz : nnz + n, None], numbers[None, nnz + n : -1], numbers[-1:, None]
        whole = scipy.sparse.block_array([[J, column], [row, corner]], format="csc")
        self.order: HostArray = whole.data - 1
        self.plan: SparsePlan = SparsePlan(compressed(whole.indptr, whole.indices))

    def factor(self, J: SparseMatrix, column: HostArray, row: HostArray) -> SparseFactorization:
        """Factors of [[J, column], [row]]."""
        data = np.concatenate([J.data, column, row])[self.order]
        return SparseLU().factor(SparseMatrix(data, self.plan.structure), self.plan)


class Frame:
    """The bordered matrix [[J, dF/dlam], [row]] at z: factored where J is assembled, in units in which x and F are 1.

    `matrix` is J, where it is assembled, by differences to both sides where `accurate`. `null` is the solution for the
    last unit vector, along the branch: ``row @ null == 1``. `scale` is the Euclidean size of F, its change with the
    parameter over the whole interval, and `rounding` what rounding errors may leave of it.
    """

    def __init__(
        self,
        system: ExtendedSystem,
        z: HostArray,
        F: HostArray,
        row: HostArray,
        guess: HostArray | None = None,
        *,
        accurate: bool = False,
    ) -> None:
        metric = system.metric
        self.system, self.row, self.units = system, row, metric.units
        self.column: HostArray = system.column(z, F)
        self.matrix: SparseMatrix | None = system.matrix(z, F, accurate=accurate)
        self.factors: SparseFactorization | None = None
        J: Any = system.jacobian(z, F) if self.matrix is None else None
        self.J: LinearOperator | None = J
        sizes = np.maximum(np.abs(z[:-1]), metric.unit)
        with np.errstate(all="ignore"):
            if self.matrix is None:
                change = J.matvec((sizes * np.resize([1.0, -1.0, -1.0], sizes.size))[None, :])[0]
            else:
                change = SparseMatrix(np.abs(self.matrix.data), self.matrix.structure).matvec(sizes)
            moved = self.column * metric.span
            self.scale: float = float(np.linalg.norm(moved)) or float(np.linalg.norm(change)) or 1.0
            self.rounding: float = ROUNDING * float(np.max(np.abs(change)))
            if not system.is_reach_known:
                system.reach = max(system.reach, ROOT_EPS * float(np.max(np.abs(moved))))
            if self.matrix is not None:
                J = SparseMatrix(self.matrix.data * (self.units[0] / self.scale), self.matrix.structure)
                if system.plan is None or not system.plan.structure.has_entries_of(J.structure):
                    system.plan = BorderedPlan(J.structure)
                self.factors = system.plan.factor(J, moved / self.scale, row * self.units)
        last = np.zeros(z.size)
        last[-1] = 1.0
        self.null: HostArray = self.solve(last, guess=guess)

    def tolerance(self, *, strict: bool) -> float:
        """What max|F| has to fall to."""
        return max(self.system.reach * (STRICT if strict else 1.0), self.rounding)

    def solve(self, b: HostArray, row: HostArray | None = None, guess: HostArray | None = None) -> HostArray:
        """Solve with the bordered matrix, or with another last row in it."""
        y = self.scaled_solve(np.append(b[:-1] / self.scale, b[-1]), row, guess) * self.units
        if self.factors is None or row is None:
            return y
        with np.errstate(all="ignore"):
            return y - self.null * ((row @ y - b[-1]) / (row @ self.null))

    def scaled_solve(
        self, b: HostArray, row: HostArray | None = None, guess: HostArray | None = None, *, transposed: bool = False
    ) -> HostArray:
        """The same in units in which x and F are 1; factors ignore `row`, and they alone have a transpose."""
        if self.factors is None:
            return self._krylov(b, self.row if row is None else row, guess)
        with np.errstate(all="ignore"):
            return self.factors.solve_adjoint(b) if transposed else self.factors.solve(b)

    @property
    def sign(self) -> float:
        """The sign of the determinant, by the factors."""
        engine: Any = None if self.factors is None else self.factors._engines[0]
        engine = getattr(engine, "engine", engine)  # behind positive scales
        if engine is None:
            return np.nan
        if hasattr(engine, "pivots"):
            changes = int(np.count_nonzero(engine.pivots != np.arange(engine.pivots.size)))
            diagonal = np.diagonal(engine.factors)
        else:
            changes = _transpositions(engine.lu.perm_r) + _transpositions(engine.lu.perm_c)
            diagonal = engine.lu.U.diagonal()
        return float(1 - 2 * ((changes + np.count_nonzero(diagonal < 0)) % 2))

    def correction(self, z: HostArray, F: HostArray, row: HostArray) -> HostArray:
        """A step from z to F = 0 in the hyperplane of `row`: by factors a chord step, by products Newton's."""
        here = self
        if self.factors is None:
            here = copy.copy(self)
            here.J = self.system.jacobian(z, F)
        return here.solve(np.append(-F, 0.0), row)

    def _krylov(self, b: HostArray, row: HostArray, guess: HostArray | None) -> HostArray:
        """The same by GMRES."""
        J: Any = self.J
        units, weights = self.units, (row * self.units)[None, :]
        A = bordered(
            lambda x: J.matvec(x * units[None, :-1]) / self.scale,
            self.column[None, :] * (units[-1] / self.scale),
            weights[:, :-1],
            weights[:, -1:],
        )
        target = np.array([LINEAR_RTOL * np.linalg.norm(b)])
        start = None if guess is None else guess[None, :] / units
        method = LGMRES(restart=min(100, b.size))
        with np.errstate(all="ignore"):
            found = method.solve(A, b[None, :], target=target, max_iterations=MOST_KRYLOV, x0=start, confirm=False)
        return np.asarray(found.x[0])


def _transpositions(permutation: HostArray) -> int:
    """Exchanges that a permutation takes."""
    n = permutation.size
    cycles = scipy.sparse.coo_array((np.ones(n), (np.arange(n), permutation)), (n, n))
    return n - int(scipy.sparse.csgraph.connected_components(cycles)[0])
