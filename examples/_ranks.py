"""The ranks that an example runs on."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from implicitsolve import distributed
from implicitsolve.distributed import Communicator

__all__ = ["communicator"]


def communicator() -> AbstractContextManager[Communicator]:
    """The processes that mpiexec has started; this one alone where mpi4py is not installed."""
    try:
        return distributed.MPI()
    except ImportError:
        return nullcontext(distributed.Serial())
