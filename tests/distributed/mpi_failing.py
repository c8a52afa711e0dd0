"""Run by test_mpi.py: one rank fails, in the way that the first argument names, while the others wait for it."""

from __future__ import annotations

import sys

import numpy as np

import implicitsolve as ims
from implicitsolve import distributed
from implicitsolve.distributed import MPI


def residual(part, x):
    """The last rank has no residual after a while."""
    calls.append(1)
    if part.is_last and len(calls) > 3:
        raise ArithmeticError("no residual here")
    return x[part.own] ** 3 + x[part.own] - 2


def program(comm, way):
    last = comm.rank == comm.size - 1
    if way == "residual":
        problem = distributed.problem(comm, residual, length=12)
        ims.root(problem, distributed.split(comm, np.linspace(0, 5, 12)[:, None], axis=0))
    elif way == "program":
        if last:
            raise LookupError("lost its way")
        comm.allreduce(np.ones(1), "sum")
    elif way == "exit":
        if last:
            sys.exit("gave up")
        for _ in range(comm.size):  # after one, ranks that are no neighbours know nothing of it
            comm.exchange(None, np.ones(1), periodic=True)


calls: list[int] = []

if __name__ == "__main__":
    with MPI() as comm:
        program(comm, sys.argv[1])
    print("went on", flush=True)
