"""Run by test_mpi.py: what the MPI communicator does, against the ranks that are threads."""

from __future__ import annotations

import json
import sys

import numpy as np

from implicitsolve.distributed import MPI, threads


def numbers(rank, dtype, shape):
    values = np.random.default_rng([rank, 3]).normal(size=shape)
    return (1000 * (values + 1j * values[::-1] if dtype[0] == "c" else values)).astype(dtype)


def program(comm):
    """Everything that a communicator does, as arrays."""
    results = []
    for dtype in ("float32", "float64", "complex128", "int64"):
        mine = numbers(comm.rank, dtype, (5, 2))
        results.append(comm.allreduce(mine, "sum"))
        if dtype[0] != "c":
            results.append(comm.allreduce(mine, "max"))
            results.append(comm.allreduce(mine, "sum-max"))
        results += comm.allgather(mine[: comm.rank + 1])
        results += comm.allgather(mine.T, [(2, 5)] * comm.size)
        for periodic in (False, True):
            for given in ((mine[:1], mine[1:]), (None, mine), (mine[..., None], None)):
                results += [np.asarray(-1.0) if a is None else a for a in comm.exchange(*given, periodic=periodic)]
    lost = np.array([comm.rank, np.nan if comm.rank == comm.size - 1 else 1.0, -np.inf])
    results += [comm.allreduce(lost[1, ...], "max"), comm.allreduce(np.asarray(lost[0]), "max")]
    results += [comm.allreduce(lost, "max"), comm.allreduce(np.asarray(comm.rank), "sum"), mine]
    results.append(comm.allreduce(np.zeros((0, 2)), "sum-max"))
    ranks = range(comm.size)
    results += comm.allgather(np.asarray(mine[0, 0]), [()] * comm.size)
    results += comm.allgather(mine[: comm.rank, 0], [(min(rank, 5),) for rank in ranks])
    swapped = mine.astype(">i8")  # bytes in the other order: the numbers are the same
    results += [part.astype(np.int64) for part in (*comm.allgather(swapped), comm.allreduce(swapped, "sum"))]
    results += [part.astype(np.int64) for part in comm.exchange(swapped, swapped, periodic=True)]
    results += comm.exchange(np.zeros((0, 3)), np.full(300_000, 1.0 * comm.rank), periodic=True)
    return results


if __name__ == "__main__":
    with MPI() as comm:
        found = program(comm)
        expected = threads(comm.size, program)[comm.rank]
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            assert (one.shape, one.dtype) == (other.shape, other.dtype), (one, other)
            np.testing.assert_allclose(one, other, rtol=1e-5 if one.dtype == np.float32 else 1e-12)
        sums = [part for part in found if part.dtype == np.float64 and part.shape == (5, 2)]
        for part in sums[:1]:
            for same in comm.allgather(part):
                np.testing.assert_array_equal(same, part)  # the same bits
        sys.stdout.write(json.dumps({"rank": comm.rank, "compared": len(found)}) + "\n")  # at once, beside the others'
