"""PETSc as a library: its import, communicators, vectors of our arrays, and options that are all used."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from implicitsolve._typing import Array, HostArray
from implicitsolve.distributed import MPI, Counted, DistributedArray, Serial
from implicitsolve.errors import BackendUnavailable

numbers = itertools.count()


def petsc() -> Any:
    """The module `petsc4py.PETSc`."""
    try:
        return importlib.import_module("petsc4py.PETSc")
    except ImportError as error:
        need = "pip install petsc petsc4py, or 'implicitsolve[petsc]' beside an installed PETSc"
        message = f"implicitsolve.petsc needs petsc4py, which cannot be imported ({error}): {need}"
        raise BackendUnavailable(message) from error


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
    """Call ``configure(prefix)`` while PETSc's database has the options under that prefix.

    Raises
    ------
    ValueError
        If PETSc has not looked at one of them.
    """
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
