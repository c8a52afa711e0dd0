"""Block-banded matrices on ranks, and their solves."""

from __future__ import annotations

import numpy as np

from implicitsolve import BlockBandedMatrix
from implicitsolve.distributed import DistributedArray, PartitionedLU, threads

PLAIN = PartitionedLU(refine=0)


def piece(comm, array, axis, counts):
    """This rank's part of an array that all know."""
    ends = np.cumsum(counts)
    part = np.take(array, range(ends[comm.rank] - counts[comm.rank], ends[comm.rank]), axis=axis)
    return DistributedArray(part, axis, comm, tuple(counts))


def split_matrix(comm, A, counts):
    blocks = piece(comm, A.blocks, A.blocks.ndim - 4, counts)
    return BlockBandedMatrix(blocks, lower=A.lower, upper=A.upper, periodic=A.periodic)


def on_ranks(counts, function):
    """What ``function(comm)`` returns on all ranks."""
    return threads(len(counts), function)


def solved(A, b, counts, method=PLAIN, adjoint=False):
    """The solution of A x = b for b (*batch, T, k) on ranks, and the factorization of the first rank."""

    def program(comm):
        inverse = method.factor(split_matrix(comm, A, counts))
        right = piece(comm, b, b.ndim - 2, counts)
        x = inverse.solve_adjoint(right) if adjoint else inverse.solve(right)
        return x.gathered(), inverse

    results = on_ranks(counts, program)
    for x, inverse in results[1:]:
        np.testing.assert_array_equal(x, results[0][0])
        for name in ("status", "growth", "singular_block"):
            np.testing.assert_array_equal(getattr(inverse, name), getattr(results[0][1], name))
    return results[0]


def matrix(rng, *shape, lower=1, dominance=0.0, dtype=np.float64, periodic=False):
    """A random matrix of blocks of shape (*batch, T, width, k, k)."""
    blocks = rng.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        blocks = blocks + 1j * rng.normal(size=shape)
    blocks = blocks.astype(dtype)
    blocks[..., lower, :, :] += (dominance * shape[-1] ** 0.5 * np.eye(shape[-1])).astype(dtype)
    return BlockBandedMatrix(blocks, lower=lower, upper=shape[-3] - 1 - lower, periodic=periodic)
