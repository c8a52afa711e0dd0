"""One long sequence on many processes: training an implicit GRU whose positions are partitioned across ranks.

    mpiexec -n 4 python examples/distributed_gru.py --length 20000 --hidden 64
    python examples/distributed_gru.py                                  # one process

Needs petsc4py, and mpi4py for more than one process: without petsc4py the program says so and ends. In an implicit GRU
every hidden state depends on both of its neighbours, so that a sequence is solved as a whole, and can be too long for
one machine. A rank builds the layer of its own positions and of the ones before and after them, and keeps its own rows;
PETSc exchanges the halos and solves. All ranks hold the same weights; each step of the training is one forward solve,
one adjoint solve, and one sum of the gradients over the ranks.

The task: predict at every position the mean of the inputs a few positions before and a few positions later.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import implicitsolve as ims
from implicitsolve.petsc import Mesh, MeshProblem, Patch

Array = NDArray[Any]
Weights = dict[str, Array]
SHIFT = 2  # positions between an input and its target
LINEAR = ims.LinearStop(rtol=1e-6)


# ----------------------------------------------------------------------------------------------------------- the layer


def implicit_gru(mesh: Mesh, weights: Weights, inputs: Array) -> MeshProblem:
    """The implicit GRU of `ims.adapters` on a sequence of inputs (T, d), as a problem that the ranks share."""

    @functools.cache
    def layer(patch: Patch) -> Any:
        """The layer on a rank's part. Beyond it the states are zero, which affects only the dropped rows."""
        (first,), (stop,), (before,), (after,) = patch.first, patch.stop, patch.before, patch.after
        return ims.adapters.implicit_gru(weights, inputs[first - before : stop + after])

    def residual(patch: Patch, H: Array) -> Array:
        return layer(patch).residual(H)[patch.own]

    def linearize(patch: Patch, H: Array) -> tuple[Array, Callable[[Array], Array]]:
        F, J = layer(patch).linearize(H)
        return F[patch.own], lambda v: J.matvec(v)[patch.own]

    def parameter_vjp(patch: Patch, H: Array, w: Array) -> Mapping[str, Array]:
        seen = np.pad(w, (*zip(patch.before, patch.after), (0, 0)))  # zeros for the neighbours' positions
        gradients = layer(patch).parameter_vjp(H, seen)
        return {name: gradients[name] for name in weights}

    return mesh.problem(
        residual, linearize=linearize, parameters=weights, parameter_vjp=parameter_vjp, name="implicit GRU"
    )


# -------------------------------------------------------------------------------------------------------- the training


def sequence(length: int, d: int) -> tuple[Array, Array]:
    """Inputs (T, d), the same on all ranks, and targets."""
    inputs = np.random.default_rng(0).uniform(-1, 1, (length, d))
    padded = np.pad(inputs, ((SHIFT, SHIFT), (0, 0)))
    return inputs, 0.5 * (padded[: -2 * SHIFT] + padded[2 * SHIFT :])


def loss_of(mesh: Mesh, H: Array, targets: Array, C: Array) -> tuple[float, Array, Array]:
    """Mean squared error of H C, and its gradients with respect to H and C."""
    wrong = H @ C - targets
    scale = 2 / (mesh.patch.shape[0] * C.shape[1])
    square, by_readout = mesh.total(np.sum(wrong**2)), mesh.total(scale * H.T @ wrong)
    return float(square) * scale / 2, scale * wrong @ C.T, by_readout


def train(length: int, hidden: int, d: int, steps: int, rate: float) -> list[float]:
    """Losses of a few steps of Adam, the same on every rank."""
    mesh = Mesh((length,), fields=hidden)
    inputs, whole_targets = sequence(length, d)
    rng = np.random.default_rng(1)
    weights: Weights = ims.adapters.gru_parameters(d, hidden, rng=rng)
    weights["readout"] = rng.uniform(-0.1, 0.1, (hidden, d))
    adam = Adam(rate)
    targets = whole_targets[mesh.patch.first[0] : mesh.patch.stop[0]]
    H = mesh.zeros()
    losses: list[float] = []
    for step in range(steps):
        began = time.perf_counter()
        layer_weights = {name: value for name, value in weights.items() if name != "readout"}
        problem = implicit_gru(mesh, layer_weights, inputs)
        result = problem.root(H).raise_for_status()
        H = result.x  # warm start of the next step
        loss, cotangent, by_readout = loss_of(mesh, H, targets, weights["readout"])
        adjoint = problem.pull_back(result, cotangent, stop=LINEAR).raise_for_status()
        weights = adam.moved(weights, adjoint.gradients | {"readout": by_readout})
        losses.append(loss)
        if mesh.rank == 0:
            print(
                f"step {step + 1:3d}: loss {loss:.6f}, {result.status.name} in {result.iterations} steps, "
                f"{time.perf_counter() - began:.2f} s",
                flush=True,
            )
    if mesh.rank == 0:
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} on {mesh.size} ranks")
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
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=2000, help="positions of the sequence (default: 2000)")
    parser.add_argument("--hidden", type=int, default=16, help="states of a position (default: 16)")
    parser.add_argument("--inputs", type=int, default=3, help="inputs of a position (default: 3)")
    parser.add_argument("--steps", type=int, default=10, help="steps of the training (default: 10)")
    parser.add_argument("--rate", type=float, default=0.02, help="Adam's rate (default: 0.02)")
    options = parser.parse_args(arguments)
    try:
        train(options.length, options.hidden, options.inputs, options.steps, options.rate)
    except ims.errors.BackendUnavailable as missing:
        print(f"nothing was trained: {missing}")


if __name__ == "__main__":
    main(sys.argv[1:])
