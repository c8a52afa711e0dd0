"""One long sequence on many processes: training an implicit GRU whose positions are partitioned across ranks.

    mpiexec -n 4 python examples/distributed_gru.py --length 20000 --hidden 64
    python examples/distributed_gru.py                                  # one process, without MPI

In an implicit GRU every hidden state depends on both of its neighbours, so that a sequence is solved as a whole, and
can be too long for one machine. A rank builds the layer of its own positions and of the ones before and after them, and
keeps its own rows. All ranks hold the same weights; each step of the training is one forward solve, one adjoint solve,
and one sum of the gradients over the ranks.

The task: predict at every position the sum of the inputs a few positions before and a few positions later.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import implicitsolve as ims
from _ranks import communicator
from implicitsolve import distributed
from implicitsolve.distributed import Communicator, DistributedArray, Part

Array = NDArray[Any]
Weights = dict[str, Array]
SHIFT = 2  # positions between an input and its target
LINEAR = ims.LinearStop(rtol=1e-6)


# ----------------------------------------------------------------------------------------------------------- the layer


def implicit_gru(comm: Communicator, weights: Weights, inputs: Array) -> ims.Problem:
    """The implicit GRU of `ims.adapters` on a sequence of inputs (T, d), as a problem that the ranks share."""

    @functools.cache
    def layer(part: Part) -> Any:
        """The layer on a rank's part. Beyond it the states are zero, which affects only the dropped rows."""
        return ims.adapters.implicit_gru(weights, inputs[part.first - part.before : part.stop + part.after])

    def residual(part: Part, H: Array) -> Array:
        return layer(part).residual(H)[part.own]

    def linearize(part: Part, H: Array) -> tuple[Array, ims.LinearOperator]:
        F, J = layer(part).linearize(H)
        return F[part.own], own_rows(J, part)

    def parameter_vjp(part: Part, H: Array, w: Array) -> Mapping[str, Array]:
        gradients = layer(part).parameter_vjp(H, among_seen(w, part))
        return {name: gradients[name] for name in weights}

    return distributed.problem(
        comm,
        residual,
        linearize=linearize,
        length=inputs.shape[0],
        block_size=weights["b"].size,
        parameters=weights,
        parameter_vjp=parameter_vjp,
        name="implicit GRU",
    )


def own_rows(J: ims.LinearOperator, part: Part) -> ims.LinearOperator:
    """The rows of J of a rank's own positions."""
    k = J.in_shape[-1]
    return ims.LinearOperator(
        lambda v: J.matvec(v)[part.own],
        lambda w: J.rmatvec(among_seen(w, part)),
        in_shape=(part.seen, k),
        out_shape=(part.count, k),
        dtype=J.dtype,
    )


def among_seen(w: Array, part: Part) -> Array:
    """Vectors of the own positions with zeros for the neighbours'."""
    return np.pad(w, ((part.before, part.after), (0, 0)))


# -------------------------------------------------------------------------------------------------------- the training


def sequence(length: int, d: int) -> tuple[Array, Array]:
    """Inputs (T, d), the same on all ranks, and targets."""
    inputs = np.random.default_rng(0).uniform(-1, 1, (length, d))
    padded = np.pad(inputs, ((SHIFT, SHIFT), (0, 0)))
    return inputs, 0.5 * (padded[: -2 * SHIFT] + padded[2 * SHIFT :])


def loss_of(H: DistributedArray, targets: DistributedArray, readout: Array) -> tuple[float, DistributedArray, Array]:
    """Mean squared error of H C, and its gradients with respect to H and C."""
    xp, C = H.__array_namespace__(), distributed.replicated(readout)
    wrong = xp.matmul(H, C) - targets
    scale = 2 / wrong.size
    loss = float(xp.sum(wrong**2)) / wrong.size
    by_readout = scale * xp.matmul(xp.matrix_transpose(H), wrong)  # sums over positions: one allreduce
    return loss, scale * xp.matmul(wrong, xp.matrix_transpose(C)), by_readout.gathered()


def train(comm: Communicator, length: int, hidden: int, d: int, steps: int, rate: float) -> list[float]:
    """Losses of a few steps of Adam, the same on every rank."""
    inputs, whole_targets = sequence(length, d)
    rng = np.random.default_rng(1)
    weights: Weights = ims.adapters.gru_parameters(d, hidden, rng=rng)
    weights["readout"] = rng.uniform(-0.1, 0.1, (hidden, d))
    adam = Adam(rate)
    targets = distributed.split(comm, whole_targets, axis=0)
    H = distributed.split(comm, np.zeros((length, hidden)), axis=0)
    losses: list[float] = []
    for step in range(steps):
        began = time.perf_counter()
        layer_weights = {name: value for name, value in weights.items() if name != "readout"}
        problem = implicit_gru(comm, layer_weights, inputs)
        result = ims.root(problem, H, method="newton-krylov").raise_for_status()
        H = result.x  # warm start of the next step
        loss, cotangent, by_readout = loss_of(H, targets, weights["readout"])
        adjoint = ims.pull_back(problem, result, cotangent, stop=LINEAR).raise_for_status()
        weights = adam.moved(weights, adjoint.gradients | {"readout": by_readout})
        losses.append(loss)
        if comm.rank == 0:
            products = result.counts.jvps + adjoint.counts.vjps
            print(
                f"step {step + 1:3d}: loss {loss:.6f}, {result.status.name}, {products} products, "
                f"{time.perf_counter() - began:.2f} s",
                flush=True,
            )
    return losses


class Adam:
    """Adam's method with its usual constants."""

    def __init__(self, rate: float) -> None:
        self.rate, self.count = rate, 0
        self.mean: Weights = {}
        self.square: Weights = {}

    def moved(self, weights: Weights, gradients: Mapping[str, Array]) -> Weights:
        """The weights after a step."""
        self.count += 1
        moved: Weights = {}
        for name, value in weights.items():
            g = gradients[name]
            self.mean[name] = 0.9 * self.mean.get(name, 0.0) + 0.1 * g
            self.square[name] = 0.999 * self.square.get(name, 0.0) + 0.001 * g**2
            mean, square = self.mean[name] / (1 - 0.9**self.count), self.square[name] / (1 - 0.999**self.count)
            moved[name] = value - self.rate * mean / (np.sqrt(square) + 1e-8)
        return moved


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and print the communication volume."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=2000, help="positions of the sequence (default: 2000)")
    parser.add_argument("--hidden", type=int, default=16, help="states of a position (default: 16)")
    parser.add_argument("--inputs", type=int, default=3, help="inputs of a position (default: 3)")
    parser.add_argument("--steps", type=int, default=10, help="steps of the training (default: 10)")
    parser.add_argument("--rate", type=float, default=0.02, help="Adam's rate (default: 0.02)")
    options = parser.parse_args(arguments)
    with communicator() as ranks:
        comm = distributed.Counted(ranks)
        losses = train(comm, options.length, options.hidden, options.inputs, options.steps, options.rate)
        if comm.rank == 0:
            calls = ", ".join(f"{count} {kind}" for kind, count in sorted(comm.calls.items()))
            print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} on {comm.size} ranks; communication: {calls}")


if __name__ == "__main__":
    main(sys.argv[1:])
