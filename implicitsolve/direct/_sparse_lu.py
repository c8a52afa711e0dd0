"""Sparse LU: which engine suits a pattern, what it will cost, and factors as an operator."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph

from implicitsolve._arrays.namespace import array_namespace, is_complex, near_reciprocals
from implicitsolve._typing import Array, HostArray
from implicitsolve.direct._cudss import CuDSSPlan, Engine
from implicitsolve.direct._elimination import Core, Elimination
from implicitsolve.direct._factorization import FactoredInverse
from implicitsolve.direct._sparse_engines import ENGINE_LIBRARIES, BandLU, DenseLU, Refined, Scaled, SuperLU, load
from implicitsolve.krylov import LinearMethod
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.stopping import check_choice
from implicitsolve.structure._sparse import Sparse

WIDEST_BAND = 24  # diagonals on one side up to which LAPACK's band was faster than SuperLU: 6 times at 1, even at 32
LENGTH_PER_WIDTH = 8  # blocks of that size that a band must be long
MATCHED = 0.5  # part of the entries (i, j) with an entry (j, i) from which on A + A^T is ordered, not A^T A
LARGEST_RESIDUAL = 1e-9  # ||b - A x|| over ||A|| ||x|| + ||b||, from which on a factorization is done again
ENTRIES_PER_ROW = 0.75  # of the factors, over the mean half bandwidth w: 0.6 to 1.1 in the plane and in the cube
CUBES, LINES, EACH = 5.0, 18.0, 40.0  # 5 w^3 + 18 N w + 40 nnz: planes, tori, cubes, within a factor of 2
BYTES_PER_ENTRY = 12  # a number and an index
DENSE_SHARE = 0.25  # part of all entries from which on LAPACK's LU of the whole array is faster than SuperLU
SPREAD = 10.0  # of the largest entries of rows, or of columns, above which they are scaled, as by LAPACK's `gesvx`
DIRECT_LIMIT = 3e4  # nanoseconds an unknown up to which kept factors were not slower than ILU: cube of 32, torus of 320


@dataclass(frozen=True)
class FillEstimate:
    """What a sparse LU factorization will take, estimated from the pattern alone."""

    entries: float  # of both factors
    operations: float  # nanoseconds that they take, about
    prefers_direct: bool  # whether the factorization is cheap enough not to be avoided

    @classmethod
    def of(cls, structure: Sparse, core: Core) -> FillEstimate:
        """That of a pattern whose factors are those of a band, but for what is eliminated before."""
        n, w = core.unknowns, core.width
        operations = CUBES * w**3 + LINES * n * w + EACH * structure.nnz
        entries = ENTRIES_PER_ROW * n * w + core.eliminated
        return cls(entries, operations, operations <= DIRECT_LIMIT * structure.unknowns)


class SparsePlan:
    """What depends on the pattern alone: symmetry, the order of a narrow band, and the estimate.

    Parameters
    ----------
    structure : Sparse
    engine : str, optional
        That of `SparseLU`.
    """

    def __init__(self, structure: Sparse, engine: str = "auto") -> None:
        self.structure: Sparse = structure
        self.engine: str = engine
        self.analysis: Any = None  # of CHOLMOD
        n = structure.unknowns
        self.is_dense: bool = structure.nnz > DENSE_SHARE * n * n
        lower, upper = structure.bandwidth
        self.order: HostArray | None = None
        graph: Any = None
        rows, columns = structure.rows, structure.columns
        is_wide = max(lower, upper) > WIDEST_BAND or LENGTH_PER_WIDTH * max(lower, upper) > n
        if is_wide and not self.is_dense:
            graph = structure.to_scipy().T  # in compressed rows, with the same arrays
            if not structure.is_symmetric:
                graph = scipy.sparse.csr_array(graph + graph.T)
            order = scipy.sparse.csgraph.reverse_cuthill_mckee(graph, symmetric_mode=True)
            self.order, place = order, np.argsort(order)
            rows, columns = place[rows], place[columns]
            offsets = rows - columns
            lower, upper = int(max(0, offsets.max(initial=0))), int(max(0, -offsets.min(initial=0)))
        self.lower: int = lower
        self.upper: int = upper
        width = max(lower, upper)
        self.is_band: bool = width <= WIDEST_BAND and width * LENGTH_PER_WIDTH <= n
        self.is_direct: bool = self.is_band or self.is_dense
        if self.is_band:
            self.places: HostArray = lower + upper + rows - columns + columns * (2 * lower + upper + 1)
        first = np.arange(n)
        np.minimum.at(first, np.maximum(rows, columns), np.minimum(rows, columns))
        self.fill: FillEstimate = FillEstimate.of(structure, Core(n, float(np.mean(np.arange(n) - first))))
        if not (self.is_direct or self.fill.prefers_direct):
            self.fill = FillEstimate.of(structure, Core.of(graph))
        self.known: Elimination | None = None  # that of the first factorization
        self.pivots: bool = False  # whether pivots on the diagonal are too small, or were once

    @property
    def nbytes(self) -> int:
        """Bytes that the factors are likely to hold, where a library does not report them."""
        return int(BYTES_PER_ENTRY * self.fill.entries)

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether enough entries (i, j) have a counterpart (j, i) for an ordering of A + A^T."""
        structure, pattern = self.structure, self.structure.to_scipy()
        return structure.is_symmetric or pattern.multiply(pattern.T).nnz >= MATCHED * structure.nnz

    def elimination(self, data: HostArray) -> Elimination | None:
        """The order for pivots on the diagonal, that of the first factorization; None for partial pivoting."""
        if self.pivots or not self.is_symmetric:
            return None
        diagonal = np.asarray(SparseMatrix(data, self.structure).diagonal())
        if self.known is None:
            self.known = Elimination.of(self.structure, diagonal)
            self.pivots = self.known is None
        return self.known if self.known is not None and diagonal[self.known.pivots].all() else None

    def engines(self, A: SparseMatrix) -> list[Engine | None]:
        """Factors of each system; None where it is singular."""
        return [_engine(self, row) for row in np.asarray(A.flat_data)]


@dataclass(frozen=True, kw_only=True)
class SparseLU(LinearMethod):
    """Sparse LU factorization.

    Rows and columns of different sizes are scaled. A matrix with more than a quarter of all entries goes to LAPACK's LU
    of the whole array; a pattern that is a narrow band, as it is or after reverse Cuthill-McKee, to its band LU. Any
    other goes to SuperLU [1]_. Where the pattern is about symmetric its pivots are on the diagonal, in an order of
    minimum degree on A + A^T, full rows last, and rows with a zero pivot, as in saddle points, after a neighbor: half
    the fill of COLAMD in the plane, whatever the entries are. Elsewhere it takes COLAMD and partial pivoting. Pivots on
    the diagonal may be small: the residual of one solve is measured. If it is not small, solutions are refined once,
    and if that does not help, the matrix is factorized again with partial pivoting, as are all that follow it. CuPy
    arrays are factorized on the device by cuDSS (`CuDSSPlan`).

    Parameters
    ----------
    engine : {"auto", "pardiso", "klu", "cholmod"}, optional
        What factors real matrices in place of SuperLU: MKL's PARDISO (extra ``pardiso``), KLU (``klu``), or CHOLMOD
        (``cholmod``) for symmetric positive definite ones. SuperLU follows where the residual of a solve is not small.
        Default "auto", SuperLU: on one core the others were faster in the cube alone, PARDISO by a factor of 3.

    Raises
    ------
    BackendUnavailable, TypeError
        If the library of the engine is missing; from `factor`, if A is complex and the engine is for real matrices.

    References
    ----------
    .. [1] J. W. Demmel, S. C. Eisenstat, J. R. Gilbert, X. S. Li and J. W. H. Liu, "A supernodal approach to sparse
           partial pivoting", SIAM J. Matrix Anal. Appl. 20 (1999) 720-755.

    Examples
    --------
    >>> import numpy as np, scipy.sparse
    >>> from implicitsolve import SparseLU
    >>> A = scipy.sparse.diags_array([[2.0, 4.0, 8.0], [1.0, 1.0]], offsets=[0, 1])
    >>> SparseLU().factor(A).solve(np.array([3.0, 5.0, 8.0]))
    array([1., 1., 1.])
    """

    engine: Literal["auto", "pardiso", "klu", "cholmod"] = "auto"

    kind: ClassVar[str] = "direct"
    takes_sparse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice("SparseLU", "engine", self.engine, ("auto", *ENGINE_LIBRARIES))
        if self.engine != "auto":
            load(self.engine)

    def plan(self, A: SparseMatrix) -> SparsePlan | CuDSSPlan:
        """What depends on the pattern of A alone, and on where its entries are."""
        return SparsePlan(A.structure, self.engine) if isinstance(A.data, np.ndarray) else CuDSSPlan(A)

    def factor(self, A: Any, plan: SparsePlan | CuDSSPlan | None = None) -> SparseFactorization:
        """Factorize A; `plan` keeps what depends on the pattern alone from one factorization to the next."""
        A = SparseMatrix.from_scipy(A) if scipy.sparse.issparse(A) or isinstance(A, np.ndarray) else A
        if not isinstance(A, SparseMatrix):
            raise TypeError(f"SparseLU: `A` must be a sparse matrix, got {type(A).__name__}")
        plan = self.plan(A) if plan is None else plan
        return SparseFactorization(A, plan.engines(A), plan)


def is_factorable(data: HostArray, indices: HostArray, indptr: HostArray) -> bool:
    """Whether compressed columns are finite, and no row or column is zero: on others SuperLU may never end."""
    is_used = data != 0
    of_columns = np.diff(np.concatenate([[0], np.cumsum(is_used)])[indptr])
    of_rows = np.bincount(indices, is_used, minlength=of_columns.size)
    return bool(np.isfinite(data).all() and of_columns.all() and of_rows.all())


def _engine(plan: SparsePlan, data: HostArray) -> Engine | None:
    """Factors of one system; None if it is singular or not finite."""
    data = data.astype(np.result_type(data, np.float64), copy=False)
    if not is_factorable(data, plan.structure.indices, plan.structure.indptr):
        return None
    scales = _scales(plan.structure, data)
    if scales is None:
        return _factor_unscaled(plan, data)
    rows, columns = scales
    engine = _factor_unscaled(plan, data * rows[plan.structure.rows] * columns[plan.structure.columns])
    return None if engine is None else Scaled(engine, rows, columns)


def _scales(structure: Sparse, data: HostArray) -> tuple[HostArray, HostArray] | None:
    """Powers of 2 that bring the largest entry of every row and column near 1; None if they are of one size."""
    n, size = structure.unknowns, np.abs(data)
    of_rows, of_columns = np.zeros(n), np.zeros(n)
    np.maximum.at(of_rows, structure.rows, size)
    np.maximum.at(of_columns, structure.columns, size)
    if all(largest.max() <= SPREAD * largest.min() for largest in (of_rows, of_columns)):
        return None
    rows = near_reciprocals(of_rows)
    of_columns[:] = 0.0
    np.maximum.at(of_columns, structure.columns, size * rows[structure.rows])
    return rows, near_reciprocals(of_columns)


def _factor_unscaled(plan: SparsePlan, data: HostArray) -> Engine | None:
    try:
        if plan.is_dense:
            return DenseLU(plan, data)
        if plan.is_band:
            return BandLU(plan, data)
    except RuntimeError:
        return None
    if plan.engine != "auto" and (engine := _by_library(plan, data)) is not None:
        return engine
    elimination = plan.elimination(data)
    if elimination is not None:
        with contextlib.suppress(RuntimeError):  # SuperLU's word for a pivot that is exactly zero
            engine = _accurate(plan, data, SuperLU(plan.structure, data, elimination))
            if engine is not None:
                return engine
    try:
        engine = SuperLU(plan.structure, data, None)
    except RuntimeError:
        return None
    plan.pivots |= elimination is not None
    return engine


def _by_library(plan: SparsePlan, data: HostArray) -> Engine | None:
    """Factors by the library that the plan names; None if they are not accurate."""
    if data.dtype.kind == "c":
        raise TypeError(f"SparseLU: `engine` {plan.engine!r} factors real matrices, got {data.dtype}")
    module = load(plan.engine)
    try:
        return _accurate(plan, data, ENGINE_LIBRARIES[plan.engine].factors(module, plan, data))
    except Exception as error:  # each library has its own for a singular or an indefinite matrix
        if not type(error).__module__.startswith(module.__name__.split(".")[0]) and not isinstance(error, RuntimeError):
            raise
        return None


def _accurate(plan: SparsePlan, data: HostArray, engine: Engine) -> Engine | None:
    """The factors, refined where that is needed; None where it does not help."""
    A = SparseMatrix(data, plan.structure)
    return next((each for each in (engine, Refined(engine, A)) if _is_accurate(A, each)), None)


def _is_accurate(A: SparseMatrix, engine: Engine) -> bool:
    """Whether a solve leaves a small residual."""
    b = np.random.default_rng(0).uniform(0.5, 1.0, A.shape[0]).astype(A.dtype)
    with np.errstate(all="ignore"):
        x = engine.solve(b, "N")
        size = np.max(np.abs(A.data)) * np.max(np.abs(x)) + np.max(np.abs(b))
        return bool(np.max(np.abs(b - A.matvec(x))) <= LARGEST_RESIDUAL * size)


class SparseFactorization(FactoredInverse):
    """The inverse of a sparse matrix, or of a batch of them, by its LU factors.

    Made by ``SparseLU().factor(A)``. `matvec` multiplies by A^-1, `rmatvec` by A^-H, and it can be the preconditioner M
    of a Krylov method.

    Attributes
    ----------
    status : Status, or ndarray of int
        CONVERGED, or SINGULAR: then every product with that system's inverse is NaN.
    A : SparseMatrix
        The matrix.
    plan : SparsePlan or CuDSSPlan
        To be passed with the next matrix of this pattern.
    """

    def __init__(self, A: SparseMatrix, engines: list[Engine | None], plan: SparsePlan | CuDSSPlan) -> None:
        super().__init__(
            partial(_solve, engines, trans="N"),
            partial(_solve, engines, trans="H"),
            in_shape=A.in_shape,
            batch_shape=A.batch_shape,
            dtype=A.dtype,
            take=(lambda indices: SparseFactorization(A.take(indices), [engines[i] for i in indices], plan))  # type: ignore[arg-type]
            if A.batch_shape
            else None,
        )
        self.A: SparseMatrix = A
        self.plan: SparsePlan | CuDSSPlan = plan
        self._engines = engines
        self._mark(np.array([0 if engine is None else -1 for engine in engines]))

    def __repr__(self) -> str:
        """Shape, batch, and bytes."""
        batch = f", batch_shape={self.batch_shape}" if self.batch_shape else ""
        return f"<SparseFactorization {self.shape[0]}x{self.shape[1]}{batch}, {self.nbytes} bytes>"

    @property
    def nbytes(self) -> int:
        """Bytes that the factors hold."""
        return sum(engine.nbytes for engine in self._engines if engine is not None)


def _solve(engines: list[Engine | None], b: Array, trans: str) -> Array:
    """Solve for b (*batch, N), each system by its factors."""
    xp = array_namespace(b)
    flat = xp.reshape(b, (len(engines), -1))
    return xp.reshape(xp.stack([_solved_one(engine, flat[i, :], trans) for i, engine in enumerate(engines)]), b.shape)


def _solved_one(engine: Engine | None, b: Array, trans: str) -> Array:
    xp = array_namespace(b)
    if engine is None:
        return xp.full_like(b, xp.nan)
    wide = xp.ascontiguousarray(b, dtype=np.result_type(b.dtype, np.float64))
    with np.errstate(all="ignore"):
        if is_complex(b) and not engine.is_complex:
            x = engine.solve(xp.real(wide).copy(), trans) + 1j * engine.solve(xp.imag(wide).copy(), trans)
        else:
            x = engine.solve(wide.astype(np.complex128) if engine.is_complex else wide, trans)
    return x.astype(np.result_type(b.dtype, np.complex64) if engine.is_complex else b.dtype, copy=False)
