"""Solves on many processes: arrays of which one axis is partitioned across the ranks of a communicator.

Every rank runs the same program. `root`, `linear_solve`, `pull_back` and `push_forward` work on distributed arrays as
on others: elementwise work is local, and sums over the split axis are the same numbers on every rank, so that all ranks
take the same decisions.
"""

from __future__ import annotations

from implicitsolve._arrays.traits import ArrayTraits, declare_arrays
from implicitsolve.distributed import _functions as _functions  # the namespace of DistributedArray
from implicitsolve.distributed._array import DistributedArray
from implicitsolve.distributed._communicator import Communicator, Counted, Serial, threads
from implicitsolve.distributed._kernels import BandProducts, empty_vectors, transposed
from implicitsolve.distributed._layout import Part, layout
from implicitsolve.distributed._make import from_local, problem, replicated, split
from implicitsolve.distributed._mpi import MPI
from implicitsolve.distributed._partitioned_lu import PartitionedLU

__all__ = [
    "MPI",
    "Communicator",
    "Counted",
    "DistributedArray",
    "Part",
    "PartitionedLU",
    "Serial",
    "from_local",
    "layout",
    "problem",
    "replicated",
    "split",
    "threads",
]

declare_arrays(
    DistributedArray,
    ArrayTraits(
        kernels=("distributed",),
        is_partitioned=True,
        empty_vectors=empty_vectors,
        band_products=BandProducts,
        band_transposed=transposed,
        block_lu=PartitionedLU.of,
    ),
)
