"""Train feed-forward, recurrent, bidirectional and implicit networks as lifted nets, beside the networks themselves.

    python examples/lifted_training.py --steps 300

The task is that of `torch_training.py`: a switch is on or off and flips at random, and every element of a sequence of
noisy observations is to be labelled. Each network is trained twice, from the same weights on the same sequences: as one
lifted net x = phi(A x + B u), y = C x, with gradients by `pull_back`, and as PyTorch differentiates its usual loops.
After every step the weights of A are projected so that the net stays well posed. See docs/examples/lifted_training.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import implicitsolve as ims
from implicitsolve import adapters
from torch_training import NOISE, SHORTEST, Batch, filter_logits

Array = NDArray[Any]
Weights = dict[str, Array]
T = SHORTEST  # elements of a sequence
ASIDE = 3  # elements on either side that the networks without recursion see
KAPPA = 0.95
EXACT = ims.NonlinearStop(atol=1e-13)
EXACT_ADJOINT = ims.LinearStop(rtol=1e-13)
TEST_SEQUENCES, TEST_SEED = 2000, 999


def sequences(seen: Array) -> Array:
    """Observations with a constant beside them, (B, T, 2)."""
    return np.stack([seen, np.ones_like(seen)], axis=-1)


def windows(seen: Array) -> Array:
    """Each element with its neighbors and a constant, (B T, 2 ASIDE + 2)."""
    padded = np.pad(seen, ((0, 0), (ASIDE, ASIDE)))
    near = np.lib.stride_tricks.sliding_window_view(padded, T, axis=1).swapaxes(1, 2).reshape(seen.size, -1)
    return np.concatenate([near, np.ones((seen.size, 1))], axis=1)


# ------------------------------------------------------------------------------------------ the networks, as PyTorch's


def feed_forward(w: dict[str, Tensor], u: Tensor) -> Tensor:
    """Two hidden layers."""
    return torch.tanh(torch.tanh(u @ w["W_0"].T) @ w["W_1"].T) @ w["W_2"].T


def states(W_H: Tensor, W_I: Tensor, u: Tensor) -> Tensor:
    """The states of a recurrent network, (B, T, k)."""
    found = [u.new_zeros(len(u), len(W_H))]
    for t in range(u.shape[1]):
        found.append(torch.tanh(found[-1] @ W_H.T + u[:, t] @ W_I.T))
    return torch.stack(found[1:], dim=1)


def recurrent(w: dict[str, Tensor], u: Tensor) -> Tensor:
    """Labels from the past."""
    return states(w["W_H"], w["W_I"], u) @ w["W_O"].T


def bidirectional(w: dict[str, Tensor], u: Tensor) -> Tensor:
    """Labels from both sides."""
    backward = states(w["W_Hb"], w["W_Ib"], u.flip(1)).flip(1)
    return states(w["W_Hf"], w["W_If"], u) @ w["W_Of"].T + backward @ w["W_Ob"].T


def implicit(w: dict[str, Tensor], u: Tensor) -> Tensor:
    """x = phi(A x + B u) by many iterations, all of which are differentiated."""
    x = torch.tanh(u @ w["B"].T)
    for _ in range(400):
        before, x = x, torch.tanh(x @ w["A"].T + u @ w["B"].T)
        if float((x - before).detach().abs().max()) < 1e-14:
            break
    return x @ w["C"].T


# --------------------------------------------------------------------------------------------------- as lifted nets


@dataclass(frozen=True)
class Network:
    """One of the networks.

    Attributes
    ----------
    shapes : dict
        Of its weights.
    in_A : tuple of str
        The weights of A.
    inputs, ordinary : callable
        Its inputs, and the network in PyTorch.
    lifted : callable or None
        Builds A, B and C; None where these are the weights.
    """

    shapes: dict[str, tuple[int, int]]
    in_A: tuple[str, ...]
    inputs: Callable[[Array], Array]
    ordinary: Callable[[dict[str, Tensor], Tensor], Tensor]
    lifted: Callable[[Weights], adapters.LiftedMatrices] | None = None

    def draw(self, rng: np.random.Generator) -> Weights:
        """Weights to begin with."""
        return self.projected({name: rng.uniform(-1, 1, (n, m)) / np.sqrt(m) for name, (n, m) in self.shapes.items()})

    def projected(self, weights: Weights) -> Weights:
        """With the nearest weights of A whose rows have sums of magnitudes of at most KAPPA."""
        return weights | {name: adapters.project_well_posed(weights[name], KAPPA) for name in self.in_A}

    def solve(self, weights: Weights, u: Array) -> tuple[Any, Any, Array, Array]:
        """Matrices, problem, states and logits of the lifted net."""
        net = None if self.lifted is None else self.lifted(weights)
        A, B, C = net or (weights["A"], weights["B"], weights["C"])
        problem = adapters.lifted_net(A, B, adapters.lifted_inputs(u) if u.ndim == 3 else u)
        method = "picard" if net is None else "auto"  # what is well posed contracts; the others are substituted
        result = ims.root(problem, method=method, stop=EXACT)
        result.raise_for_status()
        y = result.x @ C.T
        return net, problem, result.x, adapters.lifted_outputs(y, T)[..., 0] if u.ndim == 3 else y.reshape(-1, T)

    def logits(self, weights: Weights, seen: Array) -> Array:
        """Log odds of "on", (B, T), by the lifted net."""
        return self.solve(weights, self.inputs(seen))[-1]

    def gradients(self, weights: Weights, seen: Array, is_on: Array) -> Weights:
        """Gradients of the mean logistic loss, through the lifted net."""
        net, problem, x, logits = self.solve(weights, self.inputs(seen))
        slope = (1.0 / (1.0 + np.exp(-logits)) - is_on) / is_on.size
        if net is None:
            dy = slope.reshape(-1, 1)
            method = ims.BiCGSTAB()
            found = ims.pull_back(problem, x, dy @ weights["C"], method=method, stop=EXACT_ADJOINT).gradients
            return {"A": found["A"], "B": found["B"], "C": dy.T @ x}
        dy = adapters.lifted_inputs(slope[..., None]) if logits.shape[0] == x.shape[0] else slope.reshape(-1, 1)
        cotangent, dC = net.pull_back_outputs(x, dy)
        found = ims.pull_back(problem, x, cotangent, stop=EXACT_ADJOINT).gradients
        return net.weight_gradients(found["A"], found["B"], dC)

    def ordinary_logits(self, weights: Weights, seen: Array) -> Array:
        """The logits, by the network itself."""
        w = {name: torch.from_numpy(value) for name, value in weights.items()}
        return self.ordinary(w, torch.from_numpy(self.inputs(seen))).numpy().reshape(seen.shape)

    def ordinary_gradients(self, weights: Weights, seen: Array, is_on: Array) -> Weights:
        """Gradients of the mean logistic loss, through the network itself."""
        w = {name: torch.from_numpy(value).requires_grad_() for name, value in weights.items()}
        logits = self.ordinary(w, torch.from_numpy(self.inputs(seen))).reshape(is_on.shape)
        torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(is_on.astype(float))).backward()
        return {name: value.grad.numpy() for name, value in w.items()}  # type: ignore[union-attr]


def networks(k: int) -> dict[str, Network]:
    """All of them, with states of k numbers."""
    near, once, twice = 2 * ASIDE + 2, ((k, k), (k, 2), (1, k)), ("f", "b")
    both = {f"W_{part}{way}": shape for way in twice for part, shape in zip("HIO", once)}
    deep = {"W_0": (k, near), "W_1": (k, k), "W_2": (1, k)}
    return {
        "feed-forward": Network(
            deep, ("W_1",), windows, feed_forward, lambda w: adapters.lifted_feedforward([w["W_0"], w["W_1"], w["W_2"]])
        ),
        "recurrent": Network(
            dict(zip(("W_H", "W_I", "W_O"), once)),
            ("W_H",),
            sequences,
            recurrent,
            lambda w: adapters.lifted_rnn(w["W_H"], w["W_I"], w["W_O"], T, outputs="all"),
        ),
        "bidirectional": Network(
            both, ("W_Hf", "W_Hb"), sequences, bidirectional, lambda w: adapters.lifted_birnn(*w.values(), T)
        ),
        "implicit": Network({"A": (2 * k, 2 * k), "B": (2 * k, near), "C": (1, 2 * k)}, ("A",), windows, implicit),
    }


# -------------------------------------------------------------------------------------------------------- training


def train(network: Network, gradients: Callable[..., Weights], options: argparse.Namespace) -> Weights:
    """Adam on fresh sequences, with a projection after each step; the rate falls linearly to zero."""
    rng = np.random.default_rng(options.seed)
    weights = network.draw(rng)
    mean, square = ({name: np.zeros_like(value) for name, value in weights.items()} for _ in range(2))
    for i in range(1, options.steps + 1):
        batch = Batch.draw(options.batch, rng)
        found = gradients(weights, batch.seen[:, :T], batch.is_on[:, :T])
        rate = options.rate * (1.0 - i / (options.steps + 1)) * np.sqrt(1.0 - 0.999**i) / (1.0 - 0.9**i)
        for name, g in found.items():
            mean[name] += 0.1 * (g - mean[name])
            square[name] += 0.001 * (g * g - square[name])
        moved = {name: w - rate * mean[name] / (np.sqrt(square[name]) + 1e-8) for name, w in weights.items()}
        weights = network.projected(moved)
    return weights


def bounds(seen: Array) -> dict[str, Array]:
    """Log odds of "on" by Bayes' rule: from the past, and from both sides."""
    past = filter_logits(seen)
    return {"past": past, "both sides": past + filter_logits(seen[:, ::-1])[:, ::-1] - 2.0 * seen / NOISE**2}


def run(options: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Train, print and return the errors per element: of the lifted net and of the network itself."""
    batch = Batch.draw(TEST_SEQUENCES, np.random.default_rng(TEST_SEED))
    seen, is_on = batch.seen[:, :T], batch.is_on[:, :T]
    for name, logits in bounds(seen).items():
        print(f"no method sees more in {name:10} {np.mean((logits > 0) != is_on):.4f}")
    found: dict[str, tuple[float, float]] = {}
    for name, network in networks(options.state).items():
        seconds, errors = [], []
        for gradients, logits in (
            (network.gradients, network.logits),
            (network.ordinary_gradients, network.ordinary_logits),
        ):
            began = time.process_time()
            weights = train(network, gradients, options)
            seconds.append(time.process_time() - began)
            errors.append(float(np.mean((logits(weights, seen) > 0) != is_on)))
        exact = network.ordinary_gradients(weights, seen, is_on)
        own = network.gradients(weights, seen, is_on)
        difference = max(float(abs(own[key] - g).max() / abs(g).max()) for key, g in exact.items())
        norm = max(float(abs(weights[key]).sum(axis=1).max()) for key in network.in_A)
        print(
            f"{name:14} lifted {errors[0]:.4f}  ordinary {errors[1]:.4f}  gradients differ by {difference:.0e}  "
            f"norm of A {norm:.3f}  {seconds[0]:.1f} s and {seconds[1]:.1f} s"
        )
        found[name] = errors[0], errors[1]
    return found


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; argparse ends the program with status 2 if it is wrong."""
    parser = argparse.ArgumentParser(prog="lifted_training", description="Train networks as lifted nets.")
    parser.add_argument("--steps", type=int, default=300, help="of training (default %(default)s)")
    parser.add_argument("--state", type=int, default=12, help="numbers in a state (default %(default)s)")
    parser.add_argument("--batch", type=int, default=50, help="sequences in a step (default %(default)s)")
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default %(default)s")
    options = parser.parse_args(arguments)
    for name in ("steps", "state", "batch", "rate"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name}: a positive number expected, got {getattr(options, name)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    run(parse(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
