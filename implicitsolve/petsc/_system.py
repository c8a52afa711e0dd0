"""PETSc as a library: its import, options, which must all be used, its matrices, and F and J of a problem for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import scipy.sparse

from implicitsolve._arrays.namespace import as_inexact
from implicitsolve._typing import Array, DType, HostArray
from implicitsolve.errors import require
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._sparse_assemble import SparseAssembler
from implicitsolve.nonlinear._offered_jacobians import OfferedJacobians
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.problem import Problem

numbers = itertools.count()


def petsc() -> Any:
    need = "pip install petsc petsc4py, or 'implicitsolve[petsc]' beside an installed PETSc"
    return require("petsc4py.PETSc", f"implicitsolve.petsc needs petsc4py, which cannot be imported: {need}")


def check_scalar(owner: str, dtype: DType) -> None:
    """Raise unless this build of PETSc has numbers of that kind."""
    scalar = np.dtype(petsc().ScalarType)
    if np.dtype(dtype).kind == "c" and scalar.kind != "c":
        raise TypeError(f"{owner}: this PETSc was built with real numbers ({scalar}), got {np.dtype(dtype)}")


class Configurable(Protocol):
    """A solver of PETSc's with options."""

    def setOptionsPrefix(self, prefix: str, /) -> None: ...  # noqa: N802
    def setFromOptions(self) -> None: ...  # noqa: N802


def solve_with_options(
    owner: str,
    options: Mapping[str, Any],
    solver: Configurable,
    solve: Callable[[], object],
    iterations: Callable[[], int],
) -> None:
    """Set a solver's options, and solve; any option that PETSc did not read is an error, unless nothing iterated."""
    prefix = f"implicitsolve_{next(numbers)}_"
    database = petsc().Options()
    names = {name: f"{prefix}{name.lstrip('-')}" for name in options}
    for name, value in options.items():
        database[names[name]] = str(value).lower() if isinstance(value, bool) else "" if value is None else value
    try:
        solver.setOptionsPrefix(prefix)
        solver.setFromOptions()
        solve()
        unknown = sorted(name for name, full in names.items() if iterations() and not database.used(full))
    except petsc().Error as error:  # raise what a function that PETSc has called has raised, not what it made of that
        cause: Any = error
        while isinstance(cause, petsc().Error):
            cause = cause.__cause__
        if cause is None:
            raise
        raise cause from None
    finally:
        for full in names.values():
            database.delValue(full)
    if unknown:
        raise ValueError(f"{owner}: `options` has names that PETSc does not use here: {', '.join(unknown)}")


def checked_options(owner: str, options: Any) -> dict[str, Any]:
    """A copy of the caller's options; raise unless they are a mapping of names."""
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise TypeError(f"{owner}: `options` must be a mapping from PETSc's names to values, got {options!r}")
    return dict(options)


def product(
    apply: Callable[[Any, Any], Any], vectors: tuple[Any, Any], v: HostArray, *, adjoint: bool = False
) -> HostArray:
    """``apply(x, y)`` on this rank's numbers, complex ones by two products where PETSc is real.

    With `adjoint` it multiplies by a transpose, and its conjugate is returned. The two vectors are reused.
    """
    if v.dtype.kind == "c" and np.dtype(petsc().ScalarType).kind != "c":
        real, imaginary = (product(apply, vectors, part, adjoint=adjoint) for part in (np.real(v), np.imag(v)))
        return real + 1j * imaginary
    x, y = vectors
    x.setArray(np.conj(v) if adjoint else v)
    apply(x, y)
    values = y.getArray().copy()
    return np.conj(values) if adjoint else values


def matrices(owner: str, A: Any, fields: int = 1) -> list[Any]:
    """PETSc's matrix of each system of an assembled matrix; `fields` unknowns, interleaved, are one point."""
    if scipy.sparse.issparse(A):
        A = SparseMatrix.from_scipy(A)
    if not isinstance(A, BlockBandedMatrix | SparseMatrix):
        raise TypeError(f"{owner}: `A` must be a BlockBandedMatrix or a sparse matrix, got {type(A).__name__}")
    check_scalar(owner, A.dtype)
    size = A.block_size if isinstance(A, BlockBandedMatrix) else fields
    return [from_rows(rows_of(A, system), petsc().COMM_SELF, size) for system in range(int(np.prod(A.batch_shape)))]


def rows_of(A: BlockBandedMatrix | SparseMatrix, system: int = 0, *, zeros: bool = False) -> Any:
    """One system's matrix as SciPy's CSR, with its diagonal, which factors need; with `zeros` all places of a band."""
    if isinstance(A, SparseMatrix):
        pattern, places, _ = A.structure.with_diagonal
        data = np.zeros(pattern.nnz, dtype=A.dtype)
        data[places] = A.flat_data[system]
        return pattern.with_entries(data).tocsr()
    whole = (A.take(np.asarray([system])) if A.batch_shape else A).to_sparse("csr")
    rows = np.repeat(np.arange(whole.shape[0]), np.diff(whole.indptr))
    kept = zeros | (whole.data != 0) | (whole.indices == rows)
    return scipy.sparse.csr_array((whole.data[kept], (rows[kept], whole.indices[kept])), shape=whole.shape)


def from_rows(rows: Any, comm: Any, block_size: int = 1) -> Any:
    """The PETSc matrix of which every rank has these rows, SciPy's CSR with the columns of the whole."""
    mat = empty_matrix(rows.shape, comm, block_size)
    fill(mat, rows)
    return mat


def empty_matrix(shape: tuple[int, int], comm: Any, block_size: int = 1) -> Any:
    """A PETSc matrix without entries, of which every rank has so many rows, and the columns of the whole."""
    count, size = shape
    mat = petsc().Mat().create(comm=comm)
    mat.setSizes(((count, size), (count, size)))
    if block_size > 1 and count % block_size == 0:
        mat.setBlockSize(block_size)
    mat.setType("aij")
    return mat


def fill(mat: Any, rows: Any) -> None:
    """Put this rank's rows, SciPy's CSR, into a PETSc matrix; the first ones are its pattern."""
    if not mat.isAssembled():
        mat.setPreallocationCSR(entries(rows))
    else:
        mat.setOption(petsc().Mat.Option.NEW_NONZERO_ALLOCATION_ERR, False)
        mat.zeroEntries()
        mat.setValuesCSR(*entries(rows))
    mat.assemble()


def entries(rows: Any) -> tuple[HostArray, HostArray, HostArray]:
    """Row pointers, columns and values in PETSc's types."""
    integer, scalar = petsc().IntType, petsc().ScalarType
    return rows.indptr.astype(integer), rows.indices.astype(integer), rows.data.astype(scalar)


KEEP_F = ("newtonls", "newtontr")  # types of SNES whose function vector is F(x) where J(x) is requested


def to_petsc(problem: Problem, x0: Any, *, assemble: bool = True) -> PETScSystem:
    """Give a PETSc program the F and J of a problem.

    Parameters
    ----------
    problem : Problem or callable
        One system; a callable is taken as its residual. Its bounds and scales are not passed on.
    x0 : array_like
        Start, of the problem's shape.
    assemble : bool, optional
        Whether J is an assembled matrix where the problem declares its structure, or offers matrices; with False it is
        a shell matrix with the problem's products, and its adjoint products where it has some. Default True.

    Returns
    -------
    PETScSystem
        Vectors x and F, the matrix J, and the two functions of `SNES`.

    Raises
    ------
    TypeError
        If x0 is complex and PETSc is real.
    ValueError
        If the problem is a batch of several systems.

    Examples
    --------
    >>> from petsc4py import PETSc
    >>> from implicitsolve.petsc import to_petsc
    >>> problem = ims.Problem(lambda x: x**3 - 8, structure=ims.BlockBanded(0, 0))
    >>> system = to_petsc(problem, np.ones(5))
    >>> snes = PETSc.SNES().create(comm=system.comm)
    >>> system.attach(snes)
    >>> snes.solve(None, system.x)
    >>> system.state(system.x).round(6)
    array([2., 2., 2., 2., 2.])
    """
    problem = problem if isinstance(problem, Problem) else Problem(problem)
    x0 = as_inexact(x0, "x0")
    evaluator = Evaluator(problem, x0)
    if evaluator.rows.size != 1:
        raise ValueError(f"to_petsc: `problem` must be one system, got a batch of {evaluator.rows.size}")
    return PETScSystem(evaluator, evaluator.flatten(x0), assemble=assemble)


class PETScSystem:
    """F and J of one system for PETSc; `to_petsc` makes one.

    Attributes
    ----------
    comm : petsc4py.PETSc.Comm
        This process alone. For several ranks there is `Mesh`.
    x, F : petsc4py.PETSc.Vec
        The start, and a vector for F.
    J : petsc4py.PETSc.Mat
        The Jacobian: assembled, or a shell with products.
    is_assembled : bool
        Whether J is assembled.
    """

    def __init__(self, evaluator: Evaluator, x: Array, *, assemble: bool = True) -> None:
        check_scalar("implicitsolve.petsc", x.dtype)
        self.evaluator: Evaluator = evaluator
        self.dtype: DType = x.dtype
        self.comm: Any = petsc().COMM_SELF
        self.x: Any = petsc().Vec().createSeq(x.shape[1], comm=self.comm)
        self.x.setArray(x[0])
        self.F: Any = self.x.duplicate()
        self._assembled = assembler_of(evaluator, x) if assemble else None
        self.is_assembled: bool = self._assembled is not None
        self._shell = Shell(x.dtype)
        self._start: Any = self.x.copy()
        self._known: dict[str, Any] = {}  # F and J at x0, which gave the matrix its pattern, for the first request
        if self._assembled is not None:
            F = None if evaluator.has_exact_products else evaluator.residual(x)
            self._known = {"F": F, "J": self._assembled(evaluator, x, F)}
            self.J: Any = from_rows(rows_of(self._known["J"], zeros=True), self.comm)
        else:
            self.J = petsc().Mat().createPython((x.shape[1], x.shape[1]), context=self._shell, comm=self.comm)
            self.J.setUp()

    def attach(self, snes: Any) -> None:
        snes.setFunction(self.function, self.F)
        snes.setJacobian(self.jacobian, self.J)

    def array(self, vec: Any) -> Array:
        """A vector as an array (1, N)."""
        return vec.getArray(readonly=True)[None].astype(self.dtype)

    def state(self, vec: Any) -> Array:
        """A vector as an array of the problem's shape."""
        return self.evaluator.unflatten(self.array(vec))

    def function(self, snes: Any, x: Any, F: Any) -> None:
        """Compute F(x); the function of `SNESSetFunction`."""
        known = self._known_at(x, "F")
        F.setArray((self.evaluator.residual(self.array(x)) if known is None else known)[0])

    def jacobian(self, snes: Any, x: Any, J: Any, P: Any) -> None:
        """Compute J(x); the function of `SNESSetJacobian`."""
        evaluator, point = self.evaluator, self.array(x)
        known = self._known_at(x, "J")
        if known is None:
            F = None
            if not evaluator.has_exact_products:
                is_known = snes.getType() in KEEP_F
                F = self.array(snes.getFunction()[0]) if is_known else evaluator.residual(point)
            if self._assembled is not None:
                fill(P, rows_of(self._assembled(evaluator, point, F), zeros=True))
            else:
                evaluator.length.follow(evaluator.rows, norm2(point))
                self._shell.operator = evaluator.jacobian(point, F)
        J.assemble()
        P.assemble()

    def _known_at(self, x: Any, name: str) -> Any:
        known = self._known.pop(name, None)
        return known if known is not None and x.equal(self._start) else None


class Shell:
    """The context of a matrix that has products alone."""

    operator: LinearOperator  # J on arrays (1, N), which `jacobian` sets

    def __init__(self, dtype: DType) -> None:
        self.dtype: DType = dtype

    def mult(self, mat: Any, v: Any, w: Any) -> None:
        w.setArray(self._product(self.operator.matvec, v.getArray(readonly=True)))

    def multTranspose(self, mat: Any, v: Any, w: Any) -> None:  # noqa: N802 (PETSc's name)
        w.setArray(np.conj(self._product(self.operator.rmatvec, np.conj(v.getArray(readonly=True)))))

    def _product(self, product: Any, v: Any) -> Any:
        return product(v[None].astype(self.dtype))[0]


def assembler_of(evaluator: Evaluator, x: Array) -> Callable[..., Any] | None:
    """J(x) as a matrix, from what the problem offers or declares; None if it has products alone."""
    problem = evaluator.problem
    if problem.block_structure is not None:
        return Assembler(evaluator).assemble
    offered = OfferedJacobians.of(evaluator, x)
    if offered is None and problem.sparse_structure is not None:
        return SparseAssembler(problem.sparse_structure.sparse).assemble
    return None if offered is None else offered.assemble
