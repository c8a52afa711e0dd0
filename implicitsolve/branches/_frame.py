"""The bordered matrix [[J, dF/dlam], [row]] at a point of a branch: factored where J is assembled, else by products."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse.csgraph

from implicitsolve._sparse_structure import Sparse, compressed
from implicitsolve._typing import HostArray
from implicitsolve.branches._family import ExtendedSystem
from implicitsolve.direct._sparse_lu import SparseFactorization, SparseLU, SparsePlan
from implicitsolve.krylov import LGMRES
from implicitsolve.operators import LinearOperator
from implicitsolve.operators._bordered import bordered
from implicitsolve.operators._sparse import SparseMatrix

ROOT_EPS = float(np.finfo(float).eps) ** 0.5
ROUNDING = 64 * float(np.finfo(float).eps)  # of |J| |x|, below which no F is asked for
STRICT = 1e-4  # tolerance of special points over that of others
LINEAR_RTOL = 1e-4  # of Krylov solves; at 1e-2 paths are lost
MOST_KRYLOV = 400


@dataclass
class Metric:
    """Lengths on vectors (x, lam): sqrt(mean(x^2) / unit^2 + lam^2 / span^2)."""

    unit: float
    span: float
    size: int

    def covector(self, a: HostArray) -> HostArray:
        """The row whose product with b is the inner product of a and b."""
        row = a / (self.size * self.unit**2)
        row[-1] = a[-1] / self.span**2
        return row

    def inner(self, a: HostArray, b: HostArray) -> float:
        """The inner product."""
        return float(self.covector(a) @ b)

    def norm(self, a: HostArray) -> float:
        """The length."""
        with np.errstate(all="ignore"):
            x = np.linalg.norm(a[:-1] / self.unit) / self.size**0.5
        return float(np.hypot(x, a[-1] / self.span))

    def parameter_row(self) -> HostArray:
        """The row that fixes the parameter."""
        row = np.zeros(self.size + 1)
        row[-1] = 1 / self.span
        return row

    @property
    def units(self) -> HostArray:
        """Lengths 1 along each axis."""
        units = np.full(self.size + 1, self.unit * self.size**0.5)
        units[-1] = self.span
        return units


class BorderedPlan:
    """Where the entries of a pattern stand after a dense row and column have been added."""

    def __init__(self, structure: Sparse) -> None:
        n, nnz = structure.unknowns, structure.nnz
        self.structure = structure
        self.entries: HostArray = np.arange(nnz) + structure.columns
        indptr = np.append(structure.indptr + np.arange(n + 1), nnz + 2 * n + 1)
        self.row: HostArray = indptr[1:] - 1
        self.column: HostArray = np.arange(nnz + n, nnz + 2 * n)
        indices = np.empty(nnz + 2 * n + 1, dtype=np.int32)
        indices[self.entries], indices[self.row], indices[self.column] = structure.indices, n, np.arange(n)
        self.plan: SparsePlan = SparsePlan(compressed(indptr, indices))

    def factor(self, J: SparseMatrix, column: HostArray, row: HostArray) -> SparseFactorization:
        """Factors of [[J, column], [row]]."""
        data = np.empty(self.plan.structure.nnz)
        data[self.entries], data[self.row], data[self.column] = J.data, row, column
        return SparseLU().factor(SparseMatrix(data, self.plan.structure), self.plan)


class Solver:
    """What frames have in common: the system, the metric, the tolerance, and the last plan."""

    def __init__(self, system: ExtendedSystem, metric: Metric) -> None:
        self.system, self.metric = system, metric
        self.reach = 0.0  # change of F near the start as lam moves by sqrt(eps) of the interval
        self.is_reach_known = False
        self.plan: BorderedPlan | None = None

    def planned(self, structure: Sparse) -> BorderedPlan:
        """The plan for a pattern: the last one, where that has not changed."""
        if self.plan is None or not self.plan.structure.has_entries_of(structure):
            self.plan = BorderedPlan(structure)
        return self.plan


class Frame:
    """The bordered matrix [[J, dF/dlam], [row]] at z: factored where J is assembled, in units in which x and F are 1.

    Attributes
    ----------
    null : ndarray (N + 1,)
        The solution for the last unit vector: along the branch, ``row @ null == 1``.
    matrix : SparseMatrix or None
        J, where it is assembled; by differences to both sides where `accurate`.
    scale : float
        Euclidean size of F: its change with the parameter over the whole interval.
    rounding : float
        Size of F that rounding errors may leave.
    """

    def __init__(
        self,
        solver: Solver,
        z: HostArray,
        F: HostArray,
        row: HostArray,
        guess: HostArray | None = None,
        *,
        accurate: bool = False,
    ) -> None:
        system, metric = solver.system, solver.metric
        self.solver, self.row, self.units = solver, row, metric.units
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
            if not solver.is_reach_known:
                solver.reach = max(solver.reach, ROOT_EPS * float(np.max(np.abs(moved))))
            if self.matrix is not None:
                J = SparseMatrix(self.matrix.data * (self.units[0] / self.scale), self.matrix.structure)
                self.factors = solver.planned(J.structure).factor(J, moved / self.scale, row * self.units)
        last = np.zeros(z.size)
        last[-1] = 1.0
        self.null: HostArray = self.solve(last, guess=guess)

    def tolerance(self, *, strict: bool) -> float:
        """What max|F| has to fall to."""
        return max(self.solver.reach * (STRICT if strict else 1.0), self.rounding)

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
            here.J = self.solver.system.jacobian(z, F)
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
