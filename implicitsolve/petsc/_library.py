"""PETSc as a library: its import, options that are all used, and its matrices from assembled ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import scipy.sparse

from implicitsolve._typing import DType, HostArray
from implicitsolve.errors import required
from implicitsolve.operators import BlockBandedMatrix
from implicitsolve.operators._sparse import SparseMatrix

numbers = itertools.count()


def petsc() -> Any:
    """The module `petsc4py.PETSc`."""
    need = "pip install petsc petsc4py, or 'implicitsolve[petsc]' beside an installed PETSc"
    return required("petsc4py.PETSc", f"implicitsolve.petsc needs petsc4py, which cannot be imported: {need}")


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
    """Give a solver options, and solve: then one that PETSc has not looked at is an error, unless nothing iterated."""
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
    """One system's matrix as SciPy's CSR; with `zeros` all places of a band, to be filled again."""
    return band_rows(A, system, zeros=zeros) if isinstance(A, BlockBandedMatrix) else sparse_rows(A, system)


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


def sparse_rows(A: SparseMatrix, system: int = 0) -> Any:
    """One system's matrix as SciPy's CSR, with the whole diagonal, which factorizations need."""
    pattern, places, _ = A.structure.with_diagonal
    data = np.zeros(pattern.nnz, dtype=A.dtype)
    data[places] = A.flat_data[system]
    return pattern.with_entries(data).tocsr()


def band_rows(A: BlockBandedMatrix, system: int = 0, *, zeros: bool = False) -> Any:
    """One system's block-banded matrix as SciPy's CSR; zeros off the diagonal only on request."""
    blocks = A.blocks.reshape(-1, *A.blocks.shape[-4:])[system]
    count, width, k = blocks.shape[:3]
    t = np.arange(count)[:, None] + np.arange(width) - A.lower
    exists = np.ones(t.shape, dtype=bool) if A.periodic else (t >= 0) & (t < count)
    rows = np.arange(count)[:, None, None, None] * k + np.arange(k)[:, None]
    columns = (t % count)[:, :, None, None] * k + np.arange(k)
    kept = exists[:, :, None, None] & (zeros | (blocks != 0) | (columns == rows))
    rows, columns = (np.broadcast_to(part, blocks.shape)[kept] for part in (rows, columns))
    return scipy.sparse.csr_array((blocks[kept], (rows, columns)), shape=(count * k, count * k))
