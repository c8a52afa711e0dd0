"""PETSc as a library: its import, communicators, vectors and matrices of our arrays, and options that are all used."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse

from implicitsolve._typing import Array, HostArray
from implicitsolve.distributed import MPI, Counted, DistributedArray, Serial
from implicitsolve.errors import required
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.precondition._parts import build_inverse

numbers = itertools.count()


def petsc() -> Any:
    """The module `petsc4py.PETSc`."""
    need = "pip install petsc petsc4py, or 'implicitsolve[petsc]' beside an installed PETSc"
    return required("petsc4py.PETSc", f"implicitsolve.petsc needs petsc4py, which cannot be imported: {need}")


def petsc_communicator(comm: Any) -> Any:
    """PETSc's communicator of the same ranks; None and `Serial` are a single one."""
    while isinstance(comm, Counted):
        comm = comm.comm
    if comm is None or isinstance(comm, Serial):
        return petsc().COMM_SELF
    if isinstance(comm, MPI):
        return petsc().Comm(comm.mpi4py)
    got = type(comm).__name__
    raise TypeError(f"implicitsolve.petsc: the communicator must be distributed.MPI or Serial, got {got}")


def communicator_of(x: Array) -> Any:
    """PETSc's communicator of the ranks that an array is partitioned across."""
    return petsc_communicator(x.comm if isinstance(x, DistributedArray) and x.axis is not None else None)


def local_rows(x: Array, systems: int) -> HostArray:
    """Numbers of an array on this rank, a row for each system."""
    local = x.local if isinstance(x, DistributedArray) else np.asarray(x)
    return local.reshape(systems, -1)


def array_like(x: Array, rows: HostArray) -> Array:
    """An array with the shape, partition and dtype of x from `local_rows`."""
    if isinstance(x, DistributedArray):
        return x.like(rows.reshape(x.local.shape).astype(x.dtype, copy=False))
    return rows.reshape(x.shape).astype(x.dtype, copy=False)


def check_scalar(owner: str, dtype: Any) -> None:
    """Raise unless this build of PETSc has numbers of that kind."""
    scalar = np.dtype(petsc().ScalarType)
    if np.dtype(dtype).kind == "c" and scalar.kind != "c":
        raise TypeError(f"{owner}: this PETSc was built with real numbers ({scalar}), got {np.dtype(dtype)}")


def with_options(owner: str, options: Mapping[str, Any], configure: Callable[[str], None]) -> None:
    """Call ``configure(prefix)`` while PETSc's database has the options there; raise if it has not looked at one."""
    prefix = f"implicitsolve_{next(numbers)}_"
    database = petsc().Options()
    names = {name: f"{prefix}{name.lstrip('-')}" for name in options}
    for name, value in options.items():
        database[names[name]] = str(value).lower() if isinstance(value, bool) else "" if value is None else value
    try:
        configure(prefix)
        unknown = sorted(name for name, full in names.items() if not database.used(full))
    finally:
        for full in names.values():
            database.delValue(full)
    if unknown:
        raise ValueError(f"{owner}: `options` has names that PETSc does not use here: {', '.join(unknown)}")


@contextmanager
def callers_errors() -> Generator[None]:
    """Raise what a function that PETSc has called has raised, and not the error that PETSc makes of it."""
    try:
        yield
    except petsc().Error as error:
        cause: Any = error
        while isinstance(cause, petsc().Error):
            cause = cause.__cause__
        if cause is None:
            raise
        raise cause from None


def checked_options(owner: str, options: Any) -> dict[str, Any]:
    """A copy of the caller's options; raise unless they are a mapping of names."""
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise TypeError(f"{owner}: `options` must be a mapping from PETSc's names to values, got {options!r}")
    return dict(options)


def product(
    apply: Callable[[Any, Any], Any], vectors: tuple[Any, Any], v: HostArray, *, adjoint: bool = False
) -> HostArray:
    """``apply(x, y)`` on this rank's numbers, complex ones by two products where PETSc is real.

    With `adjoint` it multiplies by a transpose, and its conjugate is returned. The two vectors are reused: those that
    ranks drop live until all have dropped them.
    """
    if v.dtype.kind == "c" and np.dtype(petsc().ScalarType).kind != "c":
        real, imaginary = (product(apply, vectors, part, adjoint=adjoint) for part in (np.real(v), np.imag(v)))
        return real + 1j * imaginary
    x, y = vectors
    x.setArray(np.conj(v) if adjoint else v)
    apply(x, y)
    values = y.getArray().copy()
    return np.conj(values) if adjoint else values


class PETScMatrix(LinearOperator):
    """A PETSc matrix as an operator on arrays whose one axis is partitioned as its rows are.

    Parameters
    ----------
    mat : petsc4py.PETSc.Mat
        Square, of any type that multiplies.
    like : ndarray or DistributedArray of shape (N,)
        A vector: every rank's run of it is as long as the rank's rows.
    inverse : PETScLU or PETScPreconditioner, optional
        What `approximate_inverse` builds, which Krylov methods use where no other preconditioner is given.

    Attributes
    ----------
    mat : petsc4py.PETSc.Mat
        As given.

    Examples
    --------
    >>> import numpy as np, scipy.sparse
    >>> from petsc4py import PETSc
    >>> from implicitsolve.petsc import PETScMatrix
    >>> csr = scipy.sparse.csr_array([[2.0, 1.0], [0.0, 3.0]])
    >>> mat = PETSc.Mat().createAIJ((2, 2), csr=(csr.indptr, csr.indices, csr.data), comm=PETSc.COMM_SELF)
    >>> PETScMatrix(mat, np.zeros(2)) @ np.ones(2)
    array([3., 3.])
    """

    def __init__(self, mat: Any, like: Array, *, inverse: Any = None) -> None:
        rows = like.local.size if isinstance(like, DistributedArray) else like.size
        if mat.getLocalSize() != (rows, rows) or len(like.shape) != 1:
            raise ValueError(
                f"PETScMatrix: `like` must have shape (N,) and the matrix's {mat.getLocalSize()} rows and columns on "
                f"this rank, got {rows} of shape {tuple(like.shape)}"
            )
        self.mat: Any = mat
        self.like: Array = like
        vectors = mat.createVecs()
        super().__init__(
            lambda v: array_like(v, product(mat.mult, vectors, local_rows(v, 1)[0])[None]),
            lambda w: array_like(w, product(mat.multTranspose, vectors, local_rows(w, 1)[0], adjoint=True)[None]),
            in_shape=like.shape[0],
            dtype=like.dtype,
            inverse=None if inverse is None else lambda: build_inverse(inverse, self),
        )


def matrices(owner: str, A: Any, fields: int = 1) -> list[Any]:
    """PETSc's matrix of each system of an assembled matrix; `fields` unknowns, interleaved, are one point."""
    if scipy.sparse.issparse(A):
        A = SparseMatrix.from_scipy(A)
    if isinstance(A, PETScMatrix):
        return [A.mat]
    if not isinstance(A, BlockBandedMatrix | SparseMatrix):
        expected = "a BlockBandedMatrix, a sparse matrix or a PETScMatrix"
        raise TypeError(f"{owner}: `A` must be {expected}, got {type(A).__name__}")
    check_scalar(owner, A.dtype)
    systems = range(int(np.prod(A.batch_shape)))
    if isinstance(A, BlockBandedMatrix):
        comm, size = communicator_of(A.blocks), A.block_size
        return [from_rows(band_rows(A, system), comm, size) for system in systems]
    return [from_rows(sparse_rows(A, system), communicator_of(None), fields) for system in systems]


def from_rows(rows: Any, comm: Any, block_size: int = 1) -> Any:
    """The PETSc matrix of which every rank has these rows, SciPy's CSR with the columns of the whole."""
    library = petsc()
    count, size = rows.shape
    whole = library.Mat().create(comm=comm)
    whole.setSizes(((count, size), (count, size)))
    if block_size > 1 and count % block_size == 0:
        whole.setBlockSize(block_size)
    whole.setType("aij")
    whole.setPreallocationCSR(entries(rows))
    whole.assemble()
    return whole


def entries(rows: Any) -> tuple[HostArray, HostArray, HostArray]:
    """Row pointers, columns and values in PETSc's types."""
    integer, scalar = petsc().IntType, petsc().ScalarType
    return rows.indptr.astype(integer), rows.indices.astype(integer), rows.data.astype(scalar)


def sparse_rows(A: SparseMatrix, system: int = 0) -> Any:
    """One system's matrix as SciPy's CSR, with the whole diagonal, which factorizations need."""
    pattern, places, _ = A.structure.with_diagonal
    data = np.zeros(pattern.nnz, dtype=A.dtype)
    data[places] = A.flat_data[system]
    return pattern.with_entries(data).tocsr()


def band_rows(A: BlockBandedMatrix, system: int = 0, *, zeros: bool = False) -> Any:
    """Rows of a block-banded matrix on this rank as SciPy's CSR; zeros off the diagonal only on request."""
    blocks = A.blocks
    local = blocks.local if isinstance(blocks, DistributedArray) else blocks
    first = blocks.start if isinstance(blocks, DistributedArray) else 0
    local = local.reshape(-1, *local.shape[-4:])[system]
    count, width, k = local.shape[:3]
    t = first + np.arange(count)[:, None] + np.arange(width) - A.lower
    exists = np.ones(t.shape, dtype=bool) if A.periodic else (t >= 0) & (t < A.length)
    rows = np.arange(count)[:, None, None, None] * k + np.arange(k)[:, None]
    columns = (t % A.length)[:, :, None, None] * k + np.arange(k)
    kept = exists[:, :, None, None] & (zeros | (local != 0) | (columns == rows + first * k))
    rows, columns = (np.broadcast_to(part, local.shape)[kept] for part in (rows, columns))
    return scipy.sparse.csr_array((local[kept], (rows, columns)), shape=(count * k, A.length * k))
