"""The extended system F(x, lam) = 0 on z = (x, lam), and its bordered matrices."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph

from implicitsolve._record import Tally
from implicitsolve._typing import HostArray
from implicitsolve.branches._family import Family
from implicitsolve.direct._sparse_lu import SparseFactorization, SparseLU, SparsePlan
from implicitsolve.kernels._norms import norm2
from implicitsolve.krylov import LGMRES
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.nonlinear._offered_jacobians import OfferedJacobians
from implicitsolve.nonlinear._pattern_search import PatternSearch, SparseJacobians
from implicitsolve.nonlinear._state import JacobianAssembler, SolveMemory
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.operators._wrappers import border_operator
from implicitsolve.problem import favors_direct
from implicitsolve.stopping import LinearStop
from implicitsolve.structure import BlockBanded, Outcome
from implicitsolve.structure._sparse import Sparse, from_csc

MOST_BY_COLUMNS = 128  # unknowns up to which a J without structure is assembled column by column
ROOT_EPS = float(np.finfo(float).eps) ** 0.5  # of differences in lam, over its size or interval
PRODUCT_ROUNDING = 64 * float(np.finfo(float).eps)  # of |J| |x|, below which F is not required to fall
STRICT = 1e-4  # tolerance of special points over that of others
LINEAR_RTOL = 1e-4  # of Krylov solves; at 1e-2 paths are lost


@dataclass
class Metric:
    """Lengths on vectors (x, lam): sqrt(mean(x^2) / unit^2 + lam^2 / span^2)."""

    unit: float
    span: float
    size: int

    @property
    def units(self) -> HostArray:
        """Lengths 1 along each axis."""
        units = np.full(self.size + 1, self.unit * self.size**0.5)
        units[-1] = self.span
        return units

    def covector(self, a: HostArray) -> HostArray:
        """The row whose product with b is the inner product of a and b."""
        return a / self.units**2

    def inner(self, a: HostArray, b: HostArray) -> float:
        return float(self.covector(a) @ b)

    def norm(self, a: HostArray) -> float:
        with np.errstate(all="ignore"):
            return float(np.linalg.norm(a / self.units))

    def parameter_row(self) -> HostArray:
        """The row that fixes the parameter."""
        row = np.zeros(self.size + 1)
        row[-1] = 1 / self.span
        return row


class ExtendedSystem:
    """F(x, lam) with its derivatives, on vectors z = (x, lam) of N + 1 numbers, with x in the shape of `x0`.

    Lengths are relative to `unit`, the size of x, and `span`, that of the interval of the parameter. Points are where F
    is `accuracy` of its change over that interval.
    """

    def __init__(
        self, family: Family, x0: HostArray, tally: Tally, *, unit: float, span: float, accuracy: float = ROOT_EPS
    ) -> None:
        self.family, self.shape, self.tally, self.like = family, x0.shape, tally, x0
        self.metric: Metric = Metric(unit, span, x0.size)
        self.size: int = x0.size
        self.accuracy: float = accuracy
        self.reach = 0.0  # change of F near the start as lam moves by so much of the interval
        self.is_reach_known = False
        self.plan: BorderedPlan | None = None  # of the bordered matrix, as long as the pattern of J stays
        self._last: tuple[float, Evaluator] | None = None
        self._length: Any = None
        self._assembler: JacobianAssembler | None = None
        self._is_ready = False

    def evaluator(self, z: HostArray) -> Evaluator:
        lam = float(z[-1])
        if self._last is None or self._last[0] != lam:
            evaluator = Evaluator(self.family.at(lam), self.like, tally=self.tally)
            self._length = evaluator.length = self._length or evaluator.length
            self._last = lam, evaluator
        return self._last[1]

    def state(self, z: HostArray) -> HostArray:
        """X, or F, in the shape of the unknowns."""
        return z[: self.size].reshape(self.shape).copy()

    def parts(self, z: HostArray) -> tuple[HostArray, float]:
        return self.state(z), float(z[-1])

    def residual(self, z: HostArray) -> HostArray:
        with np.errstate(all="ignore"):
            return self.evaluator(z).residual(z[None, :-1])[0]

    def column(self, z: HostArray, F: HostArray) -> HostArray:
        """The derivative of F with respect to lam: the problem's own, or a difference."""
        problem = self.evaluator(z).problem
        if problem.parameter_jvp is not None:
            name = self.family.parameter or next(iter(problem.parameters or ()), "lam")
            self.tally.add("jvps")
            return np.array(problem.parameter_jvp(self.state(z), {name: 1.0}), dtype=float).reshape(self.size)
        moved = z.copy()
        moved[-1] += ROOT_EPS * max(abs(z[-1]), self.metric.span)
        with np.errstate(all="ignore"):
            return (self.residual(moved) - F) / (moved[-1] - z[-1])

    def jacobian(self, z: HostArray, F: HostArray) -> LinearOperator:
        """J at z, as an operator on arrays (1, N)."""
        evaluator, x = self.evaluator(z), z[None, :-1]
        if not evaluator.has_exact_products:
            evaluator.length.follow(evaluator.rows, np.linalg.norm(x, axis=1))
        return evaluator.jacobian(x, F[None, :])

    def matrix(self, z: HostArray, F: HostArray, *, accurate: bool = False) -> SparseMatrix | None:
        """J at z assembled, by two-sided differences where `accurate`; None where products are cheaper."""
        evaluator, x = self.evaluator(z), z[None, :-1]
        if not self._is_ready:
            self._assembler, self._is_ready = self._find(evaluator, z), True
        if self._assembler is None:
            return None
        with np.errstate(all="ignore"):
            if accurate and not evaluator.has_exact_products:
                return self._accurate(self._assembler, evaluator, x, F[None, :])
            return _entries(self._assembler.assemble(evaluator, x, F[None, :]))

    def _accurate(self, assembler: Any, evaluator: Evaluator, x: HostArray, F: HostArray) -> SparseMatrix:
        """J by two-sided differences."""
        if isinstance(assembler, Assembler):
            return _entries(Assembler(evaluator, structure=assembler.structure, central=True).assemble(evaluator, x, F))
        colored = assembler.assembler
        h = ROOT_EPS ** (-1 / 3) * colored.lengths(x)  # from eps^(1/2), of one-sided differences, to eps^(1/3)
        sides = [colored.differences(lambda y: evaluator.residual(y), x, F, side).data for side in (h, -h)]
        return SparseMatrix(0.5 * (sides[0] + sides[1])[0], colored.structure)

    def _find(self, evaluator: Evaluator, z: HostArray) -> JacobianAssembler | None:
        """The assembler of J: from the problem's matrices, by colors, or column by column."""
        problem, x = evaluator.problem, z[None, :-1]
        offered = OfferedJacobians.of(evaluator, x)
        if offered is not None:
            return offered
        if problem.block_structure is not None:
            is_cheap = favors_direct(problem, problem.block_structure.length(self.size))
            return Assembler(evaluator, certifies=False) if is_cheap else None
        pattern = PatternSearch()
        found = pattern.find_structure(evaluator, x)
        if found is not None and found.structure is not None:
            budget = None if found.how == Outcome.DECLARED else pattern._budget(evaluator)
            return SparseJacobians(evaluator, replace(found, values=None), SolveMemory(), None, budget)
        if self.size <= MOST_BY_COLUMNS and problem.structure != "none":
            whole = BlockBanded(lower=0, upper=0, block_size=self.size)
            return Assembler(evaluator, certifies=False, structure=whole)
        return None


def _entries(J: Any) -> SparseMatrix:
    is_banded = isinstance(J, BlockBandedMatrix)
    return SparseMatrix.from_scipy(J.to_sparse("csc")) if is_banded else SparseMatrix(J.flat_data[0], J.structure)


class BorderedPlan:
    """Where the entries of a pattern stand after a dense row and column have been added."""

    def __init__(self, structure: Sparse) -> None:
        n, nnz = structure.unknowns, structure.nnz
        self.structure = structure
        numbers = np.arange(1, nnz + 2 * n + 2)
        J = structure.with_entries(numbers[:nnz])
        column, row, corner = numbers[nnz : nnz + n, None], numbers[None, nnz + n : -1], numbers[-1:, None]
        whole = scipy.sparse.block_array([[J, column], [row, corner]], format="csc")
        self.order: HostArray = whole.data - 1
        self.plan: SparsePlan = SparsePlan(from_csc(whole.indptr, whole.indices))

    def factor(self, J: SparseMatrix, column: HostArray, row: HostArray) -> SparseFactorization:
        """Factors of [[J, column], [row]]."""
        data = np.concatenate([J.data, column, row])[self.order]
        return SparseLU().factor(SparseMatrix(data, self.plan.structure), self.plan)


class Frame:
    """The bordered matrix [[J, dF/dlam], [row]] at z: factored where J is assembled, in units in which x and F are 1.

    `matrix` is J, where it is assembled, by two-sided differences where `accurate`. `null` is the solution for the
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
            self.scale: float = float(norm2(moved[None])[0]) or float(norm2(change[None])[0]) or 1.0
            self.rounding: float = PRODUCT_ROUNDING * float(np.max(np.abs(change)))
            if not system.is_reach_known:
                system.reach = max(system.reach, system.accuracy * float(np.max(np.abs(moved))))
            if self.matrix is not None:
                J = SparseMatrix(self.matrix.data * (self.units[0] / self.scale), self.matrix.structure)
                if system.plan is None or not system.plan.structure.has_entries_of(J.structure):
                    system.plan = BorderedPlan(J.structure)
                self.factors = system.plan.factor(J, moved / self.scale, row * self.units)
        last = np.zeros(z.size)
        last[-1] = 1.0
        self.null: HostArray = self.solve(last, guess=guess)

    def tolerance(self, *, strict: bool) -> float:
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
        """Solve in units in which x and F are 1; factors ignore `row`, and they alone have a transpose."""
        if self.factors is None:
            return self._krylov(b, self.row if row is None else row, guess)
        with np.errstate(all="ignore"):
            return np.asarray(self.factors.solve_adjoint(b) if transposed else self.factors.solve(b))

    @property
    def sign(self) -> float:
        engine: Any = None if self.factors is None else self.factors._engines[0]
        while hasattr(engine, "engine"):  # behind positive scales, and corrections
            engine = engine.engine
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
        """A step from z to F = 0 in the hyperplane of `row`: a chord step by factors, or Newton's step by products."""
        here = self
        if self.factors is None:
            here = copy.copy(self)
            here.J = self.system.jacobian(z, F)
        return here.solve(np.append(-F, 0.0), row)

    def _krylov(self, b: HostArray, row: HostArray, guess: HostArray | None) -> HostArray:
        J: Any = self.J
        units, weights = self.units, (row * self.units)[None, :]
        A = border_operator(
            lambda x: J.matvec(x * units[None, :-1]) / self.scale,
            self.column[None, :] * (units[-1] / self.scale),
            weights[:, :-1],
            weights[:, -1:],
        )
        target, most = LINEAR_RTOL * norm2(b[None]), LinearStop().max_iterations
        start = None if guess is None else guess[None, :] / units
        method = LGMRES(restart=min(100, b.size))
        with np.errstate(all="ignore"):
            found = method.solve(A, b[None, :], target=target, max_iterations=most, x0=start, confirm=False)
        return np.asarray(found.x[0])


def _transpositions(permutation: HostArray) -> int:
    n = permutation.size
    cycles = scipy.sparse.coo_array((np.ones(n), (np.arange(n), permutation)), (n, n))
    return n - int(scipy.sparse.csgraph.connected_components(cycles)[0])
