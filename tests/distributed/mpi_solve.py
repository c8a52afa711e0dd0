"""Run by test_mpi.py: solves the same system with MPI and without, by every way, and says how far they are apart."""

from __future__ import annotations

import json
import sys

import numpy as np

import implicitsolve as ims
from implicitsolve.distributed import MPI, PartitionedLU
from tests.distributed.systems import Chain

TIGHT = ims.NonlinearStop(rtol=1e-13, max_iterations=300)
METHODS = {
    "newton-krylov": ims.NewtonKrylov(),
    "bicgstab": ims.NewtonKrylov(krylov=ims.BiCGSTAB()),
    "block-newton": ims.BlockNewton(),
    "preconditioned": ims.NewtonKrylov(preconditioner=PartitionedLU()),
    "anderson": ims.Anderson(),
}
CHAINS = {
    "one system": {},
    "batch": {"batch": (3,)},
    "wide circle": {"periodic": True, "lower": 2, "T": 13},
    "complex": {"dtype": "complex128"},
}


def compared(comm):
    """By chain and method: relative distance to the serial solution, and both statuses."""
    report = {}
    for name, options in CHAINS.items():
        chain = Chain(np.random.default_rng(7), **options)
        chain.W *= 0.25
        chain.b *= 0.3
        alone = ims.root(chain.whole(), chain.x0, method="newton-krylov", stop=TIGHT)
        for key, method in METHODS.items():
            result = ims.root(chain.problem(comm, "jvp", "vjp"), chain.split(comm), method=method, stop=TIGHT)
            distance = np.abs(result.x.gathered() - alone.x).max() / np.abs(alone.x).max()
            statuses = np.unique(result.status).tolist(), np.unique(alone.status).tolist()
            report[f"{name}, {key}"] = [float(distance), *statuses]
        cotangent = chain._numbers(np.random.default_rng(8), chain.x0.shape)
        expected = ims.pull_back(chain.whole(), alone.x, cotangent, stop=ims.LinearStop(rtol=1e-13))
        adjoint = ims.pull_back(
            chain.problem(comm, "jvp", "vjp"),
            chain.split(comm, alone.x),
            chain.split(comm, cotangent),
            method=PartitionedLU(),
            stop=ims.LinearStop(rtol=1e-13),
        )
        apart = [np.abs(adjoint.gradients["W"] - expected.gradients["W"]).max()]
        apart.append(np.abs(adjoint.gradients["b"].gathered() - expected.gradients["b"]).max())
        report[f"{name}, gradients"] = [float(max(apart)), [int(adjoint.status)] if not chain.batch else [1], [1]]
    return report


if __name__ == "__main__":
    with MPI() as comm:
        report = compared(comm)
        line = json.dumps({"rank": comm.rank, "size": comm.size, "report": report}) + "\n"
        sys.stdout.write(line)  # at once, beside the others'
