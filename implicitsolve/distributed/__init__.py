"""Solves on many processes: arrays whose one axis is split over the ranks of a communicator.

Every rank runs the same program. `root`, `linear_solve`, `pull_back` and `push_forward` work on distributed arrays as
on others: elementwise work is local, and what is summed over the split axis is the same number on every rank, so that
all ranks take the same decisions.
"""

from __future__ import annotations

from implicitsolve.distributed import _vectors as _vectors  # registers a kernel
from implicitsolve.distributed._array import DistributedArray, replicated
from implicitsolve.distributed._communicator import Communicator, Counted, Serial
from implicitsolve.distributed._layout import layout
from implicitsolve.distributed._make import from_local, split
from implicitsolve.distributed._mpi import MPI
from implicitsolve.distributed._part import Part
from implicitsolve.distributed._partitioned_lu import PartitionedLU
from implicitsolve.distributed._problem import problem
from implicitsolve.distributed._threads import threads

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
